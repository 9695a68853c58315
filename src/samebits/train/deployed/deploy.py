"""Deployed arithmetic (docs/spec/training.md section 11): exponents frozen from calibration data.

In training every tensor's exponent follows from its own batch, in evaluation from its own sample.
`calibrate` fixes them; `deployed` runs the same layers with them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import astuple, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from samebits.errors import CheckpointError, UnsupportedError
from samebits.kernels import rows
from samebits.numerics.realise import times_power
from samebits.train import layers
from samebits.train.convert import model_input
from samebits.train.deployed.attention import (
    NARROW16,
    chosen8,
    chosen16,
    is_exact,
)
from samebits.train.deployed.joined import Joined, frozen_norm, joined_name, norm_of
from samebits.train.deployed.operations import OF_CELL, WITHOUT_FORM, Rule, rule_of, without_rule
from samebits.train.deployed.recurrent import CellMemory
from samebits.train.deployed.rounding import saturated
from samebits.train.deployed.weights import FrozenNorm
from samebits.train.operation import TrainingOperation, interpreting, taken_in
from samebits.train.operations import pointwise
from samebits.train.operations.activations import RELU
from samebits.train.operations.narrow import NARROW, SHORT
from samebits.train.operations.normalization import BATCH_NORM
from samebits.train.operations.softmax import SOFTMAX
from samebits.train.quantize import largest_magnitude
from samebits.train.run.device import device_of
from samebits.train.sums import Sums
from samebits.train.tensor import BFPTensor
from samebits.train.value import BFPValue, Weight, WeightAt

CALIBRATION_SAMPLES = 256
TENTHS = 9  # of the samples, which a frozen exponent of 8 bits serves without saturation
EXPONENT_LIMIT = 60  # of frozen exponents
ZERO_EXPONENT = -7  # of a site that was always zero
INPUT = "input"
_LONGEST_NAME = 1000
_WIDEST = 1 << 16  # binades, in a file


@dataclass(frozen=True)
class FrozenSite:
    """A place where a model rounds to 8 bits, or to 16: scores, cells of an LSTM layer.

    name:     for messages
    exponent: the frozen one
    above:    samples of the calibration that chose a larger one, and saturate
    spread:   binades from the median of what they chose to the largest
    """

    name: str
    exponent: int
    above: int = 0
    spread: int = 0


@dataclass(frozen=True)
class Exponents:
    """The sites of a model in the order of execution; the first is the input, if it is real.

    samples: of the calibration
    """

    sites: tuple[FrozenSite, ...]
    samples: int = 0

    def to_dict(self) -> dict[str, Any]:
        """The sites as JSON data."""
        return {"sites": [list(astuple(site)) for site in self.sites], "samples": self.samples}

    @property
    def spread(self) -> float:
        """By how many binades the largest samples lie above the median, in the mean of sites."""
        return sum(site.spread for site in self.sites) / max(len(self.sites), 1)

    @staticmethod
    def from_dict(record: object, source: object) -> Exponents:
        """The inverse of `to_dict` for an untrusted record.

        Raises CheckpointError, which names `source`, for anything else.
        """
        known = record if isinstance(record, Mapping) else {}
        sites, samples = known.get("sites"), known.get("samples")
        if not isinstance(sites, list) or type(samples) is not int or samples < 0:
            raise CheckpointError(
                f"{source}: damaged: expected a list of frozen exponents, and the number of samples"
            )
        for site in sites:
            if not (
                isinstance(site, list)
                and [type(v) for v in site] == [str, int, int, int]
                and len(site[0]) <= _LONGEST_NAME
                and abs(site[1]) <= EXPONENT_LIMIT
                and 0 <= site[2] <= samples
                and 0 <= site[3] <= _WIDEST
            ):
                raise CheckpointError(
                    f"{source}: damaged: expected a name, a frozen exponent in "
                    f"[-{EXPONENT_LIMIT}, {EXPONENT_LIMIT}], the samples above it and how many "
                    f"binades they spread, found {site!r:.80}"
                )
        return Exponents(tuple(FrozenSite(*site) for site in sites), samples)


@dataclass(frozen=True, eq=False)
class DeployedOperation:
    """One operation of a deployed forward pass, with its arguments and output.

    path:   of the layer that computes it, or of the module whose forward() calls it
    layer:  whether that is a layer and this its own operation
    site:   the exponent it rounds to; None where it rounds nothing
    norm:   the batch norm that is part of it, if one is
    """

    path: str
    layer: bool
    operation: TrainingOperation
    arguments: tuple[Any, ...]
    output: BFPValue
    site: int | None
    norm: FrozenNorm | None = None


@dataclass(frozen=True, eq=False)
class Deployed:
    """A model with frozen exponents. Evaluation leaves the model in evaluation mode."""

    model: nn.Module
    exponents: Exponents

    def codes(self, images: Tensor) -> tuple[Tensor, int]:
        """Integer logits of real images [n, ...], or of integers (tokens), and their exponent.

        int32, or int8 or int16 where the model ends in a rounding operation.
        """
        return run(self, images)[1].whole()

    def step(self, images: Tensor, states: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
        """Integer logits of sequences of one step, and the states after it.

        states: their codes [n, H] before it, those of one recurrent layer after those of the other
        """
        memory = CellMemory(states)
        output = run(self, images, memory=memory)[1]
        return output.whole()[0], memory.after

    def logits(self, images: Tensor) -> Tensor:
        """The logits as float64, exactly, on the CPU."""
        codes, exponent = self.codes(images)
        return times_power(codes.cpu().double(), exponent)


def calibrate(model: nn.Module, batches: Iterable[Tensor], tenths: int = TENTHS) -> Exponents:
    """The frozen exponents of a model from batches of real samples, of one each (training.md 11).

    Of the exponents that the batches choose at a site so many tenths are no larger than the frozen
    one. Tensors that are all zeros do not count. Leaves the model in evaluation mode. Raises
    UnsupportedError for a model that cannot be deployed (all its operations without a deployed form
    are listed).
    """
    model.eval()
    names: list[str] | None = None
    chosen: list[list[int]] = []
    samples = 0
    for batch in batches:
        found, samples = _chosen(model, batch), samples + 1
        if names is None:
            names, chosen = [name for name, _ in found], [[] for _ in found]
        if names != [name for name, _ in found]:
            raise UnsupportedError(
                "expected a forward() that runs the same operations for every batch, found "
                f"{len(found)} rounding sites after {len(names)}; a model whose computation "
                "depends on its data cannot be deployed"
            )
        for known, (_, exponent) in zip(chosen, found, strict=True):
            known += [] if exponent is None else [exponent]
    if names is None:
        raise ValueError("expected at least one batch to calibrate with, found none")
    sites = (_frozen(name, own, tenths) for name, own in zip(names, chosen, strict=True))
    return Exponents(tuple(sites), samples)


def _frozen(name: str, chosen: Sequence[int], tenths: int) -> FrozenSite:
    """The site of a name, from the exponents that batches chose there.

    Raises UnsupportedError where the frozen one is out of range.
    """
    if not chosen:
        return FrozenSite(name, ZERO_EXPONENT)
    ordered = sorted(chosen)
    exponent = ordered[-(-len(chosen) * tenths // 10) - 1]
    if abs(exponent) > EXPONENT_LIMIT:
        raise UnsupportedError(
            f"{name}: expected a frozen exponent in [-{EXPONENT_LIMIT}, {EXPONENT_LIMIT}], "
            f"found {exponent}: its values are too large or too small to be deployed; scale "
            "the input or add a normalisation"
        )
    spread = ordered[-1] - ordered[(len(ordered) - 1) // 2]
    return FrozenSite(name, exponent, sum(e > exponent for e in ordered), spread)


def deployed(model: nn.Module, exponents: Exponents) -> Deployed:
    """The model in deployed arithmetic; the model itself is not copied."""
    return Deployed(model, exponents)


def _known(x: Any) -> Any:
    """A value of one exponent with it as a plain integer, which a device may have kept."""
    if not isinstance(x, BFPValue) or x.sums is not None or x.by_rows or type(x.exponent) is int:
        return x
    exponent = int(x.exponent)
    return WeightAt(x, exponent) if isinstance(x, Weight) else x.with_part(x.codes, exponent)


def run(
    model: Deployed,
    images: Tensor,
    observe: Callable[[DeployedOperation], None] | None = None,
    memory: CellMemory | None = None,
) -> tuple[Tensor | BFPValue, BFPValue]:
    """One deployed forward pass: its quantized input, or integers as they are, and its output.

    observe: hears every operation, in the order of execution.
    memory: states of recurrent layers to start from, and where those at the end go.

    Raises CheckpointError where the exponents belong to another model, UnsupportedError where an
    operation or a bound does not fit, NonFiniteError for a bad input.
    """
    sites = list(model.exponents.sites[::-1])  # the next one last
    wide: list[str] = []  # sums without a site
    modules = dict(model.model.named_modules())
    normed: set[BFPValue] = set()  # outputs with their batch norm, which is still to be called

    def is_next(name: str) -> bool:
        """Whether the next site is the one of this name."""
        return bool(sites) and sites[-1].name == name

    def next_exponent(name: str) -> int:
        """The frozen exponent of the next site, which must be the one of this name."""
        if not is_next(name):
            found = repr(sites[-1].name) if sites else "no more"
            raise CheckpointError(
                f"the frozen exponents belong to another model: expected one for {name!r}, "
                f"found {found}; calibrate this model"
            )
        return sites.pop().exponent

    def norm_behind(name: str) -> str | None:
        """The path of the batch norm that is part of a product, if one is."""
        path = norm_of(sites[-1].name, name) if sites else None
        return path if isinstance(modules.get(path or ""), layers.BatchNorm) else None

    model.model.eval()
    with torch.no_grad(), _running(model.model) as running:

        def interpreter(operation: TrainingOperation, *arguments: Any) -> BFPValue:
            """Compute an operation at the exponent of its site, and tell the observer."""
            operation = NARROW if operation is SHORT else operation  # batch norm takes bfp8 here
            if operation is BATCH_NORM and arguments[0] in normed:
                normed.discard(arguments[0])
                given: BFPValue = arguments[0]
                return given
            rule = _rule(running, operation, arguments)
            name = _site_name(running, operation)
            if rule is None:
                raise without_rule({name: _advice(running, operation)})
            if rule.entry is not None:
                arguments = tuple(entered(rule.entry, argument) for argument in arguments)
            rounds, norm = rule.rounds, None
            if rounds is None and (path := norm_behind(name)) is not None:
                name, norm, rounds = sites[-1].name, frozen_norm(modules[path]), True
            elif rounds is None:
                rounds = is_next(name)
                if not rounds:
                    wide.append(name)
            if operation is NARROW and wide and not is_next(name):
                name = wide[-1]  # a layer takes these sums: they should have had a site
            site = next_exponent(name) if rounds else None
            if rule.frozen is None:
                output: BFPValue = operation.output(*arguments)
            else:
                more: dict[str, Any] = {"memory": memory} if rule.states else {}
                more |= {} if norm is None else {"norm": norm}
                made = rule.frozen(site, *map(_known, arguments), **more)
                output = _known(made if isinstance(made, BFPValue) else BFPValue(*made))
            if norm is not None or (operation is pointwise.RESHAPE and arguments[0] in normed):
                normed.add(output)
            if observe is not None:
                where = running(operation)
                observe(DeployedOperation(*where, operation, tuple(arguments), output, site, norm))
            return output

        def entered(entry: TrainingOperation, x: Any) -> Any:
            """An operand as an operation takes it: exact values are rounded."""
            return interpreter(entry, x) if isinstance(x, BFPValue) and is_exact(x) else x

        x: Any = images.to(device_of(model.model))
        if images.is_floating_point():
            x = quantize_input(x, next_exponent(INPUT))
        start = taken_in(x)
        with interpreting(interpreter):
            output = taken_in(model.model(x))
            if isinstance(output, BFPValue) and not output.is_open:
                output = entered(NARROW16, output)
    if sites:
        raise CheckpointError(
            f"the frozen exponents belong to another model: found one for {sites[-1].name!r}, "
            "which it does not run; calibrate this model"
        )
    if not isinstance(output, BFPValue):
        raise UnsupportedError(
            f"expected a model that returns one BFP tensor, found {type(output).__name__}"
        )
    return start, output


def quantize_input(images: Tensor, exponent: int) -> BFPTensor:
    """sat8(rne(r / 2**exponent)) of real images. NaN or infinity: NonFiniteError."""
    largest_magnitude(images, INPUT)
    return BFPTensor(saturated(images.detach(), -exponent), exponent)


# --- who runs -------------------------------------------------------------------------------


class _Running:
    """The module that runs at this moment, kept by hooks."""

    def __init__(self, model: nn.Module) -> None:
        self.names = {id(module): name for name, module in model.named_modules()}
        self.stack: list[nn.Module] = [model]

    def __call__(self, operation: TrainingOperation) -> tuple[str, bool]:
        """(path, whether it is a layer and `operation` its own)."""
        module = self.stack[-1]
        helper = (
            operation in (NARROW, NARROW16)
            or isinstance(module, layers.MultiheadAttention)
            or (operation is pointwise.RESHAPE and not isinstance(module, layers.Flatten))
        )
        return self.names[id(module)], isinstance(module, layers.Layer) and not helper


@contextmanager
def _running(model: nn.Module) -> Iterator[_Running]:
    running = _Running(model)
    handles = []
    for module in model.modules():
        handles.append(
            module.register_forward_pre_hook(lambda module, _: running.stack.append(module))
        )
        handles.append(module.register_forward_hook(lambda *_: (running.stack.pop(), None)[1]))
    try:
        yield running
    finally:
        for handle in handles:
            handle.remove()


def _site_name(running: _Running, operation: TrainingOperation) -> str:
    path, is_layer = running(operation)
    whole = is_layer or _is_cell(running)
    kind = type(running.stack[-1]).__name__ if whole else operation.name.lower()
    return f"{path} ({kind})" if path else kind


def _rule(
    running: _Running, operation: TrainingOperation, arguments: tuple[Any, ...]
) -> Rule | None:
    """The deployed form of an operation, if it has one. A cell has none: deployed, the states of a
    layer go from call to call, and those of a cell are its caller's."""
    return None if _is_cell(running) else rule_of(operation, arguments)


