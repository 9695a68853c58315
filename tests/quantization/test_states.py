"""States that come in and go out: which output feeds which input, one format for both, and the
same bits frame by frame."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from torch import nn

import samebits as sb
from compare import assert_same
from samebits import progress
from samebits.csrc import compiler
from samebits.errors import InputError, UnsupportedError
from samebits.ir import Graph, GraphBuilder, Quantization
from samebits.ir.interpreter import run, run_steps
from samebits.ir.lowering.lower import lower_graph
from samebits.ir.rewrite import simplify
from samebits.ir.steps import fed_back
from samebits.ir.unroll import CELLS_MAX
from samebits.ir.verify import verify
from samebits.onnx import to_integer
from samebits.pytorch.executor import TorchExecutor
from samebits.quantization import RecurrentSettings, quantize_states, tie_states
from samebits.quantization.states import same_state, state_pairs
from samebits.verification.inputs import dequantize, quantize_samples
from stateful_nets import (
    FEATURES,
    FRAME,
    HIDDEN,
    ByHand,
    Detector,
    Elman,
    Layers,
    OneCell,
    Packed,
    Stream,
    frames,
    graph_of,
)
from stream_program import Run, steps_of, stream

Array = np.ndarray[Any, Any]
F, H = (1, FEATURES), (1, HIDDEN)
FRAMES = 50


class Notes:
    """A listener that keeps the notes."""

    def __init__(self) -> None:
        self.found: list[str] = []

    def stage(self, what: str, total: int | None) -> None:
        """Not kept."""

    def advance(self, done: int) -> None:
        """Not kept."""

    def note(self, text: str) -> None:
        self.found.append(text)


@contextmanager
def notes() -> Iterator[list[str]]:
    listener = Notes()
    with progress.listening(listener):
        yield listener.found


def quantized(graph: Graph, x: Array, settings: RecurrentSettings | None = None) -> tuple[Any, Any]:
    """The quantized graph of one with states, and the report."""
    name = graph.own_inputs[0]
    return quantize_states(graph, {name: x}, settings or RecurrentSettings(), "samples")


# --- which output feeds which input -------------------------------------------------------------

SAME = (
    "h0 hn, h hn, c cn, h_0 h_n, h_in h_out, state stateN, state_in state_out, hidden "
    "hidden_out, past present, past_key present_key, past_key_values.0.key present.0.key, h new_h, "
    "prev_h next_h, prev_state state, h0 h1, input_h output_h, in_state out_state, rnn1_h_in "
    "rnn1_h_out, cache new_cache, h_in hn, hidden_state hidden_state_n, conv_cache conv_cache_out"
)
OTHERS = (
    "x y, input output, x xn, audio_in audio_out, h0 cn, h c, c_in h_out, state1 state2, h0_in "
    "h1_out, h1_in h2_out, rnn1_h0 rnn2_hn, img0 img1, token tokenn, n 1, in_0 out_0, "
    "context_in audio_out"
)


@pytest.mark.parametrize("names", SAME.split(", "))
def test_names_of_one_state(names: str) -> None:
    assert same_state(*names.split())


@pytest.mark.parametrize("names", OTHERS.split(", "))
def test_names_of_other_things(names: str) -> None:
    assert not same_state(*names.split())


def test_a_layer_shows_its_states() -> None:
    """Whatever their names are."""
    state = (2, 1, HIDDEN)
    graph = graph_of(Layers(nn.LSTM, 2), [(1, *F), state, state], "x a b > p q r")
    with notes() as found:
        assert state_pairs(graph) == {"a": "q", "b": "r"}
    assert found[0] == (
        "state: input a is fed by output q (the state of layer layers.lstm.3); --state none keeps "
        "them apart, --state INPUT=OUTPUT names others"
    )
    tied = tie_states(graph)
    verify(tied)
    assert (tied.inputs, tied.outputs) == (("x", "a", "b"), ("p", "q", "r"))
    assert tie_states(tied) is tied


def plain(*inputs: str, outputs: Mapping[str, str], sizes: Mapping[str, int]) -> Graph:
    """Every output a Neg of an input; sizes: of the inputs that do not have 4 elements."""
    builder = GraphBuilder("plain")
    for name in inputs:
        builder.input(name, "int32" if name == "n" else "float32", (1, sizes.get(name, 4)))
    made = [builder.add("Neg", [name], outputs=[output]) for output, name in outputs.items()]
    return builder.build(made)


def test_names_and_shapes_show_states() -> None:
    graph = plain("h_in", "x", outputs={"h_out": "h_in", "y": "x"}, sizes={})
    with notes() as found:
        assert state_pairs(graph) == {"h_in": "h_out"}
    assert found == [
        "state: input h_in is fed by output h_out (same shape [1, 4] and name); --state none keeps "
        "them apart, --state INPUT=OUTPUT names others"
    ]
    tied = tie_states(graph)
    assert (tied.inputs, tied.outputs) == (("x", "h_in"), ("y", "h_out"))
    with notes() as found:
        assert state_pairs(graph, "none") == {}
        assert tie_states(graph, "none") is graph
    assert found == []
    wide = plain("h_in", "x", outputs={"h_out": "x", "y": "x"}, sizes={"h_in": 3})
    assert state_pairs(wide) == {}
    alone = plain("h_in", outputs={"h_out": "h_in", "y": "h_in"}, sizes={})
    assert state_pairs(alone) == {}  # a step would have no input


def test_pairs_that_are_named() -> None:
    graph = plain("x", "a", "h", outputs={"y": "x", "b": "a", "hn": "h"}, sizes={})
    with notes() as found:
        assert state_pairs(graph, {"a": "b"}) == {"a": "b"}
    assert found == [
        "state: input h looks like output hn of the step before (same shape [1, 4] and name), but "
        "is not tied to it; add --state h=hn"
    ]
    assert state_pairs(graph, {"h": 2, "a": "1"}) == {"h": "hn", "a": "b"}
    tied = tie_states(graph, {"h": 2, "a": "1"})
    assert [(s.input, s.output) for s in tied.states] == [("a", "b"), ("h", "hn")]
    assert state_pairs(tied, {"a": "b", "h": "hn"}) == {"a": "b", "h": "hn"}


REFUSED: dict[str, tuple[Any, str]] = {
    "text": (
        "hidden",
        "--state: expected INPUT=OUTPUT, once for each state, or none, found 'hidden'",
    ),
    "input": (
        {"g": "b"},
        "--state g=b: expected an input of the network (x, a, w, n), found 'g'",
    ),
    "output": (
        {"a": "z"},
        "--state a=z: expected an output of the network (y, b, v, m) or its place from 0 to 3, "
        "found 'z'",
    ),
    "place": (
        {"a": 4},
        "--state a=4: expected an output of the network (y, b, v, m) or its place from 0 to 3, "
        "found '4'",
    ),
    "shape": (
        {"w": "b"},
        "--state w=b: expected an output of the type and shape of the input, float32 [1, 3], found "
        "float32 [1, 4]; of its shape there is v",
    ),
    "type": (
        {"n": "m"},
        "--state n=m: expected a state of float32, found int32; keep it outside the network",
    ),
    "twice": (
        {"x": "b", "a": "b"},
        "--state a=b: expected an output of its own for each state, found 'b', which feeds 'x' "
        "too; give every state the output that it becomes",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_pairs_that_are_refused(case: str) -> None:
    given, message = REFUSED[case]
    outputs = {"y": "x", "b": "a", "v": "w", "m": "n"}
    graph = plain("x", "a", "w", "n", outputs=outputs, sizes={"w": 3})
    with pytest.raises(InputError) as caught:
        tie_states(graph, given)
    assert str(caught.value) == message


@pytest.mark.parametrize(("count", "more"), [(20, ""), (21, " and 1 more")])
def test_a_message_lists_twenty_names(count: int, more: str) -> None:
    graph = plain(*(f"x{i}" for i in range(count)), outputs={"y": "x0"}, sizes={})
    with pytest.raises(InputError) as caught:
        tie_states(graph, {"g": "y"})
    names = ", ".join(f"x{i}" for i in range(20))
    assert str(caught.value) == (
        f"--state g=y: expected an input of the network ({names}{more}), found 'g'"
    )


def test_a_step_needs_an_input_and_an_output() -> None:
    inputs = plain("a", outputs={"y": "a", "b": "a"}, sizes={})
    with pytest.raises(InputError, match=r"expected an input beside the states, found none \(a\)"):
        tie_states(inputs, {"a": "b"})
    outputs = plain("x", "a", outputs={"b": "a"}, sizes={})
    with pytest.raises(InputError, match=r"an output beside the states, found none \(b\); return"):
        tie_states(outputs, {"a": "b"})
    tied = tie_states(plain("x", "a", outputs={"y": "x", "b": "a"}, sizes={}), {"a": "b"})
    with pytest.raises(InputError, match="expected a network without states, found a step graph"):
        tie_states(tied, "none")
    with pytest.raises(InputError, match="states that the step graph says, a=b, found a=y; leave"):
        tie_states(tied, {"a": "y"})


# --- the step graph -----------------------------------------------------------------------------


def by_calls(graph: Graph, x: Array, names: Mapping[str, str]) -> list[list[Array]]:
    """The outputs of every call of a float graph, states fed back as binary32 by hand."""
    states = {name: np.zeros(graph.values[name].shape, np.float32) for name in names}
    found = []
    for frame in x:
        made = run(graph, [states.get(name, frame) for name in graph.inputs])
        found.append(made)
        values = dict(zip(graph.outputs, made, strict=True))
        states = {name: values[output] for name, output in names.items()}
    return found


@cache
def network(kind: str) -> Graph:
    """The float graph of a name."""
    one, state = (1, *F), (1, *H)
    modules: dict[str, tuple[nn.Module, list[tuple[int, ...]], str]] = {
        "detector": (Detector(), [(1, 1, FRAME), state, state], "x h c > y hn cn"),
        "detector in parts": (Detector(2), [(1, 1, FRAME), state, state], "x h c > y hn cn"),
        "sequences": (Layers(nn.GRU), [(3, *F), state], "x h > y hn"),
        "GRU": (Layers(nn.GRU, 2), [one, (2, *H)], "x h > y hn"),
        "LSTMCell": (OneCell(nn.LSTMCell), [F, H, H], "x h c > y hn cn"),
        "GRUCell": (OneCell(nn.GRUCell), [F, H], "x h > y hn"),
        "by hand": (ByHand(), [F, H, H], "x h c > y hn cn"),
        "side by side": (ByHand(joined=True), [F, H, H], "x h c > y hn cn"),
        "packed": (Packed(), [F, (2, *H)], "x state > y stateN"),
        "Elman": (Elman(), [F, H], "x h > y hn"),
        "stream": (Stream(), [(*F, 1), (*F, 2)], "x cache > y cache_out"),
    }
    return graph_of(*modules[kind])


STEPS = {  # what a step is
    "detector": "one call",
    "detector in parts": "one call, with 2 steps of recurrent layers (what is around the recurrent "
    "layers is not time-wise)",
    "sequences": "one of the 3 time steps of a call",
    "GRU": "one call",
    "LSTMCell": "one call",
    "by hand": "one call",
}


@pytest.mark.parametrize("kind", STEPS)
def test_a_step_graph_computes_what_calls_compute(kind: str) -> None:
    graph = network(kind)
    names = state_pairs(graph)
    steps, text = fed_back(tie_states(graph, names))
    verify(steps.graph)
    assert text == STEPS[kind]
    assert [(s.input, s.output) for s in steps.graph.states] == list(names.items())
    x = frames(graph.values["x"].shape, 1, 6)[0]
    expected = by_calls(graph, x, names)
    given = x if steps.length == 1 else x.reshape(-1, 1, *F)
    *own, h = run_steps(steps.graph, [given])[: 1 + len(steps.graph.own_outputs)]
    own_expected = np.stack([made[0] for made in expected])
    np.testing.assert_allclose(own[0].reshape(own_expected.shape), own_expected, rtol=0, atol=1e-5)
    np.testing.assert_allclose(h[-1], expected[-1][1], rtol=0, atol=1e-5)


def test_a_layer_without_a_state_begins_anew_in_each_call() -> None:
    """It has a state within the call alone."""
    builder = GraphBuilder("two")
    rng = np.random.default_rng(0)
    x = builder.input("x", "float32", (2, 1, 3))
    h = builder.input("h", "float32", (1, 1, 3))

    def layer(x: str, *more: str) -> tuple[str, ...]:
        weights = [
            builder.constant("w", rng.normal(size=(1, 9, 3)).astype(np.float32)) for _ in "wr"
        ]
        return builder.add_all("GRU", [x, *weights, *more], {"hidden_size": 3})

    first = builder.add("Reshape", [layer(x)[0]], {"shape": (2, 1, 3)})
    y, after = layer(first, "", "", h)
    graph = builder.build([y, after])
    steps, step = fed_back(tie_states(graph))
    assert "layers without a state begin anew in each call" in step
    assert len(steps.graph.states) == 1
    frame = frames((2, 1, 3), 1, 5)[0]
    expected = by_calls(graph, frame, {"h": after})
    found = run_steps(steps.graph, [frame])
    np.testing.assert_allclose(found[0], np.stack([m[0] for m in expected]), rtol=0, atol=1e-5)
    made, _ = quantized(tie_states(graph), frame)
    lower_graph(simplify(made))


def test_calls_of_too_many_steps() -> None:
    frame, state = (1, 1, FRAME * 5), (1, 1, HIDDEN)
    module = Detector(parts=FRAME)
    graph = graph_of(module, [frame, state, state], "x h c > y hn cn")
    message = f"at most {CELLS_MAX} steps of recurrent layers in one call, found {FRAME * 5}"
    with pytest.raises(UnsupportedError, match=message):
        fed_back(tie_states(graph))


def test_one_sentence_about_initial_states() -> None:
    """An input that a layer begins with is tied to an output or a constant; and is not refused."""
    graph = network("sequences")
    with pytest.raises(UnsupportedError) as caught:
        sb.quantize(
            graph,
            {"x": frames((3, *F))[0], "h": frames((1, *H))[0]},
            sb.Recurrence(state="none", sequence="step"),
        )
    assert str(caught.value).endswith(
        "expected inputs that are states or sequences of recurrent layers, found 'h'; tie a state "
        "to the output that follows it (--state INPUT=OUTPUT), or make it a constant; --sequence "
        "whole takes whole sequences"
    )


# --- formats ------------------------------------------------------------------------------------


def formats(graph: Graph) -> dict[str, tuple[str, Quantization | None]]:
    """Type and scale of every state, of which both ends agree."""
    integer = lower_graph(simplify(graph))
    found = {}
    for state in integer.states:
        x, y = integer.values[state.input], integer.values[state.output]
        assert (x.dtype, x.quantization) == (y.dtype, y.quantization)
        found[state.input] = (x.dtype, x.quantization)
    return found


STATES = {
    "detector": {"h": "int8", "c": "int16"},
    "detector in parts": {"h": "int8", "c": "int16"},
    "GRU": {"h": "int8"},
    "LSTMCell": {"h": "int8", "c": "int16"},
    "GRUCell": {"h": "int8"},
    "by hand": {"h": "int8", "c": "int16"},
    "side by side": {"h": "int8", "c": "int16"},
    "packed": {"state.0": "int8", "state.1": "int16"},
    "Elman": {"h": "int16"},
    "stream": {"cache": "int8"},
}


SLOW = ("detector in parts", "GRU", "side by side")  # the same kinds of states as in others


@pytest.mark.parametrize(
    "kind", [pytest.param(k, marks=pytest.mark.slow) if k in SLOW else k for k in STATES]
)
def test_both_ends_of_a_state_have_one_format(kind: str) -> None:
    wanted, graph = STATES[kind], tie_states(network(kind))
    x = frames(graph.values["x"].shape)
    made, report = quantized(graph, x)
    found = formats(made)
    assert {name: dtype for name, (dtype, _) in found.items()} == wanted
    for name, (dtype, numbers) in found.items():
        assert numbers is not None
        if dtype == "int16" and name not in report.wider:  # symmetric, a power of two
            assert (numbers.zero_point, numbers.scale.numerator) == (0, 1)
    assert report.states.keys() == wanted.keys()
    assert all(ratio is None or ratio > 24 for ratio in report.states.values())
    assert report.sqnr_db is not None
    assert report.sqnr_db > 24


def test_sums_of_gates_by_hand_are_q3_12() -> None:
    """One product of x and h side by side, cut in four, each through a bounded function."""
    graph = tie_states(network("side by side"))
    made, _ = quantized(graph, frames(F))
    scales = [float(made.constants[n.inputs[1]]) for n in made.nodes if n.op == "QuantizeLinear"]
    assert 2.0**-12 in scales


def test_the_range_of_a_state_is_what_the_float_network_hands_on() -> None:
    """m' = m / 2 + x of x = 3 comes to 6: the state has room for that, and not for 8 and more."""
    builder = GraphBuilder("mean")
    x, m = (builder.input(name, "float32", (1, 2)) for name in ("x", "m"))
    half = builder.constant("half", np.float32(0.5))
    after = builder.add("Add", [builder.add("Mul", [m, half]), x], outputs=["m_next"])
    made = builder.build([builder.add("Relu", [after], outputs=["y"]), after])
    graph = tie_states(made, {"m": "m_next"})
    given = np.full((1, 40, 1, 2), 3, np.float32)
    given[0, -1, 0, 1] = 2.5
    settings = RecurrentSettings(calibration="minmax")
    made, _ = quantized(graph, given, settings)
    assert formats(made)["m"] == ("int16", Quantization(Fraction(1, 4096), 0))
    short, _ = quantized(graph, given[:, -1:], settings)  # one call: no more than 3
    assert formats(short)["m"] == ("int16", Quantization(Fraction(1, 8192), 0))
    first = {"x": given[:, -1:], "m": np.full((1, 2), 30, np.float32)}
    begun, _ = quantize_states(graph, first, settings, "samples")
    assert formats(begun)["m"] == ("int16", Quantization(Fraction(1, 1024), 0))


