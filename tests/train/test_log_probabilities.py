"""log_softmax holds logits: a loss of it has the bits of cross-entropy."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from bfp_arrays import array, same, tensor
from samebits.errors import RangeError, UnsupportedError
from samebits.spec.training import loss as reference
from samebits.train import SGD, BFPTensor, convert, cross_entropy, model_input
from samebits.train.deployed.deploy import calibrate
from samebits.train.operations.logarithms import as_values


class Classifier(nn.Module):
    """A net whose forward ends in log-probabilities, or in logits."""

    def __init__(self, ending=None):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4))
        self.ending = ending

    def forward(self, x):
        y = self.layers(x)
        return y if self.ending is None else self.ending(y)


def trained(ending, loss, exponents):
    torch.manual_seed(1)
    model = convert(Classifier(ending), exponents)
    optimizer = SGD(model.parameters(), lr=0.2, momentum=0.9)
    x, y = torch.randn(5, 6), torch.tensor([0, 3, -100, 1, 2])
    losses = []
    for _ in range(3):
        value = loss(model(model_input(model, x)), y)
        value.backward()
        losses.append(float(value.detach()))
        optimizer.step()
        optimizer.zero_grad()
    return losses, {key: value.tolist() for key, value in model.state_dict().items()}


ENDINGS = {
    "function": (lambda y: F.log_softmax(y, dim=1), F.nll_loss),
    "method": (lambda y: y.log_softmax(-1), F.nll_loss),
    "modules": (nn.LogSoftmax(dim=1), nn.NLLLoss()),
    "torch": (lambda y: torch.log_softmax(y, 1), cross_entropy),
    "twice": (lambda y: F.log_softmax(F.log_softmax(y, 1), 1), F.nll_loss),
    "reshaped": (lambda y: F.log_softmax(y.view(5, 1, 4), -1).view(-1, 4), F.nll_loss),
}


@pytest.mark.parametrize("exponents", ["tensor", "row", "row-shift"])
@pytest.mark.parametrize("name", ENDINGS)
def test_training_has_the_bits_of_cross_entropy(name, exponents, realisation):
    assert trained(*ENDINGS[name], exponents) == trained(None, cross_entropy, exponents)


def test_options_of_nll_loss():
    logits = tensor((4, 5), bits=32).requires_grad_()
    y, w = torch.tensor([0, 2, 4, 1]), torch.tensor([1.0, 2.0, 0.5, 3.0, 0.25])
    for options in ({"weight": w}, {"ignore_index": 2}, {"reduction": "sum"}):
        ours = F.nll_loss(F.log_softmax(logits, 1), y, **options)
        assert float(ours.detach()) == float(cross_entropy(logits, y, **options).detach())


def test_pixels(realisation):
    logits = [tensor((2, 3, 2, 2), bits=32).requires_grad_() for _ in range(2)]
    y = torch.tensor([[[0, 1], [2, 0]], [[1, 1], [0, 2]]])
    F.nll_loss(F.log_softmax(logits[0], 1), y).backward()
    cross_entropy(logits[1], y).backward()
    assert torch.equal(*(z.grad.codes for z in logits))


@pytest.mark.parametrize("kind", ["tensor", "row"])
@pytest.mark.parametrize("exponent", [-150, -28, -6, 0, 6, 7, 40, 1500])
@pytest.mark.parametrize(("shape", "bits"), [((5, 7), 8), ((5, 7), 32), ((2, 3, 2, 2), 32)])
def test_values_are_minus_the_losses(shape, bits, exponent, kind):
    x = tensor(shape, kind, bits, 3, exponent)
    wanted = reference.log_probabilities(array(x))
    for values in (F.log_softmax(x, 1), F.log_softmax(x, 1).detach().clone()):
        found = values.dequantize().movedim(1, -1).flatten().tolist()
        assert found == wanted
    if len(shape) == 4:
        found = F.log_softmax(x.transpose(1, -1), -1).transpose(1, -1).dequantize()
        assert found.movedim(1, -1).flatten().tolist() == wanted


def test_values_are_near_those_of_torch():
    x = BFPTensor.from_real(torch.randn(6, 5, generator=torch.Generator().manual_seed(2)) * 3)
    log = F.log_softmax(x, 1)
    real = F.log_softmax(x.dequantize(), 1)
    assert float((log.dequantize() - real).abs().max()) < 1e-4
    assert torch.equal(log.argmax(1), real.argmax(1))
    assert torch.equal(log.exp().codes, torch.softmax(x, 1).codes)
    assert math.isclose(float(torch.exp(log).dequantize().sum()), 6, rel_tol=1e-4)


def log_probabilities(*shape):
    return F.log_softmax(BFPTensor.from_real(torch.ones(shape)), 1)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: nn.Softmax(0)(log_probabilities(2, 3)), "softmax: expected the axis 1 of these"),
        (
            lambda: F.nll_loss(BFPTensor.from_real(torch.ones(2, 3)), torch.tensor([0, 1])),
            "nll_loss: expected what log_softmax gives, and class indices, found BFPTensor",
        ),
        (
            lambda: F.nll_loss(log_probabilities(2, 3, 4).transpose(1, 2), torch.tensor([0, 1])),
            "cross-entropy: found log-probabilities along axis 2, expected along 1",
        ),
        (lambda: F.log_softmax(BFPTensor.from_real(torch.ones(2, 3))), "log_softmax: expected an"),
        (lambda: convert(nn.LogSoftmax()), "no dim, expected an axis"),
    ],
)
def test_what_has_no_rule_is_refused(call, message):
    with pytest.raises(UnsupportedError, match=message):
        call()


# --- computed with ----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["tensor", "row"])
@pytest.mark.parametrize("exponent", [-150, -28, -6, 3])
@pytest.mark.parametrize(
    ("shape", "bits"), [((5, 7), 8), ((5, 7), 32), ((4, 1), 8), ((2, 3, 2), 32)]
)
def test_values_and_their_gradient_are_the_definition(shape, bits, exponent, kind, realisation):
    for own in ("tensor", "row"):
        x, g = tensor(shape, kind, bits, 3, exponent), tensor(shape, own, 32, 5, -40)
        y = as_values(F.log_softmax(x.requires_grad_(), 1))
        same(y.detach(), reference.log_values(array(x)))
        y.backward(g)
        same(x.grad, reference.log_values_backward(array(x), array(g)))


@pytest.mark.parametrize("kind", ["tensor", "row"])
@pytest.mark.parametrize("exponent", [-150, -36, -26, -6, 2])
@pytest.mark.parametrize(
    ("shape", "bits"), [((5, 7), 8), ((5, 7), 32), ((2, 3, 2, 2), 8), ((1,), 8)]
)
def test_exponentials_are_the_definition(shape, bits, exponent, kind, realisation):
    x, g = tensor(shape, kind, bits, 3, exponent, 2), tensor(shape, kind, 32, 5, -40)
    if bits == 32 and exponent > -26:
        x = BFPTensor(-x.codes.abs(), x.exponent)  # above 709 there is none
    y, wanted = x.requires_grad_().exp(), reference.exponential(array(x))
    same(y.detach(), wanted)
    y.backward(g)
    same(x.grad, reference.exponential_backward(array(g), wanted))


@pytest.mark.parametrize("exponent", [-7, 9, 13, 14, 15, 40, 42, 1500])
def test_exponentials_at_the_ends_of_binary64(exponent):
    """Of 0, of the lowest values, and of the largest that there are."""
    for codes in ([0, -1, -127], [-1, -3], [0]):
        x = BFPTensor(torch.tensor(codes, dtype=torch.int8), exponent)
        same(x.exp(), reference.exponential(array(x)))
    x = BFPTensor(torch.tensor([127, 0], dtype=torch.int8), exponent)
    if exponent < 0:
        same(x.exp(), reference.exponential(array(x)))
        return
    for refused in (lambda: x.exp(), lambda: reference.exponential(array(x))):
        with pytest.raises(RangeError, match="exp"):
            refused()


def test_exponentials_are_near_those_of_torch():
    x = BFPTensor.from_real(torch.linspace(-9, 6, 60).view(4, 15), bits=32).requires_grad_()
    real = x.detach().dequantize().requires_grad_()
    y = x.exp()
    assert torch.allclose(y.detach().dequantize(), real.exp().detach(), rtol=1e-4, atol=2e-4)
    y.sum().backward()
    real.exp().sum().backward()
    assert torch.allclose(x.grad.dequantize(), real.grad, rtol=1e-4, atol=2e-4)


WORTH = torch.tensor([0.5, -1.0, 2.0, 0.25, -0.125, 1.5])
ACTIONS = torch.tensor([0, 3, 1, 1, 2, 0])


def focal(scores):
    taken = scores.gather(1, ACTIONS[:, None])
    return -((1 - taken.exp()) ** 2 * taken).mean()


OWN = {
    "one class": lambda s: -(s[:, 0] * WORTH).mean(),
    "gathered": lambda s: -(s.gather(1, ACTIONS[:, None])[:, 0] * WORTH).sum(),
    "several rows": lambda s: -(s[1:4, 2] * WORTH[1:4]).mean(),
    "entropy": lambda s: (s.exp() * s).sum(1).mean(),
    "ratio": lambda s: -((s.gather(1, ACTIONS[:, None])[:, 0] + 1).exp() * WORTH).mean(),
    "focal": focal,
    "square": lambda s: F.mse_loss(s, torch.zeros(6, 4)),
    "flat": lambda s: (s.view(-1) * torch.linspace(-1, 1, 24)).sum(),
}


@pytest.mark.parametrize("name", OWN)
def test_losses_of_ones_own_have_the_gradient_by_the_logits(name):
    """Beside PyTorch's own of the same logits; softmax has its gradient from 8 bits of itself."""
    x = BFPTensor.from_real(torch.randn(6, 4, generator=torch.Generator().manual_seed(4)), bits=32)
    real = x.dequantize().requires_grad_()
    loss = OWN[name](F.log_softmax(x.requires_grad_(), 1))
    loss.backward()
    OWN[name](F.log_softmax(real, 1)).backward()
    found = x.grad.dequantize()
    assert float((found - real.grad).norm() / real.grad.norm()) < 0.03
    assert float(found.sum(1).abs().max()) < 1e-3


def test_one_class_a_row_is_worth_times_onehot_less_softmax():
    x = BFPTensor.from_real(torch.randn(6, 4, generator=torch.Generator().manual_seed(4)), bits=32)
    (
        F.log_softmax(x.requires_grad_(), 1).gather(1, ACTIONS[:, None])[:, 0] * WORTH
    ).sum().backward()
    hit = F.one_hot(ACTIONS, 4) - torch.softmax(x.detach().dequantize(), 1)
    assert torch.allclose(x.grad.dequantize(), WORTH[:, None] * hit, atol=1e-4)


def test_a_network_that_takes_vectors_apart_is_not_deployed():
    model = convert(Classifier(lambda y: F.log_softmax(y, 1)[:, 0]))
    model(model_input(model, torch.randn(5, 6))).sum().backward()
    with pytest.raises(UnsupportedError, match="devices have the logits of log_softmax"):
        calibrate(model, [torch.randn(5, 6)])
