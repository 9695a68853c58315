"""Calibration samples, checked against the inputs of a graph and cut one by one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from samebits.errors import InputError
from samebits.ir import Graph, Value

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, eq=False)
class Samples:
    """Samples for the inputs of a graph; a sequence that cuts them when they are asked for.

    arrays: input name -> [samples, *shape of the input]
    """

    arrays: dict[str, Array]

    def __len__(self) -> int:
        return len(next(iter(self.arrays.values()))) if self.arrays else 0

    def __getitem__(self, index: int) -> dict[str, Array]:
        return {name: array[index] for name, array in self.arrays.items()}

    def __iter__(self) -> Iterator[dict[str, Array]]:
        return (self[index] for index in range(len(self)))


def samples_of(arrays: Mapping[str, Array], graph: Graph, source: str) -> Samples:
    """Samples from one array for each input of a graph, by name, of [samples, ...].

    Where an input has a batch axis, samples are cut along it: [n * batch, ...]. source: what
    messages call them. Raises InputError naming what was expected and found.
    """
    if set(arrays) != set(graph.inputs):
        raise InputError(
            f"{source}: expected the arrays {', '.join(graph.inputs)} (the model's inputs), found "
            f"{', '.join(arrays) or 'none'}"
        )
    cut = {name: _cut(source, arrays[name], graph.values[name]) for name in graph.inputs}
    lengths = {name: len(array) for name, array in cut.items()}
    if len(set(lengths.values())) > 1:
        found = ", ".join(f"{name} {length}" for name, length in lengths.items())
        raise InputError(f"{source}: expected as many samples of each input, found {found}")
    return Samples(cut)


def _cut(source: str, array: Array, value: Value) -> Array:
    """[samples, *shape of the value]."""
    where = f"{source}: array {value.name}"
    if array.dtype.name != value.dtype:
        raise InputError(
            f"{where}: expected {value.dtype}, found {array.dtype}; convert it with "
            f"astype({value.dtype!r})"
        )
    if array.shape[1:] == value.shape and array.ndim:
        return array
    if not value.shape or array.shape[1:] != value.shape[1:] or array.ndim != len(value.shape):
        rest = value.shape[0 if array.ndim > len(value.shape) else 1 :]
        raise InputError(f"{where}: expected shape {_shape_text(rest)}, found {list(array.shape)}")
    batch = value.shape[0]
    if batch < 1 or len(array) % batch:
        raise InputError(
            f"{where}: expected a number of samples that is a multiple of the model's batch "
            f"{batch}, found {len(array)}"
        )
    return array.reshape(len(array) // batch, *value.shape)


def _shape_text(rest: Sequence[int]) -> str:
    return f"[{', '.join(('samples', *map(str, rest)))}]"
