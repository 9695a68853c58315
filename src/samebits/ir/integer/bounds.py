"""Intervals of every value of an integer graph, by exact interval arithmetic.

docs/spec/graph.md section 3, "Bounds". They decide the width of accumulators and over which range
a requantization has to be proved.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from samebits.errors import RangeError
from samebits.ir.graph import Graph, Node
from samebits.ir.integer.define import limits, magnitude, wide
from samebits.ir.integer.normalize import LARGEST_FACTOR, LARGEST_TERM
from samebits.ir.integer.resample import check_places
from samebits.ir.integer.root import LARGEST_RADICAND, nearest_root
from samebits.ir.integer.shape import keeps_channels, places
from samebits.ir.integer.trees import ensemble_of
from samebits.ir.integer.windows import balance_factors, window_counts
from samebits.ir.ops import has, ops_with
from samebits.ir.traits import Trait
from samebits.numerics.multiplier import requantized

LARGEST = 1 << 62


@dataclass(frozen=True)
class Interval:
    """low[c] <= code <= high[c] along the last axis, or one pair for every element."""

    low: tuple[int, ...]
    high: tuple[int, ...]

    def __post_init__(self) -> None:
        if len(self.low) != len(self.high) or not self.low:
            raise ValueError("expected as many lower as upper ends")
        if any(a > b for a, b in zip(self.low, self.high, strict=True)):
            raise ValueError(f"expected low <= high, found {self.low} and {self.high}")

    @property
    def hull(self) -> Interval:
        """One pair around all channels."""
        return Interval((min(self.low),), (max(self.high),))

    def over(self, channels: int) -> list[tuple[int, int]]:
        """(low, high) for each channel."""
        pairs = list(zip(self.low, self.high, strict=True))
        if len(pairs) == channels:
            return pairs
        return list(zip(self.hull.low, self.hull.high, strict=True)) * channels

    def including(self, code: int) -> Interval:
        """The interval widened to hold `code`."""
        return Interval(
            tuple(min(v, code) for v in self.low), tuple(max(v, code) for v in self.high)
        )


def interval(pairs: Sequence[tuple[int, int]]) -> Interval:
    """The interval of (low, high) pairs, one for each channel; one pair where all are equal."""
    if len(set(pairs)) == 1:
        pairs = pairs[:1]
    return Interval(tuple(int(low) for low, _ in pairs), tuple(int(high) for _, high in pairs))


def bounds(graph: Graph) -> dict[str, Interval]:
    """The interval of every value. RangeError naming the node where one leaves 2**62."""
    found: dict[str, Interval] = {}
    for name in graph.inputs:
        low, high = limits(graph.values[name].dtype)
        found[name] = Interval((low,), (high,))
    for name, array in graph.constants.items():
        if array.size:
            found[name] = Interval((int(array.min()),), (int(array.max()),))
        else:
            found[name] = Interval((0,), (0,))
    for node in graph.nodes:
        result = _RULES[node.op](graph, node, [found[name] for name in node.inputs])
        low, high = result.hull.low[0], result.hull.high[0]
        moved = has(node.op, Trait.MOVEMENT)  # of an input, whatever its type holds
        if not moved and (low <= -LARGEST or high >= LARGEST):
            raise RangeError(
                f"node {node.name!r} ({node.op}): expected sums below 2**62, found up to "
                f"{max(-low, high)}; split the layer or use narrower codes"
            )
        found[node.output] = result
    return found


# --- rules ----------------------------------------------------------------------------------

Rule = Callable[[Graph, Node, list[Interval]], Interval]


def _sums(weights: Any, bias: Any, low: Any, high: Any) -> Interval:
    """The interval of b[o] + sum w[o, ...] * x for x in [low, high], whose ends broadcast to the
    weights."""
    axes = tuple(range(1, weights.ndim))
    reach = max(map(abs, (*np.ravel(low), *np.ravel(high))))
    largest = magnitude(weights) * int(reach) * max(weights[0].size, 1)
    w, low, high = (wide(np.asarray(v), largest) for v in (weights, low, high))
    ends = (w * low, w * high)
    least = np.minimum(*ends).sum(axes).astype(object) + bias.astype(object)
    most = np.maximum(*ends).sum(axes).astype(object) + bias.astype(object)
    return interval(list(zip(least, most, strict=True)))


def _ends(pairs: Sequence[tuple[int, int]]) -> tuple[Any, Any]:
    low, high = zip(*pairs, strict=True)
    return np.array(low, object), np.array(high, object)


def _products(graph: Graph, node: Node, ins: list[Interval]) -> Interval:
    """conv, conv_transpose, linear: exact for constant weights, else from the intervals alone."""
    x, w, b = node.inputs
    weights, bias = graph.constants.get(w), graph.constants.get(b)
    shape = graph.values[w].shape
    if node.op == "linear":
        source = ins[0]
    elif node.op == "conv":
        padded = any(node.attributes["pads"])
        source = ins[0].including(node.attributes["pad_code"]) if padded else ins[0]
    else:  # positions of the output that fewer taps reach: like zeros
        source = _shifted(ins[0], -node.attributes["zero"]).including(0)
    if weights is None or bias is None:
        count = int(np.prod(shape[1:]))
        product = _times(source.hull, ins[1].hull)
        return _plus(_scaled(product, count), ins[2].hull)
    channels = source.over(graph.values[x].shape[-1])
    groups = node.attributes.get("groups", 1)
    outputs, inputs = shape[0] // groups, shape[-1]
    parts: list[tuple[int, int]] = []
    for group in range(groups):
        low, high = _ends(channels[group * inputs : (group + 1) * inputs])
        rows = slice(group * outputs, (group + 1) * outputs)
        part = _sums(weights[rows], bias[rows], low, high)
        parts += part.over(outputs)
    return interval(parts)


def _times(a: Interval, b: Interval) -> Interval:
    ends = [x * y for x in (a.low[0], a.high[0]) for y in (b.low[0], b.high[0])]
    return Interval((min(ends),), (max(ends),))


def _plus(a: Interval, b: Interval) -> Interval:
    channels = max(len(a.low), len(b.low))
    pairs = zip(a.over(channels), b.over(channels), strict=True)
    return interval([(p[0] + q[0], p[1] + q[1]) for p, q in pairs])


def _scaled(a: Interval, factor: int) -> Interval:
    pairs = [sorted((low * factor, high * factor)) for low, high in a.over(len(a.low))]
    return interval([(low, high) for low, high in pairs])


def _shifted(a: Interval, by: int) -> Interval:
    return Interval(tuple(v + by for v in a.low), tuple(v + by for v in a.high))


def _counted(a: Interval, least: int, most: int) -> Interval:
    """The interval of a sum of `least` to `most` terms, each in `a`."""
    pairs = [
        (min(least * low, most * low), max(least * high, most * high))
        for low, high in a.over(len(a.low))
    ]
    return interval(pairs)


def _matmul(graph: Graph, node: Node, ins: list[Interval]) -> Interval:
    a = _shifted(ins[0].hull, -node.attributes["a_zero"])
    b = _shifted(ins[1].hull, -node.attributes["b_zero"])
    return _scaled(_times(a, b), graph.values[node.inputs[0]].shape[-1])


def _affine(graph: Graph, node: Node, ins: list[Interval]) -> Interval:
    m, b = (graph.constants.get(name) for name in node.inputs[1:])
    if m is None or b is None:
        return _plus(_times(ins[0].hull, ins[1].hull), ins[2].hull)
    low, high = _ends(ins[0].over(len(m)))
    return _sums(m[:, None], b, low[:, None], high[:, None])


def _per_channel(graph: Graph, node: Node, ins: list[Interval]) -> list[list[tuple[int, int]]]:
    """The (low, high) lists of inputs broadcast along the last axis of the output."""
    shape = graph.values[node.output].shape
    channels = shape[-1] if shape and any(len(i.low) > 1 for i in ins) else 1
    return [i.over(channels) for i in ins]


def _add(graph: Graph, node: Node, ins: list[Interval]) -> Interval:
    total = Interval((node.attributes["offset"],) * 1, (node.attributes["offset"],) * 1)
    for pairs, factor in zip(
        _per_channel(graph, node, ins), node.attributes["factors"], strict=True
    ):
        total = _plus(total, _scaled(interval(pairs), factor))
    return total


def _multiply(graph: Graph, node: Node, ins: list[Interval]) -> Interval:
    a = _shifted(ins[0].hull, -node.attributes["a_zero"])
    return _times(a, _shifted(ins[1].hull, -node.attributes["b_zero"]))


def _requantize(graph: Graph, node: Node, ins: list[Interval]) -> Interval:
    a = node.attributes
    channels = max(len(a["ratios"]), len(ins[0].low))
    ratios = a["ratios"] if len(a["ratios"]) == channels else a["ratios"] * channels
    pairs = []
    for ratio, ends in zip(ratios, ins[0].over(channels), strict=True):
        low, high = (requantized(end, ratio, a["zero"], a["low"], a["high"]) for end in ends)
        pairs.append((low, high))
    return interval(pairs)


def _root(graph: Graph, node: Node, ins: list[Interval]) -> Interval:
    """The roots of the ends; RangeError where four times the greatest, times p, leaves 63 bits."""
    a, most = node.attributes, ins[0].hull.high[0]
    if 4 * most * a["p"] >= LARGEST_RADICAND:
        raise RangeError(
            f"node {node.name!r} ({node.op}): expected 4 * x * p below 2**63, found x up to {most} "
            f"and p = {a['p']}; quantize with scales nearer to one another"
        )

    def code(x: int) -> int:
        found = nearest_root(Fraction(x * a["p"], a["q"])) + a["zero"]
        return min(max(found, a["low"]), a["high"])

    return interval([(code(low), code(high)) for low, high in ins[0].over(len(ins[0].low))])


def _table(graph: Graph, node: Node, ins: list[Interval]) -> Interval:
    t = graph.constants.get(node.inputs[1])
    if t is None:
        return ins[1].hull
    offset = limits(graph.values[node.inputs[0]].dtype)[0]
    rows = t if t.ndim == 2 else [t] * len(ins[0].low)
    pairs = []
    for row, (low, high) in zip(rows, ins[0].over(len(rows)), strict=True):
        reached = row[low - offset : high - offset + 1]
        pairs.append((int(reached.min()), int(reached.max())))
    return interval(pairs)


def _clip(graph: Graph, node: Node, ins: list[Interval]) -> Interval:
    least, most = node.attributes["low"], node.attributes["high"]
    return interval(
        [
            (min(max(a, least), most), min(max(b, least), most))
            for a, b in ins[0].over(len(ins[0].low))
        ]
    )


def _to_codes(graph: Graph, node: Node, ins: list[Interval]) -> Interval:
    return Interval((node.attributes["low"],), (node.attributes["high"],))


def _normalize(graph: Graph, node: Node, ins: list[Interval]) -> Interval:
    """The bounds of saturation, where docs/spec/graph.md 3.1 holds m and b within its own."""
    for what, found, most in zip("mb", ins[1:], (LARGEST_FACTOR, LARGEST_TERM - 1), strict=True):
        reach = max(abs(found.hull.low[0]), abs(found.hull.high[0]))
        if reach > most:
            raise RangeError(
                f"node {node.name!r} ({node.op}): expected |{what}| of at most {most}, "
                f"found {reach}"
            )
    return _to_codes(graph, node, ins)


def _sum_pool(graph: Graph, node: Node, ins: list[Interval]) -> Interval:
    size = graph.values[node.inputs[0]].shape[1:3]
    source = _shifted(ins[0], -node.attributes["zero"])
    if node.attributes["balance"]:
        return _scaled(source, balance_factors((size[0], size[1]), node.attributes)[1])
    counts = window_counts((size[0], size[1]), node.attributes)
    return _counted(source, int(counts.min()), int(counts.max()))


def _reduce_sum(graph: Graph, node: Node, ins: list[Interval]) -> Interval:
    shape = graph.values[node.inputs[0]].shape
    count = int(np.prod([shape[axis] for axis in node.attributes["axes"]]))
    source = _shifted(ins[0], -node.attributes["zero"])
    return _scaled(_reduced(shape, node, source), count)


def _reduced(shape: tuple[int, ...], node: Node, source: Interval) -> Interval:
    kept = len(shape) - 1 not in node.attributes["axes"]
    return source if kept else source.hull


def _reduce(graph: Graph, node: Node, ins: list[Interval]) -> Interval:
    return _reduced(graph.values[node.inputs[0]].shape, node, ins[0])


def _pair(function: Callable[[int, int], int]) -> Rule:
    def rule(graph: Graph, node: Node, ins: list[Interval]) -> Interval:
        a, b = _per_channel(graph, node, ins)
        return interval(
            [(function(p[0], q[0]), function(p[1], q[1])) for p, q in zip(a, b, strict=True)]
        )

    return rule


def _top_k(graph: Graph, node: Node, ins: list[Interval]) -> Interval:
    last = len(graph.values[node.inputs[0]].shape) - 1
    return ins[0].hull if node.attributes["axis"] == last else ins[0]


def _resample(graph: Graph, node: Node, ins: list[Interval]) -> Interval:
    """The sums of positive and of negative weights of the outputs, times the ends of x."""
    tables = [graph.constants.get(name) for name in node.inputs[1:]]
    if any(table is None for table in tables):
        raise RangeError(f"node {node.name!r} ({node.op}): expected constant places and weights")
    rows, w, columns, v = (np.asarray(table) for table in tables)
    size = graph.values[node.inputs[0]].shape[1:3]
    try:
        for places, n in zip((rows, columns), size, strict=True):
            check_places(places, n)
    except ValueError as error:
        raise RangeError(f"node {node.name!r} ({node.op}): {error}") from None
    (up, down), (right, left) = (_signed(weights.astype(object)) for weights in (w, v))
    plus = np.multiply.outer(up, right) + np.multiply.outer(down, left)
    minus = np.multiply.outer(up, left) + np.multiply.outer(down, right)
    pairs = _shifted(ins[0], -node.attributes["zero"]).over(len(ins[0].low))
    return interval(
        [(int((plus * a - minus * b).min()), int((plus * b - minus * a).max())) for a, b in pairs]
    )


def _signed(weights: Any) -> tuple[Any, Any]:
    """The sums of the positive and of the negative weights of every row, as magnitudes; those of
    equal rows once."""
    sums = np.maximum(weights, 0).sum(1), np.maximum(-weights, 0).sum(1)
    plus, minus = zip(*dict.fromkeys(zip(*sums, strict=True)), strict=True)
    return np.array(plus, object), np.array(minus, object)


def _argmax(graph: Graph, node: Node, ins: list[Interval]) -> Interval:
    size = graph.values[node.inputs[0]].shape[node.attributes["axis"]]
    return Interval((0,), (size - 1,))


def _trees(graph: Graph, node: Node, ins: list[Interval]) -> Interval:
    """Tree by tree the least and the greatest weight that it can add to a sum."""
    tables = [graph.constants.get(name) for name in node.inputs[1:]]
    if any(table is None for table in tables):
        raise RangeError(f"node {node.name!r} ({node.op}): expected constant trees")
    trees, targets = ensemble_of([None, *tables]), node.attributes["targets"]
    try:
        trees.check(graph.values[node.inputs[0]].shape[1], targets)
    except ValueError as error:
        raise RangeError(f"node {node.name!r} ({node.op}): {error}") from None
    return interval(list(zip(*trees.ends(targets), strict=True)))


def _moved(graph: Graph, node: Node, ins: list[Interval]) -> Interval:
    """Data movement: per channel where the last axis stays what it was, else the hull."""
    shape, out = graph.values[node.inputs[0]].shape, graph.values[node.output].shape
    source, last, a = ins[0], len(shape) - 1, node.attributes
    kept = keeps_channels(node.op, a, shape, out)
    if len(source.low) == 1 and node.op not in ("concat", "pad"):
        return source
    if node.op == "concat":
        if a["axis"] == last:
            sizes = [graph.values[name].shape[-1] for name in node.inputs]
            return interval([p for i, n in zip(ins, sizes, strict=True) for p in i.over(n)])
        return _any_of(ins, out[-1] if out else 1)
    if node.op == "pad":
        return (source if kept else source.hull).including(a["code"])
    pairs = source.over(shape[-1])
    if node.op == "slice":
        return interval(pairs[a["starts"][last] : a["stops"][last] : a["steps"][last]])
    if node.op == "gather" and a["axis"] == last:
        indices = graph.constants.get(node.inputs[1])
        if indices is not None and indices.size:
            return interval([pairs[i] for i in places(indices, len(pairs))])
    return source if kept else source.hull


def _any_of(ins: list[Interval], channels: int) -> Interval:
    """The least interval, channel by channel, that holds all of these."""
    each = zip(*(i.over(channels) for i in ins), strict=True)
    return interval([(min(p[0] for p in ps), max(p[1] for p in ps)) for ps in each])


def _scatter(graph: Graph, node: Node, ins: list[Interval]) -> Interval:
    """The codes that were there, or those that are written in their place."""
    shape = graph.values[node.output].shape
    if node.attributes["axis"] == len(shape) - 1:
        return _any_of([i.hull for i in ins[:2]], 1)
    return _any_of(ins[:2], shape[-1])


_RULES: dict[str, Rule] = {
    **dict.fromkeys(ops_with(Trait.WEIGHTED, integer=True), _products),
    "matmul": _matmul,
    "affine": _affine,
    "add": _add,
    "multiply": _multiply,
    "requantize": _requantize,
    "root": _root,
    "table": _table,
    "softmax": _to_codes,
    "divide": _to_codes,
    "normalize": _normalize,
    "clip": _clip,
    "sum_pool": _sum_pool,
    "reduce_sum": _reduce_sum,
    **dict.fromkeys(("reduce_max", "reduce_min"), _reduce),
    "maximum": _pair(max),
    "minimum": _pair(min),
    "argmax": _argmax,
    "top_k_index": _argmax,
    "top_k": _top_k,
    "resample": _resample,
    "log_softmax": _to_codes,
    "tree_ensemble": _trees,
    "max_pool": lambda graph, node, ins: ins[0],
    **dict.fromkeys(ops_with(Trait.MOVEMENT, integer=True), _moved),
    "scatter": _scatter,
}
