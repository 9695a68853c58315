"""Data flow of a checked program: chains, with all iterations at once, as whole-tensor operations.

The program is executed once on a symbolic machine. Where the simulator's memories hold numbers,
its entries hold *sources*: which tensor of the data flow a vector belongs to and which vector of it
it is. A chain that computes makes nodes on whole tensors; one that only moves vectors makes none:
it copies sources.

Why that is the program: addresses depend on neither data nor inputs, so a read finds the same
sources in every run, and the iterations of a chain write nothing that another of them reads
(docs/spec/npu.md section 3), so they may be computed at once, as positions of one tensor. Within a
tensor every instruction is applied lane by lane with the roundings of the specification, so the
order in which positions are computed changes no bit.

For example N = 8, an input of 3 x 8, and a state that `asvrf0` holds, zeros at first:

    loop 3
    v_rd netq               ; sources: x vector t
    vv_add asvrf0, 0        ; v7 = add(x vector t, what asvrf0 0 holds)
    v_tanh                  ; v7_2 = tanh(v7)
    v_wr ivrf, 0            ; ivrf 0: v7_2 vector 0
    v_wr netq               ; sent: v7_2 vector 0
    end_chain
    v_rd ivrf, 0
    v_wr asvrf0, 0          ; asvrf0 0: v7_2 vector 0; no node
    end_chain
    end_loop

A loop is not unrolled. One trial turn tells what a turn reads before it writes it: `asvrf0 0`. Only
that goes from turn to turn, as a state; `ivrf 0` is always written first. The turn is executed
again from `s_asvrf0`, the state, which gives the body `v7 = add(x[t], s_asvrf0)`,
`v7_2 = tanh(v7)`, next state `v7_2`; what a turn sends is collected into a tensor [3 positions].
The trial's nodes and names are taken back. A state must have the same lanes and padding when a turn
ends as when it begins. If it has not, whole native vectors are carried instead, which always fits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Any

import numpy as np

from samebits.errors import UnsupportedError
from samebits.npu.concord.graph import Array, Carried, DataFlow, FlowValue, Turns, sweep
from samebits.npu.concord.layout import LaneLayout
from samebits.npu.concord.memory import (
    CONSTANT,
    ZERO,
    Entries,
    Sources,
    Tracker,
    all_of,
    channels_and_positions,
    joined,
    load_image,
    remapped,
)
from samebits.npu.machine.chain import Access, Chain, Loop, Statement, bases, read_offsets
from samebits.npu.machine.check import check
from samebits.npu.machine.isa import REDUCTIONS
from samebits.npu.machine.program import QUEUE, TILE_FILES, Image, Program
from samebits.npu.simulator.machine import pointwise, quantize

TRIED = ("values", "nodes", "made", "names")  # of a layout: what grows in a trial
VECTOR = 64  # the effort of one vector of an access
VECTORS_MAX = 1 << 24  # that one access of a chain takes in all its iterations


def data_flow(program: Program, image: Image) -> DataFlow:
    """The whole-tensor operations of a program.

    Raises InputError for an illegal program, UnsupportedError for one that is too large.
    """
    statements = check(program, image)
    inputs = tuple(h for h in program.hints if h.kind == "input")
    outputs = tuple(h for h in program.hints if h.kind == "output")
    flow = DataFlow(program.name, program.native, program.mantissa, inputs, outputs)
    pool, entries = load_image(program, image)
    taken = {hint.name for hint in (*inputs, *outputs)}
    builder = FlowBuilder(LaneLayout(flow, pool, names=taken), entries)
    builder.read_inputs()
    builder.run(statements)
    builder.write_outputs()
    flow.nodes = tuple(builder.layout.nodes)
    sweep(flow)
    return flow


class LayoutChangedError(Exception):
    """A tensor cannot have the layout that it is to keep from turn to turn."""


@dataclass(frozen=True)
class FlowState:
    """A tensor carried from turn to turn, and the entries that it is in. `vectors` says which
    native vector of it each of `addresses` of each memory holds."""

    value: FlowValue
    places: tuple[tuple[str, Array, Array], ...]


@dataclass
class FlowBuilder:
    """The symbolic machine: entries and the queue hold sources instead of numbers.

    queue, taken:  sources of the inputs, and how many of them have been read
    sent:          sources that each write to the network sent, in order
    trackers:      of the loops around what is executed now, the outermost first
    tile_names:    names of constant tiles by a hash of their numbers
    """

    layout: LaneLayout
    entries: Entries
    queue: Sources = joined([])  # noqa: RUF009 - an empty one, never changed
    taken: int = 0
    sent: tuple[Sources, ...] = ()
    trackers: tuple[Tracker, ...] = ()
    tile_names: dict[str, str] = field(default_factory=dict)

    @property
    def native(self) -> int:
        """Native dimension of the program."""
        return self.layout.flow.native

    # --- network ------------------------------------------------------------------------------

    def read_inputs(self) -> None:
        """The input hints, in order, are the queue."""
        parts = []
        for hint in self.layout.flow.inputs:
            channels, positions = channels_and_positions(hint.shape)
            vectors = -(-channels // self.native)
            name = self.layout.name(f"x_{hint.name}")
            value = FlowValue(name, positions, vectors, channels)
            self.layout.add("input", value, key=hint.name)
            parts.append(all_of(self.layout.number(value), positions * vectors))
        self.queue = joined(parts)

    def write_outputs(self) -> None:
        """The vectors sent are the outputs, one hint after the other."""
        sent, at = joined(self.sent), 0
        self.layout.line = 0
        for hint in self.layout.flow.outputs:
            channels, positions = channels_and_positions(hint.shape)
            vectors = -(-channels // self.native)
            sources = sent[at : at + positions * vectors]
            at += positions * vectors
            value = self.layout.read(sources, vectors, vectors, least=channels)
            if value.vectors != vectors:
                value = self.layout.split(value)
            elif value.width < channels:
                value = self.layout.widen(value, channels)
            out = FlowValue(self.layout.name(f"y_{hint.name}"), positions, vectors, channels)
            self.layout.add("output", out, (value,), key=hint.name)

    # --- chains -------------------------------------------------------------------------------

    def run(self, statements: Sequence[Statement]) -> None:
        """Everything, in order. `s_rd` has no part in the data."""
        for statement in statements:
            if isinstance(statement, Loop):
                self.loop(statement)
            elif isinstance(statement, Chain):
                self.layout.line = statement.line
                self.chain(statement)

    def chain(self, chain: Chain) -> None:
        """All iterations of a chain.

        Raises UnsupportedError if one of its accesses takes too many vectors in all.
        """
        self.entries.where = f"{self.layout.flow.name}:{chain.line}"
        if chain.iterations * max(chain.read_count, chain.write_count) > VECTORS_MAX:
            raise UnsupportedError(
                f"{self.entries.where}: expected a chain of at most {VECTORS_MAX:,} vectors or "
                f"tiles, found {chain.iterations:,} iterations; run the program in the simulator"
            )
        accesses = 1 + len(chain.operations) + len(chain.writes)
        vectors = max(chain.read_count, chain.write_count) * chain.iterations
        self.layout.spend(VECTOR * accesses * vectors)
        sources = self.fetch(chain, chain.read, read_offsets(chain))
        if chain.kind == "vector":
            sources = self.compute(chain, sources)
        elif chain.turned:
            value = self.layout.split(self.layout.read(sources, self.native, 1))
            sources = self.all(self.layout.turn(value))
        for access in chain.writes:
            self.store(chain, access, sources)

    def compute(self, chain: Chain, sources: Sources) -> Sources:
        """The vectors that a chain writes. A chain that only moves vectors makes no node."""
        if chain.mvm_address is not None:
            value = self.mv_mul(chain, sources)
        elif chain.operations:
            value = self.layout.read(sources, chain.rows)
        else:
            return sources
        for operation in chain.operations:
            value = self.operate(chain, operation.op, operation.operand, value)
        return self.all(value)

    def all(self, value: FlowValue) -> Sources:
        """All vectors of a new tensor."""
        return all_of(self.layout.number(value), value.positions * value.vectors)

    def addresses(self, chain: Chain, access: Access, offsets: Array) -> Array:
        """Addresses of an access in all iterations, in native vectors: a tile is its rows."""
        found = (bases(access, chain)[:, np.newaxis] + offsets).reshape(-1)
        return self.rows_of(found) if access.memory in TILE_FILES else found

    def rows_of(self, tiles: Array) -> Array:
        """Addresses of the rows of tiles."""
        return (tiles[:, np.newaxis] * self.native + np.arange(self.native)).reshape(-1)

    def fetch(self, chain: Chain, access: Access, offsets: Array) -> Sources:
        """The sources that an access reads in all iterations, in order."""
        if access.memory != QUEUE:
            return self.recall(access.memory, self.addresses(chain, access, offsets))
        each = self.native if chain.kind == "matrix" else 1
        count = chain.iterations * len(offsets) * each
        self.taken += count
        return self.queue[self.taken - count : self.taken]

    def recall(self, memory: str, addresses: Array) -> Sources:
        """The sources that entries hold; the loops around take note."""
        for tracker in self.trackers:
            tracker.read(memory, addresses)
        return self.entries.read(memory, addresses)

    def store(self, chain: Chain, access: Access, sources: Sources) -> None:
        """A write of a chain: entries hold the sources, or they are sent."""
        if access.memory == QUEUE:
            self.sent = (*self.sent, sources)
            return
        addresses = self.addresses(chain, access, np.arange(chain.write_count))
        for tracker in self.trackers:
            tracker.write(access.memory, addresses)
        self.entries.write(access.memory, addresses, sources)

    # --- operations ---------------------------------------------------------------------------

    def operate(self, chain: Chain, op: str, access: Access | None, value: FlowValue) -> FlowValue:
        """One instruction of a multifunction unit. access: its operand, None of an activation.

        An operand that stays at its address is one position, which all iterations share.
        """
        if op in REDUCTIONS:
            value = self.layout.widen(value, self.layout.full(value))
            out = _like(value, self.layout.name(f"v{self.layout.line}"), padding=0)
            return self.layout.add(op, out, (value,), numbers=(chain.rows * self.native,))
        if access is None:
            return self.result(op, value, (value,))
        offsets = np.arange(chain.rows)
        sources = self.fetch(chain, access, offsets)
        each = sources[: chain.rows]
        if value.vectors == chain.rows and (access.dx == 0 == access.dy or chain.iterations == 1):
            operand = self.layout.read(each, chain.rows, value.vectors, value.width)
            if operand.positions == 1:  # one operand for all iterations
                return self.result(op, value, (value, operand))
        operand = self.layout.read(sources, chain.rows, value.vectors, value.width)
        return self.result(op, value, (value, operand))

    def result(self, op: str, value: FlowValue, operands: tuple[FlowValue, ...]) -> FlowValue:
        """A point-wise operation of values, brought to the same lanes.

        What the machine computes in padding is not computed: it is one number for all positions,
        and `padding` of the result says which.
        """
        layout = self.layout
        if len({v.vectors for v in operands}) > 1:
            operands = tuple(layout.split(v) for v in operands)
        width = max(v.width for v in operands)
        operands = tuple(layout.widen(v, width) for v in operands)
        padding = _padding(op, [v.padding for v in operands])
        name = layout.name(f"v{layout.line}")
        out = _like(operands[0], name, padding=padding)
        return layout.add(op, out, operands)

    def mv_mul(self, chain: Chain, sources: Sources) -> FlowValue:
        """The product of tiles and the vectors that the chain reads.

        Tiles of the memory image are constants, quantized here. Tiles that the program itself put
        into mrf are the rows of tensors, quantized as the vectors are.
        """
        assert chain.mvm_address is not None
        layout, native = self.layout, self.native
        tiles = chain.mvm_address + np.arange(chain.rows * chain.columns)
        rows = self.recall("mrf", self.rows_of(tiles))
        moved = bool((rows.owners != CONSTANT).any())
        if moved:
            columns = layout.split(layout.read(sources, chain.columns, 1))
            quantized = layout.quantize(columns)
        else:
            value, index = layout.gather(sources, chain.columns)
            quantized = layout.select(layout.quantize(value), index)
        name = layout.name(f"v{chain.line}")
        if moved:
            out = FlowValue(name, chain.iterations, chain.rows, chain.rows * native)
            right = layout.quantize(layout.split(layout.read(self.by_rows(chain, rows), 1, 1)))
            numbers = (chain.columns, int(chain.requantize))
            return layout.add("mv_mul_tiles", out, (quantized, right), numbers=numbers)
        key, outputs = self.constant_tiles(chain, rows, quantized)
        out = FlowValue(name, chain.iterations, chain.rows, outputs)
        return layout.add("mv_mul", out, (quantized,), key=key, numbers=(int(chain.requantize),))

    def by_rows(self, chain: Chain, rows: Sources) -> Sources:
        """Rows of tiles in the order of the outputs: the columns of one after the other."""
        shape = (chain.rows, chain.columns, self.native)
        return rows[np.arange(len(rows)).reshape(shape).transpose(0, 2, 1).reshape(-1)]

    def constant_tiles(self, chain: Chain, rows: Sources, right: FlowValue) -> tuple[str, int]:
        """(name of the data, logical outputs). Lanes that meet padding are left out."""
        layout, native = self.layout, self.native
        picked = self.by_rows(chain, rows).vectors
        blocks = quantize(layout.pool.bits[picked].view(np.float16), layout.flow.mantissa)
        scales = (blocks.exponents - layout.flow.mantissa)[:, np.newaxis]
        values = np.ldexp(blocks.codes.astype(np.float32), scales.astype(np.int32))
        lanes = min(right.width, native)
        shape = (chain.rows * native, chain.columns // right.vectors, right.vectors, native)
        values = values.reshape(shape)[:, :, : right.width // lanes, :lanes]
        logical = layout.pool.lanes[picked].reshape(shape[0], -1).any(1) | values.any((1, 2, 3))
        outputs = int(np.flatnonzero(logical).max(initial=0)) + 1
        tiles = np.ascontiguousarray(
            values[:outputs].reshape(outputs, -1, lanes).transpose(1, 2, 0).astype(np.float32)
        )
        digest = sha256(repr(tiles.shape).encode() + tiles.tobytes()).hexdigest()
        if digest not in self.tile_names:
            wanted = name = f"w_{layout.pool.name(picked) or 'image'}"
            while name in self.tile_names.values():
                name = f"{wanted}_{len(self.tile_names) + 1}"
            self.tile_names[digest] = name
            layout.flow.data["tiles", name] = tiles
        return self.tile_names[digest], outputs

    # --- loops --------------------------------------------------------------------------------

    def loop(self, loop: Loop) -> None:
        """A loop of the emitted program, or its turns one after the other."""
        if loop.count == 1:
            self.run(loop.body)
            return
        saved = self.snapshot()
        for whole in (False, True):
            try:
                self.turns(loop, whole)
                return
            except LayoutChangedError:
                self.restore(saved)
        raise AssertionError("whole native vectors can always be carried")

    def snapshot(self) -> FlowBuilder:
        """A copy to `restore` after a trial. Raises UnsupportedError after too many of them."""
        layout = self.layout
        layout.spend(8 * len(layout.values) + sum(map(len, self.entries.memories.values())))
        return self.copied()

    def copied(self) -> FlowBuilder:
        """A builder that shares nothing with this one that a trial changes."""
        held = {name: copy(found) for name, found in vars(self.layout).items() if name in TRIED}
        return replace(self, layout=replace(self.layout, **held), entries=self.entries.copy())

    def restore(self, saved: FlowBuilder) -> None:
        """Back to a snapshot; the effort stays spent."""
        layout, again = self.layout, saved.copied()
        vars(layout).update(vars(again.layout), effort=layout.effort)
        vars(self).update(vars(again), layout=layout)

    def turns(self, loop: Loop, whole: bool) -> None:
        """The loop as one node. whole: native vectors are carried, not tensors.

        A trial turn finds what the body reads before it writes it, which is carried, and the shape
        that it ends with. Its nodes are taken back, then the turn is executed for good with the
        states in these entries and nothing else changed: what is not carried is either the same in
        every turn, because no turn writes it, or written before it is read. Raises
        LayoutChangedError where a state ends with another layout than it began with.
        """
        layout, saved = self.layout, self.snapshot()
        tracker = Tracker()
        self.trackers = (*self.trackers, tracker)
        self.run(loop.body)
        taken = self.taken - saved.taken
        carried = tracker.carried()
        ends = {memory: self.entries.read(memory, a) for memory, a in carried.items()}
        shapes = {
            n: layout.values[n] for end in ends.values() for n in np.unique(end.owners).tolist()
        }
        self.restore(saved)

        states = self.states(carried, ends, shapes, whole)
        initial = [self.shaped(self.held(state), state.value) for state in states]
        slices = self.slices(loop.count, taken)
        outer, before = self.snapshot(), len(layout.values)
        layout.nodes, self.sent, self.taken = [], (), 0
        self.queue = joined([])
        if slices:
            self.queue = all_of(layout.number(slices[0][0]), taken)
        for state in states:
            owner = layout.number(state.value)
            for memory, addresses, vectors in state.places:
                owners = np.full(len(addresses), owner, np.int64)
                self.entries.write(memory, addresses, Sources(owners, vectors))
        self.run(loop.body)
        nexts = [self.shaped(self.held(state), state.value) for state in states]
        sent = joined(self.sent)
        collected = []
        if len(sent):
            each = layout.read(sent, len(sent))
            name = layout.name(f"{each.name}_turns")
            collected = [(each, _like(each, name, positions=each.positions * loop.count))]
        body = tuple(layout.nodes)

        self.queue, self.taken = outer.queue, outer.taken + loop.count * taken
        layout.nodes, layout.made = outer.layout.nodes, outer.layout.made
        finals = [_like(state.value, layout.name(f"{state.value.name}_last")) for state in states]
        escaped = self.leave(tracker, states, finals, before)
        self.sent = outer.sent
        if collected:
            owner = layout.number(collected[0][1])
            self.sent = (*self.sent, all_of(owner, len(sent) * loop.count))
        layout.nodes.append(
            Turns(
                loop.count,
                slices,
                tuple(
                    Carried(state.value, *others)
                    for state, *others in zip(states, initial, nexts, finals, strict=True)
                ),
                body,
                tuple(collected),
                escaped,
                loop.line,
            )
        )

    def states(
        self,
        carried: Mapping[str, Array],
        ends: Mapping[str, Sources],
        shapes: Mapping[int, FlowValue | None],
        whole: bool,
    ) -> list[FlowState]:
        """The states: one for each tensor that carried entries hold at the end of a turn.

        carried: addresses by memory. ends: their sources after the trial. shapes: the tensors by
        number. whole: native vectors of each memory instead, in any case.
        """
        states = []
        for memory, addresses in carried.items():
            end = ends[memory]
            owners = np.full_like(end.owners, -1) if whole else end.owners
            for owner in np.unique(owners).tolist():
                chosen = owners == owner
                shape, vectors = shapes.get(owner), end.vectors[chosen]
                if shape is None or len(np.unique(vectors)) < len(vectors):
                    shape = FlowValue("", len(vectors), 1, self.native)
                    vectors = np.arange(len(vectors))
                value = _like(shape, self.layout.name(f"s_{memory}"))
                states.append(FlowState(value, ((memory, addresses[chosen], vectors),)))
        return states

    def held(self, state: FlowState) -> Sources:
        """The vectors of a state as the entries hold them; zeros for what no entry holds."""
        count = state.value.positions * state.value.vectors
        owners = np.full(count, CONSTANT, np.int64)
        numbers = np.full(count, ZERO, np.int64)
        for memory, addresses, vectors in state.places:
            found = self.entries.read(memory, addresses)
            owners[vectors], numbers[vectors] = found.owners, found.vectors
        return Sources(owners, numbers)

    def shaped(self, sources: Sources, like: FlowValue) -> FlowValue:
        """The vectors in a given layout. Raises LayoutChangedError if they cannot have it."""
        value = self.layout.read(sources, like.vectors, like.vectors, least=like.width)
        whole = self.layout.full(value)
        if value.vectors != like.vectors or value.width > like.width:
            raise LayoutChangedError
        if like.width < whole and value.padding != like.padding:
            raise LayoutChangedError
        return self.layout.widen(value, like.width)

    def slices(self, count: int, taken: int) -> tuple[tuple[FlowValue, FlowValue], ...]:
        """The turn's part of what all turns take from the queue."""
        if not taken:
            return ()
        layout = self.layout
        every = self.queue[self.taken : self.taken + count * taken]
        value = layout.read(every, taken)
        if taken % value.vectors:
            value = layout.split(value)
        name = layout.name(f"{value.name}_turn")
        return ((_like(value, name, positions=taken // value.vectors), value),)

    def leave(
        self, tracker: Tracker, states: list[FlowState], finals: list[FlowValue], before: int
    ) -> tuple[tuple[FlowValue, FlowValue], ...]:
        """After a loop the entries hold what its last turn made.

        Tensors of the body do not exist outside. Each that an entry still holds gets a name there:
        (in the body, outside) for `Turns.escaped`. before: the number of tensors that are older.
        """
        layout = self.layout
        renamed: dict[int, int] = {}
        escaped = []
        for memory, written in tracker.written.items():
            addresses = np.array(sorted(written), np.int64)
            found = self.entries.read(memory, addresses)
            for owner in np.unique(found.owners[found.owners >= before]).tolist():
                if owner not in renamed:
                    value = layout.values[owner]
                    assert value is not None
                    out = _like(value, layout.name(f"{value.name}_last"))
                    escaped.append((value, out))
                    renamed[owner] = layout.number(out)
            self.entries.write(memory, addresses, remapped(found, renamed))
        for state, final in zip(states, finals, strict=True):
            owner = layout.number(final)
            for memory, addresses, vectors in state.places:
                owners = np.full(len(addresses), owner, np.int64)
                self.entries.write(memory, addresses, Sources(owners, vectors))
        return tuple(escaped)


def _like(value: FlowValue, name: str, **changed: Any) -> FlowValue:
    """A tensor of the layout of another."""
    return replace(value, name=name, constant=False, **changed)


def _padding(op: str, bits: Sequence[int]) -> int:
    """Bits of the number that an operation makes of numbers with these bits."""
    numbers = [np.array([b], np.uint16).view(np.float16) for b in bits]
    return int(pointwise(op, *numbers).astype(np.float16).view(np.uint16)[0])
