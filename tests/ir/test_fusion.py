"""Normalisations in small operators become one operator, and compute the same."""

from __future__ import annotations

import numpy as np
import pytest

from samebits.ir import GraphBuilder
from samebits.ir.fusion import fuse_normalisation
from samebits.ir.interpreter import run

SHAPE = (2, 3, 4)
EPSILON = 0.25
SCALE, BIAS = np.array([1, 2, -1, 0.5], np.float32), np.array([0, 1, 2, -3], np.float32)


class Spelled:
    """A normalisation of x in small operators, written in one of the ways that files have."""

    def __init__(self) -> None:
        self.g = GraphBuilder("spelled")
        self.x = self.g.input("x", "float32", SHAPE)

    def number(self, value: float) -> str:
        return self.g.constant("number", np.array(value, np.float32))

    def mean(self, x: str, axes: tuple[int, ...], keepdims: int = 1) -> str:
        return self.g.add("ReduceMean", [x], {"axes": axes, "keepdims": keepdims})

    def quotient(self, d: str, root: str, axes: tuple[int, ...], square: str = "Mul") -> str:
        """d over the root of its mean square, in a way named by the operators of its root."""
        power = ["Pow", [d, self.number(2)]] if square == "Pow" else ["Mul", [d, d]]
        mean = self.mean(self.g.add(*power), axes)
        total = self.g.add("Add", [mean, self.number(EPSILON)])
        if root == "Pow":
            inverse = self.g.add("Pow", [total, self.number(-0.5)])
        else:
            plain = ("Pow", [total, self.number(0.5)]) if root == "power" else ("Sqrt", [total])
            over = self.g.add(*plain)
            if root in ("Div", "power"):
                return self.g.add("Div", [d, over])
            one = ("Div", [self.number(1), over]) if root == "one" else ("Reciprocal", [over])
            inverse = self.g.add(*one)
        pair = [inverse, d] if root == "one" else [d, inverse]
        return self.g.add("Mul", pair)

    def centred(self, axes: tuple[int, ...] = (-1,)) -> str:
        return self.g.add("Sub", [self.x, self.mean(self.x, axes)])


def check(spelled: Spelled, output: str, ops: list[str]) -> None:
    graph = spelled.g.build([output])
    found = fuse_normalisation(graph)
    assert [node.op for node in found.nodes] == ops
    x = np.random.default_rng(1).normal(0, 3, SHAPE).astype(np.float32)
    np.testing.assert_allclose(run(found, [x])[0], run(graph, [x])[0], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("square", ["Mul", "Pow"])
@pytest.mark.parametrize("root", ["Div", "power", "Pow", "one", "Reciprocal"])
@pytest.mark.parametrize("centred", [True, False])
def test_every_way_to_write_it(centred, root, square):
    s = Spelled()
    y = s.quotient(s.centred() if centred else s.x, root, (-1,), square)
    scaled = s.g.add("Mul", [s.g.constant("scale", SCALE), y])
    shifted = s.g.add("Add", [scaled, s.g.constant("bias", BIAS)])
    check(s, shifted, ["LayerNormalization"] if centred else ["RMSNormalization", "Add"])


def test_several_axes_and_scalars():
    s = Spelled()
    y = s.quotient(s.centred((1, 2)), "Div", (1, 2))
    check(s, s.g.add("Mul", [y, s.number(3)]), ["LayerNormalization"])


def test_other_axes_stay():
    s = Spelled()
    y = s.quotient(s.centred((1,)), "Div", (1,))
    check(s, y, ["ReduceMean", "Sub", "Mul", "ReduceMean", "Add", "Sqrt", "Div"])


def test_a_mean_over_other_axes_is_a_difference_before_an_rms_norm():
    s = Spelled()
    y = s.quotient(s.centred((1,)), "Div", (-1,))
    check(s, y, ["ReduceMean", "Sub", "RMSNormalization"])


def test_a_normalisation_that_others_read_keeps_its_parameters():
    s = Spelled()
    y = s.quotient(s.centred(), "Div", (-1,))
    scaled = s.g.add("Mul", [y, s.g.constant("scale", SCALE)])
    check(s, s.g.add("Add", [scaled, y]), ["LayerNormalization", "Mul", "Add"])


def test_factors_that_differ_between_vectors_stay():
    s = Spelled()
    y = s.quotient(s.centred(), "Div", (-1,))
    per_row = s.g.constant("scale", np.arange(1, 4, dtype=np.float32).reshape(3, 1))
    check(s, s.g.add("Mul", [y, per_row]), ["LayerNormalization", "Mul"])


def test_a_square_of_something_else_stays():
    s = Spelled()
    other = s.g.add("Relu", [s.x])
    mean = s.mean(s.g.add("Mul", [other, other]), (-1,))
    root = s.g.add("Sqrt", [s.g.add("Add", [mean, s.number(EPSILON)])])
    y = s.g.add("Div", [s.x, root])
    check(s, y, ["Relu", "Mul", "ReduceMean", "Add", "Sqrt", "Div"])


def test_a_graph_without_any_is_the_same():
    s = Spelled()
    graph = s.g.build([s.g.add("Relu", [s.x])])
    assert fuse_normalisation(graph) is graph


def test_an_epsilon_that_adds_axes_stays():
    s = Spelled()
    mean = s.mean(s.g.add("Mul", [s.x, s.x]), (-1,))
    epsilon = s.g.constant("epsilon", np.full((1, 1, 1, 1), EPSILON, np.float32))
    root = s.g.add("Sqrt", [s.g.add("Add", [mean, epsilon])])
    check(s, s.g.add("Div", [s.x, root]), ["Mul", "ReduceMean", "Add", "Sqrt", "Div"])
