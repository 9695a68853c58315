"""Averages of weights against the definition, for equality."""

from __future__ import annotations

import random

import pytest
import torch
from torch import nn

from compare import assert_same
from samebits.errors import CheckpointError, InputError
from samebits.spec import formats
from samebits.spec.training import average
from samebits.spec.training.optimizer import rows_of
from samebits.train import EMA, SGD, BFPTensor, CrossEntropyLoss, convert


def build(by_rows=False):
    torch.manual_seed(3)
    net = nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(64, 3)
    )
    return convert(net, exponents="row" if by_rows else "tensor")


def weight_of(parameter):
    codes, exponent = parameter.parts[0]
    by_rows = isinstance(exponent, torch.Tensor)
    exponents = tuple(exponent.flatten().tolist()) if by_rows else exponent
    return codes.flatten().tolist(), parameter.delayed.flatten().tolist(), exponents


def write(parameter, weights):
    """Give a parameter the weights of its rows, or of its one row."""
    codes, delayed, exponents = zip(*weights, strict=True)
    shape = parameter.shape
    parameter.codes.copy_(torch.tensor([c for row in codes for c in row]).view(shape))
    parameter.delayed.copy_(torch.tensor([a for row in delayed for a in row]).view(shape))
    own = parameter.parts[0][1]
    parameter.set_exponent(
        torch.tensor(exponents) if isinstance(own, torch.Tensor) else exponents[0]
    )


@pytest.mark.parametrize("by_rows", [False, True])
@pytest.mark.parametrize("decay", [0.5, 0.9, 0.999, 0.999999, 1e-9])
def test_equals_the_definition(realisation, decay, by_rows):
    """Over weights that grow, shrink suddenly by 2**20, vanish and come back, row by row."""
    model, rng = build(by_rows), random.Random(decay)
    ema = EMA(model, decay)
    parameters = dict(model.named_parameters())
    defined = {n: [average.start(r) for r in rows_of(weight_of(p))] for n, p in parameters.items()}
    for step in range(12):
        for name, p in parameters.items():
            news = []
            for row in rows_of(weight_of(p)):
                scale = 0.0 if step == 6 else 2.0 ** rng.choice((-20, -3, 0, 1, 12))
                news.append(formats.initial_weight([rng.gauss(0, scale) for _ in row[0]]))
            write(p, news)
            pairs = zip(defined[name], news, strict=True)
            defined[name] = [average.update(old, new, decay) for old, new in pairs]
        ema.update()
        state = ema.state_dict()
        for name, own in defined.items():
            codes = [s for row, _ in own for s in row]
            assert_same(state[f"{name}.average"].flatten(), codes, codes)
            assert state[f"{name}.average_exponent"].flatten().tolist() == [e for _, e in own]
            assert max(map(abs, codes)) < 1 << average.AVERAGE_BITS
    ema.apply_to(model)
    for name, p in parameters.items():
        assert rows_of(weight_of(p)) == [average.averaged(row) for row in defined[name]], name


def test_averaged_weights_have_the_width_of_their_layer(realisation):
    model = convert(nn.Sequential(nn.Linear(6, 4)), exponents="row", widths=(5, 9, 32))
    weight = model[0].weight
    before, exponents = weight.codes.clone(), weight.exponent.flatten().tolist()
    ema = EMA(model, 0.5)
    ema.apply_to(model)  # of weights that have not moved: they are themselves
    assert weight.codes.equal(before)
    assert weight.exponent.flatten().tolist() == exponents
    assert int(weight.codes.abs().max()) <= 15


@pytest.mark.parametrize(("decay", "steps"), [(0.9, 200), (0.999, 20_000)])
def test_an_average_arrives(decay, steps):
    """Within 2**-30 / (1 - decay) of the largest weight of one that stands still."""
    weight = formats.initial_weight([1.0, -0.7, 0.3, 1e-4])
    s = average.start(([0] * 4, [0] * 4, weight[2]))
    for _ in range(steps):
        s = average.update(s, weight, decay)
    joint, exponent = formats.join(weight)
    for code, j in zip(s[0], joint, strict=True):
        assert abs(code * 2.0 ** s[1] - j * 2.0**exponent) <= 2.0**-30 / (1 - decay) * (1 + 2**-15)


def train_step(model, optimizer):
    x = torch.randn(4, 2, 4, 4, generator=torch.Generator().manual_seed(1))
    CrossEntropyLoss()(model(BFPTensor.from_real(x)), torch.tensor([0, 1, 2, 0])).backward()
    optimizer.step()
    optimizer.zero_grad()


def test_applied_in_a_block(realisation):
    """Training goes on with the model's own weights, as if nothing had been."""
    runs = []
    for looks in (False, True):
        model = build()
        optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9)
        ema = EMA(model, 0.9)
        for _ in range(6):
            train_step(model, optimizer)
            ema.update()
            if looks:
                own = {name: v.clone() for name, v in model.state_dict().items()}
                with ema.applied():
                    changed = model.state_dict()
                    assert any(not torch.equal(changed[name], v) for name, v in own.items())
                assert all(torch.equal(model.state_dict()[name], v) for name, v in own.items())
        runs.append(model.state_dict())
    assert all(torch.equal(runs[0][name], runs[1][name]) for name in runs[0])


def test_state_is_taken_back(realisation):
    model = build()
    optimizer, ema = SGD(model.parameters(), lr=0.1), EMA(model, 0.9)
    train_step(model, optimizer)
    ema.update()
    twin = EMA(build(), 0.9)
    twin.load_state_dict(ema.state_dict())
    for name, value in ema.state_dict().items():
        assert torch.equal(twin.state_dict()[name], value)
    other = build()
    twin.apply_to(other)
    ema.apply_to(model)
    for (name, a), b in zip(model.named_parameters(), other.parameters(), strict=True):
        assert weight_of(a) == weight_of(b), name


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s: s.pop("0.bias.average"), "found '0.bias.average' missing"),
        (lambda s: s.update(x=torch.zeros(1)), "found 'x' beside them"),
        (
            lambda s: s.update({"0.bias.average": torch.zeros(3, dtype=torch.int32)}),
            "0.bias.average: expected torch.int32 (4,), found torch.int32 (3,)",
        ),
        (
            lambda s: s["0.bias.average"].fill_(1 << 30),
            "0.bias.average: expected magnitudes below 1073741824, found 1073741824",
        ),
        (
            lambda s: s["0.bias.average_exponent"].fill_(512),
            "0.bias.average_exponent: expected magnitudes below 512, found 512",
        ),
    ],
)
def test_wrong_states_are_refused(change, message):
    ema = EMA(build())
    before = ema.state_dict()
    state = {name: value.clone() for name, value in before.items()}
    change(state)
    with pytest.raises(CheckpointError) as caught:
        ema.load_state_dict(state)
    assert message in str(caught.value)
    assert all(torch.equal(ema.state_dict()[name], v) for name, v in before.items())


def test_what_an_average_takes():
    with pytest.raises(InputError, match=r"decay: expected a number in \(0, 1\), found 1.0"):
        EMA(build(), 1.0)
    with pytest.raises(InputError, match="parameter 'weight': expected a BFP parameter, found"):
        EMA(nn.Linear(2, 2))
    with pytest.raises(InputError, match=r"of the average; '0\.bias' is another"):
        EMA(build()).apply_to(convert(nn.Sequential(nn.Linear(3, 2))))
