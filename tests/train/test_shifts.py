"""What shifts of channels promise (docs/spec/training.md 12.4): outliers cost the others nothing.

That they compute the bits of the plain-integer reference is in `test_rows_and_widths`.
"""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn

from samebits.errors import CheckpointError, RangeError
from samebits.spec.training import norm, pointwise, rows
from samebits.spec.training.layers import Array, ExactSums, Parameter
from samebits.train import BFPTensor, convert, cross_entropy
from samebits.train.convert import model_input
from samebits.train.deferred import deferred_updates
from samebits.train.layers import load_state
from samebits.train.operations.pointwise import concat
from samebits.train.shifts import ChannelPeaks, PeakUpdate

CHANNELS, OUTLIER = 256, 3


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def outlying(kind: str, size: float) -> nn.Module:
    """A layer that gives 256 channels of standard normal numbers, one times `size`."""
    layers: dict[str, nn.Module] = {
        "linear": nn.Linear(CHANNELS, CHANNELS, bias=False),
        "conv2d": nn.Conv2d(CHANNELS, CHANNELS, 1, bias=False),
        "batch_norm": nn.BatchNorm1d(CHANNELS),
        "layer_norm": nn.LayerNorm(CHANNELS),
    }
    layer = layers[kind]
    with torch.no_grad():
        if not kind.endswith("norm"):
            layer.weight.copy_(torch.eye(CHANNELS).view_as(layer.weight))
        layer.weight[OUTLIER] *= size
    return layer


def error_of_others(kind: str, exponents: str) -> float:
    """Relative error of all channels but the outlier of 100, of 8 bits beside real numbers."""
    real = outlying(kind, 100.0)
    model = convert(real, exponents=exponents).train()
    x = normal(64, CHANNELS)
    given = BFPTensor.from_real(x[:, :, None, None] if kind == "conv2d" else x, by_rows=True)
    for _ in range(2):  # the first pass finds the outlier
        y = model(given).detach()
    found = (y if y.sums is None else y.narrowed()).detach().dequantize()
    wanted = real.double()(given.dequantize()).detach()
    keep = [c for c in range(CHANNELS) if c != OUTLIER]
    return float((found - wanted)[:, keep].norm() / wanted[:, keep].norm())


KINDS = ("linear", "conv2d", "batch_norm", "layer_norm")


@pytest.mark.parametrize("kind", KINDS)
def test_a_channel_of_a_hundred_leaves_the_others_within_1_2_percent(kind, record_property):
    figures = {name: error_of_others(kind, name) for name in ("row-shift", "row")}
    record_property(f"outlier.{kind}", json.dumps(figures))
    assert figures["row-shift"] <= 0.012
    assert figures["row"] > 0.2


@pytest.mark.parametrize(("exponents", "least", "most"), [("row-shift", 0, 0.03), ("row", 0.1, 1)])
def test_weight_gradients_of_ordinary_inputs(exponents, least, most, record_property):
    """Those of 15 inputs beside one of 100, and float64's."""
    hidden = nn.Linear(12, 16, bias=False)
    with torch.no_grad():
        hidden.weight.copy_(normal(16, 12, seed=1) * 0.2)
        hidden.weight[OUTLIER] *= 100
    real = nn.Sequential(hidden, nn.Linear(16, 4))
    model = convert(real, exponents=exponents)
    real.double()
    x, labels = BFPTensor.from_real(normal(64, 12), by_rows=True), torch.arange(64) % 4
    for _ in range(2):  # the first pass finds the outlier
        model.zero_grad()
        cross_entropy(model(x), labels).backward()
    nn.functional.cross_entropy(real(x.dequantize()), labels).backward()
    found, wanted = model[1].weight.grad.dequantize(), real[1].weight.grad
    keep = [c for c in range(16) if c != OUTLIER]
    error = float((found - wanted)[:, keep].norm() / wanted[:, keep].norm())
    record_property(f"weights.{exponents}", json.dumps(error))
    assert least <= error <= most


