"""Networks with losses of their own: a VAE, a DQN, a triplet network, a policy, beside float32."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional

from samebits.train import SGD, BFPTensor, GraphedModel, convert, model_input, mse_loss

X = torch.randn(24, 6, generator=torch.Generator().manual_seed(1))
NOISE = torch.randn(24, 3, generator=torch.Generator().manual_seed(2))
TAKEN = torch.arange(24)[:, None] % 3
WORTH = torch.linspace(-1, 1, 24)


def vae(encode, decode):
    hidden = encode(X)
    mu, spread = hidden[:, :3], hidden[:, 3:]
    said = functional.mse_loss(decode(mu + (0.5 * spread).exp() * NOISE), X)
    return said + 0.02 * (-0.5 * (1 + spread - mu * mu - spread.exp()).sum())


def dqn(encode, decode):
    q = encode(X)[:, :3].gather(1, TAKEN)[:, 0]
    return functional.smooth_l1_loss(q, 2 * WORTH)


def triplet(encode, decode):
    y = encode(X)
    near, far = ((y[:8] - other).square().sum(1) for other in (y[8:16], y[16:]))
    return functional.relu(near - far + 1.0).mean()


def policy(encode, decode):
    scores = torch.log_softmax(encode(X)[:, :3], 1)
    return -(scores.gather(1, TAKEN)[:, 0] * WORTH).mean()


@pytest.mark.parametrize("graphed", [False, True])
@pytest.mark.parametrize("task", [vae, dqn, triplet, policy])
def test_it_learns_as_in_float32(task, graphed):
    torch.manual_seed(3)
    nets = [
        nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 6)),
        nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Linear(16, 6)),
    ]
    models = [convert(copy.deepcopy(net)) for net in nets]
    calls = [GraphedModel(model) if graphed else model for model in models]

    def given(model, call):
        return lambda x: call(x if isinstance(x, BFPTensor) else model_input(model, x))

    ours = [given(model, call) for model, call in zip(models, calls, strict=True)]
    parameters = [[p for model in pair for p in model.parameters()] for pair in (models, nets)]
    kinds = (SGD, torch.optim.SGD)
    optimizers = [kind(p, lr=0.1) for kind, p in zip(kinds, parameters, strict=True)]
    losses = []
    for _ in range(30):
        found = [task(*ours), task(*nets)]
        for loss, optimizer in zip(found, optimizers, strict=True):
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        losses.append([float(loss.detach()) for loss in found])
    (first, _), (last, wanted) = losses[0], losses[-1]
    assert last < first - 0.01
    assert abs(last - wanted) < 0.1 * abs(first - wanted)


def test_a_number_that_meets_another_loss_is_one():
    """Their gradients are those of both, each by its factor."""
    grads = []
    for parts in ((1.0, 0.25), (1.0, 0.0), (0.0, 0.25)):
        y = BFPTensor.from_real(X).requires_grad_()
        real, own = mse_loss(y, torch.zeros(24, 6)), y.square().mean()
        assert isinstance(own, BFPTensor)
        loss = parts[0] * real + parts[1] * own
        assert loss.dtype == torch.float64
        (own * 0 + loss if parts[1] else loss).backward()
        grads.append(y.grad.dequantize())
    assert torch.allclose(grads[0], grads[1] + grads[2], rtol=1e-4)


def test_a_graph_is_not_taken_where_its_input_has_a_gradient():
    model = convert(nn.Linear(6, 2))
    graphed, found = GraphedModel(model), []
    for call in (model, graphed, graphed, graphed):
        x = BFPTensor.from_real(X).requires_grad_()
        call(x).sum().backward()
        found.append(x.grad.codes)
    assert all(torch.equal(g, found[0]) for g in found)