# --- calibration --------------------------------------------------------------------------------


def test_shapes_of_calibration() -> None:
    """Calls in order, of one sequence or of several; the leading 1 of the shape may be left out."""
    graph = tie_states(network("LSTMCell"))
    several = frames(F, 2, 5)
    one = several[0]
    for given, spans in (
        (several, "2 sequences of 5 steps"),
        (several[:, :, 0], "2 sequences of 5 steps"),
        (one, "1 sequence of 5 steps"),
        (one[:, 0], "1 sequence of 5 steps"),
    ):
        with notes() as found:
            quantized(graph, given)
        assert found == [
            f"state: a step is one call; calibrating on {spans}, with the state that the float "
            "network hands on"
        ]
    sequences = tie_states(network("sequences"))
    with notes() as found:
        quantized(sequences, frames((3, *F), 2, 4))
    assert found == [
        "state: a step is one of the 3 time steps of a call; calibrating on 2 sequences of 12 "
        "steps, with the state that the float network hands on"
    ]


def bad_calibration() -> Iterator[tuple[dict[str, Array], str]]:
    x = frames(F, 2, 10)
    yield (
        {},
        "s: expected the arrays x and, if they do not begin with zeros, the states h, c, found "
        "none",
    )
    yield (
        {"x": x, "z": x},
        "s: expected the arrays x and, if they do not begin with zeros, the states h, c, found x, "
        "z",
    )
    yield (
        {"x": x[..., :3]},
        "s: array x: expected calls in order, [calls, 1, 8] or [sequences, calls, 1, 8], found "
        "[2, 10, 1, 3]",
    )
    yield (
        {"x": x.astype(np.float64)},
        "s: array x: expected float32, found float64; convert it with astype('float32')",
    )
    yield (
        {"x": x[:, :0]},
        "s: expected at least one sequence of at least one call, found 2 of 0",
    )
    yield (
        {"x": x, "h": frames(H, 1, 10)[0]},
        "s: array h: expected the state before the first call, [1, 12] or [2, 1, 12] for each of 2 "
        "sequences, found [10, 1, 12]; leave it out to begin with zeros: the network hands its "
        "state on by itself",
    )
    nan = x.copy()
    nan[1, 3, 0, 2] = np.nan
    yield (
        {"x": nan},
        "calibration sample 1: tensor 'x': expected finite values, found nan at index (3, 0, 2); "
        "remove or replace such samples",
    )
    yield (
        {"x": np.ones_like(x)},
        "layer 'cell.lstm_cell.4', gate 'i': expected calibration sequences that vary, found 1 in "
        "every element of input 'x'; give sequences as the model will see them",
    )


