"""Softmax with cross-entropy in integers: exponentials by table, exact row sums (training.md 6)."""

from __future__ import annotations

import functools

import mpmath
import numpy as np
import torch
from torch import Tensor

LOG2_E = 1549082005  # rne(log2(e) * 2**30)
CAP = 1 << 21  # of u: 2**-32 is zero at 24 bits


@functools.cache
def power_tables() -> tuple[Tensor, Tensor]:
    """T1[i] = rne(2**(-i/256) * 2**30), T2[i] = rne(2**(-i/65536) * 2**30)."""
    with mpmath.workprec(120):
        tables = [
            torch.tensor(
                [int(mpmath.nint(mpmath.mpf(2) ** (30 - mpmath.mpf(i) / d))) for i in range(256)]
            )
            for d in (256, 65536)
        ]
    return tables[0], tables[1]


def exponentials(d: Tensor, exponent: int) -> tuple[Tensor, Tensor]:
    """P = 2**24 * exp(-d * 2**exponent), and u = d * 2**exponent * log2(e) in units of 2**-16.

    d int64 >= 0, below 2**32. u is exact but for one floor, capped where P is zero anyway; 2**-u is
    the product of two table entries for its 16 fractional bits, shifted by the whole ones.
    """
    product = d * LOG2_E
    shift = exponent - 14
    if shift >= 0:
        left = min(shift, 22)
        u = torch.where(product > (CAP >> left), CAP, product.clamp(max=CAP) << left)
        u = u.clamp(max=CAP)
    else:
        u = (product >> min(-shift, 63)).clamp(max=CAP)
    t1, t2 = (t.to(d.device) for t in power_tables())
    fraction = u & 65535
    p = (t1[fraction >> 8] * t2[fraction & 255]) >> 30
    whole = u >> 16
    return torch.where(whole > 24, 0, p >> (6 + whole.clamp(max=24))), u


def _log2(s: Tensor) -> int:
    """The sum of log2(s) in units of 2**-24 over an int64 tensor of values >= 1.

    The bit length is the whole part; squaring the rest, a number in [1, 2), doubles its logarithm,
    whose whole part then is the next bit.
    """
    values = s.cpu().numpy().ravel()
    length = np.array([int(v).bit_length() - 1 for v in values], dtype=np.int64)
    v = np.where(
        length >= 30, values >> np.maximum(length - 30, 0), values << np.maximum(30 - length, 0)
    )
    bits = np.zeros_like(values)
    for _ in range(24):
        v = (v * v) >> 30
        high = v >> 31  # v < 2**32: the next bit of the logarithm
        bits = 2 * bits + high
        v = v >> high
    return int(((length << 24) + bits).sum())


def gradient_codes(p: Tensor, total: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Numerators (P - S [j = y]) * 2**24 and denominators S * N of the mean gradient.

    p int64 [N, classes], its row sums `total` [N, 1], targets int64 [N].
    """
    hit = torch.zeros_like(p).scatter_(1, target.view(-1, 1), 1)
    return (p - total * hit) << 24, total * p.shape[0]


def loss_rows(total: Tensor, u: Tensor, target: Tensor) -> int:
    """The sum over rows of log2(S) - 24 + u_y, in units of 2**-24."""
    chosen = u.gather(1, target.view(-1, 1))
    return _log2(total) - total.shape[0] * (24 << 24) + (int(chosen.sum()) << 8)
