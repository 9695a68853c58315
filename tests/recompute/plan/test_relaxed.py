"""Bounds by the relaxation: below every choice of small networks, near the best of a U-Net."""

import importlib.util
from pathlib import Path

import torch
from torch import nn

import samebits as sb
from samebits.recompute.plan.relaxed import relaxed_bound

HERE = Path(__file__).parent


def test_no_choice_is_below_the_bound():
    spec = importlib.util.spec_from_file_location("optimum", HERE / "test_optimum.py")
    optimum = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(optimum)
    close = total = 0
    for seed in range(12):
        network, costs = optimum.random_network(seed, 8)
        outcomes = list(optimum.every_choice(network, costs))
        levels = sorted({level for _, level in outcomes})
        for budget in levels[:: max(1, len(levels) // 3)]:
            best = min(cost for cost, level in outcomes if level <= budget)
            bound = relaxed_bound(network, costs, budget)
            assert bound <= best
            close, total = close + (bound >= 0.9 * best), total + 1
    assert close > total / 2


def test_the_bound_of_a_u_net_is_near_its_plan():
    def twice(a, b):
        parts = [nn.Conv2d(a, b, 3, padding=1), nn.BatchNorm2d(b), nn.ReLU()]
        return nn.Sequential(*parts, nn.Conv2d(b, b, 3, padding=1), nn.BatchNorm2d(b), nn.ReLU())

    class UNet(nn.Module):
        def __init__(self):
            super().__init__()
            self.down, self.bottom, self.pool = twice(3, 8), twice(8, 16), nn.MaxPool2d(2)
            self.up, self.last = nn.ConvTranspose2d(16, 8, 2, 2), twice(16, 8)

        def forward(self, x):
            a = self.down(x)
            return self.last(torch.cat([self.up(self.bottom(self.pool(a))), a], 1))

    torch.manual_seed(0)
    made = sb.plan(UNet().train(), torch.randn(2, 3, 32, 32), budget="75%").plan
    assert 0.9 * made.recompute_ps <= made.bound_ps <= made.recompute_ps
