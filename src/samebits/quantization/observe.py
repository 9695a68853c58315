"""Calibration statistics: range and histogram of every tensor that will be quantized.

The bins of a histogram are [i * 2**k, (i + 1) * 2**k) for whole i, so growing k merges whole bins
and the result depends on the values alone, never on the order in which they came. Memory is one
run of the graph and one histogram per tensor.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from samebits import progress
from samebits.errors import InputError, NonFiniteError
from samebits.ir import Graph
from samebits.ir.many import blocks, trace_many

Array = np.ndarray[Any, Any]
Sample = Mapping[str, Array] | Sequence[Array]

BINS = 2048
SMALLEST_WIDTH = -1100  # exponent of the bins of a tensor of zeros; below every binary64


@dataclass(frozen=True, eq=False)
class Statistics:
    """The range and the histogram of one tensor in calibration.

    low, high: the least and greatest element
    count:     elements; `zeros` of them are 0
    width:     bins are 2**width wide
    first:     counts[i] is the number of elements in [first + i, first + i + 1) * 2**width
    counts:    int64 [BINS]; the bins reach from min(low, 0) to max(high, 0)
    """

    low: float
    high: float
    count: int
    zeros: int
    width: int
    first: int
    counts: Array

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Statistics):
            return NotImplemented
        return self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def _key(self) -> tuple[object, ...]:
        numbers = (self.low, self.high, self.count, self.zeros, self.width, self.first)
        return (*numbers, self.counts.tobytes())

    def edge(self, index: int) -> Fraction:
        """The lower edge of counts[index]."""
        return (self.first + index) * Fraction(2) ** self.width


def _bin(values: Array, width: int) -> Array:
    """floor(values / 2**width), exactly; the caller keeps it below 2**53."""
    scaled = np.floor(np.ldexp(values, -width))
    # The quotient of a tiny negative number may underflow to -0; its floor is -1.
    scaled[(scaled == 0) & (values < 0)] = -1.0
    return scaled.astype(np.int64)


def _width(low: float, high: float) -> int:
    """The smallest width whose BINS bins reach from `low` <= 0 to `high` >= 0."""
    if low == high:
        return SMALLEST_WIDTH
    ends = np.array([low, high], dtype=np.float64)
    # 2**exponent is above the larger magnitude and at most twice it: 2**12 bins are too many.
    width = max(SMALLEST_WIDTH, math.frexp(max(-low, high))[1] - 12)
    while True:
        first, last = _bin(ends, width)
        if last - first < BINS:
            return width
        width += 1


def statistics(values: Array) -> Statistics:
    """The statistics of one array of finite numbers, which is not empty."""
    flat = np.asarray(values, dtype=np.float64).reshape(-1)
    low, high = float(flat.min()), float(flat.max())
    floor, ceiling = min(low, 0.0), max(high, 0.0)
    width = _width(floor, ceiling)
    first = int(_bin(np.array([floor]), width)[0])
    counts = np.bincount(_bin(flat, width) - first, minlength=BINS).astype(np.int64)
    return Statistics(low, high, flat.size, int(np.count_nonzero(flat == 0)), width, first, counts)


def merged(parts: Sequence[Statistics]) -> Statistics:
    """The statistics of all elements together; the same as if they had come at once."""
    if len(parts) == 1:
        return parts[0]
    low, high = min(p.low for p in parts), max(p.high for p in parts)
    floor, ceiling = min(low, 0.0), max(high, 0.0)
    width = _width(floor, ceiling)
    first = int(_bin(np.array([floor]), width)[0])
    counts = np.zeros(BINS, dtype=np.int64)
    for part in parts:
        used = np.flatnonzero(part.counts)
        # Bins lie within +-2**12: a shift by more than 62 gives what 62 gives.
        bins = (used + part.first) >> min(width - part.width, 62)
        np.add.at(counts, bins - first, part.counts[used])
    return Statistics(
        low,
        high,
        sum(p.count for p in parts),
        sum(p.zeros for p in parts),
        width,
        first,
        counts,
    )


def observe(
    graph: Graph,
    samples: Iterable[Sample],
    names: Iterable[str],
    each: Callable[[Sequence[Array]], None] | None = None,
    every: int | None = None,
    settled: Callable[[Mapping[str, Statistics]], bool] | None = None,
) -> dict[str, Statistics]:
    """Run a real graph over the samples; statistics of the values `names`.

    each:           called with every sample, a copy of its own
    every, settled: after so many samples, and so many more: whether those that follow are left out

    Raises InputError for an empty set, for a sample whose names, shapes or types are not those of
    the graph's inputs, and (NonFiniteError) for NaN or infinity in a sample or a named value.
    """
    names = tuple(dict.fromkeys(names))
    seen: dict[str, Statistics] = {}
    count = 0
    total = len(samples) if isinstance(samples, Sized) else None
    read = progress.track(checked(graph, samples), "calibrating", total)
    copied = ([np.array(array) for array in inputs] for inputs in read)  # of buffers used again
    for block in blocks(graph, copied, every):
        values = trace_many(graph, block)
        for place, inputs in enumerate(block):
            for name in names:
                check_finite(name, values[name][place], count + place)
            if each is not None:
                each(inputs)
        for name in names:
            if values[name].size:
                found = statistics(values[name])
                seen[name] = merged([seen[name], found]) if name in seen else found
        count += len(block)
        if settled is not None and every and count % every == 0 and settled(seen):
            break
    if not count:
        raise InputError(
            "calibration: expected at least one sample, found none; give samples of the data that "
            "the network will see"
        )
    return seen


def checked(graph: Graph, samples: Iterable[Sample]) -> Iterator[list[Array]]:
    """The arrays of each sample in the order of the graph's inputs, types and shapes checked."""
    for index, sample in enumerate(samples):
        where = f"calibration sample {index}"
        if isinstance(sample, Mapping):
            if set(sample) != set(graph.inputs):
                raise InputError(
                    f"{where}: expected the inputs {', '.join(graph.inputs)}, found "
                    f"{', '.join(map(str, sample)) or 'none'}"
                )
            arrays = [np.asarray(sample[name]) for name in graph.inputs]
        else:
            arrays = [np.asarray(array) for array in sample]
            if len(arrays) != len(graph.inputs):
                raise InputError(
                    f"{where}: expected {len(graph.inputs)} arrays ({', '.join(graph.inputs)}), "
                    f"found {len(arrays)}"
                )
        for name, array in zip(graph.inputs, arrays, strict=True):
            value = graph.values[name]
            if array.dtype.name != value.dtype:
                raise InputError(
                    f"{where}: input {name!r}: expected {value.dtype}, found {array.dtype}; "
                    "convert it first"
                )
            if array.shape != value.shape:
                raise InputError(
                    f"{where}: input {name!r}: expected shape {list(value.shape)}, found "
                    f"{list(array.shape)}"
                )
            check_finite(name, array, index)
        yield arrays


def check_finite(name: str, array: Array, sample: int) -> None:
    """NonFiniteError that names the tensor, the first index and the sample."""
    if array.dtype.kind != "f":
        return
    finite = np.isfinite(array)
    if not finite.all():
        index = tuple(int(i) for i in np.argwhere(~finite)[0])
        raise NonFiniteError(
            f"calibration sample {sample}: tensor {name!r}: expected finite values, found "
            f"{array[index]} at index {index}; remove or replace such samples"
        )
