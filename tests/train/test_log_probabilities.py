"""log_softmax holds logits: a loss of it has the bits of cross-entropy."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from bfp_arrays import array, tensor
from samebits.errors import UnsupportedError
from samebits.spec.training import loss as reference
from samebits.train import SGD, BFPTensor, convert, cross_entropy, model_input, mse_loss


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
        (lambda: log_probabilities(2, 3) + 1, "add: found log-probabilities, which only nll_loss"),
        (lambda: nn.Softmax(0)(log_probabilities(2, 3)), "softmax: expected the axis 1 of these"),
        (lambda: mse_loss(log_probabilities(2, 3), torch.ones(2, 3)), "along axis 1, which only"),
        (lambda: log_probabilities(2, 3).view(-1), r"stay whole, found \(6,\)"),
        (lambda: log_probabilities(2, 4)[:, :2], r"stay whole, found \(2, 2\)"),
        (
            lambda: F.nll_loss(BFPTensor.from_real(torch.ones(2, 3)), torch.tensor([0, 1])),
            "nll_loss: expected what log_softmax gives, and class indices, found BFPTensor",
        ),
        (
            lambda: F.nll_loss(log_probabilities(2, 3, 4).transpose(1, 2), torch.tensor([0, 1])),
            "cross-entropy: found log-probabilities along axis 2, expected along 1",
        ),
        (lambda: F.log_softmax(BFPTensor.from_real(torch.ones(2, 3))), "log_softmax: expected an"),
        (lambda: torch.exp(BFPTensor.from_real(torch.ones(2, 3))), "exp of BFP tensors: expected"),
        (lambda: convert(nn.LogSoftmax()), "no dim, expected an axis"),
    ],
)
def test_what_has_no_rule_is_refused(call, message):
    with pytest.raises(UnsupportedError, match=message):
        call()
