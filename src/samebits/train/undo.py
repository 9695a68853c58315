"""The state that an optimizer's step changes, kept so that a step that fails changes nothing.

A step updates parameter after parameter in place, and any of them may turn out to leave the range
of its format. Far from the end of that range no step can fail (`IntegerOptimizer._surely_fits`),
and nothing is kept; close to it, where training diverges, the state is copied first.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, MutableMapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from samebits.kernels import rows
from samebits.kernels.protocol import Gradient
from samebits.kernels.rows import Exponent
from samebits.spec import formats
from samebits.train.tensor import BFPParameter

State = MutableMapping[Any, dict[str, Any]]
ROUNDING = 24
"""Powers of two that sums of a few terms, their rounding and a new split of a weight may add."""


class _Kept(NamedTuple):
    """A parameter and its optimizer state, as they were."""

    parameter: BFPParameter
    codes: Tensor
    delayed: Tensor
    exponent: Exponent
    largest: int | None
    state: dict[str, Any]


def keep(parameters: Iterable[BFPParameter], state: State) -> Callable[[], None]:
    """Copy parameters and their optimizer state; the result puts them back."""
    kept = [
        _Kept(
            p,
            p.codes.clone(),
            p.delayed.clone(),
            p.parts[0][1],  # never written in place
            p.largest_joint(),
            {
                name: value.clone() if isinstance(value, Tensor) else value
                for name, value in state.get(p, {}).items()
            },
        )
        for p in parameters
    ]

    @torch.no_grad()
    def restore() -> None:
        for old in kept:
            old.parameter.codes.copy_(old.codes)
            old.parameter.delayed.copy_(old.delayed)
            old.parameter.set_exponent(old.exponent)
            if old.largest is not None:
                old.parameter.remember_largest_joint(old.largest)
            state.pop(old.parameter, None)
            if old.state:
                state[old.parameter] = old.state

    return restore


def bits_of(value: float) -> int:
    """The least n with |value| < 2**n of a finite number; far below any other for 0."""
    return math.frexp(value)[1] if value else -1000


def gradient_bits(gradient: Gradient) -> int:
    """n with |G| < 2**n for every element: of 32-bit codes, summed over the parts."""
    return max(e for _, e in gradient.parts) + 31 + len(gradient.parts).bit_length()


def joint_bits(parameter: BFPParameter) -> int:
    """n with |J| < 2**n for every element of a parameter, W * 2**15 - A at its exponent."""
    return rows.highest(parameter.parts[0][1]) + 8


def fits(bits: int) -> bool:
    """Whether values below 2**bits, added up and rounded anew, surely have an exponent in range."""
    return bits + ROUNDING <= formats.EXPONENT_MAX
