"""Activations, pooling, addition, concatenation, dropout, embedding and reshaping
(training.md 5 and 7). Every function takes and returns BFP tensors and is differentiable."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor

from samebits import kernels
from samebits.errors import UnsupportedError
from samebits.kernels.eager import largest_of, scale, window_sum, window_sum_grad
from samebits.kernels.geometry import window_count
from samebits.numerics import philox
from samebits.spec import formats
from samebits.tables.activation import activation_table
from samebits.train.tensor import FUNCTIONS, BFPParameter, BFPTensor, Operation, Part, gradient

Pair = tuple[int, int]


def bfp32(acc: Tensor, exponent: int) -> BFPTensor:
    """shorten(acc, exponent) as a tensor."""
    k = kernels.of(acc)
    return BFPTensor(*k.shorten(acc, k.largest_of(acc), exponent))


class Narrow(Operation):
    """bfp16 or bfp32 -> bfp8; the gradient passes unchanged."""

    @staticmethod
    def forward(ctx: Any, x: BFPTensor) -> BFPTensor:
        codes, exponent = x.resolved()
        k = kernels.of(codes)
        return BFPTensor(*k.requantize(codes, k.largest_of(codes), exponent, 8))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return BFPTensor(*gradient(grad))


def narrow(x: Tensor, where: str) -> BFPTensor:
    """x as bfp8, which every layer takes; a float tensor is an error that says what to do."""
    if not isinstance(x, BFPTensor):
        raise UnsupportedError(
            f"{where}: expected a BFPTensor, found {type(x).__name__} of {x.dtype}; "
            "quantize the input with BFPTensor.from_real(x)"
        )
    return x if x.bits == 8 else Narrow.apply(x)


# --- activations ----------------------------------------------------------------------------


class Relu(Operation):
    """min(max(x, 0), high) on codes; high = 127 is plain ReLU."""

    @staticmethod
    def forward(ctx: Any, x: BFPTensor, clip: int | None) -> BFPTensor:
        codes, exponent = x.resolved()
        high = 128 if clip is None else clip_code(clip, exponent)
        y = kernels.of(codes).relu(codes, min(high, 127))
        ctx.save_for_backward(y)
        ctx.high = high
        return BFPTensor(y, exponent)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        g, e_g = gradient(grad)
        (y,) = ctx.saved_tensors
        return BFPTensor(kernels.of(g).relu_grad(g, y, ctx.high), e_g), None


def clip_code(clip: int, exponent: int) -> int:
    """The clip value on the grid of an exponent; 128 where no 8-bit code reaches it."""
    return min(formats.round_real(clip / formats.power(exponent)), 128)


def relu(x: BFPTensor) -> BFPTensor:
    """max(x, 0), same exponent."""
    return Relu.apply(x, None)


def relu6(x: BFPTensor) -> BFPTensor:
    """min(max(x, 0), 6 rounded to the input's grid), same exponent."""
    return Relu.apply(x, 6)


class TableActivation(Operation):
    """A correctly rounded table over the 255 codes, requantized to bfp8; so is the derivative."""

    @staticmethod
    def forward(ctx: Any, x: BFPTensor, name: str, slope: float | None) -> BFPTensor:
        codes, exponent = x.resolved()
        table = activation_table(name, exponent, slope)
        entries = torch.tensor(table.codes, dtype=torch.int32, device=codes.device)
        ctx.save_for_backward(codes)
        ctx.table = table
        acc = entries[codes.long() + 127]
        k = kernels.of(acc)
        return BFPTensor(*k.requantize(acc, k.largest_of(acc), table.exponent, 8))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        g, e_g = gradient(grad)
        (codes,) = ctx.saved_tensors
        slopes = torch.tensor(ctx.table.derivative_codes, dtype=torch.int64, device=g.device)
        acc = g.long() * slopes[codes.long() + 127]
        return bfp32(acc, e_g + ctx.table.derivative_exponent), None, None


def activation(x: BFPTensor, name: str, slope: float | None = None) -> BFPTensor:
    """tanh, sigmoid, gelu (erf form), silu or leaky_relu (with its slope), by table."""
    return TableActivation.apply(x, name, slope)


# --- pooling --------------------------------------------------------------------------------


class MaxPool(Operation):
    """Window maxima; saves the one-byte position of each."""

    @staticmethod
    def forward(ctx: Any, x: BFPTensor, kernel: Pair, stride: Pair, padding: Pair) -> BFPTensor:
        codes, exponent = x.resolved()
        y, where = kernels.of(codes).max_pool(codes, kernel, stride, padding)
        ctx.save_for_backward(where)
        ctx.shape, ctx.window = codes.shape, (kernel, stride, padding)
        return BFPTensor(y, exponent)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        g, e_g = gradient(grad)
        (where,) = ctx.saved_tensors
        k = kernels.of(g)
        acc, largest = k.max_pool_grad(g, where, ctx.shape, *ctx.window)
        return BFPTensor(*k.shorten(acc, largest, e_g)), None, None, None


def max_pool2d(x: BFPTensor, kernel: Pair, stride: Pair, padding: Pair) -> BFPTensor:
    """Window maxima [n, c, h, w] -> [n, c, oh, ow]; at most 255 positions a window."""
    if kernel[0] * kernel[1] > 255:
        raise UnsupportedError(f"max pool: expected at most 255 positions, found window {kernel}")
    _check_windows("max pool", x, kernel, stride, padding)
    return MaxPool.apply(x, kernel, stride, padding)


def _check_windows(what: str, x: BFPTensor, kernel: Pair, stride: Pair, padding: Pair) -> None:
    """Every window holds a position of the input, and there is at least one window."""
    if x.dim() != 4 or x.numel() == 0:
        raise UnsupportedError(f"{what}: expected [n, c, h, w], found shape {tuple(x.shape)}")
    for size, window, step, pad in zip(x.shape[2:], kernel, stride, padding, strict=True):
        if 2 * pad > window or window_count(size, window, step, pad) < 1:
            raise UnsupportedError(
                f"{what}: expected a window that fits into {tuple(x.shape[2:])} with padding of at "
                f"most half its size, found window {kernel}, padding {padding}"
            )


class AveragePool(Operation):
    """Window means: exact sums, one rounding."""

    @staticmethod
    def forward(ctx: Any, x: BFPTensor, kernel: Pair, stride: Pair, padding: Pair) -> BFPTensor:
        codes, exponent = x.resolved()
        acc, largest = window_sum(codes, kernel, stride, padding)
        ctx.shape, ctx.window = codes.shape, (kernel, stride, padding)
        k = kernels.of(acc)
        return BFPTensor(*k.requantize(acc, largest, exponent, 8, kernel[0] * kernel[1]))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        g, e_g = gradient(grad)
        k = kernels.of(g)
        acc, largest = window_sum_grad(g, ctx.shape, *ctx.window)
        up = max(0, 30 - largest.bit_length())
        divisor = ctx.window[0][0] * ctx.window[0][1]
        return bfp32(k.divide(acc << up, divisor), e_g - up), None, None, None


def avg_pool2d(x: BFPTensor, kernel: Pair, stride: Pair, padding: Pair) -> BFPTensor:
    """Window means; padded positions count as zeros."""
    _check_windows("average pool", x, kernel, stride, padding)
    return AveragePool.apply(x, kernel, stride, padding)


def global_avg_pool2d(x: BFPTensor) -> BFPTensor:
    """[n, c, h, w] -> [n, c, 1, 1]."""
    if x.dim() != 4 or x.numel() == 0:
        raise UnsupportedError(f"average pool: expected [n, c, h, w], found {tuple(x.shape)}")
    window = (x.shape[2], x.shape[3])
    return AveragePool.apply(x, window, window, (0, 0))


# --- addition and shape ---------------------------------------------------------------------


class Add(Operation):
    """a + b at a common exponent; the gradient goes to both."""

    @staticmethod
    def forward(ctx: Any, a: BFPTensor, b: BFPTensor) -> BFPTensor:
        (u, ea), (v, eb) = a.resolved(), b.resolved()
        live = [e for codes, e in ((u, ea), (v, eb)) if kernels.of(u).largest_of(codes)]
        if not live:
            return BFPTensor(torch.zeros_like(u), formats.EXPONENT_MIN)
        exponent = max(min(live), max(live) - 22)
        return BFPTensor(*kernels.of(u).add(u, ea, v, eb, exponent))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        part = gradient(grad)
        return BFPTensor(*part), BFPTensor(*part)


def add(a: Tensor, b: Tensor, *, alpha: int = 1) -> BFPTensor:
    """Residual addition of two tensors of one shape."""
    if alpha != 1 or not (isinstance(a, BFPTensor) and isinstance(b, BFPTensor)):
        raise UnsupportedError("add: expected two BFP tensors (and alpha = 1)")
    if a.shape != b.shape:
        raise UnsupportedError(
            f"add: expected one shape, found {tuple(a.shape)} and {tuple(b.shape)}"
        )
    return Add.apply(narrow(a, "add"), narrow(b, "add"))


class Concat(Operation):
    """Codes side by side at the largest exponent."""

    @staticmethod
    def forward(ctx: Any, dim: int, *tensors: BFPTensor) -> BFPTensor:
        parts = [t.resolved() for t in tensors]
        live = [e for codes, e in parts if largest_of(codes)]
        exponent = max(live, default=formats.EXPONENT_MIN)
        ctx.dim, ctx.sizes = dim, [codes.shape[dim] for codes, _ in parts]
        codes = [scale(c, min(e - exponent, 0)).to(torch.int8) for c, e in parts]
        return BFPTensor(torch.cat(codes, dim), exponent)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        g, e_g = gradient(grad)
        slices = torch.split(g, ctx.sizes, ctx.dim)
        return (None, *(BFPTensor(s, e_g) for s in slices))


def concat(tensors: Sequence[BFPTensor], dim: int = 0) -> BFPTensor:
    """Concatenation at the largest exponent of the inputs."""
    return Concat.apply(dim, *(narrow(t, "concat") for t in tensors))


class Reshape(Operation):
    """The same codes in another shape."""

    @staticmethod
    def forward(ctx: Any, x: BFPTensor, shape: tuple[int, ...]) -> BFPTensor:
        codes, exponent = x.resolved()
        ctx.shape = codes.shape
        return BFPTensor(codes.reshape(shape), exponent)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        g, e_g = gradient(grad)
        return BFPTensor(g.reshape(ctx.shape), e_g), None


def reshape(x: BFPTensor, *shape: Any) -> BFPTensor:
    """The same codes in another shape, row-major (PyTorch's order)."""
    sizes = shape[0] if len(shape) == 1 and not isinstance(shape[0], int) else shape
    return Reshape.apply(x, tuple(sizes))


def flatten(x: BFPTensor, start_dim: int = 0, end_dim: int = -1) -> BFPTensor:
    """Dimensions start_dim to end_dim as one."""
    end = end_dim % x.dim()
    start = start_dim % x.dim()
    return reshape(x, (*x.shape[:start], -1, *x.shape[end + 1 :]))


# --- dropout and embedding ------------------------------------------------------------------


class Dropout(Operation):
    """The mask is not stored: the counter-based generator gives it again in the backward pass."""

    @staticmethod
    def forward(ctx: Any, x: BFPTensor, p: float, key: Pair, step: int, shard: int) -> BFPTensor:
        codes, exponent = x.resolved()
        ctx.mask = (p, key, step, shard)
        factors, by = dropout_factors(codes, *ctx.mask)
        acc = codes.long() * factors
        k = kernels.of(acc)
        return BFPTensor(*k.requantize(acc, k.largest_of(acc), exponent + by, 8))

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
    """Zero each element with probability p; `key` = (seed, site). p = 0 is the identity."""
    return x if p == 0 else Dropout.apply(x, p, key, step, shard)


class Embedding(Operation):
    """Rows of W; the gradient of a row is the sum over its uses."""

    @staticmethod
    def forward(ctx: Any, index: Tensor, weight: BFPParameter) -> BFPTensor:
        codes, exponent = weight.parts[0]
        ctx.save_for_backward(index)
        ctx.shape = codes.shape
        return BFPTensor(codes[index], exponent)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        g, e_g = gradient(grad)
        (index,) = ctx.saved_tensors
        acc = torch.zeros(ctx.shape, dtype=torch.int64, device=g.device)
        acc.index_add_(0, index.flatten(), g.long().reshape(-1, ctx.shape[1]))
        return None, bfp32(acc, e_g)


def embedding(index: Tensor, weight: BFPParameter) -> BFPTensor:
    """Rows of W [count, d] at integer indices [...] -> [..., d]."""
    if index.dtype not in (torch.int64, torch.int32):
        raise UnsupportedError(f"embedding: expected integer indices, found {index.dtype}")
    if index.numel() and not (int(index.min()) >= 0 and int(index.max()) < weight.shape[0]):
        raise UnsupportedError(
            f"embedding: expected indices in [0, {weight.shape[0] - 1}], "
            f"found {int(index.min())} to {int(index.max())}"
        )
    return Embedding.apply(index, weight)


def add_in_place(a: Tensor, b: Tensor, *, alpha: int = 1) -> BFPTensor:
    """a += b: the sum as a new tensor. The old `a` is used up, so that a lost sum is an error."""
    total = add(a, b, alpha=alpha)
    if isinstance(a, BFPTensor):
        a.parts = ()
    return total


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
        torch.flatten: flatten,
        torch.Tensor.flatten: flatten,
        torch.Tensor.reshape: reshape,
        torch.reshape: reshape,
        torch.Tensor.view: reshape,
        torch.relu: lambda x: relu(narrow(x, "relu")),
        torch.Tensor.relu: lambda x: relu(narrow(x, "relu")),
        torch.nn.functional.relu: lambda x, inplace=False: relu(narrow(x, "relu")),
    }
)
