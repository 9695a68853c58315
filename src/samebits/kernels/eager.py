"""The torch realisation of the training kernels: any device, no compiler.

Sums of products run as float64 matrix products of integers. Every partial sum is an integer below
2**53, so float64 holds it exactly in any order (bounds at each call); all else is int64.
Every function equals `samebits.spec.formats` bit for bit. Shapes are PyTorch's (NCHW); memory
order is free. `largest` is max|acc|, handed along so that a tensor is not scanned twice.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from samebits.kernels import softmax
from samebits.kernels.geometry import ConvShape, requantize_shift, shorten_shift, window_count
from samebits.spec import formats

Acc = tuple[Tensor, int]  # integers and their largest magnitude
CODE_TYPE = {8: torch.int8, 16: torch.int16, 32: torch.int32}
BITS = {torch.int8: 8, torch.int16: 16, torch.int32: 32}


def largest_of(v: Tensor) -> int:
    """max|v| (0 for an empty tensor)."""
    if v.numel() == 0:
        return 0
    low, high = torch.aminmax(v)
    return max(-int(low), int(high))


def scale(v: Tensor, exponent: int) -> Tensor:
    """rne(v * 2**exponent) in int64; the caller knows that a left shift fits."""
    v = v.long()
    if exponent >= 0:
        return v << exponent
    right = min(-exponent, 63)  # |v| <= 2**62: at 63 and beyond everything rounds to 0
    quotient, twice = v >> right, v >> (right - 1)
    inexact = (twice << (right - 1)) != v
    return quotient + (twice & (inexact | quotient) & 1)


def scale_to(v: Tensor, exponent: int, bits: int) -> Tensor:
    """rne(v * 2**exponent) as codes of 8, 16 or 32 bits; the caller knows that they fit."""
    return scale(v, exponent).to(CODE_TYPE[bits])


def divide(v: Tensor, divisor: Tensor | int) -> Tensor:
    """rne(v / divisor) in int64, divisor > 0."""
    v = v.long()
    quotient = torch.div(v, divisor, rounding_mode="floor")
    rest = v - quotient * divisor
    twice = 2 * rest
    return quotient + ((twice > divisor) | ((twice == divisor) & ((quotient & 1) == 1)))


def requantize(
    acc: Tensor, largest: int, exponent: int, bits: int, divisor: int = 1
) -> tuple[Tensor, int]:
    """`exact.requantize`: acc * 2**exponent / divisor as bfp8 or bfp16."""
    if largest == 0:
        return torch.zeros_like(acc, dtype=CODE_TYPE[bits]), formats.EXPONENT_MIN
    shift = requantize_shift(largest, exponent, bits, divisor)
    if divisor == 1:
        codes = scale(acc, -shift)
    elif shift < 0:
        codes = divide(acc.long() << -shift, divisor)
    else:
        codes = divide(acc, divisor << shift)
    return codes.to(CODE_TYPE[bits]), exponent + shift


def shorten(acc: Tensor, largest: int, exponent: int) -> tuple[Tensor, int]:
    """`exact.shorten`: bfp32, shifted right only as far as it must be."""
    if largest == 0:
        return torch.zeros_like(acc, dtype=torch.int32), formats.EXPONENT_MIN
    shift = shorten_shift(largest)
    if shift == 0:
        return acc.to(torch.int32), exponent
    return scale(acc, -shift).to(torch.int32), exponent + shift


def align(codes: Tensor, exponent: int) -> Tensor:
    """rne(codes * 2**exponent) of bfp16 or bfp32 codes as int32; exponent <= 0."""
    return scale(codes, exponent).to(torch.int32)


def resolve(parts: list[tuple[Tensor, int]]) -> tuple[Tensor, int]:
    """`exact.resolve`: the sum of gradient parts, aligned to the largest exponent."""
    if len(parts) == 1:
        return parts[0]
    live = [part for part in parts if largest_of(part[0])]
    if not live:
        return shorten(parts[0][0], 0, 0)
    exponent = max(e for _, e in live)
    total = scale(live[0][0], live[0][1] - exponent)
    for codes, e in live[1:]:
        total = total + scale(codes, e - exponent)
    return shorten(total, largest_of(total), exponent)


# --- convolution and matrix product ---------------------------------------------------------


def _columns(x: Tensor, s: ConvShape) -> Tensor:
    """[n, groups, ci/groups * kh * kw, oh * ow] in float64."""
    columns = F.unfold(
        x.double(), (s.kh, s.kw), dilation=s.dilation, padding=s.padding, stride=s.stride
    )
    return columns.view(s.n, s.groups, s.products, s.oh * s.ow)


def _weight_rows(w: Tensor, s: ConvShape) -> Tensor:
    return w.double().reshape(s.groups, s.co // s.groups, s.products)


def conv(x: Tensor, w: Tensor, s: ConvShape) -> Acc:
    """Exact sums of products, int64 [n, co, oh, ow]. Below 2**30: `MAX_PRODUCTS` * 127**2."""
    acc = torch.matmul(_weight_rows(w, s), _columns(x, s)).long()
    acc = acc.view(s.n, s.co, s.oh, s.ow)
    return acc, largest_of(acc)


def conv_input_grad(g16: Tensor, w: Tensor, s: ConvShape) -> Acc:
    """Exact input gradient, int64 [n, ci, h, w]. Below 2**15 * 2**7 * 2**16 * 2**9 < 2**53."""
    rows = g16.double().reshape(s.n, s.groups, s.co // s.groups, s.oh * s.ow)
    columns = torch.matmul(_weight_rows(w, s).transpose(1, 2), rows)
    columns = columns.reshape(s.n, s.ci * s.kh * s.kw, s.oh * s.ow)
    acc = F.fold(
        columns,
        (s.h, s.w),
        (s.kh, s.kw),
        dilation=s.dilation,
        padding=s.padding,
        stride=s.stride,
    ).long()
    return acc, largest_of(acc)


def conv_weight_grad(g: Tensor, x: Tensor, s: ConvShape) -> Acc:
    """Exact weight gradient, int64 [co, ci/groups, kh, kw].

    A 32-bit gradient is cut into 16-bit halves: each sum is below 2**16 * 2**7 * 2**24 = 2**47.
    """
    columns = _columns(x, s).transpose(2, 3)
    halves = (
        [(g.long(), 0)] if g.dtype == torch.int16 else [(g.long() >> 16, 16), (g.long() & 65535, 0)]
    )
    acc = torch.zeros(s.groups, s.co // s.groups, s.products, dtype=torch.int64, device=g.device)
    for half, shift in halves:
        rows = half.double().reshape(s.n, s.groups, s.co // s.groups, s.oh * s.ow)
        acc += torch.matmul(rows, columns).sum(0).long() << shift
    acc = acc.view(s.co, s.ci // s.groups, s.kh, s.kw)
    return acc, largest_of(acc)


def add_bias(acc: Tensor, exponent: int, bias: Tensor) -> Acc:
    """rne(acc * 2**exponent) + bias[channel]; bias int64 [co]."""
    acc = scale(acc, exponent) + bias.to(acc.device).view(1, -1, *([1] * (acc.dim() - 2)))
    return acc, largest_of(acc)


def with_bias(
    acc: Tensor, largest: int, exponent: int, codes: Tensor, delayed: Tensor, e_b: int
) -> tuple[Tensor, int, int]:
    """(acc, largest, exponent) with a bias J * 2**e_b added; 30 bits are left for it."""
    value = joint(codes, delayed)
    length = largest_of(value).bit_length()
    if length == 0:
        return acc, largest, exponent
    common = max(exponent, e_b + length - 30)
    acc, largest = add_bias(acc, exponent - common, scale(value, e_b - common))
    return acc, largest, common


def channel_sum(g: Tensor) -> Tensor:
    """Sum over all but dimension 1, int64 [channels]."""
    return g.long().sum(dim=[d for d in range(g.dim()) if d != 1])


# --- batch normalisation --------------------------------------------------------------------


def _per_channel(v: Tensor, like: Tensor) -> Tensor:
    return v.to(like.device).view(1, -1, *([1] * (like.dim() - 2)))


def channel_stats(z: Tensor) -> Tensor:
    """int64 [4, channels] on the CPU: sum, sum of squares, smallest and largest code."""
    rows = z.long().transpose(0, 1).flatten(1)
    return torch.stack([rows.sum(1), (rows * rows).sum(1), rows.amin(1), rows.amax(1)]).cpu()


def channel_affine(z: Tensor, m: Tensor, b: Tensor, exponent: int) -> Tensor:
    """rne((z * m + b) * 2**exponent) as int8; m, b int32 [channels]."""
    acc = z.long() * _per_channel(m.long(), z) + _per_channel(b.long(), z)
    return scale(acc, exponent).to(torch.int8)


def channel_grad_sums(g: Tensor, z: Tensor) -> Tensor:
    """int64 [2, channels] on the CPU: sum of g and of g * z."""
    return torch.stack([channel_sum(g), channel_sum(g.long() * z.long())]).cpu()


def batch_norm_grad(g: Tensor, z: Tensor, abc: Tensor, exponent: int) -> tuple[Tensor, int]:
    """shorten(a * g + b * z + c, exponent); abc int64 [3, channels]."""
    acc = channel_sum_of_products(g, z, abc)
    return shorten(acc, largest_of(acc), exponent)


def channel_sum_of_products(g: Tensor, z: Tensor, abc: Tensor) -> Tensor:
    """a * g + b * z + c in int64."""
    a, b, c = (_per_channel(v, g) for v in abc)
    return a * g.long() + b * z.long() + c


# --- activations, addition, pooling ---------------------------------------------------------


def relu(x: Tensor, high: int = 127) -> Tensor:
    """min(max(x, 0), high)."""
    return x.clamp(0, high)


def relu_grad(g: Tensor, y: Tensor, high: int = 128) -> Tensor:
    """g where 0 < y < high, else 0."""
    return torch.where((y > 0) & (y.int() < high), g, torch.zeros_like(g))


def add(a: Tensor, ea: int, b: Tensor, eb: int, exponent: int) -> tuple[Tensor, int]:
    """rne(a * 2**(ea - exponent)) + rne(b * 2**(eb - exponent)) requantized to bfp8."""
    acc = add_scaled(a, ea - exponent, b, eb - exponent)
    return requantize(acc, largest_of(acc), exponent, 8)


def add_scaled(a: Tensor, by_a: int, b: Tensor, by_b: int) -> Tensor:
    """rne(a * 2**by_a) + rne(b * 2**by_b) in int64."""
    return scale(a, by_a) + scale(b, by_b)


def max_pool(
    x: Tensor, kernel: tuple[int, int], stride: tuple[int, int], padding: tuple[int, int]
) -> tuple[Tensor, Tensor]:
    """Window maxima and the row-major position of the first maximum in its window (uint8)."""
    n, c, h, w = x.shape
    kh, kw = kernel
    padded = F.pad(x.int(), (padding[1], padding[1], padding[0], padding[0]), value=-128)
    windows = padded.unfold(2, kh, stride[0]).unfold(3, kw, stride[1])
    oh = window_count(h, kh, stride[0], padding[0])
    ow = window_count(w, kw, stride[1], padding[1])
    windows = windows.reshape(n, c, oh, ow, kh * kw)
    best = windows.amax(-1, keepdim=True)
    position = torch.arange(kh * kw, device=x.device)
    where = torch.where(windows == best, position, kh * kw).amin(-1)
    return best.squeeze(-1).to(torch.int8), where.to(torch.uint8)


def max_pool_grad(
    g: Tensor,
    where: Tensor,
    shape: torch.Size,
    kernel: tuple[int, int],
    stride: tuple[int, int],
    padding: tuple[int, int],
) -> Acc:
    """g added at the saved positions, int64 of `shape`."""
    n, c, h, w = shape
    oh, ow = g.shape[2:]
    rows = torch.arange(oh, device=g.device).view(-1, 1) * stride[0] - padding[0]
    cols = torch.arange(ow, device=g.device).view(1, -1) * stride[1] - padding[1]
    position = where.long()
    index = (rows + position // kernel[1]) * w + cols + position % kernel[1]
    acc = torch.zeros(n, c, h * w, dtype=torch.int64, device=g.device)
    acc.scatter_add_(2, index.flatten(2), g.long().flatten(2))
    return acc.view(n, c, h, w), largest_of(acc)


def window_sum(
    x: Tensor, kernel: tuple[int, int], stride: tuple[int, int], padding: tuple[int, int]
) -> Acc:
    """Sum over each window, padding counted as zeros, int64."""
    padded = F.pad(x.long(), (padding[1], padding[1], padding[0], padding[0]))
    acc = padded.unfold(2, kernel[0], stride[0]).unfold(3, kernel[1], stride[1]).sum((-1, -2))
    return acc, largest_of(acc)


def window_sum_grad(
    g: Tensor,
    shape: torch.Size,
    kernel: tuple[int, int],
    stride: tuple[int, int],
    padding: tuple[int, int],
) -> Acc:
    """For every input position the sum of g over the windows that hold it, int64."""
    n, c, h, w = shape
    acc = torch.zeros(
        n, c, h + 2 * padding[0], w + 2 * padding[1], dtype=torch.int64, device=g.device
    )
    oh, ow = g.shape[2:]
    for i in range(kernel[0]):
        for j in range(kernel[1]):
            rows = slice(i, i + (oh - 1) * stride[0] + 1, stride[0])
            cols = slice(j, j + (ow - 1) * stride[1] + 1, stride[1])
            acc[:, :, rows, cols] += g.long()
    acc = acc[:, :, padding[0] : padding[0] + h, padding[1] : padding[1] + w]
    return acc, largest_of(acc)


def cross_entropy(z: Tensor, exponent: int, target: Tensor) -> tuple[Tensor, int]:
    """Gradient codes (int32, exponent -24) of the mean cross-entropy of logits [n, classes], and
    the sum of the rows' losses over ln 2 in units of 2**-24."""
    z = z.long()
    p, u = softmax.exponentials(z.amax(1, keepdim=True) - z, exponent)
    total = p.sum(1, keepdim=True)
    codes = divide(*softmax.gradient_codes(p, total, target)).to(torch.int32)
    return codes, softmax.loss_rows(total, u, target)


