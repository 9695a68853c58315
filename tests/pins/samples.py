"""Inputs and weights of pins, from counters alone: no generator of torch or numpy, no libm."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from samebits.data.dataset import Dataset
from samebits.numerics import philox

Array = np.ndarray[Any, Any]
SEED = 1729


def integers(site: int, shape: tuple[int, ...], low: int, high: int) -> Array:
    """int64 in low .. high, from (site, element)."""
    words = philox.words(math.prod(shape), (SEED, site)).numpy()
    return (low + words % (high - low + 1)).reshape(shape)


def fractions(site: int, shape: tuple[int, ...], bits: int, exponent: int) -> Array:
    """float32 multiples of 2**exponent with signed codes of so many bits. Few bits, so that sums of
    products are exact in binary64, in whatever order a machine adds."""
    half = 1 << (bits - 1)
    return (integers(site, shape, -half, half - 1) * 2.0**exponent).astype(np.float32)


def image_data(site: int, shape: tuple[int, int, int], train: int, test: int) -> Dataset:
    """8-bit images of 4 classes: noise, brighter in the rows of the class."""
    labels = torch.arange(train + test) % 4
    rows = shape[1] // 4
    codes = torch.from_numpy(integers(site, (train + test, *shape), 0, 127))
    for label in range(4):
        codes[labels == label, :, label * rows : (label + 1) * rows] += 100
    return _split(codes.to(torch.uint8), labels, train)


def sequence_data(site: int, shape: tuple[int, int], train: int, test: int) -> Dataset:
    """16-bit sequences of 4 classes: noise, shifted by the class."""
    labels = torch.arange(train + test) % 4
    codes = torch.from_numpy(integers(site, (train + test, *shape), -12000, 12000))
    codes += (labels * 9000 - 13500)[:, None, None]
    return _split(codes.to(torch.int16), labels, train)


def _split(samples: torch.Tensor, labels: torch.Tensor, train: int) -> Dataset:
    names = ("a", "b", "c", "d")
    return Dataset(samples[:train], labels[:train], samples[train:], labels[train:], names)


def recording(site: int, count: int) -> Array:
    """int16: a triangle wave whose pitch and level change, with noise, silence and clipping."""
    n = np.arange(count)
    wave = np.abs(n * (5 + n // 400) % 400 - 200) - 100
    level = (n // 300 * 37) % 400
    noise = integers(site, (count,), -200, 200)
    return np.clip(np.where(n // 900 % 4 == 3, 0, wave * level + noise), -32768, 32767).astype(
        np.int16
    )
