"""Gradient clipping on a device: launches alone (training.md 4)."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from samebits.kernels.eager import Eager
from samebits.kernels.protocol import Part, WholePart
from samebits.kernels.triton import clipping
from samebits.kernels.triton.launch import EXACT, bits_of, cell, over, room
from samebits.kernels.triton.numbers import DeviceNumber, flag, place, tensor_of


def by_value(k: Eager, gradient: Part, limit: float) -> WholePart:
    """A gradient within +-limit, at its exponent."""
    codes, exponent = gradient
    own, out, n = room(codes), torch.empty_like(codes), codes.numel()
    assert isinstance(exponent, int)
    where = (*place(exponent, codes.device), tensor_of(k.largest_of(codes), codes.device))
    over(clipping.limited, n, codes, *where, bits_of(limit), out, own, n)
    return out, DeviceNumber(own)


def by_norm(k: Eager, parts: Sequence[Part], limit: float) -> list[WholePart]:
    """Gradients whose common norm is at most `limit`; as they are where it was."""
    if not parts:
        return []
    first, count = parts[0][0], len(parts)
    sums, limbs = cell(first, 2 * count), cell(first, clipping.LIMBS.value)
    found, up = room(first, 2), flag(first.device)
    exponents = torch.stack([tensor_of(e, first.device) for _, e in parts])
    for i, (codes, _) in enumerate(parts):
        over(clipping.squares, codes.numel(), codes, sums[2 * i :], codes.numel())
    clipping.factor[(1,)](sums, exponents, limbs, found, up, bits_of(limit), count, **EXACT)
    m, x = found
    scaled = list[WholePart]()
    for codes, exponent in parts:
        top = DeviceNumber(tensor_of(k.largest_of(codes), codes.device) * m)
        e = tensor_of(exponent, codes.device)
        short, own = k.shorten(codes.long() * m, top, DeviceNumber(e + x))
        scaled.append((short, DeviceNumber(torch.where(m == 1, e, tensor_of(own, codes.device)))))
    return scaled
