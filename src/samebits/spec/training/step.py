"""One whole training step in plain Python integers: the executable docs/spec/training.md.

A net is a list of `Node` in topological order; the last node is the output that the loss reads,
unless losses of several nodes are given. The exact sums of a linear, conv2d, batch_norm or add have
8 bits for another layer and 32 for a loss, and a relu takes them as they are; `flatten` and
`select` hand on either.
`step` runs every shard forward and backward and updates the parameters (section 8). Layers are in
`layers`, `norm` and `recurrent` (sections 5 and 7), losses in `loss` (section 6), optimizers in
`optimizer` (section 4). No torch, no numpy.

Operators and their attributes (pairs are (vertical, horizontal)):

| op | inputs | attributes (default) | parameters, buffers |
|---|---|---|---|
| input | none | | |
| linear | x | | weight, bias |
| conv2d | x | stride, padding, dilation, groups | weight, bias |
| conv_transpose2d | x | those of conv2d, output_padding ((0, 0)) | weight, bias |
| batch_norm | x | eps (1e-5), momentum (0.1) | weight, bias, running_mean, running_var |
| layer_norm | x | eps (1e-5) | weight, bias |
| relu, relu6, flatten | x | | |
| table | x | table: input exponent -> (table, derivative), bounded (False) | |
| max_pool | x | kernel, stride (kernel), padding ((0, 0)), ceil (False) | |
| avg_pool | x | those of max_pool, include_pad (True), divisor (None) | |
| adaptive_avg_pool | x | size | |
| global_avg_pool | x | | |
| add, multiply | a, b | | |
| scale | x | factor | |
| concat | any number | | |
| dropout | x | p | |
| stochastic_depth | x | p, mode (row) | |
| embedding | index | | weight |
| lstm | x, h_0, c_0 | tables, num_layers (1), bidirectional, batch_first, dropout | as torch |
| gru | x, h_0 | those of lstm | as torch |
| rnn | x, h_0 | those of lstm, relu (False) | as torch |
| select | x | axis, index | |
| rms_norm | x | eps (1e-5) | weight |
| group_norm | x | groups, eps (1e-5) | weight, bias |
| own | none | | weight |
| matmul | a, b | transposed (False) | |
| softmax | x | allowed (None): bool of every element | |
| expand | x | shape | |
| split_heads, join_heads | x | heads | |
| copies | x | along: axis -> which elements | |
| interpolate | x | size, corners (False) | |

Initial states of lstm, gru and rnn may be left out. The states after the last step are the nodes
`NAME.h_n` and `NAME.c_n` to others; words of the dropout before layer k are those of
`NAME.dropout_l<k>`. A dropout layer that is called twice is two nodes, each with words of its call.
`own` is a parameter of a user's module.

Products, softmax, and add, multiply, scale and dropout of their results, have 32 bits (section 14);
other operators take those as 8 bits.

A linear, conv2d, batch_norm or layer_norm whose channels have shifts has the buffer `channel_peak`.
Parameter `weight` of node `fc` is `fc.weight`; an attribute `weight="other.weight"` shares one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from samebits.spec.formats import Tensor
from samebits.spec.training import (
    attention,
    layers,
    moves,
    norm,
    pointwise,
    pooling,
    recurrent,
    rows,
    transposed,
)
from samebits.spec.training.layers import Array, Geometry, Parameter, resolve
from samebits.spec.training.loss import cross_entropy, mse
from samebits.spec.training.optimizer import SGD, Adam

# --- one pass over a net --------------------------------------------------------------------


@dataclass(frozen=True)
class Node:
    """One operator; `inputs` are names of earlier nodes."""

    name: str
    op: str
    inputs: tuple[str, ...] = ()
    attributes: Mapping[str, Any] = field(default_factory=dict)


Net = Sequence[Node]
Parameters = dict[str, Parameter]
Buffers = dict[str, list[float]]


@dataclass
class Pass:
    """A forward pass: every node's output and what its backward needs.

    outputs: what layers take; 32-bit where no layer takes it
    wide:    what losses and softmax take, of nodes that hold exact sums
    sums:    what a ReLU takes, of these nodes: the sums, and what moves their elements
    """

    outputs: dict[str, Array] = field(default_factory=dict)
    wide: dict[str, Array] = field(default_factory=dict)
    sums: dict[str, tuple[layers.ExactSums, pointwise.Move]] = field(default_factory=dict)
    saved: dict[str, Any] = field(default_factory=dict)


MOVES = ("flatten", "select", "split_heads", "join_heads", "copies")
OF_VECTORS = ("linear", "layer_norm", "rms_norm")
"""Operators to which a tensor of four axes is no image (section 12.2)."""
PEAKS = "channel_peak"
"""A buffer of layers that give their channels shifts: the largest magnitudes (section 12.4)."""


def taken_by_layers(net: Net, exact: Collection[str] = pointwise.CLIPS) -> set[str]:
    """The nodes whose output a layer takes as codes, at once or after moves.

    exact: operators that take exact sums
    """
    taken: set[str] = set()
    for node in reversed(net):
        if node.op not in exact and (node.op not in MOVES or node.name in taken):
            taken.update(node.inputs)
    return taken


def moved(node: Node, x: Array) -> Array:
    """The output of one of MOVES."""
    if node.op == "split_heads":
        return moves.placed(x, *moves.split_heads(x.shape, node.attributes["heads"]))
    if node.op == "copies":
        return moves.placed(x, *moves.chosen(x.shape, node.attributes["along"]))
    if node.op == "join_heads":
        return moves.placed(x, *_joined(x.shape, node.attributes["heads"]))
    if node.op == "select":
        return pointwise.select(x, node.attributes["axis"], node.attributes["index"])
    return pointwise.reshaped(x, (x.shape[0], math.prod(x.shape[1:])))


def _joined(shape: tuple[int, ...], heads: int) -> tuple[list[int], tuple[int, ...]]:
    """The places of `join_heads`, and its shape."""
    count, t, d = shape
    whole = (count // heads, t, heads * d)
    return moves.inverse(moves.split_heads(whole, heads)[0]), whole


def heads_backward(node: Node, g: Array, shape: tuple[int, ...]) -> Array:
    """The gradient moved back; `shape` is the input's."""
    heads = node.attributes["heads"]
    joined = node.op == "join_heads"
    places = (_joined if joined else moves.split_heads)(shape, heads)[0]
    return moves.placed(g, moves.inverse(places), shape)