def test_ordinary_channels_compute_what_rows_compute():
    """Channels within twice the median have no shift: the bits of `row`."""
    net = nn.Sequential(nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, 3))
    with torch.no_grad():
        net[0].weight.copy_(torch.eye(6)[:, :5] + 0.5)
        net[0].bias.zero_()
    outputs = []
    for exponents in ("row", "row-shift"):
        model = convert(net, exponents=exponents)
        x = model_input(model, normal(7, 5).abs())
        for _ in range(3):
            y = model(x)
        outputs.append((y.codes.tolist(), y.exponent.tolist()))
    assert outputs[0] == outputs[1]


@pytest.mark.parametrize(
    ("peaks", "shifts"),
    [
        ([0.0, 0.0], None),
        ([1.0, 2.0, 1.0], None),  # twice the median
        ([1.0, 2.0 + 2**-51, 1.0], [0, 4, 0]),
        ([1.0, 32.0, 1.0], [0, 4, 0]),
        ([1.0, 33.0, 0.0, 1.0], [0, 8, 0, 0]),
        ([1.0, 512.0, 513.0, 1.0, 1.0], [0, 8, 12, 0, 0]),
        ([1.0, 1e30, 1.0], [0, 12, 0]),
        ([1.0, 3.0], [0, 4]),  # the lower of two middle ones
        ([0.0, 0.0, 0.0, 5.0], None),
    ],
)
def test_shifts_of_magnitudes(peaks, shifts):
    found = ChannelPeaks(torch.tensor(peaks, dtype=torch.float64), training=True).shifts()
    assert (None if found is None else found.tolist()) == shifts
    assert rows.shifts_of(peaks) == (shifts or [0] * len(peaks))


def test_magnitudes_follow_the_channels():
    """What was seen counts at once, is forgotten by 1/32 a pass, and in training only."""
    model = convert(nn.Linear(2, 2, bias=False), exponents="row-shift").train()
    with torch.no_grad():
        model.weight.codes.copy_(torch.tensor([[64, 0], [0, 64]]))
        model.weight.delayed.zero_()
        model.weight.set_exponent(torch.tensor([-6, -6]))
    peaks = model.channel_peak
    model(model_input(model, torch.tensor([[8.0, -4.0], [1.0, 2.0]])))
    assert peaks.tolist() == [8.0, 4.0]
    model(model_input(model, torch.tensor([[1.0, -6.0]])))
    assert peaks.tolist() == [7.75, 6.0]
    model.eval()
    model(model_input(model, torch.tensor([[100.0, 100.0]])))
    assert peaks.tolist() == [7.75, 6.0]


def test_updates_wait_and_travel():
    """Deferred, they are applied in their order; as bytes they come to other workers."""
    peaks = torch.tensor([1.0, 64.0], dtype=torch.float64)
    model = ChannelPeaks(peaks, training=True)
    with deferred_updates() as updates:
        model.see(torch.tensor([[3, -5], [-4, 0]]), torch.tensor([[0], [1]]))
        model.see(torch.tensor([[1, 1]]), -1)
    assert peaks.tolist() == [1.0, 64.0]
    sent = b"".join(update.to_bytes() for update in updates)
    first, rest = updates[0].from_bytes(sent)
    second, rest = updates[1].from_bytes(rest)
    assert rest == b""
    assert isinstance(first, PeakUpdate)
    first.apply()
    assert peaks.tolist() == [8.0, 62.0]
    second.apply()
    assert peaks.tolist() == [7.75, 60.0625]


def test_an_exponent_above_127_with_its_shift_is_refused():
    model = convert(nn.Linear(2, 2, bias=False), exponents="row-shift").train()
    model.channel_peak.copy_(torch.tensor([1.0, 1e9]))
    with torch.no_grad():
        model.weight.codes.copy_(torch.tensor([[64, 0], [0, 64]]))
        model.weight.set_exponent(torch.tensor([-6, -6]))
    x = torch.tensor([[2.0**126, 1.0]])
    with pytest.raises(RangeError, match=r"at most 127, found 132 with the shift of its channel"):
        model(model_input(model, x)).narrowed()


