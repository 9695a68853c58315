"""`TrainConfig`: everything that decides the bits of a training run, validated once."""

from __future__ import annotations

from dataclasses import asdict, field
from typing import Any

from samebits.data import Dataset
from samebits.data.augment import Augmentation
from samebits.errors import InputError
from samebits.recipes import Numerics, Optimizer, Training
from samebits.recipes.record import again
from samebits.train.run.schedule import Schedule
from samebits.train.widths import Widths

SHARD_SAMPLES = 32


def usual_rate(optimizer: str, task: str = "classification") -> float:
    """The learning rate where none is given.

    With that of classes most regressions end in a constant, in either numerics
    (docs/guide/train.md, When training stops at a constant).
    """
    if optimizer != "sgd":
        return 0.001
    return 0.02 if task == "regression" else 0.1


class TrainConfig(Training, Optimizer, Numerics, listed=False):
    """The options that decide the bits of a run: its recipes, resolved for its data, and its names.

    `shards` None: shards of 32 samples, one shard for a smaller batch. loss: a callable's name.
    """

    data: str = field(kw_only=True)
    arch: str = field(kw_only=True)
    lr: float = again(default=0.1, record=Optimizer, name="lr")

    def __post_init__(self) -> None:
        """Raises InputError, which names the option, for a type or a value that is not allowed."""
        super().__post_init__()
        for name in ("data", "arch"):
            if not isinstance(getattr(self, name), str):
                raise InputError(f"expected {name}, a text, found {getattr(self, name)!r:.80}")
        if not isinstance(self.loss, str | None):
            raise InputError(f"expected the name of a loss, found {self.loss!r:.80}")
        if self.loss is not None and self.label_smoothing:
            raise InputError(
                f"label smoothing {self.label_smoothing}: expected none beside a loss of your own, "
                f"{self.loss}; smooth the labels there"
            )
        if self.nesterov and (self.momentum == 0 or self.optimizer != "sgd"):
            raise InputError("nesterov needs sgd with a momentum > 0; give --momentum 0.9")
        if self.gradient_bits not in (16, 32) or (
            self.gradient_bits == 16 and self.numerics == "float32"
        ):
            raise InputError(
                f"expected gradient bits 32, or 16 for numerics bfp, found {self.gradient_bits} "
                f"for {self.numerics}"
            )
        self.check_bfp(self.differing())
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
        """All options as JSON data."""
        return {"data": self.data, "arch": self.arch, **asdict(self)}
