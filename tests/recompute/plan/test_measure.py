"""What is measured of this machine, where a made-up clock says how long everything takes."""

from __future__ import annotations

import pytest
import torch

from samebits.kernels import conv_shape
from samebits.recompute.plan import measure
from samebits.recompute.plan.cost import Device, Tier
from samebits.train import layers

SECOND = 10**9  # nanoseconds
KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30


@pytest.fixture
def second(monkeypatch):
    """Everything takes one second, and is done once."""

    def shortest(action, seconds):
        action()
        return SECOND

    monkeypatch.setattr(measure, "shortest", shortest)


@pytest.mark.parametrize(
    ("caches", "found"),
    [
        # Memory is measured in four times the largest cache, a cache in half of itself.
        (
            (32 * KIB, MIB, 32 * MIB),
            [
                ("registers and L1 cache", 32 * KIB, 16 * KIB),
                ("on-chip L2 cache", MIB, 512 * KIB),
                ("on-chip L3 cache", 32 * MIB, 16 * MIB),
                ("off-chip memory", 4 * GIB, 128 * MIB),
            ],
        ),
        # A cache that is no larger than the one before it is none; memory takes 64 MiB at least.
        (
            (32 * KIB, MIB, 512 * KIB),
            [
                ("registers and L1 cache", 32 * KIB, 16 * KIB),
                ("on-chip L2 cache", MIB, 512 * KIB),
                ("off-chip memory", 4 * GIB, 64 * MIB),
            ],
        ),
    ],
)
def test_a_device_by_hand(monkeypatch, second, caches, found):
    """A second for each measurement; a tier of n bytes is as fast as n says, and nearer ones are
    not slower."""
    sizes = dict(zip((key for _, key, _ in measure.CACHES), caches, strict=True))
    sizes |= {"SC_PAGE_SIZE": 4 * KIB, "SC_PHYS_PAGES": MIB}
    rooms = []

    def memory(size, dispatch, seconds):
        rooms.append((size, dispatch, seconds))
        return (7 if size == 16 * KIB else 1000 - size // MIB), (90 if size == 16 * KIB else 5)

    monkeypatch.setattr(measure, "_sysconf", sizes.__getitem__)
    monkeypatch.setattr(measure, "_memory", memory)
    monkeypatch.setattr(measure, "_overhead", lambda: 1.5 * SECOND)
    device = measure.measure_device(0.25)
    assert rooms == [(room, 1.0, 0.25) for _, _, room in reversed(found)]
    rates = [1000, *(1000 - room // MIB for _, _, room in found[1:])]  # the L1 cache as the L2
    assert device == Device(
        device.name,
        2 * 16 * 64 * 16 * 16 * 64 * 9,
        # Two products of 2**21 and 2**25 operations, two convolutions of 9 * 2**22.
        int((2**21 * 2**25 * (9 * 2**22) ** 2) ** 0.25),
        # As long as a dispatch, so nothing is left of it: a tenth counts.
        6 * 8 * 32 * 32 * 32 * 10,
        SECOND,
        SECOND // 2,
        tuple(
            Tier(name, size, rate, 5)
            for (name, size, _), rate in zip(found, rates, strict=True)
        ),
    )  # fmt: skip


def test_the_operations_of_the_convolution_that_is_timed(monkeypatch, second):
    calls = []

    class Kernel:
        def conv(self, x, w, shape):
            calls.append((x, w, shape))

    monkeypatch.setattr(measure.kernels, "of", lambda tensor: Kernel())
    rate = measure._integer_rate(0.25)
    ((x, w, shape),) = calls
    assert (x.dtype, w.dtype) == (torch.int8, torch.int8)
    assert shape == conv_shape(tuple(x.shape), tuple(w.shape), padding=(1, 1))
    out = torch.nn.functional.conv2d(x.float(), w.float(), padding=1)
    assert rate == 2 * out.numel() * w[0].numel()


def test_a_memory_so_slow_that_a_byte_takes_minutes(monkeypatch):
    """A rate is a byte a second at least; a latency is a share of 4096 reads, of 10**5 s each."""
    monkeypatch.setattr(measure, "shortest", lambda action, seconds: 4096 * 10**5 * SECOND)
    assert measure._memory(1024, 0.0, 0.25) == (1, 10**5 * SECOND)


def test_the_overhead_is_the_median_of_sixteen_tiny_sublayers(monkeypatch):
    def survey(model, example, loss):
        assert [type(part) for part in model] == [layers.ReLU] * 16
        return "tape", tuple(example.shape)

    def times(tape, network, example, repeats):
        assert (tape, network, repeats) == ("tape", (1, 8), 20)
        return [0, *range(1000, 17_000, 1000)]

    monkeypatch.setattr(measure, "survey", survey)
    monkeypatch.setattr(measure, "measured_times", times)
    assert measure._overhead() == 8.5  # nanoseconds: the middle of 1 to 16
