"""Seeded random ensembles of decision trees, as the tables of the integer operator."""

from __future__ import annotations

from typing import Any

import numpy as np


def random_trees(
    rng: np.random.Generator,
    features: int,
    targets: int,
    ends: tuple[int, int],
    trees: int = 5,
    branches: int = 20,
    width: int = 0,
    size: int = 1 << 20,
) -> list[Any]:
    """roots, features, thresholds, yes, no, targets, weights: trees that share branches and leaves,
    some of them leaves alone, some branches with one way out. Thresholds from ends[0] to ends[1];
    weights up to `size`."""
    width = width or targets
    leaves = branches + 1
    after = [
        rng.integers(
            np.arange(branches) + 1, np.minimum(np.arange(branches) + 6, branches + leaves)
        )
        for _ in range(2)
    ]
    jumps = rng.integers(branches, branches + leaves, (2, branches))
    links = np.where(rng.random((2, branches)) < 0.3, jumps, after)
    roots = rng.integers(0, branches + leaves, trees)
    roots[0] = 0
    low, high = ends
    thresholds = rng.integers(low, high, branches, endpoint=True)
    thresholds[: branches // 4] = rng.choice([low, high], branches // 4)
    tables = [roots, rng.integers(0, features, branches), thresholds, *links]
    tables.append(rng.integers(0, targets - width + 1, leaves))
    tables.append(rng.integers(-size, size, (leaves, width), endpoint=True))
    return [np.asarray(table, np.int32) for table in tables]
