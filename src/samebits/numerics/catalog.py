"""The named formats. Data only; docs/spec/formats.md prints this table."""

from __future__ import annotations

import re

from samebits.errors import InputError
from samebits.spec.formats import CODE_MAX, Format, ScaleRule


def bfp(bits: int, block: int | None = None, exponent_bits: int = 8) -> Format:
    """Block floating point: `bits` (sign included) per code, one signed exponent per block.

    Codes are symmetric, +-(2**(bits-1) - 1); 16- and 32-bit codes stop at +-32639 and
    +-2139062143, the largest that are 2 or 4 balanced base-256 digits.
    """
    limit = CODE_MAX.get(bits, (1 << (bits - 1)) - 1)
    name = f"bfp{bits}"
    if block is not None:
        name += f"-block{block}"
    if exponent_bits != 8:
        name += f"-exponent{exponent_bits}"
    low = -(1 << (exponent_bits - 1))
    return Format(
        name,
        bits,
        -limit,
        limit,
        ScaleRule.BFP,
        block=block,
        exponent_min=low,
        exponent_max=-low - 1,
    )


def qmn(m: int, n: int) -> Format:
    """Fixed point Qm.n: a sign, `m` integer bits, `n` fraction bits; the full signed range."""
    if m < 0 or n < 0:
        raise ValueError(f"expected m >= 0 and n >= 0, found m={m}, n={n}")
    bits = 1 + m + n
    high = (1 << (bits - 1)) - 1
    return Format(f"q{m}.{n}", bits, -high - 1, high, ScaleRule.FIXED, fraction_bits=n)


def asymmetric(bits: int, signed: bool) -> Format:
    """Affine with a zero point: value = scale * (code - zero_point), the full range of codes."""
    low = -(1 << (bits - 1)) if signed else 0
    name = f"asymmetric-{'s' if signed else 'u'}{bits}"
    return Format(name, bits, low, low + (1 << bits) - 1, ScaleRule.ASYMMETRIC)


def symmetric(bits: int, full: bool = False) -> Format:
    """Affine with zero point 0, codes +-(2**(bits-1) - 1). `full` adds the code -2**(bits-1),
    which only data below minus the calibrated maximum can reach."""
    high = (1 << (bits - 1)) - 1
    name = f"symmetric-s{bits}" + ("-full" if full else "")
    return Format(name, bits, -high - 1 if full else -high, high, ScaleRule.SYMMETRIC)


def _msfp(bits: int) -> Format:
    """Microsoft floating point: msfp12 has 12 = 8 exponent + 4 code bits, 16 codes a block."""
    limit = (1 << (bits - 9)) - 1
    return Format(f"msfp{bits}", bits - 8, -limit, limit, ScaleRule.BFP, block=16)


# OCP Microscaling v1.0: a code is an element in units of 2**-6 and the shared scale is 2**-127 to
# 2**127 (E8M0), so the exponent of a code is 6 lower.
_MXINT8 = Format(
    "mxint8",
    8,
    -128,
    127,
    ScaleRule.MX,
    block=32,
    exponent_min=-127 - 6,
    exponent_max=127 - 6,
)

FORMATS: dict[str, Format] = {
    fmt.name: fmt
    for fmt in (
        bfp(8),
        bfp(16),
        bfp(32),
        *(_msfp(bits) for bits in range(12, 17)),
        _MXINT8,
        asymmetric(8, signed=False),
        asymmetric(8, signed=True),
        asymmetric(16, signed=False),
        asymmetric(16, signed=True),
        symmetric(8),
        symmetric(16),
        qmn(0, 7),
        qmn(0, 15),
        qmn(3, 12),
    )
}


def format_named(name: str) -> Format:
    """The catalogue entry, or any Qm.n of 2 to 32 bits. Raises InputError with the known names."""
    if name in FORMATS:
        return FORMATS[name]
    fixed = re.fullmatch(r"q(\d{1,2})\.(\d{1,2})", name, re.ASCII)
    if fixed:
        m, n = int(fixed[1]), int(fixed[2])
        if 2 <= 1 + m + n <= 32:
            return qmn(m, n)
        raise InputError(
            f"format {name!r}: expected qM.N of 2 to 32 bits, found {1 + m + n} (1 + M + N)"
        )
    raise InputError(
        f"expected the name of a number format, found {name!r}; known names: "
        f"{', '.join(FORMATS)}, and qM.N for any fixed-point format of 2 to 32 bits"
    )
