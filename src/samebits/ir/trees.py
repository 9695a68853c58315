"""Ensembles of decision trees as tables: their rules, and the walk from roots to leaves.

A reference r below B, the number of branches, is branch r; from B on it is leaf r - B. Branches
come before what they refer to, so that no walk can go in circles.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
MAX_LEVELS = 256  # branches on a way from a root to a leaf
LARGEST_BLOCK = 1 << 20  # numbers of a block of sums, unless LEAST_BLOCK sums have more
LEAST_BLOCK = 16


@dataclass(frozen=True, eq=False)
class Ensemble:
    """roots [R]; features, yes, no [B]; targets [L], weights [L, W]: leaf l adds weights[l, j] to
    the sum targets[l] + j. yes: the reference where the comparison of a branch holds."""

    roots: Array
    features: Array
    yes: Array
    no: Array
    targets: Array
    weights: Array

    @property
    def branches(self) -> int:
        """B."""
        return len(self.features)

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        """R, B, L, W."""
        leaves, width = self.weights.shape
        return len(self.roots), self.branches, leaves, width

    def check(self, features: int, targets: int) -> int:
        """The most branches on a way. ValueError for references, features or targets that there are
        not, for a branch that refers to one not after it, and for more than MAX_LEVELS."""
        _, branches, leaves, width = self.sizes
        nodes = branches + leaves
        _within("roots", self.roots, nodes)
        _within("features", self.features, features)
        _within("targets", self.targets, targets - width + 1)
        for name, references in (("yes", self.yes), ("no", self.no)):
            _within(name, references, nodes)
            back = references <= np.arange(branches)
            if back.any():
                at = int(np.argmax(back))
                raise ValueError(
                    f"expected branches that refer to later ones, found {at} to {references[at]}"
                )
        level, reached = 0, np.unique(self.roots)
        while (reached := reached[reached < branches]).size:
            level += 1
            if level > MAX_LEVELS:
                raise ValueError(f"expected at most {MAX_LEVELS} branches on a way, found more")
            reached = np.unique(np.concatenate([self.yes[reached], self.no[reached]]))
        return level

    def leaves(self, rows: int, holds: Callable[[Array], Array]) -> Array:
        """The leaf that each of `rows` rows reaches in each tree, [rows, R]. holds: whether the
        comparisons of branches [rows, R] hold for their rows."""
        at = np.broadcast_to(self.roots, (rows, len(self.roots))).astype(np.int64)
        while (inside := at < self.branches).any():
            branch = np.where(inside, at, 0)
            at = np.where(inside, np.where(holds(branch), self.yes[branch], self.no[branch]), at)
        return at - self.branches

    def closed(self, *columns: Array) -> tuple[Array, ...]:
        """Columns of branches [B] with one 0 for each leaf behind them, then yes and no, of which
        leaves refer to themselves: a walk of any more rounds stays at its leaf."""
        own = np.arange(len(self.targets)) + self.branches
        ends = [np.zeros(len(own), np.int64)] * len(columns) + [own, own]
        columns = (*columns, self.yes, self.no)
        return tuple(np.append(a, end) for a, end in zip(columns, ends, strict=True))

    def dense(self, targets: int, first: int = 0) -> Array:
        """The weights of leaves for the sums from `first` to `targets`, [L, targets - first]."""
        leaves, width = self.weights.shape
        out = np.zeros((leaves, targets - first), self.weights.dtype)
        places = self.targets[:, None] + np.arange(width) - first
        leaf, place = np.nonzero((places >= 0) & (places < targets - first))
        out[leaf, places[leaf, place]] = self.weights[leaf, place]
        return out

    def blocks(self, targets: int) -> Iterator[Array]:
        """`dense`, some sums at a time [L, K], so that few numbers are in memory at once."""
        step = max(LEAST_BLOCK, LARGEST_BLOCK // sum(self.sizes))
        for first in range(0, targets, step):
            yield self.dense(min(targets, first + step), first)

    def extreme(self, dense: Array, pick: np.ufunc = np.maximum) -> Array:
        """For each tree and sum the largest of its leaves' entries of dense [L, K]: [R, K]; the
        least with np.minimum as pick."""
        found = np.concatenate([np.zeros((self.branches, dense.shape[1]), dense.dtype), dense])
        for branch in range(self.branches - 1, -1, -1):
            found[branch] = pick(found[self.yes[branch]], found[self.no[branch]])
        return np.asarray(found[self.roots])

    def ends(self, targets: int) -> tuple[Array, Array]:
        """The least and the greatest sums, [targets] each, of weights that are integers, as Python
        integers."""
        found: list[list[Array]] = [[], []]
        for dense in self.blocks(targets):
            for sums, pick in zip(found, (np.minimum, np.maximum), strict=True):
                sums.append(self.extreme(dense, pick).astype(object).sum(0))
        return np.concatenate(found[0]), np.concatenate(found[1])


def _within(name: str, numbers: Array, end: int) -> None:
    outside = (numbers < 0) | (numbers >= end)
    if outside.any():
        raise ValueError(f"expected {name} in [0, {end}), found {numbers[outside].flat[0]}")
