"""A whole training step as one routine: the input's codes, the passes, the loss and running state.

It takes the place of an engine's step where that is the usual one: of classes. Its bits are those
of the parts that it is made of. Where a number is out of range, or a batch of another kind, nothing
has changed, and the step is made by these parts, which say what is wrong.
"""

from __future__ import annotations

import ctypes
import functools
import operator
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import ldexp
from typing import NamedTuple

import torch
from torch import Tensor, nn

from samebits import kernels
from samebits.errors import RangeError
from samebits.kernels import softmax
from samebits.kernels.memory import address_of, addresses
from samebits.kernels.protocol import Entropy
from samebits.kernels.routine import NotRecordableError, Routine, RoutineNumber
from samebits.kernels.rows import Exponent
from samebits.kernels.softmax import HALF
from samebits.spec.training.loss import GRID, LN_2, POINT
from samebits.train.convert import is_by_rows
from samebits.train.deferred import ShardUpdate, deferred_updates
from samebits.train.graph import BACKWARD, FORWARD, TrainingGraph, backward, forward
from samebits.train.layers import Dropout
from samebits.train.losses.entropy import (
    CLASS_UNIT,
    WEIGHED_UNIT,
    is_weighed,
    loss_value,
    smoothed,
)
from samebits.train.losses.functional import CrossEntropyLoss
from samebits.train.losses.reduction import gradient_of
from samebits.train.operations.pointwise import Drawn
from samebits.train.optim import IntegerOptimizer
from samebits.train.recording import Guard
from samebits.train.routines import (
    Place,
    PlacedGradient,
    RecordedGraph,
    arrays,
    as_recorded,
    check_values,
    is_same,
    masks_of,
    moved,
    state_of,
    with_masks,
)
from samebits.train.scores import class_vectors
from samebits.train.tensor import BFPParameter, BFPTensor
from samebits.train.value import BFPValue, Weight

Batch = tuple[Tensor, Tensor]
"""Samples, float32 or indices, and int64 class indices: of each sample, or of its places."""
PROVED = 5  # the number of the step by which a routine is proved
INPUT, LOSS, RUNNING = "(input)", "(loss)", "(running state)"  # of no layer, for profiles
SHARD = "shard"  # the part of a routine that is a shard's passes
KEEP, STATE = "keep {}", "state {}"  # a shard's results in places of its own; its running state


@dataclass(eq=False)
class WholeStep:
    """A recorded step of a model, but for the optimizer's.

    images, target: where it reads a shard
    state:     where it reads the weights: the addresses of their tensors
    loss:      the numbers of a shard's cross-entropy (`RoutineRecorder.loss_units`)
    gradients: where it leaves those of the graph's parameters, of all shards; None: there is none
    drawn:     the numbers of the step and of the shard, for the masks of dropouts
    units:     of the loss (`Computed`)
    shards:    into which a batch is cut; kind: the shapes of its tensors
    """

    routine: Routine
    images: Tensor
    target: Tensor
    state: list[int]
    loss: ctypes.Array[ctypes.c_int64]
    gradients: list[PlacedGradient | None]
    drawn: tuple[Place, Place]
    units: tuple[int, int]
    shards: int
    kind: tuple[torch.Size, torch.Size]

    def __post_init__(self) -> None:
        self.size, self.rows = len(self.target), self.target.numel()
        # Parts of the routine beside the passes: one shard alone keeps nothing, and moves state.
        several = range(self.shards) if self.shards > 1 else ()
        self.keeps = [KEEP.format(shard) for shard in several] or [""]
        self.states = [STATE.format(shard) for shard in several]

    def __call__(self, images: Tensor, target: Tensor, step: int) -> float | None:
        """The mean loss of the batch of a step, whose gradients then lie in their places; running
        state has moved.

        None where the routine could not end: nothing has changed.
        """
        size, total = self.size, 0.0
        self.drawn[0].value = step
        for shard, keep in enumerate(self.keeps):
            self.images.copy_(images[shard * size : (shard + 1) * size])
            self.target.copy_(target[shard * size : (shard + 1) * size])
            self.drawn[1].value = shard
            if not self.routine.run(SHARD):
                return None
            if keep:
                self.routine.run(keep)
            logs, high, low = self.loss
            amount, unit = self.units
            units = amount * logs + (((high << HALF) + low) << 8)
            total += LN_2 * ldexp(float(units), unit) / float(self.rows)
        for state in self.states:
            self.routine.run(state)
        return total / self.shards

    def fits(self, images: Tensor, target: Tensor, state: list[Tensor]) -> bool:
        """Whether a batch is of the recorded kind, and weights, whose tensors are `state`, lie
        where they did."""
        return (
            (images.shape, target.shape) == self.kind
            and images.dtype is self.images.dtype
            and target.dtype is torch.int64
            and addresses(state) == self.state
        )


