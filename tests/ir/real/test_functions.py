"""Functions of binary64 with defined bits: near the true ones, and the same by other machine code.

The machine code that differs is numpy's own for other instruction sets, and BLAS's for other
processors and numbers of threads: a process has one of each, so others run in processes.
"""

from __future__ import annotations

import hashlib
import math
from fractions import Fraction

import numpy as np
import pytest

from other_machines import MACHINES, elsewhere
from samebits.ir import GraphBuilder
from samebits.ir.interpreter import run
from samebits.ir.real import functions
from samebits.ir.real.linear import product

RNG = np.random.default_rng(0)
ALL = np.concatenate([RNG.normal(0, 3, 4000), RNG.normal(0, 1e-3, 500), [0.0, -0.0, 1e-300, 40.0]])
UNIT = RNG.uniform(-1, 1, 4000)
CASES = {
    "exp": (math.exp, np.concatenate([ALL, RNG.uniform(-700, 700, 500)])),
    "expm1": (math.expm1, ALL),
    "log": (math.log, np.abs(ALL) + 1e-12),
    "log1p": (math.log1p, np.abs(ALL)),
    "tanh": (math.tanh, ALL),
    "sigmoid": (lambda x: 1 / (1 + math.exp(-x)), ALL),
    "softplus": (lambda x: max(x, 0.0) + math.log1p(math.exp(-abs(x))), ALL),
    "atan": (math.atan, ALL),
    "asin": (math.asin, UNIT),
    "acos": (math.acos, UNIT),
    "sinh": (math.sinh, ALL),
    "cosh": (math.cosh, ALL),
    "asinh": (math.asinh, ALL),
    "acosh": (math.acosh, 1 + np.abs(ALL)),
    "atanh": (math.atanh, UNIT),
    "tan": (math.tan, UNIT),
}
ABSOLUTE = {"erf": math.erf, "sin": math.sin, "cos": math.cos}


@pytest.mark.parametrize("name", CASES)
def test_functions_are_near(name):
    """Within 2**-48; the library's own error is below 2**-51."""
    true, xs = CASES[name]
    expected = np.array([true(x) for x in xs.tolist()])
    found = getattr(functions, name)(xs)
    assert (np.abs(found - expected) <= 2.0**-48 * np.abs(expected)).all()


@pytest.mark.parametrize("name", ABSOLUTE)
def test_bounded_functions_are_near(name):
    xs = np.concatenate([ALL, RNG.uniform(-100, 100, 500)])
    expected = np.array([ABSOLUTE[name](x) for x in xs.tolist()])
    assert np.abs(getattr(functions, name)(xs) - expected).max() <= 2.0**-48


@pytest.mark.parametrize(
    ("name", "x", "expected"),
    [
        ("exp", -np.inf, 0.0),
        ("exp", np.inf, np.inf),
        ("exp", 710.0, np.inf),
        ("exp", -745.0, 5e-324),
        ("log", 0.0, -np.inf),
        ("log", -1.0, np.nan),
        ("log", np.inf, np.inf),
        ("tanh", np.inf, 1.0),
        ("tanh", -np.inf, -1.0),
        ("erf", 30.0, 1.0),
        ("erf", -30.0, -1.0),
        ("sigmoid", -np.inf, 0.0),
        ("softplus", np.inf, np.inf),
        ("softplus", -np.inf, 0.0),
        ("sin", np.inf, np.nan),
        ("atan", np.inf, math.pi / 2),
        ("asin", 2.0, np.nan),
        ("sinh", -np.inf, -np.inf),
        ("cosh", -np.inf, np.inf),
        ("asinh", -np.inf, -np.inf),
        ("acosh", 0.5, np.nan),
        ("acosh", np.inf, np.inf),
        ("atanh", 1.0, np.inf),
        *((name, np.nan, np.nan) for name in (*CASES, *ABSOLUTE)),
    ],
)
def test_ends(name, x, expected):
    with np.errstate(all="ignore"):
        found = getattr(functions, name)(np.array([x, 0.5]))[0]
    assert found == expected or (np.isnan(expected) and np.isnan(found))