def inputs_of(node: Node, done: Pass) -> list[Array]:
    """A node's inputs, of 8 bits unless it takes more."""
    x = [done.outputs[name] for name in node.inputs]
    match node.op:
        case "relu" | "relu6" if node.inputs[0] in done.sums:
            return x
        case "matmul" | "softmax" | "add" | "multiply" | "scale" | "dropout" | "expand":
            return x
        case op if op in recurrent.STATES:  # states may have more
            return x
        case "embedding":  # of indices
            return x
        case op if op in MOVES:
            return x
        case _:
            return [as_vectors(node, layers.narrowed(t)) for t in x]


def batch_norm_input(node: Node, done: Pass) -> Array:
    """The input of a batch norm: a bfp16 of exact sums and of codes of 32 bits, or a bfp8."""
    if node.inputs[0] in done.sums:
        sums, move = done.sums[node.inputs[0]]
        return move(sums.short())
    return layers.narrowed(done.outputs[node.inputs[0]], 16)


def as_vectors(node: Node, x: Array) -> Array:
    """x as [n, k] where a node takes four axes as vectors. Section 12.2."""
    if node.op not in OF_VECTORS or len(x.shape) != 4:
        return x
    return pointwise.reshaped(x, (math.prod(x.shape[:3]), x.shape[3]))


def with_axes(node: Node, y: Array, done: Pass) -> Array:
    """A result of vectors with the axes of the node's input."""
    shape = done.outputs[node.inputs[0]].shape if node.op in OF_VECTORS else y.shape
    return y if len(shape) == len(y.shape) else pointwise.reshaped(y, (*shape[:3], y.shape[1]))


def is_wide(*tensors: Array) -> bool:
    """Whether one of these has more than 8 bits."""
    return any(t.bits > 8 for t in tensors)


