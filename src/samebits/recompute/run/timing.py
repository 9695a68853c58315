"""Times of sub-layers in BFP on this machine, and how far modelled times are from measured ones.

A sub-layer is timed as plans run it: in a pass, whose own work counts. The shortest of several
passes is the time; on one thread the clock is that of the thread, which other processes on the
machine disturb less. Times serve calibration alone: no plan depends on them, since the same plan
must come out on every machine.

Example: modelled are 40, 90 and 30 us, measured 50, 60 and 120 us. The factors are 1.25, 1.5 and 4:
their median is 1.5, the worst is 4.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from samebits.recompute.network.graph import GraphTape
from samebits.recompute.network.sublayer import PassNetwork
from samebits.recompute.run.profile import in_training, untouched
from samebits.recompute.run.walk import GraphPass

PICOSECONDS_PER_NANOSECOND = 1000


def clock() -> int:
    """Nanoseconds: of this thread where it does all the work, else of the wall."""
    return time.thread_time_ns() if torch.get_num_threads() == 1 else time.perf_counter_ns()


def shortest(action: Callable[[], Any], seconds: float) -> int:
    """Nanoseconds of the shortest of the calls that fit in `seconds`, three calls at least."""
    best, calls, end = 1 << 62, 0, time.perf_counter() + seconds
    while calls < 3 or time.perf_counter() < end:
        start = clock()
        action()
        best, calls = min(best, clock() - start), calls + 1
    return max(best, 1)


def measured_times(
    tape: GraphTape, network: PassNetwork, example: Tensor, repeats: int = 10
) -> list[int]:
    """Picoseconds of every sub-layer's forward pass, the shortest of `repeats`; 0 for the input.

    The model is left as it was.
    """
    best = [1 << 62] * len(tape.calls)
    best[0] = 0
    with untouched(tape.model):
        in_training(tape.model)
        for _ in range(repeats):
            state = GraphPass(tape, network, frozenset())
            state.start(example, example.requires_grad)
            for index in range(1, len(tape.calls)):
                start = clock()
                state.forward(index)
                best[index] = min(best[index], clock() - start)
    return [time_ * PICOSECONDS_PER_NANOSECOND for time_ in best]


def factors(modelled: Sequence[int], measured: Sequence[int]) -> list[float]:
    """By how much each modelled time is too long or too short, at least 1."""
    pairs = zip(modelled, measured, strict=True)
    return [max(a, b, 1) / max(min(a, b), 1) for a, b in pairs]
