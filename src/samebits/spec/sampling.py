"""docs/spec/sampling.md in plain integers: the next token of a language model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from samebits.spec.philox import philox4x32

ONE = 1 << 30  # the weight of the largest logit
FRACTION_BITS = 16  # of an octave
HALVES = (
    *(759250125, 902905651, 984625594, 1028218693, 1050733751, 1062175491, 1067942999, 1070838486),
    *(1072289173, 1073015252, 1073378477, 1073560135, 1073650976, 1073696399, 1073719111),
    1073730468,
)
LOG2_E = 26613026195688644983  # rne(2**64 / ln 2)
FARTHEST = (1 << 32) - 1  # of a logit below the largest


@dataclass(frozen=True)
class Sampling:
    """The number k of candidates, the largest logits, and m * 2**-q, the 2**-16 octaves of a
    code."""

    k: int
    m: int
    q: int

    @staticmethod
    def of(k: int, scale: Fraction, temperature: Fraction) -> Sampling:
        """For logits of a scale."""
        octaves = Fraction(1 << FRACTION_BITS) * scale / temperature * Fraction(LOG2_E, 1 << 64)
        fitting = [q for q in range(63) if round(octaves * 2**q) < ONE]
        q = max(fitting, default=0)
        return Sampling(k, round(octaves * 2**q) if fitting else ONE - 1, q)


def weight(sampling: Sampling, below: int) -> int:
    """The weight of a logit so far below the largest."""
    t = min(below, FARTHEST) * sampling.m >> sampling.q
    w = ONE
    for j, half in enumerate(HALVES):
        if t >> (FRACTION_BITS - 1 - j) & 1:
            w = w * half >> 30
    return w >> (t >> FRACTION_BITS)


def sample(sampling: Sampling, logits: Sequence[int], seed: int, step: int) -> int:
    """The index of the token that follows."""
    ranked = sorted(range(len(logits)), key=lambda i: (-logits[i], i))
    candidates = sorted(ranked[: sampling.k])
    top = logits[ranked[0]]
    weights = [weight(sampling, top - logits[i]) for i in candidates]
    word = philox4x32((step, 0, 0, 0), (seed & 0xFFFFFFFF, seed >> 32))[0]
    left = word * sum(weights) >> 32
    for i, w in zip(candidates, weights, strict=True):
        if left < w:
            return i
        left -= w
    raise AssertionError("the draw is below the sum of all weights")
