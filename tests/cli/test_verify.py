"""`samebits verify`: backends against the reference, in a table or as JSON."""

from __future__ import annotations

import hashlib
import json
import shutil

import numpy as np
import pytest

from samebits import load as load_network
from samebits.model import load as load_model
from samebits.verification.backends.pytorch import PyTorch
from samebits.verification.registry import known_backends
from tiny_models import float_file, quantized_file, trained_folder


@pytest.fixture(scope="session")
def trained(tmp_path_factory):
    return trained_folder(tmp_path_factory)


@pytest.fixture
def tiny(tmp_path):
    return quantized_file(tmp_path / "tiny.onnx")


@pytest.fixture
def flipped(monkeypatch):
    """The torch backend flips the lowest bit of the second sample's last code."""
    run = PyTorch.run

    def wrong(self, model, inputs):
        outputs = run(self, model, inputs)
        outputs[0][1, -1] ^= 1
        return outputs

    monkeypatch.setattr(PyTorch, "run", wrong)


def bad(done, message):
    """Exit code 2 and nothing but this message."""
    assert (done.code, done.out, done.err) == (2, "", f"error: {message}\n")


def needs_compiler():
    if not shutil.which("cc"):
        pytest.skip("needs cc")


# --- verdicts -------------------------------------------------------------------------------


def test_same_bits(samebits, tiny):
    done = samebits("verify", tiny, "--data", "random:4", "--backends", "torch")
    assert done.code == 0
    assert done.out.endswith("same bits: yes\n")
    row = next(line for line in done.out.splitlines() if "torch" in line)
    assert row.split()[:-1] == ["torch", "0", "12", "0", "0", "of", "4"]


def test_json_is_one_object(samebits, tiny):
    done = samebits("verify", tiny, "--data", "random:4", "--backends", "torch", "--json")
    assert done.code == 0
    assert done.out.count("\n") == 1
    record = json.loads(done.out)
    assert list(record) == ["model", "samples", "same_bits", "verdicts"]
    assert (record["model"], record["samples"], record["same_bits"]) == (str(tiny), 4, True)
    (verdict,) = record["verdicts"]
    assert verdict["sha256"] == verdict["expected_sha256"]
    assert (verdict["backend"], verdict["differing"], verdict["total"]) == ("torch", 0, 12)
    assert (verdict["equal"], verdict["skipped"], verdict["first"]) == (True, None, [])


def test_the_default_backends(samebits, tiny):
    needs_compiler()
    pytest.importorskip("onnxruntime")
    record = json.loads(samebits("verify", tiny, "--data", "random:4", "--json").out)
    assert record["same_bits"] is True
    *others, plain, integer = record["verdicts"]
    assert [v["backend"] for v in others] == ["torch", "c"]
    assert (plain["backend"], integer["backend"]) == ("onnxruntime", "onnxruntime-integer")
    assert [v["equal"] for v in (*others, integer)] == [True] * 3
    assert plain["skipped"].startswith(
        "onnxruntime-integer stands for it, since it computes in binary32 and may differ: node "
    )
    assert plain["skipped"].endswith("; give --backends onnxruntime to count the differences")


def test_a_flipped_bit_is_found(samebits, tiny, flipped):
    command = ("verify", tiny, "--data", "random:4", "--backends", "torch,reference")
    done = samebits(*command)
    assert done.code == 1
    assert done.out.endswith("same bits: NO\n")
    record = samebits(*command, "--json")
    assert (record.code, record.out.count("\n")) == (1, 1)
    record = json.loads(record.out)
    assert record["same_bits"] is False
    (verdict,) = record["verdicts"]
    assert (verdict["differing"], verdict["samples"], verdict["largest"]) == (1, 1, 1.0)
    (first,) = verdict["first"]
    assert (first["output"], first["index"]) == ("y", [1, 2])
    assert first["found"] == first["expected"] ^ 1
    assert verdict["sha256"] != verdict["expected_sha256"]
    line = f"torch: output 'y' [1, 2]: {first['expected']} != {first['found']}\n"
    assert line in done.out


def test_one_difference_among_several_backends(samebits, tiny, flipped):
    pytest.importorskip("onnxruntime")
    names = "onnxruntime-integer,torch"
    done = samebits("verify", tiny, "--data", "random:4", "--backends", names, "--json")
    assert done.code == 1
    assert [v["equal"] for v in json.loads(done.out)["verdicts"]] == [True, False]


def test_a_backend_that_cannot_run_is_refused_by_name(samebits, tiny, monkeypatch):
    monkeypatch.setattr(PyTorch, "unavailable", lambda self: "torch: [expected] a machine")
    done = samebits("verify", tiny, "--backends", "torch,onnxruntime-integer")
    bad(
        done,
        "backend torch cannot run here: torch: [expected] a machine; leave it out, or give "
        "--available to compare those that can",
    )


