"""Reductions, argmax and softmax of real graphs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from samebits.ir.ops import Array, Attributes, Type
from samebits.ir.real import define as real
from samebits.ir.real import functions
from samebits.ir.real.define import Inputs, define
from samebits.ir.traits import Trait

Reduction = Callable[[Array, tuple[int, ...]], Array]  # keeps the reduced axes, of size 1


# --- reductions -----------------------------------------------------------------------------


def _reduced_shape(shape: tuple[int, ...], axes: tuple[int, ...], keepdims: Any) -> tuple[int, ...]:
    kept = (1 if i in axes else n for i, n in enumerate(shape))
    return tuple(n for i, n in enumerate(kept) if keepdims or i not in axes)


def _reduction(
    name: str,
    function: Reduction,
    *traits: Trait,
    rational: bool = True,
    empty: bool = True,
    allowed: tuple[str, ...] = real.NUMBERS,
) -> None:
    """A reduction over `axes`, exactly those given (none: element by element).

    empty: it has a value over no elements
    allowed: types of the operand
    """

    def infer(values: Inputs, attributes: Attributes) -> list[Type]:
        x = values[0]
        kind = real.check_type(x, allowed)
        axes = real.check_axes(attributes["axes"], len(x.shape))
        if not empty and any(x.shape[axis] == 0 for axis in axes):
            raise ValueError(f"expected axes with elements to reduce, found {list(x.shape)}")
        return [(kind, _reduced_shape(x.shape, axes, attributes["keepdims"]))]

    def meaning(arrays: Inputs, attributes: Attributes) -> list[Array]:
        x = arrays[0]
        axes = real.check_axes(attributes["axes"], x.ndim)
        result = np.asarray(function(x, axes))
        shape = _reduced_shape(x.shape, axes, attributes["keepdims"])
        if x.dtype.kind in "iub":
            result = np.trunc(result).astype(x.dtype)
        return [result.reshape(shape)]

    attributes = real.attributes_of("axes", keepdims=1)
    define(name, 1, attributes, infer, meaning, Trait.REDUCES, *traits, rational=rational)


def _log_sum_exp(x: Array, axes: tuple[int, ...]) -> Array:
    largest = np.max(x, axis=axes, keepdims=True, initial=-np.inf)
    largest = np.where(np.isfinite(largest), largest, 0.0)
    return functions.log(functions.total(functions.exp(x - largest), axes)) + largest


def _extreme(best: Callable[..., Array], sign: float) -> Reduction:
    def function(x: Array, axes: tuple[int, ...]) -> Array:
        if all(x.shape[axis] for axis in axes):
            return best(x, axis=axes, keepdims=True)
        if x.dtype == object:
            raise ValueError("expected elements to reduce in exact mode, found none")
        low, high = (-np.inf, np.inf) if x.dtype.kind == "f" else real.code_range(x.dtype.name)
        initial = x.dtype.type(low if sign < 0 else high)
        return best(x, axis=axes, keepdims=True, initial=initial)

    return function


_reduction("ReduceSum", functions.total, Trait.ACCUMULATES)
_reduction("ReduceMean", functions.mean, Trait.AVERAGE, empty=False)
_ORDERED = (*real.NUMBERS, "bool")
_reduction("ReduceMax", _extreme(np.max, -1.0), Trait.SELECTION, allowed=_ORDERED)
_reduction("ReduceMin", _extreme(np.min, 1.0), Trait.SELECTION, allowed=_ORDERED)
_reduction("ReduceProd", lambda x, axes: np.asarray(np.prod(x, axis=axes, keepdims=True)))
_reduction("ReduceL1", lambda x, axes: functions.total(np.abs(x), axes))
_reduction("ReduceSumSquare", lambda x, axes: functions.total(x * x, axes))
_reduction("ReduceL2", lambda x, axes: np.sqrt(functions.total(x * x, axes)), rational=False)
_reduction("ReduceLogSum", lambda x, axes: functions.log(functions.total(x, axes)), rational=False)
_reduction("ReduceLogSumExp", _log_sum_exp, rational=False)


def _infer_arg(values: Inputs, attributes: Attributes) -> list[Type]:
    x = values[0]
    real.check_type(x, real.NUMBERS)
    axis = real.check_axis(attributes["axis"], len(x.shape))
    if x.shape[axis] == 0:
        raise ValueError(f"expected elements along axis {axis}, found {list(x.shape)}")
    return [("int64", _reduced_shape(x.shape, (axis,), attributes["keepdims"]))]


def _arg(best: Callable[..., Array]) -> Callable[[Inputs, Attributes], list[Array]]:
    def meaning(arrays: Inputs, attributes: Attributes) -> list[Array]:
        x, axis = arrays[0], attributes["axis"] % arrays[0].ndim
        if attributes["select_last_index"]:
            index = x.shape[axis] - 1 - best(np.flip(x, axis), axis=axis)
        else:
            index = best(x, axis=axis)
        index = np.asarray(index, dtype=np.int64)
        return [np.expand_dims(index, axis) if attributes["keepdims"] else index]

    return meaning


_ARG = {"axis": 0, "keepdims": 1, "select_last_index": 0}
for _name, _best in (("ArgMax", np.argmax), ("ArgMin", np.argmin)):
    define(_name, 1, _ARG, _infer_arg, _arg(_best), Trait.DECISION, Trait.SCORING)


# --- softmax --------------------------------------------------------------------------------


def _infer_softmax(values: Inputs, attributes: Attributes) -> list[Type]:
    x = values[0]
    axis = real.check_axis(attributes["axis"], len(x.shape))
    if x.shape[axis] == 0:
        raise ValueError(f"expected elements along axis {axis}, found {list(x.shape)}")
    return [(real.check_type(x, real.FLOATS), x.shape)]


def _softmax(arrays: Inputs, attributes: Attributes) -> list[Array]:
    x, axis = arrays[0], attributes["axis"]
    powers = functions.exp(x - x.max(axis=axis, keepdims=True))
    return [powers / functions.total(powers, (axis,))]


def _log_softmax(arrays: Inputs, attributes: Attributes) -> list[Array]:
    x, axis = arrays[0], attributes["axis"]
    below = x - x.max(axis=axis, keepdims=True)
    return [below - functions.log(functions.total(functions.exp(below), (axis,)))]


def _hardmax(arrays: Inputs, attributes: Attributes) -> list[Array]:
    x, axis = arrays[0], attributes["axis"]
    one = np.zeros(x.shape, dtype=np.int64)
    np.put_along_axis(one, np.expand_dims(np.argmax(x, axis=axis), axis), 1, axis=axis)
    return [real.rationals(one) if x.dtype == object else one.astype(np.float64)]


_SCORES = (Trait.ALONG, Trait.SCORING)
define("Softmax", 1, {"axis": -1}, _infer_softmax, _softmax, *_SCORES, rational=False)
define("LogSoftmax", 1, {"axis": -1}, _infer_softmax, _log_softmax, *_SCORES, rational=False)
define("Hardmax", 1, {"axis": -1}, _infer_softmax, _hardmax, *_SCORES)
