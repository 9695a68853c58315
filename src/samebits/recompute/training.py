"""Plans in training: those of `samebits train --plan` for the loop."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from samebits import progress
from samebits.errors import InputError, UnsupportedError
from samebits.recipes import Recomputation
from samebits.recipes.training import FALLBACKS, ORDERS
from samebits.recompute.capture.decisions import CapturedStep
from samebits.recompute.capture.step import BudgetStep
from samebits.recompute.network.sublayer import PassNetwork
from samebits.recompute.plan.balance import Balance
from samebits.recompute.plan.budget import parse_budget
from samebits.recompute.plan.cost import Device, find_device
from samebits.recompute.plan.plan import Plan, read_plan
from samebits.recompute.plan.planner import decide, make_plan
from samebits.recompute.run.apply import Executor
from samebits.recompute.run.profile import in_training, survey, untouched
from samebits.recompute.run.proof import ProofError, prove
from samebits.train.run.config import TrainConfig
from samebits.train.run.engine import Batch, Engine, Forward

DEVICE = "laptop-cpu"  # for which steps are planned where nothing else is said
ADVICE = "give --plan none, or --plan-fallback eager to go on without a plan"
# The advice of an UnsupportedError that is followed already.
_GOING = re.compile("[:;] (train|use a layer such as Dropout, or train) without a plan$")


class Planner:
    """Plans the steps of a run: by the local rule, within a budget in bytes, or from a file.

    device:   for which the steps are planned, wherever they run
    budget:   bytes of a pass, or a text that `parse_budget` reads; None for the local rule
    file:     of a plan, which is then used as it is
    workers:  number of processes of the run
    backward: order of the backward pass, None for that of the file or the sequential one
    time_limit: seconds of the search within a budget, None for a number of steps
    fallback: where a plan cannot be used: error, or eager (the steps run without one, a note says
              why)
    """

    def __init__(
        self,
        config: TrainConfig,
        device: Device,
        budget: int | str | None = None,
        file: Path | None = None,
        workers: int = 1,
        backward: str | None = None,
        time_limit: float | None = None,
        fallback: str = "error",
    ) -> None:
        """Raises InputError for an unknown order or fallback, or a file for other numerics or
        another order.
        """
        if fallback not in FALLBACKS:
            raise InputError(
                f"--plan-fallback: expected {' or '.join(FALLBACKS)}, found {fallback!r}"
            )
        self.eager = fallback == "eager"
        self.time_limit = time_limit
        self.config, self.device, self.file = config, device, file
        self.budget = None if budget is None else parse_budget(budget)
        self.backward = backward or ORDERS[0]
        check_order(self.backward, config.numerics)
        self.own_shards = 1
        if config.numerics == "bfp":
            self.own_shards = config.shard_count() // workers
        self.given = None if file is None else read_plan(file)
        if self.given is not None and self.given.numerics != config.numerics:
            raise InputError(
                f"{file}: expected a plan for numerics {config.numerics}, found "
                f"{self.given.numerics}; plan again with samebits plan"
            )
        if self.given is not None and backward not in (None, self.given.backward):
            raise InputError(
                f"{file}: expected a plan for --backward {backward}, found "
                f"{self.given.backward}; leave the option out, or plan again with samebits plan"
            )

    def __call__(
        self, engine: Engine, batch: Batch
    ) -> tuple[Forward | None, dict[str, Any] | None]:
        """Give what the engine's steps call, and the plan's figures for the result; None twice
        where the steps run without a plan.

        Raises UnsupportedError, naming what a plan does not follow: for a model that cannot be
        planned unless the fallback is eager; for a plan that is proved wrong in any case, as what
        the forward code reads has moved on while planning and cannot be put back.
        """
        plan = self._captured if self.config.numerics == "float32" else self._passes
        try:
            return plan(engine, batch)
        except UnsupportedError as error:
            reason = _GOING.sub("", str(error))
            if isinstance(error, ProofError):
                raise UnsupportedError(f"{reason}; give --plan none") from error
            if not self.eager:
                raise UnsupportedError(f"{reason}; {ADVICE}") from error
            progress.note(f"training without a plan: {reason}")
            return None, None

    def _passes(self, engine: Engine, batch: Batch) -> tuple[Forward, dict[str, Any]]:
        """The executor of a plan in BFP, proved on one batch."""
        x, criterion = engine.prepare(batch)
        tape, network = survey(engine.model, x, criterion)
        plan = self.given or self.plan(network)
        with self._of_file():
            schedule = plan.schedule(network)
        executor = Executor(tape, network, schedule, self.eager)
        prove(executor, x, criterion)
        computed = sum(kind == "recompute" for kind, _ in schedule)
        return executor, _record(plan, computed)

    def _captured(self, engine: Engine, batch: Batch) -> tuple[Forward, dict[str, Any]]:
        """The captured step of a plan in float32, proved on one batch."""
        step = self.step(engine, batch)
        step.fallback, step.advice = "eager" if self.eager else "error", ADVICE
        step.tell = progress.note
        plan = step.plans[0]
        return step, _record(plan, len(step.steps[0].outcome(plan).again))

    def step(self, engine: Engine, batch: Batch) -> BudgetStep:
        """A step of an engine in float32, planned for a batch."""
        step = BudgetStep(engine.model, engine.criterion, self.device, self._choose)
        with untouched(engine.model):
            in_training(engine.model)
            step.prepare(*engine.given(batch))
        return step

    def _choose(self, step: CapturedStep) -> Plan:
        if self.given is not None:
            with self._of_file():
                self.given.dropped(step.network)
            return self.given
        return decide(
            step,
            self.device,
            arch=self.config.arch,
            numerics="float32",
            budget=self.budget,
            time_limit=self.time_limit,
        )

    @contextlib.contextmanager
    def _of_file(self) -> Iterator[None]:
        """A with block whose InputErrors are about the plan's file."""
        try:
            yield
        except InputError as error:
            raise InputError(f"{self.file}: {error}") from error

    def plan(self, network: PassNetwork) -> Plan:
        """The plan of a pass in BFP by the options given."""
        return make_plan(
            network,
            self.device,
            arch=self.config.arch,
            budget=self.budget,
            earlier=earlier_gradients(network, self.own_shards),
            backward=self.backward,
            time_limit=self.time_limit,
        )


