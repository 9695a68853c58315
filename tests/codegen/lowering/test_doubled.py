"""Two roundings in one step, and quotients with halves away from 0 as ratios: for every sum."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from samebits.codegen.lowering import rescale
from samebits.codegen.lowering.doubled import NOTHING, doubled_shifts, halves, quotient
from samebits.ir.graph import GraphBuilder
from samebits.ir.integer.bounds import Interval
from samebits.spec.rounding import Away, Doubled, HalfUp, Rounding, code_of

Check = Callable[..., None]
SUMS = st.integers(-(1 << 30) + 1, (1 << 30) - 1)


def words(acc: int, by: Doubled, zero: int) -> int:
    """What the packed kernels of Cortex-M4 compute: SMMLAR, and shifts."""
    shift = by.right - 1
    more = ((2 * zero + 1) << shift) - (acc < 0)
    word = (2 * acc * by.m + (more << 32) + (1 << 31)) >> 32
    return word >> shift >> 1


@settings(max_examples=400, deadline=None)
@given(SUMS, st.integers(1, (1 << 31) - 1), st.integers(1, 31), st.integers(-128, 127))
@example(-1, 1 << 30, 1, 0)
@example(-(1 << 29), 1 << 30, 3, -128)
@example((1 << 30) - 1, (1 << 31) - 1, 22, 127)
def test_one_step_is_both_roundings(acc: int, m: int, right: int, zero: int) -> None:
    by = Doubled(m, 0, right)
    moved = acc * m + (1 << right + 30) + (-(1 << 30) if acc < 0 else 1 << 30)
    assert moved >> right + 31 == by.code(acc)
    assert words(acc, by, zero) == by.code(acc) + zero


@pytest.mark.parametrize("right", [1, 2, 5])
def test_ties_of_both_roundings(right: int) -> None:
    """A power of two makes every odd sum a tie of the first, and many words ties of the second."""
    by = Doubled(1 << 30, 0, right)
    for acc in range(-300, 300):
        assert words(acc, by, -7) == by.code(acc) - 7


def test_shifts_of_a_layout() -> None:
    by, ends = Doubled(1518500250, 0, 9), (-70_000, 70_000)
    assert doubled_shifts([by], [ends], 3, -128, 127, 1) == [(by.m, 8)]
    assert doubled_shifts([by], [ends], 3, -128, 127, 0) == [(by.m, -9)]
    assert doubled_shifts([Doubled(by.m)], [ends], 3, -128, 127, 1) is None  # no shift
    dead = Doubled(by.m, 0, 31)  # zero * 2**31 does not fit, and no sum of these needs it
    assert doubled_shifts([dead], [ends], 3, -128, 127, 1) == [(NOTHING.m, NOTHING.right - 1)]
    wide = (-(1 << 29), 1 << 29)
    assert doubled_shifts([Doubled(by.m, 0, 25)], [wide], 100, -128, 127, 1) is None
    assert {code_of(acc, NOTHING) for acc in (-(1 << 30) + 1, -1, 0, (1 << 30) - 1)} == {0}


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 400), st.integers(-3000, 0), st.integers(0, 3000))
@example(1, 0, 0)
@example(2, -3, 3)
def test_a_quotient_is_a_ratio(n: int, least: int, most: int) -> None:
    by = Away(n)
    ratio = quotient(by, least, most)
    assert all(code_of(acc, ratio) == by.code(acc) for acc in range(least, most + 1))


def form(by: Rounding, reach: int) -> object:
    a = {"zero": 0, "low": -128, "high": 127, "dtype": "int8", "ratios": (by,)}
    return rescale.rescaling(Interval((-reach,), (reach,)), a, "here").fields["form"]


def test_the_form_is_chosen() -> None:
    m = 1518500250
    assert form(Doubled(m, 0, 5), (1 << 30) - 1) == rescale.DOUBLED
    assert form(Doubled(m), 1000) == rescale.DOUBLED
    assert form(Doubled(m, 0, 5), 1 << 30) == rescale.HALVES
    assert form(Doubled(m, 3), 1000) == rescale.HALVES
    assert form(HalfUp(20000, 20), 1 << 45) == rescale.HALVES
    assert form(HalfUp(20000, 20), 1 << 49) == rescale.THRESHOLDS64
    assert form(Doubled(m, 31), 1000) == rescale.THRESHOLDS32
    assert form(Away(36), 1000) == rescale.NARROW
    assert form(Away(36), 1 << 20) == rescale.PRODUCT


@settings(max_examples=400, deadline=None)
@given(
    st.integers(-(1 << 47), 1 << 47),
    st.one_of(
        st.builds(HalfUp, st.integers(1, (1 << 15) - 1), st.integers(0, 62)),
        st.builds(Doubled, st.integers(1, (1 << 31) - 1), st.integers(0, 30)),
        st.builds(Doubled, st.integers(1, (1 << 31) - 1), st.just(0), st.integers(1, 31)),
    ),
)
@example(-(1 << 30), Doubled(1 << 30, 0, 1))
@example(-1, Doubled(1, 0, 31))
@example(-3, HalfUp(1, 1))
@example(5, HalfUp(3, 0))
def test_one_form_of_64_bits(acc: int, by: Doubled | HalfUp) -> None:
    """Of sums of 32 bits by 31 bits, or of 48 by 15."""
    acc = acc if isinstance(by, HalfUp) else acc >> 17 + by.left
    found = halves([by], [(acc, acc)])
    assert found is not None
    ((m, apart, shift),) = found
    total = acc * m + (1 << shift - 1) + (-apart if acc < 0 else apart)
    assert -(1 << 63) <= total < 1 << 63
    assert total >> shift == by.code(acc)


@pytest.mark.parametrize("flags", ["-O1", "-O3 -march=native"])
def test_every_code(same_in_c: Check, flags: str) -> None:
    """All sums of 16 bits, and as many large ones, by every kind of shift."""
    graphs = []
    kinds: tuple[tuple[Rounding, ...], ...] = (
        *((Doubled(1 << 30, 0, s),) for s in (0, 1, 2, 8)),
        tuple(Doubled(1518500249 + s, 0, s) for s in (0, 1, 8, 31)),
        tuple(Doubled(m, 0, 9) for m in (1, (1 << 30) + 1, 3 << 29, (1 << 31) - 1)),
        tuple(Doubled(1518500249, s) for s in (0, 1, 3, 0)),
        tuple(HalfUp(m, s) for m, s in ((1, 0), (32767, 20), (16384, 14), (9999, 30))),
        (Away(36),),
        tuple(map(Away, (1, 2, 49, 256))),
    )
    for index, ratios in enumerate(kinds):
        g = GraphBuilder(f"twice{index}")
        x = g.input("x", "int16", (16384, 4))
        a = {"ratios": ratios, "zero": 9 * index - 20, "low": -128, "high": 127, "dtype": "int8"}
        acc = g.add("add", [x], {"factors": (16381,), "offset": 5})
        graphs.append(g.build([g.add("requantize", [x], a), g.add("requantize", [acc], a)]))
    every = np.arange(-32768, 32768).astype(np.int16).reshape(16384, 4)
    same_in_c(graphs, *flags.split(), inputs=[[[every]]] * len(graphs))
