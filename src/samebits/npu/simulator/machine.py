"""The parts of the machine: memories, the matrix-vector unit, the multifunction units.

docs/spec/npu.md sections 1 and 2. Vectors are numpy binary16 arrays [N]; what a chain carries is
[count, N]. NaN is stored as 0x7E00.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np

from samebits.errors import InputError
from samebits.npu.machine.isa import POINTWISE, REDUCTIONS
from samebits.spec.npu_short import (
    EXPONENT_MAX,
    EXPONENT_MIN,
    INFINITY,
    LONG_FRACTION,
    bfp_long,
    long_to_binary16,
)

Array = np.ndarray[Any, Any]

NAN = np.float16(np.nan)
EXACT = 1 << 53  # integers up to here are binary64 numbers


def canonical(values: Array) -> Array:
    """Binary16 with every NaN as 0x7E00."""
    return np.where(np.isnan(values), NAN, values)


# --- multifunction units ----------------------------------------------------------------------


def _rounded(operation: Callable[[Array, Array], Array]) -> Callable[[Array, Array], Array]:
    """The operation in binary32 and rounded to binary16: as one rounding (section 1)."""

    def apply(a: Array, b: Array) -> Array:
        with np.errstate(all="ignore"):
            wide = operation(a.astype(np.float32), b.astype(np.float32))
            return canonical(wide.astype(np.float16))

    return apply


OPERATIONS: Mapping[str, Callable[..., Any]] = MappingProxyType(
    {
        "add": _rounded(np.add),
        "subtract": _rounded(np.subtract),
        "multiply": _rounded(np.multiply),
        "choose": lambda p, q, x, y: np.where(p > q, x, y),
        "number": np.float16,
        "look_up": lambda table, x: table.entries()[x.view(np.uint16)].view(np.float16),
    }
)
"""The operations of formulas on binary16 arrays, element by element."""


def pointwise(op: str, *operands: Array) -> Array:
    """An instruction of a multifunction unit on the value in the chain and, if it takes one, its
    operand: binary16 arrays of one shape."""
    result: Array = POINTWISE[op].realised(OPERATIONS, *operands)
    return result


# Of all numbers of an array, in binary64: it holds any sum of LANES_MAX binary16 numbers.
ACROSS: Mapping[str, Callable[[Array], Any]] = MappingProxyType(
    {"total": np.sum, "largest": np.max}
)


def reduced(op: str, carried: Array) -> Array:
    """An instruction across all lanes of what a chain carries, which all receive the result."""
    with np.errstate(all="ignore"):
        result = ACROSS[REDUCTIONS[op].name](carried.astype(np.float64)) + 0.0
        return canonical(np.full_like(carried, np.float16(result)))


# --- matrix-vector unit -----------------------------------------------------------------------


@dataclass(frozen=True)
class ShortBlocks:
    """BFP-short blocks along the last axis: value = codes * 2**(exponents - M).

    codes: int64 [..., N], at most 2**15 - 1 in magnitude     exponents: int64 [...]
    """

    codes: Array
    exponents: Array


def quantize(values: Array, mantissa: int) -> ShortBlocks:
    """Binary16 [..., N] as BFP-short blocks. Scaling by powers of two is exact in binary64."""
    wide = values.astype(np.float64)
    wide = np.where(np.isinf(wide), np.copysign(float(INFINITY), wide), wide)
    wide = np.where(np.isnan(wide), 0.0, wide)
    largest = np.abs(wide).max(axis=-1)
    code_max = (1 << mantissa) - 1
    exponents = np.where(largest > 0, np.frexp(largest)[1], EXPONENT_MIN)
    exponents += np.rint(np.ldexp(largest, mantissa - exponents)) > code_max
    exponents = np.clip(exponents, EXPONENT_MIN, EXPONENT_MAX)
    codes = np.rint(np.ldexp(wide, (mantissa - exponents)[..., np.newaxis]))
    return ShortBlocks(np.clip(codes, -code_max, code_max).astype(np.int64), exponents)


def multiply(
    tiles: Sequence[Sequence[ShortBlocks]], vectors: Array, mantissa: int, requantize: bool
) -> Array:
    """Rows of tiles times the vectors of a chain: binary16 [len(tiles), N].

    A dot product is below 512 * 2**30, so binary64 holds it, rounded to a unit of 2**-40, exactly;
    and every sum of such integers below 2**53. Larger sums are taken by the definition itself.
    """
    right = quantize(vectors, mantissa)
    result = np.zeros((len(tiles), vectors.shape[1]), np.float16)
    for r, row in enumerate(tiles):
        dots = np.stack([tile.codes @ right.codes[c] for c, tile in enumerate(row)])
        scales = np.stack([tile.exponents + right.exponents[c] for c, tile in enumerate(row)])
        scales -= 2 * mantissa
        products = np.rint(np.ldexp(dots.astype(np.float64), scales + LONG_FRACTION))
        if requantize:
            with np.errstate(over="ignore"):
                halves = np.ldexp(products, -LONG_FRACTION).astype(np.float16)
            products = np.ldexp(halves.astype(np.float64), LONG_FRACTION)
        large = np.abs(products).sum(axis=0) >= EXACT
        total = np.where(large, 0, products).sum(axis=0) + 0.0  # zeros are positive
        result[r] = np.ldexp(total, -LONG_FRACTION)
        for n in np.flatnonzero(large):
            pairs = zip(dots[:, n].tolist(), scales[:, n].tolist(), strict=True)
            result[r, n] = long_to_binary16(bfp_long(list(pairs), requantize))
    return result


# --- memories ---------------------------------------------------------------------------------


@dataclass
class Memory:
    """Vectors (or tiles) by address; an address that was never written is not in it."""

    name: str
    entries: dict[int, Any] = field(default_factory=dict)

    def read(self, address: int, where: str) -> Any:
        """The entry. Raises InputError if nothing was ever written there."""
        entry = self.entries.get(address)
        if entry is None:
            raise InputError(
                f"{where}: expected {self.name} {address} to have been written, found nothing "
                "there; write it before, or give it in the memory image"
            )
        return entry


@dataclass
class Queue:
    """The network: vectors to be read, in order, and those written."""

    incoming: Sequence[Array]
    position: int = 0
    outgoing: list[Array] = field(default_factory=list)

    def take(self, where: str) -> Array:
        """The next vector. Raises InputError when none is left."""
        if self.position == len(self.incoming):
            raise InputError(
                f"{where}: expected another vector in the network queue, found that all "
                f"{self.position} have been read; the input hints say how many there are"
            )
        self.position += 1
        return self.incoming[self.position - 1]