def planner_of(how: Recomputation) -> Callable[[TrainConfig, int], Planner | None]:
    """Give the function that makes the planner of a run for its number of workers, or None where
    all is kept. A budget implies a plan.

    Raises InputError for options that contradict each other.
    """
    budget, backward, fallback = how.memory_budget, how.backward, how.plan_fallback
    chosen = how.plan or ("none" if budget is None else "auto")
    if chosen != "auto":
        for option, value in (("--memory-budget", budget), ("--plan-device", how.plan_device)):
            if value is not None:
                raise InputError(
                    f"{option} needs --plan auto, found --plan {chosen}; give --plan auto, or plan "
                    f"with samebits plan and leave {option} out here"
                )
    if chosen == "none" and backward not in (None, ORDERS[0]):
        raise InputError(
            f"--backward {backward} needs a plan, found --plan none; give --plan auto (with a "
            "large --memory-budget to keep everything) or a plan file"
        )
    if chosen == "none" and fallback is not None:
        raise InputError(
            f"--plan-fallback {fallback} needs a plan, found --plan none; give --plan auto or a "
            "plan file, or leave --plan-fallback out"
        )

    def made(config: TrainConfig, workers: int) -> Planner | None:
        if chosen == "none":
            return None
        file = None if chosen == "auto" else Path(chosen)
        device = find_device(how.plan_device or DEVICE)
        return Planner(
            config, device, budget, file, workers, backward, fallback=fallback or FALLBACKS[0]
        )

    return made


def check_order(backward: str, numerics: str) -> None:
    """Raise InputError for an unknown order of the backward pass, and for one of BFP alone."""
    if backward not in ORDERS:
        raise InputError(f"--backward: expected {' or '.join(ORDERS)}, found {backward!r}")
    if backward != ORDERS[0] and numerics != "bfp":
        raise InputError(
            f"--backward {backward}: expected numerics bfp, whose gradients of weights are "
            f"operations apart, found {numerics}; leave the option out"
        )


def earlier_gradients(network: PassNetwork, shards: int) -> int:
    """Number of bytes of gradients that the shards before the last leave: their parts are kept."""
    return (shards - 1) * sum(size for layer in network.layers for _, size in layer.weights)


def _record(plan: Plan, computed: int) -> dict[str, Any]:
    """A plan's figures for the result of a run; computed: sub-layers that run again."""
    return {
        "budget": plan.budget,
        "peak_bytes": plan.peak,
        "store_all_bytes": plan.store_all,
        "smallest_bytes": plan.smallest,
        "recomputed": computed,
        "sublayers": len(plan.layers) - 1,
        "backward": plan.backward,
        "load_balance": Balance(plan.work_ps, plan.span_ps).load,
    }
