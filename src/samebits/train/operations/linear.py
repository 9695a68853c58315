"""Linear layer and convolution: exact sums of 8-bit products (training.md 5 and 7)."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from samebits import kernels
from samebits.errors import UnsupportedError
from samebits.kernels import ConvShape, conv_shape
from samebits.kernels.geometry import Pair
from samebits.spec import formats
from samebits.train.tensor import (
    BFPParameter,
    BFPTensor,
    TensorOperation,
    bfp32,
    gradient,
    gradient_in_16_bits,
    is_wanted,
)


class Products(TensorOperation):
    """x * weight + bias: convolution [n, ci, h, w], or matrix product of rows [n, k].

    x is bfp8, the weight its codes W (int8), the bias its joint value J; the result is bfp8 or
    bfp32, with one rounding after the bias. Rows are the pixels of one image and a matrix is a 1x1
    kernel, so both share the kernels.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: BFPTensor,
        weight: BFPParameter,
        bias: BFPParameter | None,
        shape: ConvShape,
        out_width: int,
    ) -> BFPTensor:
        """[n, ci, h, w] -> [n, co, oh, ow], or [n, k] -> [n, m]."""
        (codes, e_x), (w, e_w) = x.resolved(), weight.parts[0]
        k = kernels.of(codes)
        ctx.save_for_backward(codes, w)
        ctx.exponents, ctx.shape = (e_x, e_w), shape
        acc, largest = k.conv(as_image(codes), as_kernel(w), shape)
        exponent = e_x + e_w
        if bias is not None:
            e_b = bias.exponent - formats.DELAYED_BITS
            acc, largest, exponent = k.with_bias(
                acc, largest, exponent, bias.codes, bias.delayed, e_b
            )
        if out_width == 32:
            acc, exponent = k.shorten(acc, largest, exponent)
        else:
            acc, exponent = k.requantize(acc, largest, exponent, 8)
        return BFPTensor(as_input(acc, codes), exponent)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        """Input gradient from the 16-bit gradient, weight gradient from the full-width one."""
        codes, e_g = gradient(grad)
        x, w = ctx.saved_tensors
        (e_x, e_w), shape = ctx.exponents, ctx.shape
        k, g = kernels.of(codes), as_image(codes)
        dx = dw = db = None
        if ctx.needs_input_grad[0] and is_wanted("input"):
            g16, e_16 = gradient_in_16_bits(g, e_g)
            acc, largest = k.conv_input_grad(g16, as_kernel(w), shape)
            acc, exponent = k.requantize(acc, largest, e_16 + e_w, 16)
            dx = BFPTensor(as_input(acc, x), exponent)
        if ctx.needs_input_grad[1] and is_wanted("weight"):
            dw = weight_gradient(g, as_image(x), shape, w, e_g + e_x)
        if ctx.needs_input_grad[2] and is_wanted("weight"):
            db = bfp32(k.channel_sum(g), e_g)
        return dx, dw, db, None, None


def weight_gradient(
    g: Tensor, x: Tensor, shape: ConvShape, weight: Tensor, exponent: int
) -> BFPTensor:
    """The weight gradient of images g and x as bfp32 in the shape of a weight, with its bound."""
    k = kernels.of(g)
    acc, largest = k.conv_weight_grad(g, x, shape)
    codes, exponent = k.shorten(acc, largest, exponent)
    codes = codes.view(weight.shape) if weight.dim() == 2 else codes
    return BFPTensor(codes, exponent, min(largest, formats.Q32))


def as_image(rows: Tensor) -> Tensor:
    """[n, k] as an image of n pixels [1, k, 1, n], without a copy of dense rows."""
    return rows if rows.dim() == 4 else rows.contiguous()[None, None].permute(0, 3, 1, 2)


def as_kernel(matrix: Tensor) -> Tensor:
    """[m, k] as a 1x1 kernel."""
    return matrix if matrix.dim() == 4 else matrix[:, :, None, None]


def as_input(image: Tensor, like: Tensor) -> Tensor:
    """The inverse of `as_image` where `like` is rows."""
    return image if like.dim() == 4 else image.permute(0, 2, 3, 1)[0, 0]


def conv2d(
    x: BFPTensor,
    weight: BFPParameter,
    bias: BFPParameter | None = None,
    stride: Pair = (1, 1),
    padding: Pair = (0, 0),
    dilation: Pair = (1, 1),
    groups: int = 1,
    out_width: int = 8,
) -> BFPTensor:
    """2-d convolution [n, ci, h, w] -> [n, co, oh, ow]; `out_width` 8, or 32 before a loss.

    Raises UnsupportedError where a shape or a bound of its sums does not fit.
    """
    shape = conv_shape(tuple(x.shape), tuple(weight.shape), stride, padding, dilation, groups)
    return Products.apply(x, weight, bias, shape, out_width)


def linear(
    x: BFPTensor, weight: BFPParameter, bias: BFPParameter | None = None, out_width: int = 8
) -> BFPTensor:
    """Matrix product [n, k] -> [n, m] with a weight [m, k]; `out_width` 8, or 32 before a loss."""
    n, k = x.shape
    if n < 1:
        raise UnsupportedError(f"expected at least one row, found an empty batch {(n, k)}")
    shape = conv_shape((1, k, 1, n), (*weight.shape, 1, 1))
    return Products.apply(x, weight, bias, shape, out_width)
