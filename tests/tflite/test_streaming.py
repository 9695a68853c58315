"""States of files as those of a step graph, with what they begin with."""

from __future__ import annotations

import hashlib
import shutil
from dataclasses import replace

import numpy as np
import pytest

import samebits as sb
from lite_models import make
from samebits import csrc
from samebits.errors import InputError, UnsupportedError
from samebits.ir.interpreter import initial_state, run_steps
from samebits.tflite import parse, to_bytes
from samebits.tflite.file import LiteOperator
from samebits.tflite.same.importer import import_same
from samebits.tflite.same.versions import NEWEST, RUNTIMES
from samebits.verification.registry import backend_named
from stream_program import Run, stream
from tflite_files import Net, streaming_net

# Of 1,000 random steps of `streaming_net(seed)`, what the interpreters of tflite-micro
# 0.dev20260930204519 and 0.dev20261023182759 (from PyPI) gave.
STATEFUL = (
    *(("SVDF", "int8"), ("SVDF", "int16")),
    *(("UNIDIRECTIONAL_SEQUENCE_LSTM", "int8"), ("UNIDIRECTIONAL_SEQUENCE_LSTM", "int16")),
)
RECORDED = {0: "44a220b60c8c905b", 1: "10726feb9708f88c", 2: "c289648c521b10bf"}


def imported(net: Net, *outputs: int):
    return import_same(parse(net.bytes(*outputs), "f.tflite"), "f.tflite", RUNTIMES[NEWEST])


def inputs(seed: int, count: int):
    rng = np.random.default_rng(seed)
    return rng.integers(-128, 128, (count, 1, 1, 1, 3)).astype(np.int8)


@pytest.mark.parametrize("seed", range(3))
def test_a_thousand_steps(seed):
    net, y = streaming_net(seed)
    graph = imported(net, y)
    assert len(graph.states) == 2
    found = run_steps(graph, [inputs(seed, 1000)])[0]
    assert hashlib.sha256(found.tobytes()).hexdigest()[:16] == RECORDED[seed]


@pytest.mark.parametrize(
    ("seeds", "stateful"), [((1,), ()), pytest.param((0, 2), STATEFUL, marks=pytest.mark.slow)]
)
def test_a_thousand_steps_in_c(seeds, stateful, tmp_path, objects):
    """Of variables, filters over time and a recurrent layer, in chunks of several sizes."""
    compiler = shutil.which(csrc.compiler()[0])
    if compiler is None:
        pytest.skip("expected a C compiler")
    models = [streaming_net(seed) for seed in seeds]
    graphs = [imported(net, y) for net, y in models]
    for op, kind in stateful:
        made = make(op, kind, np.random.default_rng(1))
        assert made is not None
        graphs.append(imported(made[0], *made[1]))
    runs = [[Run([_codes(graph, name) for name in graph.own_inputs])] for graph in graphs]
    streamed = stream(graphs, runs, tmp_path, compiler, "-O1", objects=objects)
    for graph, (run,), (chunks,) in zip(graphs, runs, streamed, strict=True):
        expected, own = run_steps(graph, run.inputs), len(graph.own_outputs)
        for found in chunks:
            for ours, theirs in zip(found[:own], expected, strict=False):
                np.testing.assert_array_equal(ours.reshape(theirs.shape), theirs)
            for ours, theirs in zip(found[own:], expected[own:], strict=True):
                np.testing.assert_array_equal(ours.reshape(theirs[-1].shape), theirs[-1])


def _codes(graph, name):
    value, rng = graph.values[name], np.random.default_rng(3)
    low, high = np.iinfo(value.dtype).min, np.iinfo(value.dtype).max
    return rng.integers(low, high + 1, (1000, *value.shape)).astype(value.dtype)


def test_states_begin_as_the_file_says():
    net, y = streaming_net(1)
    graph = imported(net, y)
    once = [t.array for t in net.others[0].tensors if t.array is not None]
    begun = [initial_state(graph, state) for state in graph.states]
    for expected, found in zip(once, begun, strict=True):
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("backend", ["torch", "c", "onnxruntime-integer"])
def test_steps_are_the_same_everywhere(backend):
    """Each with the states of the step before, which the backend takes and gives."""
    found = backend_named(backend)
    if reason := found.unavailable():
        pytest.skip(reason)
    net, y = streaming_net(2, begun=backend != "onnxruntime-integer")  # ONNX has no place for them
    graph = imported(net, y)
    steps = inputs(2, 40)
    expected = run_steps(graph, [steps])
    before = [
        np.concatenate([initial_state(graph, state)[None], after[:-1]]).reshape(
            -1, *after.shape[2:]
        )
        for state, after in zip(graph.states, expected[1:], strict=True)
    ]
    given = [steps.reshape(-1, *steps.shape[2:]), *before]
    for ours, theirs in zip(found.run(sb.model.Model("f", graph), given), expected, strict=True):
        np.testing.assert_array_equal(ours.reshape(theirs.shape), theirs)


def test_a_part_keeps_its_states_alone(tmp_path):
    """Cut behind the first of two, and written and read again."""
    net, y = streaming_net(1)
    path = tmp_path / "f.tflite"
    path.write_bytes(net.bytes(y))
    first = next(op for op in net.operators if op.op == "CONV_2D").outputs[0]
    part = sb.load(path, meaning="tflite", end_at=net.tensors[first].name)
    assert len(part.model.integer.states) == 1
    written = tmp_path / "part.tflite"
    written.write_bytes(to_bytes(part.model.lite.file))
    again = sb.load(written, meaning="tflite")
    assert again.model.integer.inputs == part.model.integer.inputs
    assert len(parse(written.read_bytes(), "f").subgraphs) == 2


def refused(net: Net, *outputs: int) -> str:
    with pytest.raises((InputError, UnsupportedError)) as caught:
        imported(net, *outputs)
    return str(caught.value)


def changed(index: int, op: str = "", **more):
    """The net with another operator of this kind."""
    net, y = streaming_net(1)
    places = [i for i, operator in enumerate(net.operators) if operator.op == op]
    net.operators[places[index]] = replace(net.operators[places[index]], **more)
    return net, y


def test_forms_that_are_refused():
    net, y = streaming_net(1)
    net.others.clear()
    assert "operator 2 (CALL_ONCE): expected another subgraph, found number 1" in refused(net, y)
    net, y = streaming_net(1)
    net.operators = [op for op in net.operators if op.op != "CALL_ONCE"]
    assert "variable 'a': expected constants with which it begins, found none" in refused(net, y)
    net, y = streaming_net(1)
    net.operators = [op for op in net.operators if op.op != "ASSIGN_VARIABLE"]
    assert "variable 'a': expected it to be assigned" in refused(net, y)
    net, y = changed(0, "READ_VARIABLE", inputs=(0,))
    assert "expected the handle of a variable, found another tensor" in refused(net, y)
    net, y = changed(0, "ASSIGN_VARIABLE", inputs=(0,))
    assert "expected 2 inputs and 0 outputs, found others" in refused(net, y)
    net, y = streaming_net(1)
    once = net.others[0]
    other = LiteOperator("RESHAPE", (0,), (1,))
    net.others[0] = replace(once, operators=(*once.operators, other))
    assert "expected subgraph 1 to assign constants to variables, found RESHAPE" in refused(net, y)
    net, y = streaming_net(1)
    net.operators.append(LiteOperator("CALL_ONCE", (), (), {"init_subgraph_index": 1}))
    assert "expected it before variables are read, found it behind" in refused(net, y)