def pair(value: int | tuple[int, int]) -> tuple[int, int]:
    """An attribute given once for both axes, or twice."""
    return (value, value) if isinstance(value, int) else value


def parameter_name(node: Node, part: str) -> str:
    """The name of a node's `weight` or `bias`."""
    return node.attributes.get(part, f"{node.name}.{part}")


def geometry_of(node: Node) -> Geometry | None:
    """The geometry of a conv2d; None for linear."""
    if node.op == "linear":
        return None
    a = node.attributes
    stride, padding, dilation = a.get("stride", 1), a.get("padding", 0), a.get("dilation", 1)
    return Geometry(pair(stride), pair(padding), pair(dilation), a.get("groups", 1))


def sums_of(
    node: Node, x: Array, weight: Parameter, bias: Parameter | None
) -> tuple[list[int], tuple[int, ...], rows.Exponent]:
    """The exact sums of a linear, conv2d or conv_transpose2d, their shape and exponent."""
    geometry = geometry_of(node)
    if geometry is None or node.op != "conv_transpose2d":
        return layers.exact_sums(x, weight, bias, geometry)
    extra = pair(node.attributes.get("output_padding", 0))
    return transposed.exact_sums(x, weight, bias, geometry, extra)


def pooling_of(
    node: Node, shape: tuple[int, ...]
) -> tuple[layers.Pair, layers.Pair, layers.Pair, bool]:
    """(kernel, stride, padding, ceil)."""
    if node.op == "global_avg_pool":
        return (shape[2], shape[3]), (shape[2], shape[3]), (0, 0), False
    kernel = pair(node.attributes["kernel"])
    return (
        kernel,
        pair(node.attributes.get("stride", kernel)),
        pair(node.attributes.get("padding", 0)),
        node.attributes.get("ceil", False),
    )


def means_of(node: Node, shape: tuple[int, ...]) -> pooling.Means:
    """The windows of a node that averages images of a shape."""
    if node.op == "adaptive_avg_pool":
        return pooling.adaptive_windows(shape, node.attributes["size"])
    geometry, a = pooling_of(node, shape), node.attributes
    counting = (a.get("include_pad", True), a.get("divisor"))
    return pooling.averaged_windows(shape, *geometry, *counting)


