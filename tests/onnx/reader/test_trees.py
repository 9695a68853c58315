"""Decision trees of ai.onnx.ml against onnxruntime, and files that are none."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from onnx import helper, numpy_helper

from onnx_trees import model, random_lists
from samebits import progress
from samebits.errors import InputError, UnsupportedError
from samebits.ir import interpreter
from samebits.onnx import to_qdq
from samebits.onnx.reader.load import from_model

SAMPLES = 64


def samples(features, seed=0):
    """Quarters, so that they often are equal to thresholds."""
    rng = np.random.default_rng(seed)
    return (rng.integers(-10, 11, (SAMPLES, features)) / 4).astype(np.float32)


def check(proto, features, seed=0):
    """The same numbers as onnxruntime's, and after a round trip the same graph."""
    onnxruntime = pytest.importorskip("onnxruntime", reason="the file is run by it too")
    x = samples(features, seed)
    graph = from_model(proto, batch=SAMPLES)
    found = interpreter.run(graph, [x])
    session = onnxruntime.InferenceSession(
        proto.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    for ours, theirs in zip(found, session.run(None, {"x": x}), strict=True):
        if ours.dtype.kind == "i":
            assert ours.tolist() == theirs.tolist()
        else:
            np.testing.assert_allclose(ours, theirs.reshape(ours.shape), rtol=1e-6, atol=1e-6)
    again = from_model(to_qdq(graph, "float"), batch=SAMPLES)
    assert [a.tolist() for a in interpreter.run(again, [x])] == [a.tolist() for a in found]
    return graph


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("targets", [1, 3])
def test_random_regressors(seed, targets):
    rng = np.random.default_rng([seed, targets])
    lists = random_lists(rng, 3, targets, share=1.0 if seed % 2 else 0.7)
    base = {"base_values": [0.5, -2.0, 0.25][:targets]} if seed % 2 else {}
    check(model("TreeEnsembleRegressor", 1, 3, {**lists, "n_targets": targets, **base}), 3, seed)


@pytest.mark.parametrize("post", ["NONE", "SOFTMAX", "LOGISTIC"])
def test_random_classifiers(post):
    rng = np.random.default_rng(3)
    lists = random_lists(rng, 3, 4, prefix="class")
    more = {"classlabels_int64s": [0, 1, 2, 3], "post_transform": post}
    check(model("TreeEnsembleClassifier", 2, 3, {**lists, **more}), 3)


@pytest.mark.parametrize("post", ["NONE", "LOGISTIC"])
@pytest.mark.parametrize("positive", [False, True])
@pytest.mark.parametrize("base", [None, 0.125, -0.4, -2.0])
def test_two_classes_with_the_weights_of_one(post, positive, base):
    rng = np.random.default_rng(5)
    lists = random_lists(rng, 3, 1, prefix="class")
    if positive:
        if post == "LOGISTIC":
            pytest.skip("onnxruntime takes scores that are all positive for probabilities there")
        lists["class_weights"] = [abs(w) / 64 for w in lists["class_weights"]]
    more = {"classlabels_int64s": [0, 1], "post_transform": post}
    more |= {"base_values": [base]} if base is not None else {}
    check(model("TreeEnsembleClassifier", 2, 3, {**lists, **more}), 3)


@pytest.mark.parametrize(
    ("named", "more", "message"),
    [
        (1, {}, "found them for class 1, 0 base values and NONE"),
        (1, {"base_values": [0.5]}, "found them for class 1"),
        (0, {"base_values": [0.3, 0.1]}, "found them for class 0, 2 base values"),
        (0, {"base_values": [0.0, 0.0]}, "2 base values"),
        (0, {"post_transform": "SOFTMAX"}, "0 base values and SOFTMAX"),
    ],
)
def test_two_classes_that_onnxruntime_takes_for_others(named, more, message):
    """The reason for each refusal: what onnxruntime gives is neither [1 - p, p] nor [-s, s]."""
    onnxruntime = pytest.importorskip("onnxruntime", reason="says what is refused")
    lists = random_lists(np.random.default_rng(5), 3, 1, prefix="class", share=1.0)
    lists["class_ids"] = [named] * len(lists["class_ids"])
    lists["class_weights"] = [abs(w) for w in lists["class_weights"]]
    proto = model("TreeEnsembleClassifier", 2, 3, {**lists, "classlabels_int64s": [0, 1], **more})
    with pytest.raises(UnsupportedError, match=message):
        from_model(proto)
    session = onnxruntime.InferenceSession(
        proto.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    (first, second) = session.run(None, {"x": samples(3)})[1].T
    if "post_transform" in more:
        assert np.allclose(first + second, 1)
        assert second.max() > 1  # no result of a softmax
    else:
        assert not np.allclose(first + second, 1)
        assert not np.allclose(first + second, 0)


def test_a_mean_over_trees():
    lists = random_lists(np.random.default_rng(7), 3, 2, trees=4)
    mean = {"n_targets": 2, "aggregate_function": "AVERAGE"}
    check(model("TreeEnsembleRegressor", 1, 3, {**lists, **mean}), 3)


def test_tables_do_not_depend_on_the_order_of_nodes():
    lists = random_lists(np.random.default_rng(11), 3, 2)
    first = from_model(model("TreeEnsembleRegressor", 1, 3, {**lists, "n_targets": 2}))
    keys = [key for key in lists if key.startswith("nodes_")]
    order = np.random.default_rng(1).permutation(len(lists["nodes_treeids"]))
    order = sorted(order, key=lambda i: lists["nodes_treeids"][i])
    moved = {**lists, **{key: [lists[key][i] for i in order] for key in keys}}
    second = from_model(model("TreeEnsembleRegressor", 1, 3, {**moved, "n_targets": 2}))
    for a, b in zip(first.constants.values(), second.constants.values(), strict=True):
        assert a.tolist() == b.tolist()


def five(**changed):
    """A TreeEnsemble of version 5: x0 <= 1 ? 2 to target 0 : (x1 < 0 ? -1 to 1 : 2 to 0)."""
    attributes = {
        "n_targets": 2,
        "nodes_featureids": [0, 1],
        "nodes_modes": np.array([0, 1], np.uint8),
        "nodes_splits": np.array([1, 0], np.float32),
        "nodes_truenodeids": [0, 1],
        "nodes_trueleafs": [1, 1],
        "nodes_falsenodeids": [1, 0],
        "nodes_falseleafs": [0, 1],
        "leaf_targetids": [0, 1],
        "leaf_weights": np.array([2, -1], np.float32),
        "tree_roots": [0],
        **changed,
    }
    tensors = {k: numpy_helper.from_array(v) for k, v in attributes.items() if hasattr(v, "dtype")}
    return model("TreeEnsemble", 1, 2, {**attributes, **tensors}, version=5)


def test_version_5():
    graph = check(five(), 2)
    x = np.zeros((SAMPLES, 2), np.float32)
    x[:3] = [[1, 5], [2, -1], [2, 0]]
    assert interpreter.run(graph, [x])[0][:3].tolist() == [[2, 0], [0, -1], [2, 0]]
    for post, op in ((1, "Softmax"), (2, "Sigmoid")):  # as the standard numbers them
        assert op in [node.op for node in from_model(five(post_transform=post)).nodes]
    check(five(aggregate_function=0), 2)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"nodes_modes": np.array([0, 6], np.uint8)}, "modes from 0 to 5, found 6"),
        ({"nodes_truenodeids": [2, 1]}, "a reference below 2, found 2"),
        ({"nodes_trueleafs": [7, 1]}, "a reference below 2, found 0"),
        ({"nodes_falsenodeids": [0, 0]}, "without a parent"),
        ({"tree_roots": None}, "at least one tree"),
        ({"tree_roots": [2]}, "a reference below 2, found 2"),
        ({"tree_roots": [0, 0]}, "without a parent"),
        ({"leaf_targetids": [0, 2]}, "targets of leaves below 2"),
        ({"tree_roots": None, "aggregate_function": 0}, "at least one tree, found none"),
        ({"leaf_weights": np.array([np.nan, 1], np.float32)}, "numbers of leaf_weights, found NaN"),
        ({"leaf_weights": np.array([np.inf, 1], np.float32)}, "finite numbers of leaf_weights"),
        ({"leaf_weights": np.array([1e300, 1])}, "binary32 numbers of leaf_weights"),
        ({"leaf_weights": np.array([[2, -1]], np.float32)}, r"leaf_weights, found float32\[1, 2\]"),
        ({"leaf_weights": np.array([2, -1])}, r"leaf_weights, found int64\[2\]"),
        ({"leaf_weights": None}, "leaf_weights, found none"),
        ({"nodes_splits": np.array([np.nan, 1], np.float32)}, "numbers of nodes_splits, found NaN"),
        ({"nodes_modes": np.float32([0, 1])}, r"nodes_modes, found float32\[2\]"),
        ({"nodes_modes": None}, "nodes_modes, found none"),
        ({"nodes_splits": np.array([0.1, 1])}, "binary32 numbers of nodes_splits"),
        ({"nodes_featureids": [0, 2]}, r"features in \[0, 2\), found 2"),
        ({"nodes_featureids": [0]}, "lists of one length"),
        ({"aggregate_function": 2}, "AVERAGE, SUM"),
        ({"post_transform": 3}, "NONE, SOFTMAX or LOGISTIC"),
        ({"n_targets": 1 << 40}, "targets, found 1099511627776"),
    ],
)
def test_version_5_that_is_none(changed, message):
    with pytest.raises((InputError, UnsupportedError), match=message):
        from_model(five(**changed))


