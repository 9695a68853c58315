"""Layers of lines [N, C, L] are those of images of height 1; pixels repeated and moved."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

from samebits.errors import UnsupportedError
from samebits.train import SGD, BFPTensor, convert, cross_entropy, model_input

LINE = (3, 4, 9)


def lines():
    return nn.Sequential(
        nn.Conv1d(4, 6, 3, padding="same", bias=False),
        nn.BatchNorm1d(6),
        nn.ReLU(),
        nn.Conv1d(6, 6, 3, stride=2, padding=1, dilation=1, groups=2),
        nn.MaxPool1d(2, stride=1, padding=1, ceil_mode=True),
        nn.AvgPool1d(2, stride=1, padding=1, count_include_pad=False),
        nn.AdaptiveAvgPool1d(2),
        nn.Flatten(),
        nn.Linear(12, 3),
    )


def images(of):
    """The same net with images of height 1, and the same values."""
    twin = nn.Sequential(
        nn.Conv2d(4, 6, (1, 3), padding="same", bias=False),
        nn.BatchNorm2d(6),
        nn.ReLU(),
        nn.Conv2d(6, 6, (1, 3), stride=(1, 2), padding=(0, 1), groups=2),
        nn.MaxPool2d((1, 2), stride=1, padding=(0, 1), ceil_mode=True),
        nn.AvgPool2d((1, 2), stride=1, padding=(0, 1), count_include_pad=False),
        nn.AdaptiveAvgPool2d((1, 2)),
        nn.Flatten(),
        nn.Linear(12, 3),
    )
    state = {k: v.unsqueeze(2) if v.dim() == 3 else v for k, v in of.state_dict().items()}
    twin.load_state_dict(state)
    return twin


@pytest.mark.parametrize("exponents", ["tensor", "row"])
def test_lines_are_images_of_height_1(exponents, realisation):
    torch.manual_seed(3)
    net = lines()
    nets = [convert(net, exponents), convert(images(net), exponents)]
    optimizers = [SGD(m.parameters(), lr=0.1, momentum=0.9, rounding="nearest") for m in nets]
    x = torch.randn(LINE) * torch.tensor([1.0, 30.0, 0.1]).view(3, 1, 1)
    given = [
        BFPTensor(*reversed_rows(model_input(nets[1], x.unsqueeze(2)))),
        model_input(nets[1], x.unsqueeze(2)),
    ]
    y = torch.tensor([0, 2, 1])
    for _ in range(3):
        losses = []
        for model, optimizer, value in zip(nets, optimizers, given, strict=True):
            loss = cross_entropy(model(value), y)
            losses.append(float(loss.detach()))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        assert losses[0] == losses[1]
        for a, b in zip(*(m.parameters() for m in nets), strict=True):
            assert torch.equal(a.codes, b.codes.reshape(a.shape))
            assert torch.equal(a.exponent_cell, b.exponent_cell)


def reversed_rows(image):
    """The parts of images of height 1 as those of lines, every line with its sample's exponent."""
    codes, exponent = image.resolved()
    if isinstance(exponent, torch.Tensor):
        exponent = exponent.expand(*codes.shape[:3], 1).reshape(*codes.shape[:2], 1)
    return codes.squeeze(2), exponent


def test_a_float_state_of_lines_is_taken():
    net = lines()
    twin = convert(lines())
    twin.load_state_dict(net.state_dict())
    again = convert(net).state_dict()
    assert all(torch.equal(value, again[key]) for key, value in twin.state_dict().items())
    assert twin[0].weight.shape == (6, 4, 3)


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (nn.Upsample(scale_factor=2), (2, 3, 2, 2)),
        (nn.UpsamplingNearest2d(scale_factor=3), (2, 3, 2, 2)),
        (nn.PixelShuffle(2), (2, 8, 2, 3)),
        (nn.PixelUnshuffle(2), (2, 2, 4, 6)),
        (nn.Unflatten(1, (2, 4)), (2, 8, 3)),
        (nn.ZeroPad2d((1, 0, 2, 1)), (2, 3, 2, 2)),
        (nn.ConstantPad1d((1, 2), 0.0), (2, 3, 2)),
        (nn.ReflectionPad2d((2, 0, 1, 1)), (2, 3, 2, 3)),
        (nn.ReflectionPad1d(3), (2, 3, 4)),
        (nn.ReplicationPad2d((1, 5, 0, 2)), (2, 3, 2, 2)),
        (nn.ReplicationPad1d((0, 4)), (2, 3, 1)),
        (nn.CircularPad2d((2, 1, 0, 2)), (2, 3, 2, 2)),
        (nn.CircularPad1d(4), (2, 3, 4)),
        (nn.Upsample((5, 3)), (2, 3, 2, 2)),
        (nn.Upsample(size=5, mode="nearest-exact"), (2, 3, 3)),
    ],
)
def test_what_moves_elements_does_what_torch_does(layer, shape):
    codes = torch.randint(-127, 128, shape, generator=torch.Generator().manual_seed(1))
    x = BFPTensor(codes.to(torch.int8), 0).requires_grad_()
    out = convert(layer)(x)
    assert torch.equal(out.detach().dequantize(), layer(codes.double()))
    out.backward(BFPTensor(torch.ones(out.shape, dtype=torch.int16), 0))
    real = codes.double().requires_grad_()
    layer(real).sum().backward()
    assert torch.equal(x.grad.dequantize(), real.grad)


@pytest.mark.parametrize(
    ("layer", "reason"),
    [
        (nn.MaxPool1d(2, dilation=2), "dilation 2, expected 1"),
        (nn.MaxPool1d(2, return_indices=True), "return_indices"),
        (nn.AvgPool1d(2, padding=2), "padding beyond half the window"),
    ],
)
def test_settings_without_a_rule(layer, reason):
    with pytest.raises(UnsupportedError, match=reason):
        convert(layer)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x: functional.pixel_shuffle(x, 2), "multiple of 4 channels, found 3"),
        (lambda x: functional.pixel_unshuffle(x, 3), "multiples of 3"),
        (lambda x: convert(nn.Conv1d(3, 2, 1))(x), r"expected \[n, c, l\], found shape"),
    ],
)
def test_what_has_no_rule_is_refused(call, message):
    with pytest.raises(UnsupportedError, match=message):
        call(BFPTensor.from_real(torch.ones(2, 3, 2, 2)))
