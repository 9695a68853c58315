"""Whole numbers and truth values that a loop computes of known ones: counters, places and sizes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod

import numpy as np

from samebits.errors import InputError
from samebits.tflite.file import Array, LiteOperator, Tensor
from samebits.tflite.reader import ADVICE

LONGEST = 16  # numbers of a tensor that is computed here
WHOLE = ("int32", "int64")
Function = Callable[[Array, Array], Array]
_ARITHMETIC: Mapping[str, Function] = {
    "ADD": np.add,
    "SUB": np.subtract,
    "MUL": np.multiply,
    "MINIMUM": np.minimum,
    "MAXIMUM": np.maximum,
}
_COMPARISONS: Mapping[str, Function] = {
    "LESS": np.less,
    "LESS_EQUAL": np.less_equal,
    "GREATER": np.greater,
    "GREATER_EQUAL": np.greater_equal,
    "EQUAL": np.equal,
    "NOT_EQUAL": np.not_equal,
}
_LOGIC: Mapping[str, Function] = {"LOGICAL_AND": np.logical_and, "LOGICAL_OR": np.logical_or}
JOINED_MOST = 8  # vectors of numbers; a shape has no more


def computed(inner: LiteOperator, given: Sequence[Tensor], to: Tensor) -> Array | None:
    """The result of an operator on known numbers; None for anything else.

    Raises InputError where their shapes, or that of the result, do not agree.
    """
    plain = not any(tensor.quantization for tensor in (*given, to))
    if not plain or inner.options.get("activation", 0):
        return None
    arrays = [tensor.array for tensor in given if tensor.array is not None]
    if not arrays or len(arrays) < len(given) or max(array.size for array in arrays) > LONGEST:
        return None
    kind = given[0].dtype
    if inner.op in ("RESHAPE", "CONCATENATION"):
        return _moved(inner, arrays, to) if kind in WHOLE and kind == to.dtype else None
    function, result = _function(inner.op, kind)
    if function is None or len(given) != 2 or (given[1].dtype, to.dtype) != (kind, result):
        return None
    first, second = given
    if first.shape != second.shape and 1 not in (arrays[0].size, arrays[1].size):
        raise InputError(
            f"expected {first} and {second} of one shape, found {list(first.shape)} and "
            f"{list(second.shape)}; {ADVICE}"
        )
    with np.errstate(over="ignore"):  # numbers wrap, as in runtimes
        return _of_shape(np.asarray(function(*arrays)), to)


def _moved(inner: LiteOperator, arrays: Sequence[Array], to: Tensor) -> Array | None:
    """Numbers in another shape, or vectors of numbers joined."""
    first = arrays[0]
    if inner.op == "RESHAPE":
        wanted = arrays[1].reshape(-1).tolist() if len(arrays) == 2 else list(to.shape)
        fits = [-1 if size == -1 else found for size, found in zip(wanted, to.shape, strict=False)]
        if fits != wanted or len(wanted) != len(to.shape) or first.size != prod(to.shape):
            raise InputError(
                f"expected {to} of shape {wanted}, of {first.size} numbers, found "
                f"{list(to.shape)}; {ADVICE}"
            )
        return first.reshape(to.shape)
    same = all(array.ndim == 1 and array.dtype == first.dtype for array in arrays)
    if not same or len(arrays) > JOINED_MOST or inner.options["axis"] not in (0, -1):
        return None
    return _of_shape(np.concatenate(arrays), to)


def _of_shape(found: Array, to: Tensor) -> Array:
    if found.shape != to.shape:
        raise InputError(
            f"expected {to} of shape {list(found.shape)}, found {list(to.shape)}; {ADVICE}"
        )
    return found


def _function(op: str, kind: str) -> tuple[Function | None, str]:
    """Look up an operator on known numbers of a type, and the type of its result."""
    if kind in WHOLE and op in _ARITHMETIC:
        return _ARITHMETIC[op], kind
    table = _LOGIC if kind == "bool" else _COMPARISONS if kind in WHOLE else {}
    return table.get(op), "bool"
