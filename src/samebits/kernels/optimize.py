"""The step of all parameters of an optimizer at once: what it takes (training.md 2 to 4)."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from torch import Tensor

from samebits.kernels.memory import is_in_word_order
from samebits.kernels.rows import Exponent


class StepOptions(NamedTuple):
    """Options of a group of parameters, in the order that C has them in (csrc/training/optimize.c).

    Coefficients are m * 2**x, 0 where the term is absent; `bits` is the least n with
    |number| < 2**n. divisor_bits: those of 1 - beta1, and of eps.
    """

    is_adam: bool
    nesterov: bool
    random: bool
    seed: int
    lr: int
    lr_exponent: int
    lr_bits: int
    decay: int
    decay_exponent: int
    decay_bits: int
    momentum: int = 0
    momentum_exponent: int = 0
    momentum_bits: int = 0
    divisor_bits: int = 0
    beta1: float = 0.0
    beta2: float = 0.0
    coupled: float = 0.0
    decoupled: float = 0.0
    eps: float = 0.0


class Entry(NamedTuple):
    """One parameter, and what a step changes.

    exponent: int64 [], or by rows int8 [rows]
    largest:  max|J| (-1: unknown), and the version of the codes that it is true of
    moments:  V, or M and S
    numbers:  `Numbers` of C
    place:    among all parameters of the optimizer; group: that of its options
    """

    codes: Tensor
    delayed: Tensor
    exponent: Tensor
    largest: ctypes.Array[ctypes.c_int64]
    moments: tuple[Tensor, ...]
    numbers: ctypes.Structure
    limit: int
    place: int
    group: int


class Contributions(Protocol):
    """A gradient: codes and exponent of each of its parts, and bounds of max|codes| (None: none).

    Exponents and bounds that are tensors, int64 [], are read anew in every step.
    """

    @property
    def parts(self) -> Sequence[tuple[Tensor, Exponent]]:
        """One or more."""

    @property
    def bounds(self) -> Sequence[int | Tensor | None]:
        """As many."""


class GradientCells(NamedTuple):
    """A gradient that always lies at the same places, with its numbers (a bound of -1: none)."""

    parts: tuple[tuple[Tensor, Tensor], ...]
    bounds: tuple[Tensor | None, ...]


@dataclass(eq=False)
class Roster:
    """Parameters that one call updates; made: what a realisation knows of them."""

    entries: tuple[Entry, ...]
    made: Any = field(default=None, init=False, repr=False)


@dataclass(eq=False)
class StepGradients:
    """The gradients of a roster's parameters; made: as of a roster."""

    each: tuple[Contributions, ...]
    made: Any = field(default=None, init=False, repr=False)


def is_taken(codes: Tensor, delayed: Tensor, exponent: Tensor) -> bool:
    """Whether a roster takes a weight: in memory in the order of random words."""
    return (
        (exponent.dim() == 0 or exponent.is_contiguous())
        and codes.numel() > 0
        and is_in_word_order(codes)
        and is_in_word_order(delayed)
    )
