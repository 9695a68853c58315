"""Data movement in real graphs: no element changes, so every type is taken and nothing rounds."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from samebits.ir.ops import Array, Attributes, Type, broadcast, elements
from samebits.ir.real import define as real
from samebits.ir.real.define import Inputs, counted_from_zero, define, integers, number
from samebits.ir.traits import Trait

Ints = tuple[int, ...]
Shape = Callable[[Ints, Attributes], Ints]


def _movement(
    name: str,
    attributes: Attributes,
    shape: Shape,
    function: Callable[[Array, Attributes], Array],
    *traits: Trait,
    **more: Any,
) -> None:
    """An operator with one input and one output of its type."""

    def infer(values: Inputs, attributes: Attributes) -> list[Type]:
        kind = real.check_type(values[0], real.ANY)
        return [(kind, shape(values[0].shape, attributes))]

    traits = (Trait.MOVEMENT, *traits)
    define(name, 1, attributes, infer, lambda a, k: [function(a[0], k)], *traits, **more)


# --- new shapes for the same elements -------------------------------------------------------


def _reshaped(shape: Ints, attributes: Attributes) -> Ints:
    wanted = integers(attributes["shape"], "shape", least=0)
    if elements(wanted) != elements(shape):
        raise ValueError(f"expected a shape of {elements(shape)} elements, found {list(wanted)}")
    return wanted


def _flattened(shape: Ints, attributes: Attributes) -> Ints:
    axis, rank = attributes["axis"], len(shape)
    if axis != rank:
        axis = real.check_axis(axis, rank)
    return elements(shape[:axis]), elements(shape[axis:])


def _squeezed(shape: Ints, attributes: Attributes) -> Ints:
    axes = real.check_axes(attributes["axes"], len(shape))
    if any(shape[axis] != 1 for axis in axes):
        raise ValueError(f"expected axes of size 1, found axes {list(axes)} of {list(shape)}")
    return tuple(n for i, n in enumerate(shape) if i not in axes)


def _unsqueezed(shape: Ints, attributes: Attributes) -> Ints:
    rank = len(shape) + len(integers(attributes["axes"], "axes"))
    axes = real.check_axes(attributes["axes"], rank)
    left = iter(shape)
    return tuple(1 if i in axes else next(left) for i in range(rank))


def _new_shape(name: str, attributes: Attributes, shape: Shape) -> None:
    def move(x: Array, attributes: Attributes) -> Array:
        return x.reshape(shape(x.shape, attributes))

    _movement(name, attributes, shape, move, Trait.RESHAPES)


_new_shape("Reshape", real.attributes_of("shape"), _reshaped)
_new_shape("Flatten", {"axis": 1}, _flattened)
_new_shape("Squeeze", real.attributes_of("axes"), _squeezed)
_new_shape("Unsqueeze", real.attributes_of("axes"), _unsqueezed)


# --- order and selection --------------------------------------------------------------------


def _permuted(shape: Ints, attributes: Attributes) -> Ints:
    perm = integers(attributes["perm"], "perm")
    if sorted(perm) != list(range(len(shape))):
        raise ValueError(f"expected a permutation of {len(shape)} axes, found {list(perm)}")
    return tuple(shape[axis] for axis in perm)


def _slices(shape: Ints, attributes: Attributes) -> tuple[slice, ...]:
    """One numpy slice for each axis, from `starts`, `ends`, `steps` and `axes` as ONNX has them."""
    starts = integers(attributes["starts"], "starts")
    ends = integers(attributes["ends"], "ends", len(starts))
    steps = integers(attributes["steps"], "steps", len(starts))
    axes = [
        real.check_axis(axis, len(shape))
        for axis in integers(attributes["axes"], "axes", len(starts))
    ]
    if 0 in steps or len(set(axes)) != len(axes):
        raise ValueError(
            f"expected steps other than 0 and axes that differ, found {list(steps)} and {axes}"
        )
    result = [slice(None)] * len(shape)
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        result[axis] = _slice(shape[axis], start, end, step)
    return tuple(result)


def _slice(size: int, start: int, end: int, step: int) -> slice:
    """ONNX: negative bounds count from the end, then all are clamped to where a step can go.

    Python differs in a start below the first element with a negative step: ONNX starts there.
    """
    start, end = (bound + size if bound < 0 else bound for bound in (start, end))
    if step > 0:
        return slice(min(max(start, 0), size), min(max(end, 0), size), step)
    end = min(max(end, -1), size - 1)
    return slice(min(max(start, 0), size - 1), None if end < 0 else end, step)


def _sliced(shape: Ints, attributes: Attributes) -> Ints:
    slices = _slices(shape, attributes)
    return tuple(len(range(*s.indices(n))) for s, n in zip(slices, shape, strict=True))


def _expanded(shape: Ints, attributes: Attributes) -> Ints:
    wanted = integers(attributes["shape"], "shape", least=0)
    return real.check_elements(broadcast(shape, wanted))


def _tiled(shape: Ints, attributes: Attributes) -> Ints:
    repeats = integers(attributes["repeats"], "repeats", len(shape), least=0)
    return tuple(n * r for n, r in zip(shape, repeats, strict=True))


_movement("Transpose", real.attributes_of("perm"), _permuted, lambda x, a: x.transpose(a["perm"]))
_movement(
    "Slice",
    real.attributes_of("starts", "ends", "steps", "axes"),
    _sliced,
    lambda x, a: x[_slices(x.shape, a)],
)
_movement(
    "Expand",
    real.attributes_of("shape"),
    _expanded,
    lambda x, a: np.broadcast_to(x, _expanded(x.shape, a)).copy(),
    Trait.NEUTRAL,
)
_movement(
    "Tile",
    real.attributes_of("repeats"),
    _tiled,
    lambda x, a: np.tile(x, a["repeats"]),
    Trait.NEUTRAL,
)


def _infer_concat(values: Inputs, attributes: Attributes) -> list[Type]:
    kind = real.check_same_type(values, real.ANY)
    shape = values[0].shape
    axis = real.check_axis(attributes["axis"], len(shape))
    for value in values[1:]:
        if len(value.shape) != len(shape) or any(
            n != m for i, (n, m) in enumerate(zip(value.shape, shape, strict=True)) if i != axis
        ):
            raise ValueError(
                f"expected shapes that differ along axis {axis} only, "
                f"found {list(shape)} and {list(value.shape)}"
            )
    total = sum(value.shape[axis] for value in values)
    return [(kind, (*shape[:axis], total, *shape[axis + 1 :]))]


def _infer_split(values: Inputs, attributes: Attributes) -> list[Type]:
    x = values[0]
    kind = real.check_type(x, real.ANY)
    axis = real.check_axis(attributes["axis"], len(x.shape))
    sizes = integers(attributes["sizes"], "sizes", least=0)
    if sum(sizes) != x.shape[axis] or not sizes:
        raise ValueError(f"expected sizes with the sum {x.shape[axis]}, found {list(sizes)}")
    return [(kind, (*x.shape[:axis], size, *x.shape[axis + 1 :])) for size in sizes]


def _split(arrays: Inputs, attributes: Attributes) -> list[Array]:
    ends = np.cumsum(attributes["sizes"])[:-1]
    return list(np.split(arrays[0], ends, axis=attributes["axis"]))


def _infer_gather(values: Inputs, attributes: Attributes) -> list[Type]:
    x, indices = values
    kind = real.check_type(x, real.ANY)
    real.check_type(indices, ("int32", "int64"), "indices")
    axis = real.check_axis(attributes["axis"], len(x.shape))
    return [(kind, (*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :]))]


def _gather(arrays: Inputs, attributes: Attributes) -> list[Array]:
    x, axis = arrays[0], attributes["axis"]
    return [np.take(x, counted_from_zero(arrays[1], x.shape[axis]), axis=axis)]


define(
    "Concat",
    (1, None),
    real.attributes_of("axis"),
    _infer_concat,
    lambda a, k: [np.concatenate(a, axis=k["axis"])],
    Trait.MOVEMENT,
    Trait.NEUTRAL,
)
_SPLIT = (Trait.MOVEMENT, Trait.NEUTRAL, Trait.ALONG)
define("Split", 1, real.attributes_of("sizes", axis=0), _infer_split, _split, *_SPLIT)
define("Gather", 2, {"axis": 0}, _infer_gather, _gather, Trait.MOVEMENT, Trait.INDEXED)


# --- pads -----------------------------------------------------------------------------------

_MODES = ("constant", "reflect", "edge", "wrap")


def _padded(shape: Ints, attributes: Attributes) -> Ints:
    """The shape with pads; ValueError where the mode cannot fill them (reflect needs n - 1
    elements)."""
    rank = len(shape)
    pads = integers(attributes["pads"], "pads", 2 * rank)
    mode = real.choice(attributes, "mode", _MODES)
    sizes = []
    for i, n in enumerate(shape):
        before, after = pads[i], pads[i + rank]
        # Negative pads cut first; what is left is what the others repeat.
        left = n + min(before, 0) + min(after, 0)
        most = {"constant": math.inf, "reflect": left - 1}.get(mode, math.inf if left else 0)
        if left < 0 or max(before, after) > max(most, 0):
            raise ValueError(
                f"expected pads that {mode} can fill, found {list(pads)} of {list(shape)}"
            )
        sizes.append(left + max(before, 0) + max(after, 0))
    return tuple(sizes)


def _pad(x: Array, attributes: Attributes) -> Array:
    """Cut by negative pads, then pad; the value takes the type of x, infinities only of floats."""
    pads, rank = attributes["pads"], x.ndim
    cut = x[
        tuple(slice(max(-pads[i], 0), x.shape[i] - max(-pads[i + rank], 0)) for i in range(rank))
    ]
    widths = [(max(pads[i], 0), max(pads[i + rank], 0)) for i in range(rank)]
    if attributes["mode"] != "constant":
        return np.pad(cut, widths, mode=attributes["mode"])
    value = attributes["value"]
    if x.dtype.kind == "b":
        value = bool(value)
    elif not math.isinf(value):
        value = number(value, x)
    elif x.dtype.kind != "f":
        raise ValueError(f"expected a finite pad value, found {value}")
    return np.pad(cut, widths, mode="constant", constant_values=value)


_movement(
    "Pad",
    real.attributes_of("pads", mode="constant", value=0.0),
    _padded,
    _pad,
    unbounded=("value",),
)


# --- images ---------------------------------------------------------------------------------


def _image(shape: Ints, attributes: Attributes) -> tuple[int, int, int, int, int]:
    if len(shape) != 4:
        raise ValueError(f"expected x of [N, C, H, W], found {list(shape)}")
    block = attributes["blocksize"]
    if not real.is_integer(block) or block < 1:
        raise ValueError(f"expected blocksize of at least 1, found {block!r}")
    n, c, h, w = shape
    return n, c, h, w, block


def _depth_to_space_shape(shape: Ints, attributes: Attributes) -> Ints:
    n, c, h, w, block = _image(shape, attributes)
    real.choice(attributes, "mode", ("DCR", "CRD"))
    if c % (block * block):
        raise ValueError(f"expected a multiple of {block * block} channels, found {c}")
    return n, c // (block * block), h * block, w * block


def _depth_to_space(x: Array, attributes: Attributes) -> Array:
    n, c, h, w, block = _image(x.shape, attributes)
    depth = c // (block * block)
    if attributes["mode"] == "DCR":
        moved = x.reshape(n, block, block, depth, h, w).transpose(0, 3, 4, 1, 5, 2)
    else:
        moved = x.reshape(n, depth, block, block, h, w).transpose(0, 1, 4, 2, 5, 3)
    return moved.reshape(n, depth, h * block, w * block)


def _space_to_depth_shape(shape: Ints, attributes: Attributes) -> Ints:
    n, c, h, w, block = _image(shape, attributes)
    if h % block or w % block:
        raise ValueError(f"expected height and width in multiples of {block}, found {h} and {w}")
    return n, c * block * block, h // block, w // block


def _space_to_depth(x: Array, attributes: Attributes) -> Array:
    n, c, h, w, block = _image(x.shape, attributes)
    moved = x.reshape(n, c, h // block, block, w // block, block).transpose(0, 3, 5, 1, 2, 4)
    return moved.reshape(n, c * block * block, h // block, w // block)


_IMAGE = (Trait.SPATIAL, Trait.NEUTRAL)
_movement(
    "DepthToSpace",
    real.attributes_of("blocksize", mode="DCR"),
    _depth_to_space_shape,
    _depth_to_space,
    *_IMAGE,
)
_movement(
    "SpaceToDepth", real.attributes_of("blocksize"), _space_to_depth_shape, _space_to_depth, *_IMAGE
)


# --- nearest resize -------------------------------------------------------------------------

COORDINATES = (
    "half_pixel",
    "half_pixel_symmetric",
    "pytorch_half_pixel",
    "align_corners",
    "asymmetric",
)
ROUNDINGS: dict[str, Callable[[Fraction], int]] = {
    "round_prefer_floor": lambda x: math.ceil(x - Fraction(1, 2)),
    "round_prefer_ceil": lambda x: math.floor(x + Fraction(1, 2)),
    "floor": math.floor,
    "ceil": math.ceil,
}


def check_sizes(shape: Ints, attributes: Attributes) -> Ints:
    """The sizes that a resize gives; ValueError where sizes, scales or names are wrong."""
    sizes = integers(attributes["sizes"], "sizes", len(shape), least=1)
    scales = attributes["scales"]
    if scales is not None and (
        len(scales) != len(shape)
        or not all(isinstance(s, (int, float, Fraction)) and 0 < s < math.inf for s in scales)
    ):
        raise ValueError(f"expected {len(shape)} positive scales or None, found {scales!r}")
    if 0 in shape:
        raise ValueError(f"expected an image that is not empty, found {list(shape)}")
    real.choice(attributes, "nearest_mode", tuple(ROUNDINGS))
    return sizes


def _resized(shape: Ints, attributes: Attributes) -> Ints:
    sizes = check_sizes(shape, attributes)
    real.choice(attributes, "mode", ("nearest",))
    real.choice(attributes, "coordinate_transformation_mode", COORDINATES)
    return sizes


def source(
    i: int, size: int, out: int, scale: Fraction, coordinates: str, span: Fraction | int
) -> Fraction:
    """The position in the input that output position i stands for; samples lie at 0, 1, ...

    span: what align_corners takes as the distance of the outermost outputs.
    """
    half = Fraction(1, 2)
    if coordinates == "asymmetric":
        return i / scale
    if coordinates == "align_corners":
        return Fraction(i * (size - 1)) / span if span else Fraction(0)
    if coordinates == "pytorch_half_pixel" and out == 1:
        return Fraction(0)
    shift = Fraction(0)
    if coordinates == "half_pixel_symmetric":
        shift = Fraction(size, 2) * (1 - out / (scale * size))
    return shift + (i + half) / scale - half


def nearest_indices(
    size: int, out: int, scale: Fraction, coordinates: str, rounding: str
) -> Sequence[int]:
    """The input position that each output position of a nearest resize reads, in rationals.

    scale: out / size, or what the model states instead. ONNX Resize gives the formulas.
    """
    nearest = ROUNDINGS[rounding]
    positions = (source(i, size, out, scale, coordinates, out - 1) for i in range(out))
    return [min(max(nearest(x), 0), size - 1) for x in positions]


def _resize(x: Array, attributes: Attributes) -> Array:
    sizes, scales = attributes["sizes"], attributes["scales"]
    coordinates = attributes["coordinate_transformation_mode"]
    for axis, (size, out) in enumerate(zip(x.shape, sizes, strict=True)):
        scale = Fraction(out, size) if scales is None else Fraction(scales[axis])
        if size == out and scale == 1:
            continue
        taken = nearest_indices(size, out, scale, coordinates, attributes["nearest_mode"])
        x = np.take(x, np.array(taken, dtype=np.int64), axis=axis)
    return x


_movement(
    "Resize",
    real.attributes_of(
        "sizes",
        scales=None,
        mode="nearest",
        coordinate_transformation_mode="half_pixel",
        nearest_mode="round_prefer_floor",
    ),
    _resized,
    _resize,
)
