"""Pooling, addition, concatenation, dropout, embedding and reshaping
(training.md 5 and 7). Every function takes and returns BFP tensors and is differentiable."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor

from samebits import kernels
from samebits.errors import UnsupportedError
from samebits.kernels import Window, rows
from samebits.kernels.geometry import Pair, pair
from samebits.kernels.protocol import Part
from samebits.kernels.rows import Exponent
from samebits.numerics import philox
from samebits.spec import formats
from samebits.train.operations.narrow import as_bfp8
from samebits.train.shifts import largest_shifts, narrowed
from samebits.train.tensor import (
    FUNCTIONS,
    BFPParameter,
    BFPTensor,
    TensorOperation,
    bfp32,
    gradient,
    moved_part,
)

# --- pooling --------------------------------------------------------------------------------


class MaxPool(TensorOperation):
    """Window maxima; saves the one-byte position of each."""

    @staticmethod
    def forward(ctx: Any, x: BFPTensor, window: Window) -> BFPTensor:
        codes = x.codes
        y, where = kernels.of(codes).max_pool(codes, window)
        ctx.save_for_backward(where)
        ctx.shape, ctx.window = codes.shape, window
        return BFPTensor(y, x.exponent, bits=x.bits, shifts=x.shifts)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        g, e_g = gradient(grad)
        (where,) = ctx.saved_tensors
        k = kernels.of(g)
        acc, largest = k.max_pool_grad(g, where, ctx.shape, ctx.window)
        return BFPTensor(*k.shorten(acc, largest, e_g)), None


def max_pool2d(x: BFPTensor, kernel: Pair, stride: Pair, padding: Pair) -> BFPTensor:
    """Window maxima [n, c, h, w] -> [n, c, oh, ow]; at most 255 positions a window.

    Raises UnsupportedError for a larger window, and for one that does not fit.
    """
    window = Window(kernel, stride, padding)
    if window.size > 255:
        raise UnsupportedError(f"max pool: expected at most 255 positions, found window {kernel}")
    _check_window("max pool", x, window)
    return MaxPool.apply(as_bfp8(x, "max pool"), window)


def _check_window(what: str, x: BFPTensor, window: Window) -> None:
    """Every window holds a position of the input, and there is at least one window."""
    if x.dim() != 4 or x.numel() == 0:
        raise UnsupportedError(f"{what}: expected [n, c, h, w], found shape {tuple(x.shape)}")
    size, (kernel, _, padding) = x.shape[2:], window
    padded = any(2 * pad > side for pad, side in zip(padding, kernel, strict=True))
    if padded or min(window.counts(*size)) < 1:
        raise UnsupportedError(
            f"{what}: expected a window that fits into {tuple(size)} with padding of at most half "
            f"its size, found window {kernel}, padding {padding}"
        )


class AveragePool(TensorOperation):
    """Window means: exact sums, one rounding."""

    @staticmethod
    def forward(ctx: Any, x: BFPTensor, window: Window) -> BFPTensor:
        codes = x.codes
        acc, largest = kernels.of(codes).window_sum(codes, window)
        ctx.shape, ctx.window = codes.shape, window
        return narrowed(acc, x.exponent, x.bits, x.shifts, window.size, largest)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        g, e_g = gradient(grad)
        k = kernels.of(g)
        acc, largest = k.window_sum_grad(g, ctx.shape, ctx.window)
        if isinstance(e_g, Tensor):
            rows_up = (30 - rows.bit_length(rows.largest(acc, e_g.shape))).clamp(min=0)
            return bfp32(k.divide(acc << rows_up, ctx.window.size), e_g - rows_up), None
        up = max(0, 30 - largest.bit_length())
        return bfp32(k.divide(acc << up, ctx.window.size), e_g - up), None


def avg_pool2d(x: BFPTensor, kernel: Pair, stride: Pair, padding: Pair) -> BFPTensor:
    """Window means [n, c, h, w] -> [n, c, oh, ow]; padded positions count as zeros.

    Raises UnsupportedError for a window that does not fit.
    """
    window = Window(kernel, stride, padding)
    _check_window("average pool", x, window)
    return AveragePool.apply(as_bfp8(x, "average pool"), window)


def adaptive_avg_pool2d(x: BFPTensor, size: int | Sequence[int | None]) -> BFPTensor:
    """Means of equal parts of channels, [n, c, h, w] -> [n, c, *size]; None keeps a side.

    Raises UnsupportedError where a side of the input is no multiple of that of the output.
    """
    if x.dim() != 4 or x.numel() == 0:
        raise UnsupportedError(f"average pool: expected [n, c, h, w], found {tuple(x.shape)}")
    given = (size, size) if isinstance(size, int) else size
    sides = x.shape[2:]
    wanted = [own if side is None else side for side, own in zip(given, sides, strict=True)]
    if any(side < 1 or own % side for side, own in zip(wanted, sides, strict=True)):
        raise UnsupportedError(
            f"average pool: expected an output size that divides {tuple(sides)}, found "
            f"{tuple(wanted)}"
        )
    kernel = (sides[0] // wanted[0], sides[1] // wanted[1])
    return AveragePool.apply(as_bfp8(x, "average pool"), Window(kernel, kernel, (0, 0)))


def mean(x: BFPTensor, dim: Any = None, keepdim: bool = False) -> BFPTensor:
    """The mean of each channel of [n, c, h, w], as AdaptiveAvgPool2d(1) and flatten give it.

    Raises UnsupportedError for other axes.
    """
    given = [dim] if isinstance(dim, int) else dim or range(x.dim())
    if x.dim() != 4 or sorted(given) not in ([2, 3], [-2, -1], [-2, 3], [-1, 2]):
        raise UnsupportedError(
            f"mean: expected both axes of the images of [n, c, h, w], found axes {dim} of shape "
            f"{tuple(x.shape)}"
        )
    y = adaptive_avg_pool2d(as_bfp8(x, "mean"), 1)
    return y if keepdim else flatten(y, 1)


def _max_pool2d(
    x: BFPTensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> BFPTensor:
    """torch.nn.functional.max_pool2d. Raises UnsupportedError for dilation, ceil_mode, indices."""
    if pair(dilation) != (1, 1) or ceil_mode or return_indices:
        raise UnsupportedError("max pool: expected no dilation, ceil_mode or return_indices")
    return max_pool2d(x, pair(kernel_size), pair(stride or kernel_size), pair(padding))


def _avg_pool2d(
    x: BFPTensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> BFPTensor:
    """torch.nn.functional.avg_pool2d. Raises UnsupportedError for options without a rule."""
    counted = count_include_pad or pair(padding) == (0, 0)
    if ceil_mode or not counted or divisor_override is not None:
        raise UnsupportedError(
            "average pool: expected no ceil_mode or divisor_override, and padding that counts"
        )
    return avg_pool2d(x, pair(kernel_size), pair(stride or kernel_size), pair(padding))


# --- addition and shape ---------------------------------------------------------------------


class Add(TensorOperation):
    """a + b at a common exponent; the gradient goes to both."""

    @staticmethod
    def forward(ctx: Any, a: BFPTensor, b: BFPTensor) -> BFPTensor:
        (u, ea), (v, eb) = (a.codes, a.exponent), (b.codes, b.exponent)
        k, bits = kernels.of(u), max(a.bits, b.bits)
        if (shifts := largest_shifts(a.shifts, b.shifts)) is not None:
            common = _common(u, ea, v, eb)
            acc = k.scale(u, ea - common) + k.scale(v, eb - common)
            return narrowed(acc, common, bits, shifts)
        if isinstance(ea, Tensor) or isinstance(eb, Tensor):
            return BFPTensor(*k.add(u, ea, v, eb, _common(u, ea, v, eb), bits), bits=bits)
        live = [e for codes, e in ((u, ea), (v, eb)) if k.largest_of(codes)]
        if not live:
            return BFPTensor(torch.zeros_like(u), formats.EXPONENT_MIN, bits=bits)
        exponent = max(min(live), max(live) - 22)
        return BFPTensor(*k.add(u, ea, v, eb, exponent, bits), bits=bits)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        part = gradient(grad)
        return BFPTensor(*part), BFPTensor(*part)


def _common(a: Tensor, ea: Exponent, b: Tensor, eb: Exponent) -> Tensor:
    """The exponent at which two operands are added, row by row; rows of zeros do not count."""
    size, none = rows.row_size(a.shape), 1 << 40
    low, high = [], []
    for codes, e in ((a, ea), (b, eb)):
        live = rows.largest(codes, size) > 0
        low.append(torch.where(live, e, none))
        high.append(torch.where(live, e, -none))
    top = torch.maximum(*high)
    return torch.where(top == -none, 0, torch.maximum(torch.minimum(*low), top - 22))


def add(a: Tensor, b: Tensor, *, alpha: int = 1) -> BFPTensor:
    """Residual addition of two tensors of one shape, as bfp8.

    Raises UnsupportedError for float tensors, other shapes, or alpha other than 1.
    """
    if alpha != 1 or not (isinstance(a, BFPTensor) and isinstance(b, BFPTensor)):
        raise UnsupportedError("add: expected two BFP tensors (and alpha = 1)")
    if a.shape != b.shape:
        raise UnsupportedError(
            f"add: expected one shape, found {tuple(a.shape)} and {tuple(b.shape)}"
        )
    return Add.apply(as_bfp8(a, "add"), as_bfp8(b, "add"))


class Concat(TensorOperation):
    """Codes side by side at the largest exponent."""

    @staticmethod
    def forward(ctx: Any, dim: int, *tensors: BFPTensor) -> BFPTensor:
        ctx.dim, ctx.sizes = dim, [t.shape[dim] for t in tensors]
        bits = max(t.bits for t in tensors)
        if any(t.shifts is not None for t in tensors):
            return _concatenated(tensors, dim, bits)
        parts = [t.resolved() for t in tensors]
        if any(isinstance(e, Tensor) for _, e in parts):
            return BFPTensor(*rows.concatenated(parts, dim), bits=bits)
        k = kernels.of(parts[0][0])
        live = [e for codes, e in parts if k.largest_of(codes)]
        exponent = max(live, default=formats.EXPONENT_MIN)
        codes = [k.scale_to(c, min(e - exponent, 0), 8) for c, e in parts]
        return BFPTensor(torch.cat(codes, dim), exponent, bits=bits)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        g, e_g = gradient(grad)
        slices = torch.split(g, ctx.sizes, ctx.dim)
        if isinstance(e_g, Tensor) and e_g.shape[ctx.dim] != 1:
            own: Sequence[Exponent] = torch.split(e_g, ctx.sizes, ctx.dim)
        else:
            own = [e_g] * len(slices)
        return (None, *(BFPTensor(s, e) for s, e in zip(slices, own, strict=True)))


def _concatenated(tensors: Sequence[BFPTensor], dim: int, bits: int) -> BFPTensor:
    """Tensors side by side whose channels have shifts: along the channels all keep their own."""
    rank, dim = tensors[0].dim(), dim % tensors[0].dim()
    if dim != (1 if rank == 4 else rank - 1):  # the channels of all meet
        return BFPTensor(*rows.concatenated([t.resolved() for t in tensors], dim), bits=bits)
    codes, own = rows.concatenated([t.shifted()[:2] for t in tensors], dim)
    every = [
        torch.zeros(t.shape[dim], dtype=torch.int64, device=codes.device)
        if t.shifts is None
        else t.shifts
        for t in tensors
    ]
    shifts = torch.cat(every)
    return BFPTensor(codes, own + rows.along_channels(shifts, rank), bits=bits, shifts=shifts)


def concat(tensors: Sequence[BFPTensor], dim: int = 0) -> BFPTensor:
    """Concatenation at the largest exponent of the inputs that are not all zeros, as bfp8."""
    return Concat.apply(dim, *(as_bfp8(t, "concat") for t in tensors))


class Reshape(TensorOperation):
    """The same codes in another shape."""

    @staticmethod
    def forward(ctx: Any, x: BFPTensor, shape: tuple[int, ...]) -> BFPTensor:
        ctx.shape = x.shape
        return x.moved(lambda codes: codes.reshape(shape))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return BFPTensor(*moved_part(gradient(grad), lambda v: v.reshape(ctx.shape))), None


def reshape(x: BFPTensor, *shape: Any) -> BFPTensor:
    """The same codes in another shape, row-major (PyTorch's order); sizes as torch takes them."""
    sizes = shape[0] if len(shape) == 1 and not isinstance(shape[0], int) else shape
    return Reshape.apply(x, tuple(sizes))


def flatten(x: BFPTensor, start_dim: int = 0, end_dim: int = -1) -> BFPTensor:
    """Dimensions start_dim to end_dim as one."""
    end = end_dim % x.dim()
    start = start_dim % x.dim()
    return reshape(x, (*x.shape[:start], -1, *x.shape[end + 1 :]))


# --- dropout and embedding ------------------------------------------------------------------


class DropoutFunction(TensorOperation):
    """The mask is not stored: the counter-based generator gives it again in the backward pass."""

    @staticmethod
    def forward(ctx: Any, x: BFPTensor, p: float, key: Pair, step: int, shard: int) -> BFPTensor:
        codes = x.codes
        ctx.mask = (p, key, step, shard)
        factors, by = dropout_factors(codes, *ctx.mask)
        return narrowed(codes.long() * factors, x.exponent + by, x.bits, x.shifts)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        g, e_g = gradient(grad)
        factors, by = dropout_factors(g, *ctx.mask)
        return bfp32(g.long() * factors, e_g + by), None, None, None, None


def dropout_factors(like: Tensor, p: float, key: Pair, step: int, shard: int) -> Part:
    """m where an element is kept, 0 where it is dropped, and the exponent x (training.md 5)."""
    words = philox.words(like.numel(), key, step, shard, device=like.device)
    m, x = formats.coefficient(1.0 / (1.0 - p))
    kept = words >= formats.round_real(Fraction(p) * (1 << 32))
    return kept.view(like.shape).long() * m, x


def dropout(x: BFPTensor, p: float, key: Pair, step: int, shard: int) -> BFPTensor:
    """Zero each element with probability p and scale the others by 1 / (1 - p), as bfp8.

    key: (seed, site). p = 0 is the identity.
    """
    x = as_bfp8(x, "dropout")
    return x if p == 0 else DropoutFunction.apply(x, p, key, step, shard)


class EmbeddingFunction(TensorOperation):
    """Rows of W; the gradient of a row is the sum over its uses."""

    @staticmethod
    def forward(ctx: Any, index: Tensor, weight: BFPParameter) -> BFPTensor:
        codes, exponent = weight.parts[0]
        ctx.save_for_backward(index)
        ctx.shape = codes.shape
        own = exponent if isinstance(exponent, int) else exponent[index]
        return BFPTensor(codes[index], own, bits=weight.widths.values)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        g, e_g = gradient(grad)
        (index,) = ctx.saved_tensors
        addends, exponent = g.long(), e_g
        if isinstance(e_g, Tensor):
            addends, exponent = rows.at_one(addends, e_g, 55)
        acc = torch.zeros(ctx.shape, dtype=torch.int64, device=g.device)
        acc.index_add_(0, index.flatten(), addends.reshape(-1, ctx.shape[1]))
        return None, bfp32(acc, exponent)


def embedding(index: Tensor, weight: BFPParameter) -> BFPTensor:
    """Rows of W [count, d] at integer indices [...] -> [..., d].

    Raises UnsupportedError for indices that are no integers or no rows.
    """
    if index.dtype not in (torch.int64, torch.int32):
        raise UnsupportedError(f"embedding: expected integer indices, found {index.dtype}")
    if index.numel() and not (int(index.min()) >= 0 and int(index.max()) < weight.shape[0]):
        raise UnsupportedError(
            f"embedding: expected indices in [0, {weight.shape[0] - 1}], "
            f"found {int(index.min())} to {int(index.max())}"
        )
    return EmbeddingFunction.apply(index, weight)


def add_in_place(a: Tensor, b: Tensor, *, alpha: int = 1) -> BFPTensor:
    """a += b: the sum as a new tensor. The old `a` is used up, so that a lost sum is an error."""
    total = add(a, b, alpha=alpha)
    return a.replaced_by(total) if isinstance(a, BFPTensor) else total


FUNCTIONS.update(
    {
        torch.Tensor.add_: add_in_place,
        torch.add: add,
        torch.Tensor.add: add,
        torch.Tensor.__add__: add,
        torch.Tensor.__radd__: add,
        torch.Tensor.__iadd__: add_in_place,
        torch.cat: concat,
        torch.concat: concat,
        torch.mean: mean,
        torch.Tensor.mean: mean,
        torch.max_pool2d: _max_pool2d,
        torch.nn.functional.max_pool2d: _max_pool2d,
        torch.nn.functional.max_pool2d_with_indices: _max_pool2d,
        torch.nn.functional.avg_pool2d: _avg_pool2d,
        torch.nn.functional.adaptive_avg_pool2d: adaptive_avg_pool2d,
        torch.flatten: flatten,
        torch.Tensor.flatten: flatten,
        torch.Tensor.reshape: reshape,
        torch.reshape: reshape,
        torch.Tensor.view: reshape,
    }
)
