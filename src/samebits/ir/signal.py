"""Signals and noise: sums of squares with the same bits everywhere, and their ratio in decibels."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from samebits.ir.real.functions import total

Array = np.ndarray[Any, Any]


def sqnr(signal: float, noise: float) -> float | None:
    """Signal-to-noise ratio in dB; None without noise."""
    if noise == 0:
        return None
    return 10 * math.log10(signal / noise) if signal else -math.inf


def finite(data: Any) -> Any:
    """Plain data for JSON: None where a number is not finite."""
    if isinstance(data, dict):
        return {key: finite(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return type(data)(map(finite, data))
    return None if isinstance(data, float) and not math.isfinite(data) else data


def power(arrays: Iterable[Array]) -> float:
    """The sum of squares of all elements, added in one order: the same bits everywhere."""
    found = 0.0
    for array in arrays:
        flat = np.asarray(array, np.float64).reshape(-1)
        found += float(total(flat * flat, (0,))[0])
    return found


def away(targets: Iterable[Array], made: Iterable[Array]) -> float:
    """The power of the difference between targets and what was made instead."""
    return power(np.asarray(x, np.float64) - y for x, y in zip(targets, made, strict=True))


def ratio(targets: Sequence[Array], made: Sequence[Array]) -> float | None:
    """The signal-to-noise ratio in dB of what was made instead of the targets."""
    return sqnr(power(targets), away(targets, made))
