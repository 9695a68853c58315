"""Step graphs: a graph on whole sequences, cut into what one time step computes.

The step graph is the graph itself with sequences of one step, its recurrent layers replaced by
their cells (`cell`). So everything around them must be time-wise: a step of the result may depend
on the same step of the sequences only. docs/spec/graph.md section 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from samebits.errors import UnsupportedError
from samebits.ir.graph import Graph, GraphBuilder, Node
from samebits.ir.ops import has, op_named, ops_with
from samebits.ir.real.cell import LAYERS, Cell, activations, weights
from samebits.ir.real.recurrent import (
    CELL,
    INITIAL,
    LENGTHS,
    PEEPHOLE,
    PROJECTION,
    B,
    R,
    W,
    X,
    parameters,
    recurrent_sizes,
)
from samebits.ir.traits import Trait

LAST = -1  # the time axis of a value that belongs to the last step only
Shape = tuple[int, ...]


def is_recurrent(graph: Graph) -> bool:
    """Whether the graph has recurrent layers on whole sequences."""
    return any(node.op in LAYERS for node in graph.nodes)


def time_axes(graph: Graph) -> dict[str, int]:
    """The time axis of each input of a graph with recurrent layers.

    Raises UnsupportedError where an input is no sequence of a recurrent layer, or lengths differ.
    """
    axes: dict[str, int] = {}
    for node in reversed(graph.nodes):
        if node.op in LAYERS:
            axes.setdefault(node.inputs[X], 0)
            continue
        known = [axes[name] for name in node.outputs if name in axes]
        for name in node.inputs if known else ():
            if name and name not in graph.constants and name not in axes:
                axis = _before(graph, node, name, known[0])
                if axis is not None:
                    axes[name] = axis
    found = {name: axes[name] for name in graph.inputs if name in axes}
    for name in graph.inputs:
        if name not in found:
            raise UnsupportedError(
                f"graph {graph.name!r}: expected inputs that are sequences of recurrent layers, "
                f"found {name!r}; make it a constant"
            )
    lengths = {name: graph.values[name].shape[axis] for name, axis in found.items()}
    if len(set(lengths.values())) > 1:
        raise UnsupportedError(
            f"graph {graph.name!r}: expected sequences of one length, found {lengths}"
        )
    return found


def _before(graph: Graph, node: Node, name: str, axis: int) -> int | None:
    """The time axis of an input, from that of the output; None where there is none."""
    before, after = graph.values[name].shape, graph.values[node.output].shape
    if node.op == "Transpose":
        return int(node.attributes["perm"][axis])
    if has(node.op, Trait.RESHAPES):
        return _moved(after, before, axis)
    if node.op == "Gather":
        return axis - node.attributes["axis"] if name == node.inputs[1] else axis
    found = axis - (len(after) - len(before))
    return found if found >= 0 and before[found] == after[axis] else None


def _moved(before: Shape, after: Shape, axis: int) -> int | None:
    """Where an axis is after a reshaping; None if it is merged with others or cut."""
    ahead = math.prod(before[:axis])
    for place, size in enumerate(after):
        if size == before[axis] and math.prod(after[:place]) == ahead:
            return place
    return None


@dataclass(frozen=True)
class Steps:
    """A step graph as `stepped` makes it. length: steps of the sequences. last: the outputs that
    belong to the last step only."""

    graph: Graph
    length: int
    last: frozenset[str]


def step_graph(graph: Graph) -> Graph:
    """The step graph of `stepped`."""
    return stepped(graph).graph


def stepped(graph: Graph) -> Steps:
    """One time step of a real graph with recurrent layers, which must be forward.

    Inputs and outputs are those of the graph, with their time axis of size 1; outputs without one
    are of the last step. The states of each layer follow. Over all steps (`interpreter.run_steps`)
    the layers compute, in float mode too, the numbers of the whole sequence. What else multiplies
    matrices of several steps at once may sum in another order in float mode.

    Raises UnsupportedError with the node that is reversed or not time-wise.
    """
    return _Stepping(graph).run()


class _Nodes:
    """Operators as nodes of a step graph (see cell.Operators)."""

    def __init__(self, builder: GraphBuilder, dtype: str, taken: Collection[str]) -> None:
        self.builder, self.dtype, self.taken = builder, dtype, taken

    def __call__(self, op: str, *inputs: str, name: str = "", **attributes: Any) -> Sequence[str]:
        return self.builder.add_all(op, inputs, attributes, self.fresh(name or op))

    def fresh(self, name: str) -> str:
        """A name for a node, and its output, that the graph on whole sequences does not have."""
        while name in self.taken or f"{name}.out" in self.taken:
            name += "_"
        return name

    def number(self, value: float) -> str:
        array = np.array(value, self.dtype)
        if float(array) != value:
            raise UnsupportedError(f"expected a number of {self.dtype}, found {value}")
        return self.builder.constant(self.fresh("number"), array)


class _Stepping:
    """Rebuilds a graph on whole sequences for one step.

    times: the time axis of every value that is not constant, in the graph on whole sequences;
    names: what the values are called in the step graph.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.builder = GraphBuilder(graph.name)
        self.times: dict[str, int] = {}
        self.names: dict[str, str] = {"": ""}
        self.taken = {*graph.values, *(node.name for node in graph.nodes)}
        self.length = 0

    def run(self) -> Steps:
        """The step graph. Values are visited in order, so the time axis of every operand is known;
        what the layers' states become is added to the outputs at the end."""
        graph, builder = self.graph, self.builder
        if not is_recurrent(graph) or graph.states:
            raise UnsupportedError(
                f"graph {graph.name!r}: expected recurrent layers on whole sequences, found "
                f"{'a step graph' if graph.states else 'none'}"
            )
        self.times.update(time_axes(graph))
        for name, axis in self.times.items():
            value = graph.values[name]
            self.length = value.shape[axis]
            self.names[name] = builder.input(name, value.dtype, self.one_step(name))
        for name, array in graph.constants.items():
            self.names[name] = builder.constant(name, array)
        following: list[str] = []
        for node in graph.nodes:
            try:
                if node.op in LAYERS:
                    following += self.layer(node)
                else:
                    self.node(node)
            except (ValueError, UnsupportedError) as error:
                where = f"node {node.name!r} ({node.op})"
                raise UnsupportedError(f"{where}: {error}; a step graph has one step") from error
        made = builder.build([*(self.names[name] for name in graph.outputs), *following])
        last = frozenset(name for name in graph.outputs if self.times.get(name, LAST) == LAST)
        return Steps(made, self.length, last)

    def one_step(self, name: str, axis: int | None = None) -> Shape:
        """The shape of a value in the step graph."""
        shape = list(self.graph.values[name].shape)
        axis = self.times.get(name, LAST) if axis is None else axis
        if axis != LAST:
            shape[axis] = 1
        return tuple(shape)

    # --- layers ---------------------------------------------------------------------------------

    def layer(self, node: Node) -> list[str]:
        """The cell of a layer; what its states are next."""
        graph, builder = self.graph, self.builder
        layer, a = LAYERS[node.op], node.attributes
        inputs = [*node.inputs, *[""] * (PROJECTION + 1 - len(node.inputs))]
        x = inputs[X]
        if a["direction"] != "forward":
            raise UnsupportedError(
                f"expected the direction forward, found {a['direction']}: its steps wait for the "
                "end of the sequence"
            )
        if self.times.get(x) != 0 and not (x in self.times and self.length == 1):
            raise UnsupportedError("expected a sequence along its first axis, found another value")
        for index in (W, R, B, PEEPHOLE, PROJECTION):
            if inputs[index] in self.times:
                raise UnsupportedError("expected constant parameters, found computed ones")
        lengths = graph.constants.get(inputs[LENGTHS])
        if inputs[LENGTHS] and (lengths is None or (lengths != self.length).any()):
            raise UnsupportedError("expected sequences of full length, found sequence_lens")
        value = graph.values[x]
        batch = value.shape[1]
        sizes = recurrent_sizes(
            node.op, [graph.values[name] if name else None for name in inputs], a
        )
        operators = _Nodes(builder, value.dtype, self.taken)
        given = [self.names[name] if name else None for name in inputs]
        found = weights(operators, layer, parameters(node.op, given), sizes, 0, a)
        functions = activations(layer, a, 1)[0]
        cell = Cell(layer, operators, found, a, functions, node.name)
        widths = (sizes.outputs, sizes.hidden)[: layer.states]
        states = [
            self.state(
                operators.fresh(f"{node.name}.{letter}"), value.dtype, (batch, width), inputs[index]
            )
            for letter, width, index in zip("hc", widths, (INITIAL, CELL), strict=False)
        ]
        step = builder.add("Reshape", [self.names[x]], {"shape": (batch, sizes.features)})
        following = cell.step(step, tuple(states))
        results = [following[0], *following]
        for name, result, axis in zip(node.outputs, results, (0, LAST, LAST), strict=False):
            if name:
                self.times[name] = axis
                self.put(node, name, "Reshape", [result], shape=self.one_step(name))
        return list(following)

    def state(self, name: str, dtype: str, shape: Shape, initial: str) -> str:
        if not initial:
            return self.builder.state(name, dtype, shape)
        array = self.graph.constants.get(initial)
        if array is None:
            raise UnsupportedError(f"expected a constant initial state, found {initial!r}")
        if not array.any():
            return self.builder.state(name, dtype, shape)
        constant = self.builder.constant(f"{name}.initial", array.reshape(shape))
        return self.builder.state(name, dtype, shape, constant)

    def put(self, node: Node, name: str, op: str, inputs: Sequence[str], **attributes: Any) -> None:
        """An operator that gives an output of a node of the graph."""
        self.names[name] = self.builder.add(op, inputs, attributes, node.name, [name])

    # --- other nodes ----------------------------------------------------------------------------

    def node(self, node: Node) -> None:
        """A node that is time-wise."""
        axes = {name: self.times[name] for name in node.inputs if name in self.times}
        if not axes:
            self.copy(node, {})
            return
        if len({axis == LAST for axis in axes.values()}) > 1:
            raise UnsupportedError("expected values of one step, found a sequence and a last step")
        if LAST in axes.values():
            self.times.update(dict.fromkeys(node.outputs, LAST))
            self.copy(node, {})
            return
        rule = _RULES.get(node.op)
        if rule is None:
            raise UnsupportedError("expected a time-wise operator, found one that may not be")
        rule(self, node, axes)

    def copy(self, node: Node, changed: dict[str, Any]) -> None:
        """The node as it is, but for some attributes."""
        made = self.builder.add_all(
            node.op,
            [self.names[name] for name in node.inputs],
            {**node.attributes, **changed},
            node.name,
            node.outputs,
        )
        self.names.update(zip(node.outputs, made, strict=False))

    def kept(self, node: Node, axis: int | None) -> None:
        """The node on one step, where time is this axis of its outputs."""
        if axis is None:
            raise UnsupportedError("expected steps that stay apart, found some that are mixed")
        self.times.update(dict.fromkeys((name for name in node.outputs if name), axis))
        if has(node.op, Trait.RESHAPES):
            inputs = [self.names[name] for name in node.inputs]
            self.put(node, node.output, "Reshape", inputs, shape=self.one_step(node.output))
        else:
            self.copy(node, {})

    def aligned(self, node: Node, axes: dict[str, int], operands: Sequence[str]) -> int:
        """The axis of time in what operands broadcast to; the others are the same in every step."""
        rank = len(self.graph.values[node.output].shape)
        values = {name: rank - len(self.graph.values[name].shape) for name in operands if name}
        places = {axes[name] + values[name] for name in values if name in axes}
        if len(places) > 1:
            raise UnsupportedError("expected sequences along one axis, found several")
        (place,) = places
        for name, offset in values.items():
            shape = self.graph.values[name].shape
            if name not in axes and place >= offset and shape[place - offset] != 1:
                raise UnsupportedError(f"expected the same in every step, found {name!r}")
        return place


