"""Rules of operators: the drafts of chains that each becomes. docs/spec/npu.md.

A rule takes the node's inputs, views or constants (float64), and the shape of its output, and gives
its output view. Rules of point-wise operators: samebits.npu.compiler.pointwise.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from samebits.errors import UnsupportedError
from samebits.ir.graph import Node
from samebits.ir.ops import op_named
from samebits.npu.compiler.build import Builder
from samebits.npu.compiler.layout import (
    OUTSIDE,
    Array,
    Buffer,
    BufferAccess,
    ImageView,
    UnitOperation,
    View,
    image_of,
    image_places,
)

Input = View | Array | None
Shape = tuple[int, ...]
Rule = Callable[[Builder, Node, Sequence[Input], Shape], View]


def view_of(x: Input) -> View:
    """An input that must depend on the network's inputs."""
    if isinstance(x, View):
        return x
    raise UnsupportedError("expected a tensor that depends on an input, found a constant")


def constant_of(x: Input, what: str) -> Array:
    """An input that must be constant."""
    if isinstance(x, np.ndarray):
        return x
    raise UnsupportedError(f"expected constant {what}, found a tensor that depends on an input")


# --- products ---------------------------------------------------------------------------------


def conv(b: Builder, node: Node, inputs: Sequence[Input], shape: Shape) -> View:
    """One product for each output pixel, its window read from an image with a zero border."""
    image = image_of(view_of(inputs[0]), b.native)
    weights = constant_of(inputs[1], "weights")
    strides, dilations, pads, kernel = window(node, weights.shape[2:])
    if weights.ndim == 3:
        weights = weights[:, :, np.newaxis]
    if dilations[1] > 1:  # a window reads neighbours: zero taps between those of the kernel
        spread = np.zeros((*weights.shape[:3], (kernel[1] - 1) * dilations[1] + 1))
        spread[..., :: dilations[1]] = weights
        weights = spread
    outputs = weights.shape[0]
    size = (image.buffer.height, image.buffer.width)
    reach = ((kernel[0] - 1) * dilations[0], weights.shape[3] - 1)
    before = (pads[0] + image.pads[0], pads[1] + image.pads[1])
    after = (pads[2] + image.pads[2], pads[3] + image.pads[3])
    height, width = (
        (size[i] + before[i] + after[i] - reach[i] - 1) // strides[i] + 1 for i in (0, 1)
    )
    window_read = BufferAccess(
        image.buffer,
        y=-before[0],
        x=-before[1],
        step_y=strides[0],
        step_x=strides[1],
        kernel=(kernel[0], weights.shape[3]),
        dilation=dilations[0],
    )
    out = b.image(node.name, outputs, height, width)
    _products(b, node, image, window_read, weights, out.buffer)
    return _biased(b, node, out, inputs, shape)


def _biased(b: Builder, node: Node, out: View, inputs: Sequence[Input], shape: Shape) -> View:
    bias = inputs[2] if len(inputs) > 2 else None
    if bias is not None:
        array = constant_of(bias, "biases").reshape(1, -1, 1, 1)
        out = b.with_constant(f"{node.name}_bias", "vv_add", out, array)
    return View(out.buffer, out.places.reshape(shape))


