"""The torch realisation of `spec.formats`: the same bits, vectorised, on any device.

Every step is exact by construction, so there is nothing to tolerate: powers of two come from
`frexp` and bit patterns, scaling by them is exact in float64, and quotients by an affine scale are
divided as integers.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import torch
from torch import Tensor

from samebits.errors import InputError, NonFiniteError, RangeError, UnsupportedError
from samebits.numerics.qtensor import QTensor, code_dtype, power_of_two, scale_shape
from samebits.spec import formats
from samebits.spec.formats import Format, Rounding, ScaleRule

FLOATS = (torch.float16, torch.bfloat16, torch.float32)
# |exponent| that a format may use: 2**exponent times a code stays a normal float64
WIDEST_EXPONENT = 900


def quantize_real(
    x: torch.Tensor, fmt: Format, name: str = "input", random: torch.Tensor | None = None
) -> QTensor:
    """Real values to codes: one rounding (the format's), then saturation. formats.md 2-3.

    x:      float16, bfloat16 or float32, any shape; float64 too where the scale is a power of two
    name:   of the tensor, for error messages
    random: integers in [0, 2**32) of x's shape, for STOCHASTIC rounding only (`philox.words`)

    Raises NonFiniteError for NaN or infinity, RangeError when a BFP exponent would exceed the
    format's, InputError for another type, UnsupportedError for ASYMMETRIC formats with blocks.
    """
    x = x.detach()
    _check_input(x, fmt, name)
    if fmt.rounding is Rounding.STOCHASTIC:
        if random is None:
            raise ValueError("stochastic rounding needs 32 random bits")
        if random.shape != x.shape:
            raise ValueError(
                f"tensor {name!r}: expected random words of shape {tuple(x.shape)}, "
                f"found {tuple(random.shape)}"
            )
        random = _blocks(random.to(x.device, torch.int64), fmt.block)
    blocks = _blocks(x.to(torch.float64), fmt.block)
    shape = scale_shape(x.shape, fmt.block)
    if fmt.power_of_two:
        exponent = _block_exponents(blocks, fmt, name)
        ratio = blocks * power_of_two(-exponent).unsqueeze(-1)
        if x.dtype == torch.float64:
            # A nonzero value may underflow here. Only its sign still matters: keep that.
            tiny = torch.full_like(ratio, 2.0**-1000).copysign(blocks)
            ratio = torch.where((ratio == 0) & (blocks != 0), tiny, ratio)
        codes = _round_exact(ratio, fmt, random)
        return QTensor(_join(codes, x, fmt), fmt, exponent=exponent.reshape(shape))
    scale, zero_point = _affine_parameters(blocks, fmt, name)
    codes = _round_quotient(blocks, scale.unsqueeze(-1), fmt, random) + zero_point
    return QTensor(_join(codes, x, fmt), fmt, scale=scale.reshape(shape), zero_point=zero_point)


def _check_input(x: torch.Tensor, fmt: Format, name: str) -> None:
    """Raise an error for a type or a format that float64 cannot realise exactly, and for values
    that are not finite."""
    if x.dtype not in FLOATS and not (x.dtype == torch.float64 and fmt.power_of_two):
        more = ", or float64" if fmt.power_of_two else ""
        raise InputError(
            f"tensor {name!r}: expected float16, bfloat16 or float32{more} for format "
            f"{fmt.name!r}, found {x.dtype}; convert it first"
        )
    if max(abs(fmt.exponent_min), abs(fmt.exponent_max), abs(fmt.fraction_bits)) > WIDEST_EXPONENT:
        raise UnsupportedError(
            f"format {fmt.name!r}: expected exponents within +-{WIDEST_EXPONENT}, found "
            f"[{fmt.exponent_min}, {fmt.exponent_max}], fraction bits {fmt.fraction_bits}"
        )
    finite = torch.isfinite(x)
    if not bool(finite.all()):
        index = tuple((~finite).nonzero()[0].tolist())  # nonzero lists indices in row-major order
        raise NonFiniteError(
            f"tensor {name!r}: expected finite values, found {x[index].item()} at index {index}; "
            "remove or replace non-finite values before quantizing"
        )


# --- blocks ---------------------------------------------------------------------------------


def _blocks(x: torch.Tensor, block: int | None) -> torch.Tensor:
    """x -> [..., blocks, block], the last block of a row padded with zeros (they change neither
    the largest magnitude nor the range, which always holds 0). One block: [1, all]."""
    if block is None:
        return x.reshape(1, -1)
    if x.dim() == 0:
        x = x.reshape(1)
    last = x.shape[-1]
    block = min(block, max(last, 1))
    count = -(-last // block)
    padded = torch.nn.functional.pad(x, (0, count * block - last))
    return padded.reshape(*x.shape[:-1], count, block)


def _join(codes: torch.Tensor, x: torch.Tensor, fmt: Format) -> torch.Tensor:
    """The inverse of `_blocks`, in the format's code type and x's shape."""
    codes = codes.clamp(fmt.code_min, fmt.code_max).to(code_dtype(fmt))
    if fmt.block is None:
        return codes.reshape(x.shape)
    last = x.shape[-1] if x.dim() else 1
    rows = codes.reshape(*codes.shape[:-2], codes.shape[-2] * codes.shape[-1])
    return rows[..., :last].reshape(x.shape).contiguous()


def _block_exponents(blocks: torch.Tensor, fmt: Format, name: str) -> torch.Tensor:
    """[..., blocks, block] float64 -> [..., blocks] int64; `formats.block_exponent` of each."""
    if fmt.rule is ScaleRule.FIXED:
        return torch.full(
            blocks.shape[:-1], -fmt.fraction_bits, dtype=torch.int64, device=blocks.device
        )
    if blocks.shape[-1] == 0:
        return torch.full(
            blocks.shape[:-1], fmt.exponent_min, dtype=torch.int64, device=blocks.device
        )
    largest = blocks.abs().amax(-1)
    fraction, power = torch.frexp(largest)  # largest = fraction * 2**power, 0.5 <= fraction < 1
    if fmt.rule is ScaleRule.BFP:
        # With 2**(width-1) <= code_max < 2**width, exponent power - width puts the largest code
        # in [2**(width-1), 2**width]: one less always saturates, one more never does.
        width = fmt.code_max.bit_length()
        saturates = torch.round(fraction * 2.0**width) > fmt.code_max
        exponent = power.to(torch.int64) - width + saturates
    else:
        exponent = power.to(torch.int64) - 1 - (fmt.bits - 2)
        exponent = exponent.clamp(max=fmt.exponent_max)
    exponent = torch.where(largest == 0, fmt.exponent_min, exponent.clamp(min=fmt.exponent_min))
    above = exponent > fmt.exponent_max
    if bool(above.any()):
        value = Fraction(largest[above][0].item())
        try:
            formats.smallest_exponent(value, fmt.code_max, fmt.exponent_min, fmt.exponent_max)
        except RangeError as error:
            raise RangeError(f"tensor {name!r}: {error}") from None
    return exponent


def _affine_parameters(blocks: torch.Tensor, fmt: Format, name: str) -> tuple[torch.Tensor, int]:
    """([..., blocks] float64 scales, zero point): scalar work, done by the definition itself."""
    if fmt.rule is ScaleRule.ASYMMETRIC and fmt.block is not None:
        raise UnsupportedError(
            f"tensor {name!r}: format {fmt.name!r} wants a zero point for every block; "
            "use block=None or a symmetric format"
        )
    count = blocks.shape[:-1]
    if blocks.numel() == 0:
        low = high = [0.0] * count.numel()
    else:
        low = blocks.amin(-1).reshape(-1).tolist()
        high = blocks.amax(-1).reshape(-1).tolist()
    pairs = [
        formats.affine_parameters((Fraction(a), Fraction(b)), fmt)
        for a, b in zip(low, high, strict=True)
    ]
    scale = torch.tensor([float(s) for s, _ in pairs], dtype=torch.float64, device=blocks.device)
    zero_point = pairs[0][1] if fmt.rule is ScaleRule.ASYMMETRIC else 0
    return scale.reshape(count), zero_point


# --- rounding -------------------------------------------------------------------------------


def _round_exact(ratio: torch.Tensor, fmt: Format, random: torch.Tensor | None) -> torch.Tensor:
    """Exact float64 ratios (infinite after overflow) to integers, before saturation.

    Clamped ratios lie below 2**52, so floor + 1/2 is a float64 number, and float64 never rounds
    the difference of two different numbers to 0: the side of a tie is always told right.
    """
    if fmt.rounding is Rounding.HALF_EVEN:
        return torch.round(ratio)
    ratio = ratio.clamp(fmt.code_min - 2, fmt.code_max + 2)  # saturates all the same
    if fmt.rounding is Rounding.STOCHASTIC:
        assert random is not None
        # 1 - fraction is not always a float64, so a negative ratio compares its distance to the
        # integer above: random < 2**32 * (1 - part) becomes 2**32 - random > 2**32 * part.
        whole = ratio.trunc()
        part = (ratio - whole).abs() * 2.0**32  # exact
        positive = whole + (random < part)
        negative = whole - 1.0 + ((1 << 32) - random > part)
        return torch.where(ratio < 0, negative, positive)
    floor = ratio.floor()
    side = torch.sign(ratio - (floor + 0.5))  # floor + 0.5 is exact; distinct floats differ
    return _settle(floor.to(torch.int64), side, fmt.rounding)


def _round_quotient(
    x: torch.Tensor, scale: torch.Tensor, fmt: Format, random: torch.Tensor | None
) -> torch.Tensor:
    """x / scale to integers, before zero point and saturation; both have 24-bit significands.

    x / scale = (X / S) * 2**shift with 2**23 <= |X|, S < 2**24, or X = 0. `shift` is limited to
    [-34, 35] without changing a code: above, |x / scale| > 2**34 saturates whatever the zero
    point; below, |x / scale| < 2**-33, where every rounding depends on the sign alone (the
    stochastic threshold lies within half a unit of 0 or 2**32). So all integers stay below 2**60.
    """
    x_fraction, x_power = torch.frexp(x)
    s_fraction, s_power = torch.frexp(scale)
    numerator = (x_fraction * 2.0**24).to(torch.int64)
    significand = (s_fraction * 2.0**24).to(torch.int64)
    shift = (x_power - s_power).to(torch.int64).clamp(-34, 35)
    down = (-shift).clamp(min=0)
    numerator = numerator << shift.clamp(min=0)
    denominator = significand << down
    floor = torch.div(numerator, denominator, rounding_mode="floor")
    remainder = numerator - floor * denominator
    if fmt.rounding is Rounding.STOCHASTIC:
        assert random is not None
        # random * denominator < remainder * 2**32, both divided by 2**min(down, 32): below 2**59
        left = (random * significand) << (down - 32).clamp(min=0)
        right = remainder << (32 - down).clamp(min=0)
        return floor + (left < right)
    side = torch.sign(2 * remainder - denominator)
    return _settle(floor, side, fmt.rounding)


def _settle(floor: torch.Tensor, side: torch.Tensor, rounding: Rounding) -> torch.Tensor:
    """A quotient rounded, from its floor (int64) and the sign of its fraction minus 1/2."""
    if rounding is Rounding.FLOOR:
        return floor
    if rounding is Rounding.HALF_EVEN:
        tie = (floor & 1) == 1
    elif rounding is Rounding.HALF_UP:
        tie = torch.ones_like(floor, dtype=torch.bool)
    else:  # HALF_AWAY: a tie is floor + 0.5, positive exactly when floor >= 0
        tie = floor >= 0
    return floor + ((side > 0) | ((side == 0) & tie))


def times_power(x: Tensor, exponent: int | Tensor) -> Tensor:
    """x * 2**exponent in float64: a product with a power of two, no libm.

    Exact, or (subnormal) below every rounding threshold of a caller. A power that float64 does not
    hold is taken in two steps; exponents that are a tensor lie in [-1000, 1000].
    """
    if isinstance(exponent, Tensor):
        power = np.asarray(np.ldexp(1.0, exponent.cpu().numpy()))  # also where it has no axes
        return x * torch.from_numpy(power).to(x.device)
    exponent = int(exponent)  # one that lies on a device is read here
    if exponent > 1000:
        return x * float(np.ldexp(1.0, 1000)) * float(np.ldexp(1.0, exponent - 1000))
    return x * float(np.ldexp(1.0, exponent))
