"""Networks whose states come in and go out, as voice-activity detectors have them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from samebits.ir import Graph
from samebits.ir.rewrite import simplify
from samebits.pytorch import import_module

Array = np.ndarray[Any, Any]
FRAME, FEATURES, HIDDEN = 32, 8, 12


class Detector(nn.Module):
    """A frame of samples -> Conv1d -> LSTM -> Linear -> Sigmoid. parts: time steps of a frame."""

    def __init__(self, parts: int = 1, layers: int = 1) -> None:
        super().__init__()
        self.features = nn.Conv1d(1, FEATURES, FRAME // parts, FRAME // parts)
        self.lstm = nn.LSTM(FEATURES, HIDDEN, layers)
        self.head = nn.Linear(HIDDEN, 1)

    def forward(self, x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, ...]:
        features = torch.relu(self.features(x)).permute(2, 0, 1)
        y, (hn, cn) = self.lstm(features, (h, c))
        return torch.sigmoid(self.head(y[-1])), hn, cn


class Layers(nn.Module):
    """Sequences through recurrent layers, whose states are given and returned."""

    def __init__(self, kind: type[nn.RNNBase], layers: int = 1) -> None:
        super().__init__()
        self.layers = kind(FEATURES, HIDDEN, layers)
        self.head = nn.Linear(HIDDEN, 2)

    def forward(self, x: Tensor, *states: Tensor) -> tuple[Tensor, ...]:
        y, after = self.layers(x, states if len(states) > 1 else states[0])
        return (self.head(y), *(after if isinstance(after, tuple) else (after,)))


class OneCell(nn.Module):
    """An LSTMCell or GRUCell, called once a frame."""

    def __init__(self, kind: type[nn.RNNCellBase]) -> None:
        super().__init__()
        self.cell = kind(FEATURES, HIDDEN)
        self.head = nn.Linear(HIDDEN, 2)

    def forward(self, x: Tensor, *states: Tensor) -> tuple[Tensor, ...]:
        after = self.cell(x, states if len(states) > 1 else states[0])
        after = after if isinstance(after, tuple) else (after,)
        return (torch.sigmoid(self.head(after[0])), *after)


class Packed(nn.Module):
    """An LSTMCell whose state is h and c in one tensor, as in the fifth version of Silero."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.LSTMCell(FEATURES, HIDDEN)
        self.head = nn.Linear(HIDDEN, 1)

    def forward(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        h, c = self.cell(x, (state[0], state[1]))
        return torch.sigmoid(self.head(torch.relu(h))), torch.stack((h, c))


class ByHand(nn.Module):
    """An LSTM in elementary operators; joined: one product of x and h side by side."""

    def __init__(self, joined: bool = False) -> None:
        super().__init__()
        self.joined = joined
        self.x = nn.Linear(FEATURES + HIDDEN * joined, 4 * HIDDEN)
        self.h = nn.Linear(HIDDEN, 4 * HIDDEN)
        self.head = nn.Linear(HIDDEN, 2)

    def forward(self, x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, ...]:
        sums = self.x(torch.cat((x, h), 1)) if self.joined else self.x(x) + self.h(h)
        i, f, g, o = sums.chunk(4, 1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        h = torch.sigmoid(o) * torch.tanh(c)
        return self.head(h), h, c


class Elman(nn.Module):
    """h' = tanh(W x + U h)."""

    def __init__(self) -> None:
        super().__init__()
        self.x, self.h = nn.Linear(FEATURES, HIDDEN), nn.Linear(HIDDEN, HIDDEN, bias=False)
        self.head = nn.Linear(HIDDEN, 2)

    def forward(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        h = torch.tanh(self.x(x) + self.h(h))
        return self.head(h), h


class Stream(nn.Module):
    """A convolution over time whose state is the last two frames."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv1d(FEATURES, 6, 3), nn.Linear(6, 2)

    def forward(self, x: Tensor, cache: Tensor) -> tuple[Tensor, Tensor]:
        whole = torch.cat((cache, x), 2)
        return self.head(torch.relu(self.conv(whole))[:, :, -1]), whole[:, :, -2:]


def graph_of(
    module: nn.Module, shapes: Sequence[Sequence[int]], names: str, seed: int = 0
) -> Graph:
    """The float graph of a module with random weights, of inputs of these shapes.

    names: of the inputs and outputs, such as "x h > y hn".
    """
    torch.manual_seed(seed)
    for parameter in module.parameters():
        nn.init.uniform_(parameter, -0.6, 0.6)
    graph = simplify(import_module(module.eval(), tuple(torch.zeros(*shape) for shape in shapes)))
    before, after = (part.split() for part in names.split(" > "))
    return renamed(
        graph, dict(zip((*graph.inputs, *graph.outputs), (*before, *after), strict=True))
    )


def renamed(graph: Graph, names: dict[str, str]) -> Graph:
    """The graph with other names of some values."""

    def of(values: Sequence[str]) -> tuple[str, ...]:
        return tuple(names.get(name, name) for name in values)

    nodes = [replace(n, inputs=of(n.inputs), outputs=of(n.outputs)) for n in graph.nodes]
    values = {
        names.get(name, name): replace(value, name=names.get(name, name))
        for name, value in graph.values.items()
    }
    ends = of(graph.inputs), of(graph.outputs)
    return Graph(graph.name, *ends, tuple(nodes), graph.constants, values, graph.states)


def frames(shape: Sequence[int], sequences: int = 2, calls: int = 30, seed: int = 1) -> Array:
    """[sequences, calls, *shape]: noise that swells and fades."""
    random = np.random.default_rng(seed)
    loud = 0.1 + np.abs(np.sin(np.arange(calls) / 5)).reshape(-1, *[1] * len(shape))
    return (random.normal(size=(sequences, calls, *shape)) * loud).astype(np.float32)
