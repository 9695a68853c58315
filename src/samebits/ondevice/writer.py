"""A tape in the making, into which the rules of operations write, and facts of its graph."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from samebits.errors import UnsupportedError
from samebits.ondevice.tape import (
    Array,
    Room,
    StepCall,
    StepTape,
    StoredParameter,
    StoredStatistics,
    TapeGradient,
)
from samebits.train.graph import Parameter, Slot, TrainingGraph, TrainingNode

Backward = Callable[[TapeGradient], tuple[TapeGradient | None, ...]]
"""Emits the backward instructions of a node: from the gradient of its output to those of the values
that it reads, None where none is wanted."""

ALIASES = ("Narrow", "Short", "Reshape", "Permute", "SplitHeads", "JoinHeads", "Relu", "Dropout")
"""Operations whose output may be the array of their input."""

KEEPERS = ("Lstm", "Softmax")
"""Operations whose gradient reads their own output, so that nobody writes over it."""

HAS = (
    "Linear, Conv2d without dilation, BatchNorm2d, ReLU, ReLU6, sums of two, MaxPool2d, "
    "AdaptiveAvgPool2d(1), Dropout, Flatten, LayerNorm, RMSNorm, LSTM, GRU, RNN, attention "
    "and parts of one axis"
)


VIEWS = ("Reshape", "Permute", "Indexed", "Concat", "States")
"""Operations that change nothing but their output, so that C leaves them out if nobody reads it."""


WHOLE = ("Narrow", "Lstm", "Gru", "Rnn", "LayerNorm")
"""Operations whose outputs are codes, not exact sums that a ReLU would clamp before they are
rounded."""


def unsupported(node: TrainingNode, what: str) -> UnsupportedError:
    """The error for a node that C cannot train yet."""
    return UnsupportedError(
        f"{node.where or 'the model'}: training in C has no instruction for {what} yet, it has "
        f"those of {HAS}; train this network with samebits train"
    )


@dataclass
class TapeWriter:
    """A tape in the making.

    arrays:   of the graph's values, by number
    nodes:    those of the graph that C needs
    makers:   the node that gives each value; readers: those that read it
    shorts:   of values whose sums batch norms take, in 16 bits
    joined:   of those, what a batch norm computes itself: the arguments of products, and an input
    backward: of the nodes so far
    pending:  gradients on their way back, by the value that they are of; each may be of several
    reaches:  numbers of the bounds of gradients that wait, by value
    updated:  numbers of the parameters whose gradient is computed
    masks:    of ReLU nodes through which gradients pass, by identity; clamped: those that took sums
    sites:    of dropouts so far
    orders:   of values whose axes do not lie as usual in memory: the axes as they lie there
    merged:   values [n * places, features] whose array is [n, places, features]
    shares:   of outputs of softmaxes: the exponents of their vectors
    by_rows:  of values whose steps have exponents of their own in `run`: the number of the first
    names:    of parameters and buffers, by identity, and numbers of parameters
    """

    model: nn.Module
    graph: TrainingGraph
    tape: StepTape
    arrays: dict[int, Array] = field(default_factory=dict)
    makers: dict[int, TrainingNode] = field(default_factory=dict)
    readers: dict[int, list[TrainingNode]] = field(default_factory=dict)
    backward: list[tuple[TrainingNode, Backward]] = field(default_factory=list)
    shorts: dict[int, Array] = field(default_factory=dict)
    joined: dict[Array, tuple[str, Array]] = field(default_factory=dict)
    pending: dict[int, list[TapeGradient]] = field(default_factory=dict)
    reaches: dict[int, int] = field(default_factory=dict)
    updated: set[int] = field(default_factory=set)
    masks: dict[int, Room] = field(default_factory=dict)
    clamped: set[int] = field(default_factory=set)
    sites: set[int] = field(default_factory=set)
    orders: dict[int, tuple[int, ...]] = field(default_factory=dict)
    merged: set[int] = field(default_factory=set)
    shares: dict[int, Room] = field(default_factory=dict)
    by_rows: dict[int, int] = field(default_factory=dict)
    names: dict[int, tuple[str, int]] = field(default_factory=dict)
    nodes: list[TrainingNode] = field(default_factory=list)

    def __post_init__(self) -> None:
        for index, (name, parameter) in enumerate(self.model.named_parameters()):
            self.names[id(parameter)] = (name, index)
        for name, buffer in self.model.named_buffers():
            self.names[id(buffer)] = (name, -1)
        self.nodes = _used(self.graph)
        for node in self.nodes:
            self.makers[node.outputs[0]] = node
            for slot in slots_of(node):
                self.readers.setdefault(slot, []).append(node)

    def parameter(self, node: TrainingNode, place: int) -> str:
        """A parameter among a node's arguments, as C, which joins the state if it is trained; NULL
        for none."""
        argument = node.arguments[place]
        if argument is None:
            return "NULL"
        assert isinstance(argument, Parameter)
        value = self.graph.parameters[argument.index]
        name, index = self.names[id(value)]
        stored = StoredParameter(name, tuple(value.shape), index)
        if stored in (*self.tape.parameters, *self.tape.frozen):
            raise unsupported(node, f"the parameter {name}, which it shares,")
        held, own = self.tape.frozen, "FROZEN"
        if wants(node, place):
            held, own = self.tape.parameters, "p"
        held.append(stored)
        return f"&{own}[{len(held) - 1}]"

    def statistics(self, mean: Tensor, var: Tensor, moves: bool) -> tuple[str, str]:
        """Running statistics as C, which join the state where steps move them."""
        held, own = (self.tape.statistics, "s") if moves else (self.tape.standing, "STANDING")
        at = len(held)
        held += [StoredStatistics(self.names[id(v)][0], len(v)) for v in (mean, var)]
        return f"{own}[{at}]", f"{own}[{at + 1}]"

    def order(self, slot: int) -> tuple[int, ...]:
        """The axes of a value as they lie in memory."""
        if slot in self.orders:
            return self.orders[slot]
        return self.usual(len((self.shorts.get(slot) or self.arrays[slot]).shape))

    @staticmethod
    def usual(rank: int) -> tuple[int, ...]:
        """The order of axes in memory: images have channels last."""
        return (0, 2, 3, 1) if rank == 4 else tuple(range(rank))

    def settle_order(self, slot: int, order: tuple[int, ...], merged: bool = False) -> None:
        """Note the order of a new value's axes. merged: its samples and places are one axis."""
        if order != self.usual(len(order)):
            self.orders[slot] = order
        if merged:
            self.merged.add(slot)

    def keep_order(self, given: int, slot: int) -> None:
        """Let a new value's axes lie as those of another."""
        if given in self.orders:
            self.orders[slot] = self.orders[given]
        if given in self.merged:
            self.merged.add(slot)

    def pass_rows(self, given: int, slot: int) -> None:
        """Let a value have the exponents by rows of another."""
        if given in self.by_rows:
            self.by_rows[slot] = self.by_rows[given]

    def is_part(self, slot: int) -> bool:
        """Whether a value is a part of what an operation gives, which may be exact sums."""
        maker, cut = self.makers.get(slot), False
        while maker is not None and maker.operation.name in ("Reshape", "Permute", "Indexed"):
            cut = cut or maker.operation.name == "Indexed"
            maker = self.makers.get(slot_of(maker))
        return cut and maker is not None and maker.operation.name not in WHOLE

    def going_back(self, node: TrainingNode, backward: Backward) -> None:
        """Note how the gradient of a node goes back, where one is wanted."""
        if any(node.wanted):
            self.backward.append((node, backward))

    def next(self, node: TrainingNode) -> TrainingNode | None:
        """The one node that reads the output of a node; None: there is none, or are several."""
        found = self.readers.get(node.outputs[0], [])
        return found[0] if len(found) == 1 else None

    def is_alone(self, slot: int) -> bool:
        """Whether only the next node reads the array of a value, so that it may write there."""
        maker = self.makers.get(slot)
        if len(self.readers[slot]) > 1 or (maker and maker.operation.name in KEEPERS):
            return False
        if maker is None or maker.operation.name not in ALIASES:
            return True
        return self.is_alone(next(slots_of(maker)))

    def is_shared(self, g: TapeGradient) -> bool:
        """Whether a gradient is on its way to another value, too: nobody may write there."""
        return any(other.room is g.room for held in self.pending.values() for other in held)


def _used(graph: TrainingGraph) -> list[TrainingNode]:
    """The nodes of a graph without views that nobody reads."""
    read, kept = {graph.output}, list[TrainingNode]()
    for node in reversed(graph.instructions):
        if node.operation.name not in VIEWS or read.intersection(node.outputs):
            kept.append(node)
            read.update(slots_of(node))
    return kept[::-1]


def wants(node: TrainingNode, place: int) -> bool:
    """Whether the gradient of an argument is wanted."""
    return bool(node.wanted) and node.wanted[place]


def slots_of(node: TrainingNode) -> Iterator[int]:
    """The values that a node reads."""
    return (a.index for a in node.arguments if isinstance(a, Slot))


def slot_of(node: TrainingNode, place: int = 0) -> int:
    """The value that a node reads in the place of an argument; UnsupportedError for a constant."""
    slot = node.arguments[place]
    if not isinstance(slot, Slot):
        raise unsupported(node, "a constant in the place of an input")
    return slot.index


def instruction(node: TrainingNode, call: str, *rooms: Array | Room, fails: bool = True) -> Any:
    """An instruction of a node; `call` names rooms by their places."""
    held = tuple(room.room if isinstance(room, Array) else room for room in rooms)
    return StepCall(call, held, node.where, fails)