def _is_cell(running: _Running) -> bool:
    return isinstance(running.stack[-1], layers.RecurrentCell)


def _advice(running: _Running, operation: TrainingOperation) -> str:
    """Say what to do about an operation that has no deployed form where it runs."""
    return OF_CELL if _is_cell(running) else WITHOUT_FORM[operation]


def _chosen(model: nn.Module, batch: Tensor) -> list[tuple[str, int | None]]:
    """Every site and the exponent that evaluation chooses there; None: all codes are zero.

    Whether sums are a site is known at the end: those that the model returns, or that its code
    reads, are not, but every layer that takes them all the same is one.
    """
    found: list[tuple[str, int | None]] = []
    sums: list[tuple[int, bool, Sums]] = []  # place in `found`, whether it is where they are taken
    settled: dict[Sums, int] = {}  # sums that have a site in any case, and its place

    def note(name: str, tensor: BFPValue) -> None:
        found.append((name, rows.largest_exponent(*tensor.resolved())))

    shares: set[BFPValue] = set()  # what a softmax gave, moved
    missing: dict[str, str] = {}
    joined = Joined()

    with torch.no_grad(), _running(model) as running:

        def interpreter(operation: TrainingOperation, *arguments: Any) -> BFPValue:
            """Compute an operation as in training, and note what is joined with it."""
            place = len(found)
            output = noted(operation, *arguments)
            joined.hear(operation, arguments, output, place, running.stack[-1])
            return output

        def noted(operation: TrainingOperation, *arguments: Any) -> BFPValue:
            """Compute an operation as in training, and note the exponent where it is a site."""
            narrows = operation in (NARROW, SHORT)
            rule = _rule(running, NARROW if narrows else operation, arguments)
            name = _site_name(running, NARROW if narrows else operation)
            if rule is None:
                missing[name] = _advice(running, operation)
                return operation.output(*arguments)
            if rule.chosen is not None:
                output, exponent = rule.chosen(*arguments)
                found.append((name, exponent))
                return output
            operands = [x for x in arguments if isinstance(x, BFPValue)]
            if rule.entry is not None:
                for x in operands:
                    enter(rule.entry, x)
            output = operation.output(*arguments)
            moved = rule.frozen is None and any(x in shares for x in operands)
            if operation is SOFTMAX or moved:
                shares.add(output)
            if rule.rounds is None:
                sums.append((len(found), False, output.sums))
                found.append((name, None))
            elif rule.rounds and output.sums is not None:
                settled[output.sums] = len(found)
                found.append((name, None))
            elif rule.rounds or operation is RELU:
                taken = arguments[0].sums if narrows or operation is RELU else None
                if taken in settled or (taken is None and operation is RELU):
                    return output  # of codes
                if taken is not None:
                    name = _site_name(running, NARROW)
                    sums.append((len(found), True, taken))
                note(name, output.narrowed() if operation is SHORT else output)
            return output

        def enter(entry: TrainingOperation, x: BFPValue) -> None:
            """Note the exponent of an operand, or of the output, that deployed is rounded first."""
            exact = x.is_open and x.sums not in settled
            if (x.is_wide and x not in shares) or (exact and entry is NARROW16):
                exponent = (chosen16 if entry is NARROW16 else chosen8)(x)
                found.append((_site_name(running, entry), exponent))

        x: Any = batch.to(device_of(model))
        if batch.is_floating_point():
            x = model_input(model, x, INPUT)
            note(INPUT, x.value)
        with interpreting(interpreter):
            output = taken_in(model(x))
            if isinstance(output, BFPValue) and not output.is_open:
                enter(NARROW16, output)
    if missing:
        raise without_rule(missing)
    last = output.sums if isinstance(output, BFPValue) else None
    none = set()
    for at, taking, s in sums:
        if taking != (s is last or s.read):
            none.add(at)
        elif not taking:
            found[at] = found[at][0], s.chosen
    for s, at in settled.items():
        found[at] = found[at][0], s.chosen
    for at, norm in joined.found(output).items():
        if at not in none:
            found[at] = joined_name(found[at][0], found[norm][0]), found[norm][1]
            none.add(norm)
    return [site for at, site in enumerate(found) if at not in none]
