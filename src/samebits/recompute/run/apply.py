"""A plan executed: calls of a model, each by a schedule.

To the caller a planned pass is the model's call: a node of the caller's autograd graph, from the
input to the output. The node's forward runs the schedule's actions up to the loss; the loss is the
caller's own; the node's backward gets the gradient of the output and runs the rest. Gradients of
parameters do not pass through the node, but are handed over to `.grad` as they become whole.

A deferred weight gradient runs in a second thread beside the actions that follow. That changes no
bit: it reads a gradient and values that nothing changes before its join, and it writes nothing that
others read. What can be seen of the order is when gradients are handed over, since hooks are called
then; so one that is done early waits for those that come before it in the sequential order.

Example: linear 3, norm 2 and linear 1, paired.

    first thread:    activation gradient 3   backward 2      activation gradient 1   join 3 ...
    second thread:                           weight gradient 3 .....

The gradients of the weights of norm are there before those of linear 3, but wait: at the join they
are handed over in the order 3, 2, as a step without a plan does.
"""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor

from samebits import progress
from samebits.errors import InputError, UnsupportedError
from samebits.recompute.network import guards
from samebits.recompute.network.graph import GraphTape
from samebits.recompute.network.sublayer import PassNetwork
from samebits.recompute.plan.schedule import Action
from samebits.recompute.run.walk import Gradients, GraphPass
from samebits.settled import check_thread
from samebits.train.run.trace import is_heard

ANCHOR = torch.zeros((), dtype=torch.float32, device="cpu", requires_grad=True)
TRACED = "steps run without the plan while they are traced: a trace hears modules"
Clock = Callable[[Action, float], None]  # told what ran, and for how many seconds


