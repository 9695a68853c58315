"""Linear layer and convolution: exact sums of 8-bit products (training.md 5 and 7)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from samebits import kernels
from samebits.kernels import ConvShape, conv_shape
from samebits.numerics import exact
from samebits.train.tensor import BFPParameter, BFPTensor, Part


def gradient(grad: Tensor) -> Part:
    """(codes, exponent) of an incoming gradient."""
    if not isinstance(grad, BFPTensor):
        raise TypeError(
            "expected a BFP gradient, found a float tensor: use samebits.train losses and layers"
        )
    return grad.resolved()


def with_bias(k: Any, acc: Tensor, largest: int, exponent: int, bias: BFPParameter) -> Any:
    """(acc, largest, exponent) with the bias added at a common exponent that leaves it 30 bits."""
    value, e_b = bias.joint()
    length = int(value.abs().max()).bit_length()
    if length == 0:
        return acc, largest, exponent
    common = max(exponent, e_b + length - 30)
    scaled = k.scale(value, e_b - common)
    acc, largest = k.add_bias(acc, exponent - common, scaled)
    return acc, largest, common


class Convolution(torch.autograd.Function):
    """x (bfp8 [n, ci, h, w]) * weight W (int8 [co, ci/groups, kh, kw]) + bias J -> bfp8 or bfp32."""

    @staticmethod
    def forward(
        ctx: Any,
        x: BFPTensor,
        weight: BFPParameter,
        bias: BFPParameter | None,
        shape: ConvShape,
        out_width: int,
    ) -> BFPTensor:
        (codes, e_x), (w, e_w) = x.resolved(), weight.parts[0]
        k = kernels.of(codes)
        ctx.save_for_backward(codes, w)
        ctx.exponents, ctx.shape, ctx.weight_version = (e_x, e_w), shape, w._version
        acc, largest = k.conv(codes, w, shape)
        exponent = e_x + e_w
        if bias is not None:
            acc, largest, exponent = with_bias(k, acc, largest, exponent, bias)
        if out_width == 32:
            return BFPTensor(*k.shorten(acc, largest, exponent))
        return BFPTensor(*k.requantize(acc, largest, exponent, 8))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:  # type: ignore[override]
        g, e_g = gradient(grad)
        codes, w = ctx.saved_tensors
        (e_x, e_w), shape = ctx.exponents, ctx.shape
        k = kernels.of(g)
        dx = dw = db = None
        if ctx.needs_input_grad[0]:
            g16, e_16 = (g, e_g)
            if g.dtype == torch.int32:
                g16, e_16 = k.requantize(g, k.largest_of(g), e_g, 16)
            acc, largest = k.conv_input_grad(g16, w, shape)
            dx = BFPTensor(*k.requantize(acc, largest, e_16 + e_w, 16))
        if ctx.needs_input_grad[1]:
            acc, largest = k.conv_weight_grad(g, codes, shape)
            dw = BFPTensor(*k.shorten(acc, largest, e_g + e_x), min(largest, exact.Q32))
        if ctx.needs_input_grad[2]:
            total = k.channel_sum(g)
            db = BFPTensor(*k.shorten(total, k.largest_of(total), e_g))
        return dx, dw, db, None, None


def conv2d(
    x: BFPTensor,
    weight: BFPParameter,
    bias: BFPParameter | None = None,
    stride: tuple[int, int] = (1, 1),
    padding: tuple[int, int] = (0, 0),
    dilation: tuple[int, int] = (1, 1),
    groups: int = 1,
    out_width: int = 8,
) -> BFPTensor:
    """2-d convolution [n, ci, h, w] -> [n, co, oh, ow]; `out_width` 8, or 32 before a loss."""
    shape = conv_shape(tuple(x.shape), tuple(weight.shape), stride, padding, dilation, groups)
    return Convolution.apply(x, weight, bias, shape, out_width)


class MatrixProduct(torch.autograd.Function):
    """x (bfp8 [n, k]) * weight^T (int8 [m, k]) + bias: a 1x1 convolution over n pixels."""

    @staticmethod
    def forward(
        ctx: Any,
        x: BFPTensor,
        weight: BFPParameter,
        bias: BFPParameter | None,
        out_width: int,
    ) -> BFPTensor:
        (codes, e_x), (w, e_w) = x.resolved(), weight.parts[0]
        shape = conv_shape((1, codes.shape[1], 1, codes.shape[0]), (*w.shape, 1, 1))
        inner = _Inner(ctx)
        out = Convolution.forward(
            inner, BFPTensor(_pixels(codes), e_x), _as_kernel(weight), bias, shape, out_width
        )
        ctx.save_for_backward(*inner.saved)
        ctx.exponents, ctx.shape = inner.exponents, shape
        return BFPTensor(_unpixels(out.parts[0][0]), out.parts[0][1])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:  # type: ignore[override]
        g, e_g = gradient(grad)
        dx, dw, db, *_ = Convolution.backward(ctx, BFPTensor(_pixels(g), e_g))
        if dx is not None:
            dx = BFPTensor(_unpixels(dx.parts[0][0]), dx.parts[0][1])
        if dw is not None:
            codes, exponent = dw.parts[0]
            dw = BFPTensor(codes.flatten(1), exponent, dw.bounds[0])
        return dx, dw, db, None


class _Inner:
    """Collects what the convolution would save, so that the matrix product can save it itself."""

    def __init__(self, ctx: Any) -> None:
        self.needs_input_grad = ctx.needs_input_grad

    def save_for_backward(self, *tensors: Tensor) -> None:
        self.saved = tensors


def _pixels(rows: Tensor) -> Tensor:
    """[n, k] as an image of n pixels [1, k, 1, n], without a copy of dense rows."""
    return rows.contiguous()[None, None].permute(0, 3, 1, 2)


def _unpixels(image: Tensor) -> Tensor:
    return image.permute(0, 2, 3, 1)[0, 0]


def _as_kernel(weight: BFPParameter) -> BFPParameter:
    codes, exponent = weight.parts[0]
    return BFPParameter(codes[:, :, None, None], exponent, weight.delayed, False)


def linear(
    x: BFPTensor, weight: BFPParameter, bias: BFPParameter | None = None, out_width: int = 8
) -> BFPTensor:
    """[..., k] -> [..., m]; `out_width` 8, or 32 before a loss."""
    from samebits.train.pointwise import reshape

    if x.dim() == 2:
        return MatrixProduct.apply(x, weight, bias, out_width)
    flat = reshape(x, (-1, x.shape[-1]))
    out = MatrixProduct.apply(flat, weight, bias, out_width)
    return reshape(out, (*x.shape[:-1], weight.shape[0]))
