"""Decision trees of real graphs: TreeEnsemble. docs/spec/graph.md 2.3."""

from __future__ import annotations

import numpy as np

from samebits.ir.ops import Array, Attributes, Type
from samebits.ir.real import define as real
from samebits.ir.real.define import Inputs, define
from samebits.ir.real.functions import total
from samebits.ir.traits import Trait
from samebits.ir.trees import Ensemble

AT_MOST, BELOW, EQUAL = range(3)  # modes: x <= t, x < t, x == t
THRESHOLDS, MODES, WEIGHTS = 3, 4, 8  # positions among the inputs


def ensemble_of(arrays: Inputs) -> Ensemble:
    """The tables of the inputs x, roots, features, thresholds, modes, yes, no, targets, weights."""
    _, roots, features, _, _, yes, no, targets, weights = arrays
    return Ensemble(roots, features, yes, no, targets, weights)


def _infer(values: Inputs, attributes: Attributes) -> list[Type]:
    x, roots, features, thresholds, modes, yes, no, targets, weights = values
    kind = real.check_same_type((x, thresholds, weights), real.FLOATS)
    if len(x.shape) != 2:
        raise ValueError(f"expected rows of features [N, F], found {list(x.shape)}")
    for table in (roots, features, modes, yes, no, targets):
        real.check_type(table, ("int64",), "tables")
    branches = [table.shape for table in (features, thresholds, modes, yes, no)]
    leaves = (*targets.shape, *weights.shape[1:])
    if len(set(branches)) != 1 or not len(branches[0]) == len(roots.shape) == 1:
        raise ValueError(f"expected tables of as many branches, found {branches}")
    if leaves != weights.shape or len(leaves) != 2:
        raise ValueError(f"expected weights of every leaf, found {weights.shape} for {leaves}")
    count = real.integers((attributes["targets"],), "targets", least=max(1, leaves[1]))[0]
    return [(kind, (x.shape[0], count))]


def _meaning(arrays: Inputs, attributes: Attributes) -> list[Array]:
    x, thresholds, modes = arrays[0], arrays[THRESHOLDS], arrays[MODES]
    trees, rows = ensemble_of(arrays), np.arange(len(arrays[0]))[:, None]
    trees.check(x.shape[1], attributes["targets"])

    def holds(at: Array) -> Array:
        value, end, mode = x[rows, trees.features[at]], thresholds[at], modes[at]
        equal, below = value == end, value < end
        found = (below & (mode != EQUAL)) | (equal & (mode != BELOW))
        return np.asarray(found, bool)

    leaves = trees.leaves(len(x), holds)
    return [total(trees.dense(attributes["targets"])[leaves], (1,))[:, 0, :]]


define("TreeEnsemble", 9, real.attributes_of("targets"), _infer, _meaning, Trait.TALLIES)
