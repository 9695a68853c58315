"""`samebits trace` and `samebits audit`: two machines' traces, and where they part."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest

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
def traced(samebits, tiny, tmp_path):
    """Traces the tiny model; the path of the trace."""

    def trace(name, *more, inputs="random:3"):
        path = tmp_path / f"{name}.json"
        done = samebits("trace", tiny, "--data", inputs, "--out", path, *more)
        assert done.code == 0, done.err
        return path

    return trace


def bad(done, message):
    """Exit code 2 and nothing but this message."""
    assert (done.code, done.out, done.err) == (2, "", f"error: {message}\n")


def test_trace_writes_a_file_and_says_so(samebits, tiny, tmp_path):
    out = tmp_path / "t.json"
    done = samebits("trace", tiny, "--data", "random:3", "--out", out)
    assert (done.code, done.err) == (0, "")
    assert done.out == f"written: {out}: 3 layers, 3 runs\n"
    record = json.loads(out.read_text())
    assert (record["format"], record["model"]) == ("samebits-trace-1", str(tiny))
    assert record["backend"] == "reference"
    assert [len(run) for run in record["runs"]] == [3, 3, 3]
    assert not [path for path in tmp_path.iterdir() if path not in (out, tiny)]


def test_two_backends_agree(samebits, traced):
    a, b = traced("a"), traced("b", "--backends", "torch")
    done = samebits("audit", a, b)
    assert (done.code, done.out, done.err) == (0, f"{a} and {b}\n\nsame bits: yes\n", "")
    done = samebits("audit", a, b, "--json")
    assert done.code == 0
    assert json.loads(done.out) == {"same_bits": True, "parting": None}


def test_generated_c_agrees(samebits, traced):
    if not shutil.which("cc"):
        pytest.skip("needs cc")
    a, b = traced("a"), traced("b", "--backends", "c")
    assert "codes" not in json.loads(b.read_text())
    assert samebits("audit", a, b).code == 0


def test_the_audit_names_the_first_layer_and_elements(samebits, traced, monkeypatch):
    a = traced("a")
    trace = PyTorch.trace

    def wrong(self, model, inputs):
        from samebits.ir.integer.layers import fnv1a
        from samebits.verification.backend import TracedValue

        runs = trace(self, model, inputs)
        for index in (1, 2):
            layer = runs[1][index]
            codes = layer.codes.copy()
            codes[0, -1] ^= 1
            runs[1][index] = TracedValue(layer.name, fnv1a(codes), layer.count, codes)
        return runs

    monkeypatch.setattr(PyTorch, "trace", wrong)
    b = traced("b", "--backends", "torch")
    done = samebits("audit", a, b, "--json")
    assert (done.code, done.out.count("\n")) == (1, 1)
    record = json.loads(done.out)
    assert record["same_bits"] is False
    parting = record["parting"]
    (element,) = parting["elements"]
    assert (parting["run"], parting["layer"], parting["differing"]) == (1, "t.q.codes", 1)
    index, left, right = element
    assert (index, right) == ([0, 4], left ^ 1)
    done = samebits("audit", a, b)
    assert done.code == 1
    assert done.out == (
        f"{a} and {b}\n\nrun 1: layer 't.q.codes' differs: {parting['hashes'][0]} in {a}, "
        f"{parting['hashes'][1]} in {b}\n"
        f"  [0, 4]: {left} != {right}\n"
        "1 elements of this layer differ\n"
        "same bits: NO\n"
    )


def test_other_inputs_part(samebits, traced):
    a, b = traced("a"), traced("b", "--seed", 1)
    done = samebits("audit", a, b)
    assert done.code == 1
    assert done.out.startswith(f"{a} and {b}\n\nrun 0: layer 'h.codes' differs: ")
    assert done.out.endswith("same bits: NO\n")
    c = traced("c", inputs="random:2")
    bad(
        samebits("audit", a, c),
        "expected two traces of the same inputs, found 3 and 2 runs",
    )


def test_other_models(samebits, traced, trained, tmp_path):
    a, b = traced("a"), tmp_path / "b.json"
    assert samebits("trace", trained, "--data", "random:3", "--out", b).code == 0
    done = samebits("audit", a, b)
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("error: expected two traces of one model, found 'h.codes' and ")


def test_an_archive(traced, tmp_path):
    np.savez(tmp_path / "x.npz", x=np.zeros((2, 4), np.int8))
    record = json.loads(traced("a", inputs=tmp_path / "x.npz").read_text())
    assert record["runs"][0] == record["runs"][1]


# --- what they refuse -----------------------------------------------------------------------


def test_unknown_backends(samebits, tiny, tmp_path):
    done = samebits(
        "trace", tiny, "--data", "random:1", "--out", tmp_path / "t.json", "--backends", "gpu"
    )
    bad(done, f"unknown backend 'gpu'; expected one of {', '.join(known_backends())}")


def test_backends_without_traces(samebits, tiny, trained, tmp_path):
    pytest.importorskip("onnxruntime")
    for model, name, message in (
        (tiny, "onnxruntime", "onnxruntime keeps no trace; trace the reference instead"),
        (trained, "training",
         "the training backend keeps no trace; trace the reference instead"),
    ):  # fmt: skip
        out = tmp_path / "t.json"
        done = samebits("trace", model, "--data", "random:1", "--out", out, "--backends", name)
        bad(done, message)
        assert not out.exists()


def test_a_backend_that_is_not_there(samebits, tiny, tmp_path, monkeypatch):
    monkeypatch.setattr(PyTorch, "unavailable", lambda self: "torch: expected a machine")
    out = tmp_path / "t.json"
    done = samebits("trace", tiny, "--data", "random:1", "--out", out, "--backends", "torch")
    bad(done, "backend torch cannot run here: torch: expected a machine")


def test_bad_inputs_and_models(samebits, tiny, tmp_path):
    out = tmp_path / "t.json"
    done = samebits("trace", tiny, "--data", "random:0", "--out", out)
    bad(done, "--data: expected random:N with 1 <= N <= 1000000, found 'random:0'")
    path = float_file(tmp_path / "f.onnx", (1, 4))
    done = samebits("trace", path, "--data", "random:1", "--out", out)
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith(f"error: {path}: expected a quantized model")
    assert not out.exists()


def test_out_that_cannot_be_written(samebits, tiny, tmp_path):
    (tmp_path / "file").write_text("")
    folder = tmp_path / "folder"
    folder.mkdir()
    for out in (tmp_path / "file" / "t.json", folder):
        done = samebits("trace", tiny, "--data", "random:1", "--out", out)
        assert (done.code, done.out) == (2, "")
        assert done.err.startswith("error: ")
        assert "Traceback" not in done.err
    assert not list(folder.iterdir())


def test_traces_that_are_none(samebits, traced, tmp_path):
    a, b = traced("a"), tmp_path / "b.json"
    done = samebits("audit", a, b)
    assert (done.code, done.out) == (2, "")
    assert str(b) in done.err
    for data in (b"", b"hello", b"[" * 100_000, b"\xff" * 10):
        b.write_bytes(data)
        for pair in ((a, b), (b, a)):
            done = samebits("audit", *pair)
            assert (done.code, done.out) == (2, "")
            assert done.err.startswith(f"error: {b}: expected a trace in JSON, found: ")
    b.write_text("{}")
    bad(
        samebits("audit", a, b),
        f"{b}: expected a trace of format 'samebits-trace-1' of samebits, found None; make a trace "
        "with: samebits trace MODEL --data X.npz --out FILE",
    )
    assert samebits("audit", a).code == 2


def test_forged_codes(samebits, traced, tmp_path):
    a, b = traced("a"), tmp_path / "b.json"
    record = json.loads(a.read_text())
    record["runs"][0][0] = "0" * 16
    record["codes"][0][0] = "***"
    b.write_text(json.dumps(record))
    done = samebits("audit", a, b)
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("error: layer 'h.codes': damaged codes in the trace: ")


def test_no_text_of_a_trace_reaches_the_terminal_as_it_is(samebits, traced, tmp_path):
    a, b = traced("a"), tmp_path / "b.json"
    for change in ("hash", "name"):
        pair = []
        for path in (a, b):
            record = json.loads(a.read_text())
            record["layers"][0]["name"] = "a" if change == "hash" else "\x1b[31mred"
            if path == b:
                record["runs"][0][0] = "\x1b[31mred" if change == "hash" else "0" * 16
            path = tmp_path / f"{change}-{path.name}"
            path.write_text(json.dumps(record))
            pair.append(path)
        done = samebits("audit", *pair)
        assert done.code in (1, 2)
        assert "\x1b" not in done.out + done.err


@pytest.fixture
def training(samebits, npz, tmp_path):
    """Trains with a trace; its path."""

    def train(name, *more):
        path = tmp_path / f"{name}.jsonl"
        options = ("--arch", "mlp", "--epochs", 1, "--batch", 32, "--shards", 2)
        out = tmp_path / name
        done = samebits("train", "--data", npz, *options, "--out", out, "--trace", path, *more)
        assert done.code == 0, done.err
        return path

    return train


def test_audit_of_training(samebits, training, traced):
    a, b = training("a"), training("b", "--threads", 1)
    done = samebits("audit", a, b)
    assert (done.code, done.out) == (0, f"{a} and {b}\n\n3 steps agree\nsame bits: yes\n")
    lines = b.read_text().splitlines()
    record = json.loads(lines[2])
    before = record["shards"][1]["gradients"][2]
    record["shards"][1]["gradients"][2] = "f" * 16
    lines[2] = json.dumps(record)
    b.write_text("\n".join(lines) + "\n")
    done = samebits("audit", a, b)
    assert done.code == 1
    assert done.out == (
        f"{a} and {b}\n\n1 steps agree\nstep 2, shard 1: gradient of layer '2' differs: {before} "
        f"in {a}, {'f' * 16} in {b}\nsame bits: NO\n"
    )
    done = samebits("audit", a, b, "--json")
    assert done.code == 1
    parting = {"step": 2, "shard": 1, "tensor": "gradient of layer '2'"}
    assert json.loads(done.out) == {
        "same_bits": False,
        "steps": 1,
        "parting": {**parting, "hashes": [before, "f" * 16]},
    }
    bad(
        samebits("audit", a, traced("c")),
        "expected two traces of one kind, found one of training and one not",
    )
    bad(
        samebits("audit", a, training("d", "--lr", 0.5)),
        "expected two traces of one run, found other options: lr: expected 0.1, found 0.5",
    )
