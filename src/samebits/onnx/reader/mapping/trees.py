"""Ensembles of decision trees of ai.onnx.ml, which come from untrusted files, as TreeEnsemble.

Branches and leaves are numbered as a walk from the roots meets them, `yes` before `no`, so that the
same trees are the same tables however a file lists them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from samebits import progress
from samebits.errors import InputError, UnsupportedError
from samebits.ir.real.trees import AT_MOST, BELOW, EQUAL
from samebits.ir.trees import MAX_LEVELS
from samebits.onnx.reader.mapping.classical import (
    class_labels,
    features_of,
    label_of,
    transformed,
)
from samebits.onnx.reader.node import CLASSICAL, OnnxNode, Result, onnx_op

MAX_TREE_NODES = 2**22
LEAF = -1
# Mode of a branch, and whether its two ways change places.
MODES: dict[str, tuple[int, bool]] = {
    "BRANCH_LEQ": (AT_MOST, False),
    "BRANCH_GT": (AT_MOST, True),
    "BRANCH_LT": (BELOW, False),
    "BRANCH_GTE": (BELOW, True),
    "BRANCH_EQ": (EQUAL, False),
    "BRANCH_NEQ": (EQUAL, True),
}
# As TreeEnsemble of version 5 numbers them.
NUMBERED = ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ")

Weights = list[tuple[int, float]]  # target, weight


@dataclass
class _Nodes:
    """The nodes of a file. modes: LEAF, or one of MODES; yes, no: places of nodes, in any order."""

    modes: list[int]
    features: Sequence[int]
    thresholds: Sequence[float]
    yes: list[int]
    no: list[int]
    roots: list[int]
    leaves: dict[int, Weights] = field(default_factory=dict)

    def count(self) -> int:
        """The number of trees; InputError where there are none."""
        if not self.roots:
            raise InputError("expected at least one tree, found none")
        return len(self.roots)

    def check(self, features: int) -> None:
        """Every node has one parent, or is a root, and a walk from the roots meets all of them:
        they are trees, then."""
        count = len(self.modes)
        parents = np.zeros(count, np.int64)
        for place, mode in enumerate(self.modes):
            if mode == LEAF:
                continue
            if not 0 <= self.features[place] < features:
                raise InputError(
                    f"expected features in [0, {features}), found {self.features[place]}"
                )
            if math.isnan(self.thresholds[place]):
                raise InputError("expected numbers as thresholds, found NaN")
            parents[self.yes[place]] += 1
            parents[self.no[place]] += 1
        if (parents > 1).any():
            raise InputError("expected one parent of each node of a tree, found more")
        if parents[self.roots].any() or len(set(self.roots)) < len(self.roots):
            raise InputError("expected roots without a parent, found some with")
        waiting, met = list(self.roots), 0
        while waiting:
            place, met = waiting.pop(), met + 1
            if self.modes[place] != LEAF:
                waiting += [self.yes[place], self.no[place]]
        if met < count:
            raise InputError(f"expected a way to each of {count} nodes from a root, found {met}")


def _decided(nodes: _Nodes, place: int) -> int | None:
    """The way on from a branch that no finite number leaves by the other; None for the rest."""
    mode = nodes.modes[place]
    if mode == LEAF or not math.isinf(nodes.thresholds[place]):
        return None
    return nodes.yes[place] if nodes.thresholds[place] > 0 and mode != EQUAL else nodes.no[place]


def _tables(
    node: OnnxNode, nodes: _Nodes, base: list[Weights], features: int, targets: int
) -> list[Any]:
    """The tables of TreeEnsemble, x left out. base: leaves that every row reaches."""
    nodes.check(features)
    branches: list[tuple[int, float, int]] = []  # feature, threshold, mode
    links: list[list[int]] = []
    leaves: list[Weights] = []
    roots = [0] * len(nodes.roots)
    # Leaves get references below 0 until the number of branches is known.
    waiting = [(root, 0, roots, place) for place, root in reversed([*enumerate(nodes.roots)])]
    while waiting:
        place, level, target, index = waiting.pop()
        while (way := _decided(nodes, place)) is not None:
            place = way
        if nodes.modes[place] == LEAF:
            leaves.append(nodes.leaves.get(place, []))
            target[index] = -len(leaves)
            continue
        if level >= MAX_LEVELS:
            raise UnsupportedError(f"expected at most {MAX_LEVELS} levels of a tree, found more")
        target[index] = len(branches)
        branches.append((nodes.features[place], nodes.thresholds[place], nodes.modes[place]))
        ways = [0, 0]
        links.append(ways)
        waiting.append((nodes.no[place], level + 1, ways, 1))
        waiting.append((nodes.yes[place], level + 1, ways, 0))
    for extra in base:
        leaves.append(extra)
        roots.append(-len(leaves))
    count = len(branches)

    def resolved(references: Sequence[int]) -> Any:
        return np.array([count - 1 - r if r < 0 else r for r in references], np.int64)

    columns = [[row[i] for row in branches] for i in range(3)]
    return [
        resolved(roots),
        np.array(columns[0], np.int64),
        np.array(columns[1], np.float32),
        np.array(columns[2], np.int64),
        *(resolved([ways[i] for ways in links]) for i in range(2)),
        *_leaf_tables(node, leaves, count, targets),
    ]


def _leaf_tables(
    node: OnnxNode, leaves: list[Weights], branches: int, count: int
) -> tuple[Any, Any]:
    """The first target of each leaf, and its weights from there on, as many for all leaves. count:
    of targets."""
    spans = [(min(t for t, _ in leaf), max(t for t, _ in leaf)) for leaf in leaves if leaf]
    width = max((last - first + 1 for first, last in spans), default=1)
    most = max((last for _, last in spans), default=0)
    node.builder.allow(sum(map(len, leaves)))
    node.builder.charge((branches + len(leaves)) * count)  # realisations have weights for all sums
    targets = np.zeros(len(leaves), np.int64)
    weights = np.zeros((len(leaves), width), np.float32)
    for place, leaf in enumerate(leaves):
        if leaf:
            targets[place] = max(0, min(min(t for t, _ in leaf), most + 1 - width))
        for target, weight in leaf:
            weights[place, target - targets[place]] = weight
    return targets, weights


def _ensemble(
    node: OnnxNode,
    nodes: _Nodes,
    base: list[Weights],
    targets: int,
    outputs: Sequence[str] = (),
) -> str:
    """The TreeEnsemble of the nodes; the name of its sums. outputs: that name, if it is known."""
    x, features = features_of(node)
    nodes.count()
    tables = map(node.constant, _tables(node, nodes, base, features, targets))
    attributes = {"targets": targets}
    return node.builder.add_all("TreeEnsemble", [x, *tables], attributes, node.hint, outputs)[0]


# --- lists of nodes ---------------------------------------------------------------------------


def _numbers(node: OnnxNode, name: str, finite: bool = True) -> tuple[float, ...]:
    """A list of binary32 numbers, from an attribute of this name or from one `name_as_tensor`."""
    found, array = node.floats(name, finite), node.tensor(f"{name}_as_tensor")
    return found or () if array is None else _binary32(array, name, finite)


def _binary32(array: Any, name: str, finite: bool = True) -> tuple[float, ...]:
    """The numbers of a tensor of floating point, which binary32 has to hold."""
    if array is None or array.ndim != 1 or array.dtype.kind != "f":
        found = "none" if array is None else f"{array.dtype}{list(array.shape)}"
        raise InputError(f"expected a list of real numbers as {name}, found {found}")
    if np.isnan(array).any():
        raise InputError(f"expected numbers of {name}, found NaN")
    with np.errstate(over="ignore"):  # infinite, and another number then
        narrow = array.astype(np.float32)
    if (narrow != array).any():
        raise UnsupportedError(f"expected binary32 numbers of {name}, found others; convert them")
    if finite and not np.isfinite(narrow).all():
        raise InputError(f"expected finite numbers of {name}, found others")
    return tuple(narrow.tolist())


def _same_length(lists: Mapping[str, Sequence[Any]]) -> int:
    lengths = {name: len(values) for name, values in lists.items()}
    if len(set(lengths.values())) != 1:
        found = ", ".join(f"{name} {length}" for name, length in lengths.items())
        raise InputError(f"expected lists of one length, found {found}")
    return next(iter(lengths.values()))


def _note_missing(node: OnnxNode) -> None:
    """The places of missing values and of hit rates change nothing that is computed."""
    if any(node.ints("nodes_missing_value_tracks_true") or ()):
        progress.note(
            f"{node.where}: codes have no missing values (NaN); where they would go is left out"
        )
    node.ignore("nodes_hitrates", "nodes_hitrates_as_tensor")


def _listed(node: OnnxNode, prefix: str, targets: int) -> _Nodes:
    """The nodes of TreeEnsembleClassifier and TreeEnsembleRegressor: lists with identifiers.
    prefix: of the lists of leaves. Raises InputError for identifiers that there are not."""
    keys = ("treeids", "nodeids", "featureids", "truenodeids", "falsenodeids")
    trees, own, features, yes, no = (node.ints(f"nodes_{key}") or () for key in keys)
    modes, values = node.strings("nodes_modes"), _numbers(node, "nodes_values", finite=False)
    lists = dict(zip(keys, (trees, own, features, yes, no), strict=True))
    count = _same_length({**lists, "modes": modes, "values": values})
    if count > MAX_TREE_NODES:
        raise UnsupportedError(f"expected at most {MAX_TREE_NODES} nodes of trees, found {count}")
    _note_missing(node)
    places = {key: place for place, key in enumerate(zip(trees, own, strict=True))}
    if len(places) < count:
        raise InputError("expected identifiers of nodes that differ, found some twice")

    def at(tree: int, name: int) -> int:
        if (tree, name) not in places:
            raise InputError(f"expected a node {name} of tree {tree}, found none")
        return places[tree, name]

    found = _Nodes([], features, values, [0] * count, [0] * count, [])
    children = set()
    for place in range(count):
        if modes[place] == "LEAF":
            found.modes.append(LEAF)
            continue
        mode, swapped = _mode(modes[place])
        found.modes.append(mode)
        ways = [at(trees[place], name) for name in (yes[place], no[place])]
        found.yes[place], found.no[place] = ways[::-1] if swapped else ways
        children.update(ways)
    names = {tree: index for index, tree in enumerate(dict.fromkeys(trees))}
    found.roots = [place for place in range(count) if place not in children]
    found.roots.sort(key=lambda root: names[trees[root]])
    if [trees[root] for root in found.roots] != list(names):
        raise InputError(
            f"expected one root of each of {len(names)} trees, found {len(found.roots)} roots"
        )
    ids, of, tree = (node.ints(f"{prefix}_{key}") or () for key in ("ids", "nodeids", "treeids"))
    weights = _numbers(node, f"{prefix}_weights")
    _same_length({"ids": ids, "nodeids": of, "treeids": tree, "weights": weights})
    seen = set()
    for target, leaf, owner, weight in zip(ids, of, tree, weights, strict=True):
        place = at(owner, leaf)
        if found.modes[place] != LEAF or not 0 <= target < targets or (place, target) in seen:
            raise InputError(
                f"expected one weight of a leaf for each target below {targets}, found target "
                f"{target} of node {leaf} of tree {owner}"
            )
        seen.add((place, target))
        found.leaves.setdefault(place, []).append((target, weight))
    return found


def _mode(name: str) -> tuple[int, bool]:
    if name not in MODES:
        raise UnsupportedError(f"expected modes {', '.join((*MODES, 'LEAF'))}, found {name!r:.40}")
    return MODES[name]


def _base(node: OnnxNode, targets: int) -> list[Weights]:
    """Base values as leaves: one for each target that has one, so that leaves stay narrow."""
    base = _numbers(node, "base_values")
    if len(base) not in (0, targets):
        raise UnsupportedError(f"expected {targets} base values, found {len(base)}")
    return [[(target, value)] for target, value in enumerate(base) if value]


def _scaled(nodes: _Nodes) -> None:
    """Weights of a mean over trees, rounded to binary32."""
    trees = nodes.count()
    for place, leaf in nodes.leaves.items():
        nodes.leaves[place] = [
            (target, float(np.float32(weight / trees))) for target, weight in leaf
        ]


# --- operators --------------------------------------------------------------------------------


@onnx_op("TreeEnsembleRegressor", domain=CLASSICAL)
def _regressor(node: OnnxNode) -> Result:
    targets = _targets(node, node.int_("n_targets", 1))
    nodes = _listed(node, "target", targets)
    if node.string("aggregate_function", "SUM", ("SUM", "AVERAGE")) == "AVERAGE":
        _scaled(nodes)
    plain = node.string("post_transform", "NONE") == "NONE"
    scores = _ensemble(node, nodes, _base(node, targets), targets, node.outputs if plain else ())
    return transformed(node, scores)


@onnx_op("TreeEnsembleClassifier", domain=CLASSICAL)
def _classifier(node: OnnxNode) -> Result:
    """The label and the scores. Of two classes a file may give the weights of one."""
    classes = class_labels(node, "classlabels_int64s")
    nodes = _listed(node, "class", classes)
    named = {target for leaf in nodes.leaves.values() for target, _ in leaf}
    alone = classes == 2 and len(named) == 1
    bases = _of_two(node, nodes, named) if alone else _base(node, classes)
    scores = _ensemble(node, nodes, bases, classes)
    return [label_of(node, scores), transformed(node, scores)]


def _of_two(node: OnnxNode, nodes: _Nodes, named: set[int]) -> list[Weights]:
    """Give the leaves the weights of both classes, from those of one; the base values as leaves.

    As in onnxruntime the sums are probabilities p of the second class, with 1 - p for the first, or
    scores s, with -s for the first, where a weight is negative. A LOGISTIC takes all for scores.
    UnsupportedError for what onnxruntime computes in other ways than these."""
    base, kind = _numbers(node, "base_values"), node.string("post_transform", "NONE")
    if named != {0} or len(base) > 1 or kind == "SOFTMAX":
        raise UnsupportedError(
            "expected, of two classes with the weights of one, these for class 0, at most one base "
            f"value and no SOFTMAX, found them for class {max(named)}, {len(base)} base values and "
            f"{kind:.40}; export the weights of both classes"
        )
    shares = kind != "LOGISTIC" and all(w >= 0 for leaf in nodes.leaves.values() for _, w in leaf)
    for place, leaf in nodes.leaves.items():
        nodes.leaves[place] = [(k, s * w) for _, w in leaf for k, s in ((0, -1.0), (1, 1.0))]
    start = base[0] if base else 0.0
    extra = [(0, float(shares) - start), (1, start)]
    return [extra] if any(weight for _, weight in extra) else []


def _targets(node: OnnxNode, count: int) -> int:
    if not 1 <= count <= MAX_TREE_NODES:
        raise InputError(f"expected from 1 to {MAX_TREE_NODES} targets, found {count}")
    return count


@onnx_op("TreeEnsemble", domain=CLASSICAL)
def _tree_ensemble(node: OnnxNode) -> Result:
    """Branches and leaves apart, each in tensors and lists of their own, since version 5. Of the
    numbers of transformations the standard says that 1 is SOFTMAX; onnxruntime 1.31 takes it for
    LOGISTIC, and 2 for SOFTMAX."""
    targets = _targets(node, node.int_("n_targets", 1))
    codes, splits = node.tensor("nodes_modes"), node.tensor("nodes_splits")
    if codes is None or codes.ndim != 1 or codes.dtype.kind not in "iu":
        given = "none" if codes is None else f"{codes.dtype}{list(codes.shape)}"
        raise InputError(f"expected a list of integers as nodes_modes, found {given}")
    for mode in codes.tolist():  # of sets, whose splits are no numbers
        if not 0 <= mode < len(NUMBERED):
            raise UnsupportedError(f"expected modes from 0 to {len(NUMBERED) - 1}, found {mode}")
    keys = ("featureids", "truenodeids", "falsenodeids", "trueleafs", "falseleafs")
    features, yes, no, yes_leaf, no_leaf = (node.ints(f"nodes_{key}") or () for key in keys)
    modes, ends = codes.tolist(), _binary32(splits, "nodes_splits", finite=False)
    lists = dict(zip(keys, (features, yes, no, yes_leaf, no_leaf), strict=True))
    count = _same_length({**lists, "modes": modes, "splits": ends})
    weights = _binary32(node.tensor("leaf_weights"), "leaf_weights")
    of = node.ints("leaf_targetids") or ()
    if 3 * count > MAX_TREE_NODES:
        raise UnsupportedError(f"expected at most {MAX_TREE_NODES} nodes of trees, found {count}")
    if not all(0 <= target < targets for target in of):
        raise InputError(f"expected targets of leaves below {targets}, found others")
    own = {"targetids": of, "weights": weights}
    limits = (count, _same_length(own))  # of references, to branches and to leaves
    _note_missing(node)
    found = _Nodes([], list(features), list(ends), [], [], [])

    def way(reference: int, leaf: int) -> int:
        """A branch, or a leaf as a node of its own: a file may refer to one twice."""
        if leaf not in (0, 1) or not 0 <= reference < limits[leaf]:
            raise InputError(f"expected a reference below {limits[leaf != 0]}, found {reference}")
        if leaf:
            found.leaves[count + len(found.leaves)] = [(of[reference], weights[reference])]
            return count + len(found.leaves) - 1
        return reference

    for place, mode in enumerate(modes):
        kind, swapped = MODES[NUMBERED[mode]]
        ways = [way(yes[place], yes_leaf[place]), way(no[place], no_leaf[place])]
        found.modes.append(kind)
        found.yes.append(ways[swapped])
        found.no.append(ways[not swapped])
    found.roots = [way(root, 0) for root in node.ints("tree_roots") or ()]
    found.modes += [LEAF] * len(found.leaves)
    aggregate = node.int_("aggregate_function", 1)
    if aggregate not in (0, 1):
        raise UnsupportedError(
            f"expected aggregate_function 0 or 1 (AVERAGE, SUM), found {aggregate}"
        )
    if aggregate == 0:
        _scaled(found)
    post = node.int_("post_transform", 0)
    scores = _ensemble(node, found, [], targets)
    if post not in (0, 1, 2):
        raise UnsupportedError(f"expected post_transform NONE, SOFTMAX or LOGISTIC, found {post}")
    if post == 0:
        return scores
    return node.emit("Softmax", scores, axis=1) if post == 1 else node.emit("Sigmoid", scores)
