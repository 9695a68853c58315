"""The training loop: data order, steps, evaluation, checkpoints, resume.

A run's bits depend on its `TrainConfig` and data alone. Order, learning rate and dropout are pure
functions of (seed, epoch, step), so a run resumed from any checkpoint equals an uninterrupted one.
"""

from __future__ import annotations

import contextlib
import json
import logging
import re
import statistics
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import nn

from samebits.data import Dataset
from samebits.data.augment import Augmentation, sample_words
from samebits.data.tally import Metrics
from samebits.errors import CheckpointError, FidelityWarning, InputError, RangeError
from samebits.ir.fidelity import Fidelity
from samebits.numerics import philox
from samebits.settled import check_threads
from samebits.train.architectures import build, initialise
from samebits.train.deployed.deploy import Exponents
from samebits.train.layers import load_state
from samebits.train.run.average import RunAverage
from samebits.train.run.checkpoint import (
    Checkpoint,
    check_same_tensors,
    checkpoint_path,
    newest_checkpoint,
    parameter_sha256,
    write_checkpoint,
)
from samebits.train.run.config import TrainConfig
from samebits.train.run.device import CPU
from samebits.train.run.distributed import ALONE, Workers, join
from samebits.train.run.engine import (
    Batch,
    BfpEngine,
    Engine,
    Float32Engine,
    Forward,
    OptimizerSettings,
)
from samebits.train.run.evaluate import (
    COMPARED,
    Classifier,
    final_classifier,
    frozen_exponents,
    gives_one_output,
    kept,
    measured,
    nats_per_token,
)
from samebits.train.run.measure import bytes_per_parameter, saved_activations, weight_codes
from samebits.train.run.record import (
    CONFIG,
    ONE_OUTPUT,
    RESULT,
    append_metrics,
    first_difference,
    read_json,
    repair_metrics,
    run_folder,
    write_json,
    write_result,
)
from samebits.train.run.structure import KEY, check_network, network_sha256
from samebits.train.run.tasks import OwnLoss, check_architecture
from samebits.train.run.trace import TraceFile
from samebits.train.widths import Widths

Planner = Callable[[Engine, Batch], tuple[Forward | None, dict[str, Any] | None]]
ORDER_SHARD = 2**32 - 1  # the Philox shard word of the data order: no training shard has it
# What a RangeError advises on its own; the loop gives the same advice with the options' names.
_log = logging.getLogger(__name__)
_ADVICE = re.compile(r"( \(training diverged\))?[;:] lower the learning rate.*", re.DOTALL)


class Reporter(Protocol):
    """Hears what a run does."""

    def say(self, text: str) -> None:
        """Hear a line for the user's log."""
        return

    def started(self, first_step: int, steps: int) -> None:
        """Hear that the run goes from `first_step` up to `steps`."""
        return

    def stepped(self, step: int, loss: float) -> None:
        """Hear that `step` steps are done, and the loss of the last one."""
        return

    def epoch_done(self, record: dict[str, Any]) -> None:
        """Hear that a line was added to metrics.jsonl."""
        return


class Silent(Reporter):
    """A reporter that drops everything."""


@dataclass(frozen=True)
class TrainResult:
    """Figures of a finished run, written as result.json. Times in seconds.

    `accuracy` is the share of correct samples, places of texts or pixels; None for a regression.
    `metrics` are figures of tasks other than classification by name (data.tally), else None.
    `arithmetic` is that of both: deployed, training or float32.
    `saved_bytes` is what one shard's forward pass keeps for its backward pass (in both numerics).
    `nats_per_token` is the mean cross-entropy of a language model's test tokens, else None.
    `wire_bytes_per_step` is what each worker sends to the others (None for float32 and where no
    step was left to do). `fidelity` is what the deployed arithmetic keeps of the outputs of the
    training arithmetic (`ir.fidelity`), None where it is not deployed. `plan` says what the steps
    keep and compute again, None without a plan. `float_islands` has a line for every module, and
    for the loss, that was computed in floats; None where the bits are those of every machine.
    """

    accuracy: float | None
    arithmetic: str
    correct: int | None
    test_count: int
    sha256: str
    epochs: int
    steps: int
    train_loss: float | None
    parameters: int
    bytes_per_parameter: float
    saved_bytes: int
    saved_bytes_per_element: float
    step_seconds_median: float | None
    workers: int
    wire_bytes_per_step: int | None
    plan: dict[str, Any] | None = None
    nats_per_token: float | None = None
    metrics: dict[str, float] | None = None
    fidelity: dict[str, Any] | None = None
    float_islands: list[str] | None = None

    def to_dict(self) -> dict[str, Any]:
        """The result as JSON data."""
        return asdict(self)