def record_step(
    graph: TrainingGraph, batch: Batch, weights: Sequence[Weight], taken: Taken, shards: int = 1
) -> WholeStep:
    """The routine of a step on batches like this one, proved; taken: how the input is.

    Raises NotRecordableError where there can be none.
    """
    images, target = batch
    if images.dtype not in (torch.float32, torch.int64) or target.dtype is not torch.int64:
        raise NotRecordableError("the batch is not one of numbers and classes")
    check_values(*weights)
    recorder, size = kernels.recorder(), len(target) // shards
    own = [recorder.made(torch.empty_like(v[:size]).copy_(v[:size])) for v in batch]
    drawn = recorder.input_cell(0), recorder.input_cell(0)
    with kernels.recording(recorder, SHARD):
        states = [as_recorded(weight, recorder) for weight in weights]
        found = computed(masked(graph, *drawn), (own[0], own[1]), states, taken, 1.0 / shards)
        loss = recorder.loss_units(found.entropy.logs, found.entropy.distances, found.exponent)
    results = [*own, loss]
    gradients = list[list[BFPValue | None]]()
    for shard in range(shards):
        kept, updates, part = found.gradients, found.updates, SHARD
        if shards > 1:
            part = STATE.format(shard)
            with kernels.recording(recorder, KEEP.format(shard)):
                kept = [None if g is None else _kept_gradient(g) for g in kept]
                updates = [_kept_update(update) for update in updates]
        with _unchanged(updates), kernels.recording(recorder, part):
            kernels.on_behalf_of(RUNNING)
            apply_updates(updates)
        gradients.append(kept)
        results += [codes for g in kept if g is not None for codes, _ in g.parts]
        results += [torch.from_numpy(v) for update in updates for v in arrays(update).values()]
    joint = [joined(of_shards) for of_shards in zip(*gradients, strict=True)]
    routine = recorder.finish(*results)
    first, labels, units = (routine.tensor(v) for v in results[:3])
    step = WholeStep(
        *(routine, first, labels, addresses(state_of(weights)), numbers_of(units)),
        [None if g is None else PlacedGradient.of(g, routine) for g in joint],
        (Place.from_address(drawn[0].place), Place.from_address(drawn[1].place)),
        *(found.units, shards, (images.shape, target.shape)),
    )
    _prove(step, graph, batch, weights, taken)
    return step


def masked(graph: TrainingGraph, step: int, shard: int) -> TrainingGraph:
    """A graph whose dropouts have the masks of a shard, in which every layer counts its calls.

    step: its number, which may lie where kernels read it.

    Raises NotRecordableError for masks of other origin.
    """
    draws, calls = list[Drawn](), Counter[Dropout]()
    for mask in masks_of(graph):
        layer = getattr(mask, "__self__", None)
        if not isinstance(layer, Dropout):
            raise NotRecordableError("a dropout has a mask of its own")
        draws.append(((layer.seed, layer.site), (step, shard, calls[layer])))
        calls[layer] += 1
    return with_masks(graph, draws)


def numbers_of(v: Tensor) -> ctypes.Array[ctypes.c_int64]:
    """The numbers of a tensor as C has them, read without torch."""
    return (ctypes.c_int64 * v.numel()).from_address(address_of(v))


def _kept_gradient(gradient: BFPValue) -> BFPValue:
    """A gradient in places of its own."""
    parts = tuple((codes.clone(), e + 0) for codes, e in gradient.parts)
    bounds = (b if b is None else b + 0 for b in gradient.bounds)
    return BFPValue.of_parts(parts, tuple(bounds))


def _kept_update(update: ShardUpdate) -> ShardUpdate:
    """A change of running state whose numbers are in places of their own."""
    own = {name: torch.from_numpy(v).clone().numpy() for name, v in arrays(update).items()}
    numbers = {n: v + 0 for n, v in vars(update).items() if isinstance(v, RoutineNumber)}
    return replace(update, **own, **numbers)  # type: ignore[type-var]