def stump(**changed):
    """x1 <= 0.5 ? 1 : -1."""
    attributes = {
        "n_targets": 1,
        "nodes_treeids": [0, 0, 0],
        "nodes_nodeids": [0, 1, 2],
        "nodes_featureids": [1, 0, 0],
        "nodes_values": [0.5, 0.0, 0.0],
        "nodes_modes": ["BRANCH_LEQ", "LEAF", "LEAF"],
        "nodes_truenodeids": [1, 0, 0],
        "nodes_falsenodeids": [2, 0, 0],
        "target_treeids": [0, 0],
        "target_nodeids": [1, 2],
        "target_ids": [0, 0],
        "target_weights": [1.0, -1.0],
        **changed,
    }
    return model("TreeEnsembleRegressor", 1, 2, attributes)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"nodes_modes": ["BRANCH_LEQ", "LEAF", "TWIG"]}, "expected modes .*, found 'TWIG'"),
        ({"nodes_treeids": [0, 0]}, "lists of one length"),
        ({"nodes_nodeids": [0, 1, 1]}, "differ"),
        ({"nodes_truenodeids": [7, 0, 0]}, "a node 7 of tree 0, found none"),
        ({"nodes_truenodeids": [2, 0, 0]}, "one root of each of 1 trees"),
        ({"nodes_truenodeids": [0, 0, 0]}, "a way to each of 3 nodes from a root, found 1"),
        (
            {"nodes_modes": ["BRANCH_LEQ"] * 3, "nodes_falsenodeids": [2, 0, 0]},
            "one root of each of 1 trees",
        ),
        ({"nodes_treeids": [0, 1, 0], "target_treeids": [1, 0]}, "a node 1 of tree 0, found none"),
        ({"nodes_featureids": [2, 0, 0]}, r"features in \[0, 2\), found 2"),
        ({"nodes_featureids": [-1, 0, 0]}, r"features in \[0, 2\), found -1"),
        ({"nodes_values": [float("nan"), 0.0, 0.0]}, "found NaN"),
        ({"target_ids": [0, 1]}, "each target below 1"),
        ({"target_nodeids": [1, 1]}, "one weight of a leaf"),
        ({"target_nodeids": [1, 0]}, "one weight of a leaf"),
        ({"target_weights": [1.0, float("inf")]}, "finite"),
        ({"target_weights": [1.0, float("nan")]}, "finite target_weights"),
        ({"base_values": [float("nan")]}, "finite base_values"),
        ({"base_values": [1.0, 2.0]}, "1 base values, found 2"),
        ({"aggregate_function": "MIN"}, "SUM or AVERAGE"),
        ({"post_transform": "PROBIT"}, "post_transform"),
        ({"n_targets": 0}, "from 1 to"),
        ({"nodes_hue": [1]}, "'nodes_hue' is not known"),
    ],
)
def test_trees_that_are_none(changed, message):
    with pytest.raises((InputError, UnsupportedError), match=message):
        from_model(stump(**changed))


