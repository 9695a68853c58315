"""Recurrent layers of ONNX files: layouts, activations, and what onnxruntime computes."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from samebits.errors import InputError, UnsupportedError
from samebits.ir import interpreter
from samebits.onnx import from_model, to_qdq

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
STEPS, BATCH, FEATURES, HIDDEN = 5, 2, 3, 4


def model(op: str, given: str, seed: int = 0, opset: int = 18, **attributes: Any) -> Any:
    """One layer. given: its optional inputs, letters of BLhcP."""
    random = np.random.default_rng(seed)
    directions = 2 if attributes.get("direction") == "bidirectional" else 1
    rows = GATES[op] * HIDDEN
    state = (directions, BATCH, HIDDEN)
    if attributes.get("layout"):
        state = (BATCH, directions, HIDDEN)
    shapes = {
        "W": (directions, rows, FEATURES),
        "R": (directions, rows, HIDDEN),
        "B": (directions, 2 * rows),
        "L": (BATCH,),
        "h": state,
        "c": state,
        "P": (directions, 3 * HIDDEN),
    }
    arrays = {
        name: np.array([3, 5], np.int32)
        if name == "L"
        else random.standard_normal(shape).astype(np.float32)
        for name, shape in shapes.items()
        if name in f"WR{given}"
    }
    inputs = ["X", *(name if name in arrays else "" for name in shapes)]
    while not inputs[-1]:
        inputs.pop()
    outputs = ["Y", "Y_h", "Y_c"][: 3 if op == "LSTM" else 2]
    node = helper.make_node(op, inputs, outputs, "layer", hidden_size=HIDDEN, **attributes)
    shape = (BATCH, STEPS, FEATURES) if attributes.get("layout") else (STEPS, BATCH, FEATURES)
    graph = helper.make_graph(
        [node],
        "graph",
        [helper.make_tensor_value_info("X", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs],
        [numpy_helper.from_array(array, name) for name, array in arrays.items()],
    )
    return helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8
    ), random.standard_normal(shape).astype(np.float32) * 2


def check(made: Any, x: Any) -> None:
    """The graph, and its export, compute what onnxruntime does."""
    session = onnxruntime.InferenceSession(
        made.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    expected = session.run(None, {"X": x})
    graph = from_model(made)
    again = from_model(to_qdq(graph))
    for each in (graph, again):
        for a, b in zip(interpreter.run(each, [x]), expected, strict=True):
            assert a.shape == b.shape
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


FORMS: list[tuple[str, str, dict[str, Any]]] = [
    ("LSTM", "", {}),
    ("LSTM", "BLhcP", {}),
    ("LSTM", "BLhcP", {"direction": "reverse"}),
    ("LSTM", "BLhcP", {"direction": "bidirectional"}),
    ("LSTM", "BP", {"input_forget": 1}),
    ("LSTM", "BhcP", {"clip": 0.3}),
    ("LSTM", "B", {"clip": 0.2, "input_forget": 1, "direction": "bidirectional"}),
    ("LSTM", "B", {"activations": ["HardSigmoid", "Relu", "Softsign"]}),
    (
        "LSTM",
        "B",
        {
            "activations": ["HardSigmoid", "LeakyRelu", "ScaledTanh"],
            "activation_alpha": [0.3, 0.125, 1.5],
            "activation_beta": [0.4, 0.75],
        },
    ),
    (
        "LSTM",
        "B",
        {
            "activations": ["Sigmoid", "Elu", "Tanh", "HardSigmoid", "Softplus", "Affine"],
            "activation_alpha": [0.5, 0.25, 0.75],
            "activation_beta": [0.5, 0.125],
            "direction": "bidirectional",
        },
    ),
    ("GRU", "BLh", {"direction": "bidirectional"}),
    ("GRU", "Bh", {"linear_before_reset": 1}),
    ("GRU", "B", {"activations": ["Sigmoid", "ThresholdedRelu"], "activation_alpha": [0.5]}),
    ("RNN", "BLh", {"direction": "bidirectional", "activations": ["Relu", "Tanh"]}),
    ("RNN", "B", {"clip": 0.5}),
]


@pytest.mark.parametrize("form", range(len(FORMS)))
def test_onnxruntime_agrees(form: int) -> None:
    op, given, attributes = FORMS[form]
    check(*model(op, given, seed=form, **attributes))


@pytest.mark.parametrize("op", GATES)
def test_batch_first_is_the_same_transposed(op: str) -> None:
    given = "Bh" if op != "LSTM" else "BhcP"
    made, x = model(op, given, direction="bidirectional", layout=1)
    graph = from_model(made)
    found = interpreter.run(graph, [x])
    plain = onnx.ModelProto()
    plain.CopyFrom(made)
    (node,) = plain.graph.node
    node.attribute.remove(next(a for a in node.attribute if a.name == "layout"))
    for tensor in plain.graph.initializer:
        if tensor.name in "hc":
            array = numpy_helper.to_array(tensor).transpose(1, 0, 2)
            tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    shape = plain.graph.input[0].type.tensor_type.shape
    shape.dim[0].dim_value, shape.dim[1].dim_value = STEPS, BATCH
    y, *states = interpreter.run(from_model(plain), [x.transpose(1, 0, 2)])
    assert graph.outputs == ("Y", "Y_h", "Y_c")[: len(found)]
    expected = [y.transpose(2, 0, 1, 3), *(s.transpose(1, 0, 2) for s in states)]
    for a, b in zip(found, expected, strict=True):
        assert np.array_equal(a, b)


def test_outputs_that_nothing_reads() -> None:
    made, x = model("LSTM", "B", layout=1)
    made.graph.node[0].output[:] = ["", "Y_h"]
    del made.graph.output[:]
    made.graph.output.append(helper.make_tensor_value_info("Y_h", TensorProto.FLOAT, None))
    graph = from_model(made)
    assert [node.op for node in graph.nodes] == ["Transpose", "LSTM", "Transpose"]
    assert interpreter.run(graph, [x])[0].shape == (BATCH, 1, HIDDEN)


def test_old_opsets() -> None:
    made, x = model("LSTM", "B", opset=6, output_sequence=1)
    expected, _ = model("LSTM", "B")
    for a, b in zip(
        interpreter.run(from_model(made), [x]),
        interpreter.run(from_model(expected), [x]),
        strict=True,
    ):
        assert np.array_equal(a, b)


@pytest.mark.parametrize(
    ("attributes", "error", "message"),
    [
        (
            {"activations": ["Sigmoid", "Tanh", "Gauss"]},
            UnsupportedError,
            r"node 'layer' \(LSTM\): expected activations of Relu, .*, found 'Gauss'",
        ),
        ({"activations": ["Tanh"]}, InputError, "expected 3 activations, found 1"),
        (
            {"activations": ["Elu", "Tanh", "Tanh"], "activation_alpha": [1.0, 2.0]},
            InputError,
            "expected at most 1 numbers in activation_alpha, found 2",
        ),
        ({"direction": "both"}, UnsupportedError, "expected direction forward or reverse"),
        ({"unknown": 1}, UnsupportedError, "the attribute 'unknown' is not known"),
    ],
)
def test_what_does_not_fit(attributes: dict[str, Any], error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        from_model(model("LSTM", "B", **attributes)[0])


def test_hidden_size_must_be_that_of_the_weights() -> None:
    made, _ = model("LSTM", "B")
    next(a for a in made.graph.node[0].attribute if a.name == "hidden_size").i = 5
    with pytest.raises(InputError, match=r"expected W of \[1, 20, 3\], found \[1, 16, 3\]"):
        from_model(made)
