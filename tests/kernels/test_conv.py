"""Convolution and its gradients against int64 sums written tap by tap, for equality."""

from __future__ import annotations

import functools
import itertools
import random

import pytest
import torch

import interpreted
from compare import assert_same
from samebits.errors import UnsupportedError
from samebits.kernels import conv_shape, selftest
from samebits.kernels.eager import Eager
from samebits.kernels.geometry import MAX_PRODUCTS, ConvShape
from samebits.spec.formats import Q8, Q16, Q32

FILLS = ("random", "max", "min", "alternating")

# --- the definition -------------------------------------------------------------------------


def taps(s: ConvShape):
    """(i, j, rows, columns of the padded image) of every kernel position."""
    for i, j in itertools.product(range(s.kh), range(s.kw)):
        top, left = i * s.dilation[0], j * s.dilation[1]
        yield (
            i,
            j,
            slice(top, top + (s.oh - 1) * s.stride[0] + 1, s.stride[0]),
            slice(left, left + (s.ow - 1) * s.stride[1] + 1, s.stride[1]),
        )


def padded(s: ConvShape) -> torch.Tensor:
    """Zeros for [n, groups, ci / groups, height, width] with room for padding and every window."""
    height = max(s.h + 2 * s.padding[0], (s.oh - 1) * s.stride[0] + (s.kh - 1) * s.dilation[0] + 1)
    width = max(s.w + 2 * s.padding[1], (s.ow - 1) * s.stride[1] + (s.kw - 1) * s.dilation[1] + 1)
    return torch.zeros(s.n, s.groups, s.ci // s.groups, height, width, dtype=torch.int64)


def inside(s: ConvShape) -> tuple[slice, slice]:
    (top, left) = s.padding
    return slice(top, top + s.h), slice(left, left + s.w)


def definition(x, w, g16, g, s: ConvShape):
    """(output, input gradient of g16, weight gradient of g), all int64."""
    image, back = padded(s), padded(s)
    rows, columns = inside(s)
    image[..., rows, columns] = x.long().view(s.n, s.groups, -1, s.h, s.w)
    weight = w.long().view(s.groups, s.co // s.groups, s.ci // s.groups, s.kh, s.kw)
    grad16 = g16.long().view(s.n, s.groups, -1, s.oh, s.ow)
    grad = g.long().view(s.n, s.groups, -1, s.oh, s.ow)
    out, dw = torch.zeros_like(grad), torch.zeros_like(weight)
    for i, j, r, c in taps(s):
        window, tap = image[..., r, c], weight[..., i, j]
        out += torch.einsum("ngchw,goc->ngohw", window, tap)
        back[..., r, c] += torch.einsum("ngohw,goc->ngchw", grad16, tap)
        dw[..., i, j] = torch.einsum("ngohw,ngchw->goc", grad, window)
    dx = back[..., rows, columns].reshape(s.n, s.ci, s.h, s.w)
    return out.reshape(s.n, s.co, s.oh, s.ow), dx, dw.reshape(w.shape)


def filled(shape, limit: int, dtype, how: str, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    random_codes = torch.randint(-limit, limit + 1, shape, generator=generator)
    if how == "max":
        random_codes.fill_(limit)
    elif how == "min":
        random_codes.fill_(-limit)
    elif how == "alternating":
        signs = torch.arange(random_codes.numel()).view(shape) % 2 * 2 - 1
        random_codes = signs * limit
    return random_codes.to(dtype)


# --- cases ----------------------------------------------------------------------------------


def geometry(seed: int):
    """(x shape, w shape, stride, padding, dilation, groups): every setting varies."""
    rng = random.Random(seed)
    while True:
        pairs = [
            (rng.randint(1, 3), rng.randint(1, 3)),
            (rng.randint(0, 3), rng.randint(0, 3)),
            (rng.randint(1, 2), rng.randint(1, 2)),
        ]
        kernel = rng.choice([(1, 1), (3, 3), (2, 2), (1, 3), (5, 4), (3, 1)])
        kind = rng.choice(["plain", "plain", "two groups", "depthwise", "multiplier"])
        channels = rng.choice([1, 2, 3, 5, 7, 8, 16, 17, 33])
        groups, outputs = {
            "plain": (1, rng.choice([1, 2, 3, 8, 13, 16, 31, 34])),
            "two groups": (2, 2 * rng.choice([1, 3, 9])),
            "depthwise": (channels, channels),
            "multiplier": (channels, 2 * channels),
        }[kind]
        inputs = 2 * channels if groups == 2 and kind == "two groups" else channels
        x = (rng.randint(1, 3), inputs, rng.randint(1, 9), rng.randint(1, 9))
        w = (outputs, inputs // groups, *kernel)
        try:
            conv_shape(x, w, *pairs, groups)
        except UnsupportedError:
            continue
        return x, w, *pairs, groups


SMALL = [geometry(seed) for seed in range(70)]
SPECIAL = {
    "1x1 stride 2": ((1, 6, 7, 7), (9, 6, 1, 1), (2, 2), (0, 0), (1, 1), 1),
    "1x1 stride 3, padded": ((2, 5, 4, 4), (3, 5, 1, 1), (3, 3), (3, 3), (1, 1), 1),
    "kernel larger than the image": ((2, 3, 2, 3), (4, 3, 7, 5), (1, 1), (3, 3), (1, 1), 1),
    "dilated kernel larger than the image": ((1, 3, 4, 4), (2, 3, 3, 3), (2, 1), (2, 2), (2, 2), 1),
    "stride beyond the kernel": ((1, 4, 9, 8), (5, 4, 2, 1), (3, 3), (0, 0), (1, 1), 1),
    "a row": ((1, 5, 1, 7), (4, 5, 1, 1), (1, 1), (0, 0), (1, 1), 1),
    "a row, padded above": ((1, 5, 1, 3), (4, 5, 1, 1), (1, 1), (1, 0), (1, 1), 1),
    "a row, padded and strided": ((1, 5, 1, 3), (4, 5, 1, 1), (1, 2), (0, 1), (1, 1), 1),
    "one pixel": ((1, 1, 1, 1), (1, 1, 1, 1), (1, 1), (0, 0), (1, 1), 1),
    "one pixel, padded": ((3, 2, 1, 1), (2, 2, 3, 3), (1, 1), (1, 1), (1, 1), 1),
    # Rows of more pixels than a panel of the weight gradient, of many channels and of few; with
    # steps between taps of which not every residue is read; one image that is one column.
    "long rows": ((2, 17, 2, 600), (3, 17, 1, 3), (1, 2), (0, 1), (1, 3), 1),
    "one long row": ((1, 18, 1, 1201), (2, 18, 1, 2), (1, 1), (0, 0), (1, 5), 1),
    "long rows of few channels": ((3, 2, 1, 700), (5, 2, 1, 9), (1, 2), (0, 4), (1, 1), 1),
    "long dilated rows of groups": ((1, 6, 2, 530), (4, 3, 2, 3), (1, 1), (1, 2), (1, 2), 2),
    "a column": ((1, 19, 9, 1), (3, 19, 3, 1), (2, 1), (1, 0), (1, 1), 1),
    "a column of few channels": ((1, 3, 8, 1), (3, 3, 3, 1), (1, 1), (1, 0), (2, 1), 1),
    "no window reaches a pixel": ((2, 3, 1, 1), (2, 3, 1, 1), (2, 2), (1, 1), (1, 1), 1),
    "rows that meet again": ((2, 16, 11, 9), (4, 16, 4, 3), (2, 3), (3, 1), (1, 2), 1),
    # Of one tap: whole and partial tiles of 16 or 32 rows, columns and 64 products.
    "points": ((3, 33, 7, 7), (70, 33, 1, 1), (1, 1), (0, 0), (1, 1), 1),
    "points, whole tiles": ((2, 64, 8, 8), (32, 64, 1, 1), (1, 1), (0, 0), (1, 1), 1),
    "points, fewest": ((2, 16, 4, 4), (17, 16, 1, 1), (1, 1), (0, 0), (1, 1), 1),
    "points of rows": ((1, 130, 1, 145), (35, 130, 1, 1), (1, 1), (0, 0), (1, 1), 1),
    "depthwise stride 2": ((2, 35, 8, 9), (35, 1, 3, 3), (2, 2), (1, 1), (1, 1), 35),
    "depthwise dilated": ((1, 16, 9, 9), (16, 1, 3, 2), (1, 2), (3, 0), (2, 2), 16),
}
# Sums that leave 32 bits: more than 512 products of 16 by 8 bits, in each of the three.
DEEP = {
    "many outputs": ((1, 3, 2, 3), (1100, 3, 1, 1), (1, 1), (0, 0), (1, 1), 1),
    "many outputs and taps": ((2, 2, 4, 4), (530, 2, 3, 3), (1, 1), (1, 1), (1, 1), 1),
    "odd number of outputs": ((1, 5, 3, 3), (515, 5, 1, 1), (1, 1), (0, 0), (1, 1), 1),
    "many inputs": ((1, 1031, 2, 2), (4, 1031, 1, 1), (1, 1), (0, 0), (1, 1), 1),
    "many pixels": ((3, 3, 20, 21), (9, 3, 3, 3), (1, 1), (1, 1), (1, 1), 1),
    "many pixels, grouped": ((2, 6, 24, 24), (4, 3, 1, 1), (1, 1), (0, 0), (1, 1), 2),
    "many small images": ((65, 4, 2, 4), (3, 4, 1, 1), (1, 1), (0, 0), (1, 1), 1),
    "many points": ((2, 17, 130, 130), (18, 17, 1, 1), (1, 1), (0, 0), (1, 1), 1),
    "points of many outputs": ((1, 20, 2, 77), (1100, 20, 1, 1), (1, 1), (0, 0), (1, 1), 1),
    "depthwise, many pixels": ((2, 9, 25, 25), (9, 1, 3, 3), (1, 1), (1, 1), (1, 1), 9),
    "depthwise, 529 taps": ((1, 3, 24, 24), (3, 1, 23, 23), (1, 1), (11, 11), (1, 1), 3),
    "529 taps": ((1, 2, 24, 24), (2, 2, 23, 23), (1, 1), (11, 11), (1, 1), 1),
    # More products of 8 by 8 bits than int32 holds, 2**31 / 127**2, of every digit.
    "135,424 terms": ((1, 1, 1, 1), (256, 1, 23, 23), (1, 1), (22, 22), (1, 1), 1),
}
# The same sums in fewer tiles, for an interpreter: as many taps, and positions of several programs.
SHORTER = {
    "many points": ((2, 17, 40, 33), (18, 17, 1, 1), (1, 1), (0, 0), (1, 1), 1),
    "depthwise, many pixels": ((2, 3, 25, 25), (3, 1, 3, 3), (1, 1), (1, 1), (1, 1), 3),
    "depthwise, 529 taps": ((1, 2, 5, 6), (2, 1, 23, 23), (1, 1), (22, 22), (1, 1), 2),
    "529 taps": ((1, 2, 7, 9), (2, 2, 23, 23), (1, 1), (22, 22), (1, 1), 1),
}


@functools.cache
def case(settings, how: str, bits: int):
    """Operands and the three expected results."""
    s = conv_shape(*settings)
    x = filled(settings[0], Q8, torch.int8, how, 1)
    w = filled(settings[1], Q8, torch.int8, how, 2)
    out = (s.n, s.co, s.oh, s.ow)
    g16 = filled(out, Q16, torch.int16, how, 3)
    g = g16 if bits == 16 else filled(out, Q32, torch.int32, how, 4)
    return s, x, w, g16, g, definition(x, w, g16, g, s)


def same(result, expected: torch.Tensor, what: str):
    acc, largest = result
    assert tuple(acc.shape) == tuple(expected.shape), what
    if not torch.equal(acc.long(), expected):
        index = [tuple(i) for i in itertools.product(*map(range, expected.shape))]
        assert_same(acc.long(), expected, [f"{what} at {i}" for i in index])
    assert largest == int(expected.abs().max()), f"{what}: largest magnitude"


def check(k, settings, how: str, bits: int, layout=lambda v: v):
    s, x, w, g16, g, (out, dx, dw) = case(settings, how, bits)
    what = f"{settings} {how} {bits} bits"
    same(k.conv(layout(x), layout(w), s), out, f"forward {what}")
    same(k.conv_input_grad(layout(g16), layout(w), s), dx, f"input gradient {what}")
    same(k.conv_weight_grad(layout(g), layout(x), s), dw, f"weight gradient {what}")


# --- tests ----------------------------------------------------------------------------------


def test_the_definition_is_convolution():
    """Against float64 convolution, exact at this size."""
    for settings in SMALL:
        s, x, w, g16, _, (out, dx, dw) = case(settings, "random", 16)
        rx, rw = x.double().requires_grad_(), w.double().requires_grad_()
        ry = torch.nn.functional.conv2d(rx, rw, None, s.stride, s.padding, s.dilation, s.groups)
        ry.backward(g16.double())
        for actual, expected in ((out, ry), (dx, rx.grad), (dw, rw.grad)):
            assert torch.equal(actual, expected.detach().long()), settings


def some(k, step: int = 1):
    """Every step-th geometry; on an interpreter fewer."""
    return SMALL[:: 7 * step if interpreted.is_one(k) else step]


@pytest.mark.parametrize("bits", [16, 32])
def test_geometries(k, bits, threads):
    for settings in some(k):
        check(k, settings, "random", bits)


@pytest.mark.parametrize(("how", "bits"), [("max", 16), ("min", 32), ("alternating", 32)])
def test_geometries_at_the_limits(k, how, bits):
    for settings in some(k, 2):
        check(k, settings, how, bits)


@pytest.mark.parametrize("name", list(SPECIAL))
def test_special_geometries(k, name):
    for how, bits in itertools.product(FILLS, (16, 32)):
        check(k, SPECIAL[name], how, bits)


FIRST = (("random", 32), ("max", 16), ("min", 32))


def deep(k, name: str):
    return SHORTER.get(name, DEEP[name]) if interpreted.is_one(k) else DEEP[name]


@pytest.mark.parametrize("name", list(DEEP))
def test_sums_beyond_32_bits(k, name, threads):
    for how, bits in FIRST:
        check(k, deep(k, name), how, bits)


@pytest.mark.slow
@pytest.mark.parametrize("name", list(DEEP))
def test_sums_beyond_32_bits_of_every_filling(k, name, threads):
    for how, bits in itertools.product(FILLS, (16, 32)):
        if (how, bits) not in FIRST:
            check(k, deep(k, name), how, bits)


@pytest.mark.parametrize("name", ["many outputs and taps", "many pixels"])
def test_memory_order_is_free(k, name):
    channels_last = functools.partial(torch.Tensor.contiguous, memory_format=torch.channels_last)
    for layout in (
        channels_last,
        lambda v: v.transpose(1, 2).contiguous().transpose(1, 2),
    ):
        check(k, DEEP[name], "random", 32, layout)


@pytest.mark.parametrize("top", [1, *(v + by for v in (0x7F, 0x7F7F, 0x7F7F7F) for by in (0, 1))])
@pytest.mark.parametrize("how", ["random", "max", "min"])
def test_gradients_that_do_not_fill_their_type(k, top, how):
    """A digit more than the largest code has at each of the three ends."""
    settings = SPECIAL["1x1 stride 2"]
    s, x, w, g16, _, _ = case(settings, "random", 16)
    g = filled((s.n, s.co, s.oh, s.ow), top, torch.int32, how, 5)
    g[0, 0, 0, 0] = top
    same(k.conv_weight_grad(g, x, s), definition(x, w, g16, g, s)[2], f"weight gradient {top}")


def every_second(v: torch.Tensor) -> torch.Tensor:
    return v.repeat_interleave(2, dim=-1)[..., ::2]


def test_operands_with_gaps(k):
    for settings in some(k, 1)[:12]:
        check(k, settings, "random", 32, every_second)


@pytest.mark.parametrize(("rows", "inputs", "outputs"), [
    (1, 1, 1), (1, 7, 5), (3, 64, 10), (5, 129, 33), (33, 1030, 3), (600, 5, 17), (2, 3, 1025),
    (1, 4096, 16), (17, 16, 16), (160, 64, 32), (141, 33, 100),
])  # fmt: skip
@pytest.mark.parametrize("how", ["random", "max"])
def test_linear_shapes(k, rows, inputs, outputs, how, threads):
    """A matrix product is a 1x1 convolution over `rows` pixels of one image."""
    x = filled((rows, inputs), Q8, torch.int8, how, 1)
    w = filled((outputs, inputs), Q8, torch.int8, how, 2)
    g16 = filled((rows, outputs), Q16, torch.int16, how, 3)
    g32 = filled((rows, outputs), Q32, torch.int32, how, 4)
    s = conv_shape((1, inputs, 1, rows), (outputs, inputs, 1, 1))

    def image(v):
        return v[None, None].permute(0, 3, 1, 2)

    def matrix(result):
        return result[0].permute(0, 2, 3, 1)[0, 0], result[1]

    kernel = w[:, :, None, None]
    same(matrix(k.conv(image(x), kernel, s)), x.long() @ w.long().T, "forward")
    same(matrix(k.conv_input_grad(image(g16), kernel, s)), g16.long() @ w.long(), "input gradient")
    for g in (g16, g32):
        acc, largest = k.conv_weight_grad(image(g), image(x), s)
        same((acc.flatten(1), largest), g.long().T @ x.long(), "weight gradient")


def test_the_longest_sum(k):
    """65536 products of 127 * 127, just below 2**30."""
    x = filled((1, MAX_PRODUCTS, 1, 1), Q8, torch.int8, "max", 1)
    w = filled((2, MAX_PRODUCTS, 1, 1), Q8, torch.int8, "min", 1)
    acc, largest = k.conv(x, w, conv_shape(tuple(x.shape), tuple(w.shape)))
    assert acc.flatten().tolist() == [-(MAX_PRODUCTS * Q8 * Q8)] * 2
    assert largest == MAX_PRODUCTS * Q8 * Q8 < 2**30


def test_the_longest_sums_of_bytes(k):
    """Rows and channels that fill tiles; -1 is cut into the bytes -1 and 255, the largest."""
    s = conv_shape((1, MAX_PRODUCTS, 1, 128), (16, MAX_PRODUCTS, 1, 1))
    x = filled((1, MAX_PRODUCTS, 1, 128), Q8, torch.int8, "max", 1)
    w = filled((16, MAX_PRODUCTS, 1, 1), Q8, torch.int8, "min", 1)
    same(k.conv(x, w, s), torch.full((1, 16, 1, 128), -MAX_PRODUCTS * Q8 * Q8), "forward")
    s = conv_shape((1, 16, 1, 32), (MAX_PRODUCTS, 16, 1, 1))
    for value in (-1, 255, Q16):
        g = torch.full((1, MAX_PRODUCTS, 1, 32), value, dtype=torch.int16)
        w = filled((MAX_PRODUCTS, 16, 1, 1), Q8, torch.int8, "max", 1)
        expected = torch.full((1, 16, 1, 32), MAX_PRODUCTS * Q8 * value)
        same(k.conv_input_grad(g, w, s), expected, f"input gradient of {value}")


def test_shapes_that_do_not_fit():
    with pytest.raises(UnsupportedError, match="does not fit into the padded 4x4 input"):
        conv_shape((1, 3, 4, 4), (2, 3, 7, 7), padding=(1, 1))
    with pytest.raises(UnsupportedError, match="expected 4 input channels, found 3"):
        conv_shape((1, 3, 4, 4), (2, 2, 1, 1), groups=2)
    with pytest.raises(UnsupportedError, match="sum of 65537 products"):
        conv_shape((1, 65537, 1, 1), (1, 65537, 1, 1))
    with pytest.raises(UnsupportedError, match="weight gradient over 16785409 positions"):
        conv_shape((1, 1, 4097, 4097), (1, 1, 1, 1))


def test_the_self_test_passes_and_sees_a_wrong_sum(k):
    assert selftest.failures(k, "cpu") == []

    class Saturating(Eager):
        """What a unit that saturates at 16 bits would give."""

        def scale_to(self, *args):
            return super().scale_to(*args).clamp(-32768, 32767)

        def _sum(self, acc):
            return acc.clamp(-32768, 32767), self.largest_of(acc)

    assert len(selftest.failures(Saturating(), "cpu")) == 20
