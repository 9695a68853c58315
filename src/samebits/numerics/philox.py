"""Philox4x32-10: random words as a pure function of a counter and a key.

J. Salmon, M. Moraes, R. Dror, D. Shaw, "Parallel Random Numbers: As Easy as 1, 2, 3", SC 2011.
Element i of (seed, site, step, shard) has the same word on every device and in every order, so
dropout and stochastic rounding replay exactly when a step is resumed, recomputed or re-sharded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

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


def words(
    count: int,
    key: tuple[int, int],
    step: int = 0,
    shard: int = 0,
    device: torch.device | str | None = None,
) -> torch.Tensor:
    """int64 [count], each in [0, 2**32): element i is word i % 4 of counter
    (i // 4, step, shard, 0). The key uses the low 32 bits of each entry.

    Raises ValueError beyond 2**34 words or for a step or shard outside [0, 2**32).
    """
    import torch

    if not 0 <= count <= 1 << 34:
        raise ValueError(f"expected 0 to 2**34 random words, found {count}")
    for what, value in (("step", step), ("shard", shard)):
        if not 0 <= value <= MASK:
            raise ValueError(f"expected a {what} in [0, 2**32), found {value}")
    a = torch.arange(-(-count // 4), dtype=torch.int64, device=device)
    b, c, d = torch.full_like(a, step), torch.full_like(a, shard), torch.zeros_like(a)
    k0, k1 = (word & MASK for word in key)
    for _ in range(ROUNDS):
        (p_high, p_low), (q_high, q_low) = (
            _multiply(MULTIPLIERS[0], a),
            _multiply(MULTIPLIERS[1], c),
        )
        a, b, c, d = q_high ^ b ^ k0, q_low, p_high ^ d ^ k1, p_low
        k0, k1 = (k0 + WEYL[0]) & MASK, (k1 + WEYL[1]) & MASK
    return torch.stack((a, b, c, d), dim=1).reshape(-1)[:count]


def _multiply(multiplier: int, words: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """High and low 32 bits of multiplier * words. The 64-bit product would overflow int64; the
    products with 16-bit halves stay below 2**48."""
    low = (words & 0xFFFF) * multiplier
    high = (words >> 16) * multiplier
    return (high + (low >> 16)) >> 16, (low + ((high & 0xFFFF) << 16)) & MASK
