"""Normalisations of real graphs: by statistics that are stored, or those of the input."""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from samebits.ir.ops import Array, Attributes, Type, broadcast
from samebits.ir.real import define as real
from samebits.ir.real.define import Inputs, define, float32
from samebits.ir.real.functions import mean
from samebits.ir.traits import Trait


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


def _over_root(x: Array, axes: tuple[int, ...], epsilon: float) -> Array:
    return x / np.sqrt(mean(x * x, axes) + epsilon)


def _normalised(x: Array, axes: tuple[int, ...], epsilon: float) -> Array:
    return _over_root(x - mean(x, axes), axes, epsilon)


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
    y = _normalised(x, _behind(x, attributes), attributes["epsilon"]) * scale
    return [y if b is None else y + b]


def _rms_norm(arrays: Inputs, attributes: Attributes) -> list[Array]:
    x, scale = arrays
    return [_over_root(x, _behind(x, attributes), attributes["epsilon"]) * scale]


def _behind(x: Array, attributes: Attributes) -> tuple[int, ...]:
    return tuple(range(attributes["axis"] % x.ndim, x.ndim))


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


def _infer_group_norm(values: Inputs, attributes: Attributes) -> list[Type]:
    _check_epsilon(attributes)
    _check_channels(values, ("scale", "b"))
    x, groups = values[0], attributes["num_groups"]
    if type(groups) is not int or groups < 1 or x.shape[1] % groups or 0 in x.shape[1:]:
        raise ValueError(
            f"expected x of [N, C, ...] with channels in {groups} groups, found {list(x.shape)}"
        )
    return [(real.check_same_type(values, real.FLOATS), x.shape)]


def _group_norm(arrays: Inputs, attributes: Attributes) -> list[Array]:
    x, scale, b = arrays
    vectors = x.reshape(x.shape[0], attributes["num_groups"], -1)
    y = _normalised(vectors, (2,), attributes["epsilon"]).reshape(x.shape)
    return [y * _per_channel(scale, x) + _per_channel(b, x)]


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
    Trait.TRAILING,
    rational=False,
)
define(
    "RMSNormalization",
    2,
    {"axis": -1, "epsilon": _EPSILON},
    _infer_layer_norm,
    _rms_norm,
    Trait.TRAILING,
    rational=False,
)
define(
    "GroupNormalization",
    3,
    real.attributes_of("num_groups", epsilon=_EPSILON),
    _infer_group_norm,
    _group_norm,
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