# --- optimizer ------------------------------------------------------------------------------


def joint(codes: Tensor, delayed: Tensor) -> Tensor:
    """J = W * 2**15 - A, int64."""
    return codes.long() * 32768 - delayed


def split(value: Tensor) -> tuple[Tensor, Tensor]:
    """`exact.split`: (W, A) in int64 of a joint value."""
    codes = scale(value, -formats.DELAYED_BITS)
    return codes, (codes << formats.DELAYED_BITS) - value


@dataclass(frozen=True)
class Term:
    """One addend of a direction: integers `v` times a 16-bit coefficient m * 2**x."""

    v: Tensor
    exponent: int
    coefficient: tuple[int, int]


@dataclass(frozen=True)
class Gradient:
    """The parts of a gradient, and for each an upper bound of max|codes| where one is known.

    A bound of 0 says that the part is all zeros.
    """

    parts: tuple[tuple[Tensor, int], ...]
    bounds: tuple[int | None, ...]


def combine_shifts(
    e_g: int, decay: tuple[int, int] | None, e_a: int, momentum: Term | None
) -> tuple[int, int, int, int]:
    """`exact.combine` for a direction: the common exponent and the shift of each term."""
    tops = [e_g + 31]
    e_decay = e_momentum = 0
    if decay is not None:
        e_decay = e_a + decay[1]
        tops.append(e_decay + 39)
    if momentum is not None:
        e_momentum = momentum.exponent + momentum.coefficient[1]
        tops.append(e_momentum + 31)
    exponent = max(tops) - 60
    return exponent, e_g - exponent, e_decay - exponent, e_momentum - exponent


