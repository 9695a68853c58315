"""Windows of images: how a kernel moves over one, and how many positions it meets."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from samebits.ir.integer.define import expect
from samebits.ir.ops import Array, Attributes, window_count

Pads = tuple[int, int, int, int]
SPATIAL = {"strides": (1, 1), "pads": (0, 0, 0, 0), "dilations": (1, 1)}


def image_shape(value: Any) -> tuple[int, int, int, int]:
    """(N, H, W, C) of an image."""
    expect(len(value.shape) == 4, "an image [N, H, W, C]", list(value.shape))
    n, h, w, c = value.shape
    return n, h, w, c


def window(
    attributes: Attributes, kernel: tuple[int, int]
) -> tuple[tuple[int, int], Pads, tuple[int, int]]:
    """Strides, pads and dilations of an operator, checked."""
    strides, pads, dilations = (attributes[k] for k in ("strides", "pads", "dilations"))
    lengths = (len(strides), len(pads), len(dilations), len(kernel))
    expect(lengths == (2, 4, 2, 2), "2 strides, 4 pads, 2 dilations and a 2-d kernel", lengths)
    expect(min(strides) >= 1 and min(dilations) >= 1, "strides and dilations >= 1", attributes)
    expect(min(pads) >= 0 and min(kernel) >= 1, "pads >= 0 and a kernel >= 1", attributes)
    return strides, pads, dilations


def output_size(
    size: tuple[int, int], kernel: tuple[int, int], attributes: Attributes
) -> list[int]:
    """[OH, OW]: how many windows an image of a size has."""
    strides, pads, dilations = window(attributes, kernel)
    return [
        window_count(size[i], kernel[i], strides[i], pads[i] + pads[i + 2], dilations[i])
        for i in (0, 1)
    ]


def taps(x: Array, kernel: tuple[int, int], attributes: Attributes, outside: int) -> Array:
    """Every window of an image [N, H, W, C] -> [N, OH, OW, KH, KW, C]; `outside` fills the pads."""
    strides, (top, left, bottom, right), dilations = window(attributes, kernel)
    padded = np.pad(x, ((0, 0), (top, bottom), (left, right), (0, 0)), constant_values=outside)
    spans = [d * (k - 1) + 1 for d, k in zip(dilations, kernel, strict=True)]
    view = np.lib.stride_tricks.sliding_window_view(padded, spans, axis=(1, 2))
    view = view[:, :: strides[0], :: strides[1], :, :: dilations[0], :: dilations[1]]
    return view.transpose(0, 1, 2, 4, 5, 3)


def window_counts(size: tuple[int, int], attributes: Attributes) -> Array:
    """Positions inside the image per window, [OH, OW]; what `balance` needs."""
    ones = np.ones((1, *size, 1), np.int64)
    return taps(ones, attributes["kernel"], attributes, 0).sum((0, 3, 4, 5))


def balance_factors(size: tuple[int, int], attributes: Attributes) -> tuple[Array, int]:
    """(L / count per window [OH, OW], L): L is the least common multiple of the counts."""
    counts = window_counts(size, attributes)
    expect(int(counts.min()) >= 1, "windows that touch the image", "a window in the padding")
    common = math.lcm(*{int(c) for c in counts.flat})
    expect(common < 1 << 31, "window counts whose multiple is below 2**31", common)
    return common // counts, common
