"""Exponents to freeze, and rounding to them (docs/spec/training.md section 11)."""

from __future__ import annotations

import torch
from torch import Tensor

from samebits.kernels.protocol import CODE_TYPE
from samebits.kernels.rows import Exponent
from samebits.numerics.realise import times_power


def saturated(value: Tensor, exponent: Exponent, bits: int = 8) -> Tensor:
    """sat(rne(value * 2**exponent)) as codes of 8 or 16 bits, which use their whole range.

    Of integers below 2**53 or of reals: float64 holds such a value exactly, a product with a power
    of two changes no bit of it, and torch.round takes ties to even.
    """
    limit = 1 << (bits - 1)
    scaled = torch.round(times_power(value.double(), exponent))
    return scaled.clamp(-limit, limit - 1).to(CODE_TYPE[bits])