@pytest.mark.parametrize(("given", "message"), list(bad_calibration()))
def test_calibration_that_does_not_fit(given: dict[str, Array], message: str) -> None:
    graph = tie_states(network("LSTMCell"))
    with pytest.raises(InputError, match=f"^{re.escape(message)}$"):
        quantize_states(graph, given, RecurrentSettings(), "s")


# --- frame by frame -----------------------------------------------------------------------------


def sqnr(expected: Array, found: Array) -> float:
    noise = np.square(expected.astype(np.float64) - found).sum()
    return float(10 * np.log10(np.square(expected, dtype=np.float64).sum() / noise))


def fed(run_one: Callable[[list[Array]], list[Array]], graph: Graph, x: Array) -> list[Array]:
    """The codes of all outputs after every frame, the last outputs fed back to the last inputs."""
    states = [
        quantize_samples(np.zeros(graph.values[n].shape, np.float32), graph.values[n])
        for n in graph.inputs[1:]
    ]
    found = []
    for frame in x:
        found.append(run_one([frame, *states]))
        states = found[-1][len(found[-1]) - len(states) :]
    return [np.stack(column) for column in zip(*found, strict=True)]


def in_onnxruntime(graph: Graph) -> Callable[[list[Array]], list[Array]]:
    """One step of the integer export."""
    onnxruntime = pytest.importorskip("onnxruntime")
    session = onnxruntime.InferenceSession(
        to_integer(graph).SerializeToString(), providers=["CPUExecutionProvider"]
    )
    names = [entry.name for entry in session.get_inputs()]
    return lambda codes: session.run(None, dict(zip(names, codes, strict=True)))


