"""Operators that move data: shapes, axes, pieces."""

from __future__ import annotations

import math
from itertools import zip_longest

import numpy as np

from samebits.errors import InputError
from samebits.ir.ops import broadcast
from samebits.onnx.reader.step import Result, Step, onnx_op


@onnx_op("Reshape")
def reshape(step: Step) -> Result:
    """0 copies the size of the input unless allowzero; one -1 takes what is left."""
    wished = list(step.integers(1, "shape"))
    source = step.shape()
    if not step.flag("allowzero", False):
        for axis, size in enumerate(wished):
            if size == 0:
                if axis >= len(source):
                    raise InputError(f"expected a size at {axis} of {wished}, found 0")
                wished[axis] = source[axis]
    if wished.count(-1) > 1 or any(size < -1 for size in wished):
        raise InputError(f"expected sizes and at most one -1, found {wished}")
    if -1 in wished:
        known = math.prod(size for size in wished if size != -1)
        total = math.prod(source)
        if known == 0 or total % known:
            raise InputError(f"expected a shape of {total} elements, found {wished}")
        wished[wished.index(-1)] = total // known
    return step.out("Reshape", [step.input(0)], shape=tuple(wished))


@onnx_op("Flatten")
def flatten(step: Step) -> Result:
    """Two axes: those before `axis`, and the others."""
    axis, rank = step.int_("axis", 1), step.rank()
    if not -rank <= axis <= rank:
        raise InputError(f"expected an axis from {-rank} to {rank}, found {axis}")
    return step.out("Flatten", [step.input(0)], axis=axis + rank if axis < 0 else axis)


@onnx_op("Transpose")
def transpose(step: Step) -> Result:
    """Axes in another order, reversed by default."""
    rank = step.rank()
    perm = step.ints("perm", None)
    order = tuple(range(rank))[::-1] if perm is None else step.axes(perm, rank)
    if len(order) != rank:
        raise InputError(f"expected {rank} axes in perm, found {list(order)}")
    return step.out("Transpose", [step.input(0)], perm=order)


def axes_of(step: Step, index: int = 1) -> tuple[int, ...] | None:
    """The axes as a constant input, or as an attribute; None where neither is given."""
    if step.has(index):
        return step.integers(index, "axes")
    return step.ints("axes", None)


@onnx_op("Squeeze")
def squeeze(step: Step) -> Result:
    """Drop the axes, by default all of size 1."""
    axes = axes_of(step)
    if axes is None:
        axes = tuple(axis for axis, size in enumerate(step.shape()) if size == 1)
    return step.out("Squeeze", [step.input(0)], axes=step.axes(axes, step.rank()))


@onnx_op("Unsqueeze")
def unsqueeze(step: Step) -> Result:
    """New axes of size 1, counted in the result."""
    axes = axes_of(step)
    if axes is None:
        raise InputError("expected axes, found none")
    axes = step.axes(axes, step.rank() + len(axes))
    return step.out("Unsqueeze", [step.input(0)], axes=axes)


@onnx_op("Concat")
def concat(step: Step) -> Result:
    """Along an axis."""
    return step.out("Concat", step.given(), axis=step.axis(step.int_("axis"), step.rank()))