def test_powers():
    a = np.array([-3.0, -2.5, 0.0, 0.3, 1.0, 7.0, 1e10])
    for b in (-3.0, -1.0, 0.0, 0.5, 1.0, 2.0, 3.0, 17.0, 2.5, 100.0, -0.7):
        with np.errstate(all="ignore"):
            found, expected = functions.power(a, np.array(b)), np.power(a, b)
        np.testing.assert_allclose(found, expected, rtol=1e-12, atol=0)


def test_totals():
    """Pair by pair: of five elements ((a + c) + (b + d)) + e, each sum rounded."""
    a, b, c, d, e = numbers = RNG.normal(size=5)
    assert functions.total(numbers, (0,)).tolist() == [((a + c) + (b + d)) + e]
    x = RNG.normal(size=(3, 4, 5))
    for axes in ((0,), (1,), (-1,), (0, 2), (2, 0), (0, 1, 2)):
        found = functions.total(x, axes)
        np.testing.assert_allclose(found, x.sum(axis=axes, keepdims=True), rtol=1e-12)
    assert functions.total(np.zeros((2, 0)), (1,)).tolist() == [[0.0], [0.0]]
    assert functions.total(np.zeros((0, 2)), (1,)).shape == (0, 1)


@pytest.mark.parametrize("rows", [1, 2, 7])
def test_products_are_near(rows):
    """Off by less than 2**-40 of the largest sum of magnitudes, and exact for short numbers."""
    a, b = RNG.normal(size=(rows, 300)), RNG.normal(size=(300, 11)) * 10.0 ** RNG.normal(size=11)
    exact = np.array(
        [
            [sum(Fraction(p) * Fraction(q) for p, q in zip(r, c, strict=True)) for c in b.T]
            for r in a
        ]
    )
    room = 2.0**-40 * (np.abs(a).max() * np.abs(b).sum(axis=0))
    assert (np.abs(product(a, b) - exact.astype(np.float64)) <= room).all()
    a, b = (np.rint(array * 2.0**9) / 2.0**9 for array in (a, b))
    exact = np.array(
        [
            [sum(Fraction(p) * Fraction(q) for p, q in zip(r, c, strict=True)) for c in b.T]
            for r in a
        ]
    )
    assert (product(a, b) == exact).all()


def test_products_of_what_is_not_finite():
    a, b = np.ones((2, 3)), np.ones((3, 2))
    a[0, 0], b[1, 1] = np.inf, np.nan
    with np.errstate(invalid="ignore"):
        found = product(a, b)
    assert found[0, 0] == np.inf
    assert np.isnan(found[:, 1]).all()


# --- other machine code -----------------------------------------------------------------------


def normal(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape)


def digest() -> str:
    """Of all functions, products, convolutions and sums over fixed inputs."""
    found = hashlib.sha256()
    with np.errstate(all="ignore"):
        for name, (_, xs) in CASES.items():
            found.update(getattr(functions, name)(xs).tobytes())
        for name in ABSOLUTE:
            found.update(getattr(functions, name)(ALL).tobytes())
        found.update(functions.power(np.abs(ALL), np.array(1.7)).tobytes())
    builder = GraphBuilder("sums")
    x = builder.input("x", "float64", (2, 6, 17, 19))
    w = builder.constant("w", normal(1, 8, 6, 3, 3))
    window = {"strides": (1, 1), "pads": (1,) * 4, "dilations": (1, 1)}
    y = builder.add("Conv", [x, w], window)
    t = builder.constant("t", normal(2, 8, 4, 2, 2))
    z = builder.add("ConvTranspose", [y, t], {**window, "output_padding": (0, 0)})
    m = builder.constant("m", normal(3, 18, 33))
    outputs = [
        builder.add("MatMul", [z, m]),
        builder.add("ReduceMean", [y], {"axes": (1, 2)}),
        builder.add("GlobalAveragePool", [z]),
        builder.add("Softmax", [y], {"axis": 1}),
    ]
    graph = builder.build(outputs)
    for array in run(graph, [normal(4, 2, 6, 17, 19)]):
        found.update(array.tobytes())
    return found.hexdigest()


@pytest.mark.parametrize("machine", MACHINES)
def test_other_machine_code_gives_the_same_bits(machine):
    assert elsewhere(machine, __file__, "digest") == digest()
