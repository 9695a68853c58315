"""How a window moves over an image, as the options of an operator say it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from samebits.errors import InputError
from samebits.tflite.schema import SAME, VALID

LARGEST = 2**16  # of a stride, a dilation or a size of a pool's window

Pair = tuple[int, int]
Pads = tuple[int, int, int, int]  # top, left, bottom, right


def pair(options: Mapping[str, Any], name: str) -> Pair:
    """Two positive options, along the height and along the width."""
    high, wide = options[f"{name}_h"], options[f"{name}_w"]
    if not (1 <= high <= LARGEST and 1 <= wide <= LARGEST):
        raise InputError(f"expected a {name} from 1 to {LARGEST}, found {high} x {wide}")
    return high, wide


def image(shape: Sequence[int]) -> tuple[int, int, int, int]:
    """The shape of an image [N, H, W, C]."""
    if len(shape) != 4:
        raise InputError(f"expected an image [N, H, W, C], found {list(shape)}")
    n, h, w, c = shape
    return n, h, w, c


def pads(padding: int, size: Pair, kernel: Pair, strides: Pair, dilations: Pair = (1, 1)) -> Pads:
    """Pads of all ends: with SAME as many as there is to be a window for every stride begun, the
    odd one at the end."""
    if padding not in (SAME, VALID):
        raise InputError(f"expected padding {SAME} or {VALID}, found {padding}")
    if padding == VALID:
        return (0, 0, 0, 0)
    top, left = (
        max((-(-n // s) - 1) * s + (k - 1) * d + 1 - n, 0)
        for n, k, s, d in zip(size, kernel, strides, dilations, strict=True)
    )
    return (top // 2, left // 2, top - top // 2, left - left // 2)
