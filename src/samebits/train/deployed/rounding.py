"""Rounding to a frozen exponent, and the bound of the sums that are rounded (training.md 11)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from samebits.errors import UnsupportedError
from samebits.kernels.protocol import CODE_TYPE
from samebits.numerics.realise import times_power


def saturated(value: Tensor, exponent: int, bits: int = 8) -> Tensor:
    """sat(rne(value * 2**exponent)) as codes of 8 or 16 bits, which use their whole range.

    Of integers below 2**53 or of reals: float64 holds such a value exactly, a product with a power
    of two changes no bit of it, and torch.round takes ties to even.
    """
    limit = 1 << (bits - 1)
    scaled = torch.round(times_power(value.double(), exponent))
    return scaled.clamp(-limit, limit - 1).to(CODE_TYPE[bits])


def check_sums(what: str, weight: Tensor, offsets: Sequence[int]) -> None:
    """UnsupportedError unless the sums of 8-bit codes x * weight + offset fit 32 bits in every row.

    weight int8 [rows, ...]; 128 bounds a code that may be -128.
    """
    sums = (weight.long().abs().flatten(1).sum(1) * 128).tolist()
    reach = max(s + abs(b) for s, b in zip(sums, offsets, strict=True))
    if reach >= 1 << 31:
        raise UnsupportedError(
            f"expected {what} that fit 32 bits (128 * sum of |weight| + |bias| < 2**31 in every "
            f"output channel), found {reach}: a bias is too large for the scale of its weights"
        )
