"""Exponential averages of weights in plain Python integers (docs/spec/training.md, section 4).

Of weights that have one exponent; where rows have their own, each row is one (`optimizer.rows_of`).
"""

from __future__ import annotations

from samebits.spec.formats import Tensor, Weight, coefficient, join, power, scaled
from samebits.spec.formats import initial_weight as weight_of

GUARD_BITS = 8  # of an average, below those of J
AVERAGE_BITS = 30  # every |S| < 2**30


def start(weight: Weight) -> Tensor:
    """The average S of one weight, and its exponent."""
    joint, exponent = join(weight)
    return [j << GUARD_BITS for j in joint], exponent - GUARD_BITS


def update(average: Tensor, weight: Weight, decay: float) -> Tensor:
    """The average after one more weight."""
    (old, e_s), (joint, e_a) = average, join(weight)
    m, x = coefficient(1.0 - decay)
    e = max(e_a - GUARD_BITS, e_s + max(map(abs, old)).bit_length() - AVERAGE_BITS)
    target, old = [scaled(j, e_a - e) for j in joint], [scaled(s, e_s - e) for s in old]
    return [s + scaled(m * (t - s), x) for s, t in zip(old, target, strict=True)], e


def averaged(average: Tensor, bits: int = 8) -> Weight:
    """The weight that stands for an average, its codes of the width of its layer."""
    codes, exponent = average
    return weight_of([c * power(exponent) for c in codes], bits=bits)