Rule = Callable[[_Stepping, Node, dict[str, int]], None]


def _pointwise(steps: _Stepping, node: Node, axes: dict[str, int]) -> None:
    steps.kept(node, steps.aligned(node, axes, node.inputs))


def _transpose(steps: _Stepping, node: Node, axes: dict[str, int]) -> None:
    steps.kept(node, tuple(node.attributes["perm"]).index(axes[node.inputs[0]]))


def _reshape(steps: _Stepping, node: Node, axes: dict[str, int]) -> None:
    values, x = steps.graph.values, node.inputs[0]
    steps.kept(node, _moved(values[x].shape, values[node.output].shape, axes[x]))


def _matmul(steps: _Stepping, node: Node, axes: dict[str, int]) -> None:
    """Rows times constant columns, each row of one step."""
    x, other = node.inputs
    a, b = (steps.graph.values[name].shape for name in node.inputs)
    if other in axes or x not in axes or axes[x] == len(a) - 1:
        raise UnsupportedError("expected features times constant weights, found another product")
    if len(b) == 1:
        steps.kept(node, axes[x])
    elif axes[x] == len(a) - 2:  # the rows
        steps.kept(node, axes[x] + len(steps.graph.values[node.output].shape) - len(a))
    else:
        steps.kept(node, steps.aligned(node, axes, node.inputs if len(b) > 2 else [x]))


