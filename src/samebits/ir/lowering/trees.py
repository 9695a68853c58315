"""Lowering of decision trees: thresholds become codes, weights integers."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np

from samebits.errors import UnsupportedError
from samebits.ir.graph import Array, Node
from samebits.ir.integer.define import CODES, limits
from samebits.ir.lowering.states import (
    Affine,
    Codes,
    ConstantReals,
    LoweringBuilder,
    State,
    States,
    Sum,
    common_unit,
    integers,
)
from samebits.ir.ops import ops_with
from samebits.ir.real.trees import BELOW, EQUAL, MODES, THRESHOLDS, WEIGHTS, ensemble_of
from samebits.ir.traits import Trait


def _rows(e: LoweringBuilder, x: State | None) -> tuple[Affine, str]:
    """The features as codes that grow with what they stand for, [N, F] as stored."""
    fits = isinstance(x, Affine) and isinstance(x.source, Codes) and not x.clipped
    if not (isinstance(x, Affine) and fits) or min(x.gain) <= 0:
        raise UnsupportedError(
            "expected features as quantized codes with positive scales; put a QuantizeLinear and a "
            "DequantizeLinear before the trees"
        )
    if e.dtype(x.codes.name) not in CODES:
        raise UnsupportedError(
            f"expected features of 8- or 16-bit codes, found {e.dtype(x.codes.name)}"
        )
    return x, e.arranged(x.codes, (0, 1))


def _trees(e: LoweringBuilder, node: Node, states: States) -> list[State]:
    """The sums of `tree_ensemble`, in the unit of its weights."""
    x, rows = _rows(e, states[0])
    if not all(isinstance(state, ConstantReals) for state in states[1:]):
        raise UnsupportedError("expected constant trees, found computed ones")
    arrays = [None, *(s.values for s in states[1:] if isinstance(s, ConstantReals))]
    count = e.shape(rows)[1]
    ensemble_of(arrays).check(count, node.attributes["targets"])
    channels = x.over(count) if x.axis != 0 else []
    if not channels:
        raise UnsupportedError("expected one scale for each feature, found one for each row")
    scales = [(gain * x.unit, offset) for gain, offset in channels]
    tables = _coded(arrays, scales, x.zero, limits(e.dtype(rows)))
    unit, weights = _weights(arrays[WEIGHTS])
    names = [e.constant(f"{node.name}.trees", table) for table in (*tables, weights)]
    attributes = {"targets": node.attributes["targets"]}
    total = Sum("tree_ensemble", (rows, *names), attributes, (0, 1), node.name)
    return [Affine(total, gain=(unit,))]


def _weights(array: Any) -> tuple[Fraction, Array]:
    """The largest unit of which all weights are multiples, and the multiples."""
    exact = [Fraction(float(w)) for w in array.flat]
    unit = common_unit(exact)
    return unit, integers([int(w / unit) for w in exact]).reshape(array.shape)


def _coded(
    arrays: list[Any], scales: list[tuple[Fraction, Fraction]], zero: int, ends: tuple[int, int]
) -> list[Array]:
    """The tables of `tree_ensemble` but the weights. A comparison for equality becomes two of its
    branches: at most t, and there at most the code before."""
    trees, thresholds, modes = ensemble_of(arrays), arrays[THRESHOLDS], arrays[MODES]
    lengths = 1 + (modes == EQUAL)
    place = np.concatenate([[0], np.cumsum(lengths)])  # of a branch among the new ones
    added = int(place[-1]) - trees.branches
    leaves = np.arange(trees.branches, trees.branches + len(trees.targets)) + added
    moved = np.concatenate([place[:-1], leaves])
    branches: list[tuple[int, int, int, int]] = []  # feature, threshold, yes, no
    for i in range(trees.branches):
        feature = int(trees.features[i])
        gain, offset = scales[feature]
        code = (Fraction(float(thresholds[i])) - offset) / gain + zero
        yes, no = int(moved[trees.yes[i]]), int(moved[trees.no[i]])
        most, least = math.floor(code), math.ceil(code)
        if modes[i] == EQUAL:
            branches.append((feature, most, len(branches) + 1, no))
            branches.append((feature, least - 1, no, yes if most == least else no))
        else:
            branches.append((feature, least - 1 if modes[i] == BELOW else most, yes, no))
    if not branches:  # leaves alone: a branch that nothing refers to
        branches, moved = [(0, 0, 1, 1)], moved + 1
    low, high = ends
    saturated = [
        (feature, min(max(code, low), high), yes if code >= low else no, no)
        for feature, code, yes, no in branches
    ]
    features, codes, yes_, no_ = (integers(column) for column in zip(*saturated, strict=True))
    tables = (moved[trees.roots], features, codes, yes_, no_, trees.targets)
    return [np.asarray(table, np.int32) for table in tables]


RULES: dict[str, Callable[..., list[State]]] = dict.fromkeys(ops_with(Trait.TALLIES), _trees)
