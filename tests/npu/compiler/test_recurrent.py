"""Recurrent layers as firmware: a loop with the bits of its body, step by step, and of the software
that is translated from it."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest
import torch

from compare import assert_same
from samebits.errors import InputError, UnsupportedError
from samebits.ir import GraphBuilder
from samebits.ir.interpreter import run, run_steps
from samebits.ir.rewrite import simplify
from samebits.ir.steps import step_graph
from samebits.npu.compiler.lower import lower_real_graph, port_names
from samebits.npu.concord.dataflow import data_flow
from samebits.npu.concord.graph import Turns
from samebits.npu.concord.translate import load_concordant, translate
from samebits.npu.machine.assembly import to_text
from samebits.npu.simulator.simulate import simulate
from samebits.pytorch import import_module

STEPS, FEATURES, HIDDEN = 7, 20, 32
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
SMALL = {"ivrf": 24, "asvrf0": 24, "asvrf1": 24, "mvrf0": 24, "mvrf1": 24, "mrf": 40}
KINDS = {"torch": "model.py", "onnx": "model.onnx"}
NEAR = 4e-3  # of the largest output: binary16 sums of small networks stay below


class Net:
    """A graph on a sequence [T, 1, I] in the making, with random weights."""

    def __init__(self, steps=STEPS, features=FEATURES, seed=0):
        self.builder = GraphBuilder("net")
        self.random = np.random.default_rng(seed)
        self.x = self.builder.input("x", "float32", (steps, 1, features))

    def numbers(self, *shape, scale=None):
        scale = shape[-1] ** -0.5 if scale is None else scale
        array = self.random.standard_normal(shape) * scale
        return self.builder.constant("w", array.astype(np.float32))

    def __call__(self, op, *inputs, **attributes):
        return self.builder.add(op, inputs, attributes)

    def layer(self, x, op="LSTM", hidden=HIDDEN, given="B", projected=0, **attributes):
        """given: letters of BhcP. (sequence [T, 1, P], final states)."""
        features = self.builder.values[x].shape[2]
        rows, outputs = GATES[op] * hidden, projected or hidden
        shapes = {"B": (1, 2 * rows), "L": (), "h": (1, 1, outputs), "c": (1, 1, hidden)}
        shapes["P"] = (1, 3 * hidden)
        inputs = [x, self.numbers(1, rows, features), self.numbers(1, rows, outputs)]
        inputs += [
            self.numbers(*s, scale=0.5) if name in given else "" for name, s in shapes.items()
        ]
        if projected:
            inputs.append(self.numbers(1, outputs, hidden))
        while not inputs[-1]:
            inputs.pop()
        made = self.builder.add_all(op, inputs, {"hidden_size": hidden, **attributes}, op.lower())
        return self("Squeeze", made[0], axes=(1,)), *made[1:]

    def graph(self, *outputs):
        return self.builder.build(outputs)


def samples(graph, count=1, seed=1):
    """Binary16 numbers [count, T, C]."""
    (name,) = graph.own_inputs
    shape = graph.values[name].shape
    x = np.random.default_rng(seed).standard_normal((count, shape[0], shape[-1]))
    return x.astype(np.float16).astype(np.float32)


def bits(array):
    """uint16, every NaN alike; the sign of a zero counts."""
    array = np.asarray(array)
    assert array.dtype == np.float16
    assert not np.isnan(array).any()
    return array.view(np.uint16)


def step_by_step(step, x, native, mantissa):
    """The bits of the body, compiled as a graph without time, its states handed back in."""
    plain = dataclasses.replace(step, states=())
    program, image = lower_real_graph(plain, native, mantissa)
    inputs, outputs = port_names(plain)
    shapes = {h.name: h.shape for h in program.hints if h.kind == "input"}
    states = [
        step.constants.get(s.initial, np.zeros(step.values[s.input].shape, np.float32))
        for s in step.states
    ]
    found = []
    for row in x:
        arrays = dict(zip(inputs, [row, *states], strict=True))
        given = {name: np.asarray(arrays[name]).reshape(shape) for name, shape in shapes.items()}
        made = simulate(program, image, given).outputs
        results = [made[name].reshape(-1) for name in outputs]
        states = results[len(results) - len(states) :]
        found.append(results[: len(results) - len(states)])
    return [np.stack(list(each)) for each in zip(*found, strict=True)]


def check(graph, native, mantissa=15, folder=None, kinds=KINDS, close=NEAR, **depths):
    """The program of a graph is its body step by step, about what the graph means, and the
    translated software gives its bits for several sequences."""
    x = samples(graph, 2)
    program, image = lower_real_graph(graph, native, mantissa, depths)
    (port,), names = port_names(graph)
    (shape,) = (h.shape for h in program.hints if h.kind == "input")
    assert shape == x.shape[1:]
    found = simulate(program, image, {port: x}).outputs
    step = simplify(step_graph(graph))
    expected = run(graph, [x[0].reshape(graph.values[graph.inputs[0]].shape)])
    by_hand = step_by_step(step, x[0], native, mantissa)
    for name, whole, steps in zip(names, expected, by_hand, strict=True):
        array = found[name][0]
        wanted = steps if array.shape == steps.shape else steps[-1]
        assert_same(bits(array), bits(wanted), range(array.size))
        if close:
            error = np.abs(array.astype(np.float64).reshape(-1) - whole.reshape(-1)).max()
            assert error <= close * np.abs(whole).max(), (name, native, error)
    for kind in kinds if folder is not None else ():
        path = folder / KINDS[kind]
        translate(program, image, kind, path)
        again = load_concordant(path)({port: x})
        assert set(again) == set(found)
        for name, array in found.items():
            assert_same(bits(again[name]), bits(array), range(array.size))
    return program, found


# --- layers -----------------------------------------------------------------------------------


def two_layers(**settings):
    """LSTM 2 x 32 on 20 inputs."""
    net = Net()
    y, *_ = net.layer(net.x, **settings)
    y, h, c = net.layer(y, **settings)
    return net.graph(y, h, c)


VARIANTS = {
    "plain": {},
    "unbiased": {"given": ""},
    "peephole": {"given": "BhcP"},
    "projection": {"projected": 20},
    "coupled": {"input_forget": 1},
    "clipped": {"clip": 0.5},
    "all": {"given": "BhcP", "projected": 12, "input_forget": 1, "clip": 0.75},
    "rational": {
        "activations": ("HardSigmoid", "Relu", "ScaledTanh"),
        "activation_alpha": (0.25, None, 0.5),
        "activation_beta": (0.5, None, 2.0),
    },
}


def slowly(cases, quick):
    """All but some of the cases are slow tests."""
    return [c if c in quick else pytest.param(c, marks=pytest.mark.slow) for c in cases]


QUICK = [(name, 16) for name in VARIANTS] + [("all", 8), ("plain", 64)]


@pytest.mark.parametrize("case", slowly(itertools.product(VARIANTS, (8, 16, 64)), QUICK))
def test_two_layers(case, tmp_path):
    name, native = case
    program, _ = check(two_layers(**VARIANTS[name]), native, folder=tmp_path, kinds=["torch"])
    assert [(h.kind, h.shape) for h in program.hints][:2] == [
        ("input", (STEPS, FEATURES)),
        ("output", (STEPS, VARIANTS[name].get("projected", HIDDEN))),
    ]


# onnxruntime takes seconds to load a loop.
@pytest.mark.parametrize("name", slowly(VARIANTS, ["all"]))
def test_two_layers_in_onnx(name, tmp_path):
    check(two_layers(**VARIANTS[name]), 16, folder=tmp_path, kinds=["onnx"])


SETTINGS = [(native, mantissa) for native in (8, 16, 64) for mantissa in (3, 8, 15)]


@pytest.mark.parametrize("setting", SETTINGS)
def test_mantissas(setting, tmp_path):
    native, mantissa = setting
    close = NEAR if mantissa == 15 else None
    check(two_layers(), native, mantissa, tmp_path, ["torch"], close)


@pytest.mark.parametrize("setting", slowly(SETTINGS, []))
def test_mantissas_in_onnx(setting, tmp_path):
    native, mantissa = setting
    close = NEAR if mantissa == 15 else None
    check(two_layers(), native, mantissa, tmp_path, ["onnx"], close)


@pytest.mark.parametrize("op", ["GRU", "RNN"])
def test_other_layers(op, tmp_path):
    for attributes in ({}, {"linear_before_reset": 1}) if op == "GRU" else ({},):
        net = Net()
        y, _ = net.layer(net.x, op, given="Bh", **attributes)
        graph = net.graph(*net.layer(y, op, **attributes))
        check(graph, 8, folder=tmp_path, kinds=["torch"] if attributes else KINDS)
        check(graph, 16)


def test_the_loop_is_that_of_the_example():
    # examples/firmware/lstm.nnp: the input to a register file, four products of it, four products
    # of h (two of them times c or i), c, h.
    net = Net()
    program, image = lower_real_graph(net.graph(net.layer(net.x)[0]), 16)
    ops = [i.op for i in program.instructions if i.op != "s_wr"]
    assert (ops[0], ops[-1], program.instructions[0].value) == ("loop", "end_loop", STEPS)
    chains = " ".join(ops[1:-1]).split(" end_chain")
    assert sorted(chain.strip() for chain in chains if chain) == sorted(
        [
            "v_rd v_wr",
            *["v_rd mv_mul vv_add v_wr"] * 4,
            *["v_rd mv_mul vv_add v_sigm v_wr"] * 2,
            "v_rd mv_mul vv_add v_sigm vv_mul v_wr",
            "v_rd mv_mul vv_add v_tanh vv_mul v_wr",
            "v_rd vv_add v_wr v_wr",
            "v_rd v_tanh vv_mul v_wr v_wr",
        ]
    )
    tensors = {h.name: (h.memory, h.shape) for h in program.hints if h.kind == "tensor"}
    assert tensors["lstm_h"] == ("ivrf", (HIDDEN,))
    assert tensors["lstm_c"] == ("mvrf1", (HIDDEN,))
    assert tensors["lstm_i_x_weight"] == ("mrf", (HIDDEN, FEATURES))
    assert tensors["lstm_o_h_weight"] == ("mrf", (HIDDEN, HIDDEN))
    assert "lstm_f_x_bias" in tensors
    (loop,) = (step for step in data_flow(program, image).nodes if isinstance(step, Turns))
    assert loop.count in (STEPS - 1, STEPS)  # the first turn may stand before it
    assert {carried.state.width for carried in loop.carried} == {HIDDEN}


def test_crowded_memories_hold_the_same_bits(tmp_path):
    graph = two_layers(given="BhcP")
    _, roomy = check(graph, 16)
    program, crowded = check(graph, 16, folder=tmp_path, kinds=["torch"], **SMALL)
    assert program.depths["mdram"] > 0
    assert all(program.depths.get(memory, 0) <= most for memory, most in SMALL.items())
    for name, array in roomy.items():
        assert_same(bits(crowded[name]), bits(array), range(array.size))
    tiny = {"ivrf": 12, "asvrf0": 4, "asvrf1": 4, "mvrf0": 2, "mvrf1": 4}
    _, staged = check(graph, 16, **tiny)
    for name, array in roomy.items():
        assert_same(bits(staged[name]), bits(array), range(array.size))


# --- around the layers ------------------------------------------------------------------------


def test_a_classifier_of_sequences(tmp_path):
    net = Net()
    x = net("Relu", net("Add", net("MatMul", net.x, net.numbers(FEATURES, 24)), net.numbers(24)))
    y, h, _ = net.layer(x)
    y, *_ = net.layer(net("Add", y, net("Tanh", net("MatMul", y, net.numbers(32, 32)))))
    last = net("Gather", y, net.builder.constant("i", np.array(-1)), axis=0)
    head = net("Gemm", last, net.numbers(10, HIDDEN), net.numbers(10), transB=1)
    graph = net.graph(net("Sigmoid", head), net("Squeeze", h, axes=(0,)))
    program, _ = check(graph, 16, folder=tmp_path)
    ops = [i.op for i in program.instructions]
    after = ops[ops.index("end_loop") :]
    assert after.count("mv_mul") == 1  # the head is computed once, after the last step
    assert after.count("v_sigm") == 1


def test_outputs_of_every_step_and_of_the_last(tmp_path):
    net = Net()
    y, h, c = net.layer(net.x)
    check(net.graph(h, net("Relu", c), net("Tanh", y)), 16, folder=tmp_path)


def test_one_step_and_one_cell():
    for steps, features, hidden in ((1, 3, 5), (2, 1, 1), (3, 8, 8)):
        net = Net(steps, features)
        check(net.graph(*net.layer(net.x, hidden=hidden)), 8)


def test_another_length():
    graph = two_layers()
    program, image = lower_real_graph(graph, 16, steps=30)
    (port,), (y, *_) = port_names(graph)
    x = np.random.default_rng(0).standard_normal((30, FEATURES)).astype(np.float16)
    long = simulate(program, image, {port: x}).outputs[y]
    assert long.shape == (30, HIDDEN)
    short = simulate(*lower_real_graph(graph, 16), {port: x[:STEPS]}).outputs[y]
    assert_same(bits(long[:STEPS]), bits(short), range(short.size))
    for steps, message in ((0, "from 1 to 1048576 steps, found 0"), (1 << 21, "found 2097152")):
        with pytest.raises(InputError, match=message):
            lower_real_graph(graph, 16, steps=steps)


def test_modules_of_torch(tmp_path):
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.lstm = torch.nn.LSTM(20, 32, num_layers=2, batch_first=True, dropout=0.1)
            self.head = torch.nn.Linear(32, 5)

        def forward(self, x):
            y, _ = self.lstm(x)
            return self.head(y[:, -1])

    torch.manual_seed(0)
    graph = import_module(Model(), (torch.zeros(1, STEPS, FEATURES),))
    program, image = lower_real_graph(graph, 16)
    x = np.random.default_rng(0).standard_normal((STEPS, FEATURES)).astype(np.float16)
    (found,) = simulate(program, image, {"x": x}).outputs.values()
    (expected,) = run(graph, [x[np.newaxis].astype(np.float32)])
    assert found.shape == (5,)
    assert np.abs(found - expected.reshape(-1)).max() <= NEAR * np.abs(expected).max()


# --- step graphs ------------------------------------------------------------------------------


class Steps:
    """A step graph on vectors of 20 in the making."""

    def __init__(self, *initial):
        """initial: of each state, None for zeros."""
        self.builder = builder = GraphBuilder("steps")
        self.x = builder.input("x", "float32", (1, FEATURES))
        self.states = []
        for index, first in enumerate(initial):
            array = np.full((1, FEATURES), 0 if first is None else first, np.float32)
            named = "" if first is None else builder.constant("first", array)
            self.states.append(builder.state(f"s{index}", "float32", (1, FEATURES), named))

    def __call__(self, op, *inputs, **attributes):
        return self.builder.add(op, inputs, attributes)


def moved(graph, native=16, folder=None):
    """Graphs whose sums are exact in binary16: what the interpreter computes, exactly."""
    x = np.random.default_rng(2).integers(-8, 9, (2, STEPS, 1, FEATURES)).astype(np.float32) / 4
    program, image = lower_real_graph(graph, native, steps=STEPS)
    (port,), names = port_names(graph)
    given = {port: x.reshape(2, STEPS, FEATURES)}
    found = simulate(program, image, given).outputs
    for sample in (0, 1):
        expected = run_steps(graph, [x[sample]])
        for name, steps in zip(names, expected, strict=False):
            # -0 and +0 are one number, and copies keep either.
            array = found[name][sample].astype(np.float32)
            assert_same(array, steps.reshape(array.shape), range(array.size))
    if folder is not None:
        for kind, file in KINDS.items():
            translate(program, image, kind, folder / file)
            again = load_concordant(folder / file)(given)
            for name, array in found.items():
                assert_same(bits(again[name]), bits(array), range(array.size))
    return program


def test_a_running_sum(tmp_path):
    for first in (None, 1.5):
        net = Steps(first)
        total = net("Add", net.states[0], net.x)
        moved(net.builder.build([net("Identity", total), total]), folder=tmp_path)


def test_a_delay_line(tmp_path):
    # s0' = x, s1' = s0, s2' = s1: each is read before it is written.
    net = Steps(None, 2.0, -1.0)
    s0, s1, s2 = net.states
    out = net("Add", s2, net.x)
    moved(net.builder.build([out, net.x, s0, s1]), folder=tmp_path)


def test_states_that_change_places(tmp_path):
    net = Steps(1.0, 2.0)
    s0, s1 = net.states
    moved(net.builder.build([net("Add", s0, net.x), s1, s0]), folder=tmp_path)


def test_a_state_that_stays_and_one_that_is_not_read():
    net = Steps(1.0, None)
    (s0, _), total = net.states, net("Add", net.states[0], net.x)
    program = moved(net.builder.build([total, s0, total]))
    assert "s1" not in {h.name for h in program.hints}


def test_the_old_state_is_an_output(tmp_path):
    net = Steps(None)
    (s,) = net.states
    total = net("Add", s, net("Relu", net.x))
    moved(net.builder.build([s, total]), folder=tmp_path)


def test_a_state_read_after_it_is_known_what_it_will_be(tmp_path):
    # y needs both; the state may be written only when y is.
    net = Steps(0.5)
    (s,) = net.states
    following = net("Relu", net("Sub", net.x, s))
    y = net("Sub", net("Max", following, s), net("Add", s, net.x))
    moved(net.builder.build([y, following]), folder=tmp_path)


def random_steps(seed):
    """Up to four states and ten point-wise operations, whose numbers stay near 1."""
    random = np.random.default_rng(seed)
    net = Steps(*random.choice([None, 0.5, -1.0], random.integers(1, 5)))
    values = [net.x, *net.states]
    for _ in range(random.integers(1, 11)):
        op = random.choice(["Add", "Sub", "Mul", "Max", "Tanh", "Sigmoid", "Relu", "Neg"])
        count = 2 if op in ("Add", "Sub", "Mul", "Max") else 1
        # The newest values most often: chains grow long, and old states are read late too.
        picked = [values[-1 - min(int(random.exponential(2.5)), len(values) - 1)] for _ in "ab"]
        values.append(net(str(op), *picked[:count]))
    bounded = net("Tanh", values[-1])
    ends = [values[i] for i in random.integers(0, len(values), len(net.states))]
    ends = [net("Tanh", e) if random.random() < 0.7 and e not in net.states else e for e in ends]
    return net.builder.build([bounded, *ends])


@pytest.mark.parametrize("seed", range(60))
def test_random_step_graphs(seed):
    graph = random_steps(seed)
    x = np.random.default_rng(seed).standard_normal((STEPS, FEATURES)).astype(np.float16)
    program, image = lower_real_graph(graph, 8, steps=STEPS)
    (port,), (name,) = port_names(graph)
    found = simulate(program, image, {port: x}).outputs[name]
    (expected,) = step_by_step(graph, x.astype(np.float32), 8, 15)
    # Joined otherwise, a maximum of both zeros may be the other one.
    plus = np.float16(0)
    assert_same(bits(found + plus), bits(expected + plus), range(found.size))


def test_step_graphs_need_a_length():
    net = Steps(None)
    total = net("Add", net.states[0], net.x)
    graph = net.builder.build([net("Identity", total), total])
    with pytest.raises(InputError, match="expected a number of steps for a step graph, found none"):
        lower_real_graph(graph, 16)
    builder = GraphBuilder("plain")
    plain = builder.build([builder.add("Relu", [builder.input("x", "float32", (1, 4))])])
    with pytest.raises(InputError, match="expected recurrent layers for 4 steps, found none"):
        lower_real_graph(plain, 16, steps=4)


# --- errors -----------------------------------------------------------------------------------


def refused():
    """(graph, message)."""

    def net(make, **settings):
        made = Net(**settings)
        found = make(made, made.x)
        return made.graph(*(found if isinstance(found, tuple) else (found,)))

    yield (
        net(lambda n, x: n.layer(x, activations=("Sigmoid", "Softsign", "Tanh"))[0]),
        r"node 'lstm.c_gate' \(Softsign\): it has no instructions for this",
    )
    yield (
        net(lambda n, x: (n.layer(x)[0], n("Relu", x))),
        "expected one input and at most one output of every step, found x, ",
    )
    two = Net()
    second = two.builder.input("z", "float32", (STEPS, 1, FEATURES))
    both = two.graph(two.layer(two("Concat", two.x, second, axis=2))[0])
    yield both, "expected one input and at most one output of every step, found x, z, "
    yield (
        net(lambda n, x: n("ReduceMean", n.layer(x)[0], axes=(0,))),
        r"\(ReduceMean\): expected a time-wise operator",
    )
    back = Net()
    y = back.builder.add(
        "LSTM",
        [back.x, back.numbers(1, 128, FEATURES), back.numbers(1, 128, HIDDEN)],
        {"hidden_size": HIDDEN, "direction": "reverse"},
        "back",
    )
    yield back.graph(y), r"node 'back' \(LSTM\): expected the direction forward, found reverse"
    constant = Steps(None)
    k = constant.builder.constant("k", np.ones((1, FEATURES), np.float32))
    out = constant("Add", constant.states[0], constant.x)
    yield constant.builder.build([out, k]), "state 's0': expected a next value that is computed"
    turned = Steps(None)
    halves = turned.builder.add_all("Split", [turned.x], {"axis": 1, "sizes": (5, 15)})
    other = turned("Concat", *halves[::-1], axis=1)
    out = turned("Add", turned.states[0], turned.x)
    yield turned.builder.build([out, other]), "state 's0': expected a next value that is computed"


def test_what_the_machine_cannot_compute_is_named():
    for graph, message in refused():
        with pytest.raises(UnsupportedError, match=message):
            lower_real_graph(graph, 16, steps=STEPS)


def test_batches_are_refused():
    builder = GraphBuilder("net")
    x = builder.input("x", "float32", (STEPS, 2, FEATURES))
    zeros = [builder.constant("w", np.ones((1, 128, n), np.float32)) for n in (FEATURES, HIDDEN)]
    graph = builder.build([builder.add("LSTM", [x, *zeros], {"hidden_size": HIDDEN})])
    with pytest.raises(UnsupportedError, match="import the model for batch 1"):
        lower_real_graph(graph, 16)


def test_programs_are_what_their_text_says():
    program, _ = lower_real_graph(two_layers(), 16)
    assert to_text(program).count("loop 7\n") == 1