def _tested(found: Metrics) -> dict[str, float]:
    """Figures of the test samples as a line of metrics.jsonl has them."""
    if not found.figures:
        return {"test_accuracy": found.accuracy or 0.0}
    return {f"test_{name}": value for name, value in found.figures.items()}


def data_order(count: int, seed: int, epoch: int) -> torch.Tensor:
    """The order [count] in which an epoch visits the training samples."""
    words = philox.words(count, (seed, epoch), shard=ORDER_SHARD)
    return torch.argsort(words, stable=True)


def make_engine(
    config: TrainConfig,
    model: nn.Module,
    workers: Workers = ALONE,
    device: torch.device = CPU,
    task: str = "classification",
    loss: OwnLoss | None = None,
) -> Engine:
    """The numerics of `config` around an initialised float model, on this worker.

    task: of the data, which decides the loss where none is given
    """
    settings = OptimizerSettings(
        config.optimizer,
        config.lr,
        config.momentum,
        config.nesterov,
        config.weight_decay,
        config.seed,
        config.rounding,
        config.clip_norm,
        config.clip_value,
    )
    smoothing = config.label_smoothing
    if config.numerics == "float32":
        return Float32Engine(model, settings, workers, device, smoothing, task, loss)
    shards, bits = config.shard_count(), config.gradient_bits
    options = (workers, bits, device, smoothing, config.exponents, Widths.parse(config.widths))
    kept = [path for path in (config.keep_float or "").split(",") if path]
    return BfpEngine(model, settings, shards, config.seed, *options, task, loss, kept)


def train(
    config: TrainConfig,
    data: Dataset,
    out: Path,
    *,
    model: nn.Module | None = None,
    init: dict[str, torch.Tensor] | None = None,
    resume: bool = False,
    overwrite: bool = False,
    checkpoint_every: int = 0,
    trace: Path | None = None,
    reporter: Reporter | None = None,
    workers: Workers | None = None,
    planner: Planner | None = None,
    device: torch.device = CPU,
    loss: Callable[..., Any] | None = None,
    asked: Mapping[str, Any] | None = None,
) -> TrainResult:
    """Train and leave config.json, metrics.jsonl, checkpoints and result.json in `out`.

    `model`: a float model to train instead of `config.arch`'s; its weights are re-initialised
    from the seed, or are those of `init` (`initial.initial_weights`). A checkpoint is written every
    epoch and every `checkpoint_every` steps.
    `overwrite` replaces an earlier run of the same options and data.
    `trace`: file for the hash of every tensor of every step (samebits.train.run.trace).
    `planner`: gives what steps call in the model's place, for an engine and the batch of one pass,
    and a record of it for the result (samebits.recompute.training), or None for both.
    `asked`: the recipes as a user gave them, to be recorded in config.json.
    `loss`: of outputs and labels, instead of that of the task; `config.loss` is its name.
    `device`: what `device.run_device` gave; in BFP no bit depends on it, and a run may be resumed
    on another one.
    `workers`: what `distributed.join` gave; without it a process that torchrun started joins here.
    Every worker returns the same result; the first one alone writes files and reports.
    Raises SamebitsError; checkpoints written before it stay intact.
    """
    if checkpoint_every < 0:
        raise InputError(f"expected --checkpoint-every >= 0 steps, found {checkpoint_every}")
    check_threads()
    with contextlib.ExitStack() as stack:
        if workers is None:
            workers = stack.enter_context(join(device=device))
        config.check_workers(workers.size)
        own = None if loss is None else OwnLoss(loss, str(config.loss))
        run = _Run(config, data, out, model, init, reporter or Silent(), workers, device, own)
        if planner is not None:
            run.plan_with(planner)
        if workers.first:
            stack.enter_context(run_folder(out, run.identity, resume=resume, overwrite=overwrite))
        first = run.restore() if resume else 0
        run.agree(first)
        if workers.first:
            write_json(out / CONFIG, {**run.identity, "recipes": asked or {}})
        if trace is not None:
            stack.enter_context(run.traced(trace, first))
        return run.finish(run.steps(first, checkpoint_every))


