"""A training step within a memory budget, with the bits of eager PyTorch.

Dynamo guards a captured step: another shape, mode or frozen parameter is another plan. A plan is
proved before it is used: its first batch is computed by eager PyTorch too, and loss, other outputs,
gradients, buffers and generators have to have the same bits. That is the one step that takes
eager's memory. A step that cannot be captured, or whose proof fails, runs eagerly from then on, and
a warning says why: models that ask whether they are traced take another course then.

The loss is part of what is captured: outputs that it does not read leave gradients at None.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch._dynamo import config as dynamo
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.exc import FailOnRecompileLimitHit, TorchDynamoException
from torch._functorch import config as functorch
from torch._functorch.partitioners import default_partition
from torch.utils import _pytree as pytree

from samebits import progress
from samebits.errors import InputError, SamebitsError, UnsupportedError
from samebits.recompute.capture.costs import Prices
from samebits.recompute.capture.graphs import boxed, capture, changed_inputs, write
from samebits.recompute.capture.kernels import as_eager
from samebits.recompute.plan.budget import parse_budget
from samebits.recompute.plan.cost import find_device
from samebits.recompute.plan.rule import local_rule
from samebits.recompute.plan.storages import StoragePlan, StoragePlanner
from samebits.recompute.run.profile import untouched
from samebits.settled import outside, tracing

FALLBACKS = ("eager", "error")
PLANS = 64  # of one step, for batches of so many shapes
SECONDS = 5.0  # of the solver, for each candidate of a plan
REFUSALS = (TorchDynamoException, FailOnRecompileLimitHit)


class EagerWarning(UserWarning):
    """A step runs eagerly, without a plan, and may take more memory than its budget."""


class _Whole(nn.Module):
    """The model and its loss as one module."""

    def __init__(self, model: nn.Module, loss: Callable[..., Any]) -> None:
        super().__init__()
        self.model, self.loss = model, loss

    def forward(self, batch: Any, *rest: Any) -> Any:
        """The loss, or a tuple of it and of other values, which have no gradients."""
        if isinstance(batch, dict):
            output = self.model(**batch)
        else:
            output = self.model(*batch) if isinstance(batch, tuple | list) else self.model(batch)
        result = self.loss(output, *rest)
        if not isinstance(result, tuple | list):
            return result
        first, *others = result
        return first, *pytree.tree_map_only(Tensor, torch.detach, others)


class BudgetStep:
    """Computes the loss of a batch: `step(x, y).backward()` as eager PyTorch, within the budget.

    plans:   one for every shape (and mode) so far
    refused: why batches of some kind run eagerly, in words
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Callable[..., Any],
        budget: int | str | None,
        device: str,
        fallback: str,
    ) -> None:
        """Raises InputError for arguments that are none. Without a budget the local rule plans."""
        if not isinstance(model, nn.Module) or not callable(loss):
            raise InputError(
                "expected a torch.nn.Module and a function of its output (and of what else a step "
                f"is called with), found {type(model).__name__} and {type(loss).__name__}"
            )
        if fallback not in FALLBACKS:
            raise InputError(f"fallback: expected {' or '.join(FALLBACKS)}, found {fallback!r}")
        self.budget = None if budget is None else parse_budget(budget)
        self.fallback, self._device = fallback, find_device(device)
        self.plans: list[StoragePlan] = []
        self.refused: dict[Any, str] = {}
        self._prices = Prices(self._device)
        self._whole = _Whole(model, loss)
        self._proving = False
        self._error: SamebitsError | None = None
        backend = aot_autograd(
            fw_compiler=boxed, bw_compiler=boxed, partition_fn=self._partition, decompositions={}
        )
        self._compiled = torch.compile(self._whole, backend=backend, fullgraph=True, dynamic=False)

    def __call__(self, *batch: Any) -> Any:
        """The loss (or what the loss function returns) of a batch: inputs of the model, as a
        tensor, a tuple or a dictionary of arguments, and what else the loss function takes.

        Raises InputError for a budget below the smallest possible, and UnsupportedError, naming the
        reason, where the fallback is an error.
        """
        for first in (True, False):
            if not torch.is_grad_enabled() or (self.refused and self._key(batch) in self.refused):
                return self._whole(*batch)
            try:
                return self._compiled(*batch)
            except REFUSALS as error:  # no plan for such a batch yet
                if first:
                    self.prepare(*batch)
                else:
                    self._refuse(batch, f"its plan is not found again: {_first_sentence(error)}")
        return self._whole(*batch)

    def __str__(self) -> str:
        lines = [str(plan) for plan in self.plans]
        return "\n".join([*lines, *(f"runs eagerly: {reason}" for reason in self.refused.values())])

    def prepare(self, *batch: Any) -> None:
        """Plan for batches like this one, and prove the plan. Errors as `__call__`."""
        progress.stage("planning a step")
        if (reason := self._prove(batch)) is not None:
            self._refuse(batch, reason)

    def _refuse(self, batch: tuple[Any, ...], reason: str) -> None:
        """Let batches of this kind run eagerly. Raises UnsupportedError where that is no choice."""
        if self.fallback == "error":
            raise UnsupportedError(f"{reason}; give fallback='eager' to go on without a plan")
        self.refused[self._key(batch)] = reason
        text = f"steps of this kind run eagerly, without a memory plan: {reason}"
        warnings.warn(text, EagerWarning, stacklevel=outside())

    def _prove(self, batch: tuple[Any, ...]) -> str | None:
        """Compute a step by eager PyTorch and by the plan; the reason why the plan is refused."""
        name = type(self._whole.model).__name__
        want = self._observed(self._whole, batch)
        self._error = None
        try:
            with tracing(), as_eager(), _settings():
                self._proving = True
                try:
                    got = self._observed(self._compiled, batch)
                finally:
                    self._proving = False
        except REFUSALS as error:
            if self._error is not None:
                raise self._error from None
            return f"{name} cannot be captured: {_first_sentence(error)}"
        for what, value in want.items():
            if not _same(value, got[what]):
                return (
                    f"{name}: {what} of a planned step differs from that of eager PyTorch (the "
                    "model takes another course while it is traced, or reads what changes between "
                    "passes)"
                )
        return None

    def _observed(self, call: Callable[..., Any], batch: tuple[Any, ...]) -> Mapping[str, Any]:
        """All that a step leaves, from the model's present state, which stays as it is."""
        given = pytree.tree_map_only(Tensor, _copy, batch)
        found: dict[str, Any] = {}
        with untouched(self._whole):
            result = call(*given)
            outputs = pytree.tree_leaves(result)
            if outputs and isinstance(outputs[0], Tensor) and outputs[0].requires_grad:
                outputs[0].backward()
            for at, value in enumerate(outputs):
                found["the loss" if at == 0 else f"output {at}"] = _plain(value)
            for name, parameter in self._whole.named_parameters():
                found[f"the gradient of {name.removeprefix('model.')!r}"] = parameter.grad
            for name, buffer in self._whole.named_buffers():
                found[f"buffer {name.removeprefix('model.')!r}"] = _plain(buffer)
            for at, value in enumerate(pytree.tree_leaves(given)):
                if isinstance(value, Tensor):
                    found[f"argument {at}"] = _plain(value)
                    found[f"the gradient of argument {at}"] = value.grad
            found["the generator's state"] = torch.get_rng_state()
            if torch.cuda.is_initialized():
                found["the generator's state on the GPU"] = torch.cuda.get_rng_state()
        return found

    def _key(self, batch: tuple[Any, ...]) -> Any:
        """Describe the kind of a batch: batches of one kind are refused together."""
        leaves, form = pytree.tree_flatten(batch)
        kinds = tuple(
            (tuple(x.shape), x.dtype, x.device, x.requires_grad) if isinstance(x, Tensor) else x
            for x in leaves
        )
        modes = tuple(module.training for module in self._whole.modules())
        trained = tuple(p.requires_grad for p in self._whole.parameters())
        casts = tuple(torch.is_autocast_enabled(d) for d in ("cpu", "cuda"))
        return repr((kinds, form, modes, trained, casts))

    def _partition(
        self, joint: fx.GraphModule, inputs: Any, *, num_fwd_outputs: int, **rest: Any
    ) -> tuple[fx.GraphModule, fx.GraphModule]:
        """AOTAutograd's partition function: the graphs of a plan."""
        if not self._proving:
            raise UnsupportedError("expected a plan that is proved first, found none")
        graphs = default_partition(joint, inputs, num_fwd_outputs=num_fwd_outputs, **rest)
        self._prices.learn(graphs)
        step = capture(graphs, num_fwd_outputs, changed_inputs(joint), self._prices)
        try:
            planner, facts = StoragePlanner(step.facts, time_limit=SECONDS), step.facts
            if self.budget is None:
                rule = local_rule(facts, self._device)
                gone = {
                    s for at, x in rule.items() if not x.stored for s in facts.forward[at].makes
                }
                plan = planner.plan_of(facts.saved - gone)
            else:
                plan = planner(self.budget)
        except SamebitsError as error:
            self._error = error
            raise
        self.plans.append(plan)
        return write(step, plan.outcome)


