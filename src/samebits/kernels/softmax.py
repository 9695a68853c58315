"""Softmax with cross-entropy in integers: exponentials by table, exact row sums (training.md 6)."""

from __future__ import annotations

import functools
from typing import Any

import mpmath
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

LOG2_E = 1549082005  # rne(log2(e) * 2**30)
CAP = 1 << 21  # of u: 2**-32 is zero at 24 bits
LARGEST = 1 << 26  # |u| of one power, 2**1024
HALF = 31  # bits of the lower of two parts of an integer
FEW = 100  # rows up to which Python's integers take less time than arrays
INFINITE = 1 << 11  # left shifts of a loss by more are beyond binary64


@functools.cache
def power_tables() -> tuple[Tensor, Tensor]:
    """T1[i] = rne(2**(-i/256) * 2**30), T2[i] = rne(2**(-i/65536) * 2**30)."""
    with mpmath.workprec(120):
        tables = [
            torch.tensor(
                [int(mpmath.nint(mpmath.mpf(2) ** (30 - mpmath.mpf(i) / d))) for i in range(256)],
                device="cpu",
            )
            for d in (256, 65536)
        ]
    return tables[0], tables[1]


def exponentials(d: Tensor, exponent: int | Tensor) -> Tensor:
    """P = 2**24 * exp(-d * 2**exponent), int64 (6.1).

    d int64 in [0, 2**32) [n, classes], the exponent one or int64 [n, 1]. d * log2(e) in units of
    2**-16 is exact but for one floor, and capped where P is zero anyway; 2**-u is the product of
    two table entries for its 16 fractional bits, shifted by the whole ones.
    """
    shift = exponent - 14
    left: int | Tensor
    right: int | Tensor
    if isinstance(shift, int):
        left, right = min(max(shift, 0), 22), min(max(-shift, 0), 63)
    else:
        left, right = shift.clamp(0, 22), (-shift).clamp(0, 63)
    u = (d * LOG2_E) >> right
    u = torch.where(u > (CAP >> left), CAP, u << left)
    t1, t2 = (t.to(d.device) for t in power_tables())
    fraction = u & 65535
    p = (t1[fraction >> 8] * t2[fraction & 255]) >> 30
    whole = u >> 16
    return torch.where(whole > 24, 0, p >> (6 + whole.clamp(max=24)))


def power_of(z: Tensor, exponent: int | Tensor) -> tuple[Tensor, Tensor]:
    """n and p of exp(z * 2**exponent) = p * 2**(-30 - n), int64 as z [n, 1] (6.6).

    |z| < 2**31 in int64, the exponent one or int64 [n, 1]. n stops at 1024, and is below -1024
    where binary64 does not hold the exponential.
    """
    shift = torch.as_tensor(exponent, device=z.device) - 14
    left, right = shift.clamp(0, 27), (-shift).clamp(0, 63)
    u = (-z * LOG2_E) >> right
    most = LARGEST >> left
    u = torch.where(u > most, LARGEST, torch.where(u < -most, -LARGEST - 1, u << left))
    t1, t2 = (t.to(z.device) for t in power_tables())
    fraction = u & 65535
    return u >> 16, (t1[fraction >> 8] * t2[fraction & 255]) >> 30


def logs(total: Tensor) -> Tensor:
    """log2(S) - 24 in units of 2**-24, int64 on the CPU; S int64 in [2**24, 2**52].

    The bit length is the whole part; squaring the rest, a number in [1, 2), doubles its logarithm,
    whose whole part then is the next bit.
    """
    values = total.cpu().numpy()
    length = np.frexp(values.astype(np.float64))[1].astype(np.int64) - 1
    v = np.where(
        length >= 30, values >> np.maximum(length - 30, 0), values << np.maximum(30 - length, 0)
    )
    bits = np.zeros_like(values)
    for _ in range(24):
        v = (v * v) >> 30
        high = v >> 31  # v < 2**32: the next bit of the logarithm
        bits = 2 * bits + high
        v = v >> high
    return torch.from_numpy(((length - 24) << 24) + bits)


def gradient_codes(p: Tensor, total: Tensor, target: Tensor, divisor: int) -> tuple[Tensor, Tensor]:
    """Numerators (P - S [j = y]) * 2**24 and denominators S * divisor of 6.2's gradient.

    p int64 [n, classes], its row sums `total` [n, 1], targets int64 [n]; of a row whose target is
    -1 the numerators are 0.
    """
    counted = (target >= 0).view(-1, 1)
    hit = torch.zeros_like(p).scatter_(1, target.clamp(min=0).view(-1, 1), 1)
    return torch.where(counted, p - total * hit, 0) << 24, total * divisor


# --- losses -----------------------------------------------------------------------------------


def exact_sum(v: Tensor | npt.NDArray[Any]) -> int:
    """The sum of up to 2**32 integers of int64, each >= 0."""
    return (int((v >> HALF).sum()) << HALF) + int((v & ((1 << HALF) - 1)).sum())


def loss_units(
    logarithms: Tensor, weights: Tensor | None, distances: Tensor, exponent: int | Tensor
) -> int:
    """The sum of the rows' losses R = A * l + 2**8 * floor(D * L * 2**(e - 14)) (6.1).

    All int64 [n], the exponent one or [n, 1]: A = weights < 2**29 (None: 1), D = distances < 2**61.
    """
    (count,) = distances.shape
    logarithms, distances = logarithms.cpu(), distances.cpu()
    weights = None if weights is None else weights.cpu()
    if isinstance(exponent, int):
        shifts = [int(exponent) - 14] * count
    else:
        shifts = (exponent.reshape(-1) - 14).tolist()
    if count > FEW and max(shifts) <= -30:
        return _units_of_many(logarithms, weights, distances, np.array(shifts))
    total = 0
    amounts = [1] * count if weights is None else weights.tolist()
    for a, log, d, by in zip(amounts, logarithms.tolist(), distances.tolist(), shifts, strict=True):
        product = d * LOG2_E
        total += a * log + ((product << min(by, INFINITE) if by >= 0 else product >> -by) << 8)
    return total


def _units_of_many(
    logarithms: Tensor, weights: Tensor | None, distances: Tensor, shift: npt.NDArray[Any]
) -> int:
    """`loss_units` by arrays: D * L has 62 bits above bit 30, and what lies below is cut off."""
    own, d = logarithms.numpy(), distances.numpy()
    low = (d & ((1 << 30) - 1)) * LOG2_E
    high = (d >> 30) * LOG2_E + (low >> 30)
    units = exact_sum(high >> np.minimum(-30 - shift, 63))
    return exact_sum(own if weights is None else own * weights.numpy()) + (units << 8)