def _gemm(steps: _Stepping, node: Node, axes: dict[str, int]) -> None:
    x, *others = node.inputs
    if set(others) & set(axes) or axes.get(x) != 0 or node.attributes["transA"]:
        raise UnsupportedError("expected features times constant weights, found another product")
    steps.kept(node, steps.aligned(node, axes, [x, *others[1:]]))


def _concat(steps: _Stepping, node: Node, axes: dict[str, int]) -> None:
    rank = len(steps.graph.values[node.output].shape)
    places = {axes.get(name) for name in node.inputs}
    if len(places) > 1 or node.attributes["axis"] % rank in places:
        raise UnsupportedError("expected sequences side by side, found them joined otherwise")
    steps.kept(node, places.pop())


def _along(steps: _Stepping, node: Node, axes: dict[str, int]) -> None:
    x, *others = node.inputs
    rank = len(steps.graph.values[x].shape)
    axis = node.attributes["axis"] % rank
    single = has(node.op, Trait.QUANTIZES) and steps.graph.values[others[0]].size == 1
    mixed = axis <= axes[x] if node.op == "LayerNormalization" else axis == axes[x]
    if set(others) & set(axes) or (mixed and not single):
        raise UnsupportedError("expected steps that stay apart, found some that are mixed")
    steps.kept(node, axes[x])


