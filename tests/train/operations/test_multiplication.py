"""Products element by element, against the plain integers and the deployed form."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from bfp_arrays import forms_agree
from deploy_nets import make_images
from samebits.errors import UnsupportedError
from samebits.ir.interpreter import run
from samebits.spec.training import pointwise as reference
from samebits.spec.training.layers import Array
from samebits.train import BFPTensor, convert
from samebits.train.deployed.deploy import calibrate, deployed
from samebits.train.deployed.export import to_graph

A = (2, 3, 2, 4)
OTHERS = {"same": A, "gate": (2, 3, 1, 1), "map": (2, 1, 2, 4), "both ways": (2, 1, 2, 4)}
KINDS = ["tensor", "row", "mixed", "shift"]


def tensor(shape, kind, seed, first):
    """Codes with exponents of a kind; of `mixed` the first operand alone has rows."""
    generator = torch.Generator().manual_seed(seed)
    codes = torch.randint(-127, 128, shape, generator=generator).to(torch.int8)
    if kind == "tensor" or (kind == "mixed" and not first):
        return BFPTensor(codes, -6 - seed, bits=8)
    own = torch.tensor([-3, -9]).view(2, 1, 1, 1) - seed
    if kind == "shift" and first:
        shifts = torch.tensor([0, 8, 4])
        return BFPTensor(codes, own + shifts.view(1, 3, 1, 1), bits=8, shifts=shifts)
    return BFPTensor(codes, own, bits=8)


def array(x):
    codes, exponent, shifts = x.value.shifted()
    own = exponent
    if isinstance(exponent, torch.Tensor):
        own = tuple(exponent.expand(codes.shape).flatten().tolist())
    up = () if shifts is None else tuple(shifts.tolist())
    return Array(codes.flatten().tolist(), tuple(codes.shape), own, 8, up)


def same(found, wanted):
    codes, exponent = found.resolved() if found.shifts is None else (found.codes, found.exponent)
    own = torch.as_tensor(exponent).expand(codes.shape).flatten().tolist()
    assert (tuple(codes.shape), codes.flatten().tolist()) == (wanted.shape, wanted.codes)
    assert own == list(wanted.exponents)
    assert isinstance(exponent, int) == isinstance(wanted.exponent, int)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", OTHERS)
def test_product_of_two(name, kind, realisation):
    shapes = ((2, 3, 1, 4) if name == "both ways" else A), OTHERS[name]
    a, b = (tensor(shape, kind, i, i == 0).requires_grad_() for i, shape in enumerate(shapes))
    x, y = array(a), array(b)
    wanted = reference.multiply(x, y)
    out = a * b
    same(out, wanted)
    assert out.bits == 8
    g = torch.arange(-24, 24, dtype=torch.int32).view(wanted.shape) * 44000001
    own = -30 if kind == "tensor" else torch.tensor([-31, -20]).view(2, 1, 1, 1)
    exponents = own if isinstance(own, int) else tuple(own.expand(g.shape).flatten().tolist())
    arrived = Array(g.flatten().tolist(), tuple(g.shape), exponents, 32)
    torch.autograd.backward(out, BFPTensor(g, own))
    same(a.grad, reference.multiply_backward(arrived, x, y))
    same(b.grad, reference.multiply_backward(arrived, y, x))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("factor", [1.0, -0.3, 3, 0.0, 1e-20, -(2.0**60)])
def test_product_with_a_number(factor, kind, realisation):
    a = tensor(A, kind, 0, True).requires_grad_()
    x = array(a)
    for out in (a * factor, factor * a, torch.mul(a, factor)):
        a.grad = None
        same(out, reference.scale(x, float(factor)))
        g = torch.arange(-24, 24, dtype=torch.int32).view(A) * 44000001
        torch.autograd.backward(out, BFPTensor(g, -30))
        arrived = Array(g.flatten().tolist(), A, -30, 32)
        same(a.grad, reference.scale_backward(arrived, float(factor)))


DIVISOR = torch.tensor([3, -49, 7, 1])


@pytest.mark.parametrize("kind", ["tensor", "row"])
@pytest.mark.parametrize("bits", [8, 32])
@pytest.mark.parametrize("divisor", [DIVISOR, DIVISOR.float(), DIVISOR.double()])
def test_quotients_of_constants_are_products_with_reciprocals(divisor, bits, kind, realisation):
    """Rounded once, in binary64: 1 / 49 in binary32 is another number."""
    inverse = torch.tensor([1 / 3, -1 / 49, 1 / 7, 1.0], dtype=torch.float64)
    forms = (lambda x: x / divisor, lambda x: torch.div(x, divisor), lambda x: x * inverse)
    forms_agree(forms, (2, 3, 4), kind=kind, bits=bits)
    in_place = (lambda x: (x * 1).div_(divisor), lambda x: (x * 1) * inverse)
    forms_agree(in_place, (2, 3, 4), kind=kind, bits=bits)


def test_a_quotient_may_be_repeated():
    inverse = torch.full((3, 1), 1 / 7, dtype=torch.float64)
    forms_agree((lambda x: x / torch.full((3, 1), 7.0), lambda x: x * inverse), (4,))
    number = (lambda x: x / torch.tensor(7.0), lambda x: x / 7, lambda x: x.true_divide(7))
    forms_agree((*number, lambda x: x.divide(7.0), lambda x: x * (1 / 7)), (2, 3))


def test_in_place_the_old_tensor_is_used_up():
    a, b = (tensor(A, "tensor", i, True) for i in range(2))
    wanted, old = a * b, a
    a *= b
    assert torch.equal(a.codes, wanted.codes)
    with pytest.raises(UnsupportedError, match="changed in place"):
        old + b


def test_both_may_be_repeated():
    """The bound is that of one operand's places: no sum has more addends."""
    a = BFPTensor(torch.ones(512, 1, 8, 8, dtype=torch.int8), -3)
    b = BFPTensor(torch.ones(1, 1024, 1, 1, dtype=torch.int8), -3)
    assert (a * b).shape == (512, 1024, 8, 8)