def test_a_tree_with_too_many_levels():
    count = 600
    branches = count // 2
    attributes = {
        "nodes_treeids": [0] * (count + 1),
        "nodes_nodeids": list(range(count + 1)),
        "nodes_featureids": [0] * (count + 1),
        "nodes_values": [1.0] * (count + 1),
        "nodes_modes": ["BRANCH_LEQ"] * branches + ["LEAF"] * (branches + 1),
        "nodes_truenodeids": [*range(1, branches + 1), *[0] * (branches + 1)],
        "nodes_falsenodeids": [*range(branches + 1, count + 1), *[0] * (branches + 1)],
        "target_nodeids": [count - 1, count],
    }
    with pytest.raises(UnsupportedError, match="at most 256 levels"):
        from_model(stump(**attributes))


def lone_leaves(leaves, targets, last):
    """Attributes of trees of one leaf each, the first with weights for targets 0 and `last`."""
    return {
        "n_targets": targets,
        "nodes_treeids": list(range(leaves)),
        "nodes_nodeids": [0] * leaves,
        "nodes_featureids": [0] * leaves,
        "nodes_values": [0.0] * leaves,
        "nodes_modes": ["LEAF"] * leaves,
        "nodes_truenodeids": [0] * leaves,
        "nodes_falsenodeids": [0] * leaves,
        "target_treeids": [0, 0],
        "target_nodeids": [0, 0],
        "target_ids": [0, last],
        "target_weights": [1.0, 1.0],
    }


def test_leaves_that_ask_for_much_memory():
    """A few leaves with weights far apart would be tables of gigabytes."""
    attributes = lone_leaves(3000, 1 << 20, (1 << 20) - 1)
    with pytest.raises(UnsupportedError, match="elements of computed constants"):
        from_model(stump(**attributes))


def test_leaves_and_targets_that_ask_for_much_memory():
    """Narrow leaves of many targets: realisations have a weight of each leaf for each target."""
    attributes = lone_leaves(300, 100_000, 1)
    with pytest.raises(UnsupportedError, match="found 30000000 with"):
        from_model(stump(**attributes))


def test_what_is_left_out_is_said():
    heard: list[str] = []
    with progress.listening(SimpleNamespace(note=heard.append)):
        from_model(stump(nodes_missing_value_tracks_true=[1, 0, 0], nodes_hitrates=[1.0] * 3))
    assert any("no missing values" in line for line in heard)


def test_doubles_that_binary32_holds():
    tensor = helper.make_tensor("t", 11, [3], [0.5, 0.0, 0.0])
    proto = stump(nodes_values_as_tensor=tensor)
    graph = from_model(proto)
    assert interpreter.run(graph, [np.array([[9, 0.5]], np.float32)])[0].tolist() == [[1]]