def forward(
    net: Net,
    parameters: Parameters,
    buffers: Buffers,
    inputs: Mapping[str, Array],
    training: bool = True,
    words: Mapping[str, Sequence[int]] | None = None,
    at_start: Buffers | None = None,
) -> tuple[Pass, Buffers]:
    """Every output, and the buffers after it. `words`: Philox words of each dropout node.

    Inputs of an embedding are arrays whose codes are row numbers. at_start: the buffers before the
    step, which say the shifts of channels; None: `buffers`.
    """
    shifting = buffers if at_start is None else at_start
    done, buffers, taken = Pass(), dict(buffers), taken_by_layers(net)
    for node in net:
        x = inputs_of(node, done)
        a = node.attributes
        weight = parameters.get(parameter_name(node, "weight"))
        bias = parameters.get(parameter_name(node, "bias"))
        saved: Any = None
        own_peaks = f"{node.name}.{PEAKS}"
        peaks, seen = shifting.get(own_peaks, []), []
        y: Array | layers.ExactSums
        match node.op:
            case "input":
                y = inputs[node.name]
            case "linear" | "conv2d" | "conv_transpose2d":
                acc, shape, exponent = sums_of(node, x[0], needed(weight), bias)
                bits, shifts = needed(weight).widths[0], tuple(rows.shifts_of(peaks))
                y = layers.ExactSums(acc, shape, exponent, bits, shifts)
                seen = rows.seen(acc, exponent, shape) if peaks else []
            case "batch_norm":
                names = f"{node.name}.running_mean", f"{node.name}.running_var"
                running = (buffers[names[0]], buffers[names[1]])
                z = batch_norm_input(node, done)
                y, saved, seen = norm.batch_norm(
                    z,
                    needed(weight),
                    needed(bias),
                    a.get("eps", 1e-5),
                    None if training else running,
                    peaks,
                )
                if training:
                    new = norm.running_statistics(z, *running, a.get("momentum", 0.1))
                    buffers[names[0]], buffers[names[1]] = new
            case "layer_norm":
                own = (needed(weight), needed(bias), a.get("eps", 1e-5))
                y, saved, seen = norm.layer_norm(x[0], *own, peaks)
            case "rms_norm":
                eps = a.get("eps", 1e-5)
                y, saved, seen = norm.layer_norm(x[0], needed(weight), None, eps, peaks, False)
            case "group_norm":
                own = (needed(weight), needed(bias), a.get("eps", 1e-5))
                y, saved, seen = norm.layer_norm(x[0], *own, peaks, groups=a["groups"])
            case "relu" | "relu6":
                given, move = done.sums.get(node.inputs[0], (x[0], None))
                y, saved = pointwise.clamp(given, pointwise.CLIPS[node.op], move)
            case "table":
                bounded = a.get("bounded", False)
                y = pointwise.table_activation(x[0], part_of(a["table"], 0), bounded)
            case "max_pool":
                y, saved = pooling.max_pool(x[0], *pooling_of(node, x[0].shape))
            case "avg_pool" | "adaptive_avg_pool" | "global_avg_pool":
                y = pooling.averages(x[0], *means_of(node, x[0].shape))
            case "add":
                y = attention.add_wide(*x) if is_wide(*x) else pointwise.added(*x)
            case "multiply":
                y = pointwise.multiply(*x)
            case "scale":
                y = pointwise.scale(x[0], a["factor"])
            case "concat":
                y = pointwise.concat(x)
            case "own":
                y = moves.entered(needed(weight))
            case "matmul":
                saved = attention.operands(x[0], x[1], a.get("transposed", False))
                y = attention.matmul(saved)
            case "softmax":
                wide = done.wide.get(node.inputs[0], x[0])
                y, saved = attention.softmax(wide, a.get("allowed"))
            case "expand":
                y = moves.expand(x[0], a["shape"])
            case "interpolate":
                y = pooling.interpolated(x[0], a["size"], a.get("corners", False))
            case op if op in MOVES:
                y = moved(node, x[0])
                if node.inputs[0] in done.wide:
                    done.wide[node.name] = moved(node, done.wide[node.inputs[0]])
                    sums, before = done.sums[node.inputs[0]]
                    done.sums[node.name] = sums, partial(_then, before, node)
            case "dropout" | "stochastic_depth":
                y = x[0]
                if training and a["p"] > 0:
                    saved = pointwise.dropout_factors(a["p"], (words or {})[node.name])
                    if node.op == "stochastic_depth":
                        saved = pointwise.for_samples(y.shape, saved)
                    y = pointwise.dropout(x[0], saved)
            case "embedding":
                y = pointwise.embedding(x[0], needed(weight), not training)
            case "lstm" | "gru" | "rnn":
                find, drawn = parameters_of(node, parameters), words_of(node, words, training)
                y, after, saved = recurrent.stack(node.op, x, a, find, drawn)
                done.outputs.update(zip(state_names(node), after, strict=True))
            case _:
                raise ValueError(f"node {node.name!r}: unknown op {node.op!r}")
        if isinstance(y, layers.ExactSums):
            axes = partial(with_axes, node, done=done)
            done.sums[node.name], done.wide[node.name] = (y, axes), axes(y.wide())
            y = y.narrow() if node.name in taken else y.wide()
        done.outputs[node.name], done.saved[node.name] = with_axes(node, y, done), saved
        if training and peaks:
            buffers[own_peaks] = rows.decayed(buffers[own_peaks], seen)
    return done, buffers


def _then(before: pointwise.Move, node: Node, x: Array) -> Array:
    """The value that `before` makes of x, moved by a node."""
    return moved(node, before(x))


def parameters_of(node: Node, parameters: Parameters) -> recurrent.Lookup:
    """A node's parameter by its own name; None where it has none."""
    return lambda part: parameters.get(f"{node.name}.{part}")


def words_of(
    node: Node, words: Mapping[str, Sequence[int]] | None, training: bool
) -> recurrent.Words:
    """The Philox words of a node's dropout by its own name; None where nothing is dropped."""
    if not training or not node.attributes.get("dropout", 0):
        return lambda name: None
    return lambda name: (words or {})[f"{node.name}.{name}"]


