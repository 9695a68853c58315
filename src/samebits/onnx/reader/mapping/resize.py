"""Resize and Upsample: nearest moves elements, other modes interpolate."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from samebits.errors import InputError, UnsupportedError
from samebits.ir.real.define import FLOATS
from samebits.ir.real.resize import CROP, MODES, weights_of
from samebits.ir.real.shape import COORDINATES
from samebits.onnx.reader.node import OnnxNode, Result, onnx_op
from samebits.onnx.reader.tensors import check_shape

_ROUNDINGS = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")
_POLICIES = ("stretch", "not_larger", "not_smaller")


@dataclass(frozen=True)
class _Plan:
    """Sizes and scales of every axis of the input, and how to interpolate."""

    sizes: tuple[int, ...]
    scales: tuple[Fraction, ...]
    mode: str
    coordinates: str
    nearest: str
    cubic: float
    exclude_outside: bool
    antialias: bool
    roi: tuple[tuple[float, float], ...]


@onnx_op("Resize", "Upsample")
def _resize(node: OnnxNode) -> Result:
    """An image of other sizes. With tf_crop_and_resize, outputs outside the region of interest
    become extrapolation_value."""
    plan = _plan(node)
    if any(size < 1 for size in (*plan.sizes, *node.shape())):
        raise InputError(f"expected images that are not empty, found {list(node.shape())}")
    if plan.mode == "nearest" and plan.coordinates != CROP:
        return node.out(
            "Resize",
            node.input(0),
            sizes=plan.sizes,
            scales=plan.scales,
            mode="nearest",
            coordinate_transformation_mode=plan.coordinates,
            nearest_mode=plan.nearest,
        )
    return _interpolated(node, plan)


def _interpolated(node: OnnxNode, plan: _Plan) -> Result:
    """An Interpolate; with a region, outputs outside of it are chosen by a constant mask."""
    kind, crops = node.dtype(), plan.coordinates == CROP
    if kind not in FLOATS:
        raise UnsupportedError(f"expected floating point for {plan.mode} Resize, found {kind}")
    attributes: dict[str, Any] = {
        "sizes": plan.sizes,
        "scales": plan.scales,
        "mode": plan.mode,
        "coordinate_transformation_mode": plan.coordinates,
        "nearest_mode": plan.nearest,
        "cubic_coeff_a": plan.cubic,
        "exclude_outside": int(plan.exclude_outside),
        "antialias": int(plan.antialias),
        "roi": tuple(end for side in zip(*plan.roi, strict=True) for end in side)
        if crops
        else None,
    }
    axes = zip(node.shape(), plan.sizes, plan.scales, plan.roi, strict=True)
    for size, out, scale, ends in axes:
        if size != out or scale != 1 or ends != (0, 1):
            node.builder.charge((size + 64) * out)  # 64: the time that each row takes
    outside = np.zeros((1,) * node.rank(), np.bool_)
    for axis, rows in (weights_of(node.shape(), attributes) if crops else {}).items():
        empty = np.array([not row for row in rows])
        outside = outside | empty.reshape([-1 if i == axis else 1 for i in range(node.rank())])
    if not outside.any():
        return node.out("Interpolate", node.input(0), **attributes)
    x = node.emit("Interpolate", node.input(0), **attributes)
    value = np.array(node.float_("extrapolation_value", 0.0), kind)
    return node.out("Where", node.constant(outside), node.constant(value), x)


def _plan(node: OnnxNode) -> _Plan:
    """The attributes and constant inputs of the node, for every axis of the input.

    Upsample, and Resize before opset 11, have scales and a mode alone. Raises InputError for sizes
    or scales that do not fit the input, UnsupportedError for unknown modes.
    """
    old = node.op == "Upsample" or node.opset < 11
    mode = node.string("mode", "nearest", (*MODES, "bilinear") if old else MODES)
    mode = "linear" if mode == "bilinear" else mode
    rank = node.rank()
    if old:
        given = node.floats("scales")
        listed = given if given is not None else _numbers(node, 1, "scales")
        sizes, scales = _from_scales(node, listed, tuple(range(rank)))
        # Before opset 11 positions are i / scale, rounded down.
        whole = ((0.0, 1.0),) * rank
        return _Plan(sizes, scales, mode, "asymmetric", "floor", -0.75, False, False, whole)
    axes = tuple(range(rank))
    if "axes" in node.attributes:
        axes = node.axes(node.ints("axes") or (), rank)
    policy = node.string("keep_aspect_ratio_policy", "stretch", _POLICIES)
    if _filled(node, 3):
        sizes, scales = _from_sizes(node, node.integers(3, "sizes"), axes, policy)
    elif _filled(node, 2):
        sizes, scales = _from_scales(node, _numbers(node, 2, "scales"), axes)
    else:
        raise InputError("expected scales or sizes, found neither")
    coordinates = node.string("coordinate_transformation_mode", "half_pixel", (*COORDINATES, CROP))
    plan = _Plan(
        sizes,
        scales,
        mode,
        coordinates,
        node.string("nearest_mode", "round_prefer_floor", _ROUNDINGS),
        node.float_("cubic_coeff_a", -0.75),
        node.flag("exclude_outside", False),
        node.flag("antialias", False),
        _roi(node, axes) if coordinates == CROP else ((0.0, 1.0),) * rank,
    )
    node.ignore("extrapolation_value")
    return plan


def _filled(node: OnnxNode, index: int) -> bool:
    return node.has(index) and math.prod(node.shape(index)) > 0


def _numbers(node: OnnxNode, index: int, what: str) -> tuple[float, ...]:
    array = node.array(index, what)
    if array.ndim != 1 or array.dtype.kind != "f":
        raise InputError(f"expected a vector of numbers as {what}, found {list(array.shape)}")
    return tuple(float(v) for v in array)


def _from_scales(
    node: OnnxNode, listed: Sequence[float], axes: Sequence[int]
) -> tuple[tuple[int, ...], tuple[Fraction, ...]]:
    if len(listed) != len(axes) or not all(math.isfinite(s) and s > 0 for s in listed):
        raise InputError(f"expected {len(axes)} positive scales, found {list(listed)}")
    scales = [Fraction(1)] * node.rank()
    for axis, scale in zip(axes, listed, strict=True):
        scales[axis] = Fraction(scale)
    sizes = [math.floor(size * scale) for size, scale in zip(node.shape(), scales, strict=True)]
    return check_shape(sizes, "the result of Resize"), tuple(scales)


def _from_sizes(
    node: OnnxNode, listed: Sequence[int], axes: Sequence[int], policy: str
) -> tuple[tuple[int, ...], tuple[Fraction, ...]]:
    """Sizes of the result and exact scales, from wished sizes of some axes.

    policy: not_larger and not_smaller give those axes one scale, the least or greatest of their
    ratios, and sizes rounded from a half up.
    """
    shape = node.shape()
    if len(listed) != len(axes) or any(size < 1 for size in listed) or 0 in shape:
        raise InputError(f"expected {len(axes)} positive sizes, found {list(listed)}")
    sizes = list(check_shape(shape, "the input of Resize"))
    wished = dict(zip(axes, listed, strict=True))
    ratios = {axis: Fraction(size, shape[axis]) for axis, size in wished.items()}
    if policy != "stretch" and ratios:
        one = min(ratios.values()) if policy == "not_larger" else max(ratios.values())
        ratios = dict.fromkeys(ratios, one)
        wished = {axis: math.floor(shape[axis] * one + Fraction(1, 2)) for axis in wished}
    for axis, size in wished.items():
        sizes[axis] = size
    scales = tuple(ratios.get(axis, Fraction(1)) for axis in range(len(shape)))
    return check_shape(sizes, "the result of Resize"), scales


def _roi(node: OnnxNode, axes: Sequence[int]) -> tuple[tuple[float, float], ...]:
    listed = _numbers(node, 1, "roi")
    count = len(axes)
    if len(listed) != 2 * count or not all(map(math.isfinite, listed)):
        raise InputError(f"expected {2 * count} finite numbers as roi, found {list(listed)}")
    roi = [(0.0, 1.0)] * node.rank()
    for index, axis in enumerate(axes):
        roi[axis] = (listed[index], listed[index + count])
    return tuple(roi)
