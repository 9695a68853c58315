"""A plan executed: a model's passes by a schedule."""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor

from samebits.errors import InputError, UnsupportedError
from samebits.recompute.network.tape import Program, autocast
from samebits.recompute.plan.schedule import Instruction, Network
from samebits.recompute.run.hearing import Hearing
from samebits.recompute.run.passes import ANCHOR, Gradients, Pass
from samebits.train.run.trace import taken_over

Clock = Callable[[Instruction, float], None]  # told what ran, and for how many seconds


class Executor:
    """Calls a model by a schedule: the results and gradients of `model(x)`, bit for bit.

    Outside training (evaluation mode, or no gradients asked for) it is the model itself. Every pass
    may be used for one backward pass. `listened`: DistributedDataParallel waits for gradients.

    clock: if given, is told how long each instruction of the backward pass took. inline: deferred
    weight gradients are computed in the thread that defers them.
    """

    def __init__(
        self,
        program: Program,
        network: Network,
        schedule: Sequence[Instruction],
        listened: bool = False,
    ) -> None:
        self.program, self.network, self.listened = program, network, listened
        half = [action for action, _ in schedule].index("loss")
        self.first, self.second = tuple(schedule[:half]), tuple(schedule[half + 1 :])
        self.recomputed = frozenset(i for action, i in schedule if action == "recompute")
        self.clock: Clock | None = None
        self.inline = False
        self._pool: tuple[int, ThreadPoolExecutor] | None = None

    def __call__(self, x: Tensor) -> Tensor:
        """As the model's own call. Raises InputError for a shape other than the plan's."""
        model = self.program.model
        if not (model.training and torch.is_grad_enabled()):
            return model(x)
        expected = self.network.layers[0].shape
        if tuple(x.shape) != expected:
            raise InputError(
                f"this plan is for inputs of shape {list(expected)}, found {list(x.shape)}; plan "
                "again for this batch"
            )
        if any(module.training != mode for module, mode in self.program.modes):
            raise UnsupportedError(
                "a plan is for the modes that the model's modules had: expected the same ones in "
                "training as then, found others; plan again"
            )
        if autocast():
            raise UnsupportedError(
                "expected a planned pass without torch.autocast, found it enabled: what is "
                "computed again would have other types; train without a plan"
            )
        return _Planned.apply(ANCHOR, x, self)  # type: ignore[no-untyped-call]

    def run_forward(self, x: Tensor, differentiable: bool) -> tuple[Pass, Tensor]:
        """The first half of a pass and the output."""
        state = Pass(self.program, self.network, self.recomputed)
        state.start(x, differentiable)
        with taken_over() as recorder:
            if recorder is not None:
                state.hearing = Hearing(self.program, recorder)
                state.hearing.computed(0, state.read)
            for action, index in self.first:
                if action == "forward":
                    state.forward(index)
                else:
                    state.free(index)
        return state, state.read(self.program.output)

    def run_backward(self, state: Pass, gradient: Tensor) -> Tensor | None:
        """The second half; the gradient of the input, if it is differentiable."""
        state.gradients[self.program.output] = gradient
        # A GPU has one autograd thread, and the second one would not know of autocast.
        inline = self.inline or gradient.device.type != "cpu" or autocast()
        beside: Future[Gradients] | None = None
        late: list[int] = []  # sub-layers done while a gradient that is handed over first is not
        try:
            for instruction in self.second:
                action, index = instruction
                started = time.perf_counter()
                if action == "weight gradient":
                    beside = self._begin(state, instruction, inline)
                    continue
                if action == "join":
                    assert beside is not None
                    found, started = beside.result(), time.perf_counter()
                    state.join(index, found)
                    del found
                    beside = None
                elif action == "backward":
                    state.backward(index)
                elif action == "activation gradient":
                    state.activation_gradient(index)
                elif action == "recompute":
                    state.recompute(index)
                else:
                    state.free(index)
                if action in ("backward", "join"):
                    late = [index, *late] if action == "join" else [*late, index]
                    if beside is None:
                        for i in late:
                            state.settle(self._last_uses.get(i, ()), self.listened)
                        late.clear()
                if self.clock is not None:
                    self.clock(instruction, time.perf_counter() - started)
        finally:
            if beside is not None:  # an error on this side: let the other come to its end
                beside.exception()
        state.settle(list(state.parameter_gradients), self.listened)
        return state.gradients.pop(0, None)

    def _begin(self, state: Pass, instruction: Instruction, inline: bool) -> Future[Gradients]:
        """Compute a weight gradient, in a second thread if there may be one."""
        work = functools.partial(self._weight_gradient, state, instruction, torch.get_num_threads())
        if inline:
            done: Future[Gradients] = Future()
            done.set_result(work())
            return done
        process = os.getpid()
        if self._pool is None or self._pool[0] != process:  # threads do not survive a fork
            self._pool = process, ThreadPoolExecutor(1)
        return self._pool[1].submit(work)

    def _weight_gradient(self, state: Pass, instruction: Instruction, threads: int) -> Gradients:
        """In another thread, with as many of torch's threads: float32 sums depend on that."""
        if torch.get_num_threads() != threads:
            torch.set_num_threads(threads)
        started = time.perf_counter()
        found = state.weight_gradient(instruction.value)
        if self.clock is not None:
            self.clock(instruction, time.perf_counter() - started)
        return found

    @functools.cached_property
    def _last_uses(self) -> dict[int, list[int]]:
        """Parameters (by id) whose last contribution comes from a sub-layer."""
        first: dict[int, int] = {}
        for index in range(len(self.program.calls) - 1, 0, -1):
            for parameter in self.program.parameters(index):
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