def test_a_backend_that_cannot_run_is_listed(samebits, tiny, monkeypatch):
    """Where backends are not named, or those of the names are wanted that can run."""
    pytest.importorskip("onnxruntime")
    monkeypatch.setattr(PyTorch, "unavailable", lambda self: "torch: [expected] a machine")
    names = ("--backends", "training,torch,onnxruntime-integer", "--available")
    done = samebits("verify", tiny, "--data", "random:2", *names, "--json")
    by_name = {v["backend"]: v for v in json.loads(done.out)["verdicts"]}
    assert by_name["torch"]["skipped"] == "torch: [expected] a machine"
    assert "expected a training output folder" in by_name["training"]["skipped"]
    done = samebits("verify", tiny, "--data", "random:2", *names)
    assert "torch: not compared: torch: [expected] a machine\n" in done.out
    assert done.out.endswith("same bits: yes (2 not compared)\n")
    usual = samebits("verify", tiny, "--data", "random:2")
    assert "torch: not compared: torch: [expected] a machine\n" in usual.out


def test_every_backend_that_can_run(samebits, tiny, monkeypatch):
    names = ("npu", "onnxruntime-integer", "reference", "torch", "training")
    monkeypatch.setattr("samebits.verification.run.known_backends", lambda: names)
    done = samebits("verify", tiny, "--data", "random:2", "--available", "--json")
    assert done.code == 0
    found = {v["backend"] for v in json.loads(done.out)["verdicts"] if v["skipped"] is None}
    assert found - {"onnxruntime-integer"} == {"torch"}


@pytest.mark.parametrize("names", ["training", "reference"])
def test_nothing_compared_is_no_yes(samebits, tiny, names):
    """A check that every backend skipped has shown nothing."""
    done = samebits("verify", tiny, "--data", "random:2", "--backends", names)
    assert "same bits: yes" not in done.out
    done = samebits("verify", tiny, "--data", "random:2", "--backends", names, "--json")
    assert json.loads(done.out or "{}").get("same_bits") is not True


def test_an_archive(samebits, tiny, tmp_path):
    path = tmp_path / "x.npz"
    np.savez(path, x=np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32))
    done = samebits("verify", tiny, "--data", path, "--backends", "torch", "--json")
    assert (done.code, json.loads(done.out)["samples"]) == (0, 5)


def test_samples_of_a_batched_model(samebits, tmp_path):
    path = quantized_file(tmp_path / "four.onnx", batch=4)
    done = samebits("verify", path, "--data", "random:2", "--backends", "torch", "--json")
    record = json.loads(done.out)
    assert (done.code, record["samples"], record["verdicts"][0]["total"]) == (0, 2, 24)


def test_the_seed(samebits, tiny):
    def sha(seed):
        done = samebits(
            "verify", tiny, "--data", "random:3", "--backends", "torch", "--json",
            "--seed", seed,
        )  # fmt: skip
        return json.loads(done.out)["verdicts"][0]["sha256"]

    assert sha(0) == sha(0)
    assert sha(0) != sha(1)


def test_a_training_and_a_compiled_folder(samebits, trained, tmp_path):
    out = tmp_path / "c"
    assert samebits("compile", trained, "--out", out, "--no-sizes").code == 0
    hashes = set()
    for model, names in ((trained, "torch,training"), (out, "torch")):
        done = samebits("verify", model, "--data", "random:3", "--backends", names, "--json")
        assert done.code == 0, done.err
        for verdict in json.loads(done.out)["verdicts"]:
            assert verdict["equal"]
            hashes.add(verdict["sha256"])
    assert len(hashes) == 1
    needs_compiler()
    done = samebits("verify", out, "--data", "random:3", "--backends", "c")
    assert done.code == 0


# --- what it refuses ------------------------------------------------------------------------


def test_unknown_backends(samebits, tiny):
    known = ", ".join(known_backends())
    for names, wrong in (("gpu", "gpu"), ("torch,gpu", "gpu"), ("", ""), ("torch, gpu", "gpu")):
        done = samebits("verify", tiny, "--data", "random:1", "--backends", names)
        bad(done, f"unknown backend {wrong!r}; expected one of {known}")


@pytest.mark.parametrize("text", ["random:", "random:0", "random:x", "random:-1", "random:1000001"])
def test_bad_counts(samebits, tiny, text):
    done = samebits("verify", tiny, "--data", text, "--backends", "torch")
    bad(done, f"--data: expected random:N with 1 <= N <= 1000000, found {text!r}")


