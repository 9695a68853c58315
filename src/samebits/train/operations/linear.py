"""Linear layer and convolution: exact sums of 8-bit products (training.md 5 and 7)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from samebits import kernels
from samebits.errors import UnsupportedError
from samebits.kernels import ConvShape, conv_shape
from samebits.kernels.geometry import Pair
from samebits.kernels.protocol import Found, Part
from samebits.kernels.rows import Exponent
from samebits.train.operation import OperationCall, TrainingOperation
from samebits.train.operations.addition import add
from samebits.train.operations.broadcast import constant
from samebits.train.operations.matmul import product
from samebits.train.operations.narrow import as_bfp8
from samebits.train.operations.pointwise import over, reshape, sides
from samebits.train.operations.products import (
    arriving,
    bias_gradient,
    by_output,
    check_kind,
    for_input,
    for_weight,
    weight_gradient,
)
from samebits.train.operations.windows import by_windows
from samebits.train.shifts import ChannelPeaks, exact
from samebits.train.tensor import BFPParameter, BFPTensor, offer
from samebits.train.value import BFPValue, Weight


def _products(
    x: BFPValue, weight: Weight, bias: Weight | None, shape: ConvShape, peaks: ChannelPeaks | None
) -> BFPValue:
    """x * weight + bias: convolution [n, ci, h, w], or matrix product of rows [n, k].

    x is bfp8, the weight its codes W (int8), the bias its joint value J; the result is the exact
    sum, which its use rounds once, to bfp8 or bfp32. Rows are the pixels of one image and a matrix
    is a 1x1 kernel, so both share the kernels.
    """
    image = (shape.n, shape.co, shape.oh, shape.ow)
    size = image if x.dim() == 4 else (x.shape[0], shape.co)
    return of_parameters(_exact, x, weight, bias, shape, peaks, size)


def _at_input(grad: Part, x: Tensor, weight: Weight, shape: ConvShape) -> Part:
    """From the 16-bit gradient."""
    (w, e_w), bits = weight.parts[0], weight.widths.gradients
    g16, exponent = for_input(*grad, e_w, bits)
    operands = as_image(g16), as_kernel(w), shape, exponent, bits
    image, own = kernels.of(w).input_gradient(*operands)
    return as_input(image, x), own


def _at_weight(
    t: Tensor, exponent: Exponent, x: Tensor, up: Tensor | None, weight: Tensor, shape: ConvShape
) -> BFPValue:
    """From the full-width gradient."""
    exponent = exponent + by_channel(up, shape)
    return weight_gradient(as_image(t), as_image(x), shape, weight, exponent)


def of_products(name: str, forward: Any, at_input: Any, at_weight: Any) -> TrainingOperation:
    """A product with parameters, and its gradients by x, weight and bias."""

    def gradient(call: OperationCall, grad: BFPValue) -> tuple[BFPValue | None, ...]:
        x, weight, _, shape, _ = call.arguments
        (g, e_g), (codes, e_x, up) = arriving(grad.resolved(), weight), x.shifted()
        dx = dw = db = None
        if call.wanted[0]:
            dx = BFPValue(*at_input((g, e_g), codes, weight, shape))
        if call.wanted[1]:
            dw = at_weight(*for_weight(g, e_g, e_x), codes, up, weight.parts[0][0], shape)
        if call.wanted[2]:
            db = bias_gradient(g, e_g)
        return dx, dw, db

    return TrainingOperation(name, forward, gradient, reads=("x", "w"))


PRODUCTS = of_products("Products", _products, _at_input, _at_weight)


def of_parameters(
    exact_sums: Callable[..., Found],
    x: BFPValue,
    weight: Weight,
    bias: Weight | None,
    shape: ConvShape,
    peaks: ChannelPeaks | None,
    size: tuple[int, ...],
) -> BFPValue:
    """The sums that a function gives of x and a weight, with a bias, as a value of a size.

    peaks: of the output's channels, which have shifts by them (training.md 12.4).
    """
    check_kind(x, weight)
    operands = *x.shifted(), weight, shape
    states = [weight] if bias is None else [weight, bias]
    versions = [state.versions() for state in states]

    def sums() -> Found:
        """The sums, also once more. Raises UnsupportedError where the parameters have changed."""
        if [state.versions() for state in states] != versions:
            raise UnsupportedError(
                "the 32-bit value of this product with a weight is gone: a layer took it as "
                "codes, and the weights have changed since; read it, or compute its loss, before "
                "the update"
            )
        found = exact_sums(*operands)
        return found if bias is None else kernels.of(found[0]).with_bias(*found, bias.state())

    made = exact(sums, weight.widths.values, x.by_rows, weight.device, peaks)
    return BFPValue.of_sums(made, size)


def _exact(
    x: Tensor, e_x: Exponent, shifts: Tensor | None, weight: Weight, shape: ConvShape
) -> Found:
    """The sums [n, co, oh, ow] of codes x, those of rows [n, k] as rows again, [n, co].

    shifts: of the channels of x, on top of the exponents.
    """
    w, e_w = weight.parts[0]
    acc, largest = _sums(as_image(x), as_kernel(w), shape, shifts)
    return as_input(acc, x), largest, e_x + by_output(e_w, x.dim())


def _sums(x: Tensor, w: Tensor, shape: ConvShape, shifts: Tensor | None) -> tuple[Tensor, int]:
    """A convolution, and its largest magnitude (0 where channels have shifts: it is not needed).

    Channels of one shift are one convolution, whose sums are shifted and added: |acc| is at most
    2**12 times that of 8-bit codes, below 2**42.
    """
    k = kernels.of(x)
    if shifts is None:
        return k.conv(x, w, shape)
    acc = torch.zeros((shape.n, shape.co, shape.oh, shape.ow), dtype=torch.int64, device=x.device)
    for shift in torch.unique(shifts).tolist():
        own = shifts == shift
        if shape.groups == 1:
            ci = int(own.sum())
            part = k.conv(x[:, own], w[:, own], replace(shape, ci=ci))[0]
        else:
            part = k.conv(x * own.view(1, -1, 1, 1), w, shape)[0]
        acc += part.long() << shift
    return acc, 0


def by_channel(shifts: Tensor | None, shape: ConvShape) -> Tensor | int:
    """Shifts of input channels as they meet a weight [co, ci/groups * kh * kw]; 0 for None."""
    if shifts is None:
        return 0
    own = shifts.view(shape.groups, -1).repeat_interleave(shape.kh * shape.kw, 1)
    return own.repeat_interleave(shape.co // shape.groups, 0)


def as_image(rows: Tensor) -> Tensor:
    """[n, k] as an image of n pixels [1, k, 1, n], without a copy of dense rows."""
    return rows if rows.dim() == 4 else rows.contiguous()[None, None].permute(0, 3, 1, 2)


def as_kernel(weight: Tensor) -> Tensor:
    """[m, k] as a 1x1 kernel, [co, ci, k] as one of height 1."""
    if weight.dim() == 3:
        return weight[:, :, None]
    return weight if weight.dim() == 4 else weight[:, :, None, None]


def as_input(image: Tensor, like: Tensor) -> Tensor:
    """The inverse of `as_image` where `like` is rows."""
    return image if like.dim() == 4 else as_rows(image)


def as_rows(image: Tensor) -> Tensor:
    """The pixels of an image [1, m, 1, n] as rows [n, m]."""
    return image.permute(0, 2, 3, 1)[0, 0]


def conv2d(
    x: BFPTensor,
    weight: BFPParameter,
    bias: BFPParameter | None = None,
    stride: Pair = (1, 1),
    padding: Pair = (0, 0),
    dilation: Pair = (1, 1),
    groups: int = 1,
    peaks: ChannelPeaks | None = None,
) -> BFPTensor:
    """2-d convolution [n, ci, h, w] -> [n, co, oh, ow], exact sums; [co, ci, k] has height 1.

    peaks: of the output's channels, which have shifts by them (training.md 12.4). Raises
    UnsupportedError where a shape or a bound of its sums does not fit.
    """
    size = tuple(weight.shape)
    size = size if len(size) == 4 else (*size[:2], 1, *size[2:])
    shape = conv_shape(tuple(x.shape), size, stride, padding, dilation, groups)
    return PRODUCTS(as_bfp8(x, "conv2d"), weight, bias, shape, peaks)


def linear(
    x: BFPTensor,
    weight: BFPParameter,
    bias: BFPParameter | None = None,
    peaks: ChannelPeaks | None = None,
) -> BFPTensor:
    """Matrix product [..., k] -> [..., m] with a weight [m, k], exact sums; peaks as `conv2d`."""
    if x.dim() != 2:
        flat = linear(reshape(x, (-1, x.shape[-1])), weight, bias, peaks)
        return reshape(flat, (*x.shape[:-1], -1))
    n, k = x.shape
    if n < 1:
        raise UnsupportedError(f"expected at least one row, found an empty batch {(n, k)}")
    shape = conv_shape((1, k, 1, n), (*weight.shape, 1, 1))
    return PRODUCTS(as_bfp8(x, "linear"), weight, bias, shape, peaks)


def _linear(x: BFPTensor, weight: Tensor, bias: Any = None) -> BFPTensor:
    """torch.nn.functional.linear of a module's own parameters, or of other tensors as weight."""
    if isinstance(weight, BFPParameter):
        own = bias if bias is None or isinstance(bias, BFPParameter) else None
        check_parameters("linear", weight, own, 2)
        y = linear(x, weight, own)
        return y if own is bias else add(y, bias)
    if x.dim() != 2:
        flat = _linear(reshape(x, (-1, x.shape[-1])), weight, bias)
        return reshape(flat, (*x.shape[:-1], -1))
    y = product(x, constant(weight, x, "linear"), transposed=True)
    return y if bias is None else add(y, bias)


