"""What C and the code that makes it refuse: with a code or a sentence, and nothing has changed."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest
import torch
from torch import nn

from on_device import Cut, Device, batches, code_of, config, engine, network
from samebits.errors import InputError, RangeError, UnsupportedError

RANGE, LABEL, COUNT, INPUT, ARENA, STATE, RATE = range(1, 8)


@pytest.fixture(scope="module")
def device(tmp_path_factory):
    options = config()
    return Device(
        code_of(engine(network("dropout"), options), options), tmp_path_factory.mktemp("c"), "-O1"
    )


def test_bad_samples_have_codes(device):
    (images, labels), before = batches(1, 8)[0], device.state()
    wrong = labels.clone()
    wrong[7] = 10
    infinite = images.clone()
    infinite[3, 0, 2, 2] = torch.inf
    assert device.step(images, wrong) == LABEL
    assert device.step(infinite, labels) == INPUT
    assert device.step(images[:0], labels[:0]) == COUNT
    assert device.step(torch.cat([images, images]), torch.cat([labels, labels])) == COUNT
    for rate in (-0.1, float("nan"), float("inf")):
        assert device.call("set_rate", ctypes.c_double(rate)) == RATE
    assert device.state() == before


def test_an_arena_is_large_and_aligned(device):
    size = device.places.arena
    other = np.zeros(size // 8 + 2, np.uint64)
    net = ctypes.create_string_buffer(256)
    for at, given in ((0, size - 1), (4, size), (0, 0)):
        place = ctypes.c_void_p(other.ctypes.data + at)
        assert device.c.model_init(net, place, ctypes.c_size_t(given)) == ARENA
    assert not other.any()


def resealed(data: bytes) -> bytes:
    """A state with the checksum of what it now holds."""
    from samebits.ondevice.state import sealed

    return sealed(data[:16], data[24:])


def test_a_damaged_state_is_not_loaded(device):
    good = device.state()
    scales = 24 + 8 * len(device.places.parameters)
    for place in (0, 9, 13, 20, 24, scales, len(good) - 1):
        bad = bytearray(good)
        bad[place] ^= 0x40
        assert device.load(bytes(bad)) == STATE, place
    assert device.load(good[:-1]) == STATE
    assert device.load(good[:4]) == STATE
    bad = bytearray(good)
    bad[scales] = 128  # no code of a step
    assert device.load(resealed(bytes(bad))) == STATE
    bad = bytearray(good)
    bad[24:28] = (128).to_bytes(4, "little")  # no exponent
    assert device.load(resealed(bytes(bad))) == STATE
    assert device.state() == good
    assert device.load(good) == 0


@pytest.mark.parametrize(
    ("name", "rate", "options"),
    [
        ("dropout", 2.0**100, {}),
        ("chain", 2.0**60, {}),
        ("dropout", 2.0**60, {"optimizer": "adamw", "weight_decay": 0.1, "clip_norm": 1.0}),
        ("dropout", 2.0**100, {"nesterov": True, "weight_decay": 0.01}),
        ("resnet", 2.0**60, {}),
        ("cells", 2.0**60, {}),
        ("block", 2.0**60, {}),
    ],
)
def test_an_update_that_overflows_changes_nothing(tmp_path, name, rate, options):
    """At the step at which PyTorch refuses it, too."""
    options = config(**options)
    run = engine(network(name), options)
    device = Device(code_of(run, options), tmp_path, "-O0")
    for step, batch in enumerate(batches(8, 8)):
        before = device.state()
        status = device.step(*batch, rate)
        if status:
            break
        run.step(batch, rate, step)
    assert status == RANGE
    assert step > 0
    assert device.state() == before
    with pytest.raises(RangeError):
        run.step(batch, rate, step)


class Grown(nn.Module):
    """A gradient that nine sums of a value with itself take beyond all exponents."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(64, 4), nn.Linear(4, 4, bias=False)
        self.out = nn.Linear(4, 10)

    def forward(self, x):
        a = self.second(self.first(x.flatten(1)))
        for _ in range(9):
            a = a + a
        return self.out(a)


