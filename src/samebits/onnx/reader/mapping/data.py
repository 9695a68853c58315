"""Operators that move data: shapes, axes, pieces."""

from __future__ import annotations

import math
from itertools import zip_longest

import numpy as np

from samebits.errors import InputError
from samebits.ir.ops import broadcast
from samebits.onnx.reader.node import OnnxNode, Result, onnx_op


@onnx_op("Reshape")
def _reshape(node: OnnxNode) -> Result:
    """Another shape: 0 copies the size of the input unless allowzero is set, one -1 takes what is
    left."""
    wished = list(node.integers(1, "shape"))
    source = node.shape()
    if not node.flag("allowzero", False):
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
    return node.out("Reshape", node.input(0), shape=tuple(wished))


@onnx_op("Flatten")
def _flatten(node: OnnxNode) -> Result:
    """Two axes: those before `axis`, and the others."""
    axis, rank = node.int_("axis", 1), node.rank()
    if not -rank <= axis <= rank:
        raise InputError(f"expected an axis from {-rank} to {rank}, found {axis}")
    return node.out("Flatten", node.input(0), axis=axis + rank if axis < 0 else axis)


@onnx_op("Transpose")
def _transpose(node: OnnxNode) -> Result:
    """Axes in another order, reversed by default."""
    rank = node.rank()
    perm = node.ints("perm", None)
    order = tuple(range(rank))[::-1] if perm is None else node.axes(perm, rank)
    if len(order) != rank:
        raise InputError(f"expected {rank} axes in perm, found {list(order)}")
    return node.out("Transpose", node.input(0), perm=order)


def axes_of(node: OnnxNode, index: int = 1) -> tuple[int, ...] | None:
    """The axes as a constant input, or as an attribute; None where neither is given."""
    if node.has(index):
        return node.integers(index, "axes")
    return node.ints("axes", None)


@onnx_op("Squeeze")
def _squeeze(node: OnnxNode) -> Result:
    """Drop the axes, by default all of size 1."""
    axes = axes_of(node)
    if axes is None:
        axes = tuple(axis for axis, size in enumerate(node.shape()) if size == 1)
    return node.out("Squeeze", node.input(0), axes=node.axes(axes, node.rank()))


@onnx_op("Unsqueeze")
def _unsqueeze(node: OnnxNode) -> Result:
    """New axes of size 1, counted in the result."""
    axes = axes_of(node)
    if axes is None:
        raise InputError("expected axes, found none")
    axes = node.axes(axes, node.rank() + len(axes))
    return node.out("Unsqueeze", node.input(0), axes=axes)


@onnx_op("Concat")
def _concat(node: OnnxNode) -> Result:
    """Inputs one behind the other along an axis."""
    return node.out("Concat", *node.given(), axis=node.axis(node.int_("axis"), node.rank()))