class _Run:
    """The state of one run in memory."""

    def __init__(
        self,
        config: TrainConfig,
        data: Dataset,
        out: Path,
        model: nn.Module | None,
        init: dict[str, torch.Tensor] | None,
        reporter: Reporter,
        workers: Workers,
        device: torch.device,
        loss: OwnLoss | None,
    ) -> None:
        self.config, self.data, self.out, self.workers = config, data, out, workers
        self.reporter = reporter if workers.first else Silent()
        self.augmentation = Augmentation.parse(config.augment)
        check_architecture(config.arch, data, self.augmentation)
        self.schedule = config.schedule_for(data)
        self.augmentation.check(data.train_images, data.source)
        self.per_epoch = config.steps_per_epoch(data)
        if model is None:
            model = build(config.arch, data.input_shape, data.classes)
        initialise(model, config.seed)
        self.parameters = sum(parameter.numel() for parameter in model.parameters())
        self.engine = make_engine(config, model, workers, device, data.task, loss)
        network = network_sha256(config, self.engine, data.input_shape, data.rows)
        if init is not None:
            load_state(self.engine.model, init, "init")
        self.average = RunAverage(self.engine.model, config.ema)
        self.identity = {
            **config.to_dict(),
            "input_shape": list(data.input_shape),
            "classes": data.classes,
            "data_sha256": data.sha256(),
            "rate": data.rate,
            "loss_sha256": None if loss is None else loss.sha256,
            KEY: network,
            "init_sha256": None if init is None else parameter_sha256(init),
            **data.record(),
        }
        self.loss_sum = 0.0  # over the steps of the current epoch
        self.train_loss: float | None = None  # of the last whole epoch
        self.trace: TraceFile | None = None
        self.wire_bytes: int | None = None  # that this worker sent in the last step
        self.exponents: Exponents | None = None  # once the last step is done
        self.one_output = False  # of the first test samples, after the last whole epoch
        self.plan: dict[str, Any] | None = None

    def plan_with(self, planner: Planner) -> None:
        """Let steps call what a planner gives for the batch of one forward pass.

        That is a shard, in float32 this worker's part of the batch.
        """
        shards = self.config.numerics == "bfp"
        first = self._first_images(self.config.shard_count() if shards else self.workers.size)
        self.engine.forward, self.plan = planner(self.engine, first)

    def agree(self, first: int) -> None:
        """InputError unless every worker is about to take the same step of the same run."""
        names = self.config.to_dict().keys()
        facts = {key: value for key, value in self.identity.items() if key != "data"}
        options = {key: value for key, value in facts.items() if key in names}
        data = {key: value for key, value in facts.items() if key not in names}
        state = parameter_sha256(self.engine.model.state_dict())
        self.workers.agree(
            {
                "options": json.dumps(options),
                "data": json.dumps(data),
                "number of steps done": str(first),
                "parameters": state,
            }
        )

    def _say(self, text: str) -> None:
        """Tell the reporter and the log; of several workers only the first does."""
        if self.workers.first:
            _log.info("%s", text)
        self.reporter.say(text)

    def restore(self) -> int:
        """Continue from the newest intact checkpoint; gives the number of steps already done.

        Raises CheckpointError where it belongs to another model or run, or none is intact.
        """
        checkpoint = newest_checkpoint(self.out, self._say)
        if checkpoint is None:
            self._say(f"{self.out}: no checkpoint yet, starting from the first step")
            self._repair_metrics(0)
            return 0
        path = checkpoint_path(self.out, checkpoint.step)
        check_same_tensors(path, self.engine.model.state_dict(), checkpoint.model)
        self._check_identity(path, checkpoint)
        check_network(path, self.config, checkpoint.config.get(KEY), self.identity[KEY])
        self.average.restore(checkpoint.model, checkpoint.average, path)
        self.engine.optimizer.load_state_dict(checkpoint.optimizer)
        loss_sum, train_loss = (checkpoint.progress.get(k) for k in ("loss_sum", "train_loss"))
        if type(loss_sum) is not float or type(train_loss) not in (float, type(None)):
            raise CheckpointError(
                f"{path}: damaged: expected numbers for loss_sum and train_loss, found "
                f"{loss_sum!r} and {train_loss!r}; delete it to resume from the one before it"
            )
        self.loss_sum, self.train_loss = loss_sum, train_loss
        self.exponents = checkpoint.exponents
        self._repair_metrics(checkpoint.step)
        self._say(f"{path}: resuming after step {checkpoint.step}")
        return checkpoint.step

    def _repair_metrics(self, step: int) -> None:
        if self.workers.first:
            repair_metrics(self.out, step)

    def _check_identity(self, path: Path, checkpoint: Checkpoint) -> None:
        difference = first_difference(self.identity, checkpoint.config)
        if difference is not None:
            raise CheckpointError(
                f"{path}: belongs to another run: {difference}; resume with the same options and "
                "data, or give another --out"
            )

    @contextlib.contextmanager
    def traced(self, path: Path, first: int) -> Iterator[None]:
        """Write a trace of the steps taken inside, from step `first` on."""
        self.trace = TraceFile(path, self.engine.model, self.identity, self.workers)
        self.trace.start(first)
        self.engine.recorder = self.trace.recorder
        try:
            yield
        finally:
            self.trace.close()

    def steps(self, first: int, checkpoint_every: int) -> list[float]:
        """Train from step `first` to the end; gives the seconds of every step.

        An epoch's order and random words are made where it starts, or where a resumed run enters
        it: they follow from seed and epoch alone.
        """
        self.reporter.started(first, self.schedule.total)
        seconds: list[float] = []
        for step in range(first, self.schedule.total):
            epoch, offset = divmod(step, self.per_epoch)
            if offset == 0 or step == first:
                count = len(self.data.train_labels)
                order = data_order(count, self.config.seed, epoch)
                words = sample_words(self.config.seed, epoch, count)
                epoch_start = time.perf_counter()
            chosen = order[offset * self.config.batch : (offset + 1) * self.config.batch]
            started, sent = time.perf_counter(), self.workers.sent
            mine = self.workers.share(chosen)
            loss = self._step(self._batch(mine, words[mine]), step, epoch)
            seconds.append(time.perf_counter() - started)
            if self.config.numerics == "bfp":
                self.wire_bytes = self.workers.sent - sent
            self.loss_sum += loss
            done = step + 1
            if self.trace is not None:
                self.trace.step_done(done)
            self.reporter.stepped(done, loss)
            if offset + 1 == self.per_epoch:
                self._end_epoch(epoch, done, time.perf_counter() - epoch_start)
            if offset + 1 == self.per_epoch or (checkpoint_every and done % checkpoint_every == 0):
                self._save(done)
        return seconds

    def _first_images(self, parts: int) -> Batch:
        """As many training images as one of `parts` parts of a batch has."""
        indices = torch.arange(self.config.batch // parts, device="cpu")
        return self.data.batch("train", indices), self.data.targets("train", indices)

    def _batch(self, indices: torch.Tensor, words: torch.Tensor) -> Batch:
        """Training images, augmented by the words of their samples."""
        images = self.augmentation.apply(self.data.images("train")[indices], words)
        return self.data.values(images), self.data.targets("train", indices)

    def _step(self, batch: Batch, step: int, epoch: int) -> float:
        """One step's loss; a RangeError says where training diverged and what to do."""
        lr = self.schedule.at(step)
        try:
            loss = self.engine.step(batch, lr, step)
            self.average.update()
            return loss
        except RangeError as error:
            reason = _ADVICE.sub("", str(error))
            raise RangeError(
                f"training diverged in step {step + 1} (epoch {epoch + 1}, learning rate {lr}): "
                f"{reason}; lower the learning rate (--lr) or add a warm-up (--warmup). "
                "Earlier checkpoints are intact"
            ) from error

    def _end_epoch(self, epoch: int, step: int, seconds: float) -> None:
        """Evaluate, write a line of metrics, and tell the reporter."""
        self.train_loss = self.loss_sum / self.per_epoch
        self.loss_sum = 0.0
        with self.average.applied():
            found = measured(self.engine, self.data, self.workers)
            one_output = self.workers.first and gives_one_output(self.engine, self.data)
        record: dict[str, Any] = {
            "epoch": epoch + 1,
            "step": step,
            "train_loss": self.train_loss,
            **_tested(found),
            "lr": self.schedule.at(step - 1),
            "seconds": round(seconds, 3),
        }
        if self.workers.first:
            record |= {"weights": weight_codes(self.engine.model), "one_output": one_output}
            append_metrics(self.out, record)  # before the checkpoint: resuming drops later lines
            _log.info("%s: %s", self.out, json.dumps(record))
        self.reporter.epoch_done(record)
        if one_output and not self.one_output:
            self._say(f"warning: after epoch {epoch + 1} {ONE_OUTPUT}")
        self.one_output = one_output

    def _save(self, step: int) -> None:
        """Write a checkpoint, after the last step with the frozen exponents of the model."""
        average = self.average.state()
        with self.average.applied():
            if step == self.schedule.total:
                self.exponents = frozen_exponents(self.engine, self.data, self._say)
            if not self.workers.first:
                return
            progress = {
                "epoch": step // self.per_epoch,
                "loss_sum": self.loss_sum,
                "train_loss": self.train_loss,
            }
            made = Checkpoint(
                step=step,
                model=self.engine.model.state_dict(),
                optimizer=self.engine.optimizer.state_dict(),
                config=self.identity,
                progress=progress,
                exponents=self.exponents,
                average=average,
            )
            write_checkpoint(self.out, made)

    def finish(self, seconds: list[float]) -> TrainResult:
        """Measure and write result.json; a run that was finished already is evaluated again."""
        with self.average.applied():
            result = self._measured(seconds)
        if self.workers.first:
            write_result(self.out, result.to_dict())
        return result

    def _measured(self, seconds: list[float]) -> TrainResult:
        """The figures of the model as it is; `seconds` are those of the steps just taken."""
        classifier, arithmetic = final_classifier(self.engine, self.exponents)
        found = measured(classifier, self.data, self.workers)
        sha256 = parameter_sha256(self.engine.model.state_dict())
        average = (self.average.state() or {}).get("weights")
        per_parameter = bytes_per_parameter(self.engine, self.parameters, average)
        saved, elements = saved_activations(
            self.engine, self._first_images(self.config.shard_count())
        )
        median = statistics.median(seconds) if seconds else None
        earlier = read_json(self.out / RESULT)
        wire_bytes = self.wire_bytes
        if median is None and earlier.get("sha256") == sha256:  # nothing was left to do
            median, wire_bytes = (
                earlier.get(key) for key in ("step_seconds_median", "wire_bytes_per_step")
            )
        return TrainResult(
            accuracy=found.accuracy,
            arithmetic=arithmetic,
            correct=found.correct,
            test_count=found.total,
            sha256=sha256,
            epochs=self.config.epochs,
            steps=self.schedule.total,
            train_loss=self.train_loss,
            parameters=self.parameters,
            bytes_per_parameter=per_parameter,
            saved_bytes=saved,
            saved_bytes_per_element=saved / max(elements, 1),
            step_seconds_median=median,
            workers=self.workers.size,
            wire_bytes_per_step=wire_bytes,
            plan=self.plan,
            nats_per_token=nats_per_token(classifier, self.data),
            metrics=dict(found.figures) or None,
            fidelity=self._fidelity(classifier, arithmetic),
            float_islands=self.engine.islands() or None,
        )

    def _fidelity(self, classifier: Classifier, arithmetic: str) -> dict[str, Any] | None:
        """How much the deployed arithmetic keeps; a warning where it has lost the network."""
        if arithmetic != "deployed" or not self.workers.first:
            return None
        output = kept(self.engine, classifier, self.data)
        verdict = Fidelity(min(COMPARED, len(self.data.test_labels)), (output,))
        if verdict.bad:
            warnings.warn(
                f"{self.out}: the deployed arithmetic has lost the network: {verdict.words}; "
                "its frozen exponents are those of samples all over the training data: give "
                "samples whose ranges are like those of use, train on, or deploy with exponents by "
                "row",
                FidelityWarning,
                stacklevel=2,
            )
        return asdict(output)
