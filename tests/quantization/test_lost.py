"""No dead network leaves without a word: repaired, or warned of with its cause, or refused."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from torch import nn

import samebits as sb
from samebits.errors import FidelityError, FidelityWarning, InputError
from samebits.shipping import ship
from wide_nets import case, outcome


def lost():
    """A perceptron whose features differ by eight decades, behind a function that lets no layer
    take the factors: so do the weights of each row."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Softsign(), nn.Linear(6, 8), nn.Softsign(), nn.Linear(8, 3))
    unit = np.logspace(-7, 0, 6)
    with torch.no_grad():
        net[1].weight /= torch.tensor(unit, dtype=torch.float32)
    x = np.random.default_rng(0).normal(size=(64, 6)) * unit
    x[:, 5] = 1e-3  # says little, and is large beside the others
    x[0, 5] = 1.0
    return net.eval(), x.astype(np.float32)


def heavy_tail():
    """One value in a thousand is a thousand times the others, inside the network."""
    torch.manual_seed(0)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 3)

        def forward(self, x):
            y = self.a(x)
            return self.b(y * y * y * y)

    x = np.random.default_rng(0).normal(size=(64, 8)).astype(np.float32)
    x[5] *= 12
    return Net().eval(), x


def test_more_bits_for_what_would_be_lost():
    net, x = heavy_tail()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        quantized = sb.quantize(net, x[:32])
    assert quantized.fidelity.worst_db > 10
    assert [c.step for c in quantized.quantization.changes][-1] == "repair"
    assert any(t.format.endswith("s16") for t in quantized.quantization.tensors)
    assert quantized.verify("random:20", ["torch"])


def test_formats_that_were_chosen_stay():
    net, x = heavy_tail()
    with pytest.warns(FidelityWarning, match="the integers have lost the network: output"):
        quantized = sb.quantize(net, x[:32], sb.Formats(scheme="symmetric-s8"))
    assert {t.format for t in quantized.quantization.tensors} == {"symmetric-s8"}
    assert quantized.fidelity.cause == "data"
    assert "warning: the integers have lost the network" in str(quantized.report())


def test_a_floor_refuses():
    net, x = heavy_tail()
    with pytest.raises(FidelityError, match="expected outputs that keep at least 90 dB"):
        sb.quantize(net, x[:32], sb.Calibration(floor=90))
    with pytest.raises(InputError, match="--floor: expected a number of dB"):
        sb.quantize(net, x[:32], sb.Calibration(floor="high"))


def test_nothing_is_shipped_below_the_floor(tmp_path):
    net, x = heavy_tail()
    with pytest.raises(FidelityError):
        ship(net, x[:32], tmp_path / "c", sb.Formats(scheme="symmetric-s8"))
    assert not (tmp_path / "c").exists()
    with pytest.warns(FidelityWarning):
        quantized = sb.quantize(net, x[:32], sb.Formats(scheme="symmetric-s8"))
    path = quantized.save(tmp_path / "q.onnx")
    with pytest.raises(FidelityError):  # its file says it
        ship(path, out=tmp_path / "c")
    with pytest.warns(FidelityWarning):
        assert ship(path, None, tmp_path / "c", sb.Calibration(floor="none"), backends=["torch"])


def test_weights_are_named_as_the_cause():
    net, x = lost()
    with pytest.warns(FidelityWarning, match="the cause: weights; --weights symmetric-s16"):
        sb.quantize(net, x, sb.Formats(scheme="asymmetric-s16"))


@pytest.mark.parametrize("seed", range(8))
def test_networks_of_wide_ranges(seed):
    found = outcome(case(seed))
    assert found.sqnr_db >= 6 or (found.warned and found.cause), found


@pytest.mark.slow
def test_three_hundred_networks_of_wide_ranges():
    found = [outcome(case(seed)) for seed in range(300)]
    silent = [seed for seed, o in enumerate(found) if o.sqnr_db < 6 and not o.warned]
    good = [o for o in found if o.sqnr_db > 20]
    assert silent == []
    assert all(o.cause for o in found if o.warned)
    assert sum(o.warned for o in good) <= 0.01 * len(good)
