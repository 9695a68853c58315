"""Random networks whose inputs, channels and weights have ranges drawn over eight decades."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import nn

import samebits as sb
from samebits.errors import FidelityWarning

KINDS = ("dense", "conv", "recurrent", "attention")
DECADES = 8.0
SAMPLES = 48


@dataclass(frozen=True)
class Case:
    """A network, samples to calibrate on, and others that it has not seen."""

    net: nn.Module
    calibration: np.ndarray
    unseen: np.ndarray


@dataclass(frozen=True)
class Outcome:
    """What the worst output keeps on unseen samples, and what was said about it."""

    sqnr_db: float
    warned: bool
    cause: str


class Attention(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x):
        scores = self.q(x) @ self.k(x).transpose(1, 2) / x.shape[-1] ** 0.5
        return self.out(torch.softmax(scores, -1) @ self.v(x))


class Recurrent(nn.Module):
    def __init__(self, features: int, hidden: int, kind: str) -> None:
        super().__init__()
        self.front = nn.Linear(features, hidden)
        self.rnn = getattr(nn, kind)(hidden, hidden, batch_first=True)
        self.head = nn.Linear(hidden, 4)

    def forward(self, x):
        return self.head(self.rnn(torch.relu(self.front(x)))[0])


def decades(rng: np.random.Generator, count: int) -> torch.Tensor:
    """Factors from 10**-d to 10**d, d at most half of DECADES; often all are 1."""
    spread = rng.choice([0.0, 0.0, 0.5, 1.0, 2.0, DECADES / 2])
    return torch.tensor(10.0 ** rng.uniform(-spread, spread, count), dtype=torch.float32)


def widened(rng: np.random.Generator, first: nn.Module, second: nn.Module, undone: bool) -> None:
    """Scale the channels between two layers; the second undoes it, where asked."""
    factors = decades(rng, first.weight.shape[0])
    shape = (-1, *[1] * (first.weight.ndim - 1))
    first.weight.mul_(factors.reshape(shape))
    first.bias.mul_(factors)
    if undone:
        second.weight.div_(factors.reshape(1, -1, *[1] * (second.weight.ndim - 2)))


def dense(rng: np.random.Generator) -> tuple[nn.Module, tuple[int, ...], nn.Module]:
    sizes = [int(n) for n in rng.integers(4, 24, 4)]
    layers = [nn.Linear(a, b) for a, b in zip(sizes, [*sizes[1:], 5], strict=True)]
    with torch.no_grad():
        for a, b in pairwise(layers):
            widened(rng, a, b, bool(rng.random() < 0.7))
    parts = [part for layer in layers for part in (layer, nn.ReLU())][:-1]
    return nn.Sequential(*parts), (sizes[0],), layers[0]


def conv(rng: np.random.Generator) -> tuple[nn.Module, tuple[int, ...], nn.Module]:
    channels = [int(n) for n in rng.integers(2, 9, 3)]
    pads = int(rng.integers(0, 2))
    layers = [nn.Conv2d(channels[i], channels[i + 1], 3, padding=pads) for i in range(2)]
    head = nn.Linear(channels[2], 5)
    with torch.no_grad():
        widened(rng, layers[0], layers[1], bool(rng.random() < 0.7))
    first = [nn.BatchNorm2d(channels[0])] if rng.random() < 0.3 else []
    net = nn.Sequential(
        *(*first, layers[0], nn.ReLU(), layers[1], nn.ReLU()),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), head),
    )
    return net, (channels[0], 8, 8), (first or layers)[0]


def recurrent(rng: np.random.Generator) -> tuple[nn.Module, tuple[int, ...], nn.Module]:
    features, hidden = (int(n) for n in rng.integers(4, 17, 2))
    net = Recurrent(features, hidden, str(rng.choice(["LSTM", "GRU"])))
    return net, (12, features), net.front


def attention(rng: np.random.Generator) -> tuple[nn.Module, tuple[int, ...], nn.Module]:
    width = int(rng.integers(4, 17))
    net = nn.Sequential(nn.Linear(width, width), Attention(width), nn.Linear(width, 4))
    with torch.no_grad():
        widened(rng, net[0], net[1].q, undone=False)
    return net, (6, width), net[0]


MAKERS: dict[str, Callable] = {
    "dense": dense,
    "conv": conv,
    "recurrent": recurrent,
    "attention": attention,
}


def case(seed: int) -> Case:
    """A network of a kind that follows from the seed; features of its input have ranges of their
    own, which the first layer undoes, mostly."""
    rng = np.random.default_rng(seed)
    torch.manual_seed(seed)
    net, shape, first = MAKERS[KINDS[seed % len(KINDS)]](rng)
    axis = 0 if len(shape) == 3 else len(shape) - 1
    factors = decades(rng, shape[axis])
    offsets = factors * float(rng.choice([0.0, 0.0, 3.0])) * torch.randn(shape[axis])
    column = [-1 if i == axis else 1 for i in range(len(shape))]
    x = rng.normal(size=(2 * SAMPLES, *shape)).astype(np.float32)
    x = x * factors.reshape(column).numpy() + offsets.reshape(column).numpy()
    with torch.no_grad():
        if isinstance(first, nn.BatchNorm2d):
            first.running_mean.copy_(offsets)
            first.running_var.copy_(factors**2)
            first.eps = 0.0
        elif rng.random() < 0.8:
            first.weight.div_(factors.reshape(1, -1, *[1] * (first.weight.ndim - 2)))
    return Case(net.eval(), x[:SAMPLES], x[SAMPLES:])


def outcome(given: Case) -> Outcome:
    """Quantize with the defaults, and measure the integers on unseen samples."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        net = sb.quantize(given.net, given.calibration)
    told = [w for w in said if issubclass(w.category, FidelityWarning)]
    with torch.no_grad():
        wanted = given.net(torch.from_numpy(given.unseen)).double().numpy()
    found = integers(net, given.unseen, wanted.shape)
    noise, signal = ((wanted - found) ** 2).sum(), (wanted**2).sum()
    ratio = float(10 * np.log10(signal / noise)) if noise else np.inf
    return Outcome(ratio, bool(told), net.fidelity.cause)


def integers(net: sb.Network, samples: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Outputs of the integers as reals; of a step graph those of all steps."""
    from samebits.ir.many import run_many
    from samebits.ir.sequences import StepSequence, run_sequences
    from samebits.verification.inputs import dequantize, quantize_samples

    graph = net.model.integer
    name, output = graph.own_inputs[0], graph.own_outputs[0]
    value = graph.values[name]
    if graph.states:
        steps = [quantize_samples(s[:, None], value).reshape(-1, *value.shape) for s in samples]
        runs = run_sequences(graph, [StepSequence([codes]) for codes in steps])
        codes = np.stack([run[output] for run in runs])
    else:
        given = [[quantize_samples(s[None], value)] for s in samples]
        codes = run_many(graph, given)[0]
    return dequantize(codes, graph.values[output]).reshape(shape).astype(np.float64)
