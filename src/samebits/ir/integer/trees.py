"""The integer operator of decision trees. docs/spec/graph.md section 3."""

from __future__ import annotations

import numpy as np

from samebits.ir.integer.define import (
    ACCUMULATORS,
    Arrays,
    Values,
    accumulator,
    expect,
    expect_codes,
    magnitude,
    narrowed,
    register_integer,
    wide,
)
from samebits.ir.ops import REQUIRED, Array, Attributes, Type
from samebits.ir.traits import Trait
from samebits.ir.trees import Ensemble

THRESHOLDS = 3  # position among the inputs


def ensemble_of(arrays: Arrays) -> Ensemble:
    """The tables of the inputs x, roots, features, thresholds, yes, no, targets, weights."""
    _, roots, features, _, yes, no, targets, weights = arrays
    return Ensemble(roots, features, yes, no, targets, weights)


def _infer(values: Values, a: Attributes) -> list[Type]:
    x, *tables, weights = values
    expect_codes(x)
    expect(len(x.shape) == 2, "rows of features [N, F]", x)
    for name, table in zip(
        ("roots", "features", "thresholds", "yes", "no", "targets"), tables, strict=True
    ):
        fits = len(table.shape) == 1 and table.size > 0 and table.dtype == "int32"
        expect(fits, f"int32 numbers of {name}", table)
    branches = {table.shape for table in tables[1:5]}
    expect(len(branches) == 1, "as many features, thresholds, yes and no", tables[1:5])
    fits = len(weights.shape) == 2 and weights.shape[0] == tables[5].size and weights.size > 0
    expect(fits and weights.dtype in ACCUMULATORS, f"int32 [{tables[5].size}, W]", weights)
    expect(weights.shape[1] <= a["targets"], f"at least {weights.shape[1]} targets", a["targets"])
    return [(accumulator(a), (x.shape[0], a["targets"]))]


def _meaning(arrays: Arrays, a: Attributes) -> list[Array]:
    x, thresholds = arrays[0], arrays[THRESHOLDS]
    trees = ensemble_of(arrays)
    trees.check(x.shape[1], a["targets"])
    rows = np.arange(len(x))[:, None]
    leaves = trees.leaves(len(x), lambda at: x[rows, trees.features[at]] <= thresholds[at])
    dense = wide(trees.dense(a["targets"]), magnitude(trees.weights) * len(trees.roots))
    sums = np.asarray(dense[leaves].sum(1))
    return [narrowed(sums, a["dtype"])]


_TARGETS = {"targets": REQUIRED, "dtype": "int32"}
register_integer("tree_ensemble", (8, 8), _TARGETS, _infer, _meaning, Trait.ACCUMULATES)
