"""`samebits quantize --state`: a network whose states are inputs and outputs of its own."""

from __future__ import annotations

import json

import numpy as np
import pytest

from samebits.ir import GraphBuilder
from samebits.onnx import load, save_qdq

FOUND = (
    "note: state: input h0 is fed by output hn (same shape [1, 5] and name); --state none keeps "
    "them apart, --state INPUT=OUTPUT names others\n"
)
STEPS = (
    "note: state: a step is one call; calibrating on 2 sequences of 6 steps, with the state that "
    "the float network hands on\n"
)


@pytest.fixture
def cell(tmp_path):
    """x [1, 3] and h0 [1, 5] -> y [1, 2] and hn = tanh(W x + U h0), as ONNX."""
    rng = np.random.default_rng(0)
    builder = GraphBuilder("cell")
    x, h = builder.input("x", "float32", (1, 3)), builder.input("h0", "float32", (1, 5))

    def gemm(a, *shape, outputs=()):
        weight = builder.constant("w", rng.uniform(-0.5, 0.5, shape).astype(np.float32))
        return builder.add("Gemm", [a, weight], {"transB": 1}, outputs=outputs)

    total = builder.add("Add", [gemm(x, 5, 3), gemm(h, 5, 5)])
    after = builder.add("Tanh", [total], outputs=["hn"])
    path = tmp_path / "cell.onnx"
    save_qdq(builder.build([after, gemm(after, 2, 5, outputs=["y"])]), path)
    return path


@pytest.fixture
def frames(tmp_path):
    path = tmp_path / "frames.npz"
    np.savez(path, x=np.random.default_rng(1).normal(size=(2, 6, 3)).astype(np.float32))
    return path


@pytest.mark.parametrize("given", [(), ("--state", "h0=hn"), ("--state", "h0=0")])
def test_a_state_is_tied(samebits, tmp_path, cell, frames, given):
    out = tmp_path / "q.onnx"
    done = samebits("quantize", cell, "--data", frames, "--out", out, *given)
    assert (done.code, done.err) == (0, STEPS if given else FOUND + STEPS)
    graph = load(out)
    assert [(s.input, s.output) for s in graph.states] == [("h0", "hn")]
    assert (graph.inputs, graph.outputs) == (("x", "h0"), ("y", "hn"))
    for command in (("compile", out, "--out", tmp_path / "c"), ("verify", out)):
        more = ("--backends", "torch,onnxruntime-integer") if command[0] == "verify" else ()
        assert samebits(*command, *more).code == 0


def test_the_ratio_of_every_state_is_in_the_json(samebits, tmp_path, cell, frames):
    out = tmp_path / "q.onnx"
    done = samebits("quantize", cell, "--data", frames, "--out", out, "--json")
    states = json.loads(done.out)["states"]
    assert states.keys() == {"h0"}
    assert states["h0"] > 30


def test_none_is_a_plain_graph(samebits, tmp_path, cell):
    """Its samples are those of any graph, one for each input."""
    path, out = tmp_path / "both.npz", tmp_path / "q.onnx"
    rng = np.random.default_rng(1)
    np.savez(
        path,
        x=rng.normal(size=(8, 3)).astype(np.float32),
        h0=rng.normal(size=(8, 5)).astype(np.float32),
    )
    done = samebits("quantize", cell, "--data", path, "--out", out, "--state", "none")
    assert (done.code, done.err) == (0, "")
    assert load(out).states == ()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (("h0",), "--state: expected INPUT=OUTPUT, once for each state, or none, found 'h0'"),
        (
            ("h0=hn", "none"),
            "--state: expected INPUT=OUTPUT such as h=hn, found 'none'; samebits inspect MODEL "
            "lists inputs and outputs",
        ),
        (("h0=hn", "h0=y"), "--state: expected one output for the input 'h0', found two"),
        (
            ("x=y",),
            "--state x=y: expected an output of the type and shape of the input, float32 [1, 3], "
            "found float32 [1, 2]; no output has its shape",
        ),
        (
            ("h=hn",),
            "--state h=hn: expected an input of the network (x, h0), found 'h'",
        ),
    ],
)
def test_pairs_that_are_refused(samebits, tmp_path, cell, frames, given, message):
    out = tmp_path / "q.onnx"
    options = [part for text in given for part in ("--state", text)]
    done = samebits("quantize", cell, "--data", frames, "--out", out, *options)
    assert (done.code, done.out) == (2, "")
    assert message in done.err
    assert not out.exists()


def test_options_of_feed_forward_networks(samebits, tmp_path, cell, frames):
    out = tmp_path / "q.onnx"
    done = samebits("quantize", cell, "--data", frames, "--out", out, "--per-tensor")
    assert done.code == 2
    assert "--per-tensor does not apply to a recurrent network, found True" in done.err
