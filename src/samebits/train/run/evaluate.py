"""Evaluation of a trained model: its arithmetic, and the samples that freeze its exponents."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch

from samebits.data import Dataset
from samebits.data.dataset import Split
from samebits.data.tally import Metrics, Tally
from samebits.errors import UnsupportedError
from samebits.ir.fidelity import OutputFidelity, compared
from samebits.train.deployed.deploy import (
    CALIBRATION_SAMPLES,
    Exponents,
    calibrate,
    deployed,
)
from samebits.train.run.distributed import ALONE, Workers
from samebits.train.run.engine import Engine, Float32Engine

EVALUATION_BATCH = 32
COMPARED = 64  # test samples that both arithmetics compute
WIDE = 2  # binades between samples from which on exponents by rows are worth their time


class Classifier(Protocol):
    """Gives logits, or numbers, for images: an engine, or a deployed model."""

    def logits(self, images: torch.Tensor) -> torch.Tensor:
        """Logits [N, classes] of real images, on the CPU."""
        ...


def count_correct(
    classifier: Classifier, data: Dataset, split: Split = "test", workers: Workers = ALONE
) -> int:
    """Number of correctly classified samples (of texts: places) of a split, in batches of 32 in
    stored order.

    Workers take the batches in turns; each returns the number of all.
    """
    labels = data.labels(split)
    correct = 0
    stride = EVALUATION_BATCH * workers.size
    for start in range(EVALUATION_BATCH * workers.rank, len(labels), stride):
        last = min(start + EVALUATION_BATCH, len(labels))
        indices = torch.arange(start, last, device="cpu")
        guesses = classifier.logits(data.batch(split, indices)).argmax(-1)
        correct += int((guesses == labels[indices]).sum())
    return workers.total(correct)


def measured(classifier: Classifier, data: Dataset, workers: Workers = ALONE) -> Metrics:
    """The figures of the test samples, in batches of 32 in stored order.

    Of a task other than classification every worker computes all of them.
    """
    if data.task == "classification":
        return Metrics(
            count_correct(classifier, data, workers=workers), data.test_labels.numel(), {}
        )
    tally = Tally(data)
    for indices in torch.arange(len(data.test_labels), device="cpu").split(EVALUATION_BATCH):
        outputs = classifier.logits(data.batch("test", indices))
        tally.add(outputs.double().numpy(), data.test_labels[indices].numpy())
    return tally.metrics()


def kept(engine: Engine, classifier: Classifier, data: Dataset) -> OutputFidelity:
    """How much the deployed arithmetic keeps of the outputs of the training arithmetic, on the
    first test samples: in training every batch of them has exponents of its own."""
    count = min(COMPARED, len(data.test_labels))
    batches = [
        data.batch("test", indices)
        for indices in torch.arange(count, device="cpu").split(EVALUATION_BATCH)
    ]
    wanted, found = (
        torch.cat([each.logits(batch) for batch in batches]).double()
        for each in (engine, classifier)
    )
    if data.language:  # every token is a decision
        wanted, found = (logits.flatten(0, 1) for logits in (wanted, found))
    name = "outputs"
    return compared([name], {name: wanted.numpy()}, {name: found.numpy()})[0]


def gives_one_output(classifier: Classifier, data: Dataset) -> bool:
    """Whether the first test samples, a batch, differ and all have the same logits."""
    count = min(EVALUATION_BATCH, len(data.test_labels))
    images = data.batch("test", torch.arange(count, device="cpu"))
    if bool((images == images[:1]).all()):
        return False
    logits = classifier.logits(images)
    return bool((logits == logits[:1]).all())


def nats_per_token(classifier: Classifier, data: Dataset) -> float | None:
    """Mean cross-entropy of the test tokens, in binary64; None where the data has none."""
    if not data.language:
        return None
    total = 0.0
    for indices in torch.arange(len(data.test_labels), device="cpu").split(EVALUATION_BATCH):
        logits = classifier.logits(data.batch("test", indices)).double().flatten(0, 1)
        labels = data.test_labels[indices].flatten()
        total += float(torch.nn.functional.cross_entropy(logits, labels, reduction="sum"))
    return total / data.test_labels.numel()


def final_classifier(engine: Engine, exponents: Exponents | None) -> tuple[Classifier, str]:
    """The classifier that gives a trained model's accuracy, and the name of its arithmetic."""
    if isinstance(engine, Float32Engine):
        return engine, "float32"
    if exponents is None:
        return engine, "training"
    return deployed(engine.model, exponents), "deployed"


def frozen_exponents(engine: Engine, data: Dataset, say: Callable[[str], None]) -> Exponents | None:
    """Frozen exponents from samples all over the training set (training.md 11).

    None, and the reason said, where the model cannot be deployed. It is said, too, where samples of
    very different size shared exponents in training.
    """
    if isinstance(engine, Float32Engine):
        return None
    total = len(data.train_labels)
    count = min(CALIBRATION_SAMPLES, total)
    samples = (torch.arange(count, device="cpu") * total // count).split(1)
    try:
        exponents = calibrate(engine.model, (data.batch("train", sample) for sample in samples))
        deployed(engine.model, exponents).codes(data.batch("train", samples[0]))  # fits 32 bits
    except UnsupportedError as error:
        say(f"the model has no deployed arithmetic; its accuracy is that of training: {error}")
        return None
    if not engine.model.input_by_rows and exponents.spread >= WIDE:
        say(
            f"the largest samples lie {exponents.spread:.1f} binades above the median, in the mean "
            "of the places with a frozen exponent: in training they take the bits of the others; "
            "--exponents row gives each sample exponents of its own, in up to twice the time"
        )
    return exponents
