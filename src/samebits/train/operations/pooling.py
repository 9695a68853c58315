"""Maxima and means over windows of images (training.md 5 and 7). Every function takes and returns
BFP tensors and is differentiable."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from samebits import kernels
from samebits.errors import UnsupportedError
from samebits.kernels import Window
from samebits.kernels.averages import Averages, adaptive_averages, window_averages
from samebits.kernels.geometry import Pair, pair
from samebits.train.operation import OperationCall, TrainingOperation
from samebits.train.operations.narrow import as_bfp8
from samebits.train.operations.pointwise import line, over_lines
from samebits.train.shifts import narrowed
from samebits.train.tensor import BFPTensor, offer
from samebits.train.value import BFPValue


def _maxima(x: BFPValue, window: Window) -> tuple[BFPValue, tuple[Tensor]]:
    """Window maxima; saves the one-byte position of each."""
    codes = x.codes
    y, where = kernels.of(codes).max_pool(codes, window)
    return BFPValue(y, x.exponent, x.bits, shifts=x.shifts), (where,)


def _maxima_gradient(call: OperationCall, grad: BFPValue) -> BFPValue:
    x, window = call.arguments
    (where,) = call.saved
    g, e_g = grad.resolved()
    k = kernels.of(g)
    acc, largest = k.max_pool_grad(g, where, x.shape, window)
    return BFPValue(*k.shorten(acc, largest, e_g))


MAX_POOL = TrainingOperation("MaxPool", _maxima, _maxima_gradient, saves=True)


def max_pool2d(x: BFPTensor, window: Window) -> BFPTensor:
    """Window maxima [n, c, h, w] -> [n, c, oh, ow]; at most 255 positions a window.

    Raises UnsupportedError for a larger window, and for one that does not fit.
    """
    if window.size > 255:
        raise UnsupportedError(
            f"max pool: expected at most 255 positions, found window {window.kernel}"
        )
    _check_window("max pool", x, window)
    return MAX_POOL(as_bfp8(x, "max pool"), window)


def _check_image(what: str, x: BFPTensor) -> None:
    if x.dim() != 4 or x.numel() == 0:
        raise UnsupportedError(f"{what}: expected [n, c, h, w], found shape {tuple(x.shape)}")


def _check_window(what: str, x: BFPTensor, window: Window) -> None:
    """Every window holds a position of the input, and there is at least one window."""
    _check_image(what, x)
    size, kernel, padding = x.shape[2:], window.kernel, window.padding
    padded = any(2 * pad > side for pad, side in zip(padding, kernel, strict=True))
    if padded or min(window.counts(*size)) < 1:
        raise UnsupportedError(
            f"{what}: expected a window that fits into {tuple(size)} with padding of at most half "
            f"its size, found window {kernel}, padding {padding}"
        )


def _means(x: BFPValue, means: Averages) -> BFPValue:
    """Window means: exact sums, one rounding."""
    acc, largest = kernels.of(x.codes).window_sums(x.codes, means)
    return narrowed(acc, x.exponent, x.bits, x.shifts, means.common, largest)


def _means_gradient(call: OperationCall, grad: BFPValue) -> BFPValue:
    x, means = call.arguments
    g, e_g = grad.resolved()
    k = kernels.of(g)
    acc, largest = k.window_sums_grad(g, x.shape, means)
    bits = 30 + means.common.bit_length() - means.largest.bit_length()
    return BFPValue(*k.divided(acc, largest, e_g, means.common, bits))


AVERAGE_POOL = TrainingOperation("AveragePool", _means, _means_gradient)


def avg_pool2d(
    x: BFPTensor, window: Window, include_pad: bool = True, divisor: int | None = None
) -> BFPTensor:
    """Window means [n, c, h, w] -> [n, c, oh, ow].

    include_pad: whether padded positions count, as zeros. divisor: what sums are divided by instead
    of the number of positions. Raises UnsupportedError for a window that does not fit, a divisor
    below 1, and windows of so many sizes that their exact sums have no room.
    """
    _check_window("average pool", x, window)
    if divisor is not None and divisor < 1:
        raise UnsupportedError(f"average pool: expected a divisor of at least 1, found {divisor}")
    means = window_averages(window, *x.shape[2:], include_pad, divisor)
    return AVERAGE_POOL(as_bfp8(x, "average pool"), means)


def adaptive_avg_pool2d(x: BFPTensor, size: int | Sequence[int | None]) -> BFPTensor:
    """Means of parts of channels, [n, c, h, w] -> [n, c, *size]; None keeps a side.

    Parts overlap, or repeat, where a side of the input is no multiple of that of the output. Raises
    UnsupportedError for an empty output, and parts of so many sizes that their exact sums have no
    room.
    """
    _check_image("average pool", x)
    given = (size, size) if isinstance(size, int) else size
    height, width = x.shape[2:]
    own = [side if s is None else s for side, s in zip((height, width), given, strict=True)]
    if min(own) < 1:
        raise UnsupportedError(
            f"average pool: expected an output size of at least 1, found {tuple(own)}"
        )
    means = adaptive_averages(height, width, *own)
    return AVERAGE_POOL(as_bfp8(x, "average pool"), means)


def _adaptive_avg_pool1d(x: BFPTensor, output_size: int | Sequence[int]) -> BFPTensor:
    """torch.nn.functional.adaptive_avg_pool1d."""
    return over_lines(x, lambda image: adaptive_avg_pool2d(image, line(output_size)))


def _window(kernel_size: Any, stride: Any, padding: Any, ceil_mode: bool) -> Window:
    kernel: Pair = pair(kernel_size)
    return Window(kernel, pair(stride or kernel_size), pair(padding), ceil_mode)


def _max_pool2d(
    x: BFPTensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> BFPTensor:
    """torch.nn.functional.max_pool2d. Raises UnsupportedError for dilation and indices."""
    if pair(dilation) != (1, 1) or return_indices:
        raise UnsupportedError("max pool: expected no dilation or return_indices")
    return max_pool2d(x, _window(kernel_size, stride, padding, ceil_mode))


def _avg_pool2d(
    x: BFPTensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> BFPTensor:
    """torch.nn.functional.avg_pool2d."""
    window = _window(kernel_size, stride, padding, ceil_mode)
    return avg_pool2d(x, window, count_include_pad, divisor_override)


def _of_lines(pool: Callable[..., BFPTensor]) -> Callable[..., BFPTensor]:
    """The pool of lines that a pool of images is for images of height 1."""
    signature, sizes = inspect.signature(pool), ("kernel_size", "stride", "padding", "dilation")

    @functools.wraps(pool)
    def pooled(*args: Any, **options: Any) -> BFPTensor:
        given = signature.bind(*args, **options).arguments
        for name in sizes:
            if given.get(name):
                given[name] = line(given[name], int(name != "padding"))
        return over_lines(given.pop("x"), lambda image: pool(image, **given))

    return pooled


offer(_max_pool2d, "max_pool2d", "max_pool2d_with_indices")
offer(_avg_pool2d, "avg_pool2d")
offer(adaptive_avg_pool2d, "adaptive_avg_pool2d")
offer(_of_lines(_max_pool2d), "max_pool1d", "functional.max_pool1d_with_indices")
offer(_of_lines(_avg_pool2d), "avg_pool1d")
offer(_adaptive_avg_pool1d, "adaptive_avg_pool1d")
