"""Philox4x32-10: random words as a pure function of a counter and a key.

J. Salmon, M. Moraes, R. Dror, D. Shaw, "Parallel Random Numbers: As Easy as 1, 2, 3", SC 2011.
Element i of (seed, site, step, shard) has the same word on every device and in every order, so
dropout and stochastic rounding replay exactly when a step is resumed, recomputed or re-sharded.
"""

from __future__ import annotations

MASK = 0xFFFFFFFF
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
WEYL = (0x9E3779B9, 0xBB67AE85)  # golden ratio and sqrt(3) - 1
ROUNDS = 10


def philox4x32(
    counter: tuple[int, int, int, int], key: tuple[int, int]
) -> tuple[int, int, int, int]:
    """Four 32-bit words from a 128-bit counter and a 64-bit key (low 32 bits of each entry)."""
    a, b, c, d = (word & MASK for word in counter)
    k0, k1 = (word & MASK for word in key)
    for _ in range(ROUNDS):
        p, q = MULTIPLIERS[0] * a, MULTIPLIERS[1] * c
        a, b, c, d = (q >> 32) ^ b ^ k0, q & MASK, (p >> 32) ^ d ^ k1, p & MASK
        k0, k1 = (k0 + WEYL[0]) & MASK, (k1 + WEYL[1]) & MASK
    return a, b, c, d