def test_a_square_has_both_gradients():
    a = tensor(A, "tensor", 0, True).requires_grad_()
    torch.autograd.backward(a * a, BFPTensor(torch.ones(A, dtype=torch.int32) << 20, -20))
    assert torch.equal(a.grad.dequantize(), 2 * a.detach().dequantize())


class Squeeze(nn.Module):
    """A block that scales channels by what it sees of them, and everything by numbers."""

    def __init__(self):
        super().__init__()
        self.conv, self.act = nn.Conv2d(2, 4, 3, padding=1), nn.Hardswish()
        self.down, self.up, self.gate = nn.Conv2d(4, 2, 1), nn.Conv2d(2, 4, 1), nn.Hardsigmoid()
        self.fc = nn.Linear(4, 3)

    def forward(self, x):
        y = self.act(self.conv(x))
        s = self.gate(self.up(torch.relu(self.down(y.mean((2, 3), keepdim=True)))))
        return self.fc((s * y * 0.7 * -1.9).mean((2, 3)))


@pytest.mark.parametrize("exponents", ["tensor", "row"])
def test_deployed_and_exported(exponents):
    torch.manual_seed(2)
    model, images = convert(Squeeze(), exponents), make_images(4, 2, scale=2.0)
    frozen = calibrate(model, [images])
    graph = to_graph(model, frozen, tuple(images.shape[1:]), batch=len(images))
    codes, exponent = deployed(model, frozen).codes(images)
    (found,) = run(graph, [images.numpy()], exact=True)
    wanted = codes.double() * 2.0**exponent
    assert [float(v) for v in found.flatten()] == wanted.flatten().tolist()
    torch.manual_seed(2)
    real = Squeeze()(images).detach()
    assert float((wanted - real).abs().max()) < 0.05 * float(real.abs().max())


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (torch.ones(A, requires_grad=True), "or constants, found a float tensor that requires"),
        (float("nan"), "expected a finite number, found nan"),
        (tensor((2, 3, 2, 3), "tensor", 0, True), "expected shapes whose sizes are equal or 1"),
    ],
)
def test_what_has_no_rule_is_refused(other, message):
    with pytest.raises(UnsupportedError, match=message):
        tensor(A, "tensor", 0, True) * other


def test_an_operand_is_repeated_at_most_2_to_the_24_times():
    one = BFPTensor(torch.ones(1, 1, dtype=torch.int8), 0)
    many = BFPTensor(torch.ones(1, 1, dtype=torch.int8).expand(1, 2**24 + 1), 0)
    with pytest.raises(UnsupportedError, match="at most 16777216 times, found 16777217"):
        one * many
