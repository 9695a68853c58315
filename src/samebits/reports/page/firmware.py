"""The page of firmware: chains, how well they use the processor, and what each waits for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from samebits.errors import SamebitsError
from samebits.model import Model
from samebits.npu.machine.chain import Access, Chain, Loop, Send, Statement, bases, read_offsets
from samebits.npu.machine.check import check
from samebits.npu.machine.image import firmware_sha256
from samebits.npu.machine.program import QUEUE, Image, Program
from samebits.npu.simulator.counts import count
from samebits.reports.html import Figures, Paragraph, Section, Table
from samebits.reports.page.drawing import Item, drawing
from samebits.reports.page.verdict import BackendsCompared, verdict_section
from samebits.reports.report import printable

Array = np.ndarray[Any, Any]
MOST = 200  # chains in one drawing


@dataclass(frozen=True)
class ChainFacts:
    """A chain of the program.

    executions: in one run; products: of a tile and a vector, in one run
    used:   share of the multiplications by weights other than zero, None where it is not known
    after:  places of the chains whose results it reads, or whose place it takes
    """

    place: int
    line: int
    title: str
    what: str
    executions: int
    products: int
    used: float | None
    after: tuple[int, ...]


def chain_facts(
    program: Program, image: Image, statements: Sequence[Statement]
) -> list[ChainFacts]:
    """The chains in the order of the program, the body of a loop once."""
    counts = {one.line: one for one in count(statements, program.native).chains}
    loaded = {
        address
        for chain in _chains(statements)
        for memory, addresses in _writes(chain)
        if memory == "mrf"
        for address in addresses
    }
    tiles = {at: tile for at, tile in image.entries.get("mrf", {}).items() if at not in loaded}
    writers: dict[str, dict[int, int]] = {}
    found: list[ChainFacts] = []
    seen: dict[int, int] = {}
    for chain in _chains(statements):
        if chain.line in seen and chain.line:  # a loop's later turns
            continue
        place = len(found)
        seen[chain.line] = place
        after = {
            writers[memory][address]
            for memory, addresses in _reads(chain)
            for address in addresses
            if address in writers.setdefault(memory, {})
        }
        for memory, addresses in _writes(chain):
            writers.setdefault(memory, {}).update(dict.fromkeys(addresses, place))
        counted = counts.get(chain.line)
        found.append(
            ChainFacts(
                place,
                chain.line,
                _title(chain),
                _what(chain),
                counted.executions if counted else 1,
                counted.products if counted else 0,
                _used(chain, tiles),
                tuple(sorted(after)),
            )
        )
    return found


def _used(chain: Chain, tiles: Mapping[int, Array]) -> float | None:
    """The share of a chain's multiplications that are by weights other than zero: neither padding
    nor, of grouped convolutions, other groups. tiles: those that nothing loads while it runs."""
    if chain.mvm_address is None:
        return None
    places = range(chain.mvm_address, chain.mvm_address + chain.rows * chain.columns)
    if not all(place in tiles for place in places):
        return None
    return float(np.mean([np.count_nonzero(tiles[place]) / tiles[place].size for place in places]))


def _chains(statements: Sequence[Statement]) -> Iterator[Chain]:
    for statement in statements:
        if isinstance(statement, Loop):
            yield from _chains(statement.body)
        elif not isinstance(statement, Send):
            yield statement


def _reads(chain: Chain) -> Iterator[tuple[str, list[int]]]:
    """The memories and addresses that a chain reads, those of all iterations."""
    if chain.read.memory != QUEUE:
        places = bases(chain.read, chain)[:, None] + read_offsets(chain)
        yield chain.read.memory, [int(a) for a in np.unique(places)]
    for operation in chain.operations:
        if operation.operand is not None:
            yield operation.operand.memory, _span(operation.operand, chain, chain.rows)
    if chain.mvm_address is not None:
        tiles = range(chain.mvm_address, chain.mvm_address + chain.rows * chain.columns)
        yield "mrf", list(tiles)


def _writes(chain: Chain) -> Iterator[tuple[str, list[int]]]:
    for access in chain.writes:
        if access.memory != QUEUE:
            yield access.memory, _span(access, chain, chain.write_count)


def _span(access: Access, chain: Chain, length: int) -> list[int]:
    places = bases(access, chain)[:, None] + np.arange(length)
    return [int(a) for a in np.unique(places)]


def _title(chain: Chain) -> str:
    ops = [] if chain.mvm_address is None else ["mv_mul"]
    ops += [operation.op for operation in chain.operations]
    return " ".join(ops) or ("move" if chain.kind == "vector" else "move tiles")


def _what(chain: Chain) -> str:
    to = ", ".join(dict.fromkeys(access.memory for access in chain.writes))
    return f"{chain.read.memory} to {to or 'nothing'}"


def firmware_sections(
    model: Model, compared: BackendsCompared | None, saved: str = ""
) -> list[Section]:
    """The verdict, the chains as a graph and as a table, the memories."""
    program = model.program
    sha256 = firmware_sha256(program, model.image)
    found = [verdict_section(saved or model.source, "firmware", sha256, compared)]
    try:
        statements = check(program, model.image)
    except SamebitsError as error:
        return [
            *found,
            Section("Chains", [Paragraph(f"The program is not legal: {printable(str(error))}")]),
        ]
    chains = chain_facts(program, model.image, statements)
    work = count(statements, program.native)
    used = _utilisation(chains)
    figures = Figures(
        [
            ("instructions", f"{len(program.instructions):,}", ""),
            ("chains", f"{len(chains):,}", f"{work.executions:,} executed in a run"),
            ("multiply-adds", f"{work.multiply_adds:,}", "with padding"),
            (
                "utilisation",
                "unknown" if used is None else f"{100 * used:.1f} %",
                "of them by weights that are not 0",
            ),
            ("native dimension", f"{program.native}", f"mantissa {program.mantissa} bits"),
        ]
    )
    found[0] = Section(found[0].title, [found[0].blocks[0], figures, *found[0].blocks[1:]])
    found.append(_graph(program, chains))
    found.append(_table(chains))
    found.append(_memories(model))
    return found


def _utilisation(chains: Sequence[ChainFacts]) -> float | None:
    """The share of all multiplications that are by weights other than zero; None where that of a
    chain is not known, and where there are none."""
    products = [chain for chain in chains if chain.products]
    if not products or any(chain.used is None for chain in products):
        return None
    total = sum(chain.products for chain in products)
    return sum((chain.used or 0.0) * chain.products for chain in products) / total


def _graph(program: Program, chains: Sequence[ChainFacts]) -> Section:
    """The drawing of the chains, or why there is none."""
    title = "What waits for what"
    if len(chains) > MOST:
        text = f"{len(chains):,} chains are too many to draw; the table says what each waits for."
        return Section(title, [Paragraph(text)])
    items = {
        str(chain.place): Item(
            chain.title,
            f"line {chain.line}, {chain.what}" if chain.line else chain.what,
            f"chain-{chain.place + 1}",
            "product" if chain.products else "move" if "move" in chain.title else "function",
        )
        for chain in chains
    }
    edges = [(str(before), str(chain.place)) for chain in chains for before in chain.after]
    text = (
        "Each box is a chain, a line leads from the one that wrote what another reads. The body of "
        "a loop is drawn once; what one turn hands to the next is not."
    )
    return Section(title, [Paragraph(text), drawing(f"Chains of {program.name}", items, edges)])


def _table(chains: Sequence[ChainFacts]) -> Section:
    """A row for every chain."""
    rows = [
        (
            f"{chain.place + 1}",
            f"{chain.line}" if chain.line else "",
            chain.title,
            chain.what,
            f"{chain.executions:,}",
            f"{chain.products:,}",
            "" if chain.used is None else f"{100 * chain.used:.1f} %",
            ", ".join(str(before + 1) for before in chain.after),
        )
        for chain in chains
    ]
    columns = [
        *("chain", "line", "does", "from and to", "executed"),
        *("tile products", "utilisation", "after chains"),
    ]
    keys = [f"chain-{chain.place + 1}" for chain in chains]
    text = (
        "Utilisation is the share of a chain's multiplications by weights other than 0, of which "
        "padding has none; it says nothing of time."
    )
    return Section("Chains", [Paragraph(text), Table(columns, rows, code=("does",), keys=keys)])


def _memories(model: Model) -> Section:
    """The memories of the program, and its ports."""
    program, image = model.program, model.image
    held = {name: len(entries) for name, entries in image.entries.items() if entries}
    rows = [
        (
            name,
            "" if name not in program.depths else f"{program.depths[name]:,}",
            f"{held.get(name, 0):,}",
            f"{2 * sum(e.size for e in image.entries.get(name, {}).values()):,}",
        )
        for name in dict.fromkeys([*program.depths, *held])
    ]
    ports = [
        (hint.kind, printable(hint.name), " x ".join(map(str, hint.shape)))
        for hint in program.hints
        if hint.kind != "tensor"
    ]
    return Section(
        "Memories and ports",
        [
            Table(("memory", "depth", "in the image", "bytes"), rows),
            Table(("port", "name", "shape"), ports),
        ],
    )
