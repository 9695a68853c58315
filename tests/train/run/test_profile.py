"""The profile of a training step: its calls, their products, and what it refuses."""

from __future__ import annotations

import itertools

import pytest
import torch

from samebits import kernels
from samebits.errors import UnsupportedError
from samebits.train import cross_entropy
from samebits.train.architectures import build
from samebits.train.run.engine import BfpEngine, OptimizerSettings
from samebits.train.run.profile import StepProfile, profile_step
from samebits.train.run.tasks import OwnLoss

SGD = OptimizerSettings("sgd", 0.01, 0.9, False, 0.0, 0, "stochastic")
BATCH = torch.randn(8, 1, 8, 8), torch.arange(8) % 5


def engine(shards: int = 2, **options) -> BfpEngine:
    return BfpEngine(build("cnn", (1, 8, 8), 5), SGD, shards, 0, **options)


@pytest.fixture(scope="module")
def profile() -> StepProfile:
    if kernels.realisation() != "native":
        pytest.skip("no native kernels")
    ticks = itertools.count()
    return profile_step(engine(), BATCH, 2, clock=lambda: float(next(ticks)))


def test_every_call_takes_one_tick(profile):
    assert {call.seconds for call in profile.calls} == {1.0}
    assert (profile.update, profile.whole) == (1.0, 1.0)
    assert (profile.batch, profile.shards) == (8, 2)


def test_products_are_those_of_the_layers(profile):
    """Of 4 samples: 3x3 convolutions of 1, 16, 32 channels at 8x8, 4x4, 2x2, and 64 to 5."""
    of_layers = {
        "layer '0.0' (Conv2d)": 4 * 64 * 9 * 16,
        "layer '3.0' (Conv2d)": 4 * 16 * 9 * 16 * 32,
        "layer '6.0' (Conv2d)": 4 * 4 * 9 * 32 * 64,
        "layer '10' (Linear)": 4 * 64 * 5,
    }
    for kernel in ("products", "weight_gradient"):
        found = {c.layer: c.products for c in profile.calls if c.kernel == kernel}
        assert found == of_layers, kernel
    found = {c.layer: c.products for c in profile.calls if c.kernel == "input_gradient"}
    assert found == {k: v for k, v in of_layers.items() if k != "layer '0.0' (Conv2d)"}
    assert sum(c.products for c in profile.calls) == 3 * sum(of_layers.values()) - 36864


def test_phases_and_layers(profile):
    """The input, the layers down, the loss, the layers up, and the sum of the rows' losses."""
    passes = [call for call in profile.calls if call.kernel != "loss_units"]
    phases = [call.phase for call in passes]
    first = phases.index("backward")
    assert set(phases[first:]) == {"backward"}
    assert set(phases[:first]) == {"forward"}
    assert (profile.calls[0].kernel, profile.calls[0].layer) == ("quantize", "(input)")
    of_loss = [call.kernel for call in profile.calls if call.layer == "(loss)"]
    assert {"are_below", "entropy", "loss_units"} <= set(of_loss)
    assert of_loss[-1] == "loss_units"
    assert not [call for call in profile.calls if call.layer == ""]
    lasting = {call.layer for call in profile.calls if call.kernel.startswith("batch_norm")}
    assert lasting == {f"layer '{place}.1' (BatchNorm)" for place in (0, 3, 6)}


def test_calls_one_by_one_give_what_they_give_at_once():
    """Gradients of a shard, call by call and at once."""
    if kernels.realisation() != "native":
        pytest.skip("no native kernels")
    measured = engine(1)
    for step in range(4):
        measured.step(BATCH, 0.01, step)
    recorded = measured.recorded(BATCH)
    assert recorded is not None
    routine = recorded.step.routine
    recorded.step(*BATCH, 4)
    before = [g.value().parts[0][0] for g in recorded.step.gradients if g is not None]
    assert routine.seconds("shard", lambda: 0.0) is not None
    after = [g.value().parts[0][0] for g in recorded.step.gradients if g is not None]
    assert all(map(torch.equal, before, after))


def test_a_step_that_is_not_recorded_is_refused():
    with (
        kernels.use("eager"),
        pytest.raises(UnsupportedError, match="the kernels are not the native ones"),
    ):
        profile_step(engine(), BATCH, 1)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"gradient_bits": 16}, "have 16 bits"),
        ({"loss": OwnLoss(cross_entropy, "own")}, "is not the mean cross"),
    ],
)
def test_the_reason_is_said(options, reason):
    with pytest.raises(UnsupportedError, match=reason):
        profile_step(engine(1, **options), BATCH, 1)


def test_sums_of_branches_belong_to_no_layer():
    """Residual additions have no layer; what is not the model's has a name of its own."""
    if kernels.realisation() != "native":
        pytest.skip("no native kernels")
    found = profile_step(BfpEngine(build("resnet8", (1, 8, 8), 5), SGD, 1, 0), BATCH, 1)
    of_none = {call.kernel for call in found.calls if call.layer == ""}
    assert of_none
    assert not of_none & {"products", "weight_gradient", "entropy", "quantize", "loss_units"}