def state_names(node: Node) -> tuple[str, ...]:
    """The states that a node gives beside its output, as names of nodes."""
    return tuple(f"{node.name}.{state}" for state in recurrent.STATES.get(node.op, ()))


def needed(parameter: Parameter | None) -> Parameter:
    """The parameter of a node that cannot do without it."""
    if parameter is None:
        raise ValueError("a node lacks its parameter")
    return parameter


def part_of(tables: Callable[[int], Sequence[Tensor]], index: int) -> pointwise.Tables:
    """The table (0) or the derivative (1) of an activation at an exponent."""
    return lambda exponent: tables(exponent)[index]


Gradients = dict[str, list[Array]]


def backward(
    net: Net, parameters: Parameters, done: Pass, gradient: Array | Mapping[str, Array]
) -> tuple[Gradients, Gradients]:
    """(parts of every parameter's gradient, parts of every node output's gradient). Section 7.

    `gradient` is that of the last node's output, or of several by their names. Net inputs get none.
    """
    at_parameter: Gradients = {}
    given = {net[-1].name: gradient} if isinstance(gradient, Array) else gradient
    at_node: Gradients = {name: [g] for name, g in given.items()}
    inner = {name for node in net if node.op != "input" for name in (node.name, *state_names(node))}
    for node in reversed(net):
        outputs = [name for name in (node.name, *state_names(node)) if name in at_node]
        if node.op == "input" or not outputs:
            continue
        g = as_vectors(node, resolve(at_node[outputs[0]]))
        saved = done.saved[node.name]
        x = inputs_of(node, done)
        names = parameter_name(node, "weight"), parameter_name(node, "bias")
        weight, a = parameters.get(names[0]), node.attributes
        down: list[Array] = []
        own: list[Array] = []  # gradients of (weight, bias)
        match node.op:
            case "linear" | "conv2d":
                geometry, g = geometry_of(node), layers.arriving(g, needed(weight))
                own.append(layers.affine_weight_gradient(g, x[0], needed(weight), geometry))
                if names[1] in parameters:
                    own.append(layers.bias_gradient(g, geometry))
                if node.inputs[0] in inner:
                    down = [layers.affine_input_gradient(g, x[0], needed(weight), geometry)]
            case "conv_transpose2d":
                swapped = geometry_of(node) or Geometry()
                g = layers.arriving(g, needed(weight))
                own.append(transposed.weight_gradient(g, x[0], needed(weight), swapped))
                if names[1] in parameters:
                    own.append(layers.bias_gradient(g, swapped))
                if node.inputs[0] in inner:
                    down = [transposed.input_gradient(g, x[0], needed(weight), swapped)]
            case "batch_norm":
                dz, *own = norm.batch_norm_backward(g, saved)
                down = [dz]
            case "layer_norm" | "group_norm":
                dz, *own = norm.layer_norm_backward(g, x[0], needed(weight), saved)
                down = [dz]
            case "rms_norm":
                dz, at_gamma, _ = norm.layer_norm_backward(g, x[0], needed(weight), saved)
                down, own = [dz], [at_gamma]
            case "own":
                own = [layers.wide_whole(g.codes, g.shape, g.exponent) if g.by_rows else g]
            case "matmul":
                down = list(attention.matmul_backward(g, saved))
            case "softmax":
                down = [attention.softmax_backward(g, saved)]
            case "expand":
                down = [moves.expand_backward(g, x[0].shape)]
            case "copies":
                down = [moves.chosen_backward(g, x[0].shape, a["along"])]
            case "interpolate":
                corners = a.get("corners", False)
                down = [pooling.interpolated_backward(g, x[0].shape, corners)]
            case "split_heads" | "join_heads":
                down = [heads_backward(node, g, x[0].shape)]
            case "relu" | "relu6":
                down = [pointwise.clamp_backward(g, saved)]
            case "table":
                down = [pointwise.table_backward(g, x[0], part_of(a["table"], 1))]
            case "max_pool":
                down = [pooling.max_pool_backward(g, x[0].shape, saved)]
            case "avg_pool" | "adaptive_avg_pool" | "global_avg_pool":
                _, members, by = means_of(node, x[0].shape)
                down = [pooling.averages_backward(g, x[0].shape, members, by)]
            case "add":
                down = [g, g]
            case "multiply":
                down = [pointwise.multiply_backward(g, *pair) for pair in (x, reversed(x))]
            case "scale":
                down = [pointwise.scale_backward(g, a["factor"])]
            case "concat":
                down = pointwise.concat_backward(g, [t.shape for t in x])
            case "flatten":
                down = [pointwise.reshaped(g, x[0].shape)]
            case "dropout" | "stochastic_depth":
                down = [g if saved is None else pointwise.dropout_backward(g, saved)]
            case "embedding":
                own.append(pointwise.embedding_weight_gradient(g, x[0], needed(weight)))
            case "lstm" | "gru" | "rnn":
                last = [resolve(at_node[n]) if n in at_node else None for n in state_names(node)]
                arrives = at_node.get(node.name, [])
                parts, states, gradients = recurrent.stack_backward(arrives, last, saved)
                for name, part in gradients.items():
                    at_parameter.setdefault(f"{node.name}.{name}", []).append(part)
                for name, several in zip(node.inputs, (parts, *states), strict=True):
                    if name in inner:
                        at_node.setdefault(name, []).extend(several)
            case "select":
                down = [pointwise.select_backward(g, x[0].shape, a["axis"], a["index"])]
        for name, part in zip(names, own, strict=False):
            at_parameter.setdefault(name, []).append(part)
        for name, part in zip(node.inputs, down, strict=False):
            if name in inner:
                at_node.setdefault(name, []).append(with_axes(node, part, done))
    return at_parameter, at_node


