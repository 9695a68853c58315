"""Operators of com.microsoft on codes: weights in packed blocks against onnxruntime, and files that
do not hold what they state."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from samebits.errors import InputError, UnsupportedError
from samebits.ir import interpreter
from samebits.onnx import from_model
from samebits.sources import load

Array = np.ndarray[Any, Any]
ROWS, SIZE = 5, 16


def packed(codes: Array, bits: int) -> Array:
    """Each row in whole bytes, the first code in the lowest bits."""
    per = 8 // bits
    padded = np.pad(codes, ((0, 0), (0, -codes.shape[1] % per))).reshape(len(codes), -1, per)
    shifted = padded.astype(np.int64) << (np.arange(per) * bits)
    return shifted.sum(axis=2).astype(np.uint8)


def weights(bits: int, columns: int) -> tuple[Array, Array, Array]:
    """Codes [N, blocks * size], scales and zero points of the blocks."""
    rng = np.random.default_rng(bits)
    count = -(-columns // SIZE)
    codes = rng.integers(0, 1 << bits, (ROWS, count * SIZE))
    scales = (rng.integers(1, 64, (ROWS, count)) / 64).astype(np.float32)
    return codes, scales, rng.integers(0, 1 << bits, (ROWS, count))


def product(
    bits: int, shape: tuple[int, ...], arrays: dict[str, Array], last: list[Any] | None = None,
    names: str = "B scales", **more: int,
) -> onnx.ModelProto:  # fmt: skip
    """MatMulNBits of x with some of the arrays as inputs, _ for one left out."""
    inputs = ["" if n == "_" else n for n in names.split()]
    attributes = {"K": shape[-1], "N": ROWS, "bits": bits, "block_size": SIZE, **more}
    node = helper.make_node(
        "MatMulNBits", ["x", *inputs], ["y"], "it", domain="com.microsoft", **attributes
    )
    graph = helper.make_graph(
        [node, *(last or [])],
        "graph",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(a, n) for n, a in arrays.items()],
    )
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=9)


@pytest.mark.parametrize(
    ("bits", "zeros"),
    [(4, "none"), (4, "packed"), (4, "numbers"), (8, "none"), (8, "packed")],
)
@pytest.mark.parametrize("columns", [16, 40, 64])
def test_every_weight_is_the_one_of_onnxruntime(bits: int, zeros: str, columns: int) -> None:
    """A row of x picks a column of the weights: nothing is added but zeros and a bias, and no
    product of these scales rounds."""
    codes, scales, points = weights(bits, columns)
    arrays = {
        "B": packed(codes, bits).reshape(ROWS, -1, SIZE * bits // 8),
        "scales": scales.reshape(-1),
        "bias": np.float32([0, 0.5, 1, 2, 4]),
    }
    names = "B scales _ _ bias"
    if zeros != "none":
        arrays["z"] = (packed(points, bits) if zeros == "packed" else points.astype("f4")).reshape(
            -1
        )
        names = "B scales z _ bias"
    made = product(bits, (columns, columns), arrays, names=names)
    x = np.eye(columns, dtype=np.float32)
    session = onnxruntime.InferenceSession(made.SerializeToString())
    (expected,) = session.run(None, {"x": x})
    assert np.array_equal(interpreter.run(from_model(made), [x])[0].astype("f4"), expected)


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("shape", [(2, 40), (1, 3, 40)])
def test_a_quantized_product_is_the_same_everywhere(bits: int, shape: tuple[int, ...]) -> None:
    codes, scales, points = weights(bits, 40)
    arrays = {"B": packed(codes, bits), "scales": scales / 3, "z": packed(points, bits)}
    made = product(bits, shape, {**arrays, "bias": np.float32([1, 2, 3, 4, 5])},
                   names="B scales z _ bias", accuracy_level=4)  # fmt: skip
    numbers = {"s": np.float32(0.25), "zero": np.int8(3)}
    made.graph.initializer.extend(
        numpy_helper.from_array(np.asarray(a), n) for n, a in numbers.items()
    )
    (node,) = made.graph.node
    pairs = [
        helper.make_node(op, [name, *numbers], [out])
        for op, name, out in (
            ("QuantizeLinear", "x", "xc"),
            ("DequantizeLinear", "xc", "xq"),
            ("QuantizeLinear", "y", "yc"),
            ("DequantizeLinear", "yc", "yq"),
        )
    ]
    node.input[0] = "xq"
    made.graph.ClearField("node")
    made.graph.node.extend([*pairs[:2], node, *pairs[2:]])
    made.graph.output[0].name = "yq"
    graph = from_model(made)
    backends = ["torch", "c", "onnxruntime-integer"]
    verdicts = load(graph).verify("random:20", backends).verdicts
    assert [(v.backend, v.differing) for v in verdicts] == [(name, 0) for name in backends]


def test_activations_in_16_bits_of_the_older_domain() -> None:
    numbers = {"s": np.float32(0.25), "z": np.uint16(300)}
    nodes = [
        helper.make_node("QuantizeLinear", ["x", *numbers], ["q"], domain="com.microsoft"),
        helper.make_node("DequantizeLinear", ["q", *numbers], ["y"], domain="com.microsoft"),
    ]
    made = product(4, (1, 3), {n: np.asarray(a) for n, a in numbers.items()})
    made.graph.ClearField("node")
    made.graph.node.extend(nodes)
    x = np.float32([[-1e6, 0.375, 1e6]])
    assert interpreter.run(from_model(made), [x])[0].tolist() == [[-75, 0.5, 16308.75]]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"B": np.zeros(7, np.uint8)}, r"expected 5 rows of 24 bytes as codes, found uint8\[7\]"),
        ({"B": np.zeros((5, 24), np.int8)}, "expected 5 rows of 24 bytes as codes, found int8"),
        ({"scales": np.ones(14, np.float32)}, r"expected 15 scales, found float32\[14\]"),
        ({"z": np.zeros(9, np.uint8)}, r"expected 5 rows of 2 bytes as zero points, found uint8"),
        ({"z": np.zeros(9, np.float32)}, "expected 15 zero points, found 9"),
        ({"bits": 3}, "expected 2, 4 or 8 bits"),
        ({"N": -5}, "expected 2, 4 or 8 bits, positive N and K"),
        ({"N": 2**40}, "expected 1099511627776 rows of 24 bytes"),
        ({"block_size": 12}, "blocks of a multiple of 8"),
    ],
)
def test_what_does_not_hold_what_it_states_is_refused(change: Any, message: str) -> None:
    codes, scales, points = weights(4, 40)
    arrays = {"B": packed(codes, 4), "scales": scales, "z": packed(points, 4)}
    arrays |= {n: a for n, a in change.items() if isinstance(a, np.ndarray)}
    more = {n: a for n, a in change.items() if isinstance(a, int)}
    attributes = {"bits": 4, **more}
    with pytest.raises(InputError, match=message):
        from_model(
            product(attributes.pop("bits"), (1, 40), arrays, names="B scales z", **attributes)
        )


@pytest.mark.parametrize(
    ("names", "more", "message"),
    [
        ("B scales _ order", {"order": np.zeros(40, np.int32)}, "expected no g_idx, found one"),
        ("B scales z", {"z": np.full(15, 0.5, np.float32)}, "expected whole zero points from 0"),
    ],
)
def test_what_has_no_codes_is_refused(names: str, more: Any, message: str) -> None:
    codes, scales, _ = weights(4, 40)
    arrays = {"B": packed(codes, 4), "scales": scales, **more}
    with pytest.raises(UnsupportedError, match=message):
        from_model(product(4, (1, 40), arrays, names=names))
