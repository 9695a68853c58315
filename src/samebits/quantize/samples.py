"""Calibration samples from an NPZ archive that nobody vouches for: no pickle, bounded memory."""

from __future__ import annotations

import math
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from samebits.errors import InputError
from samebits.ir import Graph, Value

Array = np.ndarray[Any, Any]

LARGEST_ARCHIVE = 1 << 32  # bytes of all arrays together


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


def load_samples(path: Path, graph: Graph) -> Samples:
    """The samples of an .npz archive: one array for each input, by name, of [samples, ...].

    The array of a model with one input may have any name. Where an input has a batch axis, samples
    are cut along it: [n * batch, ...]. Raises InputError naming what was expected and found.
    """
    arrays = read_arrays(path)
    if len(graph.inputs) == len(arrays) == 1:
        arrays = {graph.inputs[0]: next(iter(arrays.values()))}
    if set(arrays) != set(graph.inputs):
        raise InputError(
            f"{path}: expected the arrays {', '.join(graph.inputs)} (the model's inputs), found "
            f"{', '.join(arrays) or 'none'}"
        )
    cut = {name: _cut(path, arrays[name], graph.values[name]) for name in graph.inputs}
    lengths = {name: len(array) for name, array in cut.items()}
    if len(set(lengths.values())) > 1:
        found = ", ".join(f"{name} {length}" for name, length in lengths.items())
        raise InputError(f"{path}: expected as many samples of each input, found {found}")
    return Samples(cut)


def read_arrays(path: Path) -> dict[str, Array]:
    """Every array of an .npz archive, by name. Sizes are checked before anything is unpacked."""
    try:
        with zipfile.ZipFile(path) as archive:
            members = archive.infolist()
            total = sum(member.file_size for member in members)
            if total > LARGEST_ARCHIVE:
                raise InputError(
                    f"{path}: expected at most {LARGEST_ARCHIVE} bytes of arrays, found {total}; "
                    "use fewer samples"
                )
            return {
                member.filename.removesuffix(".npy"): _member(path, archive, member)
                for member in members
            }
    except (InputError, FileNotFoundError, IsADirectoryError, PermissionError):
        raise
    except Exception as error:  # a damaged archive may raise anything
        raise InputError(
            f"{path}: not a readable .npz archive ({type(error).__name__}: {error}); save one with "
            "numpy.savez"
        ) from error


def _member(path: Path, archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> Array:
    where = f"{path}: array {member.filename}"
    with archive.open(member) as file:
        version = np.lib.format.read_magic(file)
        if version == (1, 0):
            shape, _, dtype = np.lib.format.read_array_header_1_0(file)
        else:
            shape, _, dtype = np.lib.format.read_array_header_2_0(file)
    if dtype.hasobject or dtype.kind not in "fiub":
        raise InputError(f"{where}: expected plain numbers, found {dtype}")
    if min(shape, default=1) < 0 or math.prod(shape) * dtype.itemsize > member.file_size:
        raise InputError(
            f"{where}: expected as many bytes as the shape {list(shape)} says, found "
            f"{member.file_size}"
        )
    with archive.open(member) as file:
        return np.asarray(np.lib.format.read_array(file, allow_pickle=False))


def _cut(path: Path, array: Array, value: Value) -> Array:
    """[samples, *shape of the value]."""
    where = f"{path}: array {value.name}"
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
