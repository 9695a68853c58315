"""`samebits quantize`: an ONNX file and an NPZ file in, a QDQ ONNX file and a table out."""

from __future__ import annotations

import json

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from samebits.ir.interpreter import run
from samebits.ir.lowering.lower import lower_graph
from samebits.onnx import load
from tiny_models import float_file

NOTE = (
    "note: input 'x': its open leading dimension is fixed at 1; samples go through one after the "
    "other (--shape x=... sets another)\n"
)


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
    done = samebits("quantize", model, "--data", samples, "--out", out)
    assert (done.code, done.err) == (0, NOTE)
    assert "calibrated on 20 samples, compared on 16\n" in done.out
    # 59 float32; then 56 codes, 11 scales and zero points, 11 biases and their scales.
    assert "constants 268 bytes before, 199 bytes after\n" in done.out
    assert done.out.endswith(f"\nwritten: {out}\n")
    assert "\x1b" not in done.out
    onnx.checker.check_model(onnx.load(out))
    quantized, float_graph = load(out), load(model)
    assert sum(node.op == "QuantizeLinear" for node in quantized.nodes) == 3
    lower_graph(quantized)
    with np.load(samples) as arrays:
        for x in arrays["x"][:, None]:
            assert abs(run(quantized, [x])[0] - run(float_graph, [x])[0]).max() < 0.2


def test_settings_and_json(samebits, tmp_path, model, samples):
    out = tmp_path / "q.onnx"
    done = samebits(
        "quantize", model, "--data", samples, "--out", out, "--scheme", "power-of-two-s8",
        "--weights", "power-of-two-s8", "--calibrate", "percentile", "--percentile", "99",
        "--output-bits", "16", "--per-tensor", "--json",
    )  # fmt: skip
    assert (done.code, done.err) == (0, NOTE)
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
        "stop_early": None,
        "equalize": None,
        "rounding": "nearest",
        "bias_correction": False,
        "mixed": None,
        "refine_samples": 128,
        "widths": {},
        "entries": {},
        "headroom": False,
        "repair": False,
    }
    formats = [tensor["format"] for tensor in record["tensors"]]
    assert formats == ["power-of-two-s8", "power-of-two-s8", "power-of-two-s16"]
    assert [constant["scales"] for constant in record["constants"]] == [1] * 4


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (["--scheme", "int8"], "--scheme: expected one of asymmetric-s8,"),
        (["--weights", "int8"], "--weights: expected one of symmetric-s8,"),
        (["--calibrate", "kl"], "--calibrate: expected one of minmax, percentile, mse"),
        (
            ["--calibrate", "percentile", "--percentile", "10"],
            "--percentile: expected above 50 and up to 100, found 10.0",
        ),
        (["--output-bits", "4"], "--output-bits: expected 8 or 16, found 4"),
        (["--equalize", "all"], "--equalize: expected one of weights, activations, found 'all'"),
        (
            ["--weight-rounding", "up"],
            "--weight-rounding: expected one of nearest, least-error, found 'up'",
        ),
        (["--mixed", "0"], "--mixed: expected 1 tensor or more, found 0"),
        (["--effort", "low"], "--effort: expected one of plain, high, found 'low'"),
    ],
)
def test_wrong_settings(samebits, tmp_path, model, samples, change, message):
    out = tmp_path / "q.onnx"
    done = samebits("quantize", model, "--data", samples, "--out", out, *change)
    assert done.code == 2
    assert message in done.err
    assert not out.exists()


def test_effort_prints_what_was_tried_and_what_was_done(samebits, tmp_path, model, samples):
    out = tmp_path / "q.onnx"
    done = samebits(
        "quantize", model, "--data", samples, "--out", out, "--effort", "high",
        "--calibrate", "minmax", "--bias-correction",
    )  # fmt: skip
    assert done.code == 0
    assert "measured on 5 samples held out of calibration\n" in done.out
    assert "round weights to least error" in done.out
    assert "bias correction" in done.out
    assert "clip at" not in done.out  # the user chose how to calibrate
    lower_graph(load(out))


def test_what_cannot_be_compiled_is_not_written(samebits, tmp_path, samples):
    nodes = [helper.make_node("Hardmax", ["x"], ["y"], name="scores")]
    graph = helper.make_graph(
        nodes,
        "scores",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 4])],
    )
    path, out = tmp_path / "scores.onnx", tmp_path / "q.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), path)
    done = samebits("quantize", path, "--data", samples, "--out", out)
    assert (done.code, done.out) == (2, "")
    assert (
        "node 'scores' (Hardmax): expected an operator with an integer form "
        "(docs/spec/graph.md section 4), found Hardmax; replace it, or compute it outside the "
        "network"
    ) in done.err
    assert not out.exists()