class _settings:
    """A with block in which Dynamo and AOTAutograd capture what eager runs."""

    def __init__(self) -> None:
        self.patches = [
            dynamo.patch(
                allow_rnn=True, recompile_limit=PLANS, accumulated_recompile_limit=PLANS**2
            ),
            functorch.patch(donated_buffer=False, backward_pass_autocast="off"),
        ]

    def __enter__(self) -> None:
        for patch in self.patches:
            patch.__enter__()

    def __exit__(self, *error: Any) -> None:
        for patch in reversed(self.patches):
            patch.__exit__(*error)


def _copy(tensor: Tensor) -> Tensor:
    """A leaf with the numbers, the place in memory and the demand for a gradient of a tensor."""
    places = zip(tensor.shape, tensor.stride(), strict=True)
    span = 1 + sum((size - 1) * stride for size, stride in places) if tensor.numel() else 0
    own = tensor.detach().as_strided((span,), (1,)).clone()
    return (
        own.as_strided(tensor.shape, tensor.stride()).detach().requires_grad_(tensor.requires_grad)
    )


def _plain(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, Tensor) else value


def _same(a: Any, b: Any) -> bool:
    """Whether two values have the same bits."""
    if not (isinstance(a, Tensor) and isinstance(b, Tensor)):
        return a is b or (type(a) is type(b) and not isinstance(a, Tensor) and bool(a == b))
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    first, second = (t.detach().contiguous().flatten().view(torch.uint8) for t in (a, b))
    return torch.equal(first, second)


def _first_sentence(error: BaseException) -> str:
    """Torch's own words, without its advice and tracebacks."""
    inner = getattr(error, "inner_exception", None) or error
    lines = [line.strip() for line in str(inner).splitlines() if line.strip()]
    return " ".join(lines[:2])[:300] or type(inner).__name__
