"""Operators that move codes: input and result have one scale and zero point."""

from __future__ import annotations

import numpy as np

from samebits.errors import InputError, UnsupportedError
from samebits.tflite.file import Array, Tensor
from samebits.tflite.same.node import SameNode, same_op
from samebits.tflite.window import image

LARGEST_SIZE = 1 << 14  # of an image that is resized


def zero_of(tensor: Tensor) -> int:
    """The code of 0."""
    return tensor.quantization.zero_points[0] if tensor.quantization else 0


@same_op("RESHAPE", "SQUEEZE", "EXPAND_DIMS")
def _reshape(node: SameNode) -> str:
    """To the shape that the file gives the result."""
    node.alike()
    return node.moved("reshape", [node.input(0)], shape=node.result.shape)


@same_op("PAD", "PADV2")
def _pad(node: SameNode) -> str:
    """With the code of 0, or with that of input 2."""
    node.alike()
    pairs, rank = node.array(1, "pads"), len(node.tensor(0).shape)
    if pairs.dtype.kind not in "iu" or pairs.shape != (rank, 2) or pairs.min() < 0:
        raise InputError(f"expected pads [{rank}, 2] from 0, found {pairs.dtype}{pairs.shape}")
    before, after = (tuple(int(v) for v in pairs[:, end]) for end in (0, 1))
    code = zero_of(node.result)
    if node.operator.op == "PADV2":
        given: Array = node.array(2, "the code to pad with").reshape(-1)
        if node.tensor(2).quantization != node.result.quantization or given.size != 1:
            raise UnsupportedError("expected one code with the scale of the result, found others")
        code = int(given[0])
    return node.moved("pad", [node.input(0)], before=before, after=after, code=code)


@same_op("TRANSPOSE")
def _transpose(node: SameNode) -> str:
    """The axes in the order of input 1."""
    node.alike()
    rank = len(node.tensor(0).shape)
    order = node.whole(1, "axes", rank)
    if sorted(order) != list(range(rank)):
        raise InputError(f"expected each of {rank} axes once, found {order[:8]}")
    return node.moved("transpose", [node.input(0)], perm=tuple(order))


@same_op("SLICE")
def _slice(node: SameNode) -> str:
    """From begins, as many as the sizes say; -1 stands for all."""
    node.alike()
    shape = node.tensor(0).shape
    starts = node.whole(1, "begins", len(shape))
    sizes = node.whole(2, "sizes", len(shape))
    stops = [
        n if size == -1 else start + size
        for start, size, n in zip(starts, sizes, shape, strict=True)
    ]
    ends = zip(starts, stops, shape, strict=True)
    if not all(0 <= start <= stop <= n for start, stop, n in ends):
        raise InputError(f"expected places in {list(shape)}, found {starts[:8]} to {stops[:8]}")
    steps = (1,) * len(shape)
    given = {"starts": tuple(starts), "stops": tuple(stops), "steps": steps}
    return node.moved("slice", [node.input(0)], 0, **given)


