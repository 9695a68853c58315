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
from collections import Counter
from collections.abc import Callable
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
from samebits.recipes.training import FALLBACKS
from samebits.recompute.capture.costs import Prices
from samebits.recompute.capture.decisions import CapturedStep
from samebits.recompute.capture.graphs import boxed, capture, changed_inputs, write
from samebits.recompute.capture.kernels import as_eager
from samebits.recompute.network import guards
from samebits.recompute.plan.cost import Device
from samebits.recompute.plan.plan import Plan
from samebits.recompute.run.apply import TRACED
from samebits.recompute.run.profile import untouched
from samebits.recompute.run.proof import ProofError
from samebits.settled import outside, tracing
from samebits.train.run.trace import is_heard

Chooser = Callable[[CapturedStep], Plan]
PLANS = 64  # of one step, for batches of so many shapes
AGAIN = 4  # plans for batches of one kind, where the model changes
FACTS = "attributes"
REFUSALS = (TorchDynamoException, FailOnRecompileLimitHit)


class EagerWarning(UserWarning):
    """A step runs eagerly, without a plan, and may take more memory than its budget."""


def _warn(text: str) -> None:
    warnings.warn(text, EagerWarning, stacklevel=outside())


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

    device, choose: give the costs of operators, and the plan of a step
    plans, steps: a plan for every shape (and mode) so far, and what it is of
    refused: why batches of some kind run eagerly, in words
    advice:  what to do where that is an error
    tell:    hears of it where it is none
    """

    advice = "train without a plan"
    tell: Callable[[str], None] = staticmethod(_warn)

    def __init__(
        self,
        model: nn.Module,
        loss: Callable[..., Any],
        device: Device,
        choose: Chooser,
        fallback: str = "error",
    ) -> None:
        """Raises InputError for arguments that are none."""
        if not isinstance(model, nn.Module) or not callable(loss):
            raise InputError(
                "expected a torch.nn.Module and a function of its output (and of what else a step "
                f"is called with), found {type(model).__name__} and {type(loss).__name__}"
            )
        if fallback not in FALLBACKS:
            raise InputError(f"fallback: expected {' or '.join(FALLBACKS)}, found {fallback!r}")
        self.fallback, self._choose = fallback, choose
        self.plans: list[Plan] = []
        self.steps: list[CapturedStep] = []
        self.refused: dict[Any, str] = {}
        self._prices = Prices(device)
        self._planned: Counter[str] = Counter()
        self._changing: str | None = None
        self._told = False
        self._whole = _Whole(model, loss)
        self._proving: tuple[Any, ...] | None = None
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
        if is_heard():
            if not self._told:
                progress.note(TRACED)
            self._told = True
            return self._whole(*batch)
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
        lines = [
            f"peak {plan.peak:,} bytes of {plan.store_all:,}: operators that take "
            f"{plan.recompute_ps / 1e6:,.1f} us run again, at least {plan.bound_ps / 1e6:,.1f} us "
            "in any plan of the budget"
            for plan in self.plans
        ]
        return "\n".join([*lines, *(f"runs eagerly: {reason}" for reason in self.refused.values())])

    def prepare(self, *batch: Any) -> None:
        """Plan for batches like this one, and prove the plan. Errors as `__call__`."""
        progress.stage("planning a step")
        name, kind = type(self._whole.model).__name__, self._key(batch)
        if self._planned[kind] and self._changing is not None:
            changed = f"{name}: its forward code changes {self._changing} in every step"
            self._refuse(batch, f"{changed}, so no plan serves the next one")
        elif self._planned[kind] == AGAIN:
            self._refuse(batch, f"{name} was no longer what it had been planned as {AGAIN} times")
        else:
            self._planned[kind] += 1
            self._prove(batch)

    def _refuse(self, batch: tuple[Any, ...], reason: str, other_bits: bool = False) -> None:
        """Let batches of this kind run eagerly. Raises an error where that is no choice."""
        if self.fallback == "error":
            raise (ProofError if other_bits else UnsupportedError)(f"{reason}; {self.advice}")
        self.refused[self._key(batch)] = reason
        self.tell(f"steps of this kind run eagerly, without a memory plan: {reason}")

    def _prove(self, batch: tuple[Any, ...]) -> None:
        """Compute a step by eager PyTorch and by the plan, and refuse a plan of other bits."""
        name = type(self._whole.model).__name__
        known = guards.facts(self._whole.model)
        want = self._observed(self._whole, batch)
        self._changing = guards.first_difference(known, want.pop(FACTS))
        self._error = None
        try:
            with tracing(), as_eager(), _settings():
                self._proving = batch
                try:
                    got = self._observed(self._compiled, batch)
                finally:
                    self._proving = None
        except REFUSALS as error:
            if self._error is not None:
                raise self._error from None
            return self._refuse(batch, f"{name} cannot be captured: {_first_sentence(error)}")
        for what, value in want.items():
            if not _same(value, got[what]):
                reason = (
                    f"{name}: {what} of a planned step differs from that of eager PyTorch (the "
                    "model takes another course while it is traced, or reads what changes between "
                    "passes)"
                )
                return self._refuse(batch, reason, other_bits=True)
        return None

    def _observed(self, call: Callable[..., Any], batch: tuple[Any, ...]) -> dict[str, Any]:
        """All that a step leaves, from the model's present state, which stays as it is.

        Gradients are asked for, not gathered: hooks of parameters are for steps.
        """
        given = pytree.tree_map_only(Tensor, _copy, batch)
        found: dict[str, Any] = {}
        with untouched(self._whole):
            result = call(*given)
            found[FACTS] = guards.facts(self._whole.model)
            outputs = pytree.tree_leaves(result)
            for at, value in enumerate(outputs):
                found["the loss" if at == 0 else f"output {at}"] = _plain(value)
            leaves: dict[str, Tensor] = {
                f"the gradient of {name.removeprefix('model.')!r}": parameter
                for name, parameter in self._whole.named_parameters()
            }
            for at, value in enumerate(pytree.tree_leaves(given)):
                if isinstance(value, Tensor):
                    leaves[f"the gradient of argument {at}"] = value
            wanted = {name: leaf for name, leaf in leaves.items() if leaf.requires_grad}
            if outputs and isinstance(outputs[0], Tensor) and outputs[0].requires_grad and wanted:
                found |= zip(
                    wanted,
                    torch.autograd.grad(outputs[0], list(wanted.values()), allow_unused=True),
                    strict=True,
                )
            for name, buffer in self._whole.named_buffers():
                found[f"buffer {name.removeprefix('model.')!r}"] = _plain(buffer)
            for at, value in enumerate(pytree.tree_leaves(given)):
                if isinstance(value, Tensor):
                    found[f"argument {at}"] = _plain(value)
            found["a generator of Python or numpy"] = guards.other_generators()
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
        if self._proving is None:
            raise UnsupportedError("expected a plan that is proved first, found none")
        graphs = default_partition(joint, inputs, num_fwd_outputs=num_fwd_outputs, **rest)
        self._prices.learn(graphs)
        captured = capture(graphs, num_fwd_outputs, changed_inputs(joint), self._prices)
        first = next((x for x in pytree.tree_leaves(self._proving) if isinstance(x, Tensor)), None)
        step = CapturedStep(captured, first)
        try:
            plan = self._choose(step)
            outcome = step.outcome(plan)
        except SamebitsError as error:
            self._error = error
            raise
        self.plans.append(plan)
        self.steps.append(step)
        return write(captured, outcome)


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
