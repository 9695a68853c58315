"""Labels of classes, and numbers, that an ArrayFeatureExtractor looks up by computed indices."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from onnx_trees import ML
from samebits import progress
from samebits.errors import UnsupportedError
from samebits.ir import interpreter
from samebits.onnx.reader.load import from_model

SCORES = np.float32([[1, 5, 2]])


def looked_up(row, after=(), before=("ArgMax",)):
    """What the node gives for SCORES, and what was said; after: operators on its result."""
    names = ["x", *(f"b{i}" for i in range(len(before)))]
    made = {"ArgMax": {"axis": 1}, "Cast": {"to": TensorProto.INT64}}
    nodes = [
        helper.make_node(op, [a], [b], **made.get(op, {}))
        for op, a, b in zip(before, names, names[1:], strict=False)
    ]
    nodes.append(helper.make_node("ArrayFeatureExtractor", ["row", names[-1]], ["y0"], domain=ML))
    for i, op in enumerate(after):
        inputs = [f"y{i}", f"y{i}"] if op == "Mul" else [f"y{i}"]
        nodes.append(helper.make_node(op, inputs, [f"y{i + 1}"], **made.get(op, {})))
    graph = helper.make_graph(
        nodes,
        "labels",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3])],
        [helper.make_tensor_value_info(f"y{len(after)}", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(row, "row")],
    )
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid(ML, 3)]
    heard: list[str] = []
    with progress.listening(SimpleNamespace(note=heard.append)):
        graph = from_model(helper.make_model(graph, opset_imports=opsets, ir_version=8))
    return interpreter.run(graph, [SCORES])[0].tolist(), heard


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("after", [(), ("Identity",), ("Cast", "Identity")])
def test_labels_are_indices_of_classes(dtype, after):
    found, heard = looked_up(np.array([[30, 10, 20]], dtype), after)
    assert found == [[1]]
    assert any("0 for 30, 1 for 10, 2 for 20" in line for line in heard)


@pytest.mark.parametrize(
    ("row", "after", "before", "wanted"),
    [
        (np.array([3, 7, 9]), ("Mul",), ("ArgMax",), [[49]]),
        (np.array([3, 7, 9]), ("Cast", "Mul"), ("ArgMax",), [[49]]),
        (np.array([3, 7, 9, 8]), (), ("ArgMax",), [[7]]),
        (np.array([3, 7, 7]), (), ("ArgMax",), [[7]]),
        (np.array([3, 7, 7, 8]), (), ("ArgMax",), [[7]]),
        (np.array([3, 5, 7, 9, 11, 13]), (), ("Cast",), [[5, 13, 7]]),
        (np.float32([0.5, 0.25, 2]), (), ("ArgMax",), [[0.25]]),
    ],
)
def test_numbers_are_looked_up(row, after, before, wanted):
    found, heard = looked_up(row, after, before)
    assert found == wanted
    assert not any("a label is" in line for line in heard)


def test_labels_that_an_operator_computes_with_in_another_type():
    with pytest.raises(UnsupportedError, match="labels of int64 where Mul computes with them"):
        looked_up(np.array([3, 7, 9], np.int32), ("Identity", "Mul"))
