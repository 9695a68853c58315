"""`TrainConfig`: everything that decides the bits of a training run, validated once."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, fields
from typing import Any

from samebits.data import Dataset
from samebits.data.augment import Augmentation
from samebits.errors import InputError
from samebits.train.clip import check_limit
from samebits.train.convert import EXPONENTS
from samebits.train.optim import ROUNDINGS
from samebits.train.run.schedule import SCHEDULES, Schedule
from samebits.train.widths import Widths

NUMERICS = ("bfp", "float32")
OPTIMIZERS = ("sgd", "adam", "adamw")
SHARD_SAMPLES = 32
_KINDS: dict[str, tuple[type, ...]] = {  # what a field of an annotated type may hold
    "str": (str,),
    "str | None": (str, type(None)),
    "int": (int,),
    "int | None": (int, type(None)),
    "float": (float, int),
    "float | None": (float, int, type(None)),
    "bool": (bool,),
}


def usual_rate(optimizer: str, task: str = "classification") -> float:
    """The learning rate where none is given.

    With that of classes most regressions end in a constant, in either numerics
    (docs/guide/train.md, When training stops at a constant).
    """
    if optimizer != "sgd":
        return 0.001
    return 0.02 if task == "regression" else 0.1


@dataclass(frozen=True)
class TrainConfig:
    """Choices of a run. `shards` None: shards of 32 samples, one shard for a smaller batch."""

    data: str
    arch: str
    numerics: str = "bfp"
    epochs: int = 10
    batch: int = 64
    shards: int | None = None
    lr: float = 0.1
    optimizer: str = "sgd"
    momentum: float = 0.9
    nesterov: bool = False
    weight_decay: float = 0.0
    schedule: str = "cosine"
    warmup: int = 0  # steps
    seed: int = 0
    limit: int | None = None  # training images per class
    gradient_bits: int = 32  # of the sum over the shards: 32 or 16
    augment: str = "none"  # as in data.augment.Augmentation.parse
    exponents: str = "tensor"  # what shares one: a tensor, or a row
    widths: str = "8,16,32"  # of weights and activations, of gradients, of intermediates
    rounding: str = "stochastic"  # of moments and updates, or nearest
    label_smoothing: float = 0.0  # share of every target that goes to all classes alike
    clip_norm: float | None = None  # of all gradients together
    clip_value: float | None = None  # of an element of a gradient, before clip_norm
    ema: float | None = None  # decay of the average of the weights; None: no average
    loss: str | None = None  # a callable's name; None: that of the task
    keep_float: str | None = None  # paths of modules that stay in float32, with commas between them

    def __post_init__(self) -> None:
        """Raises InputError, which names the option, for a type or a value that is not allowed."""
        for field in fields(self):
            value = getattr(self, field.name)
            kinds = _KINDS[str(field.type)]
            if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
                raise InputError(f"expected {field.name} of type {field.type}, found {value!r}")
        for name, found, known in (
            ("numerics", self.numerics, NUMERICS),
            ("optimizer", self.optimizer, OPTIMIZERS),
            ("schedule", self.schedule, SCHEDULES),
            ("rounding", self.rounding, ROUNDINGS),
            ("exponents", self.exponents, EXPONENTS),
        ):
            if found not in known:
                raise InputError(f"expected {name} among {', '.join(known)}, found {found!r}")
        for name, count, least in (
            ("epochs", self.epochs, 1),
            ("batch", self.batch, 1),
            ("shards", 1 if self.shards is None else self.shards, 1),
            ("warmup", self.warmup, 0),
        ):
            if count < least:
                raise InputError(f"expected {name} >= {least}, found {count}")
        if not 0 <= self.seed < 2**32:
            raise InputError(f"expected a seed in 0..{2**32 - 1}, found {self.seed}")
        for name, real in (("lr", self.lr), ("weight decay", self.weight_decay)):
            if not 0 <= real < math.inf:
                raise InputError(f"expected a finite {name} >= 0, found {real}")
        for name, limit in (("clip norm", self.clip_norm), ("clip value", self.clip_value)):
            if limit is not None:
                check_limit(limit, name)
        if self.ema is not None and not 0 < self.ema < 1:
            raise InputError(f"expected ema, a decay in (0, 1), found {self.ema}")
        if not 0 <= self.label_smoothing <= 1:
            raise InputError(f"expected label smoothing in [0, 1], found {self.label_smoothing}")
        if self.loss is not None and self.label_smoothing:
            raise InputError(
                f"label smoothing {self.label_smoothing}: expected none beside a loss of your own, "
                f"{self.loss}; smooth the labels there"
            )
        if not 0 <= self.momentum < 1:
            raise InputError(f"expected momentum in [0, 1), found {self.momentum}")
        if self.nesterov and (self.momentum == 0 or self.optimizer != "sgd"):
            raise InputError("nesterov needs sgd with a momentum > 0; give --momentum 0.9")
        if self.gradient_bits not in (16, 32) or (
            self.gradient_bits == 16 and self.numerics == "float32"
        ):
            raise InputError(
                f"expected gradient bits 32, or 16 for numerics bfp, found {self.gradient_bits} "
                f"for {self.numerics}"
            )
        if self.rounding != "stochastic" and self.numerics == "float32":
            raise InputError(
                f"rounding applies to numerics bfp, found {self.rounding} for float32; leave it out"
            )
        for name, chosen, usual in (
            ("exponents", self.exponents, "tensor"),
            ("widths", self.widths, "8,16,32"),
        ):
            if chosen != usual and self.numerics == "float32":
                raise InputError(
                    f"{name} apply to numerics bfp, found {chosen} for float32; leave them out"
                )
        Widths.parse(self.widths)
        Augmentation.parse(self.augment)
        self.shard_count()

    def shard_count(self) -> int:
        """Number of shards of a batch. Raises InputError where it cannot be cut evenly."""
        if self.shards is None:
            shards = max(1, self.batch // SHARD_SAMPLES)
            if self.batch % shards:
                raise InputError(
                    f"a batch of {self.batch} cannot be cut into {shards} equal shards of about "
                    f"{SHARD_SAMPLES} samples; give --shards N with N dividing {self.batch}, or a "
                    f"batch that is a multiple of {SHARD_SAMPLES}"
                )
            return shards
        if self.batch < self.shards:
            raise InputError(
                f"expected a batch of at least one sample per shard, found a batch of "
                f"{self.batch} for {self.shards} shards; raise --batch or lower --shards"
            )
        if self.batch % self.shards:
            raise InputError(
                f"expected shards that divide the batch, found a batch of {self.batch} for "
                f"{self.shards} shards; change --batch or --shards"
            )
        return self.shards

    def check_workers(self, workers: int) -> None:
        """InputError unless every worker gets equally many whole shards (float32: samples)."""
        whole, what = (
            (self.batch, "samples of a batch")
            if self.numerics == "float32"
            else (self.shard_count(), "shards of a batch")
        )
        if whole % workers:
            raise InputError(
                f"expected a number of workers that divides the {whole} {what}, found {workers}; "
                f"start torchrun with another --nproc-per-node, or change "
                f"{'--batch' if self.numerics == 'float32' else '--shards'}"
            )

    def steps_per_epoch(self, data: Dataset) -> int:
        """Number of whole batches in an epoch; the last partial batch is dropped.

        Raises InputError where there is none.
        """
        count = len(data.train_labels)
        if count < self.batch:
            raise InputError(
                f"{data.source}: expected at least one batch of {self.batch} training "
                f"{data.noun}s, found {count}; lower --batch or add data"
            )
        return count // self.batch

    def schedule_for(self, data: Dataset) -> Schedule:
        """Learning rates of all steps on a data set. Raises InputError as `steps_per_epoch`."""
        total = self.steps_per_epoch(data) * self.epochs
        return Schedule(self.schedule, self.lr, total, self.warmup)

    def to_dict(self) -> dict[str, Any]:
        """The choices as JSON data."""
        return asdict(self)
