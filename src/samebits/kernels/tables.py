"""Functions of 8-bit codes by table: one table for each exponent of the codes (training.md 5)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from samebits.kernels.rows import Exponent
from samebits.spec import formats

Entries = tuple[Sequence[int], int]  # of the codes -127 to 127, and their exponent
CODES = 256  # from -128 on, which is no code: its entry is 0, so that C reads within a table
TABLES = formats.EXPONENT_MAX - formats.EXPONENT_MIN + 1
MISSING = -(1 << 63)  # in the place of the exponent of a table that is not there, as in exponent.h


class Tables:
    """The tables of one function, each made when its exponent is first met.

    Codes of every exponent, from -128 on, lie one after the other in memory, where C finds those of
    an exponent that it has read there itself.
    """

    def __init__(self, make: Callable[[int], Entries]) -> None:
        """make: the entries at an exponent of the codes."""
        self._make = make
        shape = (TABLES, CODES)
        self.entries = torch.empty(shape, dtype=torch.int32, device="cpu")
        self.exponents = torch.full((TABLES,), MISSING, dtype=torch.int64, device="cpu")
        self._met: set[int] = set()

    def meet(self, exponent: Exponent) -> None:
        """Make the table of an exponent, or of several, unless it is there."""
        if isinstance(exponent, Tensor):
            for one in exponent.unique().tolist():
                self.meet(one)
            return
        if exponent in self._met:
            return
        entries, own = self._make(exponent)
        at = exponent - formats.EXPONENT_MIN
        self.entries[at] = torch.tensor([0, *entries], dtype=torch.int32, device="cpu")
        self.exponents[at] = own
        self._met.add(exponent)

    def at(self, exponent: int) -> tuple[Tensor, int]:
        """The entries of an exponent, int32 [256], and their own exponent."""
        self.meet(exponent)
        at = exponent - formats.EXPONENT_MIN
        return self.entries[at], int(self.exponents[at])

    def looked_up(self, x: Tensor, exponent: Tensor) -> tuple[Tensor, Tensor]:
        """The entry of every code, int32, and its exponent, of codes of several exponents."""
        self.meet(exponent)
        place = exponent - formats.EXPONENT_MIN
        entries, own = (v.to(x.device) for v in (self.entries, self.exponents))
        return entries[place, x.long() + 128], own[place]
