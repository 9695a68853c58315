"""Recipes of a training run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from samebits.errors import InputError
from samebits.recipes.record import Recipe, option, text_list

NUMERICS = ("bfp", "float32")
OPTIMIZERS = ("sgd", "adam", "adamw")
SCHEDULES = ("constant", "step", "linear", "cosine")
EXPONENTS = ("tensor", "row", "row-shift")
ROUNDINGS = ("stochastic", "nearest")  # of moments and updates
ORDERS = ("sequential", "paired")
FALLBACKS = ("error", "eager")
SEEDS = 2**32 - 1
ARCHITECTURES = (
    *("mlp", "cnn", "smooth", "resnet8", "resnet20", "resnet18", "mobilenetv2", "lstm", "vit"),
    "gpt",
)


def _loss(given: Any) -> Any:
    if not isinstance(given, str) and not callable(given):
        raise InputError(
            "loss: expected a callable of outputs and labels, or its name (module:callable or "
            f"file.py:callable), found {type(given).__name__}"
        )
    return given


class Training(Recipe):
    """Samples of a run, their order and the loss."""

    epochs: int = option(default=10, help="Passes over the data.", span="[1, inf)")
    batch: int = option(default=64, help="Samples per step.", span="[1, inf)")
    shards: int | None = option(
        default=None, help="Shards per batch [default: one per 32 samples].", span="[1, inf)"
    )
    seed: int = option(default=0, help="Seed of everything that is random.", span=f"[0, {SEEDS}]")
    limit: int | None = option(
        default=None, help="Use the first N training samples of each class.", span="[1, inf)"
    )
    augment: str = option(
        default="none",
        help="none, or a list of flip, crop:PIXELS and zoom:PERCENT.",
        metavar="LIST",
    )
    label_smoothing: float = option(
        default=0.0,
        help="Share of every target that goes to all classes alike, 0 to 1.",
        span="[0, 1]",
    )
    loss: str | Callable[..., Any] | None = option(
        default=None,
        help="A loss of your own, of outputs and labels: module:callable or file.py:callable.",
        take=_loss,
        metavar="NAME",
    )


class Optimizer(Recipe):
    """How a step changes the weights."""

    optimizer: str = option(
        default="sgd", help="sgd, adam or adamw.", choices=OPTIMIZERS, metavar="NAME"
    )
    lr: float | None = option(
        default=None,
        help="Learning rate [default: 0.1 for sgd, 0.02 of a regression; else 0.001].",
        span="[0, inf)",
    )
    momentum: float = option(default=0.9, help="Momentum of sgd.", span="[0, 1)")
    nesterov: bool = option(default=False, help="Nesterov momentum.")
    weight_decay: float = option(default=0.0, help="Weight decay.", span="[0, inf)")
    schedule: str = option(
        default="cosine",
        help="Learning rate: constant, step, linear or cosine.",
        choices=SCHEDULES,
        metavar="NAME",
    )
    warmup: int = option(default=0, help="Linear warm-up, in steps.", span="[0, inf)")
    clip_norm: float | None = option(
        default=None, help="Scale gradients down to this norm, of all together.", span="(0, inf)"
    )
    clip_value: float | None = option(
        default=None,
        help="Bring every element of the gradients to within +- this, first.",
        span="(0, inf)",
    )
    ema: float | None = option(
        default=None,
        help="Leave an average of the weights with this decay, as 0.999, as the model.",
        span="(0, 1)",
    )


def _paths(given: Any) -> str | None:
    """Paths of modules with commas between them."""
    return ",".join(text_list(given)) or None


class Numerics(Recipe):
    """The numbers in which a run computes (docs/spec/training.md)."""

    numerics: str = option(
        default="bfp", help="bfp or float32.", choices=NUMERICS, metavar="NUMERICS"
    )
    exponents: str = option(
        default="tensor",
        help="What shares one: tensor, row (a sample, a token, an output channel), or row-shift "
        "(rows, with outlier channels of activations apart).",
        choices=EXPONENTS,
        metavar="NAME",
    )
    widths: str = option(
        default="8,16,32",
        help="Bits of weights and activations (4 to 8), of gradients (up to 16), and 32, or 16 for "
        "weight gradients from 16-bit ones.",
        metavar="A,B,C",
    )
    rounding: str = option(
        default="stochastic",
        help="Of moments and updates: stochastic, or nearest (which loses small ones).",
        choices=ROUNDINGS,
        metavar="NAME",
    )
    gradient_bits: int = option(
        default=32, help="Of gradients summed over shards: 32, or 16 (half the traffic)."
    )
    keep_float: str | None = option(
        default=None,
        help="Paths of modules without parameters that stay in float32.",
        take=_paths,
        metavar="LIST",
    )

    def check_bfp(self, chosen: Mapping[str, Any]) -> None:
        """Raise InputError for a chosen option of block floating point beside float32."""
        for name in ("rounding", "exponents", "widths"):
            if name in chosen and self.numerics == "float32":
                raise InputError(
                    f"--{name}: expected none for numerics float32, found {chosen[name]}, which "
                    "applies to bfp; leave it out"
                )


def _named(option: str, what: str) -> Callable[[Any], str]:
    """Take a text or a path. Raises InputError for anything else."""

    def take(given: Any) -> str:
        if not isinstance(given, str | Path):
            raise InputError(f"--{option}: expected {what}, found {given!r:.80}")
        return str(given)

    return take


def _bytes(given: Any) -> int | str:
    if not isinstance(given, int | str) or isinstance(given, bool):
        raise InputError(
            f"--memory-budget: expected bytes, or a text such as 3M or 40%, found {given!r:.80}"
        )
    return given


class Recomputation(Recipe):
    """Results that a step computes again instead of keeping them; no plan changes a bit."""

    plan: str | None = option(
        default=None,
        help="What to compute again instead of keeping: none (the default), auto or a plan's file.",
        take=_named("plan", "none, auto or the name of a plan's file"),
        metavar="PLAN",
    )
    memory_budget: int | str | None = option(
        default=None,
        help="What a pass may hold: bytes, 3M, or 40% of what storing everything takes; implies a "
        "plan.",
        take=_bytes,
        metavar="BYTES",
    )
    plan_device: str | None = option(
        default=None,
        help="For which device it is planned: a name, or a file of samebits device [default: "
        "laptop-cpu].",
        take=_named("plan-device", "the name of a device or of its file"),
        metavar="DEVICE",
    )
    backward: str | None = option(
        default=None,
        help="Order of the backward pass: sequential, or, in BFP, paired (weight gradients in a "
        "second thread, beside the next activation gradient).",
        choices=ORDERS,
        metavar="ORDER",
    )
    plan_fallback: str | None = option(
        default=None,
        help="Where a plan cannot be used, as the network's forward code has a state of its own: "
        "error (the default), or eager: train without the plan, a note says why.",
        choices=FALLBACKS,
        metavar="WHAT",
    )


class Execution(Recipe):
    """Where a run computes, and what it writes beside its result; none of it changes a bit."""

    device: str = option(
        default="cpu",
        help="Where to compute: cpu, or cuda (a GPU for every worker).",
        names=lambda: ("cpu", "cuda"),
        metavar="DEVICE",
    )
    threads: int | None = option(default=None, help="CPU threads.", span="[1, inf)")
    worker_timeout: float = option(
        default=600.0,
        help="Seconds after which a silent worker of torchrun counts as lost.",
        span="(0, inf)",
    )
    checkpoint_every: int = option(
        default=0, help="Also write a checkpoint every N steps.", span="[0, inf)"
    )
    resume: bool = option(default=False, help="Continue from the newest intact checkpoint.")
    overwrite: bool = option(default=False, help="Replace an earlier run of the same options.")
    trace: Path | None = option(
        default=None,
        help="File for a hash of every tensor of every step, for samebits audit.",
        take=lambda given: Path(_named("trace", "the name of a file")(given)),
        metavar="FILE",
    )
    tensorboard: Path | None = option(
        default=None,
        help="Write loss, accuracy and learning rate for TensorBoard (needs the package "
        "tensorboard).",
        take=lambda given: Path(_named("tensorboard", "the name of a folder")(given)),
        metavar="FOLDER",
    )
