"""The torch realisation equals spec.formats: every code, edges, ties, exponents, properties."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from compare import assert_same
from samebits.errors import InputError, NonFiniteError, RangeError, UnsupportedError
from samebits.numerics import FORMATS, Format, QTensor, Rounding, catalog, quantize_real
from samebits.numerics.philox import words
from samebits.numerics.qtensor import code_dtype
from samebits.numerics.realise import times_power
from samebits.spec import formats

# Beyond the catalogue: other widths, blocks on affine formats, 32-bit affine codes.
EXTRA = [
    catalog.bfp(2),
    catalog.bfp(5, block=3),
    replace(catalog.bfp(8), name="bfp8-low", exponent_min=-20),
    catalog.symmetric(8, full=True),
    replace(catalog.symmetric(4), name="symmetric-s4-block5", block=5),
    catalog.asymmetric(3, signed=True),
    catalog.asymmetric(32, signed=False),
    catalog.symmetric(32),
    catalog.qmn(0, 31),
    replace(catalog.qmn(3, 4), name="q3.4-block4", block=4),
    replace(FORMATS["mxint8"], name="mxint8-high", exponent_min=-3, exponent_max=2),
]
EVERY = [*FORMATS.values(), *EXTRA]


def by_definition(values, shape, fmt: Format, random=None):
    """(codes, exponents or scales, zero point) of a row-major list, by spec.formats alone."""
    values = formats.reals(values)
    row = shape[-1] if shape else 1
    random = random or [None] * len(values)
    if fmt.block is None:
        spans = [(0, len(values))]
    else:
        spans = [
            (start + at, start + min(at + fmt.block, row))
            for start in range(0, len(values), max(row, 1))
            for at in range(0, row, fmt.block)
        ]
    codes: list[int] = []
    scales: list[Fraction | int] = []
    zero_point = 0
    for begin, end in spans:
        block = values[begin:end]
        if fmt.power_of_two:
            scales.append(formats.block_exponent(block, fmt))
            scale = formats.power(scales[-1])
        else:
            scale, zero_point = formats.affine_parameters(block, fmt)
            scales.append(scale)
        codes += [
            formats.encode(v, scale, zero_point, fmt, word)
            for v, word in zip(block, random[begin:end], strict=True)
        ]
    return codes, scales, zero_point


def check(x: torch.Tensor, fmt: Format, random: torch.Tensor | None = None) -> QTensor:
    """quantize_real equals the definition: codes, exponents or scales, zero point, values."""
    found = quantize_real(x, fmt, random=random)
    values = x.to(torch.float64).reshape(-1).tolist()
    bits = None if random is None else random.reshape(-1).tolist()
    codes, scales, zero_point = by_definition(values, x.shape, fmt, bits)
    assert found.codes.dtype == code_dtype(fmt)
    assert found.codes.shape == x.shape
    per_block = found.exponent if fmt.power_of_two else found.scale
    assert per_block is not None
    assert_same(per_block, scales, range(len(scales)))
    assert found.zero_point == zero_point
    assert_same(found.codes, codes, values)
    return found


def neighbours(values: torch.Tensor) -> torch.Tensor:
    """Each float32 with the one below and the one above, [n, 3]."""
    infinity = torch.tensor(torch.inf)
    below = torch.nextafter(values, -infinity)
    return torch.stack((below, values, torch.nextafter(values, infinity)), dim=1)


def power_of_two_neighbours() -> torch.Tensor:
    """2**e and its neighbours for every float32 exponent, subnormal ones too; [277, 3]."""
    x = neighbours(torch.tensor([2.0**e for e in range(-149, 128)], dtype=torch.float32))
    assert torch.isfinite(x).all()
    assert x[0].tolist() == [0.0, 2.0**-149, 2.0**-148]
    return x


LARGEST = torch.finfo(torch.float32).max

# --- every code -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fmt", [f for f in EVERY if f.bits <= 8 and f.block is None], ids=lambda f: f.name
)
def test_every_8_bit_code_ties_and_neighbours(fmt):
    """All codes, all midpoints between codes, and the floats on both sides of each midpoint."""
    codes = torch.arange(fmt.code_min, fmt.code_max + 1, dtype=torch.float32)
    x = torch.cat((codes, neighbours(codes + 0.5).reshape(-1)))
    x = x[(x >= fmt.code_min) & (x <= fmt.code_max)]
    unit = 2.0**-fmt.fraction_bits
    for rounding in (r for r in Rounding if r is not Rounding.STOCHASTIC):
        check(x * unit, replace(fmt, rounding=rounding))
        check(-x * unit * 3, replace(fmt, rounding=rounding))


@pytest.mark.parametrize(
    "name", ["bfp16", "asymmetric-u16", "asymmetric-s16", "symmetric-s16", "q0.15", "q3.12"]
)
def test_every_16_bit_code_and_tie(name):
    """Whole-number inputs have scale 1 (or 2**-n), so the code is the input, by integers; every
    997th is also put to the definition."""
    fmt = FORMATS[name]
    codes = torch.arange(fmt.code_min, fmt.code_max + 1, dtype=torch.int64)
    unit = 2.0**-fmt.fraction_bits
    found = quantize_real(codes.to(torch.float32) * unit, fmt)
    assert_same(found.codes, codes, codes)
    ends = torch.tensor([fmt.code_min, fmt.code_max], dtype=torch.float32)
    ties = torch.cat((codes[:-1].to(torch.float32) + 0.5, ends)) * unit
    found = quantize_real(ties, fmt)
    even = codes[:-1] + (codes[:-1] & 1)
    assert_same(found.codes[:-2], even, ties[:-2])
    check(torch.cat((ties[::997], ends * unit)), fmt)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", ["bfp8", "msfp12", "mxint8", "asymmetric-s8", "q3.12"])
def test_half_precision_inputs(dtype, name):
    """A spread of the 65,536 bit patterns (every 13th, all exponents) that are finite."""
    patterns = torch.arange(-(1 << 15), 1 << 15, 13, dtype=torch.int32).to(torch.int16)
    x = patterns.view(dtype)
    check(x[torch.isfinite(x)].reshape(-1, 1)[:4800].reshape(-1, 60), FORMATS[name])


# --- edges ----------------------------------------------------------------------------------


@pytest.mark.parametrize("fmt", EVERY, ids=lambda f: f.name)
def test_powers_of_two_of_every_float32_exponent(fmt):
    x = power_of_two_neighbours()
    if fmt.name == "bfp2":  # the only one whose exponent can overflow
        x = x[:-1]
    if fmt.block is not None or fmt.rule.value in ("bfp", "mx", "symmetric"):
        check(x, replace(fmt, block=1))  # a scale of its own for each
        check(torch.stack((x, -x * 0.3), dim=-1), replace(fmt, block=2))
    else:
        check(x, fmt)
    for row in (0, 1, 23, 100, 149, 200, 275):
        check(x[row], fmt)
        check(-x[row], fmt)


@pytest.mark.parametrize("fmt", EVERY, ids=lambda f: f.name)
def test_edges(fmt):
    tiny, small = 2.0**-149, 2.0**-126
    rows = [
        [0.0],
        [-0.0, 0.0],
        [tiny],
        [-tiny, tiny, 0.0],
        [tiny * 3, -tiny * 255, tiny * 127, tiny * 128],
        [small, small - tiny, tiny, -small],
        [1.0, -tiny, tiny, -small],
        [-1.0, -1.0 - 2**-23],
        [127.0, 127.49999, 127.5, 127.50001, -128.0],
        [2.0**100, 1.0, -(2.0**76), 2.0**77],
    ]
    if fmt.name != "bfp2":
        rows += [[LARGEST, -LARGEST], [LARGEST], [-LARGEST, 1.0, tiny], [LARGEST, -tiny]]
    for rounding in (r for r in Rounding if r is not Rounding.STOCHASTIC):
        for row in rows:
            check(torch.tensor(row), replace(fmt, rounding=rounding))


@pytest.mark.parametrize("shape", [(), (0,), (1,), (3, 0), (0, 5), (2, 1, 7), (3, 16), (2, 2, 33)])
@pytest.mark.parametrize("fmt", EVERY, ids=lambda f: f.name)
def test_shapes(fmt, shape):
    generator = torch.Generator().manual_seed(5)
    found = check(torch.randn(shape, generator=generator), fmt)
    assert found.dequantize().shape == shape


def test_a_strided_input_equals_its_copy():
    x = torch.randn(6, 40, generator=torch.Generator().manual_seed(1)).t()
    for fmt in EVERY:
        found, copy = quantize_real(x, fmt), quantize_real(x.contiguous(), fmt)
        assert_same(found.codes, copy.codes, x)


@pytest.mark.parametrize("rounding", Rounding)
@pytest.mark.parametrize("name", ["bfp8", "bfp16", "mxint8", "q3.12"])
def test_float64_inputs(name, rounding):
    fmt = replace(FORMATS[name], rounding=rounding)
    one_below = 1.0 - 2**-53
    rows = [
        [5e-324, -5e-324],
        [1.0, -5e-324, 5e-324, 2.0**-1022, -(2.0**-1022)],
        [one_below, 0.5 * one_below, -one_below, 2.0**-30 * one_below],
        [one_below * 2.0**100, -1.0, 2.0**47],
        [1.0, 2.0**-7 + 2.0**-59, 2.0**-7 - 2.0**-59, -(2.0**-7) - 2.0**-59],
        [1e38, -5e-324, 5e-324, -(2.0**-1000)],  # these underflow when they are scaled
        [1e308, 0.0] if name in ("mxint8", "q3.12") else [1e38],
    ]
    for row in rows:
        x = torch.tensor(row, dtype=torch.float64)
        for word in (0, 1, 1 << 31, (1 << 32) - 1):
            check(x, fmt, torch.full(x.shape, word) if rounding is Rounding.STOCHASTIC else None)


def test_ties_do_not_depend_on_the_zero_point():
    """Scale 1 and an odd zero point: the code of every tie is its own even neighbour, moved."""
    fmt = FORMATS["asymmetric-u8"]
    ties = torch.arange(-101, 154, dtype=torch.float32) + 0.5
    ties[0], ties[-1] = -101.0, 154.0
    found = check(ties, fmt)
    assert (found.scale.item(), found.zero_point) == (1.0, 101)
    assert_same(found.codes[1:-1], torch.round(ties[1:-1]).to(torch.int64) + 101, ties[1:-1])
    for rounding in (Rounding.HALF_UP, Rounding.HALF_AWAY, Rounding.FLOOR):
        check(ties, replace(fmt, rounding=rounding))


# --- stochastic rounding --------------------------------------------------------------------


@pytest.mark.parametrize("fmt", EVERY, ids=lambda f: f.name)
def test_stochastic_rounding(fmt):
    fmt = replace(fmt, rounding=Rounding.STOCHASTIC)
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(12, 40, generator=generator) * 2.0 ** torch.arange(-30, 10).to(torch.float32)
    check(x, fmt, words(x.numel(), (1, 2)).reshape(x.shape))
    # Words at the threshold itself, and the ends of their range.
    fractions = torch.tensor([0.25, -0.25, 0.5, 2.0**-32, -(2.0**-32), 2.0**-33, -(2.0**-60), 0.0])
    x = torch.cat((fractions, torch.tensor([100.0])))
    for word in (0, 1, 1 << 30, (1 << 30) - 1, 3 << 30, (3 << 30) - 1, (1 << 32) - 1):
        check(x, fmt, torch.full(x.shape, word))


def test_stochastic_threshold_is_exact_for_quotients():
    """scale = 255/127: the definition's threshold is no dyadic number; try words around it."""
    fmt = replace(FORMATS["symmetric-s8"], rounding=Rounding.STOCHASTIC)
    base = torch.tensor([1.0, -1.0, 77.7, -77.7, 1e-3, -1e-3, 1e-9, -1e-9, 255.0])
    scale, _ = formats.affine_parameters([Fraction(255)], fmt)
    for i, value in enumerate(base[:-1].tolist()):
        ratio = Fraction(value) / scale
        threshold = int((ratio - ratio.__floor__()) * (1 << 32))
        for word in range(max(threshold - 1, 0), min(threshold + 3, 1 << 32)):
            random = torch.zeros(base.shape, dtype=torch.int64)
            random[i] = word
            check(base, fmt, random)


