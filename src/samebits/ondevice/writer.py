"""A tape in the making, into which the rules of operations write, and facts of its graph."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from samebits.errors import UnsupportedError
from samebits.ondevice.tape import Array, Room, StepCall, StepTape, StoredParameter
from samebits.train.graph import Parameter, TrainingGraph, TrainingNode

Backward = Callable[[Array], Array]
"""Emits the backward instructions of a node: from the gradient of its output to that of its
input."""

HAS = (
    "Linear, Conv2d without groups, BatchNorm2d, ReLU, MaxPool2d, AdaptiveAvgPool2d(1), Dropout "
    "and Flatten"
)


def unsupported(node: TrainingNode, what: str) -> UnsupportedError:
    """The error for a node that C cannot train yet."""
    return UnsupportedError(
        f"{node.where or 'the model'}: training in C has no instruction for {what} yet, it has "
        f"those of chains of {HAS}; train this network with samebits train"
    )


@dataclass
class TapeWriter:
    """A tape in the making.

    arrays:   of the graph's values, by number
    readers:  the node that reads each value; the output has none
    backward: of the nodes so far
    masks:    of ReLU nodes, by identity
    sites:    of dropouts so far
    names:    of parameters and buffers, by identity, and numbers of parameters
    """

    model: nn.Module
    graph: TrainingGraph
    tape: StepTape
    arrays: dict[int, Array] = field(default_factory=dict)
    readers: dict[int, TrainingNode] = field(default_factory=dict)
    backward: list[Backward] = field(default_factory=list)
    masks: dict[int, Room] = field(default_factory=dict)
    sites: set[int] = field(default_factory=set)
    names: dict[int, tuple[str, int]] = field(default_factory=dict)

    def parameter(self, node: TrainingNode, argument: Any) -> str:
        """A parameter of a node, as C, which joins the state; NULL for none."""
        if argument is None:
            return "NULL"
        assert isinstance(argument, Parameter)
        value = self.graph.parameters[argument.index]
        name, index = self.names[id(value)]
        stored = StoredParameter(name, tuple(value.shape), index)
        if stored in self.tape.parameters:
            raise unsupported(node, f"the parameter {name}, which it shares,")
        self.tape.parameters.append(stored)
        return f"&p[{len(self.tape.parameters) - 1}]"

    def next(self, node: TrainingNode) -> TrainingNode | None:
        """The node that reads the output of one."""
        return self.readers.get(node.outputs[0])


def instruction(node: TrainingNode, call: str, *rooms: Array | Room, fails: bool = True) -> Any:
    """An instruction of a node; `call` names rooms by their places."""
    held = tuple(room.room if isinstance(room, Array) else room for room in rooms)
    return StepCall(call, held, node.where, fails)
