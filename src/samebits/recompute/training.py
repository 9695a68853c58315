"""Plans in training: those of `samebits train --plan` for the loop, and those of architectures."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from samebits import progress
from samebits.errors import InputError, UnsupportedError
from samebits.recompute.network.graph import AnyTape
from samebits.recompute.network.sublayer import PassNetwork
from samebits.recompute.plan.balance import Balance
from samebits.recompute.plan.budget import parse_budget
from samebits.recompute.plan.cost import Device, find_device
from samebits.recompute.plan.plan import ORDERS, Plan, read_plan
from samebits.recompute.plan.planner import make_plan
from samebits.recompute.run.apply import Executor
from samebits.recompute.run.profile import LossFunction, survey
from samebits.recompute.run.proof import prove
from samebits.train.architectures import build, initialise
from samebits.train.run.config import TrainConfig
from samebits.train.run.engine import Batch, Engine, Forward
from samebits.train.run.loop import make_engine

FALLBACKS = ("error", "eager")
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
        if self.backward not in ORDERS:
            raise InputError(f"--backward: expected {' or '.join(ORDERS)}, found {backward!r}")
        self.own_shards, self.replicated = 1, config.numerics == "float32" and workers > 1
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

    @classmethod
    def of_option(
        cls,
        config: TrainConfig,
        plan: str,
        device: str,
        budget: int | str | None,
        workers: int,
        backward: str | None = None,
        fallback: str = "error",
    ) -> Planner:
        """The planner for `--plan auto` or `--plan FILE`. Raises InputError."""
        file = None if plan == "auto" else Path(plan)
        found = find_device(device)
        return cls(config, found, budget, file, workers, backward, fallback=fallback)

    def __call__(
        self, engine: Engine, batch: Batch
    ) -> tuple[Forward | None, dict[str, Any] | None]:
        """The executor that the engine's steps call, and the plan's figures for the result; None
        for both where the steps run without a plan.

        Raises UnsupportedError, naming the guard that failed: for a model that cannot be planned
        unless the fallback is eager, for a plan that is proved wrong in any case.
        """
        x, criterion = engine.prepare(batch)
        try:
            tape, network = survey(engine.model, x, criterion)
        except UnsupportedError as error:
            reason = _GOING.sub("", str(error))
            if not self.eager:
                raise UnsupportedError(
                    f"{reason}; give --plan none, or --plan-fallback eager to go on without a plan"
                ) from error
            progress.note(f"training without a plan: {reason}")
            return None, None
        return self._planned(tape, network, x, criterion)

    def _planned(
        self, tape: AnyTape, network: PassNetwork, x: Tensor, criterion: LossFunction
    ) -> tuple[Forward, dict[str, Any]]:
        """The executor of the plan, proved on one batch.

        A proof that fails is an error with either fallback: what the forward code reads has moved
        on while planning and cannot be put back, so going on would give other bits.
        """
        plan = self.given or self.plan(network)
        try:
            schedule = plan.schedule(network)
        except InputError as error:
            raise InputError(f"{self.file}: {error}") from error
        computed = sum(kind == "recompute" for kind, _ in schedule)
        record = {
            "budget": plan.budget,
            "peak_bytes": plan.peak,
            "store_all_bytes": plan.store_all,
            "smallest_bytes": plan.smallest,
            "recomputed": computed,
            "sublayers": len(network.layers) - 1,
            "backward": plan.backward,
            "load_balance": Balance(plan.work_ps, plan.span_ps).load,
        }
        executor = Executor(tape, network, schedule, self.replicated, self.eager)
        if not self.replicated:  # else gradients would go out to the other workers
            try:
                prove(executor, x, criterion)
            except UnsupportedError as error:
                reason = _GOING.sub("", str(error))
                raise UnsupportedError(f"{reason}; give --plan none") from error
        return executor, record

    def plan(self, network: PassNetwork) -> Plan:
        """The plan of the options given."""
        return make_plan(
            network,
            self.device,
            arch=self.config.arch,
            numerics=self.config.numerics,
            budget=self.budget,
            earlier=earlier_gradients(network, self.own_shards),
            backward=self.backward,
            time_limit=self.time_limit,
        )


def plan_option(
    plan: str | Path | None,
    memory_budget: int | str | None,
    plan_device: str | None,
    backward: str | None,
    fallback: str | None,
) -> str | None:
    """The plan that options ask for: auto, a plan's file, or None; a budget implies auto.

    Raises InputError for options that contradict each other.
    """
    chosen = "none" if plan is None else str(plan)
    if plan is None and memory_budget is not None:
        chosen = "auto"
    if chosen != "auto":
        for option, value in (("--memory-budget", memory_budget), ("--plan-device", plan_device)):
            if value is not None:
                raise InputError(
                    f"{option} needs --plan auto, found --plan {chosen}; give --plan auto, or plan "
                    f"with samebits plan and leave {option} out here"
                )
    if chosen == "none" and backward not in (None, "sequential"):
        raise InputError(
            f"--backward {backward} needs a plan, found --plan none; give --plan auto (with a "
            "large --memory-budget to keep everything) or a plan file"
        )
    if chosen == "none" and fallback is not None:
        raise InputError(
            f"--plan-fallback {fallback} needs a plan, found --plan none; give --plan auto or a "
            "plan file, or leave --plan-fallback out"
        )
    return None if chosen == "none" else chosen


def earlier_gradients(network: PassNetwork, shards: int) -> int:
    """Number of bytes of gradients that the shards before the last leave: BFP keeps their parts."""
    per_shard = sum(size for layer in network.layers for _, size in layer.weights)
    return (shards - 1) * per_shard if network.summed else 0


def architecture_network(
    config: TrainConfig, input_shape: tuple[int, ...], classes: int
) -> tuple[AnyTape, PassNetwork]:
    """The sub-layers of `config.arch` for one pass over inputs of a shape, weights of the seed."""
    model = build(config.arch, input_shape, classes)
    initialise(model, config.seed)
    engine = make_engine(config, model)
    samples = config.batch
    if config.numerics == "bfp":
        samples //= config.shard_count()
    generator = torch.Generator().manual_seed(config.seed)
    x = torch.randn((samples, *input_shape), generator=generator)
    labels = torch.arange(samples) % classes
    inputs, criterion = engine.prepare((x, labels))
    return survey(engine.model, inputs, criterion)