def _convolution(what: str, rank: int) -> Callable[..., BFPTensor]:
    """torch.nn.functional.conv2d or, of weights of three axes, conv1d, of a module's own
    parameters; the former of another tensor as weight too."""

    def convolved(
        x: BFPTensor,
        weight: BFPParameter,
        bias: BFPParameter | None = None,
        stride: int | Sequence[int] = 1,
        padding: int | Sequence[int] = 0,
        dilation: int | Sequence[int] = 1,
        groups: int = 1,
    ) -> BFPTensor:
        """Raises UnsupportedError for what is no parameter, and for padding by name."""
        by_numbers = not isinstance(padding, str)
        if rank < 4 or isinstance(weight, BFPParameter) or not by_numbers:
            _check_convolution(what, weight, bias, padding, rank)
        sizes = sides(rank, stride), sides(rank, padding, 0), sides(rank, dilation)
        if not isinstance(weight, BFPParameter):
            return by_windows(x, weight, bias, *sizes, groups)
        return over(rank, x, lambda image: conv2d(image, weight, bias, *sizes, groups))

    return convolved


def _check_convolution(what: str, weight: Any, bias: Any, padding: Any, rank: int) -> None:
    if not isinstance(weight, BFPParameter) or isinstance(padding, str):
        raise UnsupportedError(
            f"{what}: expected a parameter of a module as weight, and padding as numbers, found "
            f"{type(weight).__name__} and {padding!r}"
        )
    check_parameters(what, weight, bias, rank)


def check_parameters(
    what: str, weight: BFPParameter, bias: Any, rank: int, outputs: int | None = None
) -> None:
    """The shapes of layers; outputs: as many as the weight has rows. Raises UnsupportedError."""
    size = (weight.shape[0] if outputs is None else outputs,)
    if weight.dim() != rank or not (
        bias is None or (isinstance(bias, BFPParameter) and bias.shape == size)
    ):
        found = "none" if bias is None else f"{type(bias).__name__} {tuple(bias.shape)}"
        raise UnsupportedError(
            f"{what}: expected a weight of {rank} axes, and a parameter with an element for each "
            f"output as bias, found {tuple(weight.shape)} and {found}; add another bias to the "
            "result"
        )


offer(_linear, "linear")
for _name, _rank in (("conv2d", 4), ("conv1d", 3)):
    offer(_convolution(_name, _rank), _name)