def test_reading_a_value_gives_it_as_it_is_and_aligning_takes_the_largest():
    shifts = torch.tensor([0, 8])
    x = BFPTensor(
        torch.tensor([[100, 2], [3, 1]], dtype=torch.int8),
        torch.tensor([[0, 8], [-4, 4]]),
        shifts=shifts,
    )
    assert x.dequantize().tolist() == [[100.0, 512.0], [0.1875, 16.0]]
    codes, exponent = x.resolved()
    assert codes.tolist() == [[0, 2], [0, 1]]
    assert exponent.tolist() == [[8], [4]]
    turned = x.value.moved(lambda v: v.t())  # a channel there has both shifts
    assert turned.shifts is None
    assert turned.values().tolist() == [[100.0, 0.0], [512.0, 0.0]]


def test_a_float_state_has_no_magnitudes_and_a_wrong_one_is_refused():
    net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    model = convert(net, exponents="row-shift")
    model[0].channel_peak.fill_(3.0)
    model.load_state_dict(net.state_dict())
    assert model[0].channel_peak.tolist() == [3.0] * 4
    state = {key: value.clone() for key, value in model.state_dict().items()}
    assert [key for key in state if "peak" in key] == ["0.channel_peak", "2.channel_peak"]
    state["0.channel_peak"][1] = -1.0
    with pytest.raises(CheckpointError, match=r"0.channel_peak: .* magnitudes >= 0"):
        load_state(model, state)
    del state["0.channel_peak"]
    with pytest.raises(CheckpointError, match=r"0.channel_peak"):
        load_state(model, state)


@pytest.mark.parametrize(("axis", "channels"), [(-1, [0, 8, 4, 0, 0]), (1, None), (0, None)])
def test_tensors_side_by_side(axis, channels):
    """Along the channels all keep their shifts; where channels meet, shifts end."""
    a, b = (
        BFPTensor(
            torch.full((2, 3, size), 3, dtype=torch.int8),
            (torch.tensor(shifts) - 2).expand(2, 3, size),
            shifts=torch.tensor(shifts),
        )
        for size, shifts in ((2, [0, 8]), (3, [4, 0, 0]))
    )
    b = b if axis == -1 else a
    y = concat([a, b], axis)
    assert (None if y.shifts is None else y.shifts.tolist()) == channels
    if channels is not None:
        values = [x.dequantize() for x in (a, b)]
        assert torch.equal(y.dequantize(), torch.cat(values, axis))
    else:  # 3 at 2**-2 beside 3 at 2**6
        assert y.dequantize().flatten().tolist() == [0.0, 192.0] * 12
        assert y.exponent.flatten().tolist() == [6] * 12


@pytest.mark.parametrize("outlier", [1.0, 300.0])
def test_moved_sums_keep_the_width_of_their_layer(outlier):
    """A batch norm over tokens, whose gradient reads 6 bits of what it takes in 16."""
    net = nn.Sequential(nn.Linear(9, 6), nn.BatchNorm1d(4))
    model = convert(net, "row-shift", (6, 12, 32))
    model[0].channel_peak.copy_(torch.tensor([1.0, 1.0, 1.0, 1.0, outlier, 1.0]))
    taken = model[0](model_input(model, normal(3, 4, 9)))
    y = model[1](taken)
    g = torch.randint(-20000, 20000, y.shape, dtype=torch.int16)
    y.backward(BFPTensor(g, torch.full((3, 4, 1), -9)))

    sums, shape = taken.sums, (3, 4, 1, 6)
    acc, _, exponent = sums.exact()
    exponents = tuple(exponent.expand(acc.shape).flatten().tolist())
    shifts = () if sums.shifts is None else tuple(sums.shifts.tolist())
    exact = ExactSums(acc.flatten().tolist(), (12, 6), exponents, 6, shifts)
    z = pointwise.reshaped(pointwise.reshaped(exact.short(), (3, 4, 6)), shape)
    weight, bias = (
        Parameter((p.codes.tolist(), p.delayed.tolist(), p.exponent), (4,), (6, 12))
        for p in (model[1].weight, model[1].bias)
    )
    saved = norm.batch_norm(z, weight, bias, 1e-5)[1]
    assert max(map(abs, saved.z.codes)) <= 31
    given = Array(g.flatten().tolist(), shape, (-9,) * g.numel(), 16)
    for found, wanted in zip(
        (model[1].weight, model[1].bias), norm.batch_norm_backward(given, saved)[1:], strict=True
    ):
        assert found.grad.codes.flatten().tolist() == wanted.codes
        assert found.grad.exponent == wanted.exponent
