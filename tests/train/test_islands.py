"""Modules that stay in float32 inside a BFP network."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import nn
from torch.nn import functional

import samebits as sb
from samebits.errors import InputError, NonFiniteError, UnsupportedError
from samebits.train import (
    SGD,
    BFPParameter,
    BFPTensor,
    convert,
    cross_entropy,
    float_islands,
    load_state,
    model_input,
    mse_loss,
)
from samebits.train.islands import FloatWarning


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 6)
        self.middle = nn.Sequential(nn.Linear(6, 6), nn.Softsign())
        self.memory = nn.GRU(6, 5, batch_first=True)
        self.head = nn.Linear(5, 3)

    def forward(self, x):
        y, last = self.memory(self.middle(self.first(x)))
        assert isinstance(last, type(y))
        return self.head(y[:, -1])


@pytest.fixture
def net():
    torch.manual_seed(2)
    return Net()


@pytest.mark.parametrize("exponents", ["tensor", "row"])
def test_a_network_with_islands_trains(net, exponents):
    before = copy.deepcopy(net.state_dict())
    model = convert(net, exponents, keep_float=["middle", "memory"])
    assert list(net.state_dict()) == list(before)
    assert all(torch.equal(v, before[k]) for k, v in net.state_dict().items())
    bfp = [p for p in model.parameters() if isinstance(p, BFPParameter)]
    real = [p for p in model.parameters() if not isinstance(p, BFPParameter)]
    assert len(bfp) == 4
    assert {tuple(p.shape) for p in real} >= {(6, 6), (15, 6), (15, 5)}
    optimizers = [SGD(bfp, lr=0.1, momentum=0.9), torch.optim.SGD(real, lr=0.1, momentum=0.9)]
    floats = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    x, y = torch.randn(8, 3, 4), torch.arange(8) % 3
    for step in range(40):
        loss = cross_entropy(model(model_input(model, x)), y)
        wanted = nn.functional.cross_entropy(net(x), y)
        if step == 0:
            first = float(wanted.detach())
        loss.backward()
        wanted.backward()
        for optimizer in (*optimizers, floats):
            optimizer.step()
            optimizer.zero_grad()
    assert float(wanted.detach()) < 0.9 * first
    assert abs(float(loss.detach()) - float(wanted.detach())) < 0.05 * float(wanted.detach())


def test_islands_are_named(net):
    words = "float32: bits depend on the machine here"
    model = sb.convert(net, keep_float=["middle", "memory"])
    assert float_islands(model) == [f"middle (Sequential): {words}", f"memory (GRU): {words}"]
    assert words in repr(model)
    assert float_islands(convert(nn.Linear(2, 2))) == []


def test_states_hold_both_kinds(net):
    model = convert(net, keep_float=["middle", "memory"])
    state = {key: value.clone() for key, value in model.state_dict().items()}
    assert state["middle.0.weight"].dtype == torch.float32
    assert state["first.weight.codes"].dtype == torch.int8
    torch.manual_seed(9)
    other = convert(Net(), keep_float=["middle", "memory"])
    load_state(other, state)
    assert all(torch.equal(v, state[k]) for k, v in other.state_dict().items())
    again = convert(Net(), keep_float=["middle", "memory"])
    again.load_state_dict(net.state_dict())
    assert all(torch.equal(v, state[k]) for k, v in again.state_dict().items())


def test_what_an_island_gives_is_quantized_as_an_input(net):
    model = convert(nn.Sequential(nn.Linear(4, 4), nn.Softsign()), keep_float=["1"])
    seen = []
    model[0].register_forward_hook(lambda module, given, y: seen.append(y.detach().dequantize()))
    out = model(BFPTensor.from_real(torch.randn(3, 4)))
    wanted = BFPTensor.from_real(nn.functional.softsign(seen[0].float()))
    assert torch.equal(out.codes, wanted.codes)
    assert out.exponent == wanted.exponent
    assert out.bits == 8


def test_an_island_that_diverges_is_named():
    class Inverse(nn.Module):
        def forward(self, x):
            return 1 / x

    model = convert(nn.Sequential(nn.Identity(), Inverse()), keep_float=["1"])
    with pytest.raises(NonFiniteError, match="tensor \"output of '1'\": expected finite values"):
        model(BFPTensor.from_real(torch.zeros(2, 2)))


def test_an_island_takes_log_probabilities():
    """And hands the gradient on by the logits."""

    class Loss(nn.Module):
        def forward(self, x):
            return -x[:, :2]

    class Scores(nn.Module):
        def __init__(self):
            super().__init__()
            self.score, self.loss = nn.Linear(4, 3), Loss()

        def forward(self, x):
            return self.loss(nn.functional.log_softmax(self.score(x), 1))

    net, x = Scores(), torch.randn(2, 4)
    model = convert(net, keep_float=["loss"])
    for network, given in ((net, x), (model, BFPTensor.from_real(x))):
        (network(given) ** 2).mean().backward()
    found, expected = model.score.weight.grad.dequantize(), net.score.weight.grad.double()
    assert float((found - expected).norm() / expected.norm()) < 0.05


def test_wrong_paths_and_shared_parameters_are_refused(net):
    with pytest.raises(InputError, match=r"keep_float: expected paths of modules .* found 'last'"):
        convert(net, keep_float=["last", "head"])
    with pytest.raises(InputError, match=r"keep_float: .* found ''"):
        convert(net, keep_float=[""])
    net.middle[0].weight = nn.Parameter(torch.randn(6, 4))
    net.first.weight = net.middle[0].weight
    with pytest.raises(UnsupportedError, match=r"middle \(Sequential\): 1 parameter\(s\) that"):
        convert(net, keep_float=["middle", "memory"])
    with pytest.raises(InputError, match="give parameters that stay in float32 to an optimizer of"):
        SGD(convert(Net(), keep_float=["middle", "memory"]).parameters(), lr=0.1)


# --- losses of floats -------------------------------------------------------------------------


def gradients(loss_of):
    torch.manual_seed(3)
    model = convert(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 4)))
    y = model(model_input(model, torch.randn(8, 4)))
    loss_of(y, torch.zeros(8, 4)).backward()
    return [(p.grad.codes, p.grad.exponent) for p in model.parameters()]


def test_the_gradient_of_a_float_loss_is_rounded_once():
    """y**2 over 32 elements has an exact gradient in binary64, so it must be that of our own loss,
    bit for bit, in every layer."""
    ours = gradients(mse_loss)
    floats = gradients(lambda y, t: ((y.dequantize() - t.double()) ** 2).mean())
    for (codes, exponent), (wanted, scale) in zip(floats, ours, strict=True):
        assert torch.equal(codes, wanted)
        assert exponent == scale


@pytest.mark.parametrize("exponents", ["tensor", "row", "row-shift"])
def test_a_loss_of_floats_trains_the_integers(exponents):
    torch.manual_seed(0)
    x = torch.randn(64, 16)
    labels = x[:, :4].argmax(1)
    net = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
    model = convert(net, exponents)
    optimizer = SGD(model.parameters(), lr=0.2, momentum=0.9)
    for _ in range(40):
        scores = torch.log_softmax(model(model_input(model, x)).dequantize(), -1)
        focal = (-((1 - scores.exp()) ** 2) * scores).gather(1, labels[:, None]).mean()
        focal.backward()
        optimizer.step()
        optimizer.zero_grad()
    with torch.no_grad():
        found = model(model_input(model, x)).dequantize()
    assert not found.requires_grad
    assert (found.argmax(1) == labels).float().mean() > 0.9


def test_values_alone_have_no_gradient():
    model = convert(nn.Linear(4, 3))
    y = model(model_input(model, torch.randn(2, 4)))
    assert y.dequantize().requires_grad
    assert y.dequantize().dtype == torch.float64
    assert not y.detach().dequantize().requires_grad
    with pytest.raises(NonFiniteError, match="tensor 'gradient of real numbers': expected finite"):
        (y.dequantize() * torch.inf).sum().backward()


def of_floats(loss, y):
    """The gradient of a loss by the values of a tensor, bfp32."""
    values = y.detach().dequantize().requires_grad_()
    loss(values).backward()
    return BFPTensor.from_real(values.grad, bits=32)


@pytest.mark.parametrize("axis", [1, 0])
def test_the_gradient_of_log_probabilities_is_that_by_logits(axis):
    """As of a policy: the log-probabilities of what was done, by what it was worth."""
    y = BFPTensor.from_real(torch.randn(4, 3)).requires_grad_()
    worth = torch.linspace(-1, 2, 12, dtype=torch.float64).view(4, 3)

    def loss(logits):
        return -(torch.log_softmax(logits, axis) * worth).mean()

    values = torch.log_softmax(y, axis).dequantize()
    assert torch.equal(values, torch.log_softmax(y, axis).detach().dequantize())
    (-(values * worth).mean()).backward()
    expected = of_floats(loss, y).dequantize()
    assert torch.allclose(y.grad.dequantize(), expected, rtol=1e-4, atol=1e-6)


ALIKE = torch.full((4, 3), 1 / 3)


@pytest.mark.parametrize(
    "loss",
    [
        lambda y: functional.triplet_margin_loss(y[:1], y[1:2], y[2:3]),
        lambda y: functional.margin_ranking_loss(y[:, 0], y[:, 1], torch.ones(4)),
        lambda y: functional.poisson_nll_loss(y, ALIKE),
        lambda y: functional.kl_div(torch.log_softmax(y, 1), ALIKE, reduction="batchmean"),
    ],
)
def test_losses_without_a_form_in_integers_say_so(loss):
    y = BFPTensor.from_real(torch.randn(4, 3)).requires_grad_()
    with pytest.warns(FloatWarning, match="has no form in integers .* depend on the machine"):
        found = loss(y)
    found.backward()
    expected = of_floats(loss, y).dequantize()
    assert torch.allclose(y.grad.dequantize(), expected, rtol=1e-4, atol=1e-6)


def test_copies_and_pickles_compute_the_same():
    torch.manual_seed(0)
    layers = (nn.Linear(8, 8), nn.Tanhshrink(), nn.Linear(8, 3), nn.CrossEntropyLoss())
    model = convert(nn.Sequential(*layers), keep_float=["1", "3"])[:3]
    x = BFPTensor.from_real(torch.randn(4, 8))
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert float_islands(twin) == float_islands(model)
        assert torch.equal(twin(x).detach().dequantize(), model(x).detach().dequantize())