# --- the step (section 8) -------------------------------------------------------------------

LOSSES: Mapping[str, Callable[[Array, Any, float], tuple[float, Array]]] = {
    "cross_entropy": cross_entropy,
    "mse": mse,
}


@dataclass(frozen=True)
class Step:
    """The state after a step, with the loss of every shard and every resolved gradient."""

    parameters: Parameters
    buffers: Buffers
    state: dict[str, Any]
    losses: list[float]
    gradients: dict[str, Array]


def step(
    net: Net,
    parameters: Parameters,
    buffers: Buffers,
    state: Mapping[str, Any],
    shards: Sequence[tuple[Mapping[str, Array], Any]],
    optimizer: SGD | Adam,
    loss: str | Mapping[str, str] = "cross_entropy",
    words: Sequence[Mapping[str, Sequence[int]]] | None = None,
) -> Step:
    """One training step over equal shards of (inputs by node name, targets).

    `state` maps parameter names to optimizer state ({} before the first step); the order of
    `parameters` is that in which the optimizer has them; `words` holds, for
    every shard, the Philox words of each dropout node. Nothing passed in is changed.

    loss: of the last node, or losses by the names of the nodes whose values they take; they are
          added, and targets are by the same names
    """
    parts: Gradients = {}
    losses: list[float] = []
    at_start = buffers
    for index, (inputs, targets) in enumerate(shards):
        given = None if words is None else words[index]
        done, buffers = forward(net, parameters, buffers, inputs, words=given, at_start=at_start)
        heads, targets = (
            ({net[-1].name: loss}, {net[-1].name: targets})
            if isinstance(loss, str)
            else (loss, targets)
        )
        losses.append(0.0)
        at: dict[str, Array] = {}
        for name, kind in heads.items():
            read = layers.unshifted(done.wide.get(name, done.outputs[name]))
            value, at[name] = LOSSES[kind](read, targets[name], 1.0 / float(len(shards)))
            losses[-1] += value
        for name, arrays in backward(net, parameters, done, at)[0].items():
            parts.setdefault(name, []).extend(arrays)
    new, new_state, gradients = dict(parameters), dict(state), {}
    for index, name in enumerate(parameters):
        if name in parts:
            g = gradients[name] = resolve(parts[name])
            new[name], new_state[name] = optimizer.update(
                name, index, parameters[name], (g.codes, g.one_exponent), state.get(name)
            )
    return Step(new, buffers, new_state, losses, gradients)
