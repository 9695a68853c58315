"""Samples as small pictures in a page: images as they are, recordings as what was heard of them."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from PIL import Image

from samebits.data import Dataset

Array = np.ndarray[Any, Any]
SIDE = 96  # pixels of a picture's longer side at most


@dataclass(frozen=True)
class Shown:
    """png: its picture, as base64; alt: what it shows; lines: about it, the first one large."""

    png: str
    alt: str
    lines: Sequence[str]


@dataclass(frozen=True)
class Gallery:
    """A block: samples with their pictures."""

    kind: ClassVar[str] = "samples"
    items: Sequence[Shown]


def picture_of(data: Dataset, sample: int) -> str | None:
    """A test sample as a PNG in base64; None for one that is neither image nor recording.

    Of an image of other than three channels the first is shown; numbers that are no codes, and
    features of recordings, from their least to their largest.
    """
    stored = data.test_images[sample].numpy()
    if stored.ndim == 2:  # [T, F]: time to the right, high bands above
        picture = _levels(stored.T[::-1])
    elif stored.ndim == 3:
        if stored.dtype != np.uint8:
            stored = _levels(stored)
        elif data.peak != 255:
            stored = (stored.astype(np.int64) * 255 // max(data.peak, 1)).astype(np.uint8)
        picture = stored.transpose(1, 2, 0) if len(stored) == 3 else stored[0]
    else:
        return None
    image = Image.fromarray(np.ascontiguousarray(picture))
    image.thumbnail((SIDE, SIDE))
    text = io.BytesIO()
    image.save(text, "png")
    return base64.b64encode(text.getvalue()).decode()


def _levels(numbers: Array) -> Array:
    """Numbers as levels of grey."""
    reals = numbers.astype(np.float64)
    low, high = reals.min(), reals.max()
    span = high - low if high > low else 1.0
    return np.rint((reals - low) / span * 255).astype(np.uint8)