@onnx_op("Split")
def _split(node: OnnxNode) -> Result:
    """Pieces along an axis, with sizes from an input or attribute; else all are equal but the last,
    which may be smaller."""
    axis = node.axis(node.int_("axis", 0), node.rank())
    sizes = node.integers(1, "split") if node.has(1) else node.ints("split", None)
    if sizes is None:
        count = node.int_("num_outputs", len(node.outputs))
        if count != len(node.outputs):
            raise InputError(f"expected num_outputs {len(node.outputs)}, found {count}")
        size = node.shape()[axis]
        part = -(-size // count)
        sizes = (*[part] * (count - 1), size - part * (count - 1))
    if len(sizes) != len(node.outputs):
        raise InputError(f"expected sizes of {len(node.outputs)} outputs, found {list(sizes)}")
    return node.out("Split", node.input(0), axis=axis, sizes=sizes)


@onnx_op("Slice")
def _slice(node: OnnxNode) -> Result:
    """Every step-th element from start to before end, along some axes.

    The bounds are attributes before opset 10, constant inputs from there on.
    """
    if node.opset < 10:
        starts, ends = node.ints("starts"), node.ints("ends")
        axes, steps = node.ints("axes", None), None
    else:
        starts, ends = node.integers(1, "starts"), node.integers(2, "ends")
        axes = node.integers(3, "axes") if node.has(3) else None
        steps = node.integers(4, "steps") if node.has(4) else None
    assert starts is not None
    assert ends is not None
    axes = node.axes(axes if axes is not None else tuple(range(len(starts))), node.rank())
    steps = steps if steps is not None else (1,) * len(starts)
    if not len(starts) == len(ends) == len(axes) == len(steps):
        raise InputError("expected as many starts, ends, axes and steps, found different numbers")
    if 0 in steps:
        raise InputError("expected steps other than 0, found 0")
    return node.out("Slice", node.input(0), starts=starts, ends=ends, axes=axes, steps=steps)


@onnx_op("Pad")
def _pad(node: OnnxNode) -> Result:
    """Elements added around the input, or cut off where a pad is negative.

    Pads and value are attributes before opset 11, constant inputs from there on.
    """
    rank = node.rank()
    value = 0.0
    if node.opset < 11:
        pads = node.ints("pads")
        value = node.float_("value", 0.0)
    else:
        pads = node.integers(1, "pads")
        if node.has(2):
            value = node.scalar(2, "padding value").item()
    assert pads is not None
    if node.has(3):
        axes = node.axes(node.integers(3, "axes"), rank)
        if len(pads) != 2 * len(axes):
            raise InputError(f"expected {2 * len(axes)} pads, found {len(pads)}")
        full = [0] * (2 * rank)
        for index, axis in enumerate(axes):
            full[axis], full[axis + rank] = pads[index], pads[index + len(axes)]
        pads = tuple(full)
    mode = node.string("mode", "constant", ("constant", "reflect", "edge", "wrap"))
    if len(pads) != 2 * rank:
        raise InputError(f"expected {2 * rank} pads, found {len(pads)}")
    return node.out("Pad", node.input(0), pads=pads, mode=mode, value=value)


@onnx_op("Expand")
def _expand(node: OnnxNode) -> Result:
    """The input broadcast with a constant shape; either may have the larger sizes."""
    shape = broadcast(node.shape(), node.integers(1, "shape"))
    return node.out("Expand", node.input(0), shape=shape)


@onnx_op("Tile")
def _tile(node: OnnxNode) -> Result:
    """The input repeated along every axis."""
    return node.out("Tile", node.input(0), repeats=node.integers(1, "repeats"))


@onnx_op("DepthToSpace")
def _depth_to_space(node: OnnxNode) -> Result:
    """Blocks of channels become blocks of the image."""
    mode = node.string("mode", "DCR", ("DCR", "CRD"))
    return node.out("DepthToSpace", node.input(0), blocksize=node.int_("blocksize"), mode=mode)


@onnx_op("SpaceToDepth")
def _space_to_depth(node: OnnxNode) -> Result:
    """Blocks of the image become channels: block first (DCR), or channel first (CRD)."""
    block = node.int_("blocksize")
    if node.string("mode", "DCR", ("DCR", "CRD")) == "DCR":
        return node.out("SpaceToDepth", node.input(0), blocksize=block)
    if node.rank() != 4 or block < 1 or node.shape()[2] % block or node.shape()[3] % block:
        raise InputError(f"expected images of multiples of {block}, found {list(node.shape())}")
    n, c, h, w = node.shape()
    split_shape = (n, c, h // block, block, w // block, block)
    x = node.emit("Reshape", node.input(0), shape=split_shape)
    x = node.emit("Transpose", x, perm=(0, 1, 3, 5, 2, 4))
    return node.out("Reshape", x, shape=(n, c * block * block, h // block, w // block))


@onnx_op("Trilu")
def _trilu(node: OnnxNode) -> Result:
    """One triangle of each matrix, zeros elsewhere, by a constant mask."""
    if node.rank() < 2:
        raise InputError(f"expected matrices, found shape {list(node.shape())}")
    rows, columns = node.shape()[-2:]
    node.builder.charge(rows * columns)
    k = int(node.scalar(1, "diagonal").item()) if node.has(1) else 0
    k = min(max(k, -rows - columns), rows + columns)
    upper = node.flag("upper", True)
    below = np.arange(columns)[None, :] - np.arange(rows)[:, None]
    mask = node.constant(below >= k if upper else below <= k)
    zero = node.number(0, node.dtype())
    return node.out("Where", mask, node.input(0), zero)


@onnx_op("Einsum")
def _einsum(node: OnnxNode) -> Result:
    """Sums of products that an equation in letters for axes describes."""
    return node.out("Einsum", *node.given(), equation=node.string("equation", ""))


@onnx_op("Col2Im")
def _col2im(node: OnnxNode) -> Result:
    """Blocks added into an image: a ConvTranspose whose output channels are single taps.

    Input [N, C * taps, windows]; each window of the image gets its block of taps. The weights are
    the identity, so every product is the element itself or 0.
    """
    image, block = node.integers(1, "image_shape"), node.integers(2, "block_shape")
    axes = len(image)
    ones = (1,) * axes
    strides = node.ints("strides", ones)
    dilations = node.ints("dilations", ones)
    pads = node.ints("pads", (0,) * (2 * axes))
    assert strides
    assert dilations
    assert pads is not None
    taps = math.prod(block)
    lengths = {len(block), len(strides), len(dilations), len(pads) / 2}
    numbers = (*image, *block, *strides, *dilations)
    if node.rank() != 3 or lengths != {axes} or min(numbers) < 1 or taps > 2**12:
        raise InputError("expected blocks and an image of one rank, found other numbers")
    n, depth, _ = node.shape()
    windows = tuple(
        (size + pads[i] + pads[i + axes] - dilations[i] * (block[i] - 1) - 1) // strides[i] + 1
        for i, size in enumerate(image)
    )
    if depth % taps or math.prod(windows) != node.shape()[2] or min(windows) < 1:
        raise InputError(f"expected blocks of {list(block)}, found shape {list(node.shape())}")
    channels = depth // taps
    x = node.emit("Reshape", node.input(0), shape=(n * channels, taps, *windows))
    weights = node.constant(np.eye(taps, dtype=node.dtype()).reshape(taps, 1, *block))
    left = tuple(
        size - ((w - 1) * s - p - q + d * (b - 1) + 1)
        for size, w, s, p, q, d, b in zip_longest(
            image, windows, strides, pads[:axes], pads[axes:], dilations, block
        )
    )
    x = node.emit(
        "ConvTranspose",
        x,
        weights,
        strides=strides,
        pads=pads,
        dilations=dilations,
        group=1,
        output_padding=left,
    )
    return node.out("Reshape", x, shape=(n, channels, *image))
