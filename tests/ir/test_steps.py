"""Step graphs of graphs on whole sequences: the same numbers, step by step."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

from compare import assert_same
from samebits.errors import UnsupportedError
from samebits.ir import Graph, GraphBuilder, Trait, ops_with
from samebits.ir.interpreter import run, run_steps
from samebits.ir.ops import op_named
from samebits.ir.rewrite import simplify
from samebits.ir.steps import is_recurrent, step_graph, time_axes
from samebits.ir.verify import verify

STEPS, BATCH, FEATURES, HIDDEN = 7, 2, 5, 4
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}


class Net:
    """A graph on sequences [T, B, I] in the making, with random weights."""

    def __init__(self, *shape: int, seed: int = 0) -> None:
        self.builder = GraphBuilder("net")
        self.random = np.random.default_rng(seed)
        self.x = self.builder.input("x", "float32", shape or (STEPS, BATCH, FEATURES))

    def numbers(self, *shape: int) -> str:
        return self.constant(self.random.standard_normal(shape))

    def constant(self, array: Any) -> str:
        return self.builder.constant("w", np.asarray(array, np.float32))

    def shape(self, name: str) -> tuple[int, ...]:
        return self.builder.values[name].shape

    def __call__(self, op: str, *inputs: str, **attributes: Any) -> str:
        return self.builder.add(op, inputs, attributes)

    def layer(
        self, op: str, x: str, given: str = "B", projected: int = 0, **attributes: Any
    ) -> tuple[str, ...]:
        """given: letters of BhcP. The outputs."""
        _, batch, features = self.shape(x)
        rows, outputs = GATES[op] * HIDDEN, projected or HIDDEN
        shapes = {
            "B": (1, 2 * rows),
            "L": (),
            "h": (1, batch, outputs),
            "c": (1, batch, HIDDEN),
            "P": (1, 3 * HIDDEN),
        }
        inputs = [x, self.numbers(1, rows, features), self.numbers(1, rows, outputs)]
        inputs += [self.numbers(*s) if name in given else "" for name, s in shapes.items()]
        if projected:
            inputs.append(self.numbers(1, outputs, HIDDEN))
        while not inputs[-1]:
            inputs.pop()
        return self.builder.add_all(op, inputs, {"hidden_size": HIDDEN, **attributes}, "layer")

    def sequence(self, y: str) -> str:
        """[T, 1, B, P] as [T, B, P]."""
        return self("Squeeze", y, axes=(1,))

    def graph(self, *outputs: str) -> Graph:
        return self.builder.build(outputs)


def check(graph: Graph, close: bool = False) -> Graph:
    """The step graph computes the bits of the whole; outputs without steps are those of the last.

    close: for products of several steps at once, whose sums are in the order of BLAS.
    """
    step = step_graph(graph)
    for made in (step, simplify(step)):
        verify(made)
        assert made.own_inputs == graph.inputs
        assert made.own_outputs == graph.outputs
    random = np.random.default_rng(1)
    axes = time_axes(graph)
    sequences, cut = [], []
    for name, axis in axes.items():
        value = graph.values[name]
        x = random.standard_normal(value.shape).astype(np.float32)
        if value.dtype == "int64":
            x = random.integers(0, 4, value.shape)
        sequences.append(x)
        cut.append(np.stack(np.split(x, value.shape[axis], axis)))
    expected = run(graph, sequences)
    found = run_steps(step, cut)
    assert len(found) == len(expected) + len(step.states)
    for name, a, b in zip(graph.outputs, found, expected, strict=False):
        shape = a.shape[1:]
        if shape == b.shape:
            together = a[-1]
        else:
            (axis,) = (i for i, (p, q) in enumerate(zip(shape, b.shape, strict=True)) if p != q)
            together = np.concatenate(list(a), axis)
        if close:
            np.testing.assert_allclose(together, b, rtol=1e-6, atol=1e-6, err_msg=name)
        else:
            assert_same(together.view(np.uint32), b.view(np.uint32), range(b.size))
    return step


# --- layers -----------------------------------------------------------------------------------


@pytest.mark.parametrize("op", GATES)
@pytest.mark.parametrize("given", ["", "B", "Bh", "BhcP"])
def test_layers(op: str, given: str) -> None:
    given = given if op == "LSTM" else given.replace("c", "").replace("P", "")
    net = Net()
    step = check(net.graph(*net.layer(op, net.x, given)))
    count = 2 if op == "LSTM" else 1
    assert [s.input for s in step.states] == ["layer.h", "layer.c"][:count]
    assert [bool(s.initial) for s in step.states] == [letter in given for letter in "hc"[:count]]


@pytest.mark.parametrize(
    "attributes",
    [
        {"clip": 0.25},
        {"input_forget": 1},
        {"activations": ("HardSigmoid", "ScaledTanh", "Affine"),
         "activation_alpha": (0.25, 1.5, 0.75), "activation_beta": (None, 0.5, 0.125)},
        {"projected": 3},
        {"projected": 2, "input_forget": 1, "clip": 0.5},
    ],
)  # fmt: skip
def test_forms_of_an_lstm(attributes: dict[str, Any]) -> None:
    net = Net()
    check(net.graph(*net.layer("LSTM", net.x, "BhcP", **attributes)))


def test_reset_after_the_product() -> None:
    net = Net()
    check(net.graph(*net.layer("GRU", net.x, "Bh", linear_before_reset=1)))


@pytest.mark.parametrize("shape", [(1, 1, 1), (1, 3, 5), (3, 1, 5), (12, 1, 33)])
def test_sizes(shape: tuple[int, ...]) -> None:
    net = Net(*shape)
    check(net.graph(*net.layer("LSTM", net.x)))


def test_what_a_step_is() -> None:
    net = Net(STEPS, 1, FEATURES)
    step = simplify(step_graph(net.graph(*net.layer("LSTM", net.x))))
    ops = [node.op for node in step.nodes]
    products = [node.name for node in step.nodes if node.op == "Gemm"]
    assert products == [f"layer.{gate}" for gate in ("i_x", "f_x", "c_x", "o_x", "i_h", "f_h")] + [
        "layer.c_h",
        "layer.o_h",
    ]
    assert (ops.count("Sigmoid"), ops.count("Tanh"), ops.count("Mul")) == (3, 2, 3)
    assert set(ops) == {"Reshape", "Gemm", "Add", "Sigmoid", "Tanh", "Mul"}


def test_stacks() -> None:
    net = Net()
    x = net.sequence(net.layer("LSTM", net.x)[0])
    y = net.sequence(net.layer("GRU", x)[0])
    step = check(net.graph(*net.layer("LSTM", net("Add", x, y), projected=2), x))
    assert len(step.states) == 5


# --- between layers ---------------------------------------------------------------------------


def test_batch_first() -> None:
    net = Net(BATCH, STEPS, FEATURES)
    x = net("Transpose", net.x, perm=(1, 0, 2))
    y, h, c = net.layer("LSTM", x)
    moved = net("Transpose", net.sequence(y), perm=(1, 0, 2))
    graph = net.graph(moved, net("Squeeze", h, axes=(0,)), c)
    assert time_axes(graph) == {"x": 1}
    check(graph)


def test_products_and_functions_around() -> None:
    net = Net()
    x = net("Relu", net("Add", net("MatMul", net.x, net.numbers(FEATURES, 6)), net.numbers(6)))
    y = net.sequence(net.layer("LSTM", net("Concat", x, net.x, axis=2))[0])
    a, b = net.builder.add_all("Split", [y], {"axis": 2, "sizes": (3, 1)})
    head = net("MatMul", net("Mul", a, b), net.numbers(3, 2))
    check(net.graph(head, net("Softmax", head, axis=-1), net("MatMul", y, net.numbers(HIDDEN))))


def pointwise(net: Net, op: str, y: str) -> str:
    """A point-wise operator on y in (-1, 1), of a type and range that it takes, as float32."""
    record = op_named(op)
    small = net("Add", net("Mul", net("Abs", y), net.constant(0.875)), net.constant(0.0625))
    x = net("Add", small, net.constant(1)) if op == "Acosh" else small
    attributes: dict[str, dict[str, Any]] = {
        "Cast": {"to": "float32"},
        "BitCast": {"source": "float32", "to": "int32"},
        "BitShift": {"direction": "LEFT"},
    }
    given = attributes.get(op, {})
    count = record.inputs[0] if record.inputs[1] else 2
    for types in product(("float32", "bool", "uint8"), repeat=count):
        try:
            made = net(op, *(net("Cast", x, to=kind) for kind in types), **given)
        except ValueError:
            continue
        return net("Cast", made, to="float32")
    raise AssertionError(f"expected types that {op} takes, found none")


@pytest.mark.parametrize("op", sorted(ops_with(Trait.POINTWISE)))
def test_every_point_wise_operator_behind_a_layer(op: str) -> None:
    net = Net()
    y = net.sequence(net.layer("LSTM", net.x)[0])
    check(net.graph(pointwise(net, op, y)))


@pytest.mark.parametrize(
    ("op", "attributes"),
    [
        ("Hardmax", {}),
        ("LogSoftmax", {}),
        ("CumSum", {"axis": 2}),
        ("CumProd", {"axis": 1, "reverse": 1}),
    ],
)
def test_operators_along_another_axis(op: str, attributes: dict[str, Any]) -> None:
    net = Net()
    y = net.sequence(net.layer("LSTM", net.x)[0])
    check(net.graph(net(op, y, **attributes)))


def test_the_largest_features() -> None:
    net = Net()
    y = net.sequence(net.layer("LSTM", net.x)[0])
    values, indices = net.builder.add_all("TopK", [y], {"k": 2})
    check(net.graph(values, net("Cast", indices, to="float32")))


def test_the_last_step() -> None:
    net = Net()
    y, h, _ = net.layer("LSTM", net.x)
    y = net.sequence(y)
    cut = {"ends": (2**31, 3), "steps": (1, 1), "axes": (0, 2)}
    cases = [
        net("Gather", y, net.builder.constant("i", np.array(STEPS - 1)), axis=0),
        net("Gather", y, net.builder.constant("i", np.array([-1])), axis=0),
        net("Slice", y, starts=(-1, 1), **cut),
        net("Squeeze", h, axes=(0,)),
    ]
    last = net("Gemm", cases[0], net.numbers(3, HIDDEN), net.numbers(3), transB=1)
    sliced = net("Slice", y, starts=(0, 1), **cut)
    check(net.graph(*cases, last, net("Sub", net("Sigmoid", last), net.numbers(3)), sliced))


def test_features_by_index() -> None:
    net = Net()
    y = net.sequence(net.layer("LSTM", net.x)[0])
    chosen = net("Gather", y, net.builder.constant("i", np.array([2, 0])), axis=2)
    check(net.graph(chosen, net("Gather", y, net.builder.constant("j", np.array(1)), axis=1)))


def test_embedded_words() -> None:
    net = Net()
    builder = net.builder
    words = builder.input("words", "int64", (STEPS, BATCH))
    x = net("Gather", net.numbers(4, 3), words, axis=0)
    graph = net.graph(*net.layer("LSTM", net("Concat", x, net.x, axis=2)))
    assert time_axes(graph) == {"x": 0, "words": 0}
    check(graph)


@pytest.mark.parametrize(
    ("shape", "indices", "perm"),
    [
        ((4, STEPS, BATCH, FEATURES), 2, (0, 1, 2)),
        ((4, STEPS, FEATURES), [3, 0], (1, 0, 2)),
        ((FEATURES, STEPS), [[2, 3, 1], [0, 1, 4]], (2, 0, 1)),
    ],
)
def test_samples_by_index_on_an_axis_before_time(
    shape: tuple[int, ...], indices: Any, perm: tuple[int, ...]
) -> None:
    net = Net(*shape)
    chosen = net("Gather", net.x, net.builder.constant("i", np.array(indices)), axis=0)
    graph = net.graph(*net.layer("LSTM", net("Transpose", chosen, perm=perm)))
    assert time_axes(graph) == {"x": 1}
    check(graph)


def test_words_along_an_axis_that_counts_from_the_end() -> None:
    net = Net()
    words = net.builder.input("words", "int64", (STEPS, BATCH))
    x = net("Gather", net.numbers(4, 3), words, axis=-2)
    graph = net.graph(*net.layer("LSTM", net("Concat", x, net.x, axis=2)))
    assert time_axes(graph) == {"x": 0, "words": 0}
    check(graph)


def test_time_along_indices_that_are_constant_is_that_of_no_input() -> None:
    net = Net(BATCH, FEATURES)
    steps = net.builder.constant("i", np.arange(STEPS) % BATCH)
    x = net("Reshape", net("Gather", net.x, steps, axis=0), shape=(STEPS, 1, FEATURES))
    with pytest.raises(UnsupportedError, match="expected inputs that are states or sequences"):
        time_axes(net.graph(*net.layer("LSTM", x)))


def test_steps_and_batch_as_rows() -> None:
    net = Net(STEPS, 1, FEATURES)
    y = net("Reshape", net.layer("LSTM", net.x)[0], shape=(STEPS, HIDDEN))
    head = net("Gemm", y, net.numbers(3, HIDDEN), net.numbers(3), transB=1)
    check(net.graph(head), close=True)


def test_quantized_weights_and_activations() -> None:
    net = Net()
    builder = net.builder
    scale = builder.constant("scale", np.float32(2**-5))
    zero = builder.constant("zero", np.int8(0))

    def weights(*shape: int) -> str:
        codes = net.random.integers(-60, 61, shape).astype(np.int8)
        return net("DequantizeLinear", builder.constant("codes", codes), scale, zero)

    inputs = [net.x, weights(1, 16, FEATURES), weights(1, 16, HIDDEN)]
    y = builder.add("LSTM", inputs, {"hidden_size": HIDDEN})
    codes = net("QuantizeLinear", net.sequence(y), scale, zero)
    check(net.graph(net("DequantizeLinear", codes, scale, zero)))


def test_one_scale_has_no_axis() -> None:
    """The axis that a QuantizeLinear and a DequantizeLinear state counts for many scales only."""
    net = Net(BATCH, STEPS, FEATURES)
    y = net.sequence(net.layer("LSTM", net("Transpose", net.x, perm=(1, 0, 2)))[0])
    scale = net.constant(2**-5)
    zero = net.builder.constant("zero", np.int8(0))
    codes = net("QuantizeLinear", net("Transpose", y, perm=(1, 0, 2)), scale, zero, axis=1)
    check(net.graph(net("DequantizeLinear", codes, scale, zero, axis=1)))


# --- what is refused --------------------------------------------------------------------------


def refused() -> Any:
    """(graph, message)."""

    def net(make: Any, *shape: int) -> Graph:
        made = Net(*shape)
        found = make(made, made.x)
        return made.graph(*([found] if isinstance(found, str) else found))

    def last(n: Net, x: str) -> str:
        return n.layer("LSTM", x)[1]

    def y(n: Net, x: str) -> str:
        return n.sequence(n.layer("LSTM", x)[0])

    for direction, count in (("reverse", 1), ("bidirectional", 2)):
        made = Net()
        shapes = ((count, 16, FEATURES), (count, 16, HIDDEN))
        inputs = [made.x, *(made.numbers(*shape) for shape in shapes)]
        attributes = {"hidden_size": HIDDEN, "direction": direction}
        yield (
            made.graph(made.builder.add("LSTM", inputs, attributes, "back")),
            rf"node 'back' \(LSTM\): expected the direction forward, found {direction}: its steps",
        )
    yield net(lambda n, x: n("Relu", x)), "or causal attention on whole sequences, found none"
    time = "expected steps that stay apart"
    yield net(lambda n, x: n("Softmax", y(n, x), axis=0)), rf"\(Softmax\): {time}"
    yield net(lambda n, x: n("CumSum", y(n, x), axis=0)), rf"\(CumSum\): {time}"
    yield net(lambda n, x: n("Split", y(n, x), axis=0, sizes=(3, 4))), rf"\(Split\): {time}"
    yield net(lambda n, x: n("Reshape", y(n, x), shape=(14, 4))), rf"\(Reshape\): {time}"
    for op in ("ReduceMean", "ReduceMax"):
        yield net(lambda n, x, op=op: n(op, y(n, x), axes=(0,))), rf"\({op}\): expected a time-wise"
    yield (
        net(lambda n, x: n("Add", y(n, x), last(n, x))),
        r"\(Add\): expected values of one step, found a sequence and a last step",
    )
    yield (
        net(lambda n, x: n("Add", y(n, x), n.numbers(STEPS, 1, 1))),
        r"\(Add\): expected the same in every step, found 'w",
    )
    yield (
        net(lambda n, x: n("Add", y(n, x), n("Transpose", y(n, x), perm=(1, 0, 2))), 7, 7, 5),
        r"\(Add\): expected sequences along one axis",
    )
    first = {"starts": (0,), "ends": (1,), "steps": (1,), "axes": (0,)}
    yield net(lambda n, x: n("Slice", y(n, x), **first)), r"\(Slice\): expected every step or the"
    yield (
        net(lambda n, x: n("Gather", y(n, x), n.builder.constant("i", np.array(0)))),
        r"\(Gather\): expected the last step, found others",
    )
    yield net(lambda n, x: n("Concat", y(n, x), y(n, x), axis=0)), r"\(Concat\): expected sequences"
    yield (
        net(lambda n, x: n("MatMul", n.numbers(3, 2), y(n, x))),
        r"\(MatMul\): expected features times constant weights",
    )
    for slot, text in ((4, "sequences of full length"), (5, "an initial state that is")):
        made = Net()
        inputs = [made.x, made.numbers(1, 16, FEATURES), made.numbers(1, 16, HIDDEN), "", "", ""]
        short = made.builder.constant("short", np.array([3, 7], np.int32))
        inputs[slot] = short if slot == 4 else last(made, made.x)
        second = made.builder.add("LSTM", inputs, {"hidden_size": HIDDEN}, "second")
        yield made.graph(second), rf"node 'second' \(LSTM\): expected {text}"


def test_what_is_not_time_wise_is_named() -> None:
    count = 0
    for graph, message in refused():
        with pytest.raises(UnsupportedError, match=message):
            step_graph(graph)
        count += 1
    assert count > 15


def test_inputs_that_are_no_sequences_are_named() -> None:
    net = Net()
    state = net.builder.input("start", "float32", (1, BATCH, HIDDEN))
    inputs = [net.x, net.numbers(1, 16, FEATURES), net.numbers(1, 16, HIDDEN), "", "", state]
    graph = net.graph(net.builder.add("LSTM", inputs, {"hidden_size": HIDDEN}))
    assert is_recurrent(graph)
    with pytest.raises(UnsupportedError, match="sequences of recurrent layers, found 'start'"):
        step_graph(graph)


def test_a_step_graph_has_no_step_graph() -> None:
    net = Net()
    step = step_graph(net.graph(*net.layer("LSTM", net.x)))
    with pytest.raises(UnsupportedError, match="whole sequences, found a step graph"):
        step_graph(step)