def conv_transpose(b: Builder, node: Node, inputs: Sequence[Input], shape: Shape) -> View:
    """A convolution for every phase of the strides: the output pixels that are so far from a
    multiple of them, which see the same taps of the kernel."""
    image = image_of(view_of(inputs[0]), b.native)
    weights = constant_of(inputs[1], "weights")
    strides, dilations, pads, kernel = window(node, weights.shape[2:])
    if any(image.pads):
        raise UnsupportedError("expected an unpadded image, found an explicit Pad before it")
    group = node.attributes["group"]
    parts = [
        part.swapaxes(0, 1)
        for part in np.split(weights.reshape(*weights.shape[:2], *kernel), group)
    ]
    weights = np.concatenate(parts)
    height, width = (1, *shape[2:])[-2:]
    out = b.image(node.name, weights.shape[0], height, width)
    for y in range(min(strides[0], height)):
        rows, top = _phase(weights, 2, y + pads[0], strides[0], dilations[0])
        for x in range(min(strides[1], width)):
            taps, left = _phase(rows, 3, x + pads[1], strides[1], dilations[1])
            size = (-(-(height - y) // strides[0]), -(-(width - x) // strides[1]))
            read = BufferAccess(image.buffer, top, left, kernel=(taps.shape[2], taps.shape[3]))
            pixels = (y, x, strides[0], strides[1])
            _products(b, node, image, read, taps, out.buffer, size, pixels)
    return _biased(b, node, out, inputs, shape)


def _phase(weights: Array, axis: int, at: int, stride: int, dilation: int) -> tuple[Array, int]:
    """(the taps of an axis that meet outputs at `at` modulo the stride, in the order of the inputs
    they meet, the first input for the first of these outputs); a tap of zeros if there are none."""
    moves = at - np.arange(weights.shape[axis]) * dilation
    met = np.flatnonzero(moves % stride == 0)
    if not len(met):
        return np.zeros_like(weights.take([0], axis)), 0
    offsets = moves[met] // stride
    first = int(offsets.min())
    laid = np.zeros_like(weights.take([0] * (int(offsets.max()) + 1 - first), axis))
    laid.swapaxes(0, axis)[offsets - first] = weights.swapaxes(0, axis)[met]
    return laid, first


def resize(b: Builder, node: Node, inputs: Sequence[Input], shape: Shape) -> View:
    """Nearest neighbours; where every pixel is repeated as often, copies of the image."""
    x = view_of(inputs[0])
    (places,) = op_named(node.op).meaning([x.places], node.attributes)
    sizes = zip(shape[2:], x.places.shape[2:], strict=True)
    factors = [size // before if size % before == 0 else 0 for size, before in sizes]
    repeated = x.places
    for axis, factor in enumerate(factors, start=2):
        repeated = repeated.repeat(factor, axis)
    if not np.array_equal(repeated, places):
        return View(x.buffer, np.asarray(places), x.nonnegative)
    image = image_of(x, b.native)
    if any(image.pads):
        raise UnsupportedError("expected an unpadded image, found an explicit Pad before it")
    down, across = (1, *factors)[-2:]
    height, width, vectors = image.buffer.geometry
    target = Buffer(node.name, height * down, width * across, vectors)
    for top in range(down):
        for left in range(across):
            pixels = (top, left, down, across)
            b.add(
                node.name, BufferAccess(image.buffer), target, image.buffer.geometry, pixels=pixels
            )
    view = _as_view(b, replace(image, buffer=target), shape)
    return replace(view, nonnegative=x.nonnegative)


def window(node: Node, kernel: Shape) -> tuple[Shape, Shape, Shape, Shape]:
    """(strides, dilations, pads, kernel) in two dimensions; a one-dimensional image has one row."""
    rank = len(kernel)
    if rank not in (1, 2):
        raise UnsupportedError(f"expected windows of one or two dimensions, found {rank}")
    a = node.attributes
    strides, dilations, pads = tuple(a["strides"]), tuple(a["dilations"]), tuple(a["pads"])
    if rank == 1:
        return (1, *strides), (1, *dilations), (0, pads[0], 0, pads[1]), (1, *kernel)
    return strides, dilations, pads, tuple(kernel)


def _products(
    b: Builder,
    node: Node,
    image: ImageView,
    read: BufferAccess,
    weights: Array,
    target: Buffer,
    size: tuple[int, int] | None = None,
    pixels: tuple[int, int, int, int] = (0, 0, 1, 1),
) -> None:
    """One product for every run of output vectors that read the same input vectors.

    size, pixels: of what is written of the target, where it is not all of it.
    """
    outputs, each = weights.shape[:2]
    group = node.attributes["group"]
    per_group = outputs // group
    needed = []  # of each output vector, the first input vector and the number of them
    for r in range(target.vectors):
        first_group = r * b.native // per_group
        last_group = (min((r + 1) * b.native, outputs) - 1) // per_group
        lanes = image.lanes[first_group * each : (last_group + 1) * each] // b.native
        needed.append((int(lanes.min()), int(lanes.max()) + 1 - int(lanes.min())))
    if group == 1:
        needed = [(0, image.buffer.vectors)] * target.vectors
    parts: dict[tuple[int, int], ImageView] = {(0, image.buffer.vectors): image}
    start = 0
    for stop in range(1, target.vectors + 1):
        if stop < target.vectors and needed[stop] == needed[start]:
            continue
        key = needed[start]
        if key not in parts:
            parts[key] = b.vectors_of(f"{node.name}_input", image, *key)
        span = slice(start * b.native, min(stop * b.native, outputs))
        laid = _group_lanes(b, parts[key], weights, span, per_group)
        tiles = b.weights(f"{node.name}_weight", laid)
        grid = (*(size or (target.height, target.width)), stop - start)
        part_read = replace(read, buffer=parts[key].buffer)
        b.add(node.name, part_read, target, grid, tiles=tiles, vector=start, pixels=pixels)
        start = stop


def _group_lanes(
    b: Builder, image: ImageView, weights: Array, span: slice, per_group: int
) -> Array:
    """Weights of some outputs as [O, I, KH, KW]: zeros where an output is in another group."""
    each, vectors = weights.shape[1], image.buffer.vectors
    if each == len(image.lanes):
        return b.input_lanes(image.lanes, vectors, weights[span])
    wide = np.zeros((span.stop - span.start, len(image.lanes), *weights.shape[2:]))
    for row, output in enumerate(range(span.start, span.stop)):
        first = output // per_group * each
        wide[row, first : first + each] = weights[output]
    kept = (image.lanes >= 0) & (image.lanes < vectors * b.native)
    return b.input_lanes(image.lanes[kept], vectors, wide[:, kept])


def linear(b: Builder, node: Node, x: View, weights: Array, bias: Array | None) -> View:
    """x [1, ..., K] times weights [O, K], on the whole buffer or pixel by pixel."""
    buffer, native = x.buffer, b.native
    outputs, features = weights.shape
    pixel = buffer.vectors * native
    if (x.places == OUTSIDE).any():
        raise UnsupportedError("expected an unpadded tensor, found an explicit Pad before it")
    if x.places.size == features:  # one product: a window of the buffer's size
        places = x.places.reshape(-1)
        lanes, pixels = places % pixel, places // pixel
        count = max(int(lanes.max()) + 1, pixel - native + 1)
        laid = np.zeros((outputs, count, buffer.height * buffer.width))
        # A lane may be read twice, hence a sum; ufunc.at works on the first axes.
        np.add.at(laid.transpose(1, 2, 0), (lanes, pixels), weights.T)
        kernel = (buffer.height, buffer.width)
        laid = laid.reshape(outputs, count, *kernel)
        out = b.image(node.name, outputs, 1, 1)
        read = BufferAccess(buffer, kernel=kernel)
        places = np.arange(outputs)
    else:
        rows = x.places.reshape(-1, features)
        expected = rows[0] + np.arange(len(rows))[:, np.newaxis] * pixel
        if len(rows) != buffer.height * buffer.width or not np.array_equal(rows, expected):
            raise UnsupportedError("expected features that lie together, found them spread out")
        laid = b.input_lanes(rows[0], buffer.vectors, weights)
        out = b.image(node.name, outputs, buffer.height, buffer.width)
        read = BufferAccess(buffer)
        places = np.arange(len(rows))[:, np.newaxis] * (out.buffer.vectors * native)
        places = places + np.arange(outputs)
    tiles = b.weights(f"{node.name}_weight", laid)
    b.add(node.name, read, out.buffer, out.buffer.geometry, tiles=tiles)
    view = View(out.buffer, places.reshape(*x.places.shape[:-1], outputs))
    if bias is None:
        return view
    return b.with_constant(f"{node.name}_bias", "vv_add", view, bias)


def gemm(b: Builder, node: Node, inputs: Sequence[Input], shape: Shape) -> View:
    """alpha * x * W + beta * c."""
    a = node.attributes
    if a["transA"]:
        raise UnsupportedError("expected transA = 0, found 1")
    weights = constant_of(inputs[1], "weights")
    weights = float(a["alpha"]) * (weights if a["transB"] else weights.T)
    bias = inputs[2] if len(inputs) > 2 else None
    if bias is not None:
        bias = float(a["beta"]) * constant_of(bias, "biases")
    return linear(b, node, view_of(inputs[0]), weights, bias)


def matmul(b: Builder, node: Node, inputs: Sequence[Input], shape: Shape) -> View:
    """x [1, ..., K] times constant weights [K, O]."""
    weights = constant_of(inputs[1], "weights")
    if weights.ndim > 2 and math.prod(weights.shape[:-2]) == 1:
        weights = weights.reshape(weights.shape[-2:])
    if weights.ndim != 2:
        raise UnsupportedError(f"expected weights [K, O], found {list(weights.shape)}")
    return linear(b, node, view_of(inputs[0]), weights.T, None)


# --- pools ------------------------------------------------------------------------------------


def axis_reduced(
    b: Builder,
    name: str,
    op: str,
    image: ImageView,
    axis: int,
    taps: Sequence[int],
    stride: int,
    count: int,
    fill: float,
) -> ImageView:
    """The sum or maximum of pixels along an axis: output i of what lies at i * stride + taps."""
    buffer = image.buffer
    size = [buffer.height, buffer.width]
    if list(taps) == [0] and stride == 1 and count == size[axis]:
        return image
    size[axis] = count

    def at(tap: int) -> BufferAccess:
        if axis == 0:
            return BufferAccess(buffer, y=tap, step_y=stride, fill=fill)
        return BufferAccess(buffer, x=tap, step_x=stride, fill=fill)

    accesses = [at(tap) for tap in taps]
    read, rest = accesses[0], accesses[1:]
    while True:
        target = Buffer(name, size[0], size[1], buffer.vectors)
        operations = [UnitOperation(op, operand) for operand in rest[:2]]
        b.add(name, read, target, target.geometry, operations)
        rest, read = rest[2:], BufferAccess(target)
        if not rest:
            return replace(image, buffer=target)


def _pooled(
    b: Builder,
    node: Node,
    x: View,
    op: str,
    kernel: Shape,
    strides: Shape,
    dilations: Shape,
    pads: Shape,
    size: Shape,
) -> ImageView:
    """Windows reduced along rows first, then along columns."""
    image = image_of(x, b.native)
    if any(image.pads):
        raise UnsupportedError("expected an unpadded image, found an explicit Pad before it")
    fill = -math.inf if op == "vv_max" else 0.0
    for axis in (1, 0):
        taps = [tap * dilations[axis] - pads[axis] for tap in range(kernel[axis])]
        image = axis_reduced(b, node.name, op, image, axis, taps, strides[axis], size[axis], fill)
    return image


def _as_view(b: Builder, image: ImageView, shape: Shape) -> View:
    return View(image.buffer, image_places(image.lanes, image.buffer, b.native).reshape(shape))


def pool(op: str) -> Rule:
    """MaxPool by `vv_max`, AveragePool by `vv_add` and a product with 1 / (size of the window)."""

    def rule(b: Builder, node: Node, inputs: Sequence[Input], shape: Shape) -> View:
        """The reduced image; sums are divided by the counts, which differ along padded edges."""
        x = view_of(inputs[0])
        strides, dilations, pads, kernel = window(node, tuple(node.attributes["kernel_shape"]))
        size = (1, *shape[2:])[-2:]
        image = _pooled(b, node, x, op, kernel, strides, dilations, pads, size)
        view = _as_view(b, image, shape)
        if op == "vv_max":
            return replace(view, nonnegative=x.nonnegative)
        padded = bool(node.attributes["count_include_pad"])
        counts = np.ones(())
        for axis, length in enumerate((1, *x.places.shape[2:])[-2:]):
            taps = np.arange(kernel[axis]) * dilations[axis] - pads[axis]
            reads = np.arange(size[axis])[:, np.newaxis] * strides[axis] + taps
            low, high = (-pads[axis], length + pads[axis + 2]) if padded else (0, length)
            inside = ((reads >= low) & (reads < high)).sum(1)
            counts = counts[..., np.newaxis] * inside
        ratio = (1.0 / counts).reshape(1, 1, *shape[2:])
        view = b.with_constant(f"{node.name}_ratio", "vv_mul", view, ratio)
        return replace(view, nonnegative=x.nonnegative)

    return rule


def reduction(op: str, mean: bool = False) -> Rule:
    """Sum, mean or maximum over rows, columns or both; of the global pools too."""

    def rule(b: Builder, node: Node, inputs: Sequence[Input], shape: Shape) -> View:
        """The reduced image. Raises UnsupportedError for axes that are no rows or columns."""
        x = view_of(inputs[0])
        rank = x.places.ndim
        axes = {a % rank for a in node.attributes.get("axes", range(2, rank))}
        others = [a for a in range(1, rank) if a not in axes]
        if 0 in axes or not others or not axes:
            raise UnsupportedError("expected axes of rows or columns, found others")
        # Channels are the first axis that stays; a sequence [1, T, C] has them last.
        order = (0, others[0], *(a for a in range(1, rank) if a != others[0]))
        moved = View(x.buffer, x.places.transpose(order), x.nonnegative)
        height, width = (1, *moved.places.shape[2:])[-2:]
        over = [False, *(a in axes for a in order[2:])][-2:]
        kernel = (height if over[0] else 1, width if over[1] else 1)
        size = (height // kernel[0], width // kernel[1])
        image = _pooled(b, node, moved, op, kernel, (1, 1), (1, 1), (0, 0, 0, 0), size)
        view = _as_view(b, image, shape)
        if mean and math.prod(kernel) > 1:
            ratio = np.asarray(1.0 / math.prod(kernel))
            view = b.with_constant(f"{node.name}_ratio", "vv_mul", view, ratio)
        return replace(view, nonnegative=x.nonnegative)

    return rule


# --- joining ----------------------------------------------------------------------------------


def concat(b: Builder, node: Node, inputs: Sequence[Input], shape: Shape) -> View:
    """Channels of several images, or features of several vectors, one after the other.

    Each starts at a native vector of its own; what reads the result skips the padding between.
    """
    views = [view_of(x) for x in inputs]
    rank = len(shape)
    axis = node.attributes["axis"] % rank
    height, width = views[0].buffer.geometry[:2]
    if any(view.buffer.geometry[:2] != (height, width) for view in views):
        raise UnsupportedError("expected tensors whose pixels correspond, found other sizes")
    native = b.native
    target = Buffer(node.name, height, width, sum(view.buffer.vectors for view in views))
    places, first = [], 0
    for view in views:
        if (view.places == OUTSIDE).any():
            raise UnsupportedError("expected unpadded tensors, found an explicit Pad before one")
        grid = view.buffer.geometry
        b.add(node.name, BufferAccess(view.buffer), target, grid, vector=first)
        pixel, lane = np.divmod(view.places, view.buffer.vectors * native)
        places.append(pixel * (target.vectors * native) + first * native + lane)
        first += view.buffer.vectors
    return View(target, np.concatenate(places, axis), all(view.nonnegative for view in views))
