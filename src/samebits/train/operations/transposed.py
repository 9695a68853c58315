"""Transposed convolution: a Conv2d with its roles swapped, by its kernels (training.md 14.7)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from samebits import kernels
from samebits.errors import UnsupportedError
from samebits.kernels import ConvShape, conv_shape
from samebits.kernels.geometry import MAX_PRODUCTS, MAX_SUMMED, Pair, pair
from samebits.kernels.protocol import BITS
from samebits.kernels.rows import Exponent, along_channels
from samebits.spec import formats
from samebits.train.operation import OperationCall, TrainingOperation
from samebits.train.operations.linear import as_kernel, check_parameters, sums_of
from samebits.train.operations.narrow import as_bfp8
from samebits.train.operations.pointwise import over_lines
from samebits.train.operations.products import (
    bias_gradient,
    by_output,
    check_kind,
    for_input,
    for_weight,
    of_weight,
)
from samebits.train.shifts import ChannelPeaks
from samebits.train.tensor import FUNCTIONS, BFPParameter, BFPTensor
from samebits.train.value import BFPValue, Weight, as_gradient, gradient_in, requantized


def _transposed_products(
    x: BFPValue, weight: Weight, bias: Weight | None, shape: ConvShape, peaks: ChannelPeaks | None
) -> BFPValue:
    """Sums of x * weight where a Conv2d of the output would multiply them, + bias.

    x is bfp8, the weight [i, o / groups, kh, kw] its codes W (int8), the bias its joint value J;
    the result is the exact sum, which its use rounds once, to bfp8 or bfp32.
    [n, i, oh, ow] -> [n, o, h, w], of the shape of the Conv2d that goes back.
    """
    check_kind(x, weight)
    codes, e_x, up = x.shifted()
    sums = sums_of(
        lambda: exact_sums(codes, e_x, weight, bias, shape, up), weight, bias, peaks, x.by_rows
    )
    return BFPValue.of_sums(sums, (shape.n, shape.ci, shape.h, shape.w))


def _transposed_gradient(call: OperationCall, grad: BFPValue) -> tuple[BFPValue | None, ...]:
    """Input gradient from the 16-bit gradient, weight gradient from the full-width one."""
    x, weight, _, shape, _ = call.arguments
    (g, e_g), (codes, e_x, up), (w, e_w) = grad.resolved(), x.shifted(), weight.parts[0]
    k, bits = kernels.of(g), weight.widths.gradients
    dx = dw = db = None
    if call.wanted[0]:
        h, exponent = gradient_in(bits, g, e_g)
        acc = by_digits(h, lambda digit: k.conv(digit, as_kernel(w), shape)[0])
        part = requantized(acc, exponent + by_output(e_w, 4), bits)
        dx = BFPValue(*as_gradient(part))
    if call.wanted[1]:
        t, exponent = for_weight(g, e_g, e_x)
        rows = codes.to(torch.int16)
        acc = by_digits(t, lambda digit: k.conv_weight_grad(rows, digit, shape)[0])
        dw = of_weight(acc, k.largest_of(acc), w, _of_weights(exponent, up, shape))
    if call.wanted[2]:
        db = bias_gradient(g, e_g)
    return dx, dw, db


TRANSPOSED_PRODUCTS = TrainingOperation(
    "TransposedProducts", _transposed_products, _transposed_gradient, reads=("x", "w")
)


def exact_sums(
    x: Tensor,
    e_x: Exponent,
    weight: Weight,
    bias: Weight | None,
    shape: ConvShape,
    shifts: Tensor | None,
) -> tuple[Tensor, int, Exponent]:
    """(sums [n, o, h, w], their largest magnitude, exponent) of codes x, with the bias.

    Exponents of samples, of channels by their shifts, and of the weight's rows go into x first: a
    sum is over the rows.
    """
    w, e_w = weight.parts[0]
    k = kernels.of(x)
    exponent: Exponent
    if isinstance(e_x, int) and isinstance(e_w, int):
        acc, largest = k.conv_input_grad(x.to(torch.int16), as_kernel(w), shape)
        acc, exponent = acc.to(torch.int32), e_x + e_w  # 2**16 products of 8-bit codes
    else:
        own = e_x if shifts is None else e_x + along_channels(shifts, 4)
        h, exponent = for_input(x, own, e_w, weight.widths.gradients)
        acc, largest = k.conv_input_grad(h, as_kernel(w), shape)
    if bias is None:
        return acc, largest, exponent
    e_b = bias.whole()[1] - formats.DELAYED_BITS
    return k.with_bias(acc, largest, exponent, bias.codes, bias.delayed, e_b)


def by_digits(codes: Tensor, sums: Callable[[Tensor], Tensor]) -> Tensor:
    """Sums of products with codes of 16 or 32 bits, from those with their base-256 digits: int64.

    A code is 2 or 4 digits in [-128, 127] (training.md 1).
    """
    rest, total = codes.long(), torch.zeros((), dtype=torch.int64, device=codes.device)
    for place in range(BITS[codes.dtype] // 8):
        above = (rest + 128) >> 8
        digit = (rest - (above << 8)).to(torch.int8)
        total, rest = total + (sums(digit).long() << (8 * place)), above
    return total


def _of_weights(exponent: Exponent, shifts: Tensor | None, s: ConvShape) -> Exponent:
    """Exponents [o, 1] of outputs, and shifts of inputs, as those of weights [i, weights]."""
    if isinstance(exponent, int):
        return exponent
    outputs = exponent.view(s.groups, -1).repeat_interleave(s.kh * s.kw, 1)
    own = outputs.repeat_interleave(s.co // s.groups, 0)
    return own if shifts is None else own + shifts.view(-1, 1)


def conv_transpose2d(
    x: BFPTensor,
    weight: BFPParameter,
    bias: BFPParameter | None = None,
    stride: Pair = (1, 1),
    padding: Pair = (0, 0),
    output_padding: Pair = (0, 0),
    groups: int = 1,
    dilation: Pair = (1, 1),
    peaks: ChannelPeaks | None = None,
) -> BFPTensor:
    """2-d transposed convolution [n, i, h, w] -> [n, o, oh, ow], exact sums.

    weight: [i, o / groups, kh, kw], or [i, o / groups, k] of height 1. peaks: as `linear.conv2d`.
    Raises UnsupportedError where a shape or a bound of its sums does not fit.
    """
    size = tuple(weight.shape)
    size = size if len(size) == 4 else (*size[:2], 1, *size[2:])
    if x.dim() != 4 or x.shape[1] != size[0]:
        raise UnsupportedError(
            f"transposed convolution: expected [n, {size[0]}, h, w], found {tuple(x.shape)}"
        )
    if any(more >= step for more, step in zip(output_padding, stride, strict=True)):
        raise UnsupportedError(
            f"transposed convolution: expected an output_padding below the stride {stride}, found "
            f"{output_padding}"
        )
    products = size[0] // groups * size[2] * size[3]
    if products > MAX_PRODUCTS:
        raise UnsupportedError(
            f"sum of {products} products: expected at most {MAX_PRODUCTS}, the length for which "
            "32-bit accumulation is exact; split the layer"
        )
    sides = (
        (x.shape[2 + a] - 1) * stride[a]
        - 2 * padding[a]
        + dilation[a] * (size[2 + a] - 1)
        + output_padding[a]
        + 1
        for a in (0, 1)
    )
    y = (x.shape[0], size[1] * groups, *sides)
    if min(y) < 1:
        raise UnsupportedError(
            f"transposed convolution: expected padding that leaves an output, found {padding} and "
            f"an output {y}"
        )
    if (positions := y[0] * y[2] * y[3]) > MAX_SUMMED:
        raise UnsupportedError(
            f"bias gradient over {positions} positions: expected at most {MAX_SUMMED}; use smaller "
            "shards"
        )
    shape = conv_shape(y, size, stride, padding, dilation, groups)
    return TRANSPOSED_PRODUCTS(as_bfp8(x, "conv_transpose2d"), weight, bias, shape, peaks)


def _conv_transpose2d(
    x: BFPTensor,
    weight: BFPParameter,
    bias: BFPParameter | None = None,
    stride: int | Pair = 1,
    padding: int | Pair = 0,
    output_padding: int | Pair = 0,
    groups: int = 1,
    dilation: int | Pair = 1,
) -> BFPTensor:
    """torch.nn.functional.conv_transpose2d of a module's own parameters."""
    _check("conv_transpose2d", weight, bias, 4, groups)
    sizes = (pair(stride), pair(padding), pair(output_padding))
    return conv_transpose2d(x, weight, bias, *sizes, groups, pair(dilation))