def test_an_early_end_is_told(samebits, tmp_path, model, samples):
    done = samebits(
        "quantize", model, "--data", samples, "--out", tmp_path / "q.onnx",
        "--stop-early", "1",
    )  # fmt: skip
    assert done.code == 0
    assert done.err.startswith(f"{NOTE}note: calibration: stopped after ")
    assert done.err.endswith(" samples, of which the last 1 changed no scale\n")


def test_bad_files(samebits, tmp_path, model, samples):
    out = tmp_path / "q.onnx"
    wrong = tmp_path / "wrong.npz"
    np.savez(wrong, x=np.zeros((3, 5), np.float32))
    done = samebits("quantize", model, "--data", wrong, "--out", out)
    assert done.code == 2
    assert "array x: expected shape [samples, 4], found [3, 5]" in done.err
    done = samebits("quantize", model, "--data", tmp_path / "none.npz", "--out", out)
    assert done.code == 2
    assert "none.npz" in done.err
    assert "Traceback" not in done.err
    np.savez(wrong, x=np.full((3, 4), np.nan, np.float32))
    done = samebits("quantize", model, "--data", wrong, "--out", out)
    assert done.code == 2
    assert "calibration sample 0: tensor 'x': expected finite values, found nan" in done.err
    np.savez(wrong, x=np.zeros((0, 4), np.float32))
    done = samebits("quantize", model, "--data", wrong, "--out", out)
    assert done.code == 2
    assert "expected at least one sample, found none" in done.err
    samebits("quantize", model, "--data", samples, "--out", out)
    done = samebits("quantize", out, "--data", samples, "--out", out)
    assert done.code == 2
    assert "expected a float network, found: quantized network" in done.err


def test_shapes_of_open_dimensions(samebits, tmp_path, model, samples):
    out = tmp_path / "q.onnx"
    done = samebits("quantize", model, "--data", samples, "--out", out, "--shape", "x=5,4")
    assert (done.code, done.err) == (0, "")
    (x,) = load(out).inputs
    assert load(out).values[x].shape == (5, 4)


def test_a_part_of_a_network(samebits, tmp_path, samples):
    model, out = float_file(tmp_path / "flat.onnx"), tmp_path / "q.onnx"
    command = ("quantize", model, "--data", samples, "--out", out)
    done = samebits(*command, "--start-at", "flat", "--end-at", "y")
    assert (done.code, load(out).inputs, load(out).outputs) == (0, ("flat",), ("y",))
    assert "Flatten" not in [node.op for node in load(out).nodes]


def test_a_callable_of_a_file(samebits, tmp_path, samples):
    own, out = tmp_path / "own.py", tmp_path / "q.onnx"
    own.write_text("from torch import nn\ndef net():\n    return nn.Linear(4, 3)\n")
    done = samebits("quantize", f"{own}:net", "--data", samples, "--out", out)
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith(f"{own}:net: quantized network\n")
    assert sum(node.op == "QuantizeLinear" for node in load(out).nodes) == 2


def test_a_float_training_run(samebits, shelf, tmp_path):
    out = tmp_path / "q.onnx"
    done = samebits("quantize", shelf["floatrun"], "--data", "digits", "--out", out, "--json")
    assert done.code == 0
    assert json.loads(done.out)["calibration_samples"] == 1438
    right = json.loads(samebits("eval", out, "--data", "digits", "--json").out)["accuracy"]
    assert right > 0.8


# --- recurrent models -------------------------------------------------------------------------


def lstm(path, direction="forward", activations=("Sigmoid", "Tanh", "Tanh"), spoil=None):
    """x [8, 1, 3] -> LSTM of 5 cells, named "ears"."""
    rng = np.random.default_rng(0)
    sides = 2 if direction == "bidirectional" else 1
    arrays = {
        "w": rng.normal(size=(sides, 20, 3)).astype(np.float32),
        "r": rng.normal(size=(sides, 20, 5)).astype(np.float32),
        "b": rng.normal(size=(sides, 40)).astype(np.float32),
    }
    if spoil is not None:
        arrays[spoil][0, 12] = np.nan  # gate f, or its bias
    node = helper.make_node(
        "LSTM",
        ["x", *arrays],
        ["y"],
        "ears",
        hidden_size=5,
        direction=direction,
        activations=activations * sides,
    )
    graph = helper.make_graph(
        [node],
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [8, 1, 3])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [8, sides, 1, 5])],
        [numpy_helper.from_array(array, name) for name, array in arrays.items()],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), path)


