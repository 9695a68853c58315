"""Step graphs: a graph on whole sequences, cut into what one time step computes.

The step graph is the graph itself with sequences of one step, its recurrent layers replaced by
their cells (`cell`). So everything around them must be time-wise: a step of the result may depend
on the same step of the sequences only; or causal attention, whose keys and values of the last steps
are states (`attention`). A network whose states are inputs and outputs of its own
(`with_states`) is a step graph already, of one call. docs/spec/graph.md section 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import numpy as np

from samebits.errors import UnsupportedError
from samebits.ir.attention import Rings, Role, attention_roles, codes_of
from samebits.ir.graph import Graph, GraphBuilder, Node, State
from samebits.ir.ops import has, op_named, ops_with
from samebits.ir.real.cell import LAYERS
from samebits.ir.real.recurrent import X
from samebits.ir.rewrite import simplify
from samebits.ir.traits import Trait
from samebits.ir.unroll import CELLS_MAX, WHOLE_MAX, LayerNode, cells_of, unrolled

LAST = -1  # the time axis of a value that belongs to the last step only
Shape = tuple[int, ...]


def is_recurrent(graph: Graph) -> bool:
    """Whether the graph has recurrent layers on whole sequences."""
    return any(node.op in LAYERS for node in graph.nodes)


def time_axes(graph: Graph, roles: Mapping[str, Role] | None = None) -> dict[str, int]:
    """The time axis of each input of a graph with recurrent layers or causal attention, states left
    out.

    roles: those of its attention, if they are known

    Raises UnsupportedError where an input is no sequence of a layer, or lengths differ.
    """
    axes: dict[str, int] = {}
    roles = attention_roles(graph) if roles is None else roles
    for node in reversed(graph.nodes):
        if node.op in LAYERS:
            axes.setdefault(node.inputs[X], 0)
            continue
        if roles.get(node.name, Role.MASK) is not Role.MASK:
            for name, place in zip(node.inputs, _attended(graph, node, roles), strict=True):
                axes.setdefault(name, place)
            continue
        known = [axes[name] for name in node.outputs if name in axes]
        for name in node.inputs if known else ():
            if name and name not in graph.constants and name not in axes:
                axis = _before(graph, node, name, known[0])
                if axis is not None:
                    axes[name] = axis
    found = {name: axes[name] for name in graph.own_inputs if name in axes}
    for name in graph.own_inputs:
        if name not in found:
            raise UnsupportedError(
                f"graph {graph.name!r}: expected inputs that are states or sequences of recurrent "
                f"layers, found {name!r}; tie a state to the output that follows it (--state "
                "INPUT=OUTPUT), or make it a constant"
            )
    lengths = {name: graph.values[name].shape[axis] for name, axis in found.items()}
    if len(set(lengths.values())) > 1:
        raise UnsupportedError(
            f"graph {graph.name!r}: expected sequences of one length, found {lengths}"
        )
    return found


def _attended(graph: Graph, node: Node, roles: Mapping[str, Role]) -> tuple[int, int]:
    """The time axes of the operands of a product of attention."""
    x, other = (len(graph.values[name].shape) for name in node.inputs)
    return x - 2, other - (1 if roles[node.name] is Role.KEYS else 2)


def _before(graph: Graph, node: Node, name: str, axis: int) -> int | None:
    """The time axis of an input, from that of the output; None where there is none."""
    before, after = graph.values[name].shape, graph.values[node.output].shape
    if node.op == "Transpose":
        return int(node.attributes["perm"][axis])
    if has(node.op, Trait.RESHAPES):
        return moved_axis(after, before, axis)
    if node.op == "Gather":
        x, indices = (graph.values[operand].shape for operand in node.inputs)
        place = axis - node.attributes["axis"] % len(x)  # among the axes of the indices
        if name == node.inputs[1]:
            return place if 0 <= place < len(indices) else None
        if 0 <= place < len(indices):
            return None
        return axis if place < 0 else axis - len(indices) + 1
    found = axis - (len(after) - len(before))
    return found if found >= 0 and before[found] == after[axis] else None


def moved_axis(before: Shape, after: Shape, axis: int) -> int | None:
    """Where an axis is after a reshaping; None if it is merged with others or cut."""
    ahead = math.prod(before[:axis])
    for place, size in enumerate(after):
        if size == before[axis] and math.prod(after[:place]) == ahead:
            return place
    return None


@dataclass(frozen=True)
class Steps:
    """A step graph.

    length:  time steps of the sequences that were cut; 1 where one step is a call of the network
    last:    outputs that belong to the last step of a sequence only
    carried: values that a state of a recurrent layer takes within one step, as `CellGraph` has them
    repeated: values that mean the same in every cell of a layer, and so have one format
    """

    graph: Graph
    length: int
    last: frozenset[str]
    carried: tuple[tuple[str, tuple[str, ...]], ...] = ()
    repeated: tuple[tuple[str, ...], ...] = ()


def with_states(graph: Graph, pairs: Mapping[str, str]) -> Graph:
    """The graph with these inputs as states and these outputs as what they become, last and in the
    order of the inputs. The pairs must be of one type and shape, each output in one of them."""
    pairs = {name: pairs[name] for name in graph.inputs if name in pairs}
    own = list(graph.outputs)
    for name in pairs.values():
        own.remove(name)  # once: the same value may be an output of its own too
    return replace(
        graph,
        inputs=(*(name for name in graph.inputs if name not in pairs), *pairs),
        outputs=(*own, *pairs.values()),
        states=tuple(State(name, output) for name, output in pairs.items()),
    )


def fed_back(graph: Graph) -> tuple[Steps, str]:
    """The step graph of a graph whose states are inputs and outputs of its own, and what one step
    of it is.

    That is one call of the network: recurrent layers become as many cells as the call has time
    steps. Where a call has more than one, everything is time-wise and every layer begins with a
    state, it is one time step: called once for each, it computes the same.

    Raises UnsupportedError with the node that is reversed, or for too many time steps in a call.
    """
    cells, layers = cells_of(graph), sum(node.op in LAYERS for node in graph.nodes)
    if cells <= layers:
        return _one_call(graph), "one call"
    try:
        steps = _Stepping(graph, attention_roles(graph)).run()
    except UnsupportedError:
        why = "what is around the recurrent layers is not time-wise"
    else:
        if len(steps.graph.states) == len(graph.states):
            return steps, f"one of the {steps.length} time steps of a call"
        why = "layers without a state begin anew in each call"
    return _one_call(graph), f"one call, with {cells} steps of recurrent layers ({why})"


def whole(graph: Graph) -> Steps:
    """A graph over whole sequences, of any direction, as one step without states: its layers become
    cells. What stands around them is as it was.

    Raises UnsupportedError with the node that has no cells, or for too many of them.
    """
    return _one_call(graph, WHOLE_MAX)


def _one_call(graph: Graph, most: int = CELLS_MAX) -> Steps:
    made = unrolled(graph, most)
    simple = simplify(made.graph)
    outputs = {node.name: node.output for node in simple.nodes}

    def values(names: Sequence[str]) -> tuple[str, ...]:
        return tuple(outputs[name] for name in names if name in outputs)

    carried = tuple((letter, values(names)) for letter, names in made.carried)
    return Steps(simple, 1, frozenset(), carried, tuple(map(values, made.repeated)))


def step_graph(graph: Graph) -> Graph:
    """The step graph of `stepped`."""
    return stepped(graph).graph


def stepped(graph: Graph) -> Steps:
    """One time step of a real graph with recurrent layers, which must be forward, or attention,
    which must be causal.

    Inputs and outputs are those of the graph, with their time axis of size 1; outputs without one
    are of the last step. The states of each layer follow. Over all steps (`interpreter.run_steps`)
    the layers compute, in float mode too, the numbers of the whole sequence. What else multiplies
    matrices of several steps at once may sum in another order in float mode.

    Raises UnsupportedError with the node that is reversed or not time-wise.
    """
    roles = {} if graph.states else attention_roles(graph)
    if graph.states or not (is_recurrent(graph) or roles):
        raise UnsupportedError(
            f"graph {graph.name!r}: expected recurrent layers or causal attention on whole "
            f"sequences, found {'a step graph' if graph.states else 'none'}"
        )
    return _Stepping(graph, roles).run()


class _Stepping:
    """Rebuilds a graph on whole sequences for one step.

    times: the time axis of every value that is not constant, in the graph on whole sequences;
    names: what the values are called in the step graph; fed: values that depend on states alone.
    """

    def __init__(self, graph: Graph, roles: Mapping[str, Role]) -> None:
        self.graph, self.roles = graph, roles
        self.builder = GraphBuilder(graph.name)
        self.times: dict[str, int] = {}
        self.names: dict[str, str] = {"": ""}
        self.taken = {*graph.values, *(node.name for node in graph.nodes)}
        self.fed: set[str] = {state.input for state in graph.states}
        self.length = 0
        self.rings: Rings | None = None

    def run(self) -> Steps:
        """The step graph. Values are visited in order, so the time axis of every operand is known;
        what the layers' states become is added to the outputs at the end."""
        graph, builder = self.graph, self.builder
        self.times.update(time_axes(graph, self.roles))
        for name, axis in self.times.items():
            value = graph.values[name]
            self.length = value.shape[axis]
            self.names[name] = builder.input(name, value.dtype, self.one_step(name))
        for state in graph.states:
            value = graph.values[state.input]
            self.times[state.input] = LAST
            self.names[state.input] = builder.state(state.input, value.dtype, value.shape)
        for name, array in graph.constants.items():
            self.names[name] = builder.constant(name, array)
        if self.roles:
            self.rings = Rings(builder, self.length, self.fresh)
        following = [] if self.rings is None else self.rings.following
        for node in graph.nodes:
            try:
                if node.name in self.roles:
                    self.attention(node, self.roles[node.name])
                elif node.op in LAYERS:
                    following += self.layer(node)
                else:
                    self.node(node)
            except (ValueError, UnsupportedError) as error:
                where = f"node {node.name!r} ({node.op})"
                raise UnsupportedError(f"{where}: {error}; a step graph has one step") from error
        made = builder.build([*(self.names[name] for name in graph.outputs), *following])
        last = frozenset(name for name in graph.own_outputs if self.times.get(name, LAST) == LAST)
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
        """The cell of a layer; what the states are next that the layer begins with by itself."""
        direction = node.attributes["direction"]
        if direction != "forward":
            raise UnsupportedError(
                f"expected the direction forward, found {direction}: its steps wait for the end of "
                "the sequence"
            )
        layer = LayerNode.of(self.graph, node, self.times)
        x = layer.x
        if self.times.get(x) != 0 and not (x in self.times and self.length == 1):
            raise UnsupportedError("expected a sequence along its first axis, found another value")
        operators = layer.operators(self.builder, self.taken)
        (cell,) = layer.cells(operators, self.names, [node.name])
        states, own = [], []
        for letter, width, initial in zip("hc", layer.widths, layer.initial, strict=False):
            shape = (layer.batch, width)
            if initial in self.fed:
                own.append(False)
                states.append(operators("Reshape", self.names[initial], shape=shape)[0])
            else:
                own.append(True)
                name = operators.fresh(f"{node.name}.{letter}")
                states.append(self.state(name, operators.dtype, shape, initial))
        step = self.builder.add(
            "Reshape", [self.names[x]], {"shape": (layer.batch, layer.sizes.features)}
        )
        following = cell.step(step, tuple(states))
        results = [following[0], *following]
        for name, result, axis in zip(node.outputs, results, (0, LAST, LAST), strict=False):
            if name:
                self.times[name] = axis
                self.put(node, name, "Reshape", [result], shape=self.one_step(name))
        return [name for name, mine in zip(following, own, strict=True) if mine]

    def state(self, name: str, dtype: str, shape: Shape, initial: str) -> str:
        """A state that begins with zeros or a constant."""
        if not initial:
            return self.builder.state(name, dtype, shape)
        array = self.graph.constants.get(initial)
        if array is None:
            raise UnsupportedError(
                "expected an initial state that is a constant or a state of the network, found "
                f"{initial!r}, which is computed"
            )
        if not array.any():
            return self.builder.state(name, dtype, shape)
        constant = self.builder.constant(f"{name}.initial", array.reshape(shape))
        return self.builder.state(name, dtype, shape, constant)

    def put(self, node: Node, name: str, op: str, inputs: Sequence[str], **attributes: Any) -> None:
        """An operator that gives an output of a node of the graph."""
        self.names[name] = self.builder.add(op, inputs, attributes, node.name, [name])

    def fresh(self, hint: str) -> str:
        """A name that neither graph has."""
        name = self.builder.unique(hint)
        while name in self.taken:
            name = self.builder.unique(f"{name}.2")
        return name

    def attention(self, node: Node, role: Role) -> None:
        """A part of causal attention: scores and shares of the steps that the rings hold."""
        rings, shapes = self.rings, self.graph.values
        assert rings is not None
        self.times[node.output] = len(shapes[node.output].shape) - 2
        if role is Role.MASK:
            (scores,) = (name for name in node.inputs if name in self.times)
            inputs = [rings.stays, self.names[scores], rings.left_out]
            self.put(node, node.output, "Where", inputs)
            return
        x, other = node.inputs
        axes = _attended(self.graph, node, self.roles)
        if (self.times.get(x), self.times.get(other)) != axes:
            raise UnsupportedError("expected queries and keys, or shares and values, of all steps")
        codes = [self.names[name] for name in codes_of(self.graph, other)]
        hint = f"{node.name}.{role.name.lower()}"
        last = rings.last(self.names[other], shapes[other].shape, axes[1], codes, hint)
        self.put(node, node.output, "MatMul", [self.names[x], last])

    # --- other nodes ----------------------------------------------------------------------------

    def node(self, node: Node) -> None:
        """A node that is time-wise."""
        axes = {name: self.times[name] for name in node.inputs if name in self.times}
        if axes and axes.keys() <= self.fed:
            self.fed.update(node.outputs)
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

    def copy(
        self, node: Node, changed: dict[str, Any], inputs: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        """The node as it is, but for some attributes and inputs."""
        made = self.builder.add_all(
            node.op,
            [inputs.get(name, self.names[name]) for name in node.inputs],
            {**node.attributes, **changed},
            node.name,
            node.outputs,
        )
        self.names.update(zip(node.outputs, made, strict=False))

    def kept(
        self, node: Node, axis: int | None, inputs: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        """The node on one step, where time is this axis of its outputs; `inputs`: instead of some
        that differ from step to step."""
        if axis is None:
            raise UnsupportedError("expected steps that stay apart, found some that are mixed")
        self.times.update(dict.fromkeys((name for name in node.outputs if name), axis))
        if has(node.op, Trait.RESHAPES):
            names = [self.names[name] for name in node.inputs]
            self.put(node, node.output, "Reshape", names, shape=self.one_step(node.output))
        else:
            self.copy(node, {}, inputs)

    def aligned(
        self,
        node: Node,
        axes: dict[str, int],
        operands: Sequence[str],
        varying: dict[str, str] | None = None,
    ) -> int:
        """The axis of time in what operands broadcast to; the others are the same in every step, or
        what belongs to this one is put into `varying`, if there are rings."""
        rank = len(self.graph.values[node.output].shape)
        values = {name: rank - len(self.graph.values[name].shape) for name in operands if name}
        places = {axes[name] + values[name] for name in values if name in axes}
        if len(places) > 1:
            raise UnsupportedError("expected sequences along one axis, found several")
        (place,) = places
        for name, offset in values.items():
            shape = self.graph.values[name].shape
            if name in axes or place < offset or shape[place - offset] == 1:
                continue
            if self.rings is not None and varying is not None:
                varying[name] = self.rings.of_this_step(self.names[name], place - offset)
            else:
                raise UnsupportedError(f"expected the same in every step, found {name!r}")
        return place


Rule = Callable[[_Stepping, Node, dict[str, int]], None]


def _pointwise(steps: _Stepping, node: Node, axes: dict[str, int]) -> None:
    varying: dict[str, str] = {}
    place = steps.aligned(node, axes, node.inputs, varying)
    steps.kept(node, place, varying)


def _transpose(steps: _Stepping, node: Node, axes: dict[str, int]) -> None:
    steps.kept(node, tuple(node.attributes["perm"]).index(axes[node.inputs[0]]))


def _reshape(steps: _Stepping, node: Node, axes: dict[str, int]) -> None:
    values, x = steps.graph.values, node.inputs[0]
    steps.kept(node, moved_axis(values[x].shape, values[node.output].shape, axes[x]))


def _matmul(steps: _Stepping, node: Node, axes: dict[str, int]) -> None:
    """Rows times constant columns, each row of one step."""
    x, other = node.inputs
    a, b = (steps.graph.values[name].shape for name in node.inputs)
    if other in axes or x not in axes or axes[x] == len(a) - 1:
        raise UnsupportedError(
            "expected features times constant weights, or causal attention, found another product"
        )
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
    mixed = axis <= axes[x] if has(node.op, Trait.TRAILING) else axis == axes[x]
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
