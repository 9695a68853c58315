"""Cross-entropy and MSE in plain Python integers (docs/spec/training.md, section 6).

The gradient is exact as specified; the loss returned beside it is reported, never differentiated.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from samebits.spec import formats
from samebits.spec.formats import Tensor
from samebits.spec.training.layers import Array, quantize, wide

LOG2_E = 1549082005  # rne(log2(e) * 2**30)
LN_2 = 0.6931471805599453
CAP = 2**21


def power_table(halvings: int) -> list[int]:
    """rne(2**(-i / 2**halvings) * 2**30) for i in 0..255."""
    bits = 256
    root = 1 << (bits - 1)
    for _ in range(halvings):
        root = math.isqrt(root << bits)
    table, value = [], 1 << bits
    for _ in range(256):
        # Every step above rounds down by less than one unit: the true value is in [value, +1024].
        low, high = (formats.scaled(v, 30 - bits) for v in (value, value + 1024))
        if low != high:
            raise AssertionError("too near a rounding boundary")
        table.append(low)
        value = value * root >> bits
    return table


T1, T2 = power_table(8), power_table(16)


def log2_fixed(value: int) -> int:
    """log2(value) in units of 2**-24, by 24 squarings."""
    whole = value.bit_length() - 1
    v = value << (30 - whole) if whole <= 30 else value >> (whole - 30)
    fraction = 0
    for _ in range(24):
        v = v * v >> 30
        fraction <<= 1
        if v >= 2**31:
            fraction |= 1
            v >>= 1
    return (whole << 24) + fraction


def incoming(acc: Sequence[int], exponent: int, scale: float) -> Tensor:
    """acc times the scalar that the loss is multiplied by; 1 is left out."""
    if scale == 1.0:
        return list(acc), exponent
    m, x = formats.coefficient(scale)
    return [a * m for a in acc], exponent + x


def cross_entropy(z: Array, targets: Sequence[int], scale: float = 1.0) -> tuple[float, Array]:
    """(mean loss, gradient of scale * loss) of logits [N, C]."""
    rows, classes = z.shape
    gradient, total = [], 0
    for n, target in enumerate(targets):
        row = z.codes[n * classes : (n + 1) * classes]
        weights, units = [], []
        for code in row:
            scaled = (max(row) - code) * LOG2_E
            shift = z.exponent - 14
            u = min(scaled << shift if shift >= 0 else scaled >> -shift, CAP)
            whole, fraction = u >> 16, u & 65535
            p = (T1[fraction >> 8] * T2[fraction & 255]) >> 30
            weights.append(0 if whole > 24 else p >> (6 + whole))
            units.append(u)
        s = sum(weights)
        for j, weight in enumerate(weights):
            numerator = weight - (s if j == target else 0)
            gradient.append(formats.round_ratio(numerator << 24, s * rows))
        total += log2_fixed(s) - (24 << 24) + (units[target] << 8)
    loss = LN_2 * math.ldexp(float(total), -24) / float(rows)
    acc, exponent = incoming(gradient, -24, scale)
    return loss, wide(acc, z.shape, exponent)


def mse(y: Array, targets: Sequence[float], scale: float = 1.0) -> tuple[float, Array]:
    """(mean loss, gradient of scale * loss) against real targets in the order of y's codes."""
    codes, e_t = quantize(targets, 16)
    diff, e = formats.combine([(y.codes, y.exponent, 31), ([-c for c in codes], e_t, 15)])
    d, e_d = formats.requantize(diff, e, 16)
    m, x = formats.coefficient(2.0 / float(len(d)))
    acc, exponent = incoming([m * c for c in d], e_d + x, scale)
    loss = math.ldexp(float(sum(c * c for c in d)) / float(len(d)), 2 * e_d)
    return loss, wide(acc, y.shape, exponent)
