"""Padding, nearest and linear upsampling, against the plain integers and against torch."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch import nn
from torch.nn import functional

from bfp_arrays import array, forms_agree, same, tensor
from samebits.errors import UnsupportedError
from samebits.spec.training import moves, pooling
from samebits.train import BFPTensor, convert, model_input

KINDS = ["tensor", "row"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bits", [5, 8, 32])
@pytest.mark.parametrize(
    ("shape", "sizes"),
    [((2, 3), (1, 2)), ((2, 3, 2), (0, 0, 1, 0)), ((2, 2, 2, 3), (0, 0, 0, 1, 2, 0))],
)
def test_padding(shape, sizes, bits, kind, realisation):
    x = tensor(shape, kind, bits).requires_grad_()
    out = functional.pad(x, sizes)
    low = [0] * len(shape)
    high = list(low)
    for place in range(len(sizes) // 2):
        low[-1 - place], high[-1 - place] = sizes[2 * place : 2 * place + 2]
    places, whole = moves.padded(shape, low, high)
    same(out, moves.placed(array(x), places, whole))
    g = tensor(whole, kind, 32, 3)
    out.backward(g)
    back = [places.index(i) for i in range(x.numel())]
    same(x.grad, moves.placed(array(g), back, shape))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bits", [8, 32])
def test_negative_padding_takes_away(bits, kind, realisation):
    forms = (
        (lambda x: functional.pad(x, (-1, 2)), lambda x: functional.pad(x[..., 1:], (0, 2))),
        (lambda x: functional.pad(x, (0, -2)), lambda x: x[..., :-2]),
        (
            lambda x: functional.pad(x, (1, -1, -1, 0)),
            lambda x: functional.pad(x[:, 1:, :-1], (1, 0, 0, 0)),
        ),
    )
    for pair in forms:
        forms_agree(pair, (2, 3, 4), kind=kind, bits=bits)
        cropped, apart = (form(torch.ones(2, 3, 4)) for form in pair)
        assert torch.equal(cropped, apart)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bits", [5, 8, 32])
@pytest.mark.parametrize("mode", ["reflect", "replicate", "circular"])
@pytest.mark.parametrize(
    ("shape", "sizes"),
    [
        ((2, 4), (1, 3)),
        ((3, 4, 3), (2, 0, 1, 2)),
        ((2, 2, 3, 4), (0, 3, 1, 2)),
        ((2, 3, 2), (0, 1)),
    ],
)
def test_padding_by_copies(shape, sizes, mode, bits, kind, realisation):
    x = tensor(shape, kind, bits).requires_grad_()
    out = functional.pad(x, sizes, mode)
    last, rank = len(shape) - 1, len(sizes) // 2
    along = {
        last - at: moves.around(mode, shape[last - at], *sizes[2 * at : 2 * at + 2])
        for at in range(rank)
        if any(sizes[2 * at : 2 * at + 2])
    }
    wanted = moves.placed(array(x), *moves.chosen(shape, along))
    same(out, wanted)
    if rank < len(shape):  # as torch has it
        codes = x.codes.double()[None] if rank == len(shape) - 1 else x.codes.double()
        real = functional.pad(codes, sizes, mode)
        assert out.codes.shape == real.view(out.shape).shape
        if kind == "tensor":
            assert torch.equal(out.codes.double(), real.view(out.shape))
    g = tensor(wanted.shape, kind, 32, 3)
    out.backward(g)
    same(x.grad, moves.chosen_backward(array(g), shape, along))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mode", ["nearest", "nearest-exact"])
@pytest.mark.parametrize("size", [(4, 6), (2, 9), (5, 2), (1, 4)])
def test_nearest(size, mode, kind, realisation):
    x = tensor((2, 3, 2, 3), kind).requires_grad_()
    out = functional.interpolate(x, size, mode=mode)
    along = {2 + a: moves.nearest((2, 3)[a], size[a], mode != "nearest") for a in (0, 1)}
    same(out, moves.placed(array(x), *moves.chosen((2, 3, 2, 3), along)))
    real = functional.interpolate(x.codes.double(), size, mode=mode)
    assert torch.equal(out.codes.double(), real) or kind == "row"
    g = tensor((2, 3, *size), kind, 32, 5)
    out.backward(g)
    same(x.grad, moves.chosen_backward(array(g), (2, 3, 2, 3), along))


SIZES = [((2, 3), (4, 6)), ((3, 2), (7, 5)), ((4, 4), (2, 3)), ((1, 3), (5, 1)), ((2, 2), (2, 2))]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bits", [5, 8])
@pytest.mark.parametrize("corners", [False, True])
@pytest.mark.parametrize(("own", "size"), SIZES)
def test_bilinear(own, size, corners, bits, kind, realisation):
    shape = (2, 3, *own)
    x = tensor(shape, kind, bits, 4).requires_grad_()
    out = functional.interpolate(x, size, mode="bilinear", align_corners=corners)
    wanted = pooling.interpolated(array(x), size, corners)
    same(out, wanted)
    for width, exponent in itertools.product((16, 32), (-6, 40)):
        x.grad = None
        g = tensor(wanted.shape, kind, width, 5, exponent)
        torch.autograd.backward(out, g, retain_graph=True)
        same(x.grad, pooling.interpolated_backward(array(g), shape, corners))


@pytest.mark.parametrize("corners", [False, True])
def test_every_line_of_small_sides_is_that_of_torch(corners):
    for n, m in itertools.product(range(1, 9), range(1, 13)):
        weights, whole = pooling.line(n, m, corners)
        for i in range(n):
            own = torch.zeros(1, 1, n, dtype=torch.float64)
            own[0, 0, i] = 1
            real = functional.interpolate(own, m, mode="linear", align_corners=corners)
            found = torch.tensor([w.get(i, 0) / whole for w in weights], dtype=torch.float64)
            assert torch.allclose(found, real.flatten(), atol=1e-12)


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")  # torch's copy
@pytest.mark.parametrize("exponents", ["tensor", "row", "row-shift"])
def test_values_are_near_those_of_torch(exponents):
    torch.manual_seed(4)
    net = nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1, padding_mode="reflect"),
        nn.Upsample(scale_factor=2, mode="bilinear"),
        nn.Conv2d(4, 4, 2, padding="same"),
        nn.UpsamplingBilinear2d(size=(5, 4)),
        nn.Conv2d(4, 3, (2, 3), padding="same", padding_mode="circular", stride=1),
        nn.Flatten(2),
        nn.Conv1d(3, 2, 3, padding=2, padding_mode="replicate"),
        nn.Upsample(scale_factor=1.5, mode="linear"),
    )
    x = torch.randn(2, 2, 4, 3)
    twin = convert(net, exponents)
    ours, real = twin(model_input(twin, x)), net(x).detach()
    assert ours.shape == real.shape
    assert float((ours.detach().dequantize() - real).abs().max()) < 0.1 * float(real.abs().max())


@pytest.mark.parametrize("exponents", ["tensor", "row"])
@pytest.mark.parametrize("mode", ["reflect", "replicate", "circular"])
def test_modes_of_convolutions_are_pads_before_them(mode, exponents, realisation):
    torch.manual_seed(4)
    conv = nn.Conv2d(2, 3, 3, 2, padding=(2, 1), padding_mode=mode)
    plain = nn.Conv2d(2, 3, 3, 2)
    plain.load_state_dict(conv.state_dict())
    pads = {"reflect": nn.ReflectionPad2d, "replicate": nn.ReplicationPad2d}
    before = pads.get(mode, nn.CircularPad2d)((1, 1, 2, 2))
    nets = [convert(net, exponents) for net in (conv, nn.Sequential(before, plain))]
    outputs = []
    for net in nets:
        x = model_input(net, torch.randn(2, 2, 4, 3, generator=torch.Generator().manual_seed(1)))
        x.requires_grad_()
        out = net(x)
        own = torch.zeros(2, 1, 1, 1, dtype=torch.int64) if exponents == "row" else 0
        out.backward(BFPTensor(torch.ones(out.shape, dtype=torch.int16), own))
        outputs.append((out.codes, x.grad.codes, next(net.parameters()).grad.codes))
    for ours, wanted in zip(*outputs, strict=True):
        assert torch.equal(ours, wanted)


def image(*sides):
    return BFPTensor.from_real(torch.ones(1, 1, *sides))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: functional.pad(image(2, 2), (1, 1), value=2.0), "pad: .* found .* 2.0"),
        (
            lambda: functional.pad(image(2, 2), (-1, 1), "reflect"),
            "pad: expected two sizes of at least 0",
        ),
        (
            lambda: functional.pad(image(2, 2), (-1, -1)),
            r"pad: expected sizes that leave elements of \(1, 1, 2, 2\), found",
        ),
        (lambda: functional.pad(image(2, 2), (0, 2), "reflect"), "at most 1 of an axis of 2"),
        (lambda: functional.pad(image(2, 2), (3, 0), "circular"), "at most 2 of an axis of 2"),
        (lambda: functional.pad(image(2, 2), (3, 0), "mirror"), "mode constant, reflect"),
        (lambda: functional.pad(image(2, 2), 1), "pad: expected two sizes for .* found 1; give"),
        (
            lambda: functional.interpolate(image(2, 2), scale_factor=1.3),
            "that give whole sides, .* give a size, or recompute_scale_factor=True",
        ),
        (lambda: functional.interpolate(image(2, 2), scale_factor=math.inf), "scale_factor inf of"),
        (
            lambda: functional.interpolate(
                image(2, 2), scale_factor=math.nan, recompute_scale_factor=True
            ),
            "scale_factor nan of",
        ),
        (
            lambda: functional.interpolate(image(2, 2), 4, 2.0),
            "a size or a scale_factor, found both, 4 and 2.0",
        ),
        (
            lambda: functional.interpolate(image(2, 2), 4, align_corners=True),
            "align_corners of linear and bilinear alone, found True of nearest",
        ),
        (lambda: functional.interpolate(image(2, 2), (0, 2)), "of at least 1, found"),
        (lambda: functional.interpolate(image(2, 2), 4, mode="bicubic"), "mode bicubic"),
        (lambda: functional.interpolate(image(2), 4, mode="bilinear"), "found shape"),
        (
            lambda: functional.interpolate(image(2, 2), 4, mode="bilinear", antialias=True),
            "antialias True",
        ),
        (
            lambda: functional.interpolate(image(3, 2), (4099, 2), mode="bilinear"),
            "common denominator of at most 4096, found 4099 of 3 to 4099 positions",
        ),
        (
            lambda: functional.interpolate(image(2, 2), (2048, 2048), mode="bilinear"),
            "add up to less than 2147483648, found",
        ),
        (lambda: functional.interpolate(image(1, 1), (8192, 4096)), "at most 16777216 times"),
        (lambda: convert(nn.Upsample(4, mode="bicubic")), "mode 'bicubic', expected one of bilin"),
        (lambda: convert(nn.ConstantPad2d(1, 2.0)), "value=2.0, expected 0"),
    ],
)
def test_what_has_no_rule_is_refused(call, message):
    with pytest.raises(UnsupportedError, match=message):
        call()
