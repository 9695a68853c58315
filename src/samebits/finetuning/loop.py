"""The loop that trains a quantized network on labelled data, and what it did to each layer.

Forward integers, backward floats of torch: which codes come out depends on the machine, its threads
and the version of torch, as other training in float32 does. The network that comes out computes the
same bits everywhere.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch.nn import functional

from samebits import progress
from samebits.data import Dataset
from samebits.errors import InputError
from samebits.finetuning.trainable import Trainable
from samebits.ir import Graph
from samebits.quantization import LayerChange
from samebits.recipes import FineTuning
from samebits.verification.accuracy import images
from samebits.verification.inputs import quantize_samples


@dataclass(frozen=True)
class FineTuned:
    """The quantized graph with its new codes. losses: the mean of each epoch."""

    graph: Graph
    steps: int
    losses: tuple[float, ...]
    changes: tuple[LayerChange, ...]


def finetune(graph: Graph, data: Dataset, schedule: FineTuning, device: str = "cpu") -> FineTuned:
    """Train the weights and biases of a quantized classifier on, its scales staying.

    graph: quantized real graph whose one input is a sample and whose first output are its logits

    Raises InputError for data that does not fit, UnsupportedError for an operator without a rule
    for gradients and a network that would not compute what was trained; RangeError where a sum
    leaves its type.
    """
    if data.task != "classification":
        raise InputError(
            f"{data.source}: expected labels of classes to fine-tune on, found {data.task}"
        )
    trainable = Trainable(graph, device)
    value = trainable.graph.values[trainable.graph.inputs[0]]
    given, labels = images(data, "train"), data.train_labels.to(device)
    if given.shape[1:] != value.shape[1:] or value.quantization is None:
        raise InputError(
            f"{data.source}: expected samples of shape {list(value.shape[1:])}, the network's "
            f"input, found {list(given.shape[1:])}"
        )
    size = value.shape[0]
    if schedule.batch % size:
        raise InputError(
            f"batch: expected a multiple of the {size} samples that the network takes at once, "
            f"found {schedule.batch}"
        )
    each = len(given) // schedule.batch
    logits = math.prod(trainable.graph.values[trainable.graph.outputs[0]].shape) // size
    if not each or logits < data.classes:
        raise InputError(
            f"{data.source}: expected at least {schedule.batch} training samples (a batch) and at "
            f"most {logits} classes, found {len(given)} and {data.classes}"
        )
    codes = torch.from_numpy(quantize_samples(given, value)).to(device)
    trained = [p for p in trainable.parameters() if p.requires_grad]
    optimizer = torch.optim.Adam(trained, schedule.lr)
    steps = each * schedule.epochs
    falling = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / steps)
    order = torch.Generator().manual_seed(schedule.seed)
    losses = []
    for epoch in range(1, schedule.epochs + 1):
        total = 0.0
        mixed = torch.randperm(len(codes), generator=order)[: each * schedule.batch]
        rounds = mixed.reshape(each, schedule.batch).to(device)
        for chosen in progress.track(rounds, f"fine-tuning, epoch {epoch}", each):
            optimizer.zero_grad()
            found = trainable(codes[chosen].long()).reshape(schedule.batch, -1)
            loss = functional.cross_entropy(found, labels[chosen])
            loss.backward()
            optimizer.step()
            falling.step()
            total += float(loss.detach())
        losses.append(total / each)
    trainable.check(codes[: schedule.batch].long())
    return FineTuned(trainable.quantized(), steps, tuple(losses), _changes(trainable))


def _changes(trainable: Trainable) -> tuple[LayerChange, ...]:
    """The number of codes of each layer that are others than before."""
    found = []
    for index, layer in enumerate(trainable.layers):
        codes = trainable.weight_codes(index).cpu().numpy()
        count = int(np.count_nonzero(codes != layer.codes))
        what = f"{count} of {codes.size} codes"
        found.append(LayerChange("fine-tuning", layer.source.name, layer.source.op, what))
    return tuple(found)
