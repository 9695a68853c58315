"""Networks that are hard to recompute, and the comparison of a step with and without a plan."""

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch
from torch import nn

from samebits.train import BFPTensor, CrossEntropyLoss, convert
from samebits.train.architectures import build
from samebits.train.layers import Dropout

CLASSES = 5


def conv_bn(inputs, outputs, stride=1):
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs)
    )


class Dropouts(nn.Module):
    """Dropout between convolutions and before the logits; max-pool; a hidden linear layer."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            *(conv_bn(3, 8), nn.ReLU(), nn.Dropout(0.3), nn.MaxPool2d(2)),
            *(conv_bn(8, 8), nn.ReLU(), nn.Dropout(0.2), nn.MaxPool2d(3, 2, 1)),
            *(nn.Flatten(), nn.Linear(8 * 4, 16), nn.Tanh(), nn.Dropout(0.5)),
        )
        self.head = nn.Linear(16, CLASSES)

    def forward(self, x):
        return self.head(self.body(x))


class Shared(nn.Module):
    """One block with batch-norm used three times, twice of them on sums; a shared activation."""

    def __init__(self):
        super().__init__()
        self.stem = conv_bn(3, 8)
        self.relu = nn.ReLU()
        self.block = conv_bn(8, 8)
        self.head = nn.Linear(8, CLASSES)
        self.pool = nn.AdaptiveAvgPool2d(1)

    def forward(self, x):
        y = self.relu(self.stem(x))
        z = self.relu(self.block(y) + y)
        z = self.relu(self.block(z) + y)
        z = self.block(z) + z + y
        return self.head(torch.flatten(self.pool(z), 1))


class Inner(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.a, self.b = conv_bn(width, width), conv_bn(width, width)
        self.act = nn.ReLU6()

    def forward(self, x):
        return torch.cat([self.act(self.a(x)), self.b(x)], 1)


class Nested(nn.Module):
    """Blocks in blocks, concatenation, average pool, an input read by two layers, views."""

    def __init__(self):
        super().__init__()
        self.left, self.right = nn.Conv2d(3, 4, 1), nn.Conv2d(3, 4, 3, padding=1)
        self.inner = Inner(4)
        self.outer = nn.Sequential(Inner(8), nn.AvgPool2d(2), nn.Identity())
        self.head = nn.Linear(16 * 16, CLASSES)

    def forward(self, x):
        y = self.left(x) + self.right(x)
        y = self.outer(self.inner(y))
        return self.head(y.reshape(x.shape[0], -1))


class InPlace(nn.Module):
    """Float only: operations in place, a scale of its own, functional calls, a tied weight."""

    def __init__(self):
        super().__init__()
        self.stem = conv_bn(3, 8)
        self.relu = nn.ReLU(inplace=True)
        self.conv = nn.Conv2d(8, 8, 3, padding=1)
        self.scale = nn.Parameter(torch.linspace(0.5, 1.5, 8).view(1, 8, 1, 1))
        self.first = nn.Linear(8, 8)
        self.second = nn.Linear(8, 8)
        self.second.weight = self.first.weight
        self.head = nn.Linear(8, CLASSES)

    def forward(self, x):
        y = self.relu(self.stem(x))
        z = self.conv(y)
        z += y
        z = nn.functional.relu(z, inplace=True)
        z = z * self.scale
        z.add_(1)
        z = nn.functional.dropout(z, 0.1, self.training)
        z = z.mean((2, 3)).view(z.size(0), -1)
        z = torch.tanh(self.first(z)) * torch.sigmoid(self.second(z))
        z = z * z + z
        return self.head(z)


class Words(nn.Module):
    """Embedding, layer norm, table activations."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(11, 8)
        self.norm = nn.LayerNorm(8)
        self.hidden, self.act = nn.Linear(8, 8), nn.GELU()
        self.flat, self.head = nn.Flatten(), nn.Linear(8 * 6, CLASSES)

    def forward(self, x):
        y = self.norm(self.table(x))
        return self.head(self.flat(self.act(self.hidden(y)) + y))


