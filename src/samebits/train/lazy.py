"""The lazy update of one parameter (training.md 2.1)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from samebits import kernels
from samebits.errors import InputError, RangeError
from samebits.kernels.moments import Draw, Update
from samebits.spec import formats
from samebits.spec.training.moments import FRACTION, TOP_FIELD
from samebits.spec.training.optimizer import UPDATE_BITS
from samebits.train.tensor import BFPParameter


def coefficient(value: float, what: str) -> tuple[int, int] | None:
    """A number as a 16-bit coefficient (m, x), m * 2**x (training.md 3); None for 0.

    Raises InputError, which says `what` it is, for a number that is negative or not finite.
    """
    if not (math.isfinite(value) and value >= 0):
        raise InputError(f"{what}: expected a finite number >= 0, found {value}")
    return formats.coefficient(value) if value else None


def lazy_update(
    parameter: BFPParameter,
    p: Tensor,
    e_p: int,
    lr: tuple[int, int],
    draw: Draw | None,
) -> None:
    """Subtract lr * P (e6m9 codes at the exponent e_p) from a parameter, in place (2.1).

    Updates are mostly smaller than one 8-bit code. They gather in A, and only what has grown to a
    code is carried into W, so no float copy of the weight is needed: the joint value
    J = W * 2**15 - A falls by exactly u, the update in units of J (2**-15 of a code), whatever
    moves from A to W. Two things round: u, with the random bits of `draw` or (None) to nearest, and
    J where the exponent goes up.

    The exponent moves where max|W| leaves [64, 127], which a first pass finds without writing:
    beyond it J is split again at `by` more (or fewer) bits. Where J, as the last update left it,
    is so far from both ends that no code of P can carry it there, one pass does both.

    Rows with exponents of their own are updated each for itself, by one call of the kernels.

    Raises RangeError where an exponent would pass 127.
    """
    codes, exponent = parameter.parts[0]
    update = Update(p, lr[0], e_p - TOP_FIELD + lr[1], draw)
    limit = parameter.largest_allowed
    largest = None
    if isinstance(exponent, Tensor):
        exponent = kernels.of(codes).lazy_rows(codes, parameter.delayed, exponent, update, limit)
        top = int(exponent.max())
    else:
        e_a = exponent - formats.DELAYED_BITS
        exponent, largest = _update_whole(
            parameter, exponent, update._replace(shift=update.shift - e_a)
        )
        top = exponent
    torch.autograd.graph.increment_version([codes, parameter.delayed])  # written through pointers
    if top > formats.EXPONENT_MAX:
        raise RangeError(
            f"the update overflows (exponent {top}, at most {formats.EXPONENT_MAX}); lower the "
            "learning rate"
        )
    parameter.set_exponent(exponent)
    if largest is not None:
        parameter.remember_largest_joint(largest)


def _update_whole(parameter: BFPParameter, exponent: int, update: Update) -> tuple[int, int | None]:
    """The update of a tensor that is one row; its new exponent, and max|J| where it is known."""
    codes, delayed = parameter.parts[0][0], parameter.delayed
    k, limit = kernels.of(codes), parameter.largest_allowed
    if 1 << max(update.bits, 0) <= _room(parameter):
        return exponent, k.lazy_carry(codes, delayed, update, True)[1]
    largest_p = k.largest_of(update.p)
    if largest_p == 0:
        return exponent, parameter.largest_joint()
    above = update.bits - TOP_FIELD + (largest_p >> FRACTION) - UPDATE_BITS
    if above > 0:
        k.lazy_resplit(codes, delayed, Update(update.p, 0, -TOP_FIELD, None), above)
        exponent += above
        update = update._replace(shift=update.shift - above)
    largest, joint = k.lazy_carry(codes, delayed, update, False)
    by = _resplit_shift(largest, joint, exponent, limit)
    if by == 0:
        k.lazy_carry(codes, delayed, update, True)
    else:
        k.lazy_resplit(codes, delayed, update, by)
    return exponent + by, formats.scaled(joint, -by)


def _room(parameter: BFPParameter) -> int:
    """The largest |u| that surely keeps max|W| above half the limit and within it; -1 for none.

    W is J / 2**15 to the nearest, so max|W| passes an end only where max|J| reaches the middle
    between it and the next code.
    """
    joint, limit = parameter.largest_joint(), parameter.largest_allowed
    if joint is None:
        return -1
    low, high = (((2 * end + 1) << formats.DELAYED_BITS) // 2 for end in (limit // 2, limit))
    return min(joint - low, high - joint) - 1


def _resplit_shift(largest: int, joint: int, exponent: int, limit: int) -> int:
    """The change of e_W for max|W| = largest and max|J| = joint (training.md 2.1, 4 and 5).

    Rounding is monotonic, so the largest W after a split follows from the largest J alone.
    """
    if joint == 0:
        return 0
    by = 0
    while largest > limit:
        by += 1
        largest = formats.scaled(formats.scaled(joint, -by), -formats.DELAYED_BITS)
    if by:
        return by
    while largest <= limit // 2 and exponent + by > formats.EXPONENT_MIN:
        by -= 1
        largest = formats.scaled(joint << -by, -formats.DELAYED_BITS)
    return by
