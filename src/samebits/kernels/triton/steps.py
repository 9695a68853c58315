"""The step of an optimizer's parameters on a device: launches alone (training.md 2 to 4)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from samebits.kernels.memory import like
from samebits.kernels.optimize import Entry, Roster, StepGradients, StepOptions
from samebits.kernels.triton import adam, updates
from samebits.kernels.triton.launch import BLOCK, EXACT, bits_of, block_of, cell, over, real_of
from samebits.kernels.triton.numbers import DeviceNumber, flag, place
from samebits.kernels.triton.parts import TritonParts

FIELDS = (
    *("momentum_exponent", "momentum_largest", "steps", "begun"),
    *("first_exponent", "root_exponent", "power1", "power2"),
)
POWERS = FIELDS[6:]  # binary64 numbers, which cells hold as their 64 bits
STEPS = 2  # the place of the number of steps among the cells


class DeviceNumbers:
    """The numbers that are kept of a parameter from step to step, on its device.

    They read like those of C (csrc/training/optimize.c), of which they begin as a copy.
    """

    def __init__(self, numbers: Any, device: torch.device) -> None:
        own = [_held(name, getattr(numbers, name)) for name in FIELDS]
        self.cells = torch.tensor(own, dtype=torch.int64, device=device)

    def __getattr__(self, name: str) -> Any:
        if name not in FIELDS:
            raise AttributeError(name)
        value = DeviceNumber(self.cells[FIELDS.index(name)]).read()
        return real_of(value) if name in POWERS else value

    def __setattr__(self, name: str, value: Any) -> None:
        if name in FIELDS:
            self.cells[FIELDS.index(name)] = _held(name, value)
        else:
            super().__setattr__(name, value)


def _held(name: str, value: Any) -> int:
    """A number as its cell holds it."""
    return bits_of(value) if name in POWERS else value


class _Moving(NamedTuple):
    """A parameter in the course of a step.

    rates: its coefficients; p, numbers: the direction that moves it; moments: the new ones, as many
    as the entry has; found: the numbers of these; own: those of its rows
    """

    entry: Entry
    options: StepOptions
    rates: Tensor
    p: Tensor
    numbers: Tensor
    moments: tuple[Tensor, ...]
    found: Tensor
    own: Tensor


def optimize(
    k: TritonParts, roster: Roster, options: Sequence[StepOptions], gradients: StepGradients
) -> None:
    """A step of all parameters of a roster; nothing changes where the flag goes up."""
    write_rates(roster, options)
    moving = []
    for entry, gradient in zip(roster.entries, gradients.each, strict=True):
        g, e_g = k.resolve([(codes, _one(e)) for codes, e in gradient.parts])
        own, rates = options[entry.group], roster.made.cells[entry.group]
        directed = _directed_by_adam if own.is_adam else _directed
        moving.append(directed(entry, own, rates, like(g, entry.codes), _one(e_g)))
    for each in moving:
        _measured(each)
    for each in moving:
        _moved(each)
    torch.autograd.graph.increment_version(written(roster))


def written(roster: Roster) -> list[Tensor]:
    """The tensors that a step changes."""
    return [v for e in roster.entries for v in (e.codes, e.delayed, e.exponent, *e.moments)]


@dataclass
class _Rates:
    """The coefficients of groups, int64 [groups, RATES] on a device, and as they were given."""

    cells: Tensor
    known: list[tuple[int, ...]]


def write_rates(roster: Roster, options: Sequence[StepOptions]) -> None:
    """Put the coefficients of groups where kernels read them, if they are others than before."""
    if roster.made is None:
        size = (len(options), updates.RATES)
        cells = roster.entries[0].codes.new_empty(size, dtype=torch.int64)
        roster.made = _Rates(cells, [()] * len(options))
    made = roster.made
    for group, o in enumerate(options):
        own = (o.lr, o.lr_exponent, o.decay, o.decay_exponent, o.momentum, o.momentum_exponent)
        if made.known[group] != own:
            updates.rates[(1,)](made.cells[group], *own)
            made.known[group] = own


def _one(exponent: Any) -> int:
    """An exponent that may lie in a cell."""
    return DeviceNumber(exponent) if isinstance(exponent, Tensor) else exponent


def _directed(entry: Entry, o: StepOptions, rates: Tensor, g: Tensor, e_g: int) -> _Moving:
    """V and P of a parameter, and their numbers."""
    v = entry.moments[0] if entry.moments else None
    cells, device = entry.numbers.cells, g.device
    numbers = cell(g, 2 * updates.NUMBERS).view(2, -1)
    top = entry.exponent.amax().long() if _by_rows(entry) else entry.exponent

    def direction(old: Tensor | None, of_v: Tensor, own: Tensor, is_random: bool) -> Tensor:
        out, n = torch.empty_like(entry.codes, dtype=torch.int16), g.numel()
        over(
            *(updates.direction, n, g, *place(e_g, device), *_weight(entry)[:3], top, _per(entry)),
            *(out if old is None else old, of_v, out, own, flag(device), n),
            *(rates, o.seed, entry.place, cells[STEPS:]),
            ROWS=_by_rows(entry),
            MOMENTUM=old is not None,
            RANDOM=is_random,
        )
        return out

    def moving(p: Tensor, own: Tensor, new: tuple[Tensor, ...]) -> _Moving:
        return _Moving(entry, o, rates, p, own, new, numbers[1], _of_rows(entry, p, own))

    if v is None:
        return moving(direction(None, cells, numbers[0], False), numbers[0], ())
    new = direction(v, cells, numbers[1], bool(o.random))
    if o.nesterov:
        return moving(direction(new, numbers[1], numbers[0], False), numbers[0], (new,))
    return moving(new, numbers[1], (new,))


def _directed_by_adam(entry: Entry, o: StepOptions, rates: Tensor, g: Tensor, e_g: int) -> _Moving:
    """M, S and P of a parameter, and their numbers."""
    cells, n, up = entry.numbers.cells, g.numel(), flag(g.device)
    numbers = cell(g, updates.NUMBERS)
    first, root, p = (torch.empty_like(v) for v in (*entry.moments, entry.moments[0]))
    of_weight, kinds = _weight(entry), {"ROWS": _by_rows(entry)}
    own = [bits_of(v) for v in (o.beta1, 1.0 - o.beta1, o.beta2, 1.0 - o.beta2, o.coupled)]
    operands = (g, *place(e_g, g.device), *of_weight, *entry.moments, cells, numbers, n, *own)
    over(adam.tops, n, *operands, **kinds)
    drawn = (o.seed, entry.place, cells[STEPS:])
    over(adam.moments, n, *operands, first, root, up, *drawn, RANDOM=bool(o.random), **kinds)
    own = [bits_of(v) for v in (o.beta1, o.beta2, o.decoupled, o.eps)]
    operands = (*of_weight, first, root, cells, numbers, n, *own)
    over(adam.reach, n, *operands, **kinds)
    over(adam.direction, n, *operands, p, up, **kinds)
    own_rows = _of_rows(entry, p, numbers)
    return _Moving(entry, o, rates, p, numbers, (first, root), numbers, own_rows)


def _by_rows(entry: Entry) -> bool:
    """Whether rows of a weight have exponents of their own."""
    return entry.exponent.dim() > 0


def _per(entry: Entry) -> int:
    """Elements of a row: all of them where a weight has one exponent."""
    return entry.codes.numel() // entry.exponent.numel()


def _weight(entry: Entry) -> tuple[Any, ...]:
    """A weight and the size of its rows, as kernels take them."""
    return entry.codes, entry.delayed, entry.exponent, _per(entry)


def _each_row(kernel: Any, entry: Entry, *arguments: Any, **options: Any) -> None:
    """Launch a kernel over the elements of every row, which is axis 1 of the grid."""
    block = min(BLOCK, block_of(_per(entry)))
    grid = (-(-_per(entry) // block), entry.exponent.numel())
    kernel[grid](*arguments, BLOCK=block, **options)


def _of_rows(entry: Entry, p: Tensor, numbers: Tensor) -> Tensor:
    """The numbers of rows with the largest code of each; of one row those of the direction."""
    if not _by_rows(entry):
        return numbers
    own = cell(p, entry.exponent.numel() * updates.NUMBERS)
    _each_row(updates.row_tops, entry, p, own, _per(entry))
    return own


def _drawn(moving: _Moving) -> tuple[Any, ...]:
    """Seed, place and step, of which random bits are a function."""
    entry, o = moving.entry, moving.options
    return o.seed, entry.place, entry.numbers.cells[STEPS:]


def _measured(moving: _Moving) -> None:
    """The exponent of a weight after its update, which is not written yet."""
    entry, o = moving.entry, moving.options
    if not o.lr:
        return
    *weight, per = _weight(entry)
    rest = (moving.numbers, moving.own, per, moving.rates, *_drawn(moving))
    _each_row(updates.measure, entry, moving.p, *weight, *rest, RANDOM=bool(o.random))
    where = (moving.numbers, moving.own, entry.exponent, flag(entry.codes.device), moving.rates)
    updates.settle[(entry.exponent.numel(),)](*where, LIMIT=entry.limit)


def _moved(moving: _Moving) -> None:
    """The update, the new moments, and the numbers that live on."""
    entry, o = moving.entry, moving.options
    n, up = entry.codes.numel(), flag(entry.codes.device)
    if o.lr:
        *weight, per = _weight(entry)
        rest = (moving.own, up, per, moving.rates, *_drawn(moving))
        _each_row(updates.move, entry, moving.p, *weight, *rest, RANDOM=bool(o.random))
    for new, old in zip(moving.moments, entry.moments, strict=True):
        over(updates.kept, n, new, old, up, n, BLOCK=BLOCK)
    cells = entry.numbers.cells
    if o.is_adam:
        adam.kept[(1,)](moving.numbers, cells, up, bits_of(o.beta1), bits_of(o.beta2), **EXACT)
    updates.ended[(1,)](
        *(moving.found, cells, cells[STEPS:], up),
        KEEPS=bool(moving.moments) and not o.is_adam,
    )
