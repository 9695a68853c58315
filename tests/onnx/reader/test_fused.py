"""Operators that onnxruntime's optimizer makes, against onnxruntime, and refusals."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from samebits.errors import InputError, UnsupportedError
from samebits.ir import interpreter
from samebits.onnx import from_model

X = (2, 3, 8)
RNG = np.random.default_rng(4)


def real(*shape: int) -> np.ndarray[Any, Any]:
    return RNG.normal(0, 1, shape).astype(np.float32)


W, ROWS, COLUMN = real(8, 24), real(2, 3, 8), real(8)
ANGLES = np.outer(np.arange(5), 10.0 ** -np.arange(4)).astype(np.float32)
POSITIONS = np.array([[0, 1, 2], [2, 3, 4]])
TABLES = {"cosine": np.cos(ANGLES), "sine": np.sin(ANGLES)}
NORM = {"gamma": real(8), "beta": real(8), "bias": real(8), "skip": ROWS}
QKV = {"w": W, "b": real(24)}
KEPT = np.array([[[1, 0, 1], [1, 1, 0], [1, 0, 0]], [[1, 1, 1], [1, 0, 0], [1, 0, 1]]], np.int32)
# name -> operator, inputs, attributes, constants, shape of x
CASES: dict[str, tuple[str, str, dict[str, Any], dict[str, Any], tuple[int, ...]]] = {
    "rms": ("SimplifiedLayerNormalization", "x gamma", {"epsilon": 0.1}, NORM, X),
    "skip": ("SkipLayerNormalization", "x skip gamma beta bias", {"epsilon": 0.1}, NORM, X),
    "skip without a bias": ("SkipLayerNormalization", "x skip gamma beta", {}, NORM, X),
    "skip rms": ("SkipSimplifiedLayerNormalization", "x skip gamma bias", {}, NORM, X),
    "gelu": ("Gelu", "x", {}, {}, X),
    "bias gelu": ("BiasGelu", "x b", {}, {"b": COLUMN}, X),
    "fast gelu": ("FastGelu", "x b", {}, {"b": COLUMN}, X),
    "fast gelu alone": ("FastGelu", "x", {}, {}, X),
    "quick gelu": ("QuickGelu", "x", {"alpha": 1.5}, {}, X),
    "matmul": ("FusedMatMul", "x z", {"alpha": 0.5, "transB": 1}, {"z": ROWS}, X),
    "matmul of columns": ("FusedMatMul", "x z", {"transA": 1}, {"z": ROWS}, X),
    "attention": ("Attention", "x w b", {"num_heads": 2}, QKV, X),
    "attention to what was": (
        "Attention", "x w b", {"num_heads": 4, "unidirectional": 1, "scale": 0.3}, QKV, X
    ),
    "attention of sizes": (
        "Attention", "x w b", {"num_heads": 2, "qkv_hidden_sizes": [6, 6, 12]}, QKV, X
    ),
    "attention to some": (
        "Attention", "x w b m", {"num_heads": 2}, {**QKV, "m": KEPT[:, 0]}, X
    ),
    "attention to some of each row": (
        "Attention", "x w b m", {"num_heads": 2, "unidirectional": 1}, {**QKV, "m": KEPT}, X
    ),
    "rotary": ("RotaryEmbedding", "x p cosine sine", {}, {**TABLES, "p": POSITIONS}, (2, 2, 3, 8)),
    "rotary of pairs": (
        "RotaryEmbedding", "x p cosine sine", {"interleaved": 1}, {**TABLES, "p": POSITIONS},
        (2, 2, 3, 8),
    ),
    "rotary of rows": (
        "RotaryEmbedding", "x p cosine sine", {}, {**TABLES, "p": np.array([1])}, (2, 3, 16)
    ),
}  # fmt: skip


def one(
    op: str, names: str, attributes: dict[str, Any], constants: Any, shape: Any, outputs: int = 1
) -> onnx.ModelProto:
    listed = ["y", *(f"more{i}" for i in range(1, outputs))]
    domain = "" if op == "SimplifiedLayerNormalization" else "com.microsoft"
    graph = helper.make_graph(
        [helper.make_node(op, names.split(" "), listed, "it", domain=domain, **attributes)],
        "graph",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [
            helper.make_tensor_value_info(n, TensorProto.FLOAT, None)
            for n in (listed[0], listed[-1])
        ][: 1 + (outputs > 1)],
        [numpy_helper.from_array(constants[n], n) for n in names.split() if n in constants],
    )
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=9)


@pytest.mark.parametrize("name", CASES)
def test_against_onnxruntime(name):
    runtime = pytest.importorskip("onnxruntime", reason="needs onnxruntime")
    made = one(*CASES[name])
    x = real(*CASES[name][-1])
    (ours,) = interpreter.run(from_model(made), [x])
    session = runtime.InferenceSession(made.SerializeToString(), providers=["CPUExecutionProvider"])
    (theirs,) = session.run(None, {"x": x})
    assert ours.shape == theirs.shape
    most = 2e-3 if "fast" in name else 2e-5  # its tanh is a fast one
    np.testing.assert_allclose(ours, theirs, rtol=most, atol=most)


def test_the_sum_before_a_norm_is_an_output():
    op, names, attributes, constants, shape = CASES["skip"]
    found = from_model(one(op, names, attributes, constants, shape, outputs=4))
    x = real(*shape)
    _, total = interpreter.run(found, [x])
    np.testing.assert_allclose(total, x + constants["skip"] + constants["bias"], rtol=1e-6)


REFUSED = {
    "expected a mask .2, 3. or .2, 3, 3. of ones and zeros, found .2.": (
        "Attention", "x w b m", {"num_heads": 2}, {**QKV, "m": np.ones(2, np.int32)}, X
    ),
    "expected attention without a past as input 4": (
        "Attention", "x w b  q", {"num_heads": 2}, {**QKV, "q": np.ones(2, np.float32)}, X
    ),
    "expected 24 columns of 5 heads": ("Attention", "x w b", {"num_heads": 5}, QKV, X),
    "expected batches as first axes": (
        "FusedMatMul", "x z", {"transBatchA": 1}, {"z": ROWS}, X
    ),
    "expected positions below 5, found 6": (
        "RotaryEmbedding", "x p cosine sine", {}, {**TABLES, "p": POSITIONS + 2}, (2, 2, 3, 8)
    ),
    "expected x .B, S, D. and weights": ("Attention", "x w", {"num_heads": 2}, {"w": COLUMN}, X),
    "expected 0 columns of 2 heads": (
        "Attention", "x w", {"num_heads": 2}, {"w": np.zeros((8, 0), np.float32)}, X
    ),
    "expected 24 columns of 2 heads": (
        "Attention", "x w", {"num_heads": 2, "qkv_hidden_sizes": [12, 12]}, QKV, X
    ),
    "expected x of whole heads of H elements": (
        "RotaryEmbedding", "x p cosine sine", {},
        {"p": POSITIONS, "cosine": np.zeros((4, 0)), "sine": np.zeros((4, 0))}, (2, 2, 3, 8),
    ),
    "expected integers as positions": (
        "RotaryEmbedding", "x p cosine sine", {}, {**TABLES, "p": POSITIONS * 1.0}, (2, 2, 3, 8)
    ),
    "expected scale 1, found 0.5": (
        "RotaryEmbedding", "x p cosine sine", {"scale": 0.5}, {**TABLES, "p": POSITIONS},
        (2, 2, 3, 8),
    ),
    "expected 2 heads, found num_heads 3": (
        "RotaryEmbedding", "x p cosine sine", {"num_heads": 3}, {**TABLES, "p": POSITIONS},
        (2, 2, 3, 8),
    ),
    "expected a rotation of all of a head": (
        "RotaryEmbedding", "x p cosine sine", {"rotary_embedding_dim": 4, "num_heads": 2},
        {**TABLES, "p": POSITIONS}, (2, 2, 3, 8),
    ),
}  # fmt: skip


@pytest.mark.parametrize("message", REFUSED)
def test_what_is_refused(message):
    with pytest.raises((InputError, UnsupportedError), match=message):
        from_model(one(*REFUSED[message]))


def test_statistics_are_not_given():
    op, names, attributes, constants, shape = CASES["skip"]
    with pytest.raises(UnsupportedError, match="expected no use of its statistics"):
        from_model(one(op, names, attributes, constants, shape, outputs=2))
