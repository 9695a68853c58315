"""An optimizer as the C of a step has it: its constants, its files, and rates by step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from samebits.codegen.names import wrapped_list
from samebits.errors import InputError
from samebits.spec import formats
from samebits.train.optim import BETAS, EPS
from samebits.train.run.config import TrainConfig
from samebits.train.run.schedule import Schedule

POWERS = ("power1", "power2")
"""Numbers of Adam's state, the same of every parameter: the powers of its betas."""

MOST_RATES = 1 << 20


@dataclass(frozen=True)
class UpdateOptions:
    """An optimizer and its constants: part of what a network is. A limit of None clips nothing."""

    optimizer: str
    momentum: float
    nesterov: bool
    weight_decay: float
    seed: int
    clip_norm: float | None
    clip_value: float | None

    @property
    def is_adam(self) -> bool:
        """Whether it is Adam or AdamW."""
        return self.optimizer != "sgd"

    @property
    def clips(self) -> bool:
        """Whether gradients are clipped."""
        return self.clip_norm is not None or self.clip_value is not None

    @property
    def moments(self) -> tuple[str, ...]:
        """Moments that it keeps of a parameter, by the names of its state."""
        if self.is_adam:
            return "first", "root"
        return ("momentum",) if self.momentum else ()

    @property
    def kernels(self) -> tuple[str, ...]:
        """Its files in csrc."""
        own = ["ondevice/train_adam.c", "training/adam.h", "training/e6m9.h"]
        files = own if self.is_adam else ["ondevice/train_sgd.c", "ondevice/train_momentum.h"]
        return (*files, *["ondevice/train_clip.c"] * self.clips)


def options_of(config: TrainConfig) -> UpdateOptions:
    """The optimizer of a run."""
    is_sgd = config.optimizer == "sgd"
    return UpdateOptions(
        config.optimizer,
        config.momentum if is_sgd else 0.0,
        config.nesterov,
        config.weight_decay,
        config.seed,
        config.clip_norm,
        config.clip_value,
    )


def parse_schedule(text: str, base: float) -> list[float]:
    """The rates of a schedule NAME:STEPS from a rate on. Raises InputError."""
    name, _, steps = text.partition(":")
    if not (steps.isascii() and steps.isdigit()) or not 1 <= int(steps) <= MOST_RATES:
        raise InputError(
            f"--train-schedule: expected NAME:STEPS with 1 to {MOST_RATES:,} steps, such as "
            f"cosine:1000, found {text!r}"
        )
    schedule = Schedule(name, base, int(steps))
    return [schedule.at(step) for step in range(int(steps))]


def schedule_entries(rates: Sequence[float], first: int) -> list[tuple[int, int, int]]:
    """Steps and the coefficients from them on, where they change: of step `first` and those after
    it. Steps before have the first rate, those behind the last. Raises InputError for a bad rate.
    """
    entries: list[tuple[int, int, int]] = []
    for step, rate in enumerate(rates, first):
        if not 0 <= rate < float("inf"):
            raise InputError(f"rates: expected finite numbers >= 0, found {rate}")
        own = formats.coefficient(rate) if rate else (0, 0)
        if not entries or entries[-1][1:] != own:
            entries.append((step if entries else 0, *own))
    return entries


def update_text(
    options: UpdateOptions, powers: int | None, schedule: Sequence[tuple[int, int, int]]
) -> dict[str, object]:
    """The parts of a network's C that depend on its optimizer and its schedule, by their names in
    the template. powers: the place of Adam's."""
    rule = "adam" if options.is_adam else "sgd"
    if not options.is_adam and (options.nesterov or not options.momentum):
        rule = "plain"
    constants, prepare, finish = "", "", ""
    if powers is not None:
        decoupled = options.optimizer == "adamw"
        decays = (0.0, options.weight_decay) if decoupled else (options.weight_decay, 0.0)
        betas = [number for beta in BETAS for number in (beta, 1.0 - beta)]
        constants = f"static const samebits_adam ADAM = {{{_reals(*betas, EPS, *decays)}}};\n"
        prepare = f"    samebits_train_adam_start(&o, (double *)(void *)(net->arena + {powers}));\n"
        finish = f"    samebits_train_adam_end(&ADAM, (double *)(void *)(net->arena + {powers}));\n"
    if schedule:
        numbers = wrapped_list([f"{{{s}u, {{{m}, {x}}}}}" for s, m, x in schedule], 4)
        constants += f"static const samebits_rate SCHEDULE[] = {{\n    {numbers}}};\n"
    measure = ""
    if options.clips:
        limits = _reals(options.clip_value or 0.0, options.clip_norm or 0.0)
        measure = f"    samebits_train_clip_start(&clip, {limits});\n    o.clip = &clip;\n"
    if options.clip_norm is not None:
        measure += MEASURE
    return {
        "rule": f"samebits_train_{rule}",
        "momentum": _coefficient(options.momentum),
        "decay": _coefficient(options.weight_decay),
        "seed": options.seed & 0xFFFFFFFF,
        "nesterov": int(options.nesterov),
        "moments": len(options.moments),
        "adam": "NULL" if powers is None else "&ADAM",
        "constants": constants,
        "prepare": prepare,
        "finish": finish,
        "clip": "    samebits_clip clip;\n" if options.clips else "",
        "measure": measure,
        "scheduled": int(bool(schedule)),
        "schedule": SCHEDULED.format(len(schedule)) if schedule else "",
    }


MEASURE = """\
    o.mode = SAMEBITS_TRAIN_MEASURE; /* all gradients, for their norm */
    status = walk(net, inputs, labels, count, &o, &loss);
    if (status != SAMEBITS_TRAIN_OK) return status;
    samebits_train_clip_end(&clip);
    o.mode = SAMEBITS_TRAIN_PROVE;
"""

SCHEDULED = """\
    if (net->scheduled) net->rate = samebits_train_scheduled(SCHEDULE, {}, net->step);
"""


def _coefficient(value: float) -> str:
    m, x = formats.coefficient(value) if value else (0, 0)
    return f"{m}, {x}"


def _reals(*values: float) -> str:
    return ", ".join(map(repr, values))
