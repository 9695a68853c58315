"""What one way in does by itself: clipping is tried where there is attention."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import samebits as sb
from given_options import called
from samebits.quantization.front import attends


class Attention(nn.Module):
    """One head over few features."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.inner, self.outer = nn.Linear(8, 24), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.inner(x).split(8, -1)
        y: torch.Tensor = self.outer(F.scaled_dot_product_attention(q, k, v))
        return y


class Squeeze(nn.Module):
    """Channels scaled by what they hold: products of elements, and of weights, alone."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.sigmoid(self.gate(x))


class Square(nn.Module):
    """One tensor times itself."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ x.transpose(1, 2)


X = torch.randn(24, 5, 8, generator=torch.Generator().manual_seed(4))
X[::3, 0, 0] *= 30  # large elements, few


@pytest.mark.parametrize(
    ("net", "expected"), [(Attention(), True), (Square(), True), (Squeeze(), False)]
)
def test_attention_is_seen(net, expected):
    assert attends(sb.load(net, example=X[:1]).model.real) is expected


def test_the_better_range_is_kept():
    """As if it had been asked for; and what was tried is in the report."""
    found = sb.quantize(Attention(), X).quantization
    assert [step.name for step in found.steps] == ["plain", "clip at the least squared error"]
    assert found.held_out == 6
    tried = found.steps[1]
    assert tried.kept == (tried.sqnr_db > found.steps[0].sqnr_db + 0.11)
    kept = "mse" if tried.kept else "minmax"
    assert found.settings.calibration == kept
    assert (
        sb.quantize(Attention(), X, sb.Calibration(calibrate=kept)).quantization.tensors
        == found.tensors
    )


@pytest.mark.parametrize(
    ("net", "samples", "options"),
    [(Attention(), X, {"calibrate": "minmax"}), (Attention(), X[:3], {}), (Squeeze(), X, {})],
)
def test_nothing_is_tried(net, samples, options):
    """Where it was chosen, where there is too little to measure on, and without attention."""
    found = called(sb.quantize, source=net, calibration=samples, **options).quantization
    assert (found.steps, found.settings.calibration) == ((), "minmax")
