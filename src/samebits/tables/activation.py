"""Tables of the point-wise activations for training: one per (function, input exponent).

docs/spec/training.md 5, "Table activations". Entry j + 127 stands for the input j * 2**exponent,
j = -127 to 127. Every entry is correctly rounded: it is enclosed in an interval, and the precision
grows until both ends of the interval round to the same code (A. Ziv, "Fast evaluation of elementary
mathematical functions with correctly rounded last bit", ACM TOMS 17(3), 1991). This ends because a
nonzero dyadic input gives a transcendental value, which is never a tie; zero and leaky_relu are
exact.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

from mpmath import libmp

from samebits.errors import UnsupportedError
from samebits.spec import formats
from samebits.tables.interval import GUARD, PRECISIONS, Float

CODES = range(-formats.Q8, formats.Q8 + 1)
UNLIMITED = -1000  # below every exponent that a table can have
FLOOR = -1200  # errors and values below 2**FLOOR count as that: far below any code of any table
SATURATED = 12  # |x| >= 2**12: exp(-|x|) and erfc(|x| / sqrt(2)) times x are below 2**FLOOR

Interval = tuple[int, int, int]  # (low, high, power): the value lies in [low, high] * 2**power


@dataclass(frozen=True, repr=False)
class ActivationTable:
    """f and its derivative at j * 2**input_exponent for j = -127..127 (entry j + 127).

    f = codes * 2**exponent (bfp32), f' = derivative_codes * 2**derivative_exponent (bfp16); each
    exponent is the smallest that holds the largest of the 255 magnitudes. That of f is not limited
    (it is an intermediate, never stored), that of f' lies in [-128, 127].
    """

    name: str
    input_exponent: int
    slope: Fraction | None
    codes: tuple[int, ...]
    exponent: int
    derivative_codes: tuple[int, ...]
    derivative_exponent: int

    def __repr__(self) -> str:
        slope = "" if self.slope is None else f", slope {float(self.slope)!r}"
        return (
            f"ActivationTable({self.name}{slope}, input exponent {self.input_exponent}, "
            f"exponent {self.exponent}, derivative exponent {self.derivative_exponent})"
        )


def activation_table(
    name: str, exponent: int, slope: float | Fraction | None = None
) -> ActivationTable:
    """The table of tanh, sigmoid, gelu (erf form), silu or leaky_relu (with its `slope`).

    `exponent` is that of the bfp8 input, -128 to 127. The derivative of leaky_relu at 0 is
    `slope`, as in torch. Tables are cached. Raises UnsupportedError for another name, ValueError
    for an exponent or slope that makes no sense, RangeError when a slope outgrows bfp16.
    """
    if name not in ACTIVATIONS:
        raise UnsupportedError(
            f"expected an activation with a table ({', '.join(ACTIVATIONS)}), found {name!r}"
        )
    if not formats.EXPONENT_MIN <= exponent <= formats.EXPONENT_MAX:
        raise ValueError(
            f"activation {name!r}: expected an input exponent in "
            f"[{formats.EXPONENT_MIN}, {formats.EXPONENT_MAX}], found {exponent}"
        )
    if (name == "leaky_relu") != (slope is not None):
        wanted = "a slope" if name == "leaky_relu" else "no slope"
        raise ValueError(f"activation {name!r}: expected {wanted}, found {slope}")
    if slope is not None and not math.isfinite(slope):
        raise ValueError(f"activation {name!r}: expected a finite slope, found {slope}")
    return _table(name, exponent, None if slope is None else Fraction(slope))


@lru_cache(maxsize=2048)
def _table(name: str, exponent: int, slope: Fraction | None) -> ActivationTable:
    if slope is not None:
        values, derivatives = _leaky_relu(exponent, slope)
    else:
        values, derivatives = _ziv(_FUNCTIONS[name], exponent)
    return ActivationTable(name, exponent, slope, *values, *derivatives)


Codes = tuple[tuple[int, ...], int]  # (codes, exponent)


def _leaky_relu(exponent: int, slope: Fraction) -> tuple[Codes, Codes]:
    values = [j * formats.power(exponent) * (1 if j > 0 else slope) for j in CODES]
    derivatives = [Fraction(1) if j > 0 else slope for j in CODES]
    shared = formats.smallest_exponent(max(map(abs, values)), formats.Q32, UNLIMITED, None)
    shared_derivative = formats.smallest_exponent(max(map(abs, derivatives)), formats.Q16)
    return _round_all(values, shared), _round_all(derivatives, shared_derivative)


def _round_all(values: list[Fraction], exponent: int) -> Codes:
    return tuple(formats.round_real(v / formats.power(exponent)) for v in values), exponent


# --- correct rounding -----------------------------------------------------------------------

Function = Callable[[int, int, int], tuple[Interval, Interval]]  # (j, exponent, precision)


def _ziv(function: Function, exponent: int) -> tuple[Codes, Codes]:
    """The codes of a function and of its derivative."""
    pairs = [function(j, exponent, PRECISIONS[0]) for j in CODES]
    out = []
    for which, code_max in ((0, formats.Q32), (1, formats.Q16)):
        shared = _exponent([pair[which] for pair in pairs], code_max)
        for precision in PRECISIONS[1:]:
            if shared is not None:
                break
            pairs = [function(j, exponent, precision) for j in CODES]
            shared = _exponent([pair[which] for pair in pairs], code_max)
        assert shared is not None
        codes = []
        for j, pair in zip(CODES, pairs, strict=True):
            code = _round(pair[which], shared)
            for precision in PRECISIONS[1:]:
                if code is not None:
                    break
                code = _round(function(j, exponent, precision)[which], shared)
            assert code is not None, (j, exponent, "closer to a tie than 2**-4000")
            codes.append(code)
        out.append((tuple(codes), shared))
    return out[0], out[1]


def _exponent(intervals: list[Interval], code_max: int) -> int | None:
    """The shared exponent, or None when the intervals are too wide to tell."""
    power = min(p for _, _, p in intervals)
    low = max(max(a, -b, 0) << (p - power) for a, b, p in intervals)
    high = max(max(b, -a) << (p - power) for a, b, p in intervals)
    ends = {
        formats.smallest_exponent(end * formats.power(power), code_max, UNLIMITED, None)
        for end in (low, high)
    }
    return ends.pop() if len(ends) == 1 else None


def _round(interval: Interval, exponent: int) -> int | None:
    low, high, power = interval
    code = formats.scaled(low, power - exponent)
    return code if code == formats.scaled(high, power - exponent) else None


# --- evaluation -----------------------------------------------------------------------------


def _enclose(value: Float, magnitude: int, precision: int) -> Interval:
    """The interval of a value whose error is below 2**(magnitude - precision + GUARD)."""
    power = max(magnitude - precision + GUARD, FLOOR)
    if value == libmp.fzero or value[2] + value[3] <= power:  # |value| < 2**power
        return -2, 2, power
    floor = int(libmp.to_int(libmp.mpf_shift(value, -power), libmp.round_floor))
    return floor - 1, floor + 2, power


def _exactly(numerator: int, power: int) -> Interval:
    return numerator, numerator, power


def _magnitude(j: int, exponent: int) -> int:
    """m with |j * 2**exponent| < 2**m."""
    return abs(j).bit_length() + exponent


def _tanh(j: int, exponent: int, precision: int) -> tuple[Interval, Interval]:
    if j == 0:
        return _exactly(0, 0), _exactly(1, 0)
    magnitude = _magnitude(j, exponent)
    if magnitude > SATURATED:
        t = libmp.fone if j > 0 else libmp.fnone
    else:
        t = libmp.mpf_tanh(libmp.from_man_exp(j, exponent), precision)
    square = libmp.mpf_mul(t, t, precision)
    derivative = libmp.mpf_sub(libmp.fone, square, precision)
    return _enclose(t, min(magnitude, 1), precision), _enclose(derivative, 1, precision)


def _logistic(j: int, exponent: int, precision: int) -> tuple[Float, Float]:
    """sigmoid(x) and sigmoid(-x), x = j * 2**exponent, each to a relative error of a few ulp."""
    if _magnitude(j, exponent) > SATURATED:
        small, large = libmp.fzero, libmp.fone
    else:
        decay = libmp.mpf_exp(libmp.from_man_exp(-abs(j), exponent), precision)
        large = libmp.mpf_div(libmp.fone, libmp.mpf_add(libmp.fone, decay, precision), precision)
        small = libmp.mpf_mul(decay, large, precision)
    return (large, small) if j > 0 else (small, large)


def _sigmoid(j: int, exponent: int, precision: int) -> tuple[Interval, Interval]:
    if j == 0:
        return _exactly(1, -1), _exactly(1, -2)
    s, opposite = _logistic(j, exponent, precision)
    derivative = libmp.mpf_mul(s, opposite, precision)
    return _enclose(s, 0, precision), _enclose(derivative, 0, precision)


def _silu(j: int, exponent: int, precision: int) -> tuple[Interval, Interval]:
    """x * s and s * (1 + x * sigmoid(-x)), s = sigmoid(x)."""
    if j == 0:
        return _exactly(0, 0), _exactly(1, -1)
    x = libmp.from_man_exp(j, exponent)
    s, opposite = _logistic(j, exponent, precision)
    value = libmp.mpf_mul(x, s, precision)
    slope = libmp.mpf_mul(value, opposite, precision)  # |x s(x) s(-x)| < 1
    derivative = libmp.mpf_add(s, slope, precision)
    magnitude = _magnitude(j, exponent)
    return _enclose(value, magnitude, precision), _enclose(derivative, 1, precision)


def _gelu(j: int, exponent: int, precision: int) -> tuple[Interval, Interval]:
    """x * Phi(x) and Phi(x) + x * phi(x), Phi and phi of the standard normal distribution."""
    if j == 0:
        return _exactly(0, 0), _exactly(1, -1)
    x = libmp.from_man_exp(j, exponent)
    magnitude = _magnitude(j, exponent)
    if magnitude > SATURATED:
        below, slope = libmp.fzero, libmp.fzero
    else:
        # erfc magnifies the error of its argument by x**2, but is itself below exp(-x**2 / 2)
        root = libmp.mpf_sqrt(libmp.from_int(2), precision)
        scaled = libmp.mpf_div(libmp.mpf_abs(x), root, precision)
        below = libmp.mpf_shift(libmp.mpf_erfc(scaled, precision), -1)  # Phi(-|x|)
        square = libmp.mpf_shift(libmp.mpf_mul(x, x), -1)  # exact
        tau = libmp.mpf_shift(libmp.mpf_pi(precision), 1)
        density = libmp.mpf_div(
            libmp.mpf_exp(libmp.mpf_neg(square), precision),
            libmp.mpf_sqrt(tau, precision),
            precision,
        )
        slope = libmp.mpf_mul(x, density, precision)  # |x phi(x)| < 1/4
    phi = below if j < 0 else libmp.mpf_sub(libmp.fone, below, precision)
    value = libmp.mpf_mul(x, phi, precision)
    derivative = libmp.mpf_add(phi, slope, precision)
    return _enclose(value, magnitude, precision), _enclose(derivative, 1, precision)


_FUNCTIONS: dict[str, Function] = {
    "tanh": _tanh,
    "sigmoid": _sigmoid,
    "gelu": _gelu,
    "silu": _silu,
}
ACTIVATIONS = (*_FUNCTIONS, "leaky_relu")
