"""Times of sub-layers on this machine, and the device model beside them."""

from __future__ import annotations

import statistics
import time

import pytest
import torch

from large_networks import transformer
from recompute_nets import make
from samebits.recompute.plan.cost import times
from samebits.recompute.plan.measure import measure_device
from samebits.recompute.run import timing
from samebits.recompute.run.profile import survey
from samebits.recompute.run.timing import factors, measured_times
from samebits.train.architectures import build


def test_factors_by_hand():
    assert factors([0, 40, 90, 30], [0, 50, 60, 120]) == [1.25, 1.5, 4.0]
    assert factors([0, 0], [0, 0]) == [1.0]


@pytest.mark.parametrize(
    ("durations", "found"), [([7, 5, 9], 5), ([4, 0, 4], 1), ([1, 1, 1], 1), ([3, 3, 2], 2)]
)
def test_the_shortest_of_three_calls(monkeypatch, durations, found):
    """In whole nanoseconds; where the clock stood still, 1."""
    now = [0]
    rest = iter(durations)
    monkeypatch.setattr(timing, "clock", lambda: now[0])

    def action():
        now[0] += next(rest)

    assert timing.shortest(action, 0.0) == found
    assert list(rest) == []


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_the_clock_stands_still_while_one_thread_sleeps(monkeypatch, threads):
    """What one thread waits for is not its own work; that of several is timed by the wall."""
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    begin = timing.clock()
    time.sleep(0.02)
    taken = timing.clock() - begin
    assert taken < 10**7 if threads == 1 else taken >= 2 * 10**7


def test_timing_leaves_the_model_as_it_was():
    case = make("dropout", "float32")
    tape, network = survey(case.model, case.inputs, case.loss)
    before = case.outcome()
    found = measured_times(tape, network, case.inputs, 2)
    assert found[0] == 0
    assert all(0 < taken < 10**12 for taken in found[1:])
    assert all(map(torch.equal, before.values(), case.outcome().values()))


@pytest.mark.slow
def test_the_model_of_this_machine_is_near_its_times():
    """The median factor over the operations of three networks, on one thread by its own clock."""
    torch.manual_seed(0)
    device = measure_device(seconds=0.1)
    found = []
    for model, x in (
        (build("resnet8", (3, 32, 32), 10), torch.randn(32, 3, 32, 32)),
        (build("mobilenetv2", (3, 32, 32), 10), torch.randn(8, 3, 32, 32)),
        (transformer(4, 128, 8), torch.randn(8, 64, 128)),
    ):
        tape, network = survey(model, x, torch.sum)
        modelled = times(network, device, "float32")
        found += factors(modelled, measured_times(tape, network, x))
    assert statistics.median(found) < 2
