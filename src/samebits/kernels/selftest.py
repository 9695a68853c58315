"""Known-answer test of a realisation with full-range operands, run once at start.

Some integer matrix units saturate silently and some integer convolutions wrap; a realisation whose
sums differ from plain int64 arithmetic on the worst operands is not used.
"""

from __future__ import annotations

import torch
from torch import Tensor

from samebits.kernels.eager import Eager
from samebits.kernels.geometry import conv_shape
from samebits.spec import formats
from samebits.spec.formats import Q8, Q16, Q32


def _alternating(shape: tuple[int, ...], high: int, dtype: torch.dtype, device: str) -> Tensor:
    """Mostly +-high with a few smaller codes, the same on every machine."""
    count = 1
    for size in shape:
        count *= size
    index = torch.arange(count, dtype=torch.int64, device="cpu")
    values = torch.where(index % 7 == 3, -high, high) - (index % 5 == 2) * (high // 3)
    return values.view(shape).to(dtype).to(device)


def failures(kernels: Eager, device: str) -> list[str]:
    """Names of what differs from plain integers on a device (empty: fit for use).

    Scaling to 32 bits with ties and the widest operands, and convolutions with their gradients
    whose codes are mostly at the limits of their formats: a unit that saturates or wraps shows.
    """
    wrong = []
    for high, exponent in ((1 << 61, -31), (1 << 61, -32), (Q32, -15), (Q16, 3)):
        v = _alternating((2, 7, 5, 4), high, torch.int64, device)
        scaled = [formats.scaled(code, exponent) for code in v.flatten().tolist()]
        if kernels.scale_to(v, exponent, 32).flatten().tolist() != scaled:
            wrong.append(f"scaling by 2**{exponent}")
    # Also of enough pixels for kernels that take no fewer (csrc/training/amx.h).
    cases = (320, 1, 1, 5, 4), (72, 1, 1, 13, 5), (40, 3, 1, 5, 4), (6, 3, 6, 5, 4)
    for channels, kernel, groups, h, width in cases:
        x = _alternating((2, channels, h, width), Q8, torch.int8, device)
        w = _alternating((channels, channels // groups, kernel, kernel), Q8, torch.int8, device)
        s = conv_shape(tuple(x.shape), tuple(w.shape), padding=(kernel // 2,) * 2, groups=groups)
        columns = torch.nn.functional.unfold(x.cpu().double(), kernel, padding=kernel // 2).long()
        columns = columns.view(2, groups, -1, h * width)
        rows = w.cpu().long().reshape(groups, channels // groups, -1)
        expected = torch.einsum("gok,ngkl->ngol", rows, columns).reshape(x.shape)
        if not torch.equal(kernels.conv(x, w, s)[0].cpu().long(), expected):
            wrong.append(f"conv {kernel}x{kernel} groups {groups}")
        for high, dtype in ((Q16, torch.int16), (Q32, torch.int32)):
            g = _alternating(tuple(expected.shape), high, dtype, device)
            flat = g.cpu().long().reshape(2, groups, -1, h * width)
            weight = torch.einsum("ngol,ngkl->gok", flat, columns).reshape(w.shape)
            if not torch.equal(kernels.conv_weight_grad(g, x, s)[0].cpu().long(), weight):
                wrong.append(f"weight gradient {kernel}x{kernel} groups {groups} {dtype}")
        g = _alternating(tuple(expected.shape), Q16, torch.int16, device)
        back = torch.einsum(
            "gok,ngol->ngkl", rows, g.cpu().long().reshape(2, groups, -1, h * width)
        )
        folded = torch.nn.functional.fold(
            back.reshape(2, -1, h * width).double(), (h, width), kernel, padding=kernel // 2
        ).long()
        if not torch.equal(kernels.conv_input_grad(g, w, s)[0].cpu().long(), folded):
            wrong.append(f"input gradient {kernel}x{kernel} groups {groups}")
    return wrong
