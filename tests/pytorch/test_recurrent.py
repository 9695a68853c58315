"""Recurrent layers of torch: the interpreter computes what torch computes, in eval mode."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

from samebits.errors import UnsupportedError
from samebits.ir import interpreter
from samebits.ir.rewrite import simplify
from samebits.ir.verify import verify
from samebits.pytorch import import_module


def tensors(result):
    return [t for part in result for t in tensors(part)] if isinstance(result, tuple) else [result]


class Each(nn.Module):
    """Modules on the same sequence: one export for all of them. A module (module, sizes) has
    states of these sizes, which are the next inputs."""

    def __init__(self, *parts):
        super().__init__()
        found = [part if isinstance(part, tuple) else (part, ()) for part in parts]
        self.parts = nn.ModuleList([module for module, _ in found])
        self.shapes = [shape for _, sizes in found for shape in sizes]
        self.counts = [len(sizes) for _, sizes in found]

    def forward(self, x, *states):
        made, at = [], 0
        for module, count in zip(self.parts, self.counts, strict=True):
            given = states[at : at + count]
            at += count
            made += tensors(module(x, *([] if not count else [given if count > 1 else given[0]])))
        return made


def check(module, shape):
    generator = torch.Generator().manual_seed(0)
    shapes = [shape, *getattr(module, "shapes", [])]
    inputs = tuple(torch.empty(s).uniform_(-2, 2, generator=generator) for s in shapes)
    module = module.train()
    with torch.no_grad():
        for tensor in module.parameters():
            tensor.uniform_(-1, 1, generator=generator)
    graph = import_module(module, inputs)
    verify(graph)
    with torch.no_grad():
        expected = copy.deepcopy(module).eval().double()(*(x.double() for x in inputs))
    for made in (graph, simplify(graph)):
        found = interpreter.run(made, [x.numpy() for x in inputs])
        assert len(found) == len(expected)
        for a, b in zip(found, expected, strict=True):
            assert a.shape == tuple(b.shape)
            # Outputs are binary32, torch's are binary64: all between is binary64 on both sides.
            np.testing.assert_allclose(a, b.numpy(), rtol=1e-6, atol=1e-7)
    return graph


X, UNBATCHED = (5, 2, 3), (5, 3)
KINDS = (nn.LSTM, nn.GRU, nn.RNN)


@pytest.mark.parametrize("kind", KINDS)
def test_stacks(kind):
    settings = [
        {},
        {"bias": False},
        {"num_layers": 3, "dropout": 0.5},
        {"bidirectional": True},
        {"num_layers": 2, "bidirectional": True},
        {"num_layers": 2, "batch_first": True},
    ]
    check(Each(*(kind(3, 4, **each) for each in settings)), X)


def test_projection():
    both = {"num_layers": 2, "bidirectional": True}
    parts = [nn.LSTM(3, 4, proj_size=2, **each) for each in ({}, both, {"bias": False})]
    check(Each(*parts, nn.LSTM(3, 4, proj_size=1, bias=False, **both)), X)


def test_sequences_without_a_batch():
    rectified = nn.RNN(3, 4, nonlinearity="relu", num_layers=2)
    check(Each(*(kind(3, 4, num_layers=2) for kind in KINDS), rectified), UNBATCHED)


def test_given_states():
    parts = []
    for layers, directions in ((1, 1), (2, 2)):
        both = {"num_layers": layers, "bidirectional": directions == 2}
        count = layers * directions
        parts.append((nn.LSTM(3, 4, **both), [(count, 2, 4), (count, 2, 4)]))
        parts.append((nn.LSTM(3, 4, proj_size=2, **both), [(count, 2, 2), (count, 2, 4)]))
        parts.append((nn.GRU(3, 4, **both), [(count, 2, 4)]))
    check(Each(*parts), X)


def test_cells():
    h, parts = (2, 4), []
    for bias in (True, False):
        lstm, gru = nn.LSTMCell(3, 4, bias=bias), nn.GRUCell(3, 4, bias=bias)
        rnn = nn.RNNCell(3, 4, bias=bias, nonlinearity="relu")
        parts += [lstm, gru, (lstm, [h, h]), (gru, [h]), (rnn, [h])]
    check(Each(*parts), (2, 3))


def test_between_other_layers():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.lstm = nn.Linear(3, 5), nn.LSTM(5, 4, batch_first=True)
            self.last = nn.Linear(4, 2)

        def forward(self, x):
            y, _ = self.lstm(torch.relu(self.first(x)))
            return [self.last(y[:, -1]), y]

    graph = check(Net(), (2, 5, 3))
    assert [node.op for node in graph.nodes].count("LSTM") == 1


def test_weights_that_are_computed_are_refused():
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.cell = nn.LSTMCell(3, 4)

        def forward(self, x):
            cell = self.cell
            h = x.new_zeros(2, 4)
            return torch.lstm_cell(x, (h, h), cell.weight_ih * x.mean(), cell.weight_hh)

    with pytest.raises(UnsupportedError, match=r"lstm_cell in .*: expected constant weights"):
        import_module(Scaled(), (torch.zeros(2, 3),))
