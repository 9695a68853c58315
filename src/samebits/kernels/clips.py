"""Clip values of ReLU6 and its kin on the grids of exponents (training.md 5)."""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from samebits.kernels.rows import Exponent
from samebits.spec.formats import EXPONENT_MAX, EXPONENT_MIN, power, round_real


def clip_code(clip: int, exponent: int) -> int:
    """The clip value on the grid of an exponent; 128 where no 8-bit code reaches it."""
    return min(round_real(clip / power(exponent)), 128)


@functools.cache
def clip_table(clip: int) -> Tensor:
    """`clip_code` of every exponent, the smallest first: uint8 [256] on the CPU."""
    found = [clip_code(clip, e) for e in range(EXPONENT_MIN, EXPONENT_MAX + 1)]
    return torch.tensor(found, dtype=torch.uint8, device="cpu")


def clip_codes(clip: int | None, exponent: Exponent) -> int | Tensor:
    """`clip_code` of one exponent, or of each row's, int32; 128, no limit, for None."""
    if clip is None:
        return 128
    if isinstance(exponent, int):
        return clip_code(clip, exponent)
    return clip_table(clip).to(exponent.device)[exponent - EXPONENT_MIN].int()