def test_stochastic_rounding_needs_words():
    fmt = replace(FORMATS["bfp8"], rounding=Rounding.STOCHASTIC)
    with pytest.raises(ValueError, match="stochastic rounding needs 32 random bits"):
        quantize_real(torch.ones(2), fmt)
    with pytest.raises(ValueError) as error:  # noqa: PT011 - the whole message is compared
        quantize_real(torch.ones(2, 3), fmt, name="x", random=torch.zeros(6, dtype=torch.int64))
    assert str(error.value) == "tensor 'x': expected random words of shape (2, 3), found (6,)"


# --- powers of two --------------------------------------------------------------------------


@pytest.mark.parametrize("exponent", [-1000, -3, -1, 0, 1, 30, 999, 1000, 1001, 1002, 1500, 2000])
def test_products_with_a_power_of_two_are_exact(exponent):
    """Also by powers beyond float64, in two steps, where the product is a float64 again."""
    largest = Fraction(2) ** 1023
    values = [s * m * 2.0**e for s in (1, -1) for m in (1.0, 5.0, 7.25) for e in (0, -60, -1074)]
    values = [
        v for v in (0.0, *values)
        if abs(expected := Fraction(v) * Fraction(2) ** exponent) <= largest
        and Fraction(float(expected)) == expected
    ]  # fmt: skip
    x = torch.tensor(values, dtype=torch.float64)
    exact = [float(Fraction(v) * Fraction(2) ** exponent) for v in values]
    assert any(exact)
    assert_same(times_power(x, exponent), exact, values)
    if exponent <= 1000:
        assert_same(times_power(x, torch.full(x.shape, exponent)), exact, values)


