"""Matrix products of real graphs: Gemm, MatMul, MatMulInteger."""

from __future__ import annotations

import numpy as np

from samebits.ir.ops import Array, Attributes, Type, broadcast
from samebits.ir.real import define as real
from samebits.ir.real.define import Inputs, define, number
from samebits.ir.real.functions import total
from samebits.ir.traits import Trait

EIGHT_BITS = ("int8", "uint8")


def matmul_shape(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of numpy's matmul; ValueError if the operands do not fit."""
    if not a or not b:
        raise ValueError(f"expected operands of at least one axis, found {list(a)} and {list(b)}")
    inner = b[-2] if len(b) > 1 else b[0]
    if a[-1] != inner:
        raise ValueError(f"expected {a[-1]} rows in the second operand, found {inner}")
    rows = a[-2:-1] if len(a) > 1 else ()
    columns = b[-1:] if len(b) > 1 else ()
    return (*broadcast(a[:-2], b[:-2]), *rows, *columns)


def _infer_matmul(values: Inputs, attributes: Attributes) -> list[Type]:
    kind = real.check_same_type(values, real.NUMBERS)
    return [(kind, matmul_shape(values[0].shape, values[1].shape))]


def product(a: Array, b: Array, samples: int = 1) -> Array:
    """numpy's matmul; integers and Fractions exactly, binary64 as `bilinear` has it, but for one
    row and a matrix: there its products are rounded and added by `total`, in a third of the time.

    samples: as `bilinear` has it
    """
    if a.dtype.kind == b.dtype.kind == "f" and a.shape[:-1] in ((), (1,)) and b.ndim == 2:
        return total(a.reshape(-1, 1) * b, (0,)).reshape(*a.shape[:-1], b.shape[1])
    columns = b.ndim - 1 if b.ndim == 2 else None
    return real.bilinear(np.matmul, a, b, columns, (-1,), a.shape[-1], samples)


def _matmul(arrays: Inputs, attributes: Attributes) -> list[Array]:
    a, b = arrays
    result = product(a, b)
    return [result.astype(a.dtype) if a.dtype.kind in "iu" else result]


def _infer_gemm(values: Inputs, attributes: Attributes) -> list[Type]:
    kind = real.check_same_type(values, real.FLOATS)
    a, b, c = values
    if len(a.shape) != 2 or len(b.shape) != 2:
        raise ValueError(f"expected two matrices, found {list(a.shape)} and {list(b.shape)}")
    rows = a.shape[1] if attributes["transA"] else a.shape[0]
    inner = a.shape[0] if attributes["transA"] else a.shape[1]
    columns, other = b.shape if attributes["transB"] else b.shape[::-1]
    if inner != other:
        raise ValueError(f"expected {inner} to be summed over in b, found {other}")
    if c is not None and broadcast(c.shape, (rows, columns)) != (rows, columns):
        raise ValueError(f"expected c to broadcast to [{rows}, {columns}], found {list(c.shape)}")
    return [(kind, (rows, columns))]


def _gemm(arrays: Inputs, attributes: Attributes) -> list[Array]:
    a, b, c = arrays
    a = a.T if attributes["transA"] else a
    b = b.T if attributes["transB"] else b
    result = product(a, b)
    if attributes["alpha"] != 1.0:
        result = result * number(attributes["alpha"], result)
    if c is not None:
        result = result + (
            c if attributes["beta"] == 1.0 else c * number(attributes["beta"], result)
        )
    return [result]


def _infer_matmul_integer(values: Inputs, attributes: Attributes) -> list[Type]:
    """int32 [..., rows, columns] from 8-bit operands. Zero points have the type of their operand:
    one, or one for each row of a, for each column of b."""
    a, b, a_zero, b_zero = values
    for operand, zero, what in ((a, a_zero, "a_zero"), (b, b_zero, "b_zero")):
        kind = real.check_type(operand, EIGHT_BITS)
        if zero is not None:
            real.check_type(zero, (kind,), what)
    shape = matmul_shape(a.shape, b.shape)
    for zero, operand, axis in ((a_zero, a, -2), (b_zero, b, -1)):
        if zero is None or zero.shape in ((), (1,)):
            continue
        if len(operand.shape) < 2 or zero.shape != (operand.shape[axis],):
            raise ValueError(
                f"expected a zero point of one or of {list(operand.shape)[axis:][:1]} numbers, "
                f"found {list(zero.shape)}"
            )
    return [("int32", shape)]


def _matmul_integer(arrays: Inputs, attributes: Attributes) -> list[Array]:
    a, b, a_zero, b_zero = arrays
    a, b = a.astype(np.int64), b.astype(np.int64)
    if a_zero is not None:
        a_zero = a_zero.astype(np.int64)
        a = a - (a_zero[:, None] if a_zero.size > 1 else a_zero.reshape(()))
    if b_zero is not None:
        b = b - b_zero.astype(np.int64).reshape(-1 if b_zero.size > 1 else ())
    return [product(a, b)]


define("MatMul", 2, {}, _infer_matmul, _matmul, Trait.PRODUCT)
define(
    "Gemm",
    (2, 3),
    {"alpha": 1.0, "beta": 1.0, "transA": 0, "transB": 0},
    _infer_gemm,
    _gemm,
    Trait.WEIGHTED,
)
_CODES = (Trait.PRODUCT, Trait.QUANTIZES)
define("MatMulInteger", (2, 4), {}, _infer_matmul_integer, _matmul_integer, *_CODES)
