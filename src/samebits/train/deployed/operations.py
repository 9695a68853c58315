"""The deployed operations: 8-bit codes of a frozen exponent (docs/spec/training.md section 11).

Each takes the frozen exponent of its site (None where it rounds nothing) and the arguments of the
training operation it stands for, and gives codes and their exponent.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from samebits import kernels
from samebits.errors import UnsupportedError
from samebits.kernels import ConvShape
from samebits.kernels.eager import divide, window_sum
from samebits.spec import formats
from samebits.tables.expression import Variable, apply
from samebits.tables.transfer import transfer_table
from samebits.train.deployed import lstm
from samebits.train.operations import normalization, pointwise
from samebits.train.operations.indexing import Indexed, Permute
from samebits.train.operations.linear import Products, as_image, as_input, as_kernel
from samebits.train.operations.lstm import Lstm
from samebits.train.operations.pointwise import Pair
from samebits.train.tensor import BFPParameter, BFPTensor, Operation, Part, times_power

MAX_WINDOW = 1 << 23  # positions averaged


def saturate(value: Tensor, exponent: int) -> Tensor:
    """sat8(rne(value * 2**exponent)) as int8, of integers below 2**53 or of reals.

    float64 holds such a value exactly, a product with a power of two changes no bit of it, and
    torch.round takes ties to even.
    """
    scaled = torch.round(times_power(value.double(), exponent))
    return scaled.clamp(-128, 127).to(torch.int8)


def bias_codes(bias: BFPParameter | None, exponent: int, channels: int) -> list[int]:
    """rne(J_b * 2**(e_b - exponent)), one per output channel."""
    if bias is None:
        return [0] * channels
    joint, e_b = bias.joint()
    return [formats.scaled(j, e_b - exponent) for j in joint.tolist()]


def products(
    site: int | None,
    x: BFPTensor,
    weight: BFPParameter,
    bias: BFPParameter | None,
    shape: ConvShape,
    out_width: int,
) -> Part:
    """Linear and Conv2d: exact sums with the bias on their grid; int32 where `site` is None."""
    (codes, e_x), (w, e_w) = x.resolved(), weight.parts[0]
    exponent = e_x + e_w
    offsets = bias_codes(bias, exponent, shape.co)
    sums = (w.long().abs().flatten(1).sum(1) * 128).tolist()
    reach = max(s + abs(b) for s, b in zip(sums, offsets, strict=True))
    if reach >= 1 << 31:
        raise UnsupportedError(
            "expected sums that fit 32 bits (128 * sum of |weight| + |bias| < 2**31 in every "
            f"output channel), found {reach}: its bias is too large for the scale of its weights"
        )
    acc, _ = kernels.of(codes).conv(as_image(codes), as_kernel(w), shape)
    acc = acc.long() + torch.tensor(offsets, device=acc.device).view(1, -1, 1, 1)
    if site is None:
        return as_input(acc.to(torch.int32), codes), exponent
    return as_input(saturate(acc, exponent - site), codes), site


def batch_norm(
    site: int,
    x: BFPTensor,
    gamma: BFPParameter,
    beta: BFPParameter,
    running_mean: Tensor,
    running_var: Tensor,
    training: bool,
    momentum: float,
    eps: float,
) -> Part:
    """One multiply-add a channel, by the running statistics."""
    z, e_z = x.resolved()
    m, b, exponent = normalization.frozen_affine(gamma, beta, running_mean, running_var, eps, e_z)
    channels = (1, -1, *([1] * (z.dim() - 2)))
    acc = z * m.to(z.device).view(channels) + b.to(z.device).view(channels)
    return saturate(acc, exponent - site), site


def relu(site: None, x: BFPTensor, clip: int | None) -> Part:
    """min(max(x, 0), the clip value on the grid of x)."""
    codes, exponent = x.resolved()
    high = 127 if clip is None else min(pointwise.clip_code(clip, exponent), 127)
    return codes.clamp(0, high), exponent


def table(site: int, x: BFPTensor, name: str, slope: float | None) -> Part:
    """A correctly rounded table over the 256 codes."""
    codes, exponent = x.resolved()
    table = torch.tensor(activation_codes(name, slope, exponent, site), dtype=torch.int8)
    return table.to(codes.device)[codes.long() + 128], site


def max_pool(site: None, x: BFPTensor, kernel: Pair, stride: Pair, padding: Pair) -> Part:
    """Window maxima."""
    codes, exponent = x.resolved()
    return kernels.of(codes).max_pool(codes, kernel, stride, padding)[0], exponent


def average_pool(site: int, x: BFPTensor, kernel: Pair, stride: Pair, padding: Pair) -> Part:
    """Window means, padded positions counted as zeros."""
    codes, exponent = x.resolved()
    count = kernel[0] * kernel[1]
    if count > MAX_WINDOW:
        raise UnsupportedError(
            f"average pool: expected at most {MAX_WINDOW} positions, found window {kernel}"
        )
    acc, _ = window_sum(codes, kernel, stride, padding)
    # |acc| <= 2**30 and count <= 2**23: beyond these shifts every quotient but 0 saturates, or
    # every quotient is 0; within them int64 holds both terms.
    shift = min(max(exponent - site, -32), 31)
    mean = divide(acc << max(shift, 0), count << max(-shift, 0))
    return mean.clamp(-128, 127).to(torch.int8), site


def add(site: int, a: BFPTensor, b: BFPTensor) -> Part:
    """a + b, rounded once."""
    (u, e_u), (v, e_v) = a.resolved(), b.resolved()
    if e_u < e_v:
        u, e_u, v, e_v = v, e_v, u, e_u
    shift = min(e_u - e_v, 40)
    low = v.long()
    if e_u - e_v > 40:
        # What lies below 2**-33 of a nonzero u decides by its sign alone on which side of a
        # rounding threshold the sum is; its magnitude counts where u is 0.
        low = low.sign()
    codes = saturate((u.long() << shift) + low, e_u - shift - site)
    return torch.where(u == 0, saturate(v, e_v - site), codes), site


def concat(site: int, dim: int, *tensors: BFPTensor) -> Part:
    """Side by side, each rounded to the common exponent."""
    parts = [t.resolved() for t in tensors]
    return torch.cat([saturate(codes, e - site) for codes, e in parts], dim), site


def narrow(site: int, x: BFPTensor) -> Part:
    """A 32-bit value as 8 bits."""
    codes, exponent = x.resolved()
    return saturate(codes, exponent - site), site


def reshape(site: None, x: BFPTensor, shape: tuple[int, ...]) -> Part:
    """The same codes in another shape."""
    codes, exponent = x.resolved()
    return codes.reshape(shape), exponent


def permute(site: None, x: BFPTensor, order: tuple[int, ...]) -> Part:
    """The same codes, the axes in another order."""
    codes, exponent = x.resolved()
    return codes.permute(order), exponent


def indexed(site: None, x: BFPTensor, index: tuple[Any, ...]) -> Part:
    """Some of the codes."""
    codes, exponent = x.resolved()
    return codes[index], exponent


def activation_codes(name: str, slope: float | None, e_x: int, site: int) -> tuple[int, ...]:
    """sat8(rne(f(j * 2**e_x) / 2**site)) for j = -128 to 127; the slope rounded to binary32."""
    x = Variable()
    if name == "leaky_relu":
        f = apply("LeakyRelu", x, alpha=slope)
    elif name == "silu":
        f = apply("Mul", x, apply("Sigmoid", x))
    else:
        f = apply(name.capitalize(), x)
    source, target = ((formats.power(exponent), 0, -128, 127) for exponent in (e_x, site))
    return transfer_table(f, source, target).codes


@dataclass(frozen=True)
class Rule:
    """The deployed form of a training operation.

    frozen: (exponent of its site or None, *arguments) -> codes and exponent
    rounds: whether it is a site
    chosen: arguments -> the output in training and the exponent to freeze, where that is not the
            output's
    """

    frozen: Callable[..., Part]
    rounds: Callable[[tuple[Any, ...]], bool]
    chosen: Callable[..., tuple[BFPTensor, int | None]] | None = None


def _always(arguments: tuple[Any, ...]) -> bool:
    return True


def _never(arguments: tuple[Any, ...]) -> bool:
    return False


RULES: dict[type[Operation], Rule] = {
    Products: Rule(products, lambda arguments: arguments[-1] == 8),
    normalization.BatchNorm: Rule(batch_norm, _always),
    pointwise.Relu: Rule(relu, _never),
    pointwise.TableActivation: Rule(table, _always),
    pointwise.MaxPool: Rule(max_pool, _never),
    pointwise.AveragePool: Rule(average_pool, _always),
    pointwise.Add: Rule(add, _always),
    pointwise.Concat: Rule(concat, _always),
    pointwise.Narrow: Rule(narrow, _always),
    pointwise.Reshape: Rule(reshape, _never),
    Permute: Rule(permute, _never),
    Indexed: Rule(indexed, _never),
    Lstm: Rule(lstm.lstm, _always, lstm.chosen),
}


def rule_of(operation: type[Operation]) -> Rule:
    """The deployed form of an operation; UnsupportedError if it has none."""
    rule = RULES.get(operation)
    if rule is None:
        raise UnsupportedError(
            f"{operation.__name__} cannot be deployed: expected linear, convolution, batch norm, "
            "relu, activations, pooling, add, cat, reshape, permute, indexing or LSTM"
        )
    return rule
