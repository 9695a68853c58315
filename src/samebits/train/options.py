"""Options of optimizers as kernels take them (training.md 3 and 4)."""

from __future__ import annotations

import functools

from samebits.kernels.optimize import StepOptions
from samebits.train import undo
from samebits.train.lazy import coefficient


@functools.lru_cache(maxsize=64)
def sgd_options(
    lr: float, decay: float, momentum: float, nesterov: bool, rounding: str, seed: int
) -> StepOptions:
    """StepOptions of SGD as a roster takes them. Raises InputError."""
    bits = undo.bits_of
    return StepOptions(
        *(False, nesterov, rounding == "stochastic", seed),
        *(*(coefficient(lr, "learning rate") or (0, 0)), bits(lr)),
        *(*(coefficient(decay, "weight decay") or (0, 0)), bits(decay)),
        *(*(coefficient(momentum, "momentum") or (0, 0)), bits(momentum)),
    )


@functools.lru_cache(maxsize=64)
def adam_options(
    lr: float,
    decay: float,
    beta1: float,
    beta2: float,
    eps: float,
    decoupled: bool,
    rounding: str,
    seed: int,
) -> StepOptions:
    """StepOptions of Adam as a roster takes them. Raises InputError."""
    bits = undo.bits_of
    return StepOptions(
        *(True, False, rounding == "stochastic", seed),
        *(*(coefficient(lr, "learning rate") or (0, 0)), bits(lr)),
        *(0, 0, bits(decay), 0, 0, 0, bits(1.0 - beta1) + bits(eps)),
        *(beta1, beta2, 0.0 if decoupled else decay, decay if decoupled else 0.0, eps),
    )