class Tokens(nn.Module):
    """Parameters of its own, repeated and in a product; attention by products and a masked
    softmax."""

    def __init__(self):
        super().__init__()
        self.patches = nn.Sequential(nn.Conv2d(3, 8, 4, 4), nn.AdaptiveAvgPool2d(2))
        self.first = nn.Parameter(torch.randn(1, 1, 8))
        self.places = nn.Parameter(torch.randn(5, 8))
        self.gain, self.mix = nn.Parameter(torch.tensor(0.5)), nn.Parameter(torch.randn(8, 8))
        self.register_buffer("later", torch.ones(5, 5, dtype=torch.bool).triu(1))
        self.norm, self.head = nn.LayerNorm(8), nn.Linear(8, CLASSES)

    def forward(self, x):
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat((self.first.expand(x.shape[0], -1, -1), x), 1) + self.places
        x = self.norm(x)
        scores = (x @ x.transpose(1, 2) * self.gain).masked_fill(self.later, -torch.inf)
        x = torch.softmax(scores, -1) @ (x @ self.mix)
        return self.head(x[:, -1])


NETS = {
    "resnet8": lambda: build("resnet8", (3, 8, 8), CLASSES),
    "resnet18": lambda: build("resnet18", (3, 8, 8), CLASSES),
    "mobilenetv2": lambda: build("mobilenetv2", (3, 8, 8), CLASSES),
    "smooth": lambda: build("smooth", (3, 8, 8), CLASSES),
    "dropout": Dropouts,
    "shared": Shared,
    "nested": Nested,
    "in place": InPlace,
    "words": Words,
    "tokens": Tokens,
}


@dataclass
class Case:
    """A model with its input, its loss and what one step leaves behind."""

    model: nn.Module
    inputs: torch.Tensor
    labels: torch.Tensor
    criterion: nn.Module

    def loss(self, output):
        return self.criterion(output, self.labels)

    def copy(self):
        return Case(copy.deepcopy(self.model), self.inputs, self.labels, self.criterion)

    def state(self):
        """What `restore` brings back: parameters, buffers and counters, no gradients."""
        counters = [(m, m.step) for m in self.model.modules() if isinstance(m, Dropout)]
        return copy.deepcopy(self.model.state_dict()), counters

    def restore(self, state):
        tensors, counters = state
        self.model.load_state_dict(tensors)
        self.model.zero_grad()
        for dropout, step in counters:
            dropout.step = step

    def step(self, forward):
        """One forward and backward pass; adds to the gradients."""
        loss = self.loss(forward(self.inputs))
        loss.backward()
        return loss.detach()

    def outcome(self):
        """Everything that a step may change, as named tensors and numbers."""
        found = {f"state {k}": v.clone() for k, v in self.model.state_dict().items()}
        for name, parameter in self.model.named_parameters():
            gradient = parameter.grad
            if isinstance(gradient, BFPTensor):
                for i, (codes, exponent) in enumerate(sorted(gradient.parts, key=str)):
                    found[f"gradient {name} {i}"] = codes.clone()
                    found[f"exponent {name} {i}"] = torch.as_tensor(exponent)
            elif gradient is not None:
                found[f"gradient {name}"] = gradient.clone()
        found["generator"] = torch.get_rng_state()
        return found


def make(name, numerics, batch=4, size=8, seed=0):
    """A case of a network, its weights and data from `seed`."""
    torch.manual_seed(seed)
    model = NETS[name]().train()
    labels = torch.randint(CLASSES, (batch,))
    images = torch.randn(batch, 3, size, size)
    inputs = torch.randint(11, (batch, 6)) if name == "words" else images
    if numerics == "float32":
        return Case(model, inputs, labels, nn.CrossEntropyLoss())
    if name != "words":
        inputs = BFPTensor.from_real(inputs)
    return Case(convert(model), inputs, labels, CrossEntropyLoss())


def assert_same_outcome(expected, found):
    """Equal in every bit, or the names of what differs."""
    assert expected.keys() == found.keys()
    wrong = []
    for name, a in expected.items():
        b = found[name]
        if a.dtype != b.dtype or a.shape != b.shape or not torch.equal(a, b):
            wrong.append(name)
    assert not wrong, f"{len(wrong)} of {len(expected)} differ, first: {wrong[:5]}"
