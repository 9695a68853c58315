"""Times of sub-layers on this machine, and the device model beside them."""

from __future__ import annotations

import time

import pytest
import torch

from recompute_nets import make
from samebits.recompute.run import timing
from samebits.recompute.run.profile import survey
from samebits.recompute.run.timing import factors, measured_times


def test_factors_by_hand():
    assert factors([40, 90, 30], [50, 60, 120]) == [1.25, 1.5, 4.0]
    assert factors([0], [0]) == [1.0]


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
    case = make("dropout", "bfp")
    tape, network = survey(case.model, case.inputs, case.loss)
    before = case.outcome()
    found = measured_times(tape, network, case.inputs, 2)
    assert found[0] == 0
    assert all(0 < taken < 10**12 for taken in found[1:])
    assert all(map(torch.equal, before.values(), case.outcome().values()))