@same_op("SPACE_TO_DEPTH", "DEPTH_TO_SPACE")
def _depth(node: SameNode) -> str:
    """Blocks of an image as channels, or channels as blocks."""
    node.alike()
    n, h, w, c = image(node.tensor(0).shape)
    k = node.option("block_size")
    if node.operator.op == "SPACE_TO_DEPTH":
        if k < 1 or h % k or w % k:
            raise InputError(f"expected an image of whole blocks of {k}, found {h} x {w}")
        split = (n, h // k, k, w // k, k, c)
        perm: tuple[int, ...] = (0, 1, 3, 2, 4, 5)
    else:
        if k < 1 or c % (k * k):
            raise InputError(f"expected channels of whole blocks of {k}, found {c}")
        split, perm = (n, h, w, k, k, c // k // k), (0, 1, 3, 2, 4, 5)
    parts = node.emit("reshape", [node.input(0)], shape=split)
    turned = node.emit("transpose", [parts], perm=perm)
    return node.moved("reshape", [turned], shape=node.result.shape)


@same_op("PACK")
def _pack(node: SameNode) -> str:
    """Tensors along a new axis."""
    count, names = len(node.operator.inputs), []
    node.alike(*range(count))
    axis = node.option("axis") % max(len(node.result.shape), 1)
    for index in range(count):
        shape = list(node.tensor(index).shape)
        one = (*shape[:axis], 1, *shape[axis:])
        names.append(node.emit("reshape", [node.input(index)], shape=one))
    return node.moved("concat", names, axis=axis)


@same_op("CONCATENATION")
def _concatenation(node: SameNode) -> str:
    """Tensors with the scale of the result, one behind the other: the runtime refuses others."""
    count = len(node.operator.inputs)
    node.alike(*range(count))
    if node.option("activation"):
        raise UnsupportedError("expected no fused activation, found one")
    axis = node.option("axis") % max(len(node.result.shape), 1)
    return node.moved("concat", [node.input(i) for i in range(count)], axis=axis)


# --- parts ----------------------------------------------------------------------------------------


def _part(
    node: SameNode, x: int, place: int, starts: list[int], stops: list[int], steps: list[int]
) -> str:
    shape = node.graph.tensors[node.outputs[place]].shape
    ends = {"starts": tuple(starts), "stops": tuple(stops), "steps": tuple(steps)}
    found = node.emit("slice", [node.input(x)], **ends)
    return node.moved("reshape", [found], place, shape=shape)


@same_op("STRIDED_SLICE")
def _strided(node: SameNode) -> str:
    """Places from begin to end of every axis, as the masks say."""
    node.alike()
    shape, rank = node.tensor(0).shape, len(node.tensor(0).shape)
    begins, ends, steps = (node.whole(i, "places", rank) for i in (1, 2, 3))
    if node.option("ellipsis_mask") or node.option("new_axis_mask"):
        raise UnsupportedError("expected masks of begins, ends and axes to drop, found others")
    if min(steps, default=1) < 1:
        raise UnsupportedError(f"expected steps forward, found {steps}")
    for axis, n in enumerate(shape):
        begin, end = begins[axis], ends[axis] + node.option("offset") * begins[axis]
        if node.option("shrink_axis_mask") >> axis & 1:
            begin = begin + n if begin < 0 else begin
            begins[axis], ends[axis], steps[axis] = begin, begin + 1, 1
            continue
        low = None if node.option("begin_mask") >> axis & 1 else begin
        high = None if node.option("end_mask") >> axis & 1 else end
        begins[axis], ends[axis], steps[axis] = slice(low, high, steps[axis]).indices(n)
    return _part(node, 0, 0, begins, ends, steps)


@same_op("SPLIT", "SPLIT_V")
def _split(node: SameNode) -> tuple[str, ...]:
    """Parts along an axis, of the sizes that the file gives them."""
    x, at = (1, 0) if node.operator.op == "SPLIT" else (0, 2)
    shape, axis = node.tensor(x).shape, node.whole(at, "axis", 1)[0]
    tensors = [node.graph.tensors[number] for number in node.outputs]
    of = node.tensor(x)
    if not -len(shape) <= axis < len(shape):
        raise InputError(f"expected an axis of {len(shape)} dimensions, found {axis}")
    if any((t.dtype, t.quantization) != (of.dtype, of.quantization) for t in tensors):
        raise UnsupportedError("expected parts with the scale of the whole, found others")
    axis, found, done = axis % len(shape), [], 0
    for place, tensor in enumerate(tensors):
        if len(tensor.shape) != len(shape):
            raise InputError(f"expected parts of {len(shape)} dimensions, found {tensor}")
        starts, stops = [0] * len(shape), list(shape)
        starts[axis], stops[axis] = done, done + tensor.shape[axis]
        done = stops[axis]
        found.append(_part(node, x, place, starts, stops, [1] * len(shape)))
    return tuple(found)


@same_op("UNPACK")
def _unpack(node: SameNode) -> tuple[str, ...]:
    """Parts of one place each, without the axis."""
    node.alike()
    shape, axis = node.tensor(0).shape, node.option("axis")
    if not -len(shape) <= axis < len(shape) or len(node.outputs) != shape[axis]:
        raise InputError(f"expected {len(node.outputs)} places along axis {axis}, found {shape}")
    found = []
    for place in range(len(node.outputs)):
        starts, stops = [0] * len(shape), list(shape)
        starts[axis], stops[axis] = place, place + 1
        found.append(_part(node, 0, place, starts, stops, [1] * len(shape)))
    return tuple(found)


# --- places ---------------------------------------------------------------------------------------


def _taken(node: SameNode, x: str, axis: int, places: Array) -> str:
    """Places along an axis, each anywhere."""
    array = np.ascontiguousarray(places, np.int32)
    return node.emit("gather", [x, node.builder.constant(f"{node.hint}.places", array)], axis=axis)


def _along(n: int) -> Array:
    """The places of an axis."""
    if n > LARGEST_SIZE:
        raise UnsupportedError(f"expected an axis of at most {LARGEST_SIZE} places, found {n}")
    return np.arange(n)


@same_op("GATHER")
def _gather(node: SameNode) -> str:
    """Constant places along an axis."""
    node.alike()
    shape, axis = node.tensor(0).shape, node.option("axis")
    if node.option("batch_dims") or not -len(shape) <= axis < len(shape):
        raise UnsupportedError("expected an axis and no batch dimensions, found others")
    places = np.array(node.whole(1, "places"), np.int64)
    if places.size and not 0 <= places.min() <= places.max() < shape[axis]:
        raise InputError(f"expected places from 0 to {shape[axis] - 1}, found others")
    found = _taken(node, node.input(0), axis % len(shape), places)
    return node.moved("reshape", [found], shape=node.result.shape)


@same_op("MIRROR_PAD")
def _mirror(node: SameNode) -> str:
    """Places in front and behind once more, from the end on or from the one beside it."""
    node.alike()
    shape = node.tensor(0).shape
    if node.kind != "int8":
        raise UnsupportedError(f"expected codes of int8, found {node.kind}")
    pads = np.array(node.whole(1, "pads", 2 * len(shape))).reshape(-1, 2)
    apart = 0 if node.option("mode") == 1 else 1
    if any(not 0 <= pad <= n - apart for n, pair in zip(shape, pads, strict=True) for pad in pair):
        raise InputError(f"expected pads within {list(shape)}, found {pads.tolist()}")
    x = node.input(0)
    for axis, (n, pair) in enumerate(zip(shape, pads, strict=True)):
        if pair.any():
            turned = _along(n)[::-1]
            front, behind = turned[n - pair[0] - apart : n - apart], turned[apart : pair[1] + apart]
            x = _taken(node, x, axis, np.concatenate([front, _along(n), behind]))
    return node.moved("reshape", [x], shape=node.result.shape)


@same_op("REVERSE_V2")
def _reverse(node: SameNode) -> str:
    """Axes from behind."""
    node.alike()
    shape, x = node.tensor(0).shape, node.input(0)
    for axis in sorted(set(node.whole(1, "axes"))):
        if not -len(shape) <= axis < len(shape):
            raise InputError(f"expected axes of {len(shape)} dimensions, found {axis}")
        x = _taken(node, x, axis % len(shape), _along(shape[axis])[::-1])
    return node.moved("reshape", [x], shape=shape)


@same_op("RESIZE_NEAREST_NEIGHBOR")
def _nearest(node: SameNode) -> str:
    """The nearest rows and columns, in binary32."""
    node.alike()
    image(node.tensor(0).shape)
    x = node.input(0)
    for axis, out in enumerate(node.whole(1, "sizes", 2), 1):
        if not 1 <= out <= LARGEST_SIZE:
            raise InputError(f"expected a size from 1 to {LARGEST_SIZE}, found {out}")
        x = _taken(node, x, axis, _places(node, node.tensor(0).shape[axis], out))
    return node.moved("reshape", [x], shape=node.result.shape)


def _places(node: SameNode, size: int, out: int) -> Array:
    corners = node.option("align_corners")
    half = np.float32(0.5 if node.option("half_pixel_centers") else 0)
    ratio = np.float32(size) / np.float32(out)
    if corners and out > 1:
        ratio = np.float32(size - 1) / np.float32(out - 1)
    places = (np.arange(out, dtype=np.float32) + half) * ratio
    nearest = np.floor(places.astype(np.float64) + 0.5) if corners else np.floor(places)
    return np.clip(nearest.astype(np.int64), 0, size - 1)


@same_op("BROADCAST_TO")
def _broadcast(node: SameNode) -> str:
    """As often as the shape says."""
    node.alike()
    return node.moved("expand", [node.input(0)], shape=node.result.shape)


@same_op("SPACE_TO_BATCH_ND", "BATCH_TO_SPACE_ND")
def _batches(node: SameNode) -> str:
    """Blocks of an image as images; images as blocks, then cropped."""
    node.alike()
    n, h, w, c = image(node.tensor(0).shape)
    blocks = node.whole(1, "blocks", 2)
    (top, bottom), (left, right) = np.array(node.whole(2, "pads", 4)).reshape(2, 2).tolist()
    (p, q), x = blocks, node.input(0)
    if min(p, q) < 1 or min(top, bottom, left, right) < 0:
        raise InputError(f"expected blocks from 1 and pads from 0, found {blocks}")
    if node.operator.op == "SPACE_TO_BATCH_ND":
        if any((top, bottom, left, right)):
            raise UnsupportedError(
                "expected no pads, whose code the kernel does not set, found some"
            )
        if h % p or w % q:
            raise InputError(f"expected an image of whole blocks {p} x {q}, found {h} x {w}")
        x = node.emit("reshape", [x], shape=(n, h // p, p, w // q, q, c))
        x = node.emit("transpose", [x], perm=(2, 4, 0, 1, 3, 5))
        return node.moved("reshape", [x], shape=node.result.shape)
    if n % (p * q):
        raise InputError(f"expected images of whole blocks {p} x {q}, found {n}")
    x = node.emit("reshape", [x], shape=(p, q, n // (p * q), h, w, c))
    x = node.emit("transpose", [x], perm=(2, 3, 0, 4, 1, 5))
    x = node.emit("reshape", [x], shape=(n // (p * q), h * p, w * q, c))
    starts, stops = (0, top, left, 0), (n // (p * q), h * p - bottom, w * q - right, c)
    return node.moved("slice", [x], starts=starts, stops=stops, steps=(1, 1, 1, 1))
