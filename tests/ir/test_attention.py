"""Causal attention step by step: the whole sequence while it fits, then a ring of steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch

from compare import assert_same
from language_nets import CONTEXT, VOCABULARY, language_model, stepwise, tokens_of
from samebits.errors import UnsupportedError
from samebits.ir import Graph, GraphBuilder
from samebits.ir.interpreter import initial_state, run, run_steps
from samebits.ir.lowering.lower import lower_graph
from samebits.ir.rewrite import simplify
from samebits.ir.steps import is_recurrent, step_graph, time_axes
from samebits.ir.verify import verify
from samebits.pytorch import import_module
from samebits.spec.graph import REFERENCE
from samebits.train.architectures import gpt, initialise

T, WIDTH = 6, 4
Array = np.ndarray[Any, Any]
CAUSAL = np.tri(T, dtype=bool)


@dataclass
class Net:
    """Attention over x [1, T, WIDTH] in the making. A test replaces a part by another."""

    mask: Any = field(default_factory=lambda: CAUSAL)
    form: str = "add"
    scale: Any = 0.5
    before: Callable[[Net, str], str] = lambda net, x: x
    after: Callable[[Net, str], str] = lambda net, x: x
    axis: int = -1
    heads: int = 1

    def __post_init__(self) -> None:
        self.builder = GraphBuilder("attention")
        self.random = np.random.default_rng(3)
        self.outputs: list[str] = []

    def __call__(self, op: str, *inputs: str, **attributes: Any) -> str:
        return self.builder.add(op, inputs, attributes)

    def constant(self, array: Any) -> str:
        return self.builder.constant("c", np.asarray(array, np.float32))

    def part(self, x: str) -> str:
        """x times weights, [heads, T, WIDTH]."""
        width = WIDTH * self.heads
        y = self("MatMul", x, self.constant(self.random.standard_normal((WIDTH, width))))
        y = self("Reshape", y, shape=(1, T, self.heads, WIDTH))
        y = self("Transpose", y, perm=(0, 2, 1, 3))
        return self("Reshape", y, shape=(self.heads, T, WIDTH))

    def masked(self, scores: str) -> str:
        if self.mask is None:
            return scores
        if self.form == "add":
            return self("Add", scores, self.constant(np.where(self.mask, 0, -np.inf)))
        choice = self.builder.constant("mask", self.mask)
        return self("Where", choice, scores, self.constant(-1e9))

    def build(self) -> Graph:
        x = self.builder.input("x", "float32", (1, T, WIDTH))
        places = self.constant(self.random.standard_normal((T, WIDTH)))
        y = self("Add", x, places)
        q, k, v = (self.part(y) for _ in range(3))
        scores = self("MatMul", q, self("Transpose", k, perm=(0, 2, 1)))
        scores = self("Mul", scores, self.constant(self.scale))
        masked = self.masked(self.before(self, scores))
        shares = self.after(self, self("Softmax", masked, axis=self.axis))
        z = self("Reshape", self("MatMul", shares, v), shape=(1, self.heads, T, WIDTH))
        z = self("Transpose", z, perm=(0, 2, 1, 3))
        z = self("Reshape", z, shape=(1, T, self.heads * WIDTH))
        return simplify(self.builder.build([z, *self.outputs]))


@pytest.mark.parametrize("form", ["add", "where"])
@pytest.mark.parametrize("heads", [1, 3])
def test_a_float_step_graph_is_the_whole_graph(form: str, heads: int) -> None:
    graph = Net(form=form, heads=heads).build()
    assert not is_recurrent(graph)
    assert time_axes(graph) == {"x": 1}
    step = simplify(step_graph(graph))
    verify(step)
    x = np.random.default_rng(1).standard_normal((1, T, WIDTH)).astype(np.float32)
    (whole,) = run(graph, [x])
    found = run_steps(step, [np.moveaxis(x, 1, 0)[:, :, None]])[0]
    np.testing.assert_allclose(found[:, :, 0], np.moveaxis(whole, 1, 0), rtol=1e-6, atol=1e-6)


def test_after_its_length_a_ring_holds_the_last_steps() -> None:
    """By attention over the last T steps, each at its place, in the order of places."""
    net = Net()
    graph = net.build()
    step = simplify(step_graph(graph))
    x = np.random.default_rng(2).standard_normal((3 * T + 2, 1, 1, WIDTH)).astype(np.float32)
    found = run_steps(step, [x])[0]
    for t in range(T - 1, len(x)):
        last = np.roll(np.arange(t - T + 1, t + 1), t + 1)  # step p modulo T is at place p
        assert [p % T for p in last] == list(range(T))
        place = t % T
        whole = Net(mask=np.ones((T, T), bool), form="where").build()
        (given,) = run(whole, [np.moveaxis(x[last, :, 0], 0, 1)])
        np.testing.assert_allclose(found[t, :, 0], given[:, place], rtol=1e-5, atol=1e-5)
    assert graph.outputs == step.own_outputs


def test_an_integer_step_graph_has_the_codes_of_the_whole_graph() -> None:
    whole, step = lower_graph(language_model()), stepwise()
    verify(step)
    for seed in range(3):
        tokens = tokens_of(CONTEXT, seed)
        (expected,) = run(whole, [tokens.reshape(1, CONTEXT)])
        found = run_steps(step, [tokens])[0]
        assert_same(found.reshape(expected.shape), expected, [*np.ndindex(expected.shape)])


def test_an_imported_module_has_a_step_graph() -> None:
    module = gpt(VOCABULARY, T, width=32, depth=1).eval()
    initialise(module, 4)
    graph = simplify(import_module(module, (torch.zeros(1, T, dtype=torch.int64),)))
    step = simplify(step_graph(graph))
    assert [value.shape for value in map(step.values.get, step.inputs)][:3] == [
        *((1, 1), (1,), (1, T))
    ]
    tokens = tokens_of(T)
    (whole,) = run(graph, [tokens.reshape(1, T)])
    found = run_steps(step, [tokens])[0]
    np.testing.assert_allclose(found[:, 0], whole[0][:, None], rtol=1e-5, atol=1e-5)


def test_steps_by_the_definition() -> None:
    """Every operator of every step in plain integers."""
    graph = stepwise(4, 32, 1)
    tokens = tokens_of(11)
    states = [initial_state(graph, state) for state in graph.states]
    expected = run_steps(graph, [tokens])
    for t, token in enumerate(tokens):
        values: dict[str, Any] = dict(graph.constants)
        values.update(zip(graph.inputs, [token, *states], strict=True))
        for node in graph.nodes:
            arrays = [np.asarray(values[name]) for name in node.inputs]
            out = REFERENCE[node.op](arrays, node.attributes)
            values[node.output] = out.astype(graph.values[node.output].dtype)
        for name, array in zip(graph.outputs, expected, strict=True):
            assert_same(values[name], array[t], [(t, name, *i) for i in np.ndindex(array[t].shape)])
        states = [values[state.output] for state in graph.states]


# --- what is asked of attention -----------------------------------------------------------------


def relative(net: Net, scores: str) -> str:
    return net("Add", scores, net.constant(np.arange(T * T).reshape(T, T)))


def seen(net: Net, value: str) -> str:
    net.outputs.append(net("Identity", value) if value in net.outputs else value)
    return value


def summed(net: Net, shares: str) -> str:
    net.outputs.append(net("ReduceSum", shares, axes=(2,), keepdims=1))
    return shares


REFUSED: Sequence[tuple[str, Net, str]] = (
    ("none", Net(mask=None), "leaves out later steps by a constant mask, found none"),
    ("window", Net(mask=CAUSAL & ~np.tri(T, k=-3, dtype=bool)), "all later steps and nothing else"),
    ("anti", Net(mask=CAUSAL.T), "all later steps and nothing else"),
    ("keys", Net(scale=np.arange(T) + 1), "of all keys, found numbers of their own in .* relative"),
    ("relative", Net(before=relative), "as of relative positions"),
    ("shares", Net(after=seen), "shares that attention alone reads"),
    ("sums", Net(after=summed), "shares that attention alone reads"),
    ("scores", Net(before=seen), "scores that attention alone reads"),
    ("function", Net(after=lambda net, x: net("Cos", x)), r"shares times values, found .*\(Cos\)"),
    ("axis", Net(axis=1), "scores of the keys along the last axis"),
    (
        "transposed",
        Net(before=lambda net, x: net("Transpose", x, perm=(0, 2, 1))),
        "whose last axes are those of time",
    ),
)


@pytest.mark.parametrize(("net", "message"), [r[1:] for r in REFUSED], ids=[r[0] for r in REFUSED])
def test_what_is_not_causal_attention_is_named(net: Net, message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        step_graph(net.build())


def test_other_products_of_two_sequences_are_refused() -> None:
    net = Net()
    graph = net.build()
    builder, names = GraphBuilder.like(graph)
    for node in graph.nodes:
        made = builder.add_all(node.op, [names[n] for n in node.inputs], node.attributes, node.name)
        names.update(zip(node.outputs, made, strict=True))
    y = builder.add("Transpose", [names["x"]], {"perm": (0, 2, 1)})
    both = builder.build([names[graph.outputs[0]], builder.add("MatMul", [y, names["x"]])])
    with pytest.raises(UnsupportedError, match="or causal attention, found another product"):
        step_graph(both)
