"""Transposed convolution: a Conv2d with its roles swapped, by its kernels (training.md 14.7)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from samebits import kernels
from samebits.errors import UnsupportedError
from samebits.kernels import ConvShape, conv_shape
from samebits.kernels.geometry import MAX_PRODUCTS, MAX_SUMMED, Pair
from samebits.kernels.protocol import BITS, Found, Part
from samebits.kernels.rows import Exponent, along_channels
from samebits.train.operations.linear import as_kernel, check_parameters, of_parameters, of_products
from samebits.train.operations.narrow import as_bfp8
from samebits.train.operations.pointwise import over, sides
from samebits.train.operations.products import (
    by_output,
    for_input,
    of_weight,
)
from samebits.train.shifts import ChannelPeaks
from samebits.train.sums import requantized
from samebits.train.tensor import BFPParameter, BFPTensor, offer
from samebits.train.value import BFPValue, Weight, as_gradient, gradient_in


def _transposed_products(
    x: BFPValue, weight: Weight, bias: Weight | None, shape: ConvShape, peaks: ChannelPeaks | None
) -> BFPValue:
    """Sums of x * weight where a Conv2d of the output would multiply them, + bias.

    x is bfp8, the weight [i, o / groups, kh, kw] its codes W (int8), the bias its joint value J;
    the result is the exact sum, which its use rounds once, to bfp8 or bfp32.
    [n, i, oh, ow] -> [n, o, h, w], of the shape of the Conv2d that goes back.
    """
    size = (shape.n, shape.ci, shape.h, shape.w)
    return of_parameters(_exact, x, weight, bias, shape, peaks, size)


def _at_input(grad: Part, x: Tensor, weight: Weight, shape: ConvShape) -> Part:
    """From the 16-bit gradient."""
    (w, e_w), bits = weight.parts[0], weight.widths.gradients
    h, exponent = gradient_in(bits, *grad)
    acc = by_digits(h, lambda digit: kernels.of(h).conv(digit, as_kernel(w), shape)[0])
    return as_gradient(requantized(acc, exponent + by_output(e_w, 4), bits))


def _at_weight(
    t: Tensor, exponent: Exponent, x: Tensor, up: Tensor | None, weight: Tensor, shape: ConvShape
) -> BFPValue:
    """From the full-width gradient."""
    k, rows = kernels.of(t), x.to(torch.int16)
    acc = by_digits(t, lambda digit: k.conv_weight_grad(rows, digit, shape)[0])
    return of_weight(acc, k.largest_of(acc), weight, _of_weights(exponent, up, shape))


TRANSPOSED_PRODUCTS = of_products("TransposedProducts", _transposed_products, _at_input, _at_weight)


def _exact(
    x: Tensor, e_x: Exponent, shifts: Tensor | None, weight: Weight, shape: ConvShape
) -> Found:
    """The sums [n, o, h, w] of codes x.

    Exponents of samples, of channels by their shifts, and of the weight's rows go into x first: a
    sum is over the rows.
    """
    (w, e_w), k = weight.parts[0], kernels.of(x)
    if isinstance(e_x, int) and isinstance(e_w, int):
        acc, largest = k.conv_input_grad(x.to(torch.int16), as_kernel(w), shape)
        return acc.to(torch.int32), largest, e_x + e_w  # 2**16 products of 8-bit codes
    own = e_x if shifts is None else e_x + along_channels(shifts, 4)
    h, exponent = for_input(x, own, e_w, weight.widths.gradients)
    return *k.conv_input_grad(h, as_kernel(w), shape), exponent


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


def _transposed_convolution(what: str, rank: int) -> Callable[..., BFPTensor]:
    """torch.nn.functional.conv_transpose2d or, of weights of three axes, conv_transpose1d, of a
    module's own parameters."""

    def convolved(
        x: BFPTensor,
        weight: BFPParameter,
        bias: BFPParameter | None = None,
        stride: int | Sequence[int] = 1,
        padding: int | Sequence[int] = 0,
        output_padding: int | Sequence[int] = 0,
        groups: int = 1,
        dilation: int | Sequence[int] = 1,
    ) -> BFPTensor:
        """Raises UnsupportedError for what is no parameter."""
        _check(what, weight, bias, rank, groups)
        by, apart = sides(rank, stride), sides(rank, dilation)
        pad, extra = (sides(rank, size, 0) for size in (padding, output_padding))
        options = (by, pad, extra, groups, apart)
        return over(rank, x, lambda image: conv_transpose2d(image, weight, bias, *options))

    return convolved


def _check(what: str, weight: BFPParameter, bias: Any, rank: int, groups: int) -> None:
    if not isinstance(weight, BFPParameter):
        raise UnsupportedError(
            f"{what}: expected a parameter of a module as weight, found {type(weight).__name__}"
        )
    check_parameters(what, weight, bias, rank, weight.shape[1] * groups)


for _name, _rank in (("conv_transpose2d", 4), ("conv_transpose1d", 3)):
    offer(_transposed_convolution(_name, _rank), _name)