SEQUENCES = np.random.default_rng(1).normal(size=(5, 8, 1, 3)).astype(np.float32)


def with_nan():
    array = SEQUENCES.copy()
    array[2, 3, 0, 1] = np.nan
    return array


@pytest.mark.parametrize(
    ("network", "data", "message"),
    [
        ({}, SEQUENCES[:0], "graph 'net': expected sequences to calibrate on, found none"),
        (
            {},
            0 * SEQUENCES + 1.5,
            "layer 'ears', gate 'i': expected calibration sequences that vary, found 1.5 in every "
            "element of input 'x'",
        ),
        ({}, with_nan(), "calibration sample 2: tensor 'x': expected finite values, found nan"),
        ({}, SEQUENCES[..., :2], "expected shape [samples, 8, 1, 3], found [5, 8, 1, 2]"),
        ({}, SEQUENCES[:, :4], "expected shape [samples, 8, 1, 3], found [5, 4, 1, 3]"),
        ({"spoil": "w"}, SEQUENCES, "layer 'ears', gate 'f': expected finite weights of x"),
        ({"spoil": "r"}, SEQUENCES, "layer 'ears', gate 'f': expected finite weights of h"),
        ({"spoil": "b"}, SEQUENCES, "layer 'ears', gate 'f': expected finite biases, found nan"),
        (
            {"activations": ("Sigmoid", "Sine", "Tanh")},
            SEQUENCES,
            "node 'ears' (LSTM): expected activations of Relu",
        ),
        (
            {"direction": "reverse"},
            SEQUENCES,
            "--sequence step: node 'ears' (LSTM): expected the direction forward, found reverse",
        ),
        (
            {"direction": "bidirectional"},
            SEQUENCES,
            "node 'ears' (LSTM): expected the direction forward, found bidirectional",
        ),
    ],
)
def test_recurrent_models_that_are_refused(samebits, tmp_path, network, data, message):
    lstm(tmp_path / "lstm.onnx", **network)
    np.savez(tmp_path / "x.npz", x=data)
    out = tmp_path / "q.onnx"
    done = samebits(
        *("quantize", tmp_path / "lstm.onnx", "--data", tmp_path / "x.npz"),
        *("--sequence", "step", "--out", out),
    )
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("error: ")
    assert message in done.err
    assert not out.exists()


def test_a_layer_backwards_takes_whole_sequences(samebits, tmp_path):
    lstm(tmp_path / "lstm.onnx", direction="reverse")
    np.savez(tmp_path / "x.npz", x=SEQUENCES)
    out = tmp_path / "q.onnx"
    given = ("quantize", tmp_path / "lstm.onnx", "--data", tmp_path / "x.npz", "--out", out)
    done = samebits(*given)
    assert (done.code, len(load(out).states)) == (0, 0)
    assert done.err == (
        "note: sequence: a call takes whole sequences, because no time step stands alone (node "
        "'ears' (LSTM): expected the direction forward, found reverse: its steps wait for the end "
        "of the sequence; a step graph has one step)\n"
    )
    assert "a call takes a whole sequence\n" in done.out
    done = samebits(*given, "--sequence", "part")
    assert done.err == (
        "error: --sequence: expected step or whole, found 'part'; step is one time step a call, "
        "whole the whole sequence\n"
    )


def test_a_recurrent_model(samebits, shelf, tmp_path):
    out = tmp_path / "q.onnx"
    done = samebits(
        *("quantize", shelf["speech"], "--data", shelf["sequences"], "--out", out),
        *("--bits", 16, "--gates", "symmetric", "--symmetry", 0.5, "--calibrate", "minmax"),
    )
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith(f"{shelf['speech']}: quantized network\n")
    for gate in ("i", "f", "o", "c"):
        assert f"  {gate} " in done.out
    assert len(load(out).states) == 2


def test_nothing_is_written_below_a_floor(samebits, tmp_path, model, samples):
    out = tmp_path / "q.onnx"
    command = ["quantize", model, "--data", samples, "--out", out]
    done = samebits(*command, "--floor", "90")
    assert done.code == 1
    assert (
        "expected outputs that keep at least 90 dB of the float network, found output" in done.err
    )
    assert done.explained == "fidelity"
    assert not out.exists()
    done = samebits(*command, "--floor", "much")
    assert done.code == 2
    assert "--floor: expected a number of dB, or none, found 'much'" in done.err
    done = samebits(*command, "--floor", "none", "--json")
    assert done.code == 0
    (output,) = json.loads(done.out)["fidelity"]["outputs"]
    assert output["sqnr_db"] > 20
