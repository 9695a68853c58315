"""Ranges to scales: the rules of formats.md, percentiles and least squared error."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from samebits.errors import InputError
from samebits.quantization.calibrate import (
    calibrate,
    from_range,
    least_error,
    percentile_range,
    squared_error,
)
from samebits.quantization.observe import statistics
from samebits.quantization.settings import (
    ACTIVATIONS,
    WEIGHTS,
    Settings,
    code_type,
    ends_within,
    with_bits,
)
from samebits.recipes.quantization import METHODS
from samebits.spec import formats

SCHEMES = list(ACTIVATIONS.values())
ends = st.floats(width=32, allow_nan=False, min_value=-(2.0**100), max_value=2.0**100)


@pytest.mark.parametrize("fmt", SCHEMES, ids=lambda f: f.name)
@given(ends, ends)
def test_ranges_by_definition(fmt, a, b):
    low, high = Fraction(min(a, b, 0.0)), Fraction(max(a, b, 0.0))
    found = from_range(Fraction(min(a, b)), Fraction(max(a, b)), fmt, "x")
    assert (found.low, found.high) == (low, high)
    assert fmt.code_min <= found.zero_point <= fmt.code_max
    assert formats.encode(Fraction(0), found.scale, found.zero_point, fmt) == found.zero_point
    assert formats.round_binary32(found.scale) == found.scale
    if fmt.power_of_two:
        numerator, denominator = found.scale.as_integer_ratio()
        assert numerator & (numerator - 1) == 0
        assert denominator & (denominator - 1) == 0

        def fits(scale):
            codes = round(low / scale), round(high / scale)
            return fmt.code_min <= codes[0] and codes[1] <= fmt.code_max

        assert fits(found.scale)
        smallest = low == high or found.scale == formats.power(-126)
        assert smallest or not fits(found.scale / 2)
    else:
        assert (found.scale, found.zero_point) == formats.affine_parameters((low, high), fmt)


@pytest.mark.parametrize("fmt", [*SCHEMES, *WEIGHTS.values()], ids=lambda f: f.name)
def test_a_range_of_zero_width(fmt):
    found = from_range(Fraction(0), Fraction(0), fmt, "x")
    assert found.scale == 1
    constant = from_range(Fraction(5), Fraction(5), fmt, "x")
    assert constant.low == 0
    code = formats.encode(Fraction(5), constant.scale, constant.zero_point, fmt)
    assert abs(formats.decode(code, constant.scale, constant.zero_point) - 5) <= constant.scale / 2


def test_a_range_beyond_binary32():
    with pytest.raises(InputError) as error:
        from_range(Fraction(0), Fraction(2) ** 200, ACTIVATIONS["asymmetric-u8"], "x")
    assert str(error.value) == (
        "tensor 'x': expected values that a binary32 scale can hold, found the range 0 to "
        "1.60694e+60; scale the data or the weights down"
    )


def test_the_largest_binary32_number_is_a_scale():
    fmt, largest = ACTIVATIONS["asymmetric-u8"], (2 - Fraction(2) ** -23) * Fraction(2) ** 127
    assert from_range(Fraction(0), 255 * largest, fmt, "x").scale == largest
    with pytest.raises(InputError, match="tensor 'x': expected values that a binary32 scale can"):
        from_range(Fraction(0), 255 * Fraction(2) ** 128, fmt, "x")


# --- percentiles ------------------------------------------------------------------------------


@given(
    st.lists(st.integers(-1023, 1023), min_size=1, max_size=60),
    st.fractions(min_value=51, max_value=100, max_denominator=100),
)
def test_percentiles_of_whole_bins(values, percentile):
    """With 1023 and -1023 added, bins are whole numbers: check against the sorted list."""
    values = sorted([*values, -1023, 1023])
    found = percentile_range(statistics(np.array(values, np.float64)), percentile)
    allowed = int(len(values) * (100 - percentile) / 200)
    assert found[0] == values[allowed]
    assert found[1] == min(values[-1 - allowed] + 1, values[-1])


def test_percentiles_cut_outliers():
    values = np.concatenate([np.linspace(0, 1, 9999), [1000.0]]).astype(np.float32)
    stats = statistics(values)
    settings = Settings(calibration="percentile", percentile=99.9)
    kept = calibrate(stats, ACTIVATIONS["asymmetric-u8"], settings, "x")
    assert kept.low == 0
    assert 1 <= kept.high <= 1.5
    whole = percentile_range(stats, Fraction(100))
    assert whole == (0, 1000)


# --- least squared error ----------------------------------------------------------------------


def error_by_definition(stats, found):
    """The squared error of quantizing the centres of the bins, zeros at 0, in rationals."""
    total = Fraction(0)
    for index in np.flatnonzero(stats.counts).tolist():
        count = int(stats.counts[index])
        if index + stats.first == 0:
            count -= stats.zeros
        centre = (stats.edge(index) + stats.edge(index + 1)) / 2
        code = formats.encode(centre, found.scale, found.zero_point, found.format)
        total += count * (centre - formats.decode(code, found.scale, found.zero_point)) ** 2
    return total


def spread(kind, size=400):
    random = np.random.default_rng(5)
    values = {
        "normal": random.normal(size=size),
        "relu": np.maximum(random.normal(size=size), 0),
        "laplace": random.laplace(size=size),
        "outlier": np.concatenate([random.normal(size=size), [60.0, -20.0]]),
        "negative": -np.abs(random.normal(size=size)),
        "tiny": random.normal(size=size) * 1e-30,
    }[kind]
    return statistics(values.astype(np.float32))


@pytest.mark.parametrize("kind", ["normal", "relu", "laplace", "outlier", "negative", "tiny"])
@pytest.mark.parametrize("fmt", [f for f in SCHEMES if f.bits == 8], ids=lambda f: f.name)
def test_fixed_point_errors_are_those_of_rationals(kind, fmt):
    """Steps are rounded to 2**-16 units: the relative difference is below 1 %."""
    stats = spread(kind)
    unit = formats.power(2 * (stats.width - 17))
    for ratio in (1, Fraction(1, 2), Fraction(1, 7)):
        found = from_range(Fraction(stats.low) * ratio, Fraction(stats.high) * ratio, fmt, "x")
        fixed = squared_error(stats, found) * unit
        if found.scale < formats.power(stats.width):
            continue
        rational = error_by_definition(stats, found)
        assert abs(fixed - rational) <= rational / 100


@pytest.mark.parametrize("doublings", [0, 5, 11, 12])
def test_errors_of_steps_of_a_power_of_two_bins_are_exact(doublings):
    """With 2**12 bins every element is within half a step of 0, and its error is its square."""
    stats = spread("outlier")
    fmt = ACTIVATIONS["power-of-two-s8"]
    found = replace(
        from_range(Fraction(-1), Fraction(1), fmt, "x"),
        scale=formats.power(stats.width + doublings),
    )
    error = squared_error(stats, found) * formats.power(2 * (stats.width - 17))
    assert error == error_by_definition(stats, found)


@pytest.mark.parametrize("kind", ["normal", "relu", "laplace", "outlier", "negative", "tiny"])
@pytest.mark.parametrize("fmt", SCHEMES, ids=lambda f: f.name)
def test_least_error_is_not_above_the_whole_range(kind, fmt):
    stats = spread(kind)
    found = least_error(stats, fmt, "x")
    whole = from_range(Fraction(stats.low), Fraction(stats.high), fmt, "x")
    assert squared_error(stats, found) <= squared_error(stats, whole)
    assert whole.low <= found.low <= 0 <= found.high <= whole.high
    assert least_error(stats, fmt, "x") == found


def test_outliers_are_clipped():
    """One element at 60 is worth less than finer steps for the million others: clipping at h costs
    about (60 - h)**2 + 10**6 * (h / 255)**2 / 12."""
    random = np.random.default_rng(5)
    values = np.concatenate([random.normal(size=1000000), [60.0]]).astype(np.float32)
    stats = statistics(values)
    found = least_error(stats, ACTIVATIONS["asymmetric-s8"], "x")
    assert 15 < found.high < 40
    assert found.low < -2
    power = least_error(stats, ACTIVATIONS["power-of-two-s8"], "x")
    assert power.scale == Fraction(1, 16)
    assert power.high == Fraction(127, 16)


def test_zeros_have_no_error():
    """A tensor of zeros but for a few: the zeros must not call for a smaller range."""
    values = np.concatenate([np.zeros(100000), np.linspace(0, 1, 256)]).astype(np.float32)
    found = least_error(statistics(values), ACTIVATIONS["asymmetric-u16"], "x")
    assert found.high == 1


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("fmt", SCHEMES, ids=lambda f: f.name)
def test_constant_tensors(method, fmt):
    for value in (0.0, 3.5, -3.5, 2.0**-149):
        stats = statistics(np.full(7, value, np.float32))
        found = calibrate(stats, fmt, Settings(calibration=method), "x")
        assert found.scale > 0
        if value == 0:
            assert found.scale == 1
        code = formats.encode(Fraction(value), found.scale, found.zero_point, fmt)
        back = formats.decode(code, found.scale, found.zero_point)
        assert abs(back - Fraction(value)) <= found.scale / 2


# --- settings ---------------------------------------------------------------------------------


def test_schemes():
    restricted = [name for name, fmt in ACTIVATIONS.items() if any(ends_within(fmt))]
    assert restricted == ["symmetric-s8", "symmetric-s16"]
    assert with_bits(ACTIVATIONS["symmetric-s8-full"], 16).name == "symmetric-s16-full"
    ten = with_bits(ACTIVATIONS["asymmetric-s8"], 10)
    assert (ten.name, code_type(ten), ends_within(ten)) == ("asymmetric-s10", "int16", (True, True))
    assert with_bits(ACTIVATIONS["asymmetric-u8"], 12).code_max == 4095
    assert with_bits(WEIGHTS["symmetric-s8"], 10, weights=True) is None
    assert Settings(output_bits=16).output_format.name == "asymmetric-s16"
    assert Settings(activations="power-of-two-s16").output_format.name == "power-of-two-s16"
    assert replace(Settings(), weights="power-of-two-s16").weight_format.bits == 16


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (
            {"activations": "int8"},
            f"--scheme: expected one of {', '.join(ACTIVATIONS)}, found 'int8'",
        ),
        ({"weights": "int8"}, f"--weights: expected one of {', '.join(WEIGHTS)}, found 'int8'"),
        (
            {"calibration": "kl"},
            "--calibrate: expected one of minmax, percentile, mse, found 'kl'",
        ),
        ({"percentile": 50.0}, "--percentile: expected above 50 and up to 100, found 50.0"),
        ({"percentile": float("nan")}, "--percentile: expected above 50 and up to 100, found nan"),
        ({"output_bits": 4}, "--output-bits: expected 8 or 16, found 4"),
        ({"report_samples": 0}, "report samples: expected 1 or more, found 0"),
        ({"stop_early": 0}, "--stop-early: expected 1 or more, found 0"),
        (
            {"weights": "symmetric-s16", "symmetry": 0.5},
            "--symmetry: expected weights of 8 bits, found symmetric-s16; codes of 16 bits have no "
            "room for a zero point",
        ),
    ],
)
def test_settings_that_are_wrong(wrong, message):
    with pytest.raises(InputError) as error:
        Settings(**wrong)
    assert str(error.value) == message