def _conv_transpose1d(
    x: BFPTensor,
    weight: BFPParameter,
    bias: BFPParameter | None = None,
    stride: int | tuple[int] = 1,
    padding: int | tuple[int] = 0,
    output_padding: int | tuple[int] = 0,
    groups: int = 1,
    dilation: int | tuple[int] = 1,
) -> BFPTensor:
    """torch.nn.functional.conv_transpose1d of a module's own parameters."""
    _check("conv_transpose1d", weight, bias, 3, groups)
    along = (pair(v)[0] for v in (stride, padding, output_padding, dilation))
    by, pad, extra, dilated = along
    return over_lines(
        x,
        lambda image: conv_transpose2d(
            image, weight, bias, (1, by), (0, pad), (0, extra), groups, (1, dilated)
        ),
    )


def _check(what: str, weight: BFPParameter, bias: Any, rank: int, groups: int) -> None:
    if not isinstance(weight, BFPParameter):
        raise UnsupportedError(
            f"{what}: expected a parameter of a module as weight, found {type(weight).__name__}"
        )
    check_parameters(what, weight, bias, rank, weight.shape[1] * groups)


FUNCTIONS.update(
    {
        functional.conv_transpose2d: _conv_transpose2d,
        torch.conv_transpose2d: _conv_transpose2d,
        functional.conv_transpose1d: _conv_transpose1d,
        torch.conv_transpose1d: _conv_transpose1d,
    }
)
