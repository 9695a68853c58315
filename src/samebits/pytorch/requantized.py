"""Requantization of int64 tensors, by one quotient or by thresholds.

`requantization` proves that 64 bits hold every step; a node's parameters are tensors here.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from samebits.ir.graph import Array
from samebits.ir.integer.bounds import Interval
from samebits.ir.integer.realise import Floors, Quotient, requantization
from samebits.ir.ops import Attributes

Tensor = torch.Tensor


def quotient(numerator: Tensor, denominator: Tensor) -> Tensor:
    """numerator / denominator, rounded to the nearest integer and from a tie to the even one.

    int64; 0 < denominator <= 2**62, so that twice a remainder plus 1 stays below 2**63. With
    quotient = floor and remainder r in [0, d) the result is one higher where 2 * r + odd > d, odd
    being 1 for an odd quotient: below the middle 2 * r + 1 <= d never is, above it 2 * r > d always
    is, and in the middle, 2 * r = d, it is for an odd quotient. Example: 7 / 2 has quotient 3 and
    remainder 1, and 2 + 1 > 2 gives 4; 5 / 2 has quotient 2 and remainder 1, and 2 + 0 > 2 fails,
    which leaves 2.
    """
    quotient = torch.div(numerator, denominator, rounding_mode="floor")
    remainder = numerator - quotient * denominator
    return quotient + (2 * remainder + (quotient & 1) > denominator)


def requantized(
    acc: Interval, a: Attributes, tensor: Callable[[Array], Tensor]
) -> Callable[[Tensor], Tensor]:
    """`requantize` over an interval. tensor: places parameters on the device, as they broadcast."""
    low, high, zero = a["low"], a["high"], a["zero"]
    plan = requantization(acc, a)
    if isinstance(plan, Quotient):
        numerators, denominators = tensor(plan.numerators), tensor(plan.denominators)
        return lambda x: (quotient(x * numerators, denominators) + zero).clamp(low, high)
    if isinstance(plan, Floors):
        floor = _floors(plan, tensor)
        return lambda x: (floor(x) + zero).clamp(low, high)
    steps = torch.atleast_2d(tensor(plan.values))
    return lambda x: low + _reached(x, steps)


def _floors(plan: Floors, tensor: Callable[[Array], Tensor]) -> Callable[[Tensor], Tensor]:
    """The rounding alone; sums outside of the ends count as these."""
    arrays = (plan.factors, plan.up, plan.down, plan.divisors)
    factors, up, down, divisors = map(tensor, arrays)
    ends = [tensor(end) for end in plan.ends or ()]

    def floor(x: Tensor) -> Tensor:
        x = x.clamp(*ends) if ends else x
        return torch.div(x * factors + up + (x < 0) * down, divisors, rounding_mode="floor")

    return floor


def _reached(x: Tensor, steps: Tensor) -> Tensor:
    """Number of steps <= x. steps: rows that ascend, [1, T], or [C, T] along the last axis of x."""
    if steps.shape[0] == 1:
        return torch.searchsorted(steps[0], x.contiguous(), right=True)
    columns = x.movedim(-1, 0)
    flat = columns.reshape(steps.shape[0], -1).contiguous()
    return torch.searchsorted(steps, flat, right=True).reshape(columns.shape).movedim(0, -1)
