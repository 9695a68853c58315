"""The step of all parameters at once as C reads it (csrc/training/optimize.c)."""

from __future__ import annotations

import ctypes
import functools
import struct
from typing import Any

import torch
from torch import Tensor

from samebits.kernels.library import STRUCTS
from samebits.kernels.memory import (
    I8,
    I16,
    I32,
    I64,
    LAST,
    addresses,
    is_in_word_order,
    pointer,
    word_pointer,
)
from samebits.kernels.optimize import Contributions, Entry, Roster, StepGradients, StepOptions

DENSE = torch.contiguous_format


class RosterTable:
    """A roster in memory, for as long as its tensors lie where they lay."""

    def __init__(self, entries: tuple[Entry, ...]) -> None:
        self.tensors = [t for e in entries for t in (*e[:3], *e.moments)]
        self.places = addresses(self.tensors)
        rows: list[Any] = [_trained(entry) for entry in entries]
        self.rows = (STRUCTS["Trained"] * len(rows))(*rows)
        self.count, self.counts = len(rows), [0] * len(rows)
        self._codes = [entry.codes for entry in entries]
        self._largest = [entry.largest for entry in entries]
        self._written = [(entry.group, t) for entry in entries for t in entry[:3]]
        self._all_written = [t for _, t in self._written]

    def take(self, counts: list[int]) -> None:
        """Note how many parts gradients have, and which weights somebody else has written."""
        if counts != self.counts:
            for row, count in zip(self.rows, counts, strict=True):
                row.parts = count
            self.counts = counts
        versions = [codes._version for codes in self._codes]
        if versions != [cell[1] for cell in self._largest]:
            for cell, version in zip(self._largest, versions, strict=True):
                if cell[1] != version:
                    cell[:] = [-1, version]

    def count_versions(self, options: tuple[StepOptions, ...]) -> None:
        """Tell torch what has been written through pointers."""
        written = self._all_written
        if 0 in [group.lr for group in options]:
            written = [t for group, t in self._written if options[group].lr]
        torch.autograd.graph.increment_version(written)


class GradientTable:
    """Gradients in memory, for as long as their codes lie where they lay.

    Numbers are those of this moment where they are no tensors.
    """

    def __init__(self, gradients: tuple[Contributions, ...], entries: tuple[Entry, ...]) -> None:
        self.counts: list[int] = []
        self.tensors: list[Tensor] = []
        fields: list[int | None] = []
        for gradient, entry in zip(gradients, entries, strict=True):
            self.counts.append(len(gradient.parts))
            size = entry.codes.numel()
            for (codes, exponent), bound in zip(gradient.parts, gradient.bounds, strict=True):
                if isinstance(exponent, int):
                    known = -1 if bound is None else int(bound)
                    fields += (*self._codes(codes, size, True), exponent, known, 0, 0)
                else:
                    known, cell = (-1, bound) if isinstance(bound, Tensor) else (bound or -1, None)
                    fields += (*self._codes(codes, size, False), 0, known)
                    fields += (pointer(exponent, 1, I64), pointer(cell, 1, I64) or 0)
                    self.tensors += [exponent] if cell is None else [exponent, cell]
        count = sum(self.counts)
        self.rows = (STRUCTS["Part"] * count)()
        struct.pack_into("PqqqPP" * count, self.rows, 0, *fields)
        self.places = addresses(self.tensors)

    def _codes(self, codes: Tensor, size: int, changing: bool) -> tuple[int | None, int]:
        """Where the codes of a part lie, and their width.

        changing: whether others come in the next step, so that a copy may stand for these
        """
        if changing and codes.dtype is I8:
            codes = codes.to(I16)
        if changing and not is_in_word_order(codes):
            codes = codes.contiguous(memory_format=LAST if codes.dim() == 4 else DENSE)
        self.tensors.append(codes)
        narrow = codes.dtype is I16
        return word_pointer(codes, size, I16 if narrow else I32), 16 if narrow else 32


def tables(roster: Roster, gradients: StepGradients) -> tuple[RosterTable, GradientTable]:
    """Lay both out for C, anew where something has moved. Raises InputError."""
    known, given = roster.made, gradients.made
    if (
        known is None
        or given is None
        or addresses([*known.tensors, *given.tensors]) != known.places + given.places
    ):
        roster.made = known = RosterTable(roster.entries)
        gradients.made = given = GradientTable(gradients.each, roster.entries)
    return known, given


@functools.lru_cache(maxsize=64)
def groups(options: tuple[StepOptions, ...]) -> ctypes.Array[ctypes.Structure]:
    """Options of all groups as C reads them."""
    rows: list[Any] = [tuple(group) for group in options]
    return (STRUCTS["Options"] * len(rows))(*rows)


def _trained(entry: Entry) -> tuple[Any, ...]:
    """The fields of `Trained`, but for the number of parts of the gradient."""
    count, rows = entry.codes.numel(), entry.exponent.numel() if entry.exponent.dim() else 0
    one = None if rows else entry.exponent
    moments = [word_pointer(v, count, I16) for v in entry.moments]
    return (
        word_pointer(entry.codes, count, I8),
        word_pointer(entry.delayed, count, I16),
        pointer(one, 1, I64),
        ctypes.addressof(entry.largest),
        pointer(entry.exponent if rows else None, rows, I8),
        *(*moments, None, None)[:2],
        ctypes.pointer(entry.numbers),
        *(count, rows, entry.limit, entry.place, entry.group),
    )