@pytest.mark.parametrize("kind", ["detector in parts", "GRUCell", "packed"])
def test_the_same_bits_frame_by_frame(kind: str, tmp_path: Path, objects: Path) -> None:
    """Fifty frames, the state fed back: reference, torch, generated C and onnxruntime."""
    graph = tie_states(network(kind))
    net = sb.quantize(graph, {"x": frames(graph.values["x"].shape)})
    integer = sb.load(net.save(tmp_path / "q.onnx")).model.integer
    parts = 2 if kind == "packed" else len(graph.states)  # h and c, each with a scale of its own
    assert len(integer.states) == parts  # they survive the file
    shape = graph.values["x"].shape
    x = quantize_samples(frames(shape, 1, FRAMES, seed=7)[0], integer.values["x"])
    _, expected = steps_of(integer, Run([x]))
    for run_one in (TorchExecutor(integer).run, in_onnxruntime(integer)):
        for found, wanted in zip(fed(run_one, integer, x), expected, strict=True):
            assert_same(found, wanted, wanted)
    cc = shutil.which(compiler()[0])
    if cc is None:
        pytest.skip("generated C was not compared: no C compiler")
    own = len(integer.own_outputs)
    for chunks in stream([integer], [[Run([x])]], tmp_path, cc, "-O1", objects=objects)[0][0]:
        ends = [*expected[:own], *(states[-1] for states in expected[own:])]
        for found, wanted in zip(chunks, ends, strict=True):
            assert_same(found, wanted, wanted)


