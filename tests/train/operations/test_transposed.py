"""Transposed convolutions: digits, functions and lines; whole steps are in `reference_nets`."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

from bfp_arrays import array, same, tensor
from deploy_nets import plain
from samebits.errors import UnsupportedError
from samebits.spec import formats
from samebits.spec.training import layers, transposed
from samebits.spec.training.layers import Geometry
from samebits.train import BFPTensor, convert, model_input
from samebits.train.architectures import initialise
from samebits.train.layers import ConvTranspose2d
from samebits.train.operations.transposed import by_digits


@pytest.mark.parametrize(
    "codes",
    [
        torch.arange(-formats.Q16, formats.Q16 + 1).to(torch.int16),
        torch.tensor([0, 1, -1, 128, 127, -128, -129, formats.Q32, -formats.Q32]).int(),
    ],
    ids=["16", "32"],
)
def test_digits_are_the_code(codes):
    def one(digit):
        assert digit.dtype == torch.int8
        return digit

    assert torch.equal(by_digits(codes, one), codes.long())


GEOMETRIES = {
    "plain": ((3, 2, 2, 3), Geometry(), (0, 0)),
    "strided": ((2, 3, 3, 3), Geometry((2, 3), (1, 0)), (1, 2)),
    "gaps": ((2, 1, 1, 2), Geometry((3, 4)), (0, 3)),
    "dilated": ((4, 1, 3, 2), Geometry((1, 2), (2, 1), (2, 3), 2), (0, 1)),
    "depthwise": ((4, 1, 3, 3), Geometry((2, 2), (1, 1), (1, 1), 4), (1, 1)),
}


@pytest.mark.parametrize("kind", ["tensor", "row"])
@pytest.mark.parametrize("bits", [16, 32])
@pytest.mark.parametrize("name", GEOMETRIES)
def test_geometries(name, bits, kind, realisation):
    size, geometry, extra = GEOMETRIES[name]
    g = geometry
    torch.manual_seed(2)
    net = nn.ConvTranspose2d(
        *(size[0], size[1] * g.groups, size[2:], g.stride, g.padding, extra, g.groups),
        dilation=g.dilation,
    )
    with torch.no_grad():
        net.weight.mul_(torch.exp2(torch.randint(-5, 6, (size[0], 1, 1, 1)).float()))
    layer = convert(net, kind)
    assert isinstance(layer, ConvTranspose2d)
    weight, bias = plain(layer.weight), plain(layer.bias)
    x = tensor((2, size[0], 3, 2), kind).requires_grad_()
    sums = transposed.exact_sums(array(x), weight, bias, geometry, extra)
    out = layer(x)
    same(out, layers.wide(*sums))
    assert out.shape == net(x.dequantize().float()).shape
    at = tensor(tuple(out.shape), kind, bits, 5)
    torch.autograd.backward(out, at)
    same(x.grad, transposed.input_gradient(array(at), array(x), weight, geometry))
    same(layer.weight.grad, transposed.weight_gradient(array(at), array(x), weight, geometry))
    same(layer.bias.grad, layers.bias_gradient(array(at), geometry))


def test_the_largest_codes(realisation):
    """Sums at their bounds: every code is the largest, and so is the gradient's."""
    net = nn.ConvTranspose2d(64, 2, 4, bias=False)
    nn.init.constant_(net.weight, 127.0)
    layer = convert(net)
    x = BFPTensor(torch.full((4, 64, 9, 9), -127, dtype=torch.int8), 0).requires_grad_()
    out = layer(x)
    assert int(out.codes.min()) == -64 * 16 * 127 * 127
    g = torch.full(out.shape, formats.Q32, dtype=torch.int32)
    out.backward(BFPTensor(g, 0))
    products = 4 * 81 * formats.Q32 * -127
    (wanted,), exponent = formats.shorten([products], 0)
    assert layer.weight.grad.exponent == exponent
    assert torch.equal(layer.weight.grad.codes, torch.full((64, 2, 4, 4), wanted).int())


class Functions(nn.Module):
    """Parameters of its own, and the functions of torch."""

    def __init__(self):
        super().__init__()
        self.image, self.bias = nn.Parameter(torch.randn(4, 3, 2, 2)), nn.Parameter(torch.randn(6))
        self.line = nn.Parameter(torch.randn(6, 2, 3))

    def forward(self, x):
        y = functional.conv_transpose2d(x, self.image, self.bias, 2, (1, 0), (1, 1), 2)
        return torch.conv_transpose1d(y.flatten(2), self.line, None, 3, 1, 2)


class Modules(nn.Module):
    """The same by modules."""

    def __init__(self, of):
        super().__init__()
        self.first = nn.ConvTranspose2d(4, 6, 2, 2, (1, 0), (1, 1), 2)
        self.second = nn.ConvTranspose1d(6, 2, 3, 3, 1, 2, bias=False)
        with torch.no_grad():
            self.first.weight.copy_(of.image)
            self.first.bias.copy_(of.bias)
            self.second.weight.copy_(of.line)

    def forward(self, x):
        return self.second(self.first(x).flatten(2))