def _slice(steps: _Stepping, node: Node, axes: dict[str, int]) -> None:
    """Part of every step, or the last step."""
    x, a = node.inputs[0], node.attributes
    shape, time = steps.graph.values[x].shape, axes[node.inputs[0]]
    record, index = op_named("Slice"), np.arange(steps.length)
    picked = [i for i, axis in enumerate(a["axes"]) if axis % len(shape) == time]
    if not picked:
        steps.kept(node, time)
        return
    (at,) = picked
    one = {key: (a[key][at],) for key in ("starts", "ends", "steps")} | {"axes": (0,)}
    found = record.meaning([index], one)[0]
    if found.tolist() == index.tolist():
        steps.kept(node, time)
        return
    if found.tolist() != [steps.length - 1]:
        raise UnsupportedError("expected every step or the last, found others")
    steps.times[node.output] = LAST
    keys = ("starts", "ends", "steps", "axes")
    rest = {key: tuple(v for i, v in enumerate(a[key]) if i != at) for key in keys}
    steps.copy(node, rest)


def _gather(steps: _Stepping, node: Node, axes: dict[str, int]) -> None:
    """Features of every step, rows of a constant that the steps name, or the last step."""
    x, indices = node.inputs
    values, constant = steps.graph.values, steps.graph.constants.get(indices)
    axis = node.attributes["axis"] % len(values[x].shape)
    if x not in axes:
        steps.kept(node, axis + axes[indices])
        return
    if constant is None:
        raise UnsupportedError("expected constant indices, found computed ones")
    if axis != axes[x]:
        steps.kept(node, axes[x] + (constant.ndim - 1 if axis < axes[x] else 0))
        return
    if constant.size != 1 or (constant % steps.length != steps.length - 1).any():
        raise UnsupportedError("expected the last step, found others")
    steps.times[node.output] = LAST
    shape = values[node.output].shape
    steps.put(node, node.output, "Reshape", [steps.names[x]], shape=shape)


_RULES: dict[str, Rule] = {
    **dict.fromkeys(ops_with(Trait.POINTWISE), _pointwise),
    **dict.fromkeys(ops_with(Trait.RESHAPES), _reshape),
    **dict.fromkeys(ops_with(Trait.ALONG), _along),
    "Transpose": _transpose,
    "MatMul": _matmul,
    "Gemm": _gemm,
    "Concat": _concat,
    "Slice": _slice,
    "Gather": _gather,
}
