"""Gradient clipping in plain Python integers (docs/spec/training.md, section 4)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

from samebits.errors import RangeError
from samebits.spec.formats import EXPONENT_MIN, Tensor, coefficient, power, shorten


def norm(gradients: Sequence[Tensor]) -> float:
    """The Euclidean norm of all gradients. Raises RangeError as `root`."""
    return root([(sum(c * c for c in codes), e) for codes, e in gradients])


def root(squares: Sequence[tuple[int, int]]) -> float:
    """The root of the sum of integers s * 4**e, given as (s, e).

    The sum is exact; it and its root are rounded once each, to nearest, ties to even. Raises
    RangeError where binary64 does not hold the root.
    """
    live = [(s, e) for s, e in squares if s]
    if not live:
        return 0.0
    largest = max(e for _, e in live)
    found = math.sqrt(float(sum((s * power(2 * (e - largest)) for s, e in live), Fraction(0))))
    try:
        return math.ldexp(found, largest)
    except OverflowError:
        raise RangeError(
            f"the norm of the gradients overflows (expected below 2**1024, found "
            f"{found} * 2**{largest}); lower the learning rate"
        ) from None


def clip_norm(gradients: Sequence[Tensor], limit: float) -> list[Tensor]:
    """Gradients whose norm is above `limit` > 0, multiplied by a 16-bit coefficient."""
    found = norm(gradients)
    if found <= limit:
        return list(gradients)
    factor = limit / found
    m, x = coefficient(factor) if factor else (0, 0)
    return [shorten([m * c for c in codes], e + x) for codes, e in gradients]


def clip_value(gradient: Tensor, limit: float) -> Tensor:
    """A gradient without values beyond +-`limit` > 0: codes stop at the last one within it."""
    codes, exponent = gradient
    most = math.floor(Fraction(limit) / power(exponent))
    if max(map(abs, codes)) <= most:
        return gradient
    return [min(max(c, -most), most) for c in codes], exponent if most else EXPONENT_MIN
