"""Philox4x32-10 in torch: many random words at once. `spec.philox` defines them."""

from __future__ import annotations

import torch

from samebits.spec.philox import MASK, MULTIPLIERS, ROUNDS, WEYL


def words(
    count: int,
    key: tuple[int, int],
    step: int = 0,
    shard: int = 0,
    device: torch.device | str = "cpu",
    call: int = 0,
) -> torch.Tensor:
    """int64 [count], each in [0, 2**32): element i is word i % 4 of counter
    (i // 4, step, shard, call). The key uses the low 32 bits of each entry.

    Raises ValueError beyond 2**34 words or for a step, shard or call outside [0, 2**32).
    """
    if not 0 <= count <= 1 << 34:
        raise ValueError(f"expected 0 to 2**34 random words, found {count}")
    for what, value in (("step", step), ("shard", shard), ("call", call)):
        if not 0 <= value <= MASK:
            raise ValueError(f"expected a {what} in [0, 2**32), found {value}")
    a = torch.arange(-(-count // 4), dtype=torch.int64, device=device)
    b, c, d = torch.full_like(a, step), torch.full_like(a, shard), torch.full_like(a, call)
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