@pytest.mark.parametrize("exponents", ["tensor", "row"])
def test_functions_are_those_of_modules(exponents, realisation):
    torch.manual_seed(1)
    functions = Functions()
    nets = [convert(net, exponents) for net in (functions, Modules(functions))]
    x = model_input(nets[0], torch.randn(2, 4, 3, 3))
    outputs = [net(x) for net in nets]
    assert outputs[0].shape == functions(x.dequantize().float()).shape
    assert torch.equal(*(out.codes for out in outputs))
    for out in outputs:
        g = torch.ones(out.shape, dtype=torch.int16)
        own = torch.zeros(2, 2, 1, dtype=torch.int64) if exponents == "row" else 0
        out.backward(BFPTensor(g, own))
    first, second = nets
    for a, b in (
        (first.image, second.first.weight),
        (first.bias, second.first.bias),
        (first.line, second.second.weight),
    ):
        assert torch.equal(a.grad.codes, b.grad.codes)
        assert a.grad.exponent == b.grad.exponent


def test_values_are_near_those_of_torch():
    torch.manual_seed(1)
    net = nn.ConvTranspose2d(3, 4, 3, 2, 1, 1)
    x = torch.randn(2, 3, 5, 4)
    for exponents in ("tensor", "row", "row-shift"):
        twin = convert(net, exponents)
        ours = twin(model_input(twin, x)).detach().dequantize()
        assert float((ours - net(x).detach()).abs().max()) < 0.05


@pytest.mark.parametrize(
    ("make", "shape", "message"),
    [
        (lambda: nn.ConvTranspose2d(2, 2, 3), (1, 3, 4, 4), r"expected \[n, 2, h, w\], found"),
        (lambda: nn.ConvTranspose2d(2, 2, 1, padding=4), (1, 2, 4, 4), "leaves an output, found"),
        (lambda: nn.ConvTranspose1d(2, 2, 3), (1, 2, 4, 4), r"expected \[n, c, l\]"),
        (
            lambda: nn.ConvTranspose2d(2, 2, 3, 1, 0, 1, dilation=2),
            (1, 2, 4, 4),
            r"output_padding \(1, 1\), expected below the stride \(1, 1\)",
        ),
    ],
)
def test_what_does_not_fit(make, shape, message):
    with pytest.raises(UnsupportedError, match=message):
        convert(make())(BFPTensor.from_real(torch.ones(shape)))


@pytest.mark.parametrize(
    ("size", "sides", "message"),
    [
        ((4097, 1, 4, 4), (1, 1), "sum of 65552 products: expected at most 65536"),
        ((1, 1, 1, 1), (2049, 2049), "gradient over 16785409 positions: expected at most 16777216"),
    ],
)
def test_bounds(size, sides, message):
    layer = convert(nn.ConvTranspose2d(size[0], size[1], size[2:], stride=2))
    codes = torch.zeros(1, dtype=torch.int8).expand(1, size[0], *sides)
    with pytest.raises(UnsupportedError, match=message):
        layer(BFPTensor(codes, 0))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x, w: functional.conv_transpose2d(x, torch.ones(2, 2, 1, 1)), "as weight, found T"),
        (lambda x, w: functional.conv_transpose2d(x, w, w), "with an element for each output"),
        (
            lambda x, w: functional.conv_transpose2d(x, w, None, 1, 0, 1, 1, 2),
            "expected an output_padding below the stride",
        ),
    ],
)
def test_what_a_function_does_not_take(call, message):
    layer = convert(nn.ConvTranspose2d(2, 2, 1))
    with pytest.raises(UnsupportedError, match=message):
        call(BFPTensor.from_real(torch.ones(1, 2, 3, 3)), layer.weight)


@pytest.mark.parametrize("kind", [nn.ConvTranspose1d, nn.ConvTranspose2d])
def test_the_size_of_an_output_is_a_padding_of_the_module(kind):
    model = convert(nn.Sequential(kind(2, 2, 3, stride=2)))
    x = model_input(model, torch.ones(1, 2, *[3] * (model[0].weight.dim() - 2)))
    message = rf"layer '0' \({kind.__name__}\): expected no output_size, found \[8\]: give .* an o"
    with pytest.raises(UnsupportedError, match=message):
        model[0](x, output_size=[8])


def test_first_weights_follow_from_the_products_of_a_sum():
    net = nn.Sequential(nn.ConvTranspose2d(6, 4, 3, groups=2), nn.ConvTranspose1d(5, 2, 4))
    initialise(net, 3)
    for layer, products in zip(net, (27, 20), strict=True):
        largest = float(layer.weight.detach().abs().max())
        assert 0.8 < largest / (6 / products) ** 0.5 <= 1
