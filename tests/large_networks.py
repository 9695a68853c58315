"""Networks that are large for a search: as modules, and as graphs of sub-layers."""

from __future__ import annotations

import random

import torch
from torch import Tensor, nn

from samebits.recompute.network.sublayer import Loss, PassNetwork, SubLayer

GROWTH = 32


def _narrow(inputs: int, outputs: int, size: int) -> list[nn.Module]:
    conv = nn.Conv2d(inputs, outputs, size, padding=size // 2, bias=False)
    return [nn.BatchNorm2d(inputs), nn.ReLU(inplace=True), conv]


class DenseBlock(nn.Module):
    """Every layer reads all results before it, concatenated (Huang et al. 2017)."""

    def __init__(self, count: int, inputs: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Sequential(
                *_narrow(inputs + i * GROWTH, 4 * GROWTH, 1), *_narrow(4 * GROWTH, GROWTH, 3)
            )
            for i in range(count)
        )

    def forward(self, x: Tensor) -> Tensor:
        found = [x]
        for layer in self.layers:
            found.append(layer(torch.cat(found, 1)))
        return torch.cat(found, 1)


def densenet121(classes: int = 10) -> nn.Module:
    """DenseNet-121, 431 operations."""
    width, parts = 64, [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64)]
    parts += [nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)]
    for count in (6, 12, 24, 16):
        parts.append(DenseBlock(count, width))
        width += count * GROWTH
        if count != 16:
            parts += [*_narrow(width, width // 2, 1), nn.AvgPool2d(2)]
            width //= 2
    head = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, classes))
    return nn.Sequential(*parts, nn.BatchNorm2d(width), nn.ReLU(inplace=True), *head)


class Block(nn.Module):
    """A layer of a transformer, of single operations."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.maps = nn.ModuleList(nn.Linear(width, width) for _ in range(4))
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norms[0](x)
        parts = (m(y).reshape(x.shape[0], x.shape[1], self.heads, -1) for m in self.maps[:3])
        q, k, v = (part.transpose(1, 2) for part in parts)
        weights = torch.softmax(torch.matmul(q, k.transpose(-1, -2)) * 0.25, -1)
        y = torch.matmul(weights, v).transpose(1, 2).reshape(x.shape)
        x = x + self.maps[3](y)
        return x + self.down(nn.functional.gelu(self.up(self.norms[1](x))))


def transformer(layers: int = 24, width: int = 64, heads: int = 4) -> nn.Module:
    """A transformer, 24 operations a layer."""
    return nn.Sequential(*(Block(width, heads) for _ in range(layers)), nn.LayerNorm(width))


def layer(index: int, inputs: list[int], sizes: list[int], needs: list[int]) -> SubLayer:
    """Sub-layer `index` of a graph; sizes: of all values up to its own, in bytes."""
    inputs = list(dict.fromkeys(inputs))
    trained = [v for v in inputs if v]
    fresh = tuple(sizes[v] for v in trained)
    return SubLayer(
        f"layer {index}",
        "any",
        tuple(inputs),
        (1, sizes[index] // 4),
        sizes[index],
        needs=tuple(sorted(set(needs))),
        forward_peak=sizes[index],
        backward_peak=sum(fresh) + 8,
        gradients=tuple((v, (at,)) for at, v in enumerate(trained)),
        fresh=fresh,
        operations=5 + index * 13 % 40,
    )


def graph(count: int, seed: int = 3) -> PassNetwork:
    """A chain in which every fifth sub-layer also reads one of the twelve values before."""
    rng = random.Random(seed)
    layers = [SubLayer("input", "input", shape=(1, 25), size=100, differentiable=False)]
    sizes = [100]
    for i in range(1, count + 1):
        inputs = [i - 1]
        if rng.random() < 0.2:
            inputs.append(rng.randrange(max(0, i - 12), i))
        sizes.append(rng.choice([32, 64, 96, 128]))
        layers.append(layer(i, inputs, sizes, [v for v in (*inputs, i) if rng.random() < 0.6]))
    return PassNetwork(tuple(layers), count, Loss(4, 8, 8, 8))


def dense_graph(counts: tuple[int, ...] = (6, 12, 24, 16)) -> PassNetwork:
    """The concatenations of DenseNet-121 with the products between them, as a graph."""
    layers = [SubLayer("input", "input", shape=(1, 64), size=256, differentiable=False)]
    sizes = [256]

    def add(inputs: list[int], size: int, needed: bool) -> int:
        sizes.append(size)
        layers.append(layer(len(layers), inputs, sizes, inputs if needed else []))
        return len(layers) - 1

    last = 0
    for count in counts:
        found = [last]
        for _ in range(count):
            joined = add(found, sum(sizes[v] for v in found), False)
            normal = add([joined], sizes[joined], True)
            narrow = add([normal], 128, True)
            found.append(add([add([narrow], 128, True)], 32, True))
        last = add([add(found, sum(sizes[v] for v in found), False)], 64, True)
    return PassNetwork(tuple(layers), len(layers) - 1, Loss(4, 8, 8, 8))
