"""The integers of a model measured: what is compared, for networks of every kind."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

import samebits as sb
from samebits.ir.fidelity import MEASURED, WORK, thinned
from samebits.ir.graph import GraphBuilder


def ratio(wanted, found):
    return 10 * np.log10((wanted**2).sum() / ((wanted - found) ** 2).sum())


def test_every_fourth_sample_of_a_feed_forward_network():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 4)).eval()
    x = np.random.default_rng(0).normal(size=(48, 6)).astype(np.float32)
    quantized = sb.quantize(net, x)
    held = x[3::4]
    wanted = net(torch.from_numpy(held)).detach().double().numpy()
    found = np.concatenate([next(iter(quantized.run(row[None]).values())) for row in held])
    (output,) = quantized.fidelity.outputs
    assert quantized.fidelity.samples == 12
    assert abs(output.sqnr_db - ratio(wanted, found)) < 1e-4
    assert output.agreement == (wanted.argmax(1) == found.argmax(1)).mean()
    assert output.wanted == len(set(wanted.argmax(1)))


def test_all_of_few_samples():
    x = np.random.default_rng(0).normal(size=(9, 6)).astype(np.float32)
    torch.manual_seed(0)
    assert sb.quantize(nn.Linear(6, 4), x).fidelity.samples == 9


def test_the_last_quarter_of_few_sequences():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn, self.head = nn.GRU(5, 8, batch_first=True), nn.Linear(8, 2)

        def forward(self, x):
            return self.head(self.rnn(x)[0])

    torch.manual_seed(0)
    x = np.random.default_rng(0).normal(size=(3, 20, 5)).astype(np.float32)
    quantized = sb.quantize(Net().eval(), x)
    assert quantized.fidelity.samples == 3 * 5
    assert quantized.fidelity.worst_db > 20


def test_large_networks_are_measured_on_fewer_samples():
    g = GraphBuilder("large")
    x = g.input("x", "float32", (WORK // 40,))
    graph = g.build([g.add("Neg", [x])])
    assert len(thinned(range(64), graph)) <= 20
    g = GraphBuilder("larger")
    graph = g.build([g.add("Neg", [g.input("x", "float32", (WORK,))])])
    assert len(thinned(range(64), graph)) == MEASURED


def test_fine_tuning_is_measured_again():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10)).eval()
    with_data = sb.quantize(net, "digits")
    tuned = with_data.finetune("digits")
    assert tuned.fidelity is not None
    assert tuned.fidelity != with_data.fidelity