def direction(
    gradient: Gradient,
    codes: Tensor,
    delayed: Tensor,
    e_a: int,
    decay: tuple[int, int] | None,
    momentum: Term | None,
    out: Tensor,
) -> int:
    """out (int16) = G + decay * J + momentum * V as bfp16; returns its exponent. training.md 4."""
    g, e_g = resolve(list(gradient.parts))
    exponent, by_g, by_decay, by_momentum = combine_shifts(e_g, decay, e_a, momentum)
    acc = scale(g, by_g)
    if decay is not None:
        acc += scale(joint(codes, delayed) * decay[0], by_decay)
    if momentum is not None:
        acc += scale(momentum.v.long() * momentum.coefficient[0], by_momentum)
    result, exponent = requantize(acc, largest_of(acc), exponent, 16)
    out.copy_(result)
    return exponent


def lazy_carry(codes: Tensor, delayed: Tensor, p: Tensor, m: int, shift: int, commit: bool) -> int:
    """t = A + rne(m * P * 2**shift), r = rne(t / 2**15). Returns max|W - r|.

    With `commit` it writes W - r and t - r * 2**15.
    """
    updated, rest = carried(codes, delayed, p, m, shift)
    if commit:
        codes.copy_(updated)
        delayed.copy_(rest)
    return largest_of(updated)


