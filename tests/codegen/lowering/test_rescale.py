"""Every form of requantization over every code, ties included, and where each form is chosen."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from samebits.codegen.lowering import rescale
from samebits.codegen.lowering.calls import Data
from samebits.ir.graph import Graph, GraphBuilder
from samebits.ir.integer.bounds import Interval
from samebits.numerics.multiplier import requantized
from samebits.spec.formats import round_ratio

Check = Callable[..., None]
F = Fraction
RATIOS = (
    F(1, 2), F(1, 256), F(1, 4096), F(3, 512), F(1, 3), F(1, 6), F(5, 14), F(7, 1000), F(1), F(2),
    F(255, 65535), F(11184811, 1 << 32), F(1, 1 << 20), F(1 << 20), F(8388607, 1 << 31),
    F(1, (1 << 40) + 1), F(7, 3 << 24), F(7, 3 << 18), F(16777213 * 16777199, 12345677 << 40),
)  # fmt: skip


def scaled(ratio: Fraction, factor: int, dtype: str, zero: int) -> Graph:
    """All 65536 codes times `factor`, requantized."""
    g = GraphBuilder("rescale")
    x = g.input("x", "int16", (65536,))
    low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
    a = {"ratios": (ratio,), "zero": zero, "low": low, "high": high, "dtype": dtype}
    wide = "int64" if factor > 1 << 15 else "int32"
    acc = g.add("add", [x], {"factors": (factor,), "offset": factor // 3, "dtype": wide})
    return g.build([g.add("requantize", [x], a), g.add("requantize", [acc], a)])


def per_channel(ratios: tuple[Fraction, ...], dtype: str) -> Graph:
    """All 65536 codes times 3, requantized with a ratio per channel."""
    g = GraphBuilder("rescale")
    x = g.input("x", "int16", (65536 // len(ratios), len(ratios)))
    low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
    a = {"ratios": ratios, "zero": 1, "low": low, "high": high, "dtype": dtype}
    acc = g.add("add", [x], {"factors": (3,)})
    return g.build([g.add("requantize", [x], a), g.add("requantize", [acc], a)])


def always_low() -> Graph:
    """Sums below zero by a ratio that no multiplier holds: one code, and a table without steps."""
    g = GraphBuilder("low")
    x = g.input("x", "int8", (256,))
    acc = g.add("add", [x], {"factors": (1,), "offset": -200})
    a = {"ratios": (F(1 << 62),), "zero": 9, "low": -99, "high": 99, "dtype": "int8"}
    return g.build([g.add("requantize", [acc], a)])


@pytest.mark.parametrize(
    ("flags", "every"),
    [
        ("-O1 -march=native", 18),
        pytest.param("-O3 -march=native", 1, marks=pytest.mark.slow),
        pytest.param("-O1", 1, marks=pytest.mark.slow),
    ],
)
def test_every_code_in_every_form(same_in_c: Check, flags: str, every: int) -> None:
    """every: which of the ratios, the first and every so many, or all."""
    kinds = ((1, "int8", 0), (65521, "uint8", 129), (1 << 30, "int8", -7), (3, "int16", 5))
    graphs = [scaled(ratio, *kinds[i % 4]) for i, ratio in enumerate(RATIOS[::every])]
    inputs = [[[np.arange(-32768, 32768, dtype=np.int16)]]] * len(graphs)
    for ratios in (
        (F(1, 6), F(5, 14)),
        (F(1, 3), F(1, 6), F(5, 16), F(3, 10)),
        (F(1, 6), F((1 << 29) + 1)),
    ):
        graphs += [per_channel(ratios, dtype) for dtype in ("int8", "int16")]
        inputs += [[[inputs[0][0][0].reshape(-1, len(ratios))]]] * 2
    graphs.append(always_low())
    inputs.append([[np.arange(-128, 128, dtype=np.int8)]])
    same_in_c(graphs, *flags.split(), inputs=inputs)


def form(
    ratio: Fraction | tuple[Fraction, ...],
    low: int,
    high: int,
    dtype: str = "int8",
    channels: int = 1,
) -> int:
    """The form chosen for sums in [low, high]; `ratio`: of all channels, or one for each."""
    a = {"zero": 0, "low": np.iinfo(dtype).min, "high": np.iinfo(dtype).max, "dtype": dtype}
    ratios = (ratio,) * channels if isinstance(ratio, Fraction) else ratio
    made = rescale.rescaling(Interval((low,), (high,)), {**a, "ratios": ratios}, "here")
    found = made.fields["form"]
    assert isinstance(found, int)
    return found


def test_the_narrowest_form_is_chosen() -> None:
    scale = F(11184811, 1 << 32)
    assert form(F(1, 256), -30000, 30000) == rescale.SHIFT
    assert form(F(1, 256), -(1 << 31), (1 << 31) - 1) == rescale.PRODUCT
    assert form(F(1, 256), -(1 << 40), 1 << 40) == rescale.WIDE
    assert form(F(5, 1024), -30000, 30000) == rescale.NARROW
    assert form(scale, -(1 << 20), 1 << 20) == rescale.PRODUCT
    assert form(scale, -(1 << 40), 1 << 40) == rescale.WIDE
    assert form(scale / 2**20, -(1 << 40), 1 << 40, "int16") in (rescale.WIDE, rescale.LONG)
    assert form(F(1, 6), -3000, 3000) == rescale.TIES
    assert form(F(1, 6), -3000, 3000, channels=64) == rescale.TIES
    assert form(F(1, 6), -30000, 30000, "int16") == rescale.TIES
    assert form(F(1, 6), -(1 << 31), (1 << 31) - 1) == rescale.TIES
    assert form(F(1, 6), -(1 << 40), 1 << 40) in (rescale.THRESHOLDS64, rescale.DIVIDE)
    hard = F(7, 3 << 24)  # ties in reach, and steps nearer to others than 31 bits tell
    assert form(hard, -(1 << 30), 1 << 30) == rescale.THRESHOLDS32
    assert form(hard, -(1 << 30), 1 << 30, channels=64) == rescale.DIVIDE
    assert form(F(7, 3 << 18), -(1 << 31), (1 << 31) - 1, "int16") == rescale.DIVIDE


def test_forms_at_the_ends_of_their_widths() -> None:
    most = (1 << 31) - 1  # a multiplier of 31 bits, sums of 31, shifted out by 62
    assert form(F(most, 1 << 62), -most, most) == rescale.PRODUCT
    # m = 2**61 + 2 over 2: products with 3 fit in 64 bits; with 7 they do not, and half of one
    # takes more than 62 bits, so that neither a product of 64 bits nor one of 128 is left.
    assert form(F((1 << 60) + 1), -3, 3) == rescale.WIDE
    assert form(F((1 << 60) + 1), -7, 7) == rescale.THRESHOLDS32


def test_ties_at_the_last_code_count() -> None:
    """9 / 6 rounds up to 2, 3 / 6 down to 0: any multiplier is wrong at one of them."""
    assert form(F(1, 6), 0, 8) != rescale.TIES  # below 1/6 all of these are right
    assert form(F(1, 6), 0, 9) == rescale.TIES


def test_ties_take_all_of_31_bits() -> None:
    """Where only one of the multipliers around the ratio is right, and where none of 30 bits is."""
    reach = 1 << 30
    assert form(F(3, 10), -3000, 3000) == rescale.TIES  # of three codes one begins at a tie
    assert form(F(49, 135 << 18), -reach, reach) == rescale.TIES  # the multiplier above the ratio
    assert form(F(43, 101 << 20), -reach, reach) == rescale.TIES
    m, _ = rescale._but_for_ties(F(43, 101 << 20), 0, -128, 127, -reach, reach) or (0, 0)
    assert m.bit_length() == 31
    # Among the largest ratios: 2**29 + 1 is m / 2 with m of 31 bits.
    assert form((F(1, 6), F((1 << 29) + 1)), -3000, 3000) == rescale.TIES


def test_ties_are_left_where_64_bits_do_not_settle_them() -> None:
    """The denominator times what the ratio takes the sums to, rounded down, and 2 more, has to stay
    below 2**61: 7 * 2**56 times 2 + 2 does, 7 * 2**57 times 1 + 2 does not."""
    p, most = (1 << 29) + 1, (1 << 31) - 2
    assert form((F(1, 6), F(p, 7 << 56)), 0, most) == rescale.TIES
    assert form((F(1, 6), F(p, 7 << 57)), 0, most) == rescale.THRESHOLDS32


def test_a_table_without_steps_has_an_entry() -> None:
    """C has no empty arrays."""
    a = {"zero": 9, "low": -99, "high": 99, "dtype": "int8"}
    made = rescale.rescaling(Interval((-328,), (-73,)), {**a, "ratios": (F(1 << 62),)}, "here")
    table = made.fields["multipliers"]
    assert isinstance(table, Data)
    assert (made.fields["count"], table.array.tolist()) == (0, [0])


def test_a_channel_with_one_code_keeps_the_multiplier() -> None:
    """Dead channels of a pruned layer are common; they must not cost a table."""
    a = {"zero": 3, "low": -128, "high": 127, "dtype": "int8"}
    interval = Interval((-5000, 777, -5000), (5000, 777, 5000))
    made = rescale.rescaling(interval, {**a, "ratios": (F(1, 100),) * 3}, "here")
    assert made.fields["form"] != rescale.THRESHOLDS32
    live = rescale.rescaling(
        Interval((-5000, 0), (5000, 0)), {**a, "ratios": (F(11184811, 1 << 30),) * 2}, "here"
    )
    assert live.fields["form"] in (rescale.NARROW, rescale.PRODUCT)


@settings(max_examples=100)
@given(
    st.fractions(F(1, 1 << 30), F(100), max_denominator=1 << 40),
    st.integers(-(1 << 45), 1 << 45),
    st.integers(0, 1 << 45),
    st.integers(-200, 200),
)
def test_multipliers_are_the_definition_inside_their_interval(
    ratio: Fraction, start: int, span: int, zero: int
) -> None:
    found = rescale._multiplier(ratio, zero, -128, 127, start, start + span)
    if found is None:
        return
    m, shift = found
    assert shift >= 1
    points = {start, start + span, start + span // 2, start + span // 3}
    points |= {round(F(2 * k + 1, 2) / ratio) + d for k in range(-130, 130) for d in (-1, 0, 1)}
    for acc in points:
        if start <= acc <= start + span:
            exact = requantized(acc, ratio, zero, -128, 127)
            assert requantized(acc, F(m, 1 << shift), zero, -128, 127) == exact


def tied(acc: int, m: int, shift: int, ratio: Fraction) -> int:
    """What C computes: the rounded product, and the even neighbour where the exact one is a tie."""
    p, q = ratio.as_integer_ratio()
    v = round_ratio(acc * m, 1 << shift)
    error = 2 * (p * acc - q * v)
    return v + (error > 0) - (error < 0) if v % 2 and abs(error) == q else v


@settings(max_examples=200)
@example(783, 7635730432, 0, 0, 258425104, 0)  # 31 bits would begin one code more inside
@given(
    st.integers(1, 1 << 12),
    st.integers(1, 1 << 12),
    st.integers(0, 16),
    st.integers(-(1 << 31), 1 << 30),
    st.integers(0, 1 << 30),
    st.integers(-100, 100),
)
def test_ties_are_settled(p: int, q: int, halvings: int, start: int, span: int, zero: int) -> None:
    ratio = F(p, q << halvings)
    found = rescale._but_for_ties(ratio, zero, -128, 127, start, start + span)
    if found is None:
        return
    points = {start, start + span, start + span // 3}
    points |= {round(F(2 * k + 1, 2) / ratio) + d for k in range(-240, 240) for d in (-1, 0, 1)}
    inside = [acc for acc in points if start <= acc <= start + span]
    for acc in inside:
        exact = requantized(acc, ratio, zero, -128, 127)
        assert min(max(tied(acc, *found, ratio) + zero, -128), 127) == exact, acc


def test_ratios_of_small_numbers_never_need_a_table() -> None:
    """Scales of 8 significant bits, as recurrent networks have them."""
    for q in range(3, 256, 2):
        assert rescale._but_for_ties(F(1, q << 20), 5, -128, 127, -(1 << 30), 1 << 30) is not None


def test_a_huge_zero_point_is_refused() -> None:
    with pytest.raises(rescale.UnsupportedError, match="expected a zero point below"):
        rescale.rescaling(
            Interval((0,), (1,)),
            {"ratios": (F(1),), "zero": 1 << 30, "low": 0, "high": 1, "dtype": "int8"},
            "here",
        )
