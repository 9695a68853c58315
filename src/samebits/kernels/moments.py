"""e6m9 codes in torch (training.md 1.4 and 1.5): what moments, directions and updates are made of.

A number's code is cut out of its binary64, whose exponent and significand it keeps parts of, so
that rounding carries from one into the other by itself. Integers below 2**52 go the same way:
binary64 holds them.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from samebits.errors import RangeError
from samebits.kernels.rows import Exponent
from samebits.numerics import philox
from samebits.spec.formats import EXPONENT_MAX, EXPONENT_MIN
from samebits.spec.training.moments import (
    FRACTION,
    LEADING,
    ROOT_FACTOR,
    THIRD,
    TOP_FIELD,
    UPDATE_FACTOR,
)

DROPPED = 52 - FRACTION
"""Bits of a binary64's significand below those of a code."""
BIAS = 1023 + FRACTION - TOP_FIELD
"""F of a number is the biased exponent of its binary64, less the tensor's exponent and this."""
_LOWEST = -900  # a power of two at which every significand rounds to 0
_GUARD = 36


class Draw(NamedTuple):
    """The random bits of one parameter in one step (`spec.training.moments.Draw`)."""

    seed: int
    parameter: int
    step: int


class Update(NamedTuple):
    """The update that is subtracted from J: m * P, rounded by the bits of `draw` or to nearest.

    p:     e6m9 codes; one with F = 0 would have the exponent `shift` against that of J
    m:     below 2**16
    shift: e_P - 63 + x - e_A, at most -43: every |u| is below 2**46
    draw:  None: to nearest
    """

    p: Tensor
    m: int
    shift: int
    draw: Draw | None

    @property
    def bits(self) -> int:
        """n such that every |u| <= 2**n."""
        return self.shift + TOP_FIELD + 26


def exponent_for(top: float) -> int:
    """The exponent of an e6m9 tensor whose largest magnitude is `top`, a binary64.

    Raises RangeError where it is above 127, or the magnitude is not finite.
    """
    if top == 0:
        return EXPONENT_MIN
    if not math.isfinite(top):
        raise RangeError(f"expected finite magnitudes, found {top}")
    exponent = max(math.frexp(top)[1] - FRACTION, EXPONENT_MIN)
    if exponent > EXPONENT_MAX:
        raise RangeError(
            f"the exponent overflows (expected at most {EXPONENT_MAX}, found {exponent}); lower "
            "the learning rate"
        )
    return exponent


def moment_bits(draw: Draw, like: Tensor) -> Tensor:
    """w_V of every element, int64 of the shape of `like`.

    Weights [O, I, kh, kw] count in the order O, kh, kw, I.
    """
    count = like.numel()
    key = (draw.seed, draw.parameter)
    words = philox.words(-(-count // 2), key, draw.step, THIRD, like.device)
    bits = torch.stack((words & 0xFFFF, words >> 16), dim=1).reshape(-1)[:count]
    if like.dim() != 4:
        return bits.view(like.shape)
    o, i, h, w = like.shape
    return bits.view(o, h, w, i).permute(0, 3, 1, 2)


def update_bits(moment: Tensor) -> Tensor:
    """w_U from w_V."""
    return moment * UPDATE_FACTOR & 0xFFFF


def root_bits(moment: Tensor) -> Tensor:
    """w_S from w_V."""
    return moment * ROOT_FACTOR & 0xFFFF


def encode(v: Tensor, exponent: int, random: Tensor | None) -> Tensor:
    """Codes (int16) of float64 numbers at an exponent, with 16 random bits each or to nearest."""
    bits = v.abs().view(torch.int64)
    kept = bits >> DROPPED
    added = (1 << (DROPPED - 1)) - 1 + (kept & 1) if random is None else random << (DROPPED - 16)
    bias = exponent + BIAS
    code = ((bits + added) >> DROPPED) - bias * LEADING
    code = torch.where((bits >> 52) > bias, code, 0)
    return torch.where(v < 0, -code, code).to(torch.int16)


def significands(codes: Tensor) -> tuple[Tensor, Tensor]:
    """q, 0 for the code 0, and F of every code, int64."""
    magnitude = codes.long().abs()
    return torch.where(magnitude == 0, 0, LEADING + (magnitude & (LEADING - 1))), magnitude >> 9


def values(codes: Tensor, exponent: int) -> Tensor:
    """The numbers of codes, float64, exactly."""
    return scaled(codes, 1, exponent - TOP_FIELD)


def scaled(codes: Tensor, m: int, base: int) -> Tensor:
    """m * q * 2**(base + F) with the sign of the code, float64, exactly; m below 2**16.

    A base below -900 counts as -900: such numbers round to 0 wherever they are used.
    """
    q, field = significands(codes)
    number = (q * m).double() * _power(max(base, _LOWEST) + field)
    return torch.where(codes < 0, -number, number)


def moved(p: Tensor, m: int, shift: Exponent, draw: Draw | None) -> Tensor:
    """u of every element, int64 (training.md 2.1, step 3); as in `Update`, shift by rows too."""
    q, field = significands(p)
    product, right = q * m, -(shift + field)
    if draw is None:
        u = torch.round(product.double() * _power((-right).clamp(min=_LOWEST))).long()
    else:
        by = (right + _GUARD - 16).clamp(max=63)
        u = (((product << _GUARD) >> by) + update_bits(moment_bits(draw, p))) >> 16
    return torch.where(p < 0, -u, u)


def _power(exponent: Tensor) -> Tensor:
    """2**exponent, float64, by its bits; exponents of normal numbers."""
    return ((exponent + 1023) << 52).view(torch.float64)
