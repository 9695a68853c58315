"""The step of an optimizer's parameters on a device: launches alone (training.md 2 to 4)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from samebits.kernels.memory import like
from samebits.kernels.optimize import Entry, Roster, StepGradients, StepOptions
from samebits.kernels.triton import updates
from samebits.kernels.triton.launch import BLOCK, over
from samebits.kernels.triton.numbers import DeviceNumber, flag, place
from samebits.kernels.triton.parts import TritonParts

FIELDS = ("momentum_exponent", "momentum_largest", "steps", "begun")
STEPS = 2  # the place of the number of steps among the cells


class DeviceNumbers:
    """The numbers that are kept of a parameter from step to step, on its device.

    They read like those of C (csrc/training/optimize.c), of which they begin as a copy.
    """

    def __init__(self, numbers: Any, device: torch.device) -> None:
        own = [getattr(numbers, name) for name in FIELDS]
        self.cells = torch.tensor(own, dtype=torch.int64, device=device)

    def __getattr__(self, name: str) -> int:
        if name not in FIELDS:
            raise AttributeError(name)
        return DeviceNumber(self.cells[FIELDS.index(name)]).read()

    def __setattr__(self, name: str, value: Any) -> None:
        if name in FIELDS:
            self.cells[FIELDS.index(name)] = value
        else:
            super().__setattr__(name, value)


class _Moving(NamedTuple):
    """A parameter in the course of a step.

    p, numbers: the direction that moves it; v, momentum: the new V, if there is one
    """

    entry: Entry
    options: StepOptions
    p: Tensor
    numbers: Tensor
    v: Tensor | None
    momentum: Tensor


def takes(options: StepOptions) -> bool:
    """Whether a step by these options is launches alone."""
    return not options.is_adam


def optimize(
    k: TritonParts, roster: Roster, options: Sequence[StepOptions], gradients: StepGradients
) -> None:
    """A step of SGD of all parameters of a roster; nothing changes where the flag goes up."""
    moving = []
    for entry, gradient in zip(roster.entries, gradients.each, strict=True):
        g, e_g = k.resolve([(codes, _one(e)) for codes, e in gradient.parts])
        moving.append(_directed(entry, options[entry.group], like(g, entry.codes), _one(e_g)))
    for each in moving:
        _measured(each)
    for each in moving:
        _moved(each)
    written = [v for e in roster.entries for v in (e.codes, e.delayed, e.exponent, *e.moments)]
    torch.autograd.graph.increment_version(written)


def _one(exponent: Any) -> int:
    """An exponent that may lie in a cell."""
    return DeviceNumber(exponent) if isinstance(exponent, Tensor) else exponent


def _directed(entry: Entry, o: StepOptions, g: Tensor, e_g: int) -> _Moving:
    """V and P of a parameter, and their numbers."""
    v = entry.moments[0] if entry.moments else None
    cells, device = entry.numbers.cells, g.device
    numbers = cells.new_zeros((2, updates.NUMBERS))

    def direction(old: Tensor | None, of_v: Tensor, own: Tensor, is_random: bool) -> Tensor:
        out, n = torch.empty_like(entry.codes, dtype=torch.int16), g.numel()
        momentum = (o.momentum, o.momentum_exponent) if old is not None else (0, 0)
        over(
            *(updates.direction, n, g, *place(e_g, device), entry.codes, entry.delayed),
            *(entry.exponent, out if old is None else old, of_v, out, own, flag(device), n),
            *(o.decay, o.decay_exponent, *momentum, o.seed, entry.place, cells[STEPS:]),
            RANDOM=is_random,
        )
        return out

    if v is None:
        p = direction(None, cells, numbers[0], False)
        return _Moving(entry, o, p, numbers[0], None, numbers[1])
    new = direction(v, cells, numbers[1], bool(o.random))
    if o.nesterov:
        p = direction(new, numbers[1], numbers[0], False)
        return _Moving(entry, o, p, numbers[0], new, numbers[1])
    return _Moving(entry, o, new, numbers[1], new, numbers[1])


def _drawn(moving: _Moving) -> tuple[Any, ...]:
    """Seed, place and step, of which random bits are a function."""
    entry, o = moving.entry, moving.options
    return o.seed, entry.place, entry.numbers.cells[STEPS:]


def _measured(moving: _Moving) -> None:
    """The exponent of a weight after its update, which is not written yet."""
    entry, o = moving.entry, moving.options
    if not o.lr:
        return
    n, own = entry.codes.numel(), (entry.codes, entry.delayed, entry.exponent)
    rest = (n, o.lr, o.lr_exponent, *_drawn(moving))
    over(updates.measure, n, moving.p, *own, moving.numbers, *rest, RANDOM=bool(o.random))
    where = (moving.numbers, entry.exponent, flag(entry.codes.device), o.lr_exponent)
    updates.settle[(1,)](*where, LIMIT=entry.limit)


def _moved(moving: _Moving) -> None:
    """The update, the new V, and the numbers that live on."""
    entry, o = moving.entry, moving.options
    n, up = entry.codes.numel(), flag(entry.codes.device)
    if o.lr:
        own = (entry.codes, entry.delayed, moving.numbers, up, n, o.lr, *_drawn(moving))
        over(updates.move, n, moving.p, *own, RANDOM=bool(o.random))
    if moving.v is not None:
        over(updates.kept, n, moving.v, entry.moments[0], up, n, BLOCK=BLOCK)
    cells = entry.numbers.cells
    updates.ended[(1,)](
        *(moving.numbers, moving.momentum, entry.exponent, cells, cells[STEPS:], up),
        MOVES=bool(o.lr),
        KEEPS=moving.v is not None,
    )
