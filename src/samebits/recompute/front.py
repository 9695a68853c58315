"""The front door to plans: architectures of `samebits train`, modules of a user's own, files."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from samebits import progress
from samebits.errors import InputError
from samebits.recipes import Numerics, Recomputation, Training
from samebits.recipes.training import ORDERS
from samebits.recompute.capture.step import BudgetStep
from samebits.recompute.plan.budget import parse_budget
from samebits.recompute.plan.cost import find_device, times
from samebits.recompute.plan.plan import Plan
from samebits.recompute.plan.planner import PlannedStep, decide, make_plan
from samebits.recompute.plan.schedule import PassStep
from samebits.recompute.run.apply import Executor
from samebits.recompute.run.profile import in_training, survey, untouched
from samebits.recompute.run.proof import prove
from samebits.recompute.training import DEVICE, Planner, check_order
from samebits.train.architectures import CONTEXT, LANGUAGE_MODELS, build, initialise
from samebits.train.convert import model_input
from samebits.train.layers import Holder
from samebits.train.losses.difference import mse_loss
from samebits.train.run.config import TrainConfig
from samebits.train.run.loop import make_engine
from samebits.train.tensor import BFPTensor

IMAGE, CLASSES = (3, 32, 32), 10


class Planned(NamedTuple):
    """A plan with what it was made from.

    forward: takes the module's place in training steps in BFP; None of an architecture
    step:    computes the loss of a batch in float32; None of an architecture
    """

    plan: Plan
    facts: PlannedStep
    forward: Executor | None = None
    step: BudgetStep | None = None


def plan_architecture(
    arch: str,
    training: Training,
    numerics: Numerics,
    how: Recomputation,
    *,
    input_shape: tuple[int, ...] | None = None,
    classes: int | None = None,
    time_limit: float | None = None,
) -> Planned:
    """The plan of an architecture of `samebits train`.

    time_limit: seconds of the search within a budget
    """
    config = TrainConfig(
        data="", arch=arch, **(training.values() | {"numerics": numerics.numerics})
    )
    found, backward = find_device(how.plan_device or DEVICE), how.backward or ORDERS[0]
    planner = Planner(config, found, how.memory_budget, backward=backward, time_limit=time_limit)
    progress.stage("measuring one step")
    texts = arch in LANGUAGE_MODELS
    shape, classes = input_shape or ((CONTEXT,) if texts else IMAGE), classes or CLASSES
    model = build(arch, shape, classes)
    initialise(model, config.seed)
    engine, samples = make_engine(config, model), config.batch
    if config.numerics == "bfp":
        samples //= config.shard_count()
    generator = torch.Generator().manual_seed(config.seed)
    given = torch.randn((samples, *shape), generator=generator), torch.arange(samples) % classes
    if texts:
        given = (torch.randint(classes, (samples, *shape), generator=generator),) * 2
    if config.numerics == "float32":
        step = planner.step(engine, given)
        return Planned(step.plans[0], step.steps[0])
    _, network = survey(engine.model, *engine.prepare(given))
    progress.stage("planning")
    plan = planner.plan(network)
    return Planned(plan, PassStep(network, times(network, found), backward == "paired"))


def plan_module(
    module: Any,
    example: Any,
    loss: Callable[[Any], Tensor] | None,
    how: Recomputation,
    time_limit: float | None = None,
) -> Planned:
    """The plan of a module for batches of the example's shape.

    loss:       of the module's output; by default one of all its elements
    time_limit: seconds of the search within a budget

    Raises InputError for anything but a module and a tensor.
    """
    if not isinstance(module, nn.Module) or not isinstance(example, Tensor):
        raise InputError(
            "expected a torch.nn.Module and an example batch (a tensor), an architecture's name or "
            f"a plan file, found {type(module).__name__} and {type(example).__name__}"
        )
    if loss is not None and not callable(loss):
        raise InputError(f"loss: expected a function of the output, found {type(loss).__name__}")
    bfp = any(isinstance(part, Holder) for part in module.modules())
    backward = how.backward or ORDERS[0]
    check_order(backward, "bfp" if bfp else "float32")
    found, arch = find_device(how.plan_device or DEVICE), type(module).__name__
    limit = None if how.memory_budget is None else parse_budget(how.memory_budget)
    if not bfp:
        choose = partial(
            decide, device=found, arch=arch, numerics="float32", budget=limit,
            time_limit=time_limit,
        )  # fmt: skip
        step = BudgetStep(module, loss or _sum, found, choose)
        with untouched(module):
            in_training(module)
            step.prepare(example)
        return Planned(step.plans[0], step.steps[0], step=step)
    if not isinstance(example, BFPTensor):
        with untouched(module):
            in_training(module)
            example = model_input(module, example)
    progress.stage("measuring one step")
    tape, network = survey(module, example, loss or _sum)
    progress.stage("planning")
    plan = make_plan(
        network, found, arch=arch, budget=limit, backward=backward, time_limit=time_limit
    )
    executor = Executor(tape, network, plan.schedule(network))
    prove(executor, example, loss or _sum)
    facts = PassStep(network, times(network, found), backward == "paired")
    return Planned(plan, facts, executor)


def _sum(output: Tensor) -> Tensor:
    """Some loss: a plan depends on what a backward pass reads, not on its values."""
    if isinstance(output, BFPTensor):
        return mse_loss(output, torch.zeros(output.shape))
    return output.sum()