def test_bad_archives(samebits, tiny, tmp_path):
    path = tmp_path / "x.npz"
    done = samebits("verify", tiny, "--data", path)
    assert (done.code, done.out) == (2, "")
    assert str(path) in done.err
    path.write_bytes(b"hello")
    done = samebits("verify", tiny, "--data", path)
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith(f"error: {path}: not a readable .npz archive")
    np.savez(path, x=np.zeros((2, 5), np.float32))
    bad(
        samebits("verify", tiny, "--data", path),
        f"{path}: input 'x': expected shape [N, 4] with N a multiple of 1, found [2, 5]",
    )
    np.savez(path, x=np.zeros((2, 4), np.int16))
    bad(
        samebits("verify", tiny, "--data", path),
        f"{path}: input 'x': expected real numbers or int8 codes, found int16",
    )
    np.savez(path, x=np.full((1, 4), np.nan, np.float32))
    done = samebits("verify", tiny, "--data", path)
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith(
        "error: input 'x': expected finite values, found nan at index (0, 0)"
    )
    done = samebits("verify", tiny, "--data", tmp_path)
    assert (done.code, done.out) == (2, "")
    assert "Traceback" not in done.err


def test_float_models(samebits, tmp_path):
    path = float_file(tmp_path / "f.onnx", (1, 4))
    bad(
        samebits("verify", path, "--data", "random:1"),
        f"{path}: expected a quantized model (QuantizeLinear and DequantizeLinear nodes), found a "
        "float one; quantize it first: samebits quantize MODEL.onnx --data X.npz --out "
        "Q.onnx",
    )


def test_missing_models(samebits, tmp_path):
    path = tmp_path / "none"
    bad(
        samebits("verify", path, "--data", "random:1"),
        f"{path}: no such file or folder; expected an .onnx, .pt2 or .tflite file, a training "
        "output folder, a checkpoint, or a compiled folder (with model.onnx)",
    )


def test_bad_usage(samebits, tiny):
    assert samebits("verify").code == 2
    assert samebits("verify", tiny, "--data", "random:1", "--seed", "-1").code == 2
    assert samebits("verify", tiny, "--data", "random:1", "--seed", 2**32).code == 2


@pytest.mark.parametrize("shape", [(), (0, 3), (2, 0)])
def test_odd_shapes_of_inputs_are_no_crash(samebits, tmp_path, shape):
    """A scalar or nothing at all: verified, or refused in words."""
    from samebits.ir import GraphBuilder
    from samebits.onnx import save_qdq

    builder = GraphBuilder("scalar")
    s, z = builder.constant("s", np.float32(0.5)), builder.constant("z", np.int8(0))
    y = builder.input("x", "float32", shape)
    for op in ("QuantizeLinear", "DequantizeLinear", "Tanh", "QuantizeLinear", "DequantizeLinear"):
        y = builder.add(op, [y] if op == "Tanh" else [y, s, z])
    save_qdq(builder.build([y]), tmp_path / "m.onnx")
    load_model(tmp_path / "m.onnx")
    done = samebits("verify", tmp_path / "m.onnx", "--data", "random:2", "--backends", "torch")
    assert done.code == 0 or done.err.startswith("error: ")


# --- compiled folders -----------------------------------------------------------------------


def test_a_compiled_folder(samebits, tiny, tmp_path):
    """Its files are checked, and what differs ends with exit code 1, whoever reads the file."""
    folder, again = tmp_path / "pk", tmp_path / "again"
    load_network(tiny).compile(folder)
    command = ("verify", folder, "--data", "random:2", "--backends", "torch")
    done = samebits(*command, "--rebuild", again)
    assert (done.code, done.err) == (0, "")
    sha256 = hashlib.sha256((folder / "report.json").read_bytes()).hexdigest()
    line = (
        f"every file is what this version writes for its model.onnx; report.json: sha256 {sha256}"
    )
    assert line in done.out
    assert done.out.endswith(f"\nsame bits: yes\nwritten: {again}\n")
    assert (again / "report.json").read_bytes() == (folder / "report.json").read_bytes()

    (folder / "model.c").write_text("int main(void) { return 0; }\n")
    done = samebits(*command)
    assert (done.code, done.err) == (1, "")
    assert done.out == (
        f"{folder} on 0 samples\n\n{folder}: expected the package as it was written, found 1 file "
        "that differs; nothing of it was built or run. Compile again, or remove what is not of the "
        "package:\n  model.c: another SHA-256 than report.json states\n\nnothing compared\n"
    )
    record = json.loads(samebits(*command, "--json").out)
    assert (record["same_bits"], record["verdicts"]) == (None, [])
    assert "model.c: another SHA-256" in record["refused"]

    (folder / "model.onnx").write_bytes(b"\x08")
    for name in ("verify", "inspect", "report"):
        done = samebits(name, folder)
        assert (done.code, done.out, done.explained) == (1, "", "package")
        assert "model.onnx: another SHA-256 than report.json states" in done.err


def test_only_a_compiled_folder_is_built_again(samebits, tiny, tmp_path):
    done = samebits("verify", tiny, "--rebuild", tmp_path / "again")
    bad(
        done,
        f"{tiny}: expected a folder that samebits compile or ship wrote to build again, found "
        "another model; compile it",
    )


def test_samples_are_named_once(samebits, tiny):
    done = samebits("verify", tiny, "--data", "nothing.npz", "--raw", "digits")
    bad(
        done,
        "--data: expected none beside --raw, which names samples too, found nothing.npz; "
        "leave one out",
    )
