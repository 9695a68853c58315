"""Ensembles of decision trees as tables, against loops over leaves."""

from __future__ import annotations

import numpy as np
import pytest

from random_trees import random_trees
from samebits.ir import trees
from samebits.ir.trees import Ensemble


def ensemble(seed, targets, width=0):
    rng = np.random.default_rng(seed)
    roots, features, _, yes, no, starts, weights = random_trees(
        rng, 4, targets, (0, 9), 5, 12, width
    )
    return Ensemble(roots, features, yes, no, starts, weights)


def weights_of(made, targets):
    """The weight of each leaf for each sum, number by number."""
    out = [[0] * targets for _ in made.targets]
    for row, start, weights in zip(out, made.targets, made.weights, strict=True):
        for j, weight in enumerate(weights):
            row[int(start) + j] = int(weight)
    return out


def leaves_of(made, at):
    if at >= made.branches:
        return {at - made.branches}
    return leaves_of(made, int(made.yes[at])) | leaves_of(made, int(made.no[at]))


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize(("targets", "width"), [(1, 1), (5, 0), (40, 3), (40, 1)])
def test_sums_a_block_at_a_time(seed, targets, width, monkeypatch):
    monkeypatch.setattr(trees, "LARGEST_BLOCK", 1)
    monkeypatch.setattr(trees, "LEAST_BLOCK", 7)
    made = ensemble(seed, targets, width)
    wanted = weights_of(made, targets)
    assert made.dense(targets).tolist() == wanted
    blocks = list(made.blocks(targets))
    assert [b.shape[1] for b in blocks] == [7] * (targets // 7) + [targets % 7] * (targets % 7 > 0)
    assert np.concatenate(blocks, 1).tolist() == wanted
    reached = [leaves_of(made, int(root)) for root in made.roots]
    for found, pick in zip(made.ends(targets), (min, max), strict=True):
        assert found.tolist() == [
            sum(pick(wanted[leaf][k] for leaf in leaves) for leaves in reached)
            for k in range(targets)
        ]


def test_the_least_int64_has_no_negation():
    table = np.zeros(1, np.int32)
    least = np.iinfo(np.int64).min
    made = Ensemble(np.array([1, 1]), table, table + 1, table + 1, table, np.array([[least]]))
    assert [end.tolist() for end in made.ends(1)] == [[2 * least]] * 2


def test_few_numbers_at_once():
    """Two leaves with sums of their own far apart: blocks stay small."""
    zero = np.zeros(2, np.int64)
    made = Ensemble(
        zero[:1], zero[:1], zero[:1] + 1, zero[:1] + 2, np.array([0, 999_999]), np.ones((2, 1))
    )
    blocks = list(made.blocks(1_000_000))
    assert max(block.size for block in blocks) <= trees.LARGEST_BLOCK
    assert sum(block.sum() for block in blocks) == 2


def test_leaves_that_refer_to_themselves():
    made = ensemble(1, 3)
    thresholds, yes, no = made.closed(np.arange(made.branches) + 5)
    leaves = len(made.targets)
    assert thresholds.tolist() == [*range(5, 5 + made.branches)] + [0] * leaves
    own = [*range(made.branches, made.branches + leaves)]
    assert yes.tolist() == [*made.yes.tolist(), *own]
    assert no.tolist() == [*made.no.tolist(), *own]
