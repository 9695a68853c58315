"""Sums of two int8 tensors of one shape whose ratio is a power of two (csrc/inference/add.c).

There are at most 65536 pairs of codes, so the kernel's formula is compared with the definition for
each of them. It rounds halves up or, with an offset of one less, down; where the exact sums have
ties that neither serves, the kernel for any tensors takes the layer.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from samebits.codegen.lowering.calls import KernelCall, Struct, ValueCalls
from samebits.codegen.lowering.site import Site


def add_entry(site: Site) -> ValueCalls | None:
    """The call of the kernel, or None where it does not give the codes of the definition."""
    names = site.node.inputs
    if site.requantize is None or site.node.op != "add" or len(names) != 2:
        return None
    values = [site.context.value(name) for name in names]
    a = site.requantize.attributes
    codes = [*(v.dtype for v in values), a["dtype"]]
    ratio = a["ratios"][0]
    if not isinstance(ratio, Fraction):
        return None
    shift = ratio.denominator.bit_length() - 1
    if codes != ["int8"] * 3 or any(v.shape != site.shape for v in values):
        return None
    if len(a["ratios"]) > 1 or ratio != Fraction(1, 1 << shift) or not 1 <= shift <= 30:
        return None
    factors = [int(f) for f in site.a["factors"]]
    offset, zero, low, high = int(site.a["offset"]), int(a["zero"]), int(a["low"]), int(a["high"])
    if max(map(abs, (*factors, offset, zero << shift))) >= 1 << 40:
        return None
    ends = [site.context.bounds[name].hull.over(1)[0] for name in names]
    first, second = (np.arange(least, most + 1, dtype=np.int64) for least, most in ends)
    sums = first[:, None] * factors[0] + second * factors[1] + offset
    floor, rest = sums >> shift, sums & ((1 << shift) - 1)
    half = 1 << (shift - 1)
    exact = floor + ((rest > half) | ((rest == half) & (floor & 1 == 1)))
    expected = np.clip(exact + zero, low, high)
    for rounding in (half, half - 1):
        term = rounding + (zero << shift)
        found = sums + term
        fits = all(
            abs(int(v)) < 1 << 31 for v in (found.min(), found.max(), *factors, offset + term)
        )
        if fits and np.array_equal(np.clip(found >> shift, low, high), expected):
            fields = {
                "size": values[0].size,
                "factor_a": factors[0],
                "factor_b": factors[1],
                "offset": offset + term,
                "shift": shift,
                "low": low,
                "high": high,
            }
            return site.entry(KernelCall("add8", Struct("add8", fields), names), in_place=names)
    return None
