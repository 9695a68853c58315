"""Where a training step's time goes: the kernel calls of a recorded step, one by one.

A recorded step is a list of kernel calls, so nothing has to be added to it to be measured: its
calls run one after the other with a clock between them. What that adds, some microseconds of Python
a call, is in the times of the calls, and not in that of the whole step.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from samebits.errors import UnsupportedError
from samebits.train.run.engine import Batch, BfpEngine
from samebits.train.whole import SHARD, UsualStep

WARM_UP = 4  # steps after which a step is recorded, if it can be


@dataclass(frozen=True)
class TimedCall:
    """A kernel call of a shard's passes.

    kernel:   its function in C, without the prefix of all
    layer:    on whose behalf it runs; "" for an operation that no layer asks for, as a sum of two
              branches; "(input)", "(loss)" and "(running state)" for what is not the model's
    phase:    forward or backward
    products: multiply-adds of matrix products and convolutions; 0 for all else, and for recurrent
              cells, whose products are a part of their steps
    seconds:  the least of several runs
    """

    kernel: str
    layer: str
    phase: str
    products: int
    seconds: float


@dataclass(frozen=True)
class StepProfile:
    """A step's time: of all calls of one shard, of the optimizer's update, and of the whole step.

    batch, shards: samples of a step, and the shards that they are cut into
    """

    calls: tuple[TimedCall, ...]
    update: float
    whole: float
    batch: int
    shards: int


def profile_step(
    engine: BfpEngine,
    batch: Batch,
    repetitions: int,
    clock: Callable[[], float] = time.perf_counter,
) -> StepProfile:
    """Take steps on a batch, whose parameters change, and measure them call by call.

    clock: in seconds

    Raises UnsupportedError where a step is not recorded: a loss other than the mean cross-entropy
    of classes, a model with code of its own, no compiler; or is made by a plan.
    """
    for number in range(WARM_UP):
        engine.step(batch, engine.rate, number)
    recorded = engine.recorded(batch)
    if not isinstance(recorded, UsualStep):
        reason = engine.unrecorded or "there are no native kernels (samebits doctor)"
        raise UnsupportedError(
            "expected a step of native kernels that was recorded, found one that calls them one by "
            f"one: {reason}; profiles are of steps that were recorded"
        )
    step, routine = recorded.step, recorded.step.routine
    step(*batch, WARM_UP)  # operands are in their places

    def timed(call: Callable[[], object]) -> float:
        began = clock()
        call()
        return clock() - began

    runs, updates, wholes = list[list[float]](), list[float](), list[float]()
    for _ in range(repetitions):
        seconds = routine.seconds(SHARD, clock)
        if seconds is None:
            raise UnsupportedError("a value of the step left its range; profile an earlier one")
        runs.append(seconds)
        updates.append(timed(recorded.update))
        wholes.append(timed(lambda: engine.step(batch, engine.rate, WARM_UP)))
    least = [min(times) for times in zip(*runs, strict=True)]
    calls = tuple(
        TimedCall(own.kernel.removeprefix("samebits_"), own.layer, own.phase, own.products, seconds)
        for own, seconds in zip(routine.facts[SHARD], least, strict=True)
    )
    return StepProfile(calls, min(updates), min(wholes), len(batch[1]), step.shards)