def joined(of_shards: Sequence[BFPValue | None]) -> BFPValue | None:
    """The contributions of all shards to a gradient; None: there are none."""
    found = [g for g in of_shards if g is not None]
    return functools.reduce(operator.add, found) if found else None


@dataclass(frozen=True, eq=False)
class UsualStep:
    """A step of a model and its optimizer, recorded.

    guard:  of the model, as it is in training
    weights: of the graph's parameters
    update: the optimizer's step
    """

    model: nn.Module
    guard: Guard
    parameters: Sequence[BFPParameter]
    step: WholeStep
    optimizer: IntegerOptimizer
    update: Callable[[], None]

    def __call__(self, batch: Batch, lr: float, step: int) -> float | None:
        """The loss of the batch of a step, whose update is made; None: its parts must make it.

        Raises RangeError where the update leaves the range of its format.
        """
        if not self.guard.holds():
            self.model.train()
            if not self.guard.holds():
                return None
        state = [tensor for p in self.parameters for tensor in p.value.tensors]
        if not self.step.fits(*batch, state):
            return None
        loss = self.step(*batch, step)
        if loss is not None:
            for group in self.optimizer.param_groups:
                group["lr"] = lr
            self.update()
        return loss


def smoothing_of(criterion: nn.Module) -> float | None:
    """How much a loss smoothes labels that is else the mean cross-entropy of classes, without
    weights; None for another."""
    if type(criterion) is not CrossEntropyLoss:
        return None
    own = criterion.label_smoothing
    plain = vars(criterion) == vars(CrossEntropyLoss(label_smoothing=own)) and 0 <= own <= 1
    return own if plain else None


def usual_step(
    model: nn.Module,
    optimizer: IntegerOptimizer,
    graph: RecordedGraph,
    batch: Batch,
    shards: int,
    clip: Callable[[], None] | None = None,
    smoothing: float = 0.0,
) -> UsualStep:
    """The recorded step of a model in training for batches like this one.

    clip: changes gradients before the optimizer takes them
    smoothing: of labels

    Raises NotRecordableError where there can be none.
    """
    parameters = graph.graph.parameters
    taken = Taken.by(model, smoothing)
    step = record_step(graph.graph, batch, [p.value for p in parameters], taken, shards)
    graph.forget("whole steps are recorded")
    placed = {id(p): g for p, g in zip(parameters, step.gradients, strict=True)}
    trained = [p for group in optimizer.param_groups for p in group["params"]]
    if clip is None:
        cells = [None if (g := placed.get(id(p))) is None else g.cells() for p in trained]
        update = optimizer.prepared(cells)
    else:
        update = _clipped(optimizer, [(p, placed.get(id(p))) for p in trained], clip)
    return UsualStep(model, Guard(model), parameters, step, optimizer, update)


def _clipped(
    optimizer: IntegerOptimizer,
    gradients: Sequence[tuple[BFPParameter, PlacedGradient | None]],
    clip: Callable[[], None],
) -> Callable[[], None]:
    """An optimizer's step by the gradients in their places, which are clipped before."""

    def update() -> None:
        for p, place in gradients:
            p.grad = None if place is None else BFPTensor.of(place.value())
        clip()
        optimizer.step()
        optimizer.zero_grad()

    return update


class Taken(NamedTuple):
    """How a step takes a batch: samples as codes of some bits, at one exponent or by rows; labels
    smoothed or not."""

    bits: int
    by_rows: bool
    smoothing: float = 0.0

    @classmethod
    def by(cls, model: nn.Module, smoothing: float) -> Taken:
        """As a model takes its input."""
        return cls(getattr(model, "input_bits", 8), is_by_rows(model), smoothing)

    def __call__(self, k: kernels.Kernels, images: Tensor) -> BFPValue | Tensor:
        """Samples as the model's input: indices as they are."""
        if not images.is_floating_point():
            return images
        return BFPValue(*k.quantize(images, self.bits, self.by_rows), self.bits)


class Computed(NamedTuple):
    """A shard of a step: the loss, the exponent of its logits, gradients, updates.

    units: the amount of a row in the loss, and the unit of its sums
    """

    entropy: Entropy
    exponent: Exponent
    units: tuple[int, int]
    gradients: list[BFPValue | None]
    updates: list[ShardUpdate]


