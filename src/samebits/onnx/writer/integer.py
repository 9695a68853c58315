"""Integer graphs as ONNX models in which a conforming runtime has no freedom.

Codes in, codes out; every node computes on integers and none may overflow, so that no order of
summation and no optimisation can change a bit. Sums of products are in `products`; requantization
is a 64-bit division, tables are Gather.
"""

from __future__ import annotations

import math
import os
from typing import Any

import numpy as np
import onnx

from samebits.errors import UnsupportedError
from samebits.ir.graph import Array, Graph, Node
from samebits.ir.integer.define import limits
from samebits.ir.integer.normalize import vector_length
from samebits.ir.integer.realise import (
    INT64_MAX,
    Floors,
    Quotient,
    Staircase,
    positions,
    requantization,
)
from samebits.ir.integer.shape import places
from samebits.ir.integer.trees import THRESHOLDS, ensemble_of
from samebits.ir.integer.windows import balance_factors
from samebits.onnx.writer.emit import unsupported, write_model
from samebits.onnx.writer.products import (
    WIDE,
    IntegerEmitter,
    Rule,
    conv,
    conv_transpose,
    gathered,
    linear,
    matmul,
    resample,
)
from samebits.onnx.writer.scores import divide, fixed_softmax, log_softmax, root, top_k
from samebits.spec.fixed import Shares
from samebits.spec.rounding import code_of

OPSET, IR_VERSION = 18, 8  # BitwiseAnd and axes of reductions as inputs


def save_integer(graph: Graph, path: str | os.PathLike[str]) -> None:
    """Write `to_integer(graph)` atomically. Raises as `to_integer`, SamebitsError for the file."""
    write_model(to_integer(graph), path)


def to_integer(graph: Graph) -> onnx.ModelProto:
    """An integer graph as standard ONNX (opset 18), inputs and outputs as codes, same names.

    The scale and zero point of each input and output, where known, are in metadata_props under
    `scale NAME` (an exact fraction, or one for each feature) and `zero_point NAME`. Raises
    UnsupportedError for a real graph, an accumulator that its type is not proved to hold, and
    softmax scales beyond 64 bits.
    """
    if not graph.integer:
        raise UnsupportedError(
            f"graph {graph.name!r}: expected an integer graph, found real operators; "
            "lower it first, or export it as QDQ"
        )
    emitter = IntegerEmitter(graph)
    for name, array in graph.constants.items():
        emitter.store(name, array, array.dtype.name)
    for node in graph.nodes:
        emitter.check(node)
        emitter.finish(_RULES[node.op](emitter, node), node.output)
    metadata = {}
    for name in (*graph.inputs, *graph.outputs):
        quantization = graph.values[name].quantization
        if quantization is not None:
            metadata[f"scale {name}"] = " ".join(map(str, quantization.scales))
            metadata[f"zero_point {name}"] = str(quantization.zero_point)
    return emitter.model(OPSET, IR_VERSION, metadata)


# --- element by element -----------------------------------------------------------------------


def _affine(emitter: IntegerEmitter, node: Node) -> str:
    x, m, b = map(emitter.wide, node.inputs)
    return emitter.narrowed(node, emitter.op("Add", emitter.op("Mul", x, m), b))


def _add(emitter: IntegerEmitter, node: Node) -> str:
    a = node.attributes
    terms = [
        emitter.integer("Mul", emitter.wide(name), factor)
        for name, factor in zip(node.inputs, a["factors"], strict=True)
    ]
    total = terms[0]
    for term in terms[1:]:
        total = emitter.op("Add", total, term)
    return emitter.narrowed(node, emitter.integer("Add", total, a["offset"]))


def _multiply(emitter: IntegerEmitter, node: Node) -> str:
    a = node.attributes
    sides = [
        emitter.integer("Sub", emitter.wide(name), zero)
        for name, zero in zip(node.inputs, (a["a_zero"], a["b_zero"]), strict=True)
    ]
    return emitter.narrowed(node, emitter.op("Mul", *sides))


