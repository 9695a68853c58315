"""Real operators beyond the quantizable set: indexing, sorting, running sums, bits, Einsum.

They are imported and interpreted; lowering has a rule for TensorScatter alone, which writes caches.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from samebits.ir.ops import Array, Attributes, Type, check_written, elements, written
from samebits.ir.real import define as real
from samebits.ir.real.define import Inputs, broadcasting, counted_from_zero, define
from samebits.ir.real.minifloat import stored
from samebits.ir.traits import Trait

INDICES = ("int32", "int64")
EINSUM_MAX = 2**32  # products of one Einsum
Ints = tuple[int, ...]
_BITS = broadcasting(real.INTEGERS)


# --- point-wise -----------------------------------------------------------------------------


def _is_inf(arrays: Inputs, attributes: Attributes) -> list[Array]:
    x = arrays[0]
    negative = (x == -np.inf) & bool(attributes["detect_negative"])
    return [np.asarray(negative | ((x == np.inf) & bool(attributes["detect_positive"])))]


def _infer_shift(values: Inputs, attributes: Attributes) -> list[Type]:
    real.choice(attributes, "direction", ("LEFT", "RIGHT"))
    return _BITS(values, attributes)


def _shift(arrays: Inputs, attributes: Attributes) -> list[Array]:
    """Arithmetic; a negative amount, or one beyond the width, leaves the sign of a right shift."""
    x, y = np.broadcast_arrays(arrays[0], arrays[1])
    left = attributes["direction"] == "LEFT"
    inside = (y >= 0) & (y < x.dtype.itemsize * 8)
    amount = np.where(inside, y, 0).astype(x.dtype)
    shifted = np.left_shift(x, amount) if left else np.right_shift(x, amount)
    fill = np.where((x < 0) & (not left), -1, 0).astype(x.dtype)
    return [np.where(inside, shifted, fill)]


def _infer_bit_cast(values: Inputs, attributes: Attributes) -> list[Type]:
    kind = real.check_type(values[0], _BYTES)
    real.choice(attributes, "source", (kind,))
    to = real.choice(attributes, "to", _BYTES)
    if np.dtype(kind).itemsize != np.dtype(to).itemsize:
        raise ValueError(f"expected a type of the width of {kind}, found {to}")
    return [(to, values[0].shape)]


def _bit_cast(arrays: Inputs, attributes: Attributes) -> list[Array]:
    """The bits of each element as an element of another type; a real number is rounded to its own
    type first."""
    x, to = arrays[0], attributes["to"]
    held = stored(x, attributes["source"]) if attributes["source"] in real.REALS else x
    found = np.ascontiguousarray(held).view("uint8" if to == "bool" else to).reshape(x.shape)
    return [found != 0 if to == "bool" else found]


_BYTES = tuple(kind for kind in (*real.REALS, *real.INTEGERS, "bool") if kind != "float4_e2m1fn")
_DECIDES = (Trait.POINTWISE, Trait.DECISION)
_FLAGS = broadcasting(real.FLOATS, "bool")
_SIGNS = {"detect_negative": 1, "detect_positive": 1}
define("IsNaN", 1, {}, _FLAGS, lambda a, _: [np.isnan(a[0])], *_DECIDES, rational=False)
define("IsInf", 1, _SIGNS, _FLAGS, _is_inf, *_DECIDES, rational=False)
_SOURCES = real.attributes_of("source", "to")
define("BitCast", 1, _SOURCES, _infer_bit_cast, _bit_cast, Trait.POINTWISE, rational=False)
define("BitwiseAnd", 2, {}, _BITS, lambda a, _: [np.bitwise_and(*a)], Trait.POINTWISE)
define("BitwiseOr", 2, {}, _BITS, lambda a, _: [np.bitwise_or(*a)], Trait.POINTWISE)
define("BitwiseXor", 2, {}, _BITS, lambda a, _: [np.bitwise_xor(*a)], Trait.POINTWISE)
define("BitwiseNot", 1, {}, _BITS, lambda a, _: [np.invert(a[0])], Trait.POINTWISE)
define("BitShift", 2, real.attributes_of("direction"), _infer_shift, _shift, Trait.POINTWISE)


# --- running sums ---------------------------------------------------------------------------


def _infer_cumulative(values: Inputs, attributes: Attributes) -> list[Type]:
    real.check_axis(attributes["axis"], len(values[0].shape))
    return [(real.check_type(values[0], real.NUMBERS), values[0].shape)]


def _cumulative(function: Any, neutral: int) -> Callable[[Inputs, Attributes], list[Array]]:
    def meaning(arrays: Inputs, attributes: Attributes) -> list[Array]:
        x, axis = arrays[0], attributes["axis"]
        x = np.flip(x, axis) if attributes["reverse"] else x
        if attributes["exclusive"]:
            first = np.full_like(np.take(x, [0], axis=axis) if x.size else x, neutral)
            x = np.concatenate([first, np.delete(x, -1, axis=axis)], axis=axis) if x.size else x
        y = function(x, axis=axis, dtype=x.dtype)
        return [np.flip(y, axis) if attributes["reverse"] else y]

    return meaning


for _name, _running, _neutral in (("CumSum", np.cumsum, 0), ("CumProd", np.cumprod, 1)):
    define(
        _name,
        1,
        real.attributes_of("axis", exclusive=0, reverse=0),
        _infer_cumulative,
        _cumulative(_running, _neutral),
        Trait.ALONG,
    )


# --- indexing -------------------------------------------------------------------------------


def _infer_gather_elements(values: Inputs, attributes: Attributes) -> list[Type]:
    x, indices = values
    kind = real.check_type(x, real.ANY)
    real.check_type(indices, INDICES, "indices")
    _check_beside(x.shape, indices.shape, attributes["axis"])
    return [(kind, indices.shape)]


def _check_beside(shape: Ints, indices: Ints, axis: Any) -> None:
    axis = real.check_axis(axis, len(shape))
    if len(indices) != len(shape) or any(
        m > n for i, (n, m) in enumerate(zip(shape, indices, strict=True)) if i != axis
    ):
        raise ValueError(f"expected indices inside {list(shape)}, found {list(indices)}")


def _places(indices: Array, size: int, axis: int) -> tuple[Array, ...]:
    """The full index of each element that `indices` picks along `axis`."""
    grid: list[Array] = list(np.indices(indices.shape, sparse=True))
    grid[axis] = counted_from_zero(indices, size)
    return tuple(grid)


def _gather_elements(arrays: Inputs, attributes: Attributes) -> list[Array]:
    x, indices = arrays
    axis = attributes["axis"] % x.ndim
    return [x[_places(indices, x.shape[axis], axis)]]


def _infer_gather_nd(values: Inputs, attributes: Attributes) -> list[Type]:
    x, indices = values
    kind = real.check_type(x, real.ANY)
    real.check_type(indices, INDICES, "indices")
    batch = attributes["batch_dims"]
    if not real.is_integer(batch) or not 0 <= batch < len(indices.shape):
        raise ValueError(f"expected batch_dims from 0 below {len(indices.shape)}, found {batch!r}")
    depth = indices.shape[-1]
    if x.shape[:batch] != indices.shape[:batch] or not 1 <= depth <= len(x.shape) - batch:
        raise ValueError(
            f"expected index tuples for {list(x.shape)}, found indices {list(indices.shape)}"
        )
    return [(kind, (*indices.shape[:-1], *x.shape[batch + depth :]))]


def _tuples(indices: Array, shape: Ints) -> tuple[Array, ...]:
    return tuple(counted_from_zero(indices[..., i], shape[i]) for i in range(indices.shape[-1]))


def _gather_nd(arrays: Inputs, attributes: Attributes) -> list[Array]:
    x, indices = arrays
    batch = attributes["batch_dims"]
    inner = indices.shape[batch:-1]
    flat = x.reshape(-1, *x.shape[batch:]) if batch else x[None]
    count = elements(x.shape[:batch])
    index = indices.reshape(count, *indices.shape[batch:])
    rows = np.arange(count).reshape(-1, *[1] * len(inner))
    picked = flat[(rows, *_tuples(index, x.shape[batch:]))]
    return [picked.reshape(*indices.shape[:-1], *x.shape[batch + indices.shape[-1] :])]


_REDUCTIONS = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}


def _placed(x: Array, places: tuple[Array, ...], updates: Array, reduction: str) -> Array:
    result = x.copy()
    if reduction == "none":
        result[places] = updates
    else:
        _REDUCTIONS[reduction].at(result, places, updates)
    return result


def _check_scatter(values: Inputs, attributes: Attributes) -> str:
    x, indices, updates = values
    real.check_type(indices, INDICES, "indices")
    real.choice(attributes, "reduction", ("none", *_REDUCTIONS))
    allowed = real.ANY if attributes["reduction"] == "none" else real.NUMBERS
    return real.check_same_type([x, updates], allowed)


def _infer_scatter_elements(values: Inputs, attributes: Attributes) -> list[Type]:
    kind = _check_scatter(values, attributes)
    x, indices, updates = values
    _check_beside(x.shape, indices.shape, attributes["axis"])
    if updates.shape != indices.shape:
        raise ValueError(f"expected updates of {list(indices.shape)}, found {list(updates.shape)}")
    return [(kind, x.shape)]


def _scatter_elements(arrays: Inputs, attributes: Attributes) -> list[Array]:
    x, indices, updates = arrays
    axis = attributes["axis"] % x.ndim
    places = _places(indices, x.shape[axis], axis)
    return [_placed(x, places, updates, attributes["reduction"])]


def _infer_scatter_nd(values: Inputs, attributes: Attributes) -> list[Type]:
    kind = _check_scatter(values, attributes)
    x, indices, updates = values
    if not indices.shape or not 1 <= indices.shape[-1] <= len(x.shape):
        raise ValueError(
            f"expected index tuples for {list(x.shape)}, found indices {list(indices.shape)}"
        )
    expected = (*indices.shape[:-1], *x.shape[indices.shape[-1] :])
    if updates.shape != expected:
        raise ValueError(f"expected updates of {list(expected)}, found {list(updates.shape)}")
    return [(kind, x.shape)]


def _scatter_nd(arrays: Inputs, attributes: Attributes) -> list[Array]:
    x, indices, updates = arrays
    return [_placed(x, _tuples(indices, x.shape), updates, attributes["reduction"])]


_PICKS = (Trait.UNROUNDED, Trait.INDEXED)
define("GatherElements", 2, {"axis": 0}, _infer_gather_elements, _gather_elements, *_PICKS)
define("GatherND", 2, {"batch_dims": 0}, _infer_gather_nd, _gather_nd, *_PICKS)
define(
    "ScatterElements",
    3,
    {"axis": 0, "reduction": "none"},
    _infer_scatter_elements,
    _scatter_elements,
)
define("ScatterND", 3, {"reduction": "none"}, _infer_scatter_nd, _scatter_nd)


def _infer_tensor_scatter(values: Inputs, attributes: Attributes) -> list[Type]:
    past, update, starts = values
    kind = real.check_same_type([past, update], real.ANY)
    real.check_type(starts, INDICES, "write indices")
    real.choice(attributes, "mode", ("linear", "circular"))
    axis = real.check_axis(attributes["axis"], len(past.shape)) % len(past.shape)
    check_written(past.shape, update.shape, starts.shape, axis)
    return [(kind, past.shape)]


def _tensor_scatter(arrays: Inputs, attributes: Attributes) -> list[Array]:
    past, update, starts = arrays
    axis = attributes["axis"] % past.ndim
    if attributes["mode"] == "linear":
        check_starts(starts, past.shape[axis] - update.shape[axis])
    return [written(past, update, starts, axis)]


def check_starts(starts: Array, last: int) -> None:
    """ValueError for write indices, of no ring, outside 0 .. last."""
    outside = (starts < 0) | (starts > last)
    if outside.any():
        raise ValueError(
            f"expected write indices from 0 to {last}, found {int(starts[outside][0])}"
        )


define(
    "TensorScatter",
    3,
    {"axis": -2, "mode": "linear"},
    _infer_tensor_scatter,
    _tensor_scatter,
    Trait.MOVEMENT,
    Trait.INDEXED,
)


def _infer_top_k(values: Inputs, attributes: Attributes) -> list[Type]:
    x = values[0]
    kind = real.check_type(x, real.NUMBERS)
    axis = real.check_axis(attributes["axis"], len(x.shape))
    k = attributes["k"]
    if not real.is_integer(k) or not 0 <= k <= x.shape[axis]:
        raise ValueError(f"expected k from 0 to {x.shape[axis]}, found {k!r}")
    shape = (*x.shape[:axis], k, *x.shape[axis + 1 :])
    return [(kind, shape), ("int64", shape)]


def _top_k(arrays: Inputs, attributes: Attributes) -> list[Array]:
    """Sorted; of equal elements the one of lower index first."""
    x, axis, k = arrays[0], attributes["axis"], attributes["k"]
    if attributes["largest"]:
        # Ascending order of the reversed array, read backwards: ties keep their order.
        backwards = np.argsort(np.flip(x, axis), axis=axis, kind="stable")
        order = np.flip(x.shape[axis] - 1 - backwards, axis)
    else:
        order = np.argsort(x, axis=axis, kind="stable")
    index = np.take(order, np.arange(k), axis=axis).astype(np.int64)
    return [np.take_along_axis(x, index, axis=axis), index]


_TOP_K = real.attributes_of("k", axis=-1, largest=1)
_TOP = (Trait.ALONG, Trait.SCORING, Trait.SELECTION)
define("TopK", 1, _TOP_K, _infer_top_k, _top_k, *_TOP)


# --- matrices -------------------------------------------------------------------------------


def _infer_det(values: Inputs, attributes: Attributes) -> list[Type]:
    shape = values[0].shape
    if len(shape) < 2 or shape[-1] != shape[-2]:
        raise ValueError(f"expected square matrices, found {list(shape)}")
    return [(real.check_type(values[0], real.FLOATS), shape[:-2])]


def einsum_terms(equation: str, ranks: list[int]) -> tuple[list[str], str]:
    """The letters of each operand and of the result; "..." becomes capital letters not in use."""
    text = equation.replace(" ", "")
    left, arrow, right = text.partition("->")
    parts = left.split(",")
    plain = (left + right).replace("...", "").replace(",", "")
    if len(parts) != len(ranks) or not (plain.isascii() and (plain.isalpha() or not plain)):
        raise ValueError(f"expected an equation of {len(ranks)} terms, found {equation!r}")
    free = [chr(code) for code in (*range(65, 91), *range(97, 123)) if chr(code) not in plain]
    missing = [rank - len(part.replace("...", "")) for part, rank in zip(parts, ranks, strict=True)]
    most = max((n for n, part in zip(missing, parts, strict=True) if "..." in part), default=0)
    if any(n < 0 or (n and "..." not in p) for n, p in zip(missing, parts, strict=True)):
        raise ValueError(f"expected a letter for each axis, found {equation!r}")
    if most > len(free) or any(part.count("...") > 1 for part in (*parts, right)):
        raise ValueError(f"expected fewer axes, found {equation!r}")
    dots = "".join(free[:most])
    terms = [
        part.replace("...", dots[most - n :] if n else "")
        for part, n in zip(parts, missing, strict=True)
    ]
    if not arrow:
        once = (letter for letter in sorted(set(plain)) if left.count(letter) == 1)
        right = ("..." if most else "") + "".join(once)
    result = right.replace("...", dots)
    if len(set(result)) != len(result) or set(result) - set("".join(terms)):
        raise ValueError(f"expected a result of letters of the terms, found {equation!r}")
    return terms, result


def _infer_einsum(values: Inputs, attributes: Attributes) -> list[Type]:
    kind = real.check_same_type(values, real.NUMBERS)
    if not isinstance(attributes["equation"], str):
        raise ValueError("expected an equation")
    terms, result = einsum_terms(attributes["equation"], [len(value.shape) for value in values])
    sizes: dict[str, int] = {}
    for term, value in zip(terms, values, strict=True):
        for letter, size in zip(term, value.shape, strict=True):
            if sizes.setdefault(letter, size) == 1:
                sizes[letter] = size
            if size not in (1, sizes[letter]):
                raise ValueError(f"expected one size of {letter}, found {sizes[letter]} and {size}")
    if math.prod(sizes.values()) > EINSUM_MAX:
        raise ValueError(f"expected at most {EINSUM_MAX} products, found {sizes}")
    return [(kind, tuple(sizes[letter] for letter in result))]


def _einsum(arrays: Inputs, attributes: Attributes) -> list[Array]:
    terms, result = einsum_terms(attributes["equation"], [array.ndim for array in arrays])
    return [np.asarray(np.einsum(f"{','.join(terms)}->{result}", *arrays))]


define("Det", 1, {}, _infer_det, lambda a, _: [np.linalg.det(a[0])], rational=False)
define("Einsum", (1, None), real.attributes_of("equation"), _infer_einsum, _einsum, Trait.HEAVY)
