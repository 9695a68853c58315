"""Training in a number format of the catalogue, emulated in float32, to compare with.

Every product of the network takes operands that were rounded to the format: weights, activations,
and the gradients of the backward pass, each in blocks along the axis over which that product sums.
The sums are float32, as are the stored weights, biases, the optimizer and all other layers. So the
MX and MSFP papers train (Rouhani et al., "Microscaling data formats for deep learning", 2023;
"Pushing the limits of narrow precision inferencing ...", NeurIPS 2020): a tensor of which two
products take part along different axes is rounded once for each, from its float32 values.

The bits of such a run depend on the machine, as those of float32 do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional, grad
from torch.overrides import TorchFunctionMode

from samebits.errors import InputError, NonFiniteError, RangeError, UnsupportedError
from samebits.numerics.catalog import FORMATS, format_named
from samebits.numerics.realise import quantize_real
from samebits.spec.formats import Format

WIDEST = 24  # bits of a code that every float32 holds
Pair = tuple[int, int]


def emulated_formats() -> tuple[str, ...]:
    """The names of the catalogue's formats that can be emulated."""
    return tuple(name for name, fmt in FORMATS.items() if fmt.bits <= WIDEST)


def emulated_format(name: str) -> Format:
    """The format of a name. Raises InputError for an unknown one, and for one above 24 bits, whose
    codes float32 does not hold."""
    fmt = format_named(name)
    if fmt.bits > WIDEST:
        raise InputError(
            f"format {name!r}: expected at most {WIDEST} bits, which float32 holds, found "
            f"{fmt.bits}; choose another format"
        )
    return fmt


def round_along(x: Tensor, fmt: Format, axis: int) -> Tensor:
    """The values of float32 `x` after rounding to `fmt`, in blocks along `axis`, float32.

    `spec.formats` defines them. Raises RangeError where a value is not finite.
    """
    rows = x.movedim(axis, -1).contiguous()
    try:
        values = quantize_real(rows, fmt).dequantize()
    except NonFiniteError as error:
        raise RangeError(
            f"expected finite operands of a product in {fmt.name}, found infinity or NaN"
        ) from error
    return values.to(x.dtype).movedim(-1, axis)


# --- products -------------------------------------------------------------------------------


class _Linear(torch.autograd.Function):
    """x [..., k] times a weight [m, k], plus bias."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, fmt: Format) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.format = fmt
        return functional.linear(round_along(x, fmt, -1), round_along(weight, fmt, -1), bias)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        """Sums over m for x, over all rows for the weight; the bias gradient is no product."""
        (x, weight), fmt = ctx.saved_tensors, ctx.format
        (g,) = grads
        dx = dw = db = None
        g_rows, x_rows = g.reshape(-1, g.shape[-1]), x.reshape(-1, x.shape[-1])
        if ctx.needs_input_grad[0]:
            dx = round_along(g, fmt, -1) @ round_along(weight, fmt, 0)
        if ctx.needs_input_grad[1]:
            dw = round_along(g_rows, fmt, 0).T @ round_along(x_rows, fmt, 0)
        if ctx.needs_input_grad[2]:
            db = g_rows.sum(0)
        return dx, dw, db, None


class _Conv2d(torch.autograd.Function):
    """2-d convolution [n, ci, h, w] -> [n, co, oh, ow].

    Blocks lie along the channels of a group, and along the samples for the weight gradient; a
    block of a kernel's pixels would give one activation different values in different windows.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        sizes: tuple[Pair, Pair, Pair],
        groups: int,
        fmt: Format,
    ) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.sizes, ctx.groups, ctx.format = sizes, groups, fmt
        x, weight = _round_channels(x, groups, fmt), round_along(weight, fmt, 1)
        return functional.conv2d(x, weight, bias, *sizes, groups)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        """Sums over co for x, over samples and pixels for the weight."""
        (x, weight), fmt, groups = ctx.saved_tensors, ctx.format, ctx.groups
        (g,), geometry = grads, (*ctx.sizes, groups)
        dx = dw = db = None
        if ctx.needs_input_grad[0]:
            by_group = weight.unflatten(0, (groups, -1))
            w = round_along(by_group, fmt, 1).flatten(0, 1)
            dx = grad.conv2d_input(x.shape, w, _round_channels(g, groups, fmt), *geometry)
        if ctx.needs_input_grad[1]:
            of_x, of_g = (round_along(v, fmt, 0) for v in (x, g))
            dw = grad.conv2d_weight(of_x, weight.shape, of_g, *geometry)
        if ctx.needs_input_grad[2]:
            db = g.sum((0, 2, 3))
        return dx, dw, db, None, None, None


def _round_channels(x: Tensor, groups: int, fmt: Format) -> Tensor:
    """An image [n, c, h, w] rounded along the channels of every group."""
    return round_along(x.unflatten(1, (groups, -1)), fmt, 2).flatten(1, 2)


