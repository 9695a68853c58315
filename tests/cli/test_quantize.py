"""`samebits quantize`: an ONNX file and an NPZ file in, a QDQ ONNX file and a table out."""

from __future__ import annotations

import json

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from samebits.ir.interpreter import run
from samebits.ir.lower import lower
from samebits.onnx import load


@pytest.fixture
def model(tmp_path):
    """x [N, 4] -> Gemm -> Relu -> Gemm -> y [N, 3], the batch open."""
    rng = np.random.default_rng(0)

    def tensor(name, *shape):
        return numpy_helper.from_array(rng.normal(size=shape).astype(np.float32), name)

    nodes = [
        helper.make_node("Gemm", ["x", "w", "b"], ["h"], transB=1),
        helper.make_node("Relu", ["h"], ["r\x1b[31m"]),
        helper.make_node("Gemm", ["r\x1b[31m", "v", "c"], ["y"], transB=1),
    ]
    graph = helper.make_graph(
        nodes,
        "mlp",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 3])],
        [tensor("w", 8, 4), tensor("b", 8), tensor("v", 3, 8), tensor("c", 3)],
    )
    path = tmp_path / "mlp.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), path)
    return path


@pytest.fixture
def samples(tmp_path):
    path = tmp_path / "x.npz"
    np.savez(path, x=np.random.default_rng(1).normal(size=(20, 4)).astype(np.float32))
    return path


def test_a_model_is_quantized(samebits, tmp_path, model, samples):
    out = tmp_path / "q.onnx"
    done = samebits("quantize", model, "--calibration", samples, "--out", out)
    assert (done.code, done.err) == (0, "")
    assert "calibrated on 20 samples, compared on 16\n" in done.out
    # 59 float32; then 56 codes, 11 scales and zero points, 11 biases and their scales.
    assert "constants 268 bytes before, 199 bytes after\n" in done.out
    assert done.out.endswith(f"wrote {out}\n")
    assert "\x1b" not in done.out
    onnx.checker.check_model(onnx.load(out))
    quantized, float_graph = load(out), load(model)
    assert sum(node.op == "QuantizeLinear" for node in quantized.nodes) == 3
    lower(quantized)
    with np.load(samples) as arrays:
        for x in arrays["x"][:, None]:
            assert abs(run(quantized, [x])[0] - run(float_graph, [x])[0]).max() < 0.2


def test_settings_and_json(samebits, tmp_path, model, samples):
    out = tmp_path / "q.onnx"
    done = samebits(
        "quantize", model, "--calibration", samples, "--out", out, "--scheme", "power-of-two-s8",
        "--weights", "power-of-two-s8", "--calibrate", "percentile", "--percentile", "99",
        "--output-bits", "16", "--per-tensor", "--json",
    )  # fmt: skip
    assert (done.code, done.err) == (0, "")
    record = json.loads(done.out)
    assert record["out"] == str(out)
    assert record["settings"] == {
        "activations": "power-of-two-s8",
        "weights": "power-of-two-s8",
        "per_channel": False,
        "calibration": "percentile",
        "percentile": 99.0,
        "output_bits": 16,
        "report_samples": 16,
        "symmetry": None,
        "float_bias": False,
        "scale_bits": 24,
    }
    formats = [tensor["format"] for tensor in record["tensors"]]
    assert formats == ["power-of-two-s8", "power-of-two-s8", "power-of-two-s16"]
    assert [constant["scales"] for constant in record["constants"]] == [1] * 4


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (["--scheme", "int8"], "activations: expected one of asymmetric-s8,"),
        (["--weights", "int8"], "weights: expected one of symmetric-s8,"),
        (["--calibrate", "kl"], "calibration: expected one of minmax, percentile, mse"),
        (["--percentile", "10"], "percentile: expected above 50 and up to 100, found 10.0"),
        (["--output-bits", "4"], "output bits: expected 8 or 16, found 4"),
    ],
)
def test_wrong_settings(samebits, tmp_path, model, samples, change, message):
    out = tmp_path / "q.onnx"
    done = samebits("quantize", model, "--calibration", samples, "--out", out, *change)
    assert done.code == 2
    assert message in done.err
    assert not out.exists()


def test_bad_files(samebits, tmp_path, model, samples):
    out = tmp_path / "q.onnx"
    wrong = tmp_path / "wrong.npz"
    np.savez(wrong, x=np.zeros((3, 5), np.float32))
    done = samebits("quantize", model, "--calibration", wrong, "--out", out)
    assert done.code == 2
    assert "array x: expected shape [samples, 4], found [3, 5]" in done.err
    done = samebits("quantize", model, "--calibration", tmp_path / "none.npz", "--out", out)
    assert done.code == 2
    assert "none.npz" in done.err
    assert "Traceback" not in done.err
    np.savez(wrong, x=np.full((3, 4), np.nan, np.float32))
    done = samebits("quantize", model, "--calibration", wrong, "--out", out)
    assert done.code == 2
    assert "calibration sample 0: tensor 'x': expected finite values, found nan" in done.err
    np.savez(wrong, x=np.zeros((0, 4), np.float32))
    done = samebits("quantize", model, "--calibration", wrong, "--out", out)
    assert done.code == 2
    assert "expected at least one sample, found none" in done.err
    samebits("quantize", model, "--calibration", samples, "--out", out)
    done = samebits("quantize", out, "--calibration", samples, "--out", out)
    assert done.code == 2
    assert "it is quantized already" in done.err
