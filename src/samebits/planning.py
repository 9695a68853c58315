"""Memory plans and device files, from Python and for the command line."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from samebits.errors import InputError
from samebits.recipes import Given, Numerics, Recipe, Recomputation, Training, takes
from samebits.results import MeasuredDevice, MemoryPlan
from samebits.settled import settled
from samebits.settled import threads as cpu_threads
from samebits.sources import refuse

if TYPE_CHECKING:
    from torch import nn


SHORTER = {"device": "plan_device", "budget": "memory_budget"}  # of a plan nothing else has them


@settled
@takes(Training, Numerics, Recomputation, shorter=SHORTER)
def plan(
    source: str | Path | nn.Module,
    example: Any = None,
    *recipes: Recipe,
    loss: Callable[[Any], Any] | None = None,
    input_shape: tuple[int, ...] | None = None,
    classes: int | None = None,
    time_limit: float | None = None,
    threads: int | None = None,
) -> MemoryPlan:
    """Which results a training step keeps and which it computes again. No plan changes a bit.

    Runs one step with everything stored, to know what its sub-layers keep; in float32 that is a
    step of eager PyTorch, and the sub-layers are its operators.

    source:  a torch.nn.Module, converted or not, with an `example` batch (a tensor); an
             architecture of `fit` by name, with Training (batch, shards), Numerics (numerics),
             input_shape (3, 32, 32) and classes (10); or a plan's file, to look at
    recipes: Recomputation: without a budget each result is decided by itself, by the local rule;
             plan_device, a name or a file that `measure_device` wrote, and memory_budget are
             device and budget here, too
    loss:    of a module's output; by default one of all its elements
    time_limit: seconds after which the search within a budget ends with the best plan so far, which
             then depends on the machine's speed. None: a number of steps, the same everywhere

    Raises InputError for options that do not apply, a budget below the smallest possible, and a
    plan whose peak the device's memory does not hold.
    """
    from samebits.recompute.front import plan_architecture, plan_module
    from samebits.recompute.plan.plan import read_plan
    from samebits.reports.recompute import memory_picture

    if isinstance(example, Recipe):
        example, recipes = None, (example, *recipes)
    asked = Given("plan", recipes, Training, Numerics, Recomputation)
    asked.only(Training, ("batch", "shards"))
    asked.only(Numerics, ("numerics",))
    asked.only(Recomputation, ("memory_budget", "plan_device", "backward"))
    how = asked[Recomputation]
    sizes: dict[str, Any] = {"input_shape": input_shape, "classes": classes}
    of_arch = {**sizes, **asked[Training].chosen(), **asked[Numerics].chosen()}
    if time_limit is not None and how.memory_budget is None:
        raise InputError(
            "--time-limit needs --memory-budget, found none: without a budget there is no search; "
            "give one, or leave --time-limit out"
        )
    if time_limit is not None and not time_limit > 0:
        raise InputError(f"--time-limit: expected seconds above 0, found {time_limit}")
    with cpu_threads(threads):
        if isinstance(source, str | Path) and Path(source).suffix == ".json":
            refuse(example=example, loss=loss, **how.chosen(), **of_arch)
            return MemoryPlan(read_plan(Path(source)))
        if isinstance(source, str | Path):
            refuse(example=example, loss=loss)
            made = plan_architecture(
                str(source),
                asked[Training],
                asked[Numerics],
                how,
                **sizes,
                time_limit=time_limit,
            )
        else:
            refuse(**of_arch)
            made = plan_module(source, example, loss, how, time_limit)
    picture = functools.partial(memory_picture, made.facts, made.plan)
    return MemoryPlan(made.plan, picture, made.forward, made.step)


@settled
def measure_device(*, threads: int | None = None) -> MeasuredDevice:
    """This machine as a device for `plan`: rates of arithmetic and of its memories, measured."""
    from samebits.recompute.plan.measure import measure_device as measure

    with cpu_threads(threads):
        return MeasuredDevice(measure())