def test_tied_states_keep_their_numbers_and_apart_they_do_not(tmp_path: Path) -> None:
    """An LSTM in elementary operators, as exporters write an LSTMCell. As a plain graph, calibrated
    on random states, h and c are read in another unit than they were written in."""
    graph = network("by hand")
    names = {"h": "hn", "c": "cn"}
    x = frames(F, 2, 30)
    test = frames(F, 1, FRAMES, seed=7)[0]
    expected = by_calls(graph, test, names)
    y = np.stack([made[0] for made in expected])
    h = np.stack([made[1] for made in expected])

    def fed_back_codes(net: sb.Network) -> tuple[float, float]:
        integer = net.model.integer
        codes = quantize_samples(test, integer.values["x"])
        found = fed(lambda given: run(integer, given), integer, codes)
        values = [
            dequantize(codes, integer.values[name])
            for name, codes in zip(integer.outputs, found, strict=True)
        ]
        return sqnr(y, values[0]), sqnr(h, values[1])

    tied = sb.quantize(graph, {"x": x})
    random = frames(H, 1, 60, seed=3)[0] * 4
    apart = sb.quantize(
        graph, {"x": x.reshape(-1, *F), "h": random, "c": random}, sb.Recurrence(state="none")
    )
    values = {name: apart.model.integer.values[name] for name in ("h", "hn", "c", "cn")}
    assert values["h"].quantization != values["hn"].quantization
    assert values["c"].quantization != values["cn"].quantization
    assert min(fed_back_codes(tied)) > 24
    assert max(fed_back_codes(apart)) < 6
    path = tied.save(tmp_path / "q.onnx")
    file = onnx.load(path)
    scales = {t.name: onnx.numpy_helper.to_array(t) for t in file.graph.initializer}
    ends = {}
    for node in file.graph.node:
        for name in (*node.input, *node.output):
            if node.op_type.endswith("tizeLinear") and name in ("h", "hn", "c", "cn"):
                ends[name] = [scales[n].tolist() for n in node.input[1:]]
    assert ends.keys() == {"h", "hn", "c", "cn"}
    assert ends["h"] == ends["hn"]
    assert ends["c"] == ends["cn"]
    assert [value.name for value in file.graph.input] == ["x", "h", "c"]
    assert [value.name for value in file.graph.output] == ["y", "hn", "cn"]