def _requantize(emitter: IntegerEmitter, node: Node) -> str:
    a = node.attributes
    x = node.inputs[0]
    plan = requantization(emitter.intervals[x], a)
    if isinstance(plan, Staircase):
        reached = _reached(emitter, emitter.wide(x), plan.values)
        return emitter.cast(emitter.integer("Add", reached, a["low"]), a["dtype"])
    if isinstance(plan, Floors):
        return _floors(emitter, node, plan)
    pairs = zip(plan.numerators.tolist(), plan.denominators.tolist(), strict=True)
    largest = max(-(-emitter.largest(x) * n // d) for n, d in pairs)
    return emitter.saturated(_quotient_of(emitter, x, plan), largest, a)


def _quotient_of(emitter: IntegerEmitter, x: str, plan: Quotient) -> str:
    numerators, denominators = (
        v.reshape(()) if len(v) == 1 else v for v in (plan.numerators, plan.denominators)
    )
    product = emitter.wide(x)
    if (numerators != 1).any():
        product = emitter.op("Mul", product, emitter.constant(numerators, "int64"))
    if (denominators == 1).all():
        return product
    return emitter.quotient(product, emitter.constant(denominators, "int64"))


def _floors(emitter: IntegerEmitter, node: Node, plan: Floors) -> str:
    """A quotient of a sum that is never negative, which Div rounds down."""

    def row(array: Array) -> str:
        return emitter.constant(array if emitter.shape(node.output) else array[0], "int64")

    x = emitter.wide(node.inputs[0])
    for op, end in zip(("Max", "Min"), plan.ends or (), strict=False):
        x = emitter.extreme(op, x, row(end), "int64")
    total = emitter.op("Mul", x, row(plan.factors))
    added = row(plan.up + plan.offset)
    if plan.down.any():
        below = emitter.op("Less", x, emitter.constant(0, "int64"))
        added = emitter.op("Where", below, row(plan.up + plan.down + plan.offset), added)
    found = emitter.op("Div", emitter.op("Add", total, added), row(plan.divisors))
    codes = emitter.op("Sub", found, row(plan.offset // plan.divisors))
    reach = emitter.largest(node.inputs[0])
    roundings = node.attributes["ratios"]
    largest = max(abs(code_of(end, by)) for by in roundings for end in (-reach, reach))
    return emitter.saturated(codes, largest, node.attributes)


def _reached(emitter: IntegerEmitter, x: str, steps: Array) -> str:
    """The number of `steps` <= x, by binary search; steps [1, T] or [C, T] along the last axis."""
    rows, count = steps.shape
    rounds = count.bit_length()
    entries = (1 << rounds) - 1
    padded = np.full((rows, entries), INT64_MAX, np.int64)
    padded[:, :count] = steps
    flat = emitter.constant(padded.reshape(-1), "int64")
    starts = np.arange(rows) * entries - 1 if rows > 1 else np.array(-1)
    found = emitter.op("Sub", x, x)
    for step in reversed(range(rounds)):
        candidate = emitter.integer("Add", found, 1 << step)
        index = emitter.op("Add", candidate, emitter.constant(starts, "int64"))
        passed = emitter.op("LessOrEqual", emitter.op("Gather", flat, index, axis=0), x)
        found = emitter.op("Where", passed, candidate, found)
    return found


def _table(emitter: IntegerEmitter, node: Node) -> str:
    x, t = node.inputs
    offset = -limits(emitter.dtype(x))[0]
    index = emitter.cast(x, "int32")
    if len(emitter.shape(t)) == 1:
        return emitter.op("Gather", t, emitter.integer("Add", index, offset, "int32"), axis=0)
    channels, entries = emitter.shape(t)
    row = emitter.constant(np.arange(channels) * entries + offset, "int32")
    flat = emitter.reshape(t, (channels * entries,))
    return emitter.op("Gather", flat, emitter.op("Add", index, row), axis=0)


def _clip(emitter: IntegerEmitter, node: Node) -> str:
    dtype = emitter.dtype(node.inputs[0])
    least, most = limits(dtype)
    low, high = (min(max(node.attributes[key], least), most) for key in ("low", "high"))
    held = "int32" if dtype in WIDE else dtype
    return emitter.through(WIDE, node, lambda x: emitter.clip(x, low, high, held))


def _extreme(op: str) -> Rule:
    def rule(emitter: IntegerEmitter, node: Node) -> str:
        dtype = emitter.dtype(node.output)
        a, b = node.inputs
        if dtype not in WIDE:
            return emitter.extreme(op, a, b, dtype)
        found = emitter.op(op, emitter.cast(a, "int32"), emitter.cast(b, "int32"))
        return emitter.cast(found, dtype)

    return rule


# --- pools, reductions, softmax ---------------------------------------------------------------


def _max_pool(emitter: IntegerEmitter, node: Node) -> str:
    x, a = node.inputs[0], node.attributes
    wide = emitter.dtype(x) in WIDE
    # MaxPool takes no 16-bit integers; binary32 holds them all, and a maximum does not round.
    image = emitter.transpose(emitter.cast(x, "float32") if wide else x, 0, 3, 1, 2)
    found = emitter.op(
        "MaxPool",
        image,
        kernel_shape=list(a["kernel"]),
        strides=list(a["strides"]),
        pads=list(a["pads"]),
        dilations=list(a["dilations"]),
    )
    found = emitter.transpose(found, 0, 2, 3, 1)
    return emitter.cast(found, emitter.dtype(x)) if wide else found


def _sum_pool(emitter: IntegerEmitter, node: Node) -> str:
    x, a = node.inputs[0], node.attributes
    height, width = emitter.shape(x)[1:3]
    index = positions((height, width), a["kernel"], a)
    windows = emitter.cast(gathered(emitter, node, index, a["zero"], 0), "int64")
    total = emitter.op("ReduceSum", windows, emitter.constant([2], "int64"), keepdims=0)
    total = emitter.reshape(total, emitter.shape(node.output))
    if a["balance"]:
        factors = balance_factors((height, width), a)[0].astype(np.int64)
        total = emitter.op("Mul", total, emitter.constant(factors[:, :, None]))
    return emitter.narrowed(node, total)


def _reduce_sum(emitter: IntegerEmitter, node: Node) -> str:
    a = node.attributes
    total = emitter.integer("Sub", emitter.wide(node.inputs[0]), a["zero"])
    return emitter.narrowed(node, _reduced(emitter, "ReduceSum", total, a))


def _reduced(emitter: IntegerEmitter, op: str, x: str, a: Any) -> str:
    if not a["axes"]:
        return x
    axes = emitter.constant(a["axes"], "int64")
    return emitter.op(op, x, axes, keepdims=int(a["keepdims"]))


def _reduce(op: str) -> Rule:
    def rule(emitter: IntegerEmitter, node: Node) -> str:
        a = node.attributes
        return emitter.through(WIDE, node, lambda x: _reduced(emitter, op, x, a))

    return rule


def _softmax(emitter: IntegerEmitter, node: Node) -> str:
    """Powers of e by distance from the greatest code of the row, then one rounded quotient for
    each. UnsupportedError where a product might leave 62 bits."""
    x, t, *rest = node.inputs
    a = node.attributes
    if isinstance(a["ratio"], Shares):
        return fixed_softmax(emitter, node)
    numerator, denominator = a["ratio"].as_integer_ratio()
    largest = emitter.largest(t)
    sums = largest * emitter.shape(x)[-1] * denominator
    if largest * numerator >= 1 << 62 or sums > 1 << 62:
        raise unsupported(
            node,
            "a ratio whose products fit 64 bits",
            a["ratio"],
            "use an output scale of at most 24 bits and shorter rows",
        )
    wide, last = emitter.wide(x), emitter.constant([-1], "int64")
    nothing = emitter.constant(0, "int64")
    mask = emitter.cast(rest[0], "bool") if rest else ""
    if mask:  # the least code is no greater than those that count
        least = emitter.constant(limits(emitter.dtype(x))[0], "int64")
        wide = emitter.op("Where", mask, wide, least)
    greatest = emitter.op("ReduceMax", wide, last, keepdims=1)
    powers = emitter.op("Gather", emitter.wide(t), emitter.op("Sub", greatest, wide), axis=0)
    if mask:
        powers = emitter.op("Where", mask, powers, nothing)
    total = emitter.op("ReduceSum", powers, last, keepdims=1)
    total = emitter.extreme("Max", total, emitter.constant(1, "int64"), "int64") if mask else total
    codes = emitter.quotient(
        emitter.integer("Mul", powers, numerator), emitter.integer("Mul", total, denominator)
    )
    return emitter.saturated(codes, math.ceil(a["ratio"]), a)


def _normalize(emitter: IntegerEmitter, node: Node) -> str:
    """docs/spec/graph.md 3.1; a quotient that is to be a floor is taken of a sum with 2**62."""
    x, m, b = node.inputs
    a, shape = node.attributes, emitter.shape(node.output)
    samples, groups = math.prod(shape[: a["batch"]]), a["groups"]
    grid = (samples, math.prod(shape[a["batch"] : -1]), groups, shape[-1] // groups)
    n, axes = vector_length(shape, a), emitter.constant([1, 3], "int64")
    d = emitter.reshape(emitter.integer("Sub", emitter.wide(x), a["x_zero"]), grid)
    spread = emitter.op("ReduceSum", emitter.op("Mul", d, d), axes, keepdims=1)
    spread, normal = emitter.integer("Mul", spread, n), emitter.integer("Mul", d, n)
    if a["centered"]:
        total = emitter.op("ReduceSum", d, axes, keepdims=1)
        spread = emitter.op("Sub", spread, emitter.op("Mul", total, total))
        normal = emitter.op("Sub", normal, total)
    spread = emitter.integer("Add", spread, a["epsilon"])
    spread = emitter.extreme("Max", spread, emitter.constant(1, "int64"), "int64")
    below = emitter.op("Less", spread, emitter.constant(4 ** np.arange(1, 31), "int64"))
    last = emitter.constant([3], "int64")
    half = emitter.op("ReduceSum", emitter.cast(below, "int64"), last, keepdims=1)

    def power(exponents: Array) -> str:
        return emitter.op("Gather", emitter.constant(1 << exponents, "int64"), half, axis=0)

    root = _root(emitter, emitter.op("Mul", spread, power(2 * np.arange(31))))
    inverse = emitter.op("Div", emitter.constant(1 << 61, "int64"), root)
    raised = emitter.integer("Add", emitter.op("Mul", normal, inverse), 1 << 62)
    raised = emitter.op("Div", raised, power(37 - np.arange(31)))
    normal = emitter.op("Sub", raised, power(25 + np.arange(31)))
    total = emitter.op("Mul", emitter.reshape(normal, shape), emitter.wide(m))
    total = emitter.op("Add", total, emitter.wide(b))
    codes = emitter.quotient(total, emitter.constant(1 << a["shift"], "int64"))
    return emitter.saturated(codes, (1 << 62) >> a["shift"], a)


def _root(emitter: IntegerEmitter, v: str) -> str:
    """floor(sqrt(v)) for v from 2**60 to 2**62 - 1, by Newton's rule: x' = (x + v // x) // 2.

    The mean of x and v / x is no less than the root, so no x is below its floor. With x = (1 + e)
    * root, e' = e**2 / (2 + 2 * e) before the floor, which only comes nearer. From x = 2**31 the
    largest e are 1, 1/4, 1/40, 2**-11, 2**-24, 2**-49: after the fifth step x is the floor, or one
    more.
    """
    x, two = emitter.constant(1 << 31, "int64"), emitter.constant(2, "int64")
    for _ in range(5):
        x = emitter.op("Div", emitter.op("Add", x, emitter.op("Div", v, x)), two)
    above = emitter.op("Greater", emitter.op("Mul", x, x), v)
    return emitter.op("Sub", x, emitter.cast(above, "int64"))


def _trees(emitter: IntegerEmitter, node: Node) -> str:
    """All trees one branch further at a time, as often as the longest way asks; leaves refer to
    themselves, so that every round is the same. UnsupportedError where tables are computed."""
    x, targets = node.inputs[0], node.attributes["targets"]
    arrays = [emitter.graph.constants.get(name) for name in node.inputs]
    trees, thresholds = ensemble_of(arrays), arrays[THRESHOLDS]
    assert thresholds is not None  # `bounds` has read all of them
    rows, features = emitter.shape(x)
    levels = trees.check(features, targets)
    tables = trees.closed(trees.features, thresholds)
    feature, ends, *links = (
        emitter.constant(table, dtype)
        for table, dtype in zip(tables, ("int64", "int32", "int64", "int64"), strict=True)
    )
    codes = emitter.cast(x, "int32")
    at = emitter.constant(np.broadcast_to(trees.roots, (rows, len(trees.roots))), "int64")
    for _ in range(levels):
        found = emitter.op("GatherElements", codes, emitter.op("Gather", feature, at), axis=1)
        holds = emitter.op("LessOrEqual", found, emitter.op("Gather", ends, at))
        at = emitter.op("Where", holds, *(emitter.op("Gather", link, at) for link in links))
    leaf = emitter.integer("Sub", at, trees.branches)
    added = emitter.op("Gather", emitter.constant(trees.dense(targets), "int64"), leaf)
    total = emitter.op("ReduceSum", added, emitter.constant([1], "int64"), keepdims=0)
    return emitter.narrowed(node, total)


def _argmax(emitter: IntegerEmitter, node: Node) -> str:
    a = node.attributes
    x = node.inputs[0]
    x = emitter.cast(x, "int32") if emitter.dtype(x) in WIDE else x
    return emitter.op("ArgMax", x, axis=a["axis"], keepdims=int(a["keepdims"]), select_last_index=0)


# --- data movement ----------------------------------------------------------------------------


def _slice(emitter: IntegerEmitter, node: Node) -> str:
    a = node.attributes
    axes = range(len(a["starts"]))
    parts = [a["starts"], a["stops"], axes, a["steps"]]
    return emitter.op("Slice", node.inputs[0], *(emitter.constant(p, "int64") for p in parts))


def _pad(emitter: IntegerEmitter, node: Node) -> str:
    a = node.attributes
    dtype = emitter.dtype(node.inputs[0])
    ends = emitter.constant((*a["before"], *a["after"]), "int64")
    fill = emitter.constant(a["code"], "int32" if dtype in WIDE else dtype)
    return emitter.through(WIDE, node, lambda x: emitter.op("Pad", x, ends, fill))


def _gather(emitter: IntegerEmitter, node: Node) -> str:
    x, indices = node.inputs
    axis = node.attributes["axis"]
    n = emitter.shape(x)[axis]
    known = emitter.graph.constants.get(indices)
    if known is not None:
        return emitter.op("Gather", x, emitter.constant(places(known, n), "int64"), axis=axis)
    wide = emitter.wide(indices)
    below = emitter.op("Less", wide, emitter.constant(0, "int64"))
    wide = emitter.op("Where", below, emitter.integer("Add", wide, n), wide)
    return emitter.op("Gather", x, emitter.clip(wide, 0, n - 1, "int64"), axis=axis)


def _scatter(emitter: IntegerEmitter, node: Node) -> str:
    """Places as indices for every element of what is written."""
    x, update, starts = node.inputs
    axis, shape = node.attributes["axis"], emitter.shape(update)
    rest = [1] * (len(shape) - 1)
    first = emitter.reshape(emitter.wide(starts), (shape[0], *rest))
    steps = [1] * len(shape)
    steps[axis] = shape[axis]
    ahead = emitter.constant(np.arange(shape[axis]).reshape(steps), "int64")
    size = emitter.constant(emitter.shape(x)[axis], "int64")
    # Modulo before and after the sum, which a start near the end of its type would leave.
    places = emitter.op("Mod", emitter.op("Add", emitter.op("Mod", first, size), ahead), size)
    indices = emitter.op("Expand", places, emitter.constant(shape, "int64"))
    return emitter.op("ScatterElements", x, indices, update, axis=axis)


_RULES: dict[str, Rule] = {
    "conv": conv,
    "conv_transpose": conv_transpose,
    "linear": linear,
    "matmul": matmul,
    "affine": _affine,
    "add": _add,
    "multiply": _multiply,
    "requantize": _requantize,
    "table": _table,
    "clip": _clip,
    "max_pool": _max_pool,
    "sum_pool": _sum_pool,
    "reduce_sum": _reduce_sum,
    "reduce_max": _reduce("ReduceMax"),
    "reduce_min": _reduce("ReduceMin"),
    "maximum": _extreme("Max"),
    "minimum": _extreme("Min"),
    "softmax": _softmax,
    "normalize": _normalize,
    "divide": divide,
    "root": root,
    "log_softmax": log_softmax,
    "argmax": _argmax,
    "top_k": top_k,
    "top_k_index": top_k,
    "resample": resample,
    "tree_ensemble": _trees,
    "reshape": lambda e, n: e.reshape(n.inputs[0], n.attributes["shape"]),
    "transpose": lambda e, n: e.transpose(n.inputs[0], *n.attributes["perm"]),
    "expand": lambda e, n: e.op("Expand", n.inputs[0], e.constant(n.attributes["shape"], "int64")),
    "slice": _slice,
    "concat": lambda e, n: e.op("Concat", *n.inputs, axis=n.attributes["axis"]),
    "pad": _pad,
    "gather": _gather,
    "scatter": _scatter,
}
