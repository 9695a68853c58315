"""Loops, as converters write recurrent layers of Keras, become their turns."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import samebits as sb
from samebits.errors import InputError, UnsupportedError
from samebits.excerpt import Excerpt
from samebits.ir.interpreter import run
from samebits.tflite import from_bytes, to_bytes
from samebits.tflite.file import File, LiteOperator
from samebits.tflite.loops import TURNS_MOST
from samebits.tflite.peers.process import computed, missing
from tflite_files import Net, codes_of
from tflite_networks import TURNS, looping_net


def by_hand(net: Net, y: int) -> tuple[Net, int]:
    """The turns written one after the other."""
    flat = Net(3, net.dtype)
    flat.tensors, flat.inputs = list(net.tensors), list(net.inputs)
    body = net.others[1]
    (_, start, x), h = net.operators[0].inputs, net.operators[0].outputs[1]
    held = start
    for turn in range(TURNS):
        places = {body.inputs[1]: held, body.inputs[2]: x}
        at = flat.tensor((), "int32", array=np.array(turn, np.int32))
        places[body.inputs[0]] = at
        for number, tensor in enumerate(body.tensors):
            if number not in places:
                flat.tensors.append(replace(tensor, name=f"{tensor.name}.{turn}"))
                places[number] = len(flat.tensors) - 1
        for operator in body.operators[1:]:
            flat.operators.append(
                replace(
                    operator,
                    inputs=tuple(places[n] for n in operator.inputs),
                    outputs=tuple(places[n] for n in operator.outputs),
                )
            )
        held = places[body.outputs[1]]
    moved = {h: held}
    for operator in net.operators[1:]:
        inputs = tuple(moved.get(n, n) for n in operator.inputs)
        flat.operators.append(replace(operator, inputs=inputs))
    return flat, y


@pytest.mark.parametrize("meaning", ["exact", "tflite"])
def test_a_loop_is_its_turns(meaning, tmp_path):
    net, y = looping_net()
    flat, _ = by_hand(net, y)
    found = []
    for name, made in (("loop", net), ("flat", flat)):
        path = tmp_path / f"{name}.tflite"
        path.write_bytes(made.bytes(y))
        found.append(sb.load(path, meaning=meaning).model.integer)
    results = []
    for seed in range(5):
        (ours,), (theirs,) = (run(graph, codes_of(net, seed)) for graph in found)
        np.testing.assert_array_equal(ours, theirs)
        results.append(ours)
    assert np.unique(results).size > 4


def test_a_float_loop_is_quantized(tmp_path):
    net, y = looping_net("float32")
    path = tmp_path / "f.tflite"
    path.write_bytes(net.bytes(y))
    x = np.random.default_rng(1).normal(0, 1, (30, 4, 1, 6)).astype(np.float32)
    loaded = sb.load(path)
    assert loaded.kind == "float network"
    assert [node.op for node in loaded.model.real.nodes].count("Gather") == TURNS
    assert x.shape[1:] == loaded.inputs[0].shape


def refused(file: File, meaning: str = "tflite") -> str:
    with pytest.raises((InputError, UnsupportedError)) as caught:
        from_bytes(to_bytes(file), "f.tflite", Excerpt(meaning=meaning))
    return str(caught.value)


def test_loops_that_are_refused():
    net, y = looping_net(turns=TURNS_MOST + 5, step=0)
    assert f"operator 0 (WHILE): expected at most {TURNS_MOST} turns" in refused(net.file(y))
    net, y = looping_net()
    inner = net.others[0]
    computed_ = (*inner.operators, LiteOperator("LESS", (1, 2), inner.outputs))
    net.others[0] = replace(inner, operators=computed_[1:])
    assert "expected a number of turns that the file fixes, found one" in refused(net.file(y))
    net, y = looping_net()
    net.others[1] = replace(net.others[1], outputs=net.others[1].outputs[:2])
    assert "expected subgraphs of 3 variables, found others" in refused(net.file(y))
    net, y = looping_net()
    net.others.clear()
    assert "expected another subgraph, found number 1" in refused(net.file(y))
    net, y = looping_net()
    nested = replace(net.others[1], operators=(*net.others[1].operators, net.operators[0]))
    net.others[1] = nested
    assert "expected no loop inside, found one" in refused(net.file(y))


@pytest.mark.slow
def test_a_loop_is_that_of_the_runtime():
    if reason := missing("tflm"):
        pytest.skip(reason)
    net, y = looping_net()
    data = net.bytes(y)
    graph = from_bytes(data, "f", Excerpt(meaning="tflite")).graph
    samples = np.stack([codes_of(net, seed)[0] for seed in range(50)])
    theirs = computed("tflm", data, [samples], [y])[y]
    assert np.unique(theirs).size > 20
    for sample, wanted in zip(samples, theirs, strict=True):
        np.testing.assert_array_equal(run(graph, [sample])[0], wanted)