def test_bounds_follow_sums_of_gradients(tmp_path):
    options = config(lr=0.01, batch=1)
    run = engine(Grown(), options)
    held = dict(run.model.named_parameters())
    for name, exponent in (("first.weight", -128), ("first.bias", -128), ("second.weight", -100)):
        held[name].set_exponent(exponent)
    for name in ("first.weight", "first.bias"):
        held[name].codes.zero_()
        held[name].delayed.zero_()
    held["out.weight"].set_exponent(127)
    run.train_only(["first", "out.bias"])
    device = Device(code_of(run, options, batch=1), tmp_path, "-O0")
    (batch,), before = batches(1, 1), device.state()
    assert device.step(*batch, 0.01) == RANGE
    assert device.state() == before
    with pytest.raises(RangeError):
        run.step(batch, 0.01, 0)


@pytest.mark.parametrize(("used", "name"), [(True, "first.weight"), (False, "second.weight")])
def test_a_parameter_that_no_gradient_reaches_is_named(used, name):
    options = config()
    run = engine(Cut(used), options)
    with pytest.raises(UnsupportedError, match=f"{name}: .*no gradient reaches; let it stand by"):
        code_of(run, options)


@pytest.mark.parametrize(
    ("layers", "said"),
    [
        ([nn.Flatten(), nn.Linear(64, 8), nn.Tanh(), nn.Linear(8, 10)], r"'2' .*operation Table"),
        ([nn.Conv2d(1, 4, 3), nn.Flatten(), nn.Linear(144, 10)], r"'1' \(Flatten\).*places"),
        ([nn.Conv2d(1, 2, 3), nn.Conv2d(2, 4, 3, dilation=2), nn.AdaptiveAvgPool2d(1),
          nn.Flatten(), nn.Linear(4, 10)], r"'1' \(Conv2d\).*dilation"),
        ([nn.Conv2d(1, 2, 3), nn.MaxPool2d(3, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
          nn.Linear(2, 10)], r"'1' \(MaxPool2d\).*overlap"),
    ],
)  # fmt: skip
def test_a_layer_without_an_instruction_is_named(layers, said):
    options = config()
    run = engine(nn.Sequential(*layers), options)
    with pytest.raises(UnsupportedError, match=said):
        code_of(run, options)


class Forked(nn.Module):
    """Sums that a ReLU and another layer take: two roundings of one value."""

    def __init__(self):
        super().__init__()
        self.first, self.relu, self.out = nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)

    def forward(self, x):
        y = self.first(x.flatten(1))
        return self.out(self.relu(y) + y)


def test_sums_of_two_roundings_are_named():
    options = config()
    with pytest.raises(UnsupportedError, match=r"'first' .*sums that a ReLU and another layer"):
        code_of(engine(Forked(), options), options)


@pytest.mark.parametrize("layer", [nn.Linear(64, 64), nn.Dropout(0.5)])
def test_a_layer_that_is_called_twice_is_named(layer):
    options = config()
    layers = (nn.Flatten(), layer, nn.ReLU(), layer, nn.Linear(64, 10))
    with pytest.raises(UnsupportedError, match=r"layer '1' .*(shares|called twice)"):
        code_of(engine(nn.Sequential(*layers), options), options)


@pytest.mark.parametrize(
    "options",
    [
        *({"exponents": "row"}, {"label_smoothing": 0.1}, {"rounding": "nearest"}),
        *({"loss": "own.py:focal"}, {"keep_float": "0"}),
    ],
)
def test_an_option_that_steps_in_c_do_not_follow_is_named(options):
    chosen = config(**options)
    name = next(iter(options)).replace("_", " ")
    with pytest.raises(UnsupportedError, match=f"expected a run with .*{name}"):
        code_of(engine(network("dropout"), chosen), chosen)


def test_batches_and_rates_are_checked():
    options = config()
    run = engine(network("dropout"), options)
    for rate in (-0.1, float("nan")):
        with pytest.raises(InputError, match="rates: expected finite numbers"):
            code_of(run, options, rates=[0.1, rate])
    with pytest.raises(InputError, match="at least 1 sample"):
        code_of(run, options, batch=0)
