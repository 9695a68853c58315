"""Plans of architectures by name and of modules, as `samebits plan` makes them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from samebits import progress
from samebits.errors import InputError, UnsupportedError
from samebits.recompute.capture.decisions import plan_captured
from samebits.recompute.network.sublayer import PassNetwork
from samebits.recompute.network.trace import StateError
from samebits.recompute.plan.budget import parse_budget
from samebits.recompute.plan.cost import Device, find_device
from samebits.recompute.plan.plan import ORDERS, Plan
from samebits.recompute.plan.planner import make_plan
from samebits.recompute.plan.storages import StoragePlan
from samebits.recompute.run.apply import Executor
from samebits.recompute.run.profile import in_training, survey, untouched
from samebits.recompute.run.proof import prove
from samebits.recompute.training import Planner, architecture_network
from samebits.train.convert import model_input
from samebits.train.layers import Holder
from samebits.train.losses.difference import mse_loss
from samebits.train.run.config import TrainConfig
from samebits.train.tensor import BFPTensor

IMAGE, CLASSES = (3, 32, 32), 10


class Planned(NamedTuple):
    """A plan with what it was made from.

    network:  None of a step that was captured, which no sub-layers make
    executor: takes the module's place in training steps; None of an architecture, and of a captured
              step, which `sb.within` executes
    step:     of a captured step, its storages and nodes
    """

    plan: Plan
    network: PassNetwork | None
    device: Device
    executor: Executor | None = None
    step: StoragePlan | None = None


def plan_architecture(
    arch: str,
    device: str,
    budget: int | str | None,
    backward: str,
    *,
    numerics: str | None = None,
    batch: int | None = None,
    shards: int | None = None,
    input_shape: tuple[int, ...] | None = None,
    classes: int | None = None,
    time_limit: float | None = None,
) -> Planned:
    """The plan of an architecture of `samebits train`; None stands for an option's default.

    time_limit: seconds of the search within a budget
    """
    if batch is None:
        raise InputError("expected --batch for an architecture, found none; give samples per step")
    config = TrainConfig(data="", arch=arch, numerics=numerics or "bfp", batch=batch, shards=shards)
    found = find_device(device)
    planner = Planner(config, found, budget, backward=backward, time_limit=time_limit)
    progress.stage("measuring one step")
    _, network = architecture_network(config, input_shape or IMAGE, classes or CLASSES)
    progress.stage("planning")
    return Planned(planner.plan(network), network, found)


def plan_module(
    module: Any,
    example: Any,
    loss: Callable[[Any], Tensor] | None,
    device: str,
    budget: int | str | None,
    backward: str,
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
    if backward not in ORDERS:
        raise InputError(f"--backward: expected {' or '.join(ORDERS)}, found {backward!r}")
    bfp = any(isinstance(part, Holder) for part in module.modules())
    found = find_device(device)
    if bfp and not isinstance(example, BFPTensor):
        with untouched(module):
            in_training(module)
            example = model_input(module, example)
    progress.stage("measuring one step")
    try:
        tape, network = survey(module, example, loss or _sum)
    except UnsupportedError as error:
        if bfp or backward != ORDERS[0] or isinstance(error, StateError):
            raise
        progress.note("planned operator by operator, as sb.within computes it")
        captured, step = plan_captured(module, example, loss or _sum, device, budget)
        return Planned(captured, None, found, step=step)
    progress.stage("planning")
    plan = make_plan(
        network,
        found,
        arch=type(module).__name__,
        numerics="bfp" if bfp else "float32",
        budget=None if budget is None else parse_budget(budget),
        backward=backward,
        time_limit=time_limit,
    )
    executor = Executor(tape, network, plan.schedule(network))
    prove(executor, example, loss or _sum)
    return Planned(plan, network, found, executor)


def _sum(output: Tensor) -> Tensor:
    """Some loss: a plan depends on what a backward pass reads, not on its values."""
    if isinstance(output, BFPTensor):
        return mse_loss(output, torch.zeros(output.shape))
    return output.sum()