@onnx_op("Split")
def split(step: Step) -> Result:
    """Sizes from an input or attribute, else as equal as can be (the last may be smaller)."""
    axis = step.axis(step.int_("axis", 0), step.rank())
    sizes = step.integers(1, "split") if step.has(1) else step.ints("split", None)
    if sizes is None:
        count = step.int_("num_outputs", len(step.outputs))
        if count != len(step.outputs):
            raise InputError(f"expected num_outputs {len(step.outputs)}, found {count}")
        size = step.shape()[axis]
        part = -(-size // count)
        sizes = (*[part] * (count - 1), size - part * (count - 1))
    if len(sizes) != len(step.outputs):
        raise InputError(f"expected sizes of {len(step.outputs)} outputs, found {list(sizes)}")
    return step.out("Split", [step.input(0)], axis=axis, sizes=sizes)


@onnx_op("Slice")
def slice_(step: Step) -> Result:
    """Bounds are attributes before opset 10, then inputs."""
    if step.opset < 10:
        starts, ends = step.ints("starts"), step.ints("ends")
        axes, steps = step.ints("axes", None), None
    else:
        starts, ends = step.integers(1, "starts"), step.integers(2, "ends")
        axes = step.integers(3, "axes") if step.has(3) else None
        steps = step.integers(4, "steps") if step.has(4) else None
    assert starts is not None
    assert ends is not None
    axes = step.axes(axes if axes is not None else tuple(range(len(starts))), step.rank())
    steps = steps if steps is not None else (1,) * len(starts)
    if not len(starts) == len(ends) == len(axes) == len(steps):
        raise InputError("expected as many starts, ends, axes and steps, found different numbers")
    if 0 in steps:
        raise InputError("expected steps other than 0, found 0")
    return step.out("Slice", [step.input(0)], starts=starts, ends=ends, axes=axes, steps=steps)


@onnx_op("Pad")
def pad(step: Step) -> Result:
    """Pads and value are attributes before opset 11, then inputs."""
    rank = step.rank()
    value = 0.0
    if step.opset < 11:
        pads = step.ints("pads")
        value = step.float_("value", 0.0)
    else:
        pads = step.integers(1, "pads")
        if step.has(2):
            value = step.scalar(2, "padding value").item()
    assert pads is not None
    if step.has(3):
        axes = step.axes(step.integers(3, "axes"), rank)
        if len(pads) != 2 * len(axes):
            raise InputError(f"expected {2 * len(axes)} pads, found {len(pads)}")
        full = [0] * (2 * rank)
        for index, axis in enumerate(axes):
            full[axis], full[axis + rank] = pads[index], pads[index + len(axes)]
        pads = tuple(full)
    mode = step.string("mode", "constant", ("constant", "reflect", "edge", "wrap"))
    if len(pads) != 2 * rank:
        raise InputError(f"expected {2 * rank} pads, found {len(pads)}")
    return step.out("Pad", [step.input(0)], pads=pads, mode=mode, value=value)


@onnx_op("Expand")
def expand(step: Step) -> Result:
    """Broadcast with a shape, in both directions."""
    shape = broadcast(step.shape(), step.integers(1, "shape"))
    return step.out("Expand", [step.input(0)], shape=shape)


@onnx_op("Tile")
def tile(step: Step) -> Result:
    """Repeat along every axis."""
    return step.out("Tile", [step.input(0)], repeats=step.integers(1, "repeats"))


@onnx_op("DepthToSpace")
def depth_to_space(step: Step) -> Result:
    """Blocks of channels become blocks of the image."""
    mode = step.string("mode", "DCR", ("DCR", "CRD"))
    return step.out("DepthToSpace", [step.input(0)], blocksize=step.int_("blocksize"), mode=mode)


@onnx_op("SpaceToDepth")
def space_to_depth(step: Step) -> Result:
    """Blocks of the image become channels: block first (DCR), or channel first (CRD)."""
    block = step.int_("blocksize")
    if step.string("mode", "DCR", ("DCR", "CRD")) == "DCR":
        return step.out("SpaceToDepth", [step.input(0)], blocksize=block)
    if step.rank() != 4 or block < 1 or step.shape()[2] % block or step.shape()[3] % block:
        raise InputError(f"expected images of multiples of {block}, found {list(step.shape())}")
    n, c, h, w = step.shape()
    split_shape = (n, c, h // block, block, w // block, block)
    x = step.emit("Reshape", [step.input(0)], shape=split_shape)
    x = step.emit("Transpose", [x], perm=(0, 1, 3, 5, 2, 4))
    return step.out("Reshape", [x], shape=(n, c * block * block, h // block, w // block))


@onnx_op("Trilu")
def trilu(step: Step) -> Result:
    """One triangle of each matrix: Where with a constant mask."""
    if step.rank() < 2:
        raise InputError(f"expected matrices, found shape {list(step.shape())}")
    rows, columns = step.shape()[-2:]
    step.charge(rows * columns)
    k = int(step.scalar(1, "diagonal").item()) if step.has(1) else 0
    k = min(max(k, -rows - columns), rows + columns)
    upper = step.flag("upper", True)
    below = np.arange(columns)[None, :] - np.arange(rows)[:, None]
    mask = step.array(below >= k if upper else below <= k)
    zero = step.array(np.zeros((), np.dtype(step.value(0).dtype)))
    return step.out("Where", [mask, step.input(0), zero])


@onnx_op("Einsum")
def einsum(step: Step) -> Result:
    """Sums of products by an equation."""
    return step.out("Einsum", step.given(), equation=step.string("equation", ""))


@onnx_op("Col2Im")
def col2im(step: Step) -> Result:
    """Add blocks into an image: ConvTranspose with weights that are one tap each."""
    image, block = step.integers(1, "image_shape"), step.integers(2, "block_shape")
    axes = len(image)
    ones = (1,) * axes
    strides = step.ints("strides", ones)
    dilations = step.ints("dilations", ones)
    pads = step.ints("pads", (0,) * (2 * axes))
    assert strides
    assert dilations
    assert pads is not None
    taps = math.prod(block)
    lengths = {len(block), len(strides), len(dilations), len(pads) / 2}
    numbers = (*image, *block, *strides, *dilations)
    if step.rank() != 3 or lengths != {axes} or min(numbers) < 1 or taps > 2**12:
        raise InputError("expected blocks and an image of one rank, found other numbers")
    n, depth, _ = step.shape()
    windows = tuple(
        (size + pads[i] + pads[i + axes] - dilations[i] * (block[i] - 1) - 1) // strides[i] + 1
        for i, size in enumerate(image)
    )
    if depth % taps or math.prod(windows) != step.shape()[2] or min(windows) < 1:
        raise InputError(f"expected blocks of {list(block)}, found shape {list(step.shape())}")
    channels = depth // taps
    x = step.emit("Reshape", [step.input(0)], shape=(n * channels, taps, *windows))
    dtype = np.dtype(step.value(0).dtype)
    weights = step.array(np.eye(taps, dtype=dtype).reshape(taps, 1, *block))
    left = tuple(
        size - ((w - 1) * s - p - q + d * (b - 1) + 1)
        for size, w, s, p, q, d, b in zip_longest(
            image, windows, strides, pads[:axes], pads[axes:], dilations, block
        )
    )
    x = step.emit(
        "ConvTranspose",
        [x, weights],
        strides=strides,
        pads=pads,
        dilations=dilations,
        group=1,
        output_padding=left,
    )
    return step.out("Reshape", [x], shape=(n, channels, *image))
