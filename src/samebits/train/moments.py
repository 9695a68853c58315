"""The state that an optimizer keeps of a parameter, and what a checkpoint may hold of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from samebits.errors import CheckpointError
from samebits.kernels.library import STRUCTS
from samebits.spec import formats
from samebits.spec.training.moments import CODE_MAX, LEADING
from samebits.train.tensor import BFPParameter

NUMBERS = {
    "momentum": ("momentum_exponent", "momentum_largest"),
    "first": ("first_exponent",),
    "root": ("root_exponent", "power1", "power2"),
}
"""Moments (e6m9 codes), and the numbers that come with each."""


class MomentState(Mapping[str, Any]):
    """Moments, tensors, and their numbers, which lie in memory that C reads and writes.

    It reads like the dict that torch's optimizers keep: names are there as soon as a step has
    written what they name.
    """

    __slots__ = ("moments", "numbers")

    def __init__(self, values: Mapping[str, Any]) -> None:
        self.moments: dict[str, Tensor] = {}  # never changed in place
        self.numbers = STRUCTS["Numbers"]()
        self.update(values.items())

    def __iter__(self) -> Iterator[str]:
        if self.numbers.begun:
            for name in self.moments:
                yield name
                yield from NUMBERS[name]
        if self.numbers.steps:
            yield "steps"

    def __len__(self) -> int:
        return len(list(iter(self)))

    def __getitem__(self, name: str) -> Any:
        if name not in list(self):
            raise KeyError(name)
        return self.moments[name] if name in NUMBERS else getattr(self.numbers, name)

    def __setitem__(self, name: str, value: Any) -> None:
        if name in NUMBERS:
            self.moments = {**self.moments, name: value}
            self.numbers.begun = 1
        else:
            setattr(self.numbers, name, value)

    def update(self, values: Iterable[tuple[str, Any]]) -> None:
        """Set several."""
        for name, value in values:
            self[name] = value

    def room(self, name: str, codes: Tensor) -> Tensor:
        """The memory of a moment of a weight, zeros before the first step."""
        if name not in self.moments:
            self.moments = {**self.moments, name: torch.zeros_like(codes, dtype=torch.int16)}
        return self.moments[name]

    def __reduce__(self) -> tuple[Any, ...]:
        return MomentState, (dict(self),)


KINDS = {
    "steps": "steps",
    "momentum": "codes",
    "momentum_exponent": "exponent",
    "first": "codes",
    "first_exponent": "exponent",
    "root": "codes",
    "root_exponent": "exponent",
    "power1": "power",
    "power2": "power",
}
"""The entries of optimizer states, by the kind that `stored` checks."""


def stored(value: Any, kind: str, parameter: BFPParameter, what: str) -> Any:
    """One entry of an optimizer's saved state, in the memory order of its parameter.

    Checkpoints are untrusted: CheckpointError, which says `what` it is, for another type, shape or
    range.
    """
    if kind == "codes":
        if (
            not isinstance(value, Tensor)
            or value.dtype != torch.int16
            or value.shape != parameter.shape
            or bool(((value != 0) & (value > -LEADING) & (value < LEADING)).any())
            or bool((value < -CODE_MAX).any())
        ):
            found = f"{value.dtype} {tuple(value.shape)}" if isinstance(value, Tensor) else value
            raise CheckpointError(
                f"optimizer state {what}: expected e6m9 codes, int16 {tuple(parameter.shape)} of 0 "
                f"and magnitudes of {LEADING} to {CODE_MAX}, found {found}"
            )
        return torch.empty_like(parameter.codes, dtype=torch.int16).copy_(value)
    low, high = {
        "exponent": (formats.EXPONENT_MIN, formats.EXPONENT_MAX),
        "steps": (1, 2**32 - 1),
        "power": (0.0, 1.0),
    }[kind]
    if type(value) is type(low) and low <= value <= high:
        return value
    raise CheckpointError(
        f"optimizer state {what}: expected a number in [{low}, {high}], found {value!r}"
    )
