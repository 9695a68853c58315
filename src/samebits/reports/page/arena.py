"""The arena over time: where every buffer lies, from which layer to which."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from samebits.arena import aligned
from samebits.codegen.lowering.calls import CallList
from samebits.codegen.lowering.cpu import PORTABLE, find_cpu
from samebits.codegen.memory import MemoryLayout, layout
from samebits.codegen.rolling import calls_for
from samebits.errors import SamebitsError
from samebits.ir import Graph
from samebits.reports.html import Figures, Fold, PageBlock, Paragraph, Section, Table
from samebits.reports.report import printable

TITLE = "Memory over time"
TONES = 4


@dataclass(frozen=True)
class ArenaBar:
    """A buffer: bytes `at` to `at + size` from entry `first` to `last`, both included."""

    names: tuple[str, ...]
    first: int
    last: int
    at: int
    size: int
    tone: int


@dataclass(frozen=True)
class ArenaMap:
    """A block: all buffers over the entries of the call list. live: bytes in use at each entry."""

    kind: ClassVar[str] = "arena"
    bars: Sequence[ArenaBar]
    live: Sequence[int]
    peak: int
    bound: int


def arena_map(calls: CallList, memory: MemoryLayout) -> ArenaMap:
    """The plan of the arena as bars, with the names of the values that lie in each."""
    names: dict[tuple[int, int], list[str]] = {}
    times = zip(calls.entries, memory.times, strict=True)
    entries = {entry.value: time for entry, time in times}
    bars = []
    buffers = list(zip(memory.plan.buffers, memory.plan.offsets, strict=True))
    for value, place in memory.places.items():
        if place.kind == "arena" and value in entries:
            names.setdefault((place.at, entries[value]), []).append(value)
    for number, (buffer, at) in enumerate(buffers):
        held = [
            name
            for (where, entry), values in names.items()
            if where == at and buffer.first <= entry <= buffer.last
            for name in values
        ]
        scratch = buffer.first == buffer.last and not held
        shown = ("scratch memory of the kernel",) if scratch else tuple(held)
        bars.append(ArenaBar(shown, buffer.first, buffer.last, at, buffer.size, number % TONES + 1))
    live = [memory.live(entry) for entry in range(len(calls.entries))]
    return ArenaMap(bars, live, memory.plan.peak, memory.plan.bound)


def _states(memory: MemoryLayout) -> str:
    """A sentence on the bytes of the next states, beside the plan; "" for none."""
    more = memory.bytes - aligned(memory.plan.peak)
    return f" Next states lie behind it, in {more:,} bytes." if more else ""


def arena_section(graph: Graph, cpu: str = PORTABLE.name) -> Section:
    """The arena of the C for a processor; a sentence where there is none."""
    try:
        calls = calls_for(graph, find_cpu(cpu))
        memory = layout(calls)
    except SamebitsError as error:
        return Section(
            TITLE, [Paragraph(f"No C is generated of this network: {printable(str(error))}")]
        )
    if not memory.plan.buffers:
        return Section(TITLE, [Paragraph("Nothing lies in the arena: it has 0 bytes.")])
    found = arena_map(calls, memory)
    over = found.peak - found.bound
    least = (
        "no plan can have less"
        if not over
        else f"{over:,} more than the lower bound, which no plan beats"
    )
    processor = "any processor" if cpu == PORTABLE.name else cpu
    blocks: list[PageBlock] = [
        Figures(
            [
                ("arena", f"{memory.bytes:,}", "bytes"),
                ("lower bound", f"{found.bound:,}", "bytes live at once"),
                ("stack", f"{memory.stack:,}", "bytes at most, Cortex-M"),
            ]
        ),
        Paragraph(
            f"Every bar is a buffer of the C for {processor}: its width says from which layer to "
            f"which it lives, its height its bytes. The highest address is {found.peak:,}: {least}."
            + _states(memory)
        ),
        found,
    ]
    rows = [
        (
            printable(", ".join(bar.names)),
            printable(calls.entries[bar.first].value),
            printable(calls.entries[min(bar.last, len(calls.entries) - 1)].value),
            f"{bar.at:,}",
            f"{bar.size:,}",
        )
        for bar in found.bars
    ]
    columns = ("holds", "from layer", "to layer", "address", "bytes")
    blocks.append(Fold("The buffers as a table", [Table(columns, rows)]))
    return Section(TITLE, blocks)
