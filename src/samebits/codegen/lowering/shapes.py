"""Shapes and strides as kernels take them: few axes, the longest runs innermost."""

from __future__ import annotations

import math
from collections.abc import Sequence

from samebits.codegen.lowering.calls import Struct
from samebits.errors import UnsupportedError

MAX_RANK = 8


def contiguous(shape: Sequence[int]) -> list[int]:
    """Row-major strides, in elements."""
    return [math.prod(shape[i + 1 :]) for i in range(len(shape))]


def broadcast_strides(shape: Sequence[int], to: Sequence[int]) -> list[int]:
    """Strides with which a tensor of `shape` is read at the indices of `to`."""
    shape = [1] * (len(to) - len(shape)) + list(shape)
    return [
        0 if size == 1 else stride for size, stride in zip(shape, contiguous(shape), strict=True)
    ]


def collapsed(
    shape: Sequence[int], strides: Sequence[Sequence[int]], where: str
) -> tuple[list[int], list[list[int]]]:
    """The same walk with fewer axes: (sizes, strides of each tensor).

    Axes of size 1 go; neighbours merge where every tensor steps through them evenly, that is where
    the outer stride is the inner one times the inner size. [2, 3, 4] read with strides (12, 4, 1)
    and (24, 8, 2) is [24] with (1) and (2). At least one axis remains. UnsupportedError, which
    `where` begins, for more than MAX_RANK.
    """
    sizes: list[int] = []
    steps: list[list[int]] = [[] for _ in strides]
    for axis, size in enumerate(shape):
        if size == 1:
            continue
        mine = [s[axis] for s in strides]
        if sizes and all(s[-1] == m * size for s, m in zip(steps, mine, strict=True)):
            sizes[-1] *= size
            for s, m in zip(steps, mine, strict=True):
                s[-1] = m
        else:
            sizes.append(size)
            for s, m in zip(steps, mine, strict=True):
                s.append(m)
    if len(sizes) > MAX_RANK:
        raise UnsupportedError(
            f"{where}: expected at most {MAX_RANK} axes that do not merge, found {len(sizes)}"
        )
    if not sizes:
        return [1], [[0] for _ in strides]
    return sizes, steps


def shape_struct(sizes: Sequence[int]) -> Struct:
    """The sizes as C's samebits_shape."""
    return Struct("shape", {"rank": len(sizes), "shape": tuple(sizes)})
