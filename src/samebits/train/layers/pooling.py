"""Poolings of images and lines, and their repetition."""

from __future__ import annotations

from typing import Any

from samebits.kernels.geometry import Window
from samebits.train.layers.base import Layer
from samebits.train.operations import pooling
from samebits.train.operations.pointwise import over_lines
from samebits.train.operations.resampling import interpolate
from samebits.train.tensor import BFPTensor


class MaxPool2d(Layer):
    """Window maxima; positions of padding never win."""

    def __init__(self, window: Window) -> None:
        super().__init__()
        self.window = window

    def compute(self, x: BFPTensor) -> BFPTensor:
        return pooling.max_pool2d(x, self.window)


class AvgPool2d(Layer):
    """Window means; positions of padding count as zeros, or not, or sums have a divisor."""

    def __init__(
        self, window: Window, include_pad: bool = True, divisor: int | None = None
    ) -> None:
        super().__init__()
        self.window, self.include_pad, self.divisor = window, include_pad, divisor

    def compute(self, x: BFPTensor) -> BFPTensor:
        return pooling.avg_pool2d(x, self.window, self.include_pad, self.divisor)


class AdaptiveAvgPool2d(Layer):
    """[n, c, h, w] -> [n, c, *size], means of parts that cover the input; None keeps a side."""

    def __init__(self, size: int | tuple[int | None, int | None]) -> None:
        super().__init__()
        self.size = size

    def compute(self, x: BFPTensor) -> BFPTensor:
        return pooling.adaptive_avg_pool2d(x, self.size)


class OverLines(Layer):
    """A pool of lines [n, c, l], which are images of height 1."""

    def __init__(self, pool: Layer) -> None:
        super().__init__()
        self.pool = pool

    def compute(self, x: BFPTensor) -> BFPTensor:
        return over_lines(x, self.pool.compute)


class Upsample(Layer):
    """Lines or images with other sides, whose pixels are repeated or lie between neighbours."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.options = options

    def compute(self, x: BFPTensor) -> BFPTensor:
        return interpolate(x, **self.options)

    def extra_repr(self) -> str:
        """The options, as torch prints them."""
        return ", ".join(f"{key}={v!r}" for key, v in self.options.items() if v is not None)