def carried(codes: Tensor, delayed: Tensor, p: Tensor, m: int, shift: int) -> tuple[Tensor, Tensor]:
    """W - r and t - r * 2**15 of `lazy_carry`, int64."""
    total = delayed.long() + scale(p.long() * m, shift)
    carry = scale(total, -15)
    return codes.long() - carry, total - carry * 32768


def joint_max(codes: Tensor, delayed: Tensor, p: Tensor, m: int, shift: int) -> int:
    """max|J - rne(m * P * 2**shift)|."""
    return largest_of(joint(codes, delayed) - scale(p.long() * m, shift))


def lazy_resplit(codes: Tensor, delayed: Tensor, p: Tensor, m: int, shift: int, by: int) -> None:
    """J = rne((J - rne(m * P * 2**shift)) * 2**-by), split again."""
    value = scale(joint(codes, delayed) - scale(p.long() * m, shift), -by)
    new_codes, new_delayed = split(value)
    codes.copy_(new_codes)
    delayed.copy_(new_delayed)


# --- hashes ---------------------------------------------------------------------------------

HASH_BLOCK = 4096  # bytes


def block_sums(data: Tensor, keys: Tensor) -> Tensor:
    """One 64-bit sum per block of bytes (uint8 [n], the last block filled with zeros), int64.

    The block as little-endian 32-bit words w, and keys k (int32 [1024]): the sum over j < 512 of
    (w[j] + k[j]) * (w[512 + j] + k[512 + j]), each factor modulo 2**32, the sum modulo 2**64. NH of
    J. Black et al., "UMAC: Fast and Secure Message Authentication", CRYPTO 1999.
    """
    rows = F.pad(data, (0, -data.numel() % HASH_BLOCK)).view(torch.int32).view(-1, 2, 512)
    words = (rows + keys.view(2, 512)).long() & 0xFFFFFFFF
    return (words[:, 0] * words[:, 1]).sum(1)