def computed(
    graph: TrainingGraph,
    batch: Batch,
    weights: Sequence[Weight],
    taken: Taken,
    factor: float,
) -> Computed:
    """One shard, by walks; running state has not moved. factor: of the loss, in gradients."""
    images, target = batch
    k = kernels.of(images)
    kernels.on_behalf_of(INPUT, FORWARD)
    with deferred_updates() as updates:
        output, kept = forward(graph, taken(k, images), weights, True)
    kernels.on_behalf_of(LOSS, FORWARD)
    z, e_z = output.resolved()
    if z.shape[:-1] != target.shape or target.dim() > 2:  # images have their classes second
        raise NotRecordableError("the output is not a vector of classes for each target")
    k.are_below(target, z.shape[-1])
    rows, classes = z.reshape(-1, count := z.shape[-1]), target.flatten()
    if target.dim() > 1 and isinstance(e_z, Tensor):  # of places: as where classes come second
        rows, e_z = class_vectors(output.moved(lambda v: v.transpose(1, 2)), 1)
    units = (1, CLASS_UNIT)
    if is_weighed(target) or taken.smoothing:
        left, beside = smoothed(taken.smoothing, count)
        amount = left << GRID - POINT
        units = (amount + count * beside, WEIGHED_UNIT)
        entropy = k.weighed_entropy(rows, e_z, k.hits(classes, count, amount, beside))
        unit, factors = -GRID, [factor, 1.0 / len(rows)]
    else:
        entropy = k.cross_entropy(rows, e_z, classes, len(rows))
        unit, factors = CLASS_UNIT, [factor]
    kernels.on_behalf_of(LOSS, BACKWARD)
    grad = gradient_of(entropy.codes.view(z.shape), unit, *factors)
    gradients = backward(graph, kept, grad)
    kernels.on_behalf_of(LOSS, FORWARD)
    return Computed(entropy, e_z, units, gradients, updates)


def apply_updates(updates: Sequence[ShardUpdate]) -> None:
    """Move running state."""
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
    step: WholeStep, graph: TrainingGraph, batch: Batch, weights: Sequence[Weight], taken: Taken
) -> None:
    """Make a step beside one by walks, on this batch and on another, with other exponents.

    Raises NotRecordableError where a bit differs.
    """
    images, target = batch
    by = 4 if images.is_floating_point() else 1
    others = (by * images.flatten().roll(1).view(images.shape), target.roll(1))
    _compare(step, graph, batch, weights, taken)
    with moved(weights) as states:
        _compare(step, graph, others, states, taken)


def _compare(
    step: WholeStep, graph: TrainingGraph, batch: Batch, weights: Sequence[Weight], taken: Taken
) -> None:
    """One step beside one by walks; running state stays."""
    size, wanted = len(step.target), list[Computed]()
    try:
        for shard, part in enumerate(zip(*(v.split(size) for v in batch), strict=True)):
            own = masked(graph, PROVED, shard)
            wanted.append(computed(own, part, weights, taken, 1.0 / step.shards))
    except RangeError:
        raise NotRecordableError("a proof leaves the range of exponents") from None
    updates = [update for shard in wanted for update in shard.updates]
    states = [buffer for update in updates for buffer in update.state]
    with _unchanged(updates):
        apply_updates(updates)
        expected = [buffer.clone() for buffer in states]
    with _unchanged(updates):
        loss = step(*batch, PROVED)
        same = all(map(torch.equal, states, expected))
    if loss != mean_loss(wanted) or not same:
        raise NotRecordableError("the routine gives another loss or running state than the parts")
    for place, *of_shards in zip(step.gradients, *(w.gradients for w in wanted), strict=True):
        if not is_same(None if place is None else place.value(), joined(of_shards)):
            raise NotRecordableError("the routine gives other gradients than the parts")


def mean_loss(shards: Sequence[Computed]) -> float:
    """The mean over shards."""
    total = 0.0
    for (_, logs, distances), exponent, (amount, unit), _, _ in shards:
        weights = torch.full_like(logs, amount)
        units = softmax.loss_units(logs, weights, distances, exponent)
        total += loss_value(units, unit, len(logs))
    return total / len(shards)
