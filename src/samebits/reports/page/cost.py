"""The cost of a network: bytes beside those of a board, instructions, and a time by a clock."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar

from samebits.codegen.lowering.cpu import find_cpu
from samebits.codegen.memory import layout
from samebits.codegen.rolling import calls_for
from samebits.codegen.run.requirements import Requirements
from samebits.codegen.run.targets import TARGETS
from samebits.errors import InputError
from samebits.ir import Graph
from samebits.ir.figures import multiply_adds
from samebits.reports.html import Figures, PageBlock, Paragraph, Section
from samebits.reports.page.layers import NetworkLayer
from samebits.reports.report import printable

TITLE = "What it costs"
UNITS = {"hz": 1, "khz": 10**3, "mhz": 10**6, "ghz": 10**9}
SMALLEST = "cortex-m0"  # of the boards that are emulated
FASTEST = 10**11  # Hz
ESTIMATE = (
    "A time is an estimate: the instructions that the board's emulator counted, at one a clock "
    "cycle. Loads, branches and waits for flash take longer, and some cores do two at once."
)


@dataclass(frozen=True)
class Meter:
    """Bytes used of those that there are, as a bar. more: about them, in words."""

    title: str
    used: int
    size: int
    more: str = ""

    @property
    def share(self) -> float:
        """The share that is used; above 1 where it does not fit."""
        return self.used / self.size

    @property
    def words(self) -> str:
        """The bar as a sentence."""
        more = f", {self.more}" if self.more else ""
        fits = "" if self.share <= 1 else ": too many"
        return f"{self.used:,} of {self.size:,} bytes, {100 * self.share:.1f} %{more}{fits}"


@dataclass(frozen=True)
class Meters:
    """A block: bars below each other."""

    kind: ClassVar[str] = "meters"
    items: Sequence[Meter]


def clock_hz(text: str) -> Fraction:
    """The clock of a text such as 64MHz, in Hz. Raises InputError for another text."""
    found = re.fullmatch(r"(\d{1,12}(?:\.\d{1,9})?) ?(Hz|kHz|MHz|GHz)", text, flags=re.IGNORECASE)
    clock = Fraction(found[1]) * UNITS[found[2].lower()] if found else Fraction(0)
    if not 0 < clock <= FASTEST:
        raise InputError(f"--clock: expected a clock such as 64MHz, found {text!r:.60}")
    return clock


def milliseconds(instructions: int, clock: Fraction) -> str:
    """The time of so many instructions at one a clock cycle, to three digits."""
    return f"{float(1000 * instructions / clock):.3g}"


def cost_section(
    graph: Graph,
    layers: Sequence[NetworkLayer],
    constants: int,
    cpu: str | None,
    needs: Sequence[Requirements],
    totals: Mapping[str, int],
    clock: str,
) -> Section:
    """Bytes, work, bars beside a board's memory.

    constants: bytes of weights and tables, of the C where there is one
    cpu:       that the C is for; None where there is no C
    needs:     measured on boards; totals: instructions of one run, by board
    clock:     as `clock_hz` takes it; "" for none
    """
    largest = max((layer.activation_bytes for layer in layers), default=0)
    figures = [
        ("layers", f"{len(layers):,}", ""),
        ("constants", f"{constants:,}", "bytes" if cpu is None else "bytes in C"),
        ("multiply-adds", f"{multiply_adds(graph):,}", "in a step" if graph.states else ""),
        ("largest output", f"{largest:,}", "bytes"),
    ]
    blocks: list[PageBlock] = []
    for board, total in totals.items():
        figures.append(("instructions", f"{total:,}", f"on {board}"))
        if clock:
            time = milliseconds(total, clock_hz(clock))
            figures.append(("time", f"{time} ms", f"at {clock} on {board}, an estimate"))
            blocks.append(Paragraph(ESTIMATE))
    measured = [need for need in needs if need.why is None]
    meters = [meter for need in measured for meter in _measured(need)]
    if not measured and cpu is not None:
        meters = _bounds(graph, constants, cpu)
        blocks.append(
            Paragraph(
                "The code itself, some thousand bytes, comes on top: samebits compile measures it "
                "on boards, and so does --board here."
            )
        )
    lines = [f"{need.target}: not measured: {need.why}" for need in needs if need.why is not None]
    blocks = [Meters(meters), *blocks] if meters else blocks
    return Section(TITLE, [Figures(figures), *blocks, *(Paragraph(printable(x)) for x in lines)])


def _measured(need: Requirements) -> list[Meter]:
    """Flash and RAM of a board that a program was linked for."""
    board = TARGETS[need.target].board
    if board is None or need.flash is None or need.ram is None or need.stack is None:
        return []
    name = f"{need.target} ({board.machine})"
    return [
        Meter(f"Flash of {name}", need.flash, board.flash.bytes, "code and constants"),
        Meter(f"RAM of {name}", need.ram + need.stack, board.ram.bytes, "arena, states and stack"),
    ]


def _bounds(graph: Graph, constants: int, cpu: str) -> list[Meter]:
    """The bytes that are known without a build, beside the smallest board."""
    board = TARGETS[SMALLEST].board
    assert board is not None
    name = f"the smallest board here, {SMALLEST} ({board.machine})"
    memory = layout(calls_for(graph, find_cpu(cpu)))
    return [
        Meter(f"Flash of {name}", constants, board.flash.bytes, "constants without code"),
        Meter(
            f"RAM of {name}",
            memory.bytes + memory.stack,
            board.ram.bytes,
            "arena and stack at most",
        ),
    ]