# --- properties -----------------------------------------------------------------------------

reals = st.one_of(
    st.floats(
        width=32, allow_nan=False, allow_infinity=False, min_value=-(2.0**120), max_value=2.0**120
    ),
    st.integers(-70000, 70000).map(lambda k: k / 2),
    st.tuples(st.integers(-(1 << 24), 1 << 24), st.integers(-60, 40)).map(
        lambda t: t[0] * 2.0 ** t[1]
    ),
)


@given(
    st.lists(reals, min_size=1, max_size=40),
    st.sampled_from(EVERY),
    st.sampled_from(Rounding),
    st.integers(0, 2**32 - 1),
)
def test_equals_the_definition(values, fmt, rounding, seed):
    x = torch.tensor(values, dtype=torch.float32)
    check(x, replace(fmt, rounding=rounding), words(len(values), (seed, 0)))


@pytest.mark.parametrize("fmt", EVERY, ids=lambda f: f.name)
def test_normal_values(fmt):
    x = torch.randn(64, 50, generator=torch.Generator().manual_seed(11))
    found = check(x, fmt)
    codes = found.codes.reshape(-1).tolist()
    scales = (found.exponent if fmt.power_of_two else found.scale).reshape(-1).tolist()
    per_row = len(scales) // 64 if fmt.block else 0
    expected = []
    for i, code in enumerate(codes):
        scale = scales[(i // 50) * per_row + (i % 50) // fmt.block] if fmt.block else scales[0]
        scale = formats.power(scale) if fmt.power_of_two else Fraction(scale)
        expected.append(float(formats.decode(code, scale, found.zero_point)))
    assert_same(found.dequantize(), expected, codes)


def test_quantizing_twice_changes_nothing():
    x = torch.randn(20, 40, generator=torch.Generator().manual_seed(2))
    for fmt in (f for f in EVERY if f.power_of_two):
        once = quantize_real(x, fmt).dequantize()
        assert_same(quantize_real(once, fmt).dequantize(), once, x)


# --- errors ---------------------------------------------------------------------------------


@pytest.mark.parametrize("value", ["nan", "inf", "-inf"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_non_finite_values(dtype, value):
    x = torch.zeros(2, 3, 4, dtype=dtype)
    x[1, 0, 2] = float(value)
    x[1, 2, 0] = torch.inf
    for name in ("bfp8", "asymmetric-u8"):
        with pytest.raises(NonFiniteError) as error:
            quantize_real(x, FORMATS[name], name="features")
        assert str(error.value) == (
            f"tensor 'features': expected finite values, found {value} at index (1, 0, 2); "
            "remove or replace non-finite values before quantizing"
        )


def test_exponent_overflow():
    with pytest.raises(RangeError) as error:
        quantize_real(torch.tensor([LARGEST]), catalog.bfp(2), name="grad")
    assert str(error.value) == (
        "tensor 'grad': expected an exponent of at most 127, found 128 (largest magnitude about "
        "2**127); the values have outgrown their format: lower the learning rate or scale the input"
    )
    x = torch.tensor([[1.0, 1.0, 1.0, 2.0**40]])
    with pytest.raises(RangeError, match=r"at most 15, found 35 \(largest magnitude about 2\*\*40"):
        quantize_real(x, catalog.bfp(7, block=2, exponent_bits=5))


def test_input_types():
    with pytest.raises(InputError) as error:
        quantize_real(torch.zeros(2, dtype=torch.float64), FORMATS["asymmetric-u8"], name="x")
    assert str(error.value) == (
        "tensor 'x': expected float16, bfloat16 or float32 for format 'asymmetric-u8', "
        "found torch.float64; convert it first"
    )
    with pytest.raises(InputError, match="bfloat16 or float32, or float64 for format 'bfp8'"):
        quantize_real(torch.zeros(2, dtype=torch.int32), FORMATS["bfp8"])


def test_what_is_not_realised():
    blocked = replace(FORMATS["asymmetric-u8"], name="u8-block4", block=4)
    with pytest.raises(UnsupportedError) as error:
        quantize_real(torch.zeros(8), blocked, name="x")
    assert str(error.value) == (
        "tensor 'x': format 'u8-block4' wants a zero point for every block; "
        "use block=None or a symmetric format"
    )
    wide = replace(FORMATS["bfp8"], name="wide", exponent_min=-1100)
    with pytest.raises(UnsupportedError, match=r"expected exponents within \+-900"):
        quantize_real(torch.zeros(8), wide)


def test_no_gradient_is_kept():
    x = torch.ones(3, requires_grad=True)
    assert not quantize_real(x, FORMATS["symmetric-s8"]).dequantize().requires_grad
