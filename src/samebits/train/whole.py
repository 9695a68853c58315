"""A whole training step as one routine: the input's codes, the passes, the loss and running state.

It takes the place of an engine's step where that is the usual one: classes, one shard, gradients
that nobody changes before the optimizer. Its bits are those of the parts that it is made of. Where
a number is out of range, or a batch of another kind, nothing has changed, and the step is made by
these parts, which say what is wrong.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from samebits import kernels
from samebits.errors import RangeError
from samebits.kernels.protocol import Entropy
from samebits.kernels.routine import NotRecordableError, Routine
from samebits.kernels.rows import Exponent
from samebits.train.deferred import ShardUpdate, deferred_updates
from samebits.train.graph import TrainingGraph, backward, forward
from samebits.train.losses.entropy import entropy_value
from samebits.train.losses.reduction import gradient_of
from samebits.train.routines import (
    Place,
    PlacedGradient,
    as_recorded,
    check_values,
    moved,
    place_of,
    state_of,
)
from samebits.train.value import BFPValue, Weight, same_parts

STEP = "step"


@dataclass(frozen=True, eq=False)
class WholeStep:
    """A recorded step of a model, but for the optimizer's.

    images, target: where it reads a batch: float32, and int64 class indices
    state:     tensors of the weights, which lie where it reads them
    loss:      what a cross-entropy is made of, and the exponent of its logits
    gradients: where it leaves those of the graph's parameters; None: there is none
    """

    routine: Routine
    images: Tensor
    target: Tensor
    state: list[Tensor]
    loss: tuple[Tensor, Tensor, Place]
    gradients: list[PlacedGradient | None]

    def __call__(self, images: Tensor, target: Tensor) -> float | None:
        """The loss of a batch, whose gradients then lie in their places; running state has moved.

        None where the routine could not end: nothing has changed.
        """
        self.images.copy_(images)
        self.target.copy_(target)
        if not self.routine.run(STEP):
            return None
        logs, distances, exponent = self.loss
        return entropy_value(logs, distances, exponent.value, len(self.target))

    def fits(self, images: Tensor, target: Tensor, weights: Sequence[Weight]) -> bool:
        """Whether a batch is of the recorded kind, and weights lie where they did."""
        return (
            images.shape == self.images.shape
            and target.shape == self.target.shape
            and images.dtype is torch.float32
            and target.dtype is torch.int64
            and all(map(operator.is_, self.state, state_of(weights)))
        )


def record_step(
    graph: TrainingGraph, images: Tensor, target: Tensor, weights: Sequence[Weight], bits: int
) -> WholeStep:
    """The routine of a step on batches like this one, proved; bits: of the input's codes.

    Raises NotRecordableError where there can be none.
    """
    if images.dtype is not torch.float32 or target.dtype is not torch.int64 or target.dim() != 1:
        raise NotRecordableError("the batch is not one of real numbers and classes")
    check_values(*weights)
    recorder = kernels.recorder()
    own = [recorder.made(torch.empty_like(v).copy_(v)) for v in (images, target)]
    states = [as_recorded(weight, recorder) for weight in weights]
    with kernels.recording(recorder, STEP):
        check = functools.partial(recorder.are_classes, own[1])
        found = _computed(graph, own[0], own[1], states, bits, check)
    with _unchanged(found.updates), kernels.recording(recorder, STEP):
        _apply(found.updates)
    results = [*own, found.entropy.logs, found.entropy.distances]
    results += [codes for g in found.gradients if g is not None for codes, _ in g.parts]
    routine = recorder.finish(*results)
    batch, labels, logs, distances = (routine.tensor(v) for v in results[:4])
    step = WholeStep(
        *(routine, batch, labels, state_of(weights), (logs, distances, place_of(found.exponent))),
        [None if g is None else PlacedGradient.of(g, routine) for g in found.gradients],
    )
    _prove(step, graph, (images, target), weights, bits)
    return step


class _Computed(NamedTuple):
    """A step but for the optimizer's: the loss, the exponent of its logits, gradients, updates."""

    entropy: Entropy
    exponent: Exponent
    gradients: list[BFPValue | None]
    updates: list[ShardUpdate]


def _computed(
    graph: TrainingGraph,
    images: Tensor,
    target: Tensor,
    weights: Sequence[Weight],
    bits: int,
    check: Callable[[int], None] = lambda classes: None,
) -> _Computed:
    """One step on a batch, by walks; running state has not moved. check: that all targets are among
    so many classes."""
    k = kernels.of(images)
    with deferred_updates() as updates:
        codes, exponent = k.quantize(images, bits)
        output, kept = forward(graph, BFPValue(codes, exponent, bits), weights, True)
    z, e_z = output.whole()
    if z.dim() != 2 or len(z) != len(target):
        raise NotRecordableError("the output is not a vector of classes for each sample")
    check(z.shape[1])
    entropy = k.cross_entropy(z, e_z, target, len(target))
    gradients = backward(graph, kept, gradient_of(entropy.codes, -24, 1.0))
    return _Computed(entropy, e_z, gradients, updates)


def _apply(updates: Sequence[ShardUpdate]) -> None:
    for update in updates:
        update.apply()


@contextmanager
def _unchanged(updates: Sequence[ShardUpdate]) -> Iterator[None]:
    """Running state is as it was after a with block."""
    kept = [(buffer, buffer.clone()) for update in updates for buffer in update.state]
    try:
        yield
    finally:
        for buffer, old in kept:
            buffer.copy_(old)


def _prove(
    step: WholeStep,
    graph: TrainingGraph,
    batch: tuple[Tensor, Tensor],
    weights: Sequence[Weight],
    bits: int,
) -> None:
    """Make a step beside one by walks, on this batch and on another, with other exponents.

    Raises NotRecordableError where a bit differs.
    """
    images, target = batch
    others = (4 * images.flatten().roll(1).view(images.shape), target.roll(1))
    _compare(step, graph, batch, weights, bits)
    with moved(weights) as states:
        _compare(step, graph, others, states, bits)


def _compare(
    step: WholeStep,
    graph: TrainingGraph,
    batch: tuple[Tensor, Tensor],
    weights: Sequence[Weight],
    bits: int,
) -> None:
    """One step beside one by walks; running state stays."""
    try:
        wanted = _computed(graph, *batch, weights, bits)
    except RangeError:
        raise NotRecordableError("a proof leaves the range of exponents") from None
    states = [buffer for update in wanted.updates for buffer in update.state]
    with _unchanged(wanted.updates):
        _apply(wanted.updates)
        expected = [buffer.clone() for buffer in states]
    with _unchanged(wanted.updates):
        loss = step(*batch)
        same = all(map(torch.equal, states, expected))
    assert isinstance(wanted.exponent, int)
    entropy = wanted.entropy
    known = entropy_value(entropy.logs, entropy.distances, wanted.exponent, len(batch[1]))
    if loss != known or not same:
        raise NotRecordableError("the routine gives another loss or running state than the parts")
    for place, gradient in zip(step.gradients, wanted.gradients, strict=True):
        if (place is None) != (gradient is None):
            raise NotRecordableError("the routine gives other gradients than the parts")
        if place is None or gradient is None:
            continue
        found = place.value()
        alike = all(map(same_parts, found.parts, gradient.parts))
        if found.bounds != gradient.bounds or not alike:
            raise NotRecordableError("the routine gives other gradients than the parts")
