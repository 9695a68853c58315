"""The lazy update in torch where every row has an exponent of its own (training.md 2.1), and the
exponent of a direction (3)."""

from __future__ import annotations

import torch
from torch import Tensor

from samebits.errors import RangeError
from samebits.kernels import moments, rows
from samebits.kernels.moments import Update
from samebits.kernels.protocol import SGDTerms
from samebits.kernels.rows import Exponent
from samebits.spec.formats import DELAYED_BITS, EXPONENT_MAX, EXPONENT_MIN
from samebits.spec.training.moments import FRACTION, TOP_FIELD
from samebits.spec.training.optimizer import SUM_BITS, UPDATE_BITS

UPDATE_TOP = 26  # bits of the product of a significand and a coefficient


def update_rows(
    joint: Tensor, codes: Tensor, delayed: Tensor, exponent: Tensor, update: Update, limit: int
) -> tuple[Tensor, Tensor, Tensor]:
    """W, A (int64) and exponents after an update of every row; nothing is written.

    joint: J of every element; exponent: int64 [O, 1, ...]; the update's shift is against e_A = 0;
    limit: the largest code of W
    """
    size = exponent.shape
    largest_p = rows.largest(update.p, size)
    live = largest_p > 0
    w, a = codes.long(), delayed.long()
    # Step 2: rows are raised until every update fits.
    shift = update.shift - (exponent - DELAYED_BITS)
    above = shift + (largest_p >> FRACTION) + UPDATE_TOP - UPDATE_BITS
    above = torch.where(live, above.clamp(min=0), 0)
    raised = _split(rows.scale(joint, -above))
    w, a = (torch.where(above > 0, new, old) for new, old in zip(raised, (w, a), strict=True))
    exponent = exponent + above
    # Step 3. A row without directions has u = 0, and |A| <= 2**14 carries nothing.
    shift = torch.where(live, shift - above, -TOP_FIELD)
    total = a + moments.moved(update.p, update.m, shift, update.draw)
    carry = rows.scale(total, torch.full_like(exponent, -DELAYED_BITS))
    w, a = w - carry, total - (carry << DELAYED_BITS)
    # Steps 4 and 5.
    joint = (w << DELAYED_BITS) - a
    by = _moves(rows.largest(w, size), rows.largest(joint, size), exponent, limit)
    by = torch.where(live, by, 0)
    moved = _split(rows.scale(joint, -by))
    w, a = (torch.where(by != 0, new, old) for new, old in zip(moved, (w, a), strict=True))
    return w, a, exponent + by


def _moves(largest: Tensor, joint: Tensor, exponent: Tensor, limit: int) -> Tensor:
    """By how much each exponent moves, from max|W| and max|J| of its row."""
    # |J| is below 2**most where the codes fit, up to `limit`: 2**22 for 8 bits.
    length, most, half = rows.bit_length(joint), limit.bit_length() + DELAYED_BITS, limit // 2
    # Up: below this, J has more bits. Two halvings of a code are as many as rounding needs.
    up = (length - most).clamp(min=1)
    up = torch.where(_code(joint, up) > limit, up + 1, up)
    # Down: before the last doubling J has fewer than most - 1 bits, and its code is at most a
    # quarter of the limit.
    down = (most - 1 - length).clamp(min=1)
    down = torch.where(_code(joint, -down) <= half, down + 1, down)
    down = torch.minimum(down, exponent - EXPONENT_MIN)
    return torch.where(largest > limit, up, torch.where((largest <= half) & (joint > 0), -down, 0))


def _code(joint: Tensor, by: Tensor) -> Tensor:
    """rne(rne(J / 2**by) / 2**15)."""
    return rows.scale(rows.scale(joint, -by), torch.full_like(by, -DELAYED_BITS))


def _split(joint: Tensor) -> tuple[Tensor, Tensor]:
    """W and A of joint values."""
    codes = rows.scale(joint, torch.full_like(joint, -DELAYED_BITS))
    return codes, (codes << DELAYED_BITS) - joint


def combine_shifts(e_g: int, terms: SGDTerms) -> tuple[int, int, Exponent, int]:
    """The common exponent of a direction's terms, and the shift of each to it (training.md 3).

    e_g is the exponent of the gradient. Gradient, decay and momentum have at most 31, 39 and 26
    bits; the common exponent leaves the largest of them 50, so that the sum of three stays below
    2**52. The shift of the momentum is that of a code with F = 0; that of the decay is by rows
    where e_A is.
    """
    tops, momentum = [e_g + 31], terms.momentum
    e_decay: Exponent = 0
    e_momentum = 0
    if terms.decay is not None:
        e_decay = terms.e_a + terms.decay[1]
        tops.append(rows.highest(e_decay) + 39)
    if momentum is not None:
        e_momentum = momentum.exponent + momentum.coefficient[1] - TOP_FIELD
        if momentum.largest:
            tops.append(e_momentum + (momentum.largest >> FRACTION) + 26)
    exponent = max(tops) - SUM_BITS
    return exponent, e_g - exponent, e_decay - exponent, e_momentum - exponent


def direction_exponent(exponent: int) -> int:
    """The exponent of a direction whose integers have an exponent: it holds any below 2**52."""
    result = max(exponent + SUM_BITS + 2 - FRACTION, EXPONENT_MIN)
    if result > EXPONENT_MAX:
        raise RangeError(
            f"the exponent overflows (expected at most {EXPONENT_MAX}, found {result}); "
            "lower the learning rate"
        )
    return result