def linear(fmt: Format, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`torch.nn.functional.linear` in a format."""
    return _Linear.apply(x, weight, bias, fmt)  # type: ignore[no-untyped-call]


def conv2d(
    fmt: Format,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int] | str = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
) -> Tensor:
    """`torch.nn.functional.conv2d` of a batch, in a format, its arguments named as there.

    Raises UnsupportedError for a single image, and for padding by name.
    """
    if input.dim() != 4 or isinstance(padding, str):
        raise UnsupportedError(
            f"conv2d in {fmt.name}: expected a batch [n, c, h, w] and padding as numbers, found "
            f"{list(input.shape)} and padding {padding!r}"
        )
    sizes = (_pair(stride), _pair(padding), _pair(dilation))
    return _Conv2d.apply(  # type: ignore[no-untyped-call]
        input, weight, bias, sizes, groups, fmt
    )


def _pair(size: int | Sequence[int]) -> Pair:
    return (size, size) if isinstance(size, int) else (size[0], size[-1])


def lstm(
    fmt: Format,
    x: Tensor,
    state: Sequence[Tensor],
    weights: Sequence[Tensor],
    bias: bool,
    layers: int,
    dropout: float,
    training: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """`torch.lstm` in a format, its arguments in torch's order: (output, h_n, c_n).

    Gates and states are float32; the products with x and h are rounded. Raises UnsupportedError
    for packed sequences and for dropout between layers.
    """
    if not isinstance(state, tuple | list) or (dropout and layers > 1):
        raise UnsupportedError(
            f"LSTM in {fmt.name}: expected a padded batch without dropout between layers"
        )
    steps = x.transpose(0, 1) if batch_first else x
    mine: Iterator[Tensor] = iter(weights)
    h_last, c_last = [], []
    for layer in range(layers):
        outputs = []
        for direction in range(1 + bidirectional):
            w_x, w_h = next(mine), next(mine)
            b_x, b_h = (next(mine), next(mine)) if bias else (None, None)
            index = layer * (1 + bidirectional) + direction
            h, c = state[0][index], state[1][index]
            of_x = linear(fmt, steps, w_x, b_x)
            found = []
            for gates in reversed(of_x) if direction else of_x:
                i, f, g, o = (gates + linear(fmt, h, w_h, b_h)).chunk(4, -1)
                c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
                h = torch.sigmoid(o) * torch.tanh(c)
                found.append(h)
            outputs.append(torch.stack(found[::-1] if direction else found))
            h_last.append(h)
            c_last.append(c)
        steps = torch.cat(outputs, -1)
    output = steps.transpose(0, 1) if batch_first else steps
    return output, torch.stack(h_last), torch.stack(c_last)


# --- a network in a format ------------------------------------------------------------------

EMULATED: dict[Any, Callable[..., Any]] = {
    functional.linear: linear,
    torch.conv2d: conv2d,
    torch.lstm: lstm,
}
OTHER_PRODUCTS = {
    *("__matmul__", "__rmatmul__", "matmul", "mm", "bmm", "mv", "dot", "inner", "tensordot"),
    *("addmm", "addmv", "addbmm", "baddbmm", "einsum", "bilinear", "multi_dot", "chain_matmul"),
    *("conv1d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d"),
    *("gru", "rnn_tanh", "rnn_relu", "lstm_cell", "gru_cell", "rnn_tanh_cell", "rnn_relu_cell"),
    *("scaled_dot_product_attention", "multi_head_attention_forward"),
}
"""Functions of torch with products that are not emulated: refused, as to let them compute in
float32 would say nothing about the format."""


class _Products(TorchFunctionMode):
    """Inside the `with` block, products of torch are those of a format."""

    def __init__(self, fmt: Format) -> None:
        super().__init__()
        self._format = fmt

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in EMULATED:
            return EMULATED[func](self._format, *args, **kwargs)
        name = getattr(func, "__name__", "")
        if name in OTHER_PRODUCTS:
            raise UnsupportedError(
                f"{name} in {self._format.name}: expected the products of Linear, Conv2d and LSTM, "
                "which are emulated; replace it, or compare without this format"
            )
        return func(*args, **kwargs)


class Emulated(nn.Module):
    """A float32 network whose products are those of a format, forward and backward.

    It holds `model` itself, and its parameters in their order.
    """

    def __init__(self, model: nn.Module, fmt: Format) -> None:
        super().__init__()
        self.model, self._format = model, fmt

    def forward(self, x: Tensor) -> Tensor:
        """The network's output. Raises RangeError where a product meets infinity or NaN, and
        UnsupportedError for products other than those of Linear, Conv2d and LSTM."""
        with _Products(self._format):
            y: Tensor = self.model(x)
        return y
