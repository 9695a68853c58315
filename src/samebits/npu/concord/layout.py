"""From native vectors, wherever they lie, to whole tensors in logical lanes.

A chain reads vectors that may belong to several tensors, in any order, and to the memory image.
`LaneLayout.gather` makes one tensor of them: the tensors they belong to, one after the other along
the positions, the needed rows of the image behind them as a constant, and an index that picks the
position of each vector. An index that is the identity or a slice costs nothing.

Lanes that a network does not have are left out. The machine computes them too, so what it would
find there must be known: a tensor has one number of padding beyond its `width`. `widen` adds lanes
that hold it, before tensors of other widths or paddings meet.

For example N = 8 and an image of 5 channels and 2 x 2 pixels, written row by row, read column by
column (`v_rd_inc ivrf, 0, 2, 1`: vectors 0, 2, 1, 3):

    v_rd_inc ivrf, 0, 2, 1   x_at = x[:, [0, 2, 1, 3]]      width 5, padding +0
    vv_add asvrf0, 0         v = add(x_at, c_b)             width 5, padding +0 + +0 = +0
    v_sigm                   v_2 = sigmoid(v)               width 5, padding sigmoid(+0) = 0.5

Three of eight lanes are never computed; that lanes 5 to 7 hold 0.5 matters only if a wider tensor
is added later, and then they are there. `quantize` leaves padding of zeros out, because a zero
changes neither the largest magnitude of a block nor a dot product; other padding is widened first.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Any

import numpy as np

from samebits.errors import UnsupportedError
from samebits.npu.concord.graph import Array, DataFlow, FlowNode, FlowValue, Turns
from samebits.npu.concord.memory import CONSTANT, NOTHING, Pool, Sources

NODES_MAX = 20_000  # with those that turn out to be of no use
EFFORT_MAX = 1 << 34  # a few minutes; a loop is tried up to four times, those in it each time
OPERATION = 1 << 15  # the effort of one
FOLDED_MAX = 1 << 20  # numbers of a constant that is made of another
ZEROS = (0x0000, 0x8000)  # +0 and -0


@dataclass
class LaneLayout:
    """Makes nodes that bring vectors into order. Values are numbered: `values[0]` is the pool.

    made: constants and derived tensors, each made once, by what they are made of
    names: those taken     count: nodes so far     line: of the chain at work
    """

    flow: DataFlow
    pool: Pool
    values: list[FlowValue | None] = field(default_factory=lambda: [None])
    nodes: list[FlowNode | Turns] = field(default_factory=list)
    made: dict[Any, FlowValue] = field(default_factory=dict)
    names: set[str] = field(default_factory=set)
    count: int = 0
    effort: int = 0
    line: int = 0

    def spend(self, effort: int) -> None:
        """Count entries of memories that are looked at or copied, trials too.

        Raises UnsupportedError when there were too many.
        """
        self.effort += effort
        if self.effort > EFFORT_MAX:
            raise UnsupportedError(
                f"{self.flow.name}:{self.line}: expected a program that is translated with less "
                "effort, found too many operations in nested loops, loops or vectors; run it in "
                "the simulator, or nest loops less"
            )

    def name(self, wanted: str) -> str:
        """`wanted`, or with a number if it is taken."""
        name, number = wanted, 1
        while name in self.names:
            number += 1
            name = f"{wanted}_{number}"
        self.names.add(name)
        return name

    def add(
        self, op: str, out: FlowValue, inputs: tuple[FlowValue, ...] = (), **rest: Any
    ) -> FlowValue:
        """Append a node; its value. Raises UnsupportedError when there are too many."""
        self.count += 1
        self.spend(OPERATION)
        if self.count > NODES_MAX:
            raise UnsupportedError(
                f"{self.flow.name}:{self.line}: expected a program of at most {NODES_MAX:,} "
                "operations, found more; run it in the simulator, or put what repeats into loops"
            )
        out = replace(out, constant=op == "constant")
        self.nodes.append(FlowNode(op, out, inputs, line=self.line, **rest))
        return out

    def number(self, value: FlowValue) -> int:
        """The owner number of a value, for memory entries."""
        self.values.append(value)
        return len(self.values) - 1

    def _once(
        self, made_as: Any, op: str, out: FlowValue, inputs: tuple[FlowValue, ...], **rest: Any
    ) -> FlowValue:
        if made_as not in self.made:
            named = replace(out, name=self.name(out.name))
            self.made[made_as] = self.add(op, named, inputs, **rest)
        return self.made[made_as]

    # --- tensors from tensors -----------------------------------------------------------------

    def constant(
        self, bits: Array, vectors: int, padding: int, hint: str | None, of: str | None = None
    ) -> FlowValue:
        """uint16 bits [positions, width] as a value, named after a hint or a value it is `of`."""
        bits = np.ascontiguousarray(bits)
        digest = sha256(bits.tobytes()).hexdigest()
        key = ("constant", bits.shape, vectors, padding, hint, digest)
        if key not in self.made:
            unnamed = "image" if bits.any() else "zeros"
            name = self.name(of or f"c_{hint or unnamed}")
            out = FlowValue(name, len(bits), vectors, bits.shape[1], padding)
            self.flow.data["constant", out.name] = bits
            self.made[key] = self.add("constant", out, key=out.name)
        return self.made[key]

    def widen(self, value: FlowValue, width: int) -> FlowValue:
        """The value with more of the lanes that the machine has: they hold its padding."""
        if value.width == width:
            return value
        if value.constant:
            bits = self.flow.data["constant", value.name]
            more = ((0, 0), (0, width - value.width))
            bits = np.pad(bits, more, constant_values=value.padding)
            return self.constant(bits, value.vectors, value.padding, None, value.name)
        out = replace(value, name=f"{value.name}_wide", width=width)
        key = ("widen", value.name, width)
        return self._once(key, "widen", out, (value,), numbers=(value.padding,))

    def full(self, value: FlowValue) -> int:
        """Number of lanes that the machine has for a position."""
        return value.vectors * self.flow.native

    def split(self, value: FlowValue) -> FlowValue:
        """The value with a position for each native vector, in all lanes."""
        native = self.flow.native
        value = self.widen(value, self.full(value))
        if value.vectors == 1:
            return value
        if value.constant:
            bits = self.flow.data["constant", value.name].reshape(-1, native)
            return self.constant(bits, 1, 0, None, value.name)
        name = f"{value.name}_vectors"
        out = FlowValue(name, value.positions * value.vectors, 1, native, value.padding)
        return self._once(("split", value.name), "split", out, (value,))

    def turn(self, value: FlowValue) -> FlowValue:
        """Tiles, whose rows are positions of a native vector, transposed."""
        out = replace(value, name=f"{value.name}_turned", padding=0)
        return self._once(("turn", value.name), "turn", out, (value,))

    def select(self, value: FlowValue, index: Array) -> FlowValue:
        """Positions of a value: index int64 [positions]."""
        if len(index) == value.positions and (index == np.arange(len(index))).all():
            return value
        if value.constant and len(index) * value.width <= FOLDED_MAX:
            bits = self.flow.data["constant", value.name][index]
            return self.constant(bits, value.vectors, value.padding, None, value.name)
        out = replace(value, name=f"{value.name}_at", positions=len(index))
        index = np.ascontiguousarray(index)
        key = ("select", value.name, sha256(index.tobytes()).hexdigest())
        stride = int(index[1] - index[0]) if len(index) > 1 else 1
        if stride > 0 and (np.diff(index) == stride).all():
            bounds = (int(index[0]), int(index[-1]) + 1, stride)
            return self._once(key, "select", out, (value,), numbers=bounds)
        name = f"i_{key[2][:12]}"
        self.flow.data["index", name] = index
        return self._once(key, "select", out, (value,), key=name)

    def quantize(self, value: FlowValue) -> FlowValue:
        """Block floating point values of every native vector, padding left out."""
        if value.padding not in ZEROS:
            value = self.widen(value, self.full(value))
        native = self.flow.native
        width = value.width if value.width <= native else -(-value.width // native) * native
        out = replace(value, name=f"{value.name}_q", width=width, padding=0)
        return self._once(("quantize", value.name), "quantize", out, (value,))

    # --- tensors from memory ------------------------------------------------------------------

    def read(
        self, sources: Sources, per: int, vectors: int | None = None, least: int = 0
    ) -> FlowValue:
        """`gather`, with the positions in order."""
        return self.select(*self.gather(sources, per, vectors, least))

    def gather(
        self, sources: Sources, per: int, vectors: int | None = None, least: int = 0
    ) -> tuple[FlowValue, Array]:
        """(a value that holds all the vectors, the position of it for every `vectors` of them).

        per: how many belong together (of one iteration). vectors: how many shall make a position;
        the value has so many if the sources allow it, else 1. least: lanes that constants have at
        least.
        """
        assert (sources.owners != NOTHING).all(), "the checker lets nothing be read unwritten"
        numbers = [int(n) for n in np.unique(sources.owners) if n != CONSTANT]
        live = [self._value(n) for n in numbers]
        if vectors is None:
            sizes = {value.vectors for value in live} or {per}
            vectors = sizes.pop() if len(sizes) == 1 else 1
        if per % vectors or not self._aligned(sources, live, vectors):
            vectors = 1
        if vectors == 1:
            live = [value if value.vectors == 1 else self.split(value) for value in live]
        owners = sources.owners.reshape(-1, vectors)[:, 0]
        places = sources.vectors.reshape(-1, vectors)
        index = places[:, 0] // vectors
        constant = owners == CONSTANT
        parts = live
        if constant.any():
            rows = places[constant]
            bits = self.pool.bits[rows].reshape(len(rows), -1)
            if not live:
                return self._constants(bits, rows, vectors, least)
            padding, width = self._shared_padding(live, bits)
            kept, index[constant] = np.unique(bits[:, :width], axis=0, return_inverse=True)
            name = self.pool.name(rows)
            parts = [*live, self.constant(kept, vectors, padding, name)]
        else:
            _, width = self._shared_padding(live, None)
        parts = [self.widen(value, width) for value in parts]
        starts = np.cumsum([0, *(value.positions for value in parts)])
        for number, start in zip(numbers, starts, strict=False):
            index[owners == number] += start
        index[constant] += starts[len(live)]
        return self._join(parts), index

    def _value(self, number: int) -> FlowValue:
        value = self.values[number]
        assert value is not None
        return value

    def _aligned(self, sources: Sources, live: list[FlowValue], vectors: int) -> bool:
        """Whether every `vectors` of the sources are one position of one value, or constants."""
        if len(sources) % vectors or any(value.vectors != vectors for value in live):
            return False
        owners = sources.owners.reshape(-1, vectors)
        places = sources.vectors.reshape(-1, vectors)
        whole = (places[:, 0] % vectors == 0) & (places == places[:, :1] + np.arange(vectors)).all(
            1
        )
        same = (owners == owners[:, :1]).all(1)
        return bool((same & (whole | (owners[:, 0] == CONSTANT))).all())

    def _shared_padding(self, live: list[FlowValue], bits: Array | None) -> tuple[int, int]:
        """(padding, lanes) that values, and constants beside them, can all have."""
        whole = self.full(live[0])
        paddings = {value.padding for value in live if value.width < whole}
        if len(paddings) != 1:
            return 0, whole
        padding = paddings.pop()
        width = max(value.width for value in live)
        if bits is not None:
            used = np.flatnonzero((bits != padding).any(0))
            width = max(width, int(used.max(initial=-1)) + 1)
        return padding, width

    def _constants(
        self, bits: Array, rows: Array, vectors: int, least: int
    ) -> tuple[FlowValue, Array]:
        """Constants alone; lanes that the hints leave out go, where all of them hold the same."""
        native = self.flow.native
        logical = np.arange(vectors) * native + self.pool.lanes[rows]
        wanted = least or int(logical.max())
        padding = int(bits[0, -1])
        used = np.flatnonzero((bits != padding).any(0))
        width = min(max(wanted, int(used.max(initial=-1)) + 1), bits.shape[1])
        if width == bits.shape[1]:
            padding = 0
        value = self.constant(bits[:, :width], vectors, padding, self.pool.name(rows))
        return value, np.arange(len(bits))

    def _join(self, parts: list[FlowValue]) -> FlowValue:
        if len(parts) == 1:
            return parts[0]
        positions = sum(value.positions for value in parts)
        padding = max(
            (value.padding for value in parts if value.width < self.full(value)), default=0
        )
        out = FlowValue("joined", positions, parts[0].vectors, parts[0].width, padding)
        return self._once(("join", *(value.name for value in parts)), "join", out, tuple(parts))
