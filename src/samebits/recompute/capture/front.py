"""The front door to steps within a memory budget."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import nn

from samebits.recompute.capture.step import BudgetStep
from samebits.recompute.plan.budget import parse_budget
from samebits.recompute.plan.cost import find_device
from samebits.recompute.plan.planner import decide
from samebits.settled import settled


@settled
def within(
    model: nn.Module,
    loss: Callable[..., Any],
    example: Any,
    *,
    budget: int | str = "100%",
    device: str = "laptop-cpu",
    fallback: str = "eager",
) -> BudgetStep:
    """A training step of any PyTorch model within a memory budget, with the bits of eager PyTorch.

    `step = sb.within(model, loss, (x, y)); step(x, y).backward()` computes what
    `loss(model(x), y).backward()` does: loss, gradients, buffers and generators have the same bits.

    model:   any module, in the mode that it trains in
    loss:    of the model's output and of what else a batch holds; gives the loss, or a tuple of it
             and of values that are only looked at
    example: a batch: a tuple of the model's input (a tensor, or a tuple or dictionary of arguments)
             and of what else the loss takes; or a tensor alone. Other shapes are planned when they
             come
    budget:  bytes a step may hold above those before it: a number, 3M, 1.5G (powers of 1024), or
             40% of what storing everything takes
    device:  a device's name, or a file that `measure_device` wrote: what computing again costs
    fallback: what to do with a batch whose step cannot be captured, or has other bits: eager (run
             it without a plan; a warning names the reason) or error

    The first batch of every shape is computed by eager PyTorch, too, for comparison. Raises
    InputError for a budget below the smallest possible.
    """
    found, limit, arch = find_device(device), parse_budget(budget), type(model).__name__
    choose = partial(decide, device=found, arch=arch, numerics="float32", budget=limit)
    step = BudgetStep(model, loss, found, choose, fallback)
    step.prepare(*(example if isinstance(example, tuple | list) else (example,)))
    return step
