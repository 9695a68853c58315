"""Numbers of decision trees: scales for each feature, and the rounding of thresholds and weights.

What trees compare has 16-bit codes and a power of two as the scale: integers and binary fractions
keep their values. Features differ by orders of magnitude, so each feature of an input has a scale
of its own. It is the smallest whose codes reach what calibration has seen, whatever its method, and
beyond every threshold: a number that saturates is still on its side.

Thresholds are rounded to numbers of these codes, as the features are. So a feature that is equal to
a threshold stays equal to it, and a comparison changes only where a feature and a threshold that
differ have the same code: less than one step of the scale apart.

The weights of an ensemble are rounded once to multiples of a power of two, as few as the 24 bits of
binary32 hold: all sums of them, in any order, are exact in binary32 too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from samebits.ir import Graph, Node, Trait, has
from samebits.ir.real.functions import total
from samebits.ir.real.trees import THRESHOLDS, WEIGHTS, ensemble_of
from samebits.numerics import Format, ScaleRule
from samebits.quantization.calibrate import Calibrated, from_range
from samebits.quantization.settings import ACTIVATIONS
from samebits.quantization.weights import WeightCodes, check_constant
from samebits.spec import formats

Array = np.ndarray[Any, Any]

FEATURE = ACTIVATIONS["power-of-two-s16"]
LEAF = Format("leaf-s32", 32, -(1 << 31), (1 << 31) - 1, ScaleRule.SYMMETRIC)
SUM_BITS = 24  # of the largest sum of weights
BEYOND = 1 + 2.0**-14  # thresholds are not the last code


def thresholds_on(graph: Graph, name: str) -> tuple[Array, Array]:
    """The features and the thresholds, a little enlarged, of all branches that compare a value."""
    features, numbers = [np.zeros(0, np.int64)], [np.zeros(0)]
    for node in graph.nodes:
        if has(node.op, Trait.TALLIES) and node.inputs[0] == name:
            _, *arrays = (graph.constants.get(i) for i in node.inputs)
            features.append(ensemble_of([None, *arrays]).features)
            numbers.append(_array(graph, node, THRESHOLDS).astype(np.float64) * BEYOND)
    return np.concatenate(features), np.concatenate(numbers)


def feature_numbers(graph: Graph, name: str, low: Array, high: Array) -> tuple[Calibrated, ...]:
    """The scale of each feature of an input. low, high: [F], seen in calibration."""
    low, high = low.astype(np.float64), high.astype(np.float64)
    features, thresholds = thresholds_on(graph, name)
    np.minimum.at(low, features, thresholds)
    np.maximum.at(high, features, thresholds)
    return tuple(
        from_range(Fraction(float(a)), Fraction(float(b)), FEATURE, f"{name}[{i}]")
        for i, (a, b) in enumerate(zip(low, high, strict=True))
    )


def feature_ranges(
    ranges: dict[str, tuple[Array, Array]], names: Iterable[str], sample: Mapping[str, Array]
) -> None:
    """Widen the ranges of the features of these inputs by a sample [N, F] of each."""
    for name in names:
        low, high = sample[name].min(0), sample[name].max(0)
        if name in ranges:
            low, high = np.minimum(low, ranges[name][0]), np.maximum(high, ranges[name][1])
        ranges[name] = low, high


def rounded_thresholds(graph: Graph, node: Node, scales: Sequence[Fraction]) -> Array:
    """The thresholds, each rounded to a multiple of the scale of its feature, ties to even; a power
    of two, so that binary32 holds it. scales: one for each feature, or one for all."""
    _, *arrays = (graph.constants.get(i) for i in node.inputs)
    steps = np.array([float(scale) for scale in scales])
    step = steps[ensemble_of([None, *arrays]).features if len(steps) > 1 else 0]
    thresholds = _array(graph, node, THRESHOLDS).astype(np.float64)
    return np.asarray(np.rint(thresholds / step) * step).astype(np.float32)


def rounded_weights(graph: Graph, node: Node) -> tuple[Array, WeightCodes]:
    """The weights of the leaves as binary32 multiples of a power of two, and as codes of it.

    The unit is the smallest in which the largest weights of all trees together, target by target,
    are below 2**24. Raises NonFiniteError for NaN and infinity.
    """
    weights = _array(graph, node, WEIGHTS)
    check_constant(weights, node.inputs[WEIGHTS])
    _, *arrays = (graph.constants.get(i) for i in node.inputs)
    trees = ensemble_of([None, *arrays])
    sums = [
        total(trees.extreme(np.abs(dense).astype(np.float64)), (0,)).max()
        for dense in trees.blocks(node.attributes["targets"])
    ]
    largest = Fraction(float(max(sums) * (1 + 2.0**-30)))  # whatever was rounded
    exponent = formats.smallest_exponent(largest, (1 << SUM_BITS) - len(trees.roots), -126, None)
    unit = formats.power(exponent)
    codes = np.rint(weights.astype(np.float64) / float(unit)).astype(np.int32)
    found = WeightCodes(codes, LEAF, (unit,), (0,), None)
    return found.reals().astype(np.float32), found


def _array(graph: Graph, node: Node, index: int) -> Array:
    return graph.constants[node.inputs[index]]
