"""ONNX models of decision trees, random ones too, as files of others list them."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

MODES = ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ")
ML = "ai.onnx.ml"


def model(
    op: str, outputs: int, features: int, attributes: dict[str, Any], version: int = 3
) -> onnx.ModelProto:
    """One node of ai.onnx.ml on x [N, features]."""
    names = [f"y{i}" for i in range(outputs)]
    node = helper.make_node(op, ["x"], names, name="trees", domain=ML, **attributes)
    label = TensorProto.INT64 if outputs == 2 else TensorProto.FLOAT
    types = [label, TensorProto.FLOAT][:outputs]
    graph = helper.make_graph(
        [node],
        "trees",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", features])],
        [
            helper.make_tensor_value_info(name, kind, None)
            for name, kind in zip(names, types, strict=True)
        ],
    )
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid(ML, version)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def random_lists(
    rng: np.random.Generator,
    features: int,
    targets: int,
    trees: int = 4,
    depth: int = 4,
    modes: tuple[str, ...] = MODES,
    prefix: str = "target",
    share: float = 0.7,
) -> dict[str, Any]:
    """Attributes of random trees: thresholds are quarters from -2 to 2, some of them infinite;
    weights are sixteenths, of a share of the targets at every leaf (onnxruntime adds no base value
    to a target that no leaf has a weight for). Nodes are in random order, but
    for the first of each tree, its root."""
    found: dict[str, list[Any]] = {}
    for tree in range(trees):
        nodes: list[dict[str, Any]] = []
        _grow(rng, nodes, features, depth, modes)
        for own in [nodes[0], *rng.permutation(np.array(nodes[1:], object)).tolist()]:
            found.setdefault("nodes_treeids", []).append(tree)
            for key, value in own.items():
                found.setdefault(f"nodes_{key}", []).append(value)
            if own["modes"] != b"LEAF":
                continue
            for target in np.flatnonzero(rng.random(targets) < share).tolist():
                entry = (tree, own["nodeids"], target, int(rng.integers(-64, 65)) / 16)
                keys = ("treeids", "nodeids", "ids", "weights")
                for key, value in zip(keys, entry, strict=True):
                    found.setdefault(f"{prefix}_{key}", []).append(value)
    return found


def _grow(
    rng: np.random.Generator,
    nodes: list[dict[str, Any]],
    features: int,
    depth: int,
    modes: tuple[str, ...],
) -> int:
    """Append a tree of at most `depth` branches on a way; the identifier of its root."""
    own: dict[str, Any] = {"nodeids": len(nodes), "modes": b"LEAF"}
    own |= {"featureids": 0, "values": 0.0, "truenodeids": 0, "falsenodeids": 0}
    nodes.append(own)
    if depth and rng.random() < 0.85:
        own["modes"] = str(rng.choice(modes)).encode()
        own["featureids"] = int(rng.integers(features))
        own["values"] = int(rng.integers(-8, 9)) / 4
        if rng.random() < 0.05:
            own["values"] = float(rng.choice([np.inf, -np.inf]))
        for key in ("truenodeids", "falsenodeids"):
            own[key] = _grow(rng, nodes, features, depth - 1, modes)
    return int(own["nodeids"])
