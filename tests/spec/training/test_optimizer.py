"""The lazy update and the optimizers' own rules, against their definition in rationals."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from compare import assert_same
from samebits.errors import RangeError
from samebits.spec import formats
from samebits.spec.formats import Q8, power
from samebits.spec.training import moments
from samebits.spec.training.optimizer import combine, lazy_update, moment_term, positions

joints = st.lists(st.integers(-127 << 15, 127 << 15), min_size=1, max_size=5)
codes = st.sampled_from([0, 512, -512, 32767, -32767]) | st.integers(20000, 32767)
ONE = (32768, -15)


def weight_of(joint: list[int], exponent: int) -> formats.Weight:
    return (*formats.split(joint), exponent)


def number(code: int, exponent: int) -> Fraction:
    if code == 0:
        return Fraction(0)
    q, field = moments.significand(code)
    return (q if code > 0 else -q) * power(exponent - 63 + field)


@given(joints, st.integers(-100, 60), st.integers(-70, 30), st.data())
def test_lazy_update_conserves_the_joint_value(joint, exponent, ahead, data):
    """J decreases by the update within one unit; only a raised exponent rounds J, once."""
    size = len(joint)
    p = data.draw(st.lists(codes, min_size=size, max_size=size))
    words = data.draw(st.none() | st.lists(st.integers(0, 65535), min_size=size, max_size=size))
    m = data.draw(st.integers(32768, 65535))
    e_p = exponent - 15 + ahead
    before = weight_of(joint, exponent)
    new, delayed, after = lazy_update(before, (p, e_p), (m, 0), words)
    if not any(p):
        assert (new, delayed, after) == before
        return
    top = max(map(abs, p)) >> 9
    raised = max(ahead - 63 + top + 26 - 46, 0)
    unit = power(exponent - 15 + raised)
    result, _ = formats.join((new, delayed, after))
    by = after - (exponent + raised)
    bound = (Fraction(1, 2) if words is None else 1) * unit
    bound += unit / 2 * (raised > 0) + (power(after - 16) if by > 0 else 0)
    for i, code in enumerate(p):
        true = joint[i] * power(exponent - 15) - m * number(code, e_p)
        assert abs(result[i] * power(after - 15) - true) <= bound
    assert max(map(abs, new)) <= Q8
    assert max(map(abs, delayed)) <= 1 << 14
    assert not any(result) or max(map(abs, new)) > 63 or after == -128


@given(joints, st.integers(-128, 100))
def test_lowering_the_exponent_loses_nothing(joint, exponent):
    joint = [j >> 9 for j in joint]
    # The code 512 * 60 has q = 512, F = 60: one unit of J at this exponent.
    p = [512 * 60] + [0] * (len(joint) - 1)
    new, delayed, after = lazy_update(weight_of(joint, exponent), (p, exponent - 15 - 6), ONE, None)
    joint[0] -= 1
    assume(any(joint))
    assert after <= exponent
    result, _ = formats.join((new, delayed, after))
    assert result == [j << (exponent - after) for j in joint]


@given(st.lists(st.integers(-60, 60), min_size=1, max_size=6), st.integers(0, 2**31))
def test_small_updates_accumulate(start, seed):
    """60 updates far below one code unit arrive to the last bit."""
    start = [*start, 100]  # keeps the exponent where it is
    weight: formats.Weight = (start, [0] * len(start), 0)
    steps = [(seed * (i + 1)) % 1001 - 500 for i in range(len(start) - 1)] + [0]
    assume(any(steps))
    p, e_p = moments.encode([(s, -15) for s in steps], None)
    assert [number(c, e_p) for c in p] == [s * power(-15) for s in steps]
    for _ in range(60):
        weight = lazy_update(weight, (p, e_p), ONE, None)
    joint, _ = formats.join(weight)
    assert_same(joint, [(c << 15) - 60 * u for c, u in zip(start, steps, strict=True)], steps)


def test_an_update_below_one_unit_arrives_on_average():
    """A third of a unit moves a third of the weights; to nearest it would move none."""
    p, e_p = moments.encode([(1, -15)] * 6, None)
    third = formats.coefficient(1 / 3)
    words = [(65536 * k + 32768) // 6 for k in range(6)]
    after = lazy_update(weight_of([100 << 15] * 6, 0), (p, e_p), third, words)
    joint, _ = formats.join(after)
    assert sum((100 << 15) - j for j in joint) == 2
    assert lazy_update(weight_of([100 << 15] * 6, 0), (p, e_p), third, None)[1] == [0] * 6


def test_a_weight_counts_beside_an_update_that_dwarfs_it():
    """2**30 moves the exponent by 24: J = -127 * 2**15 becomes -0.248 units of 2**9, and 192 more
    is -0.623 units, which rounds to -1."""
    p = [512 * 63, 512 * 40 + 256]  # 512 * 2**21 and 768 * 2**-2
    assert [number(code, 21) for code in p] == [2**30, 192]
    after = lazy_update(([0, -127], [0, 0], 0), (p, 21), ONE, None)
    assert after == ([-64, 0], [0, 1], 24)


def test_update_overflow():
    p, e_p = moments.encode([(-1, 135)], None)
    with pytest.raises(RangeError) as error:
        lazy_update(([127], [0], 127), (p, e_p), ONE, None, "fc.weight")
    assert str(error.value) == (
        "parameter 'fc.weight': the update overflows (exponent 129, at most 127); "
        "lower the learning rate"
    )


@given(st.lists(st.tuples(codes, codes), min_size=2, max_size=4), st.integers(-60, 60))
def test_combine(pairs, e_v):
    """Each term is rounded once, to 50 bits below the largest that there may be."""
    g = [a * 1000 for a, _ in pairs]
    v = [b for _, b in pairs]
    terms = [([(c, -20) for c in g], 11), moment_term((v, e_v), 0.9)]
    result = combine(terms)
    m, x = formats.coefficient(0.9)
    tops = [11] + [e_v - 63 + (abs(b) >> 9) + x + 26 for b in v if b]
    exponent = max(tops) - 50
    for (total, e), a, b in zip(result, g, v, strict=True):
        assert e == exponent
        assert abs(total) < 2**52
        true = a * power(-20) + m * number(b, e_v) * power(x)
        assert abs(total * power(e) - true) <= power(e)


def test_positions_are_those_of_channels_last_memory():
    assert positions((2, 3)) == [0, 1, 2, 3, 4, 5]
    assert positions(()) == [0]
    shape = (2, 3, 2, 2)
    found = positions(shape)
    assert sorted(found) == list(range(24))
    assert found[:5] == [0, 3, 6, 9, 1]
