"""Resize and Upsample: nearest as an operator, other interpolations as matrix products.

Interpolation is linear in the image and separable, so along each axis it is a product with a
constant matrix [out, in]. The formulas are those of ONNX Resize.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from samebits.errors import InputError, UnsupportedError
from samebits.onnx.reader.node import Array, OnnxNode, Result, onnx_op
from samebits.onnx.reader.tensors import check_shape

_MODES = ("nearest", "linear", "cubic")
_COORDINATES = (
    "half_pixel",
    "half_pixel_symmetric",
    "pytorch_half_pixel",
    "align_corners",
    "asymmetric",
    "tf_crop_and_resize",
)
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
    """An image of other sizes: nearest as one operator, else products with constant matrices."""
    plan = _plan(node)
    if any(size < 1 for size in (*plan.sizes, *node.shape())):
        raise InputError(f"expected images that are not empty, found {list(node.shape())}")
    if plan.mode == "nearest" and plan.coordinates != "tf_crop_and_resize":
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


def _plan(node: OnnxNode) -> _Plan:
    """The attributes and constant inputs of the node, for every axis of the input.

    Upsample, and Resize before opset 11, have scales and a mode alone. Raises InputError for sizes
    or scales that do not fit the input, UnsupportedError for unknown modes.
    """
    old = node.op == "Upsample" or node.opset < 11
    mode = node.string("mode", "nearest", (*_MODES, "bilinear") if old else _MODES)
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
    coordinates = node.string("coordinate_transformation_mode", "half_pixel", _COORDINATES)
    plan = _Plan(
        sizes,
        scales,
        mode,
        coordinates,
        node.string("nearest_mode", "round_prefer_floor", _ROUNDINGS),
        node.float_("cubic_coeff_a", -0.75),
        node.flag("exclude_outside", False),
        node.flag("antialias", False),
        _roi(node, axes) if coordinates == "tf_crop_and_resize" else ((0.0, 1.0),) * rank,
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


# --- interpolation as matrices ----------------------------------------------------------------


def _interpolated(node: OnnxNode, plan: _Plan) -> Result:
    """A product with a constant matrix [in, out] along each axis that changes.

    With tf_crop_and_resize, outputs outside the region of interest become extrapolation_value.
    """
    kind = node.dtype()
    if not kind.startswith("float"):
        raise UnsupportedError(f"expected floating point for {plan.mode} Resize, found {kind}")
    x, rank = node.input(0), node.rank()
    masks = np.zeros((1,) * rank, np.bool_)
    for axis, (size, out) in enumerate(zip(node.shape(), plan.sizes, strict=True)):
        if size == out and plan.scales[axis] == 1 and plan.roi[axis] == (0.0, 1.0):
            continue
        node.builder.charge((size + 64) * out)  # 64: the time that each row takes
        matrix, outside = _matrix(plan, axis, size)
        if outside.any():
            masks = masks | outside.reshape([out if i == axis else 1 for i in range(rank)])
        weights = node.constant(matrix.T.astype(kind))
        order = [*(i for i in range(rank) if i != axis), axis]
        back = tuple(order.index(i) for i in range(rank))
        if axis != rank - 1:
            x = node.emit("Transpose", x, perm=tuple(order))
        x = node.emit("MatMul", x, weights)
        if axis != rank - 1:
            x = node.emit("Transpose", x, perm=back)
    if masks.any():
        value = np.array(node.float_("extrapolation_value", 0.0), kind)
        return node.out("Where", node.constant(masks), node.constant(value), x)
    return x


def _matrix(plan: _Plan, axis: int, size: int) -> tuple[Array, Array]:
    """Weights [out, in] of one axis, and [out] which outputs lie outside the region of interest.

    Row i holds the weights of the samples near the position that output i stands for; a sample
    beyond an end is the one at that end, unless exclude_outside drops it and rescales the rest.
    """
    out, scale = plan.sizes[axis], float(plan.scales[axis])
    matrix = np.zeros((out, size))
    outside = np.zeros(out, np.bool_)
    for i in range(out):
        x = _source(plan, axis, size, i)
        if plan.coordinates == "tf_crop_and_resize" and not 0 <= x <= size - 1:
            outside[i] = True
            continue
        # The ratio lies in (0, 1]: at a sample it is that sample's right neighbour's place.
        left = math.ceil(x) - 1
        first, weights = _weights(plan, x - left, scale)
        for offset, weight in enumerate(weights):
            index = left + first + offset
            if plan.exclude_outside and not 0 <= index < size:
                continue
            matrix[i, min(max(index, 0), size - 1)] += weight
        total = matrix[i].sum()
        if plan.exclude_outside and total:
            matrix[i] /= total
    return matrix, outside


def _source(plan: _Plan, axis: int, size: int, i: int) -> float:
    """The position in the input that output i stands for; samples lie at 0, 1, ..."""
    scale, out = plan.scales[axis], plan.sizes[axis]
    exact = scale * size
    half = Fraction(1, 2)
    if plan.coordinates == "asymmetric":
        return float(i / scale)
    if plan.coordinates == "align_corners":
        return float(Fraction(i * (size - 1)) / (exact - 1)) if exact != 1 else 0.0
    if plan.coordinates == "tf_crop_and_resize":
        start, end = plan.roi[axis]
        if exact == 1:
            return (end - start) * (size - 1) / 2 + start * (size - 1)
        return i * (end - start) * (size - 1) / float(exact - 1) + start * (size - 1)
    if plan.coordinates == "pytorch_half_pixel" and out == 1:
        return 0.0
    shift = Fraction(0)
    if plan.coordinates == "half_pixel_symmetric":
        shift = Fraction(size, 2) * (1 - out / exact)
    return float(shift + (i + half) / scale - half)


def _weights(plan: _Plan, ratio: float, scale: float) -> tuple[int, list[float]]:
    """Offset of the first sample from the left neighbour, and the weights from there on."""
    if plan.mode == "nearest":
        return 0, _nearest(ratio, plan.nearest)
    reach = 1 if plan.mode == "linear" else 2
    shrink = min(scale, 1.0) if plan.antialias else 1.0
    first = math.floor(-reach / shrink) + 1
    last = 2 - first
    places = [(offset - ratio) * shrink for offset in range(first, last)]
    if plan.mode == "linear":
        weights = [max(1 - abs(p), 0.0) for p in places]
    else:
        weights = [_cubic(abs(p), plan.cubic) for p in places]
    total = sum(weights)
    return first, [w / total for w in weights] if plan.antialias else weights


def _nearest(ratio: float, rounding: str) -> list[float]:
    if ratio == 1:
        right = True
    elif rounding == "round_prefer_floor":
        right = ratio > 0.5
    elif rounding == "round_prefer_ceil":
        right = ratio >= 0.5
    else:
        right = rounding == "ceil"
    return [float(not right), float(right)]


def _cubic(x: float, a: float) -> float:
    """Keys' cubic convolution kernel."""
    if x <= 1:
        return (a + 2) * x**3 - (a + 3) * x**2 + 1
    if x < 2:
        return a * x**3 - 5 * a * x**2 + 8 * a * x - 4 * a
    return 0.0