class Executor:
    """Calls a model by a schedule: the results and gradients of `model(x)`, bit for bit.

    Outside training (evaluation mode, or no gradients asked for) it is the model itself. Every pass
    may be used for one backward pass.

    eager:    what to do where the model is no longer the one that was planned: call it without the
              plan and say why in a note, instead of an error
    clock:    if given, is told the seconds of each action of the backward pass
    inline:   whether deferred weight gradients are computed in the thread that defers them
    """

    def __init__(
        self,
        tape: GraphTape,
        network: PassNetwork,
        schedule: Sequence[Action],
        eager: bool = False,
    ) -> None:
        self.tape, self.network, self.eager = tape, network, eager
        self.facts = guards.facts(tape.model)
        half = [kind for kind, _ in schedule].index("loss")
        self.first, self.second = tuple(schedule[:half]), tuple(schedule[half + 1 :])
        self.recomputed = frozenset(i for kind, i in schedule if kind == "recompute")
        self._told: set[str] = set()
        self.clock: Clock | None = None
        self.inline = False
        self._pool: tuple[int, ThreadPoolExecutor] | None = None

    def __call__(self, x: Tensor) -> Tensor:
        """As the model's own call.

        Raises InputError for an input of another shape than the plan's, UnsupportedError in other
        modes than the plan's, under torch.autocast, and where anything about the model has changed
        that its forward code could read (network.guards).
        """
        model = self.tape.model
        if not (model.training and torch.is_grad_enabled()):
            return model(x)
        expected = self.network.layers[0].shape
        if tuple(x.shape) != expected:
            raise InputError(
                f"this plan is for inputs of shape {list(expected)}, found {list(x.shape)}; plan "
                "again for this batch"
            )
        if is_heard():
            self._tell(TRACED)
            return model(x)
        refusal = self._refusal()
        if refusal is not None and self.eager:
            self._tell(f"steps run without the plan from here on: {refusal}")
            return model(x)
        if refusal is not None:
            raise UnsupportedError(refusal)
        before = guards.other_generators()
        output: Tensor = _Planned.apply(ANCHOR, x, self)  # type: ignore[no-untyped-call]
        if guards.other_generators() != before:
            raise UnsupportedError(
                "a sub-layer draws numbers from Python's or numpy's generator, which a plan would "
                "draw again: expected torch's generator; train without a plan"
            )
        return output

    def _tell(self, text: str) -> None:
        """A note, once."""
        if text not in self._told:
            self._told.add(text)
            progress.note(text)

    def _refusal(self) -> str | None:
        """Which guard the model or its surroundings fail now, and what to do; None if none."""
        if any(module.training != mode for module, mode in self.tape.modes):
            return (
                "a plan is for the modes that the model's modules had: expected the same ones in "
                "training as then, found others; plan again"
            )
        if torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda"):
            return (
                "expected a planned pass without torch.autocast, found it enabled: what is "
                "computed again would have other types; train without a plan"
            )
        changed = guards.first_difference(self.facts, guards.facts(self.tape.model))
        if changed is None:
            return None
        return (
            f"a plan is for the model as it was planned: {changed} has changed since; plan "
            "again, or train without a plan"
        )

    def run_forward(self, x: Tensor, differentiable: bool) -> tuple[GraphPass, Tensor]:
        """Run the first half of a pass; the pass and the model's output."""
        state = GraphPass(self.tape, self.network, self.recomputed)
        state.start(x, differentiable)
        for kind, index in self.first:
            if kind == "forward":
                state.forward(index)
            else:
                state.free(index)
        return state, state.result()

    def run_backward(self, state: GraphPass, gradient: Tensor) -> Tensor | None:
        """Run the second half from the gradient of the output; the gradient of the input, if any.

        `late` are the sub-layers whose gradients are done and wait to be handed over. A join puts
        its own before them, as it is the later sub-layer and thus the first in sequential order.
        """
        state.arrive(gradient)
        inline = self.inline or gradient.device.type != "cpu"  # a GPU has one autograd thread
        beside: Future[Gradients] | None = None
        late: list[int] = []  # sub-layers done while a gradient that is handed over first is not
        try:
            for action in self.second:
                kind, index = action
                started = time.perf_counter()
                if kind == "weight gradient":
                    beside = self._begin(state, action, inline)
                    continue
                if kind == "join":
                    assert beside is not None
                    found, started = beside.result(), time.perf_counter()
                    state.join(index, found)
                    del found
                    beside = None
                elif kind == "backward":
                    state.backward(index)
                elif kind == "activation gradient":
                    state.activation_gradient(index)
                elif kind == "recompute":
                    state.recompute(index)
                else:
                    state.free(index)
                if kind in ("backward", "join"):
                    late = [index, *late] if kind == "join" else [*late, index]
                    if beside is None:
                        for i in late:
                            state.settle(self._last_uses.get(i, ()))
                        late.clear()
                if self.clock is not None:
                    self.clock(action, time.perf_counter() - started)
        finally:
            if beside is not None:  # an error on this side: let the other come to its end
                beside.exception()
        state.settle(list(state.parameter_gradients))
        return state.gradients.pop(0, None)

    def _begin(self, state: GraphPass, action: Action, inline: bool) -> Future[Gradients]:
        """Compute a weight gradient, in a second thread if there may be one."""
        work = functools.partial(self._weight_gradient, state, action, torch.get_num_threads())
        if inline:
            done: Future[Gradients] = Future()
            done.set_result(work())
            return done
        process = os.getpid()
        if self._pool is None or self._pool[0] != process:  # threads do not survive a fork
            self._pool = process, ThreadPoolExecutor(1)
        return self._pool[1].submit(work)

    def _weight_gradient(self, state: GraphPass, action: Action, threads: int) -> Gradients:
        """Compute a weight gradient in whatever thread this is, with `threads` of torch's.

        Raises InputError where that thread has another rounding mode.
        """
        check_thread()
        if torch.get_num_threads() != threads:
            torch.set_num_threads(threads)
        started = time.perf_counter()
        found = state.weight_gradient(action.value)
        if self.clock is not None:
            self.clock(action, time.perf_counter() - started)
        return found

    @functools.cached_property
    def _last_uses(self) -> dict[int, list[int]]:
        """For each sub-layer, the parameters (by id) whose last contribution comes from it."""
        first: dict[int, int] = {}
        for index in range(len(self.tape.calls) - 1, 0, -1):
            for parameter in self.tape.parameters(index):
                first[id(parameter)] = index
        ends: dict[int, list[int]] = {}
        for key, index in first.items():
            ends.setdefault(index, []).append(key)
        return ends


class _Planned(torch.autograd.Function):
    """A whole pass as one node of the caller's graph."""

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, x: Tensor, executor: Executor) -> Tensor:
        ctx.executor = executor
        ctx.state, output = executor.run_forward(x, ctx.needs_input_grad[1])
        return output.detach()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        state, ctx.state = ctx.state, None
        if state is None:
            raise UnsupportedError(
                "a planned pass is used up by its first backward(): expected one backward() per "
                "forward pass; train without a plan"
            )
        if torch.is_grad_enabled():
            raise UnsupportedError(
                "gradients of gradients (create_graph=True) are not available under a plan; train "
                "without a plan"
            )
        return None, ctx.executor.run_backward(state, grad), None
