"""Reductions, argmax, softmax and normalisations of real graphs."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np

from samebits.ir.ops import Array, Attributes, Type, broadcast
from samebits.ir.real import define as real
from samebits.ir.real import functions
from samebits.ir.real.define import Inputs, define, float32
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


def _mean(x: Array, axes: tuple[int, ...]) -> Array:
    return functions.total(x, axes) / math.prod(x.shape[axis] for axis in axes)


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
_reduction("ReduceMean", _mean, Trait.AVERAGE, empty=False)
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


# --- normalisation --------------------------------------------------------------------------


def _check_epsilon(attributes: Attributes) -> None:
    epsilon = attributes["epsilon"]
    if isinstance(epsilon, bool) or not isinstance(epsilon, (int, float, Fraction)) or epsilon < 0:
        raise ValueError(f"expected epsilon of at least 0, found {epsilon!r}")


def _check_channels(values: Inputs, names: tuple[str, ...]) -> None:
    x, *parameters = values
    if len(x.shape) < 2:
        raise ValueError(f"expected x of [N, C, ...], found {list(x.shape)}")
    for name, parameter in zip(names, parameters, strict=True):
        if parameter is not None and parameter.shape != (x.shape[1],):
            raise ValueError(f"expected {name} of [{x.shape[1]}], found {list(parameter.shape)}")


def _infer_batch_norm(values: Inputs, attributes: Attributes) -> list[Type]:
    _check_epsilon(attributes)
    _check_channels(values, ("scale", "b", "mean", "var"))
    return [(real.check_same_type(values, real.FLOATS), values[0].shape)]


def _per_channel(parameter: Array, x: Array) -> Array:
    return parameter.reshape(-1, *[1] * (x.ndim - 2))


def _batch_norm(arrays: Inputs, attributes: Attributes) -> list[Array]:
    x = arrays[0]
    scale, b, mean, var = (_per_channel(array, x) for array in arrays[1:])
    return [(x - mean) / np.sqrt(var + attributes["epsilon"]) * scale + b]


def _normalised(x: Array, axes: tuple[int, ...], epsilon: float) -> Array:
    centred = x - _mean(x, axes)
    return centred / np.sqrt(_mean(centred * centred, axes) + epsilon)


def _infer_layer_norm(values: Inputs, attributes: Attributes) -> list[Type]:
    _check_epsilon(attributes)
    kind = real.check_same_type(values, real.FLOATS)
    x, *parameters = values
    axis = real.check_axis(attributes["axis"], len(x.shape))
    if 0 in x.shape[axis:]:
        raise ValueError(f"expected elements from axis {axis} on, found {list(x.shape)}")
    for parameter in parameters:
        if parameter is not None and broadcast(parameter.shape, x.shape) != x.shape:
            raise ValueError(
                f"expected parameters that broadcast to {list(x.shape)}, "
                f"found {list(parameter.shape)}"
            )
    return [(kind, x.shape)]


def _layer_norm(arrays: Inputs, attributes: Attributes) -> list[Array]:
    x, scale, b = arrays
    axes = tuple(range(attributes["axis"] % x.ndim, x.ndim))
    y = _normalised(x, axes, attributes["epsilon"]) * scale
    return [y if b is None else y + b]


def _infer_instance_norm(values: Inputs, attributes: Attributes) -> list[Type]:
    _check_epsilon(attributes)
    _check_channels(values, ("scale", "b"))
    x = values[0]
    if len(x.shape) < 3 or 0 in x.shape[2:]:
        raise ValueError(f"expected x of [N, C, spatial...], found {list(x.shape)}")
    return [(real.check_same_type(values, real.FLOATS), x.shape)]


def _instance_norm(arrays: Inputs, attributes: Attributes) -> list[Array]:
    x, scale, b = arrays
    y = _normalised(x, tuple(range(2, x.ndim)), attributes["epsilon"]) * _per_channel(scale, x)
    return [y if b is None else y + _per_channel(b, x)]


_EPSILON = float32(1e-5)
define(
    "BatchNormalization", 5, {"epsilon": _EPSILON}, _infer_batch_norm, _batch_norm, rational=False
)
define(
    "LayerNormalization",
    (2, 3),
    {"axis": -1, "epsilon": _EPSILON},
    _infer_layer_norm,
    _layer_norm,
    Trait.ALONG,
    rational=False,
)
define(
    "InstanceNormalization",
    (2, 3),
    {"epsilon": _EPSILON},
    _infer_instance_norm,
    _instance_norm,
    rational=False,
)
