"""Operators that move numbers: new shapes, orders, parts, pads, and several tensors as one."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from samebits.errors import InputError, UnsupportedError
from samebits.ir.foreign import Result
from samebits.tflite.exact.node import LiteNode, lite_op

LAST = 2**31 - 1  # an end beyond every axis


@lite_op("RESHAPE", "SQUEEZE", "EXPAND_DIMS", moves=True)
def _reshape(node: LiteNode) -> Result:
    """To the shape that the file gives the result, which input 1 or an option repeats."""
    return node.emit("Reshape", node.input(0), shape=node.result().shape)


@lite_op("TRANSPOSE", moves=True)
def _transpose(node: LiteNode) -> Result:
    rank = len(node.shape())
    perm = tuple(node.axis(v, rank) for v in node.integers(1, "the order of axes"))
    return node.emit("Transpose", node.input(0), perm=perm)


@lite_op("CONCATENATION", moves=True)
def _concatenation(node: LiteNode) -> Result:
    """A fused activation comes before, where the numbers still have one scale each."""
    values = [node.activated(value) for value in node.inputs()]
    return node.emit("Concat", *values, axis=node.option("axis"))


@lite_op("PACK", moves=True)
def _pack(node: LiteNode) -> Result:
    axis = node.axis(node.option("axis"), len(node.shape()) + 1)
    parts = [node.emit("Unsqueeze", value, axes=(axis,)) for value in node.inputs()]
    return node.emit("Concat", *parts, axis=axis)


@lite_op("UNPACK", moves=True)
def _unpack(node: LiteNode) -> Result:
    shape = node.shape()
    axis = node.axis(node.option("axis"), len(shape))
    parts = _split(node, node.input(0), axis, (1,) * shape[axis])
    return [node.emit("Squeeze", part, axes=(axis,)) for part in parts]


def _split(node: LiteNode, value: str, axis: int, sizes: Sequence[int]) -> Sequence[str]:
    if len(sizes) != len(node.operator.outputs):
        raise InputError(f"expected {len(sizes)} outputs, found {len(node.operator.outputs)}")
    return node.emit_all("Split", value, axis=axis, sizes=tuple(sizes))


@lite_op("SPLIT", moves=True)
def _equal_parts(node: LiteNode) -> Result:
    """Input 0 is the axis, input 1 is split in equal parts."""
    shape = node.shape(1)
    (axis,) = _one(node, 0, "axis")
    axis, count = node.axis(axis, len(shape)), len(node.operator.outputs)
    if not count or shape[axis] % count:
        raise InputError(f"expected {shape[axis]} positions in {count} equal parts")
    return _split(node, node.input(1), axis, (shape[axis] // count,) * count)


@lite_op("SPLIT_V", moves=True)
def _parts(node: LiteNode) -> Result:
    """Parts of the sizes of input 1, one of which may be -1: what is left."""
    shape = node.shape()
    (axis,) = _one(node, 2, "axis")
    axis = node.axis(axis, len(shape))
    sizes = list(node.integers(1, "sizes"))
    if sizes.count(-1) == 1:
        sizes[sizes.index(-1)] = shape[axis] - sum(sizes) - 1
    return _split(node, node.input(0), axis, sizes)


def _one(node: LiteNode, index: int, what: str) -> tuple[int]:
    found = node.integers(index, what)
    if len(found) != 1:
        raise InputError(f"expected one number as {what}, found {list(found)}")
    return (found[0],)


@lite_op("SLICE", moves=True)
def _slice(node: LiteNode) -> Result:
    """From the places of input 1 as many as input 2 says, -1: all that follow."""
    begins, sizes = node.integers(1, "begins"), node.integers(2, "sizes")
    rank = len(node.shape())
    if len(begins) != rank or len(sizes) != rank:
        raise InputError(f"expected {rank} begins and sizes, found {begins} and {sizes}")
    ends = [LAST if n < 0 else b + n for b, n in zip(begins, sizes, strict=True)]
    return node.emit(
        "Slice",
        node.input(0),
        starts=begins,
        ends=tuple(ends),
        steps=(1,) * rank,
        axes=tuple(range(rank)),
    )


@lite_op("STRIDED_SLICE", moves=True)
def _strided_slice(node: LiteNode) -> Result:
    """Inputs 1 to 3 are begins, ends and steps; bits of the masks leave some of them out, and drop
    axes of which one place is taken."""
    if node.option("ellipsis_mask") or node.option("new_axis_mask"):
        raise UnsupportedError("expected no ellipsis and no new axis, found one")
    begins, ends, steps = (
        node.integers(i, what) for i, what in ((1, "begins"), (2, "ends"), (3, "steps"))
    )
    shape = node.shape()
    if len({len(begins), len(ends), len(steps)}) != 1 or len(begins) > len(shape):
        raise InputError(f"expected at most {len(shape)} begins, ends and steps of each")
    starts, stops, strides = [], [], []
    for axis, (begin, end, step) in enumerate(zip(begins, ends, steps, strict=True)):
        first = _bit(node, "begin_mask", axis)
        last = _bit(node, "end_mask", axis)
        if _bit(node, "shrink_axis_mask", axis):
            begin = node.axis(begin, shape[axis])
            end, step, first, last = begin + 1, 1, False, False
        elif node.option("offset"):
            end += begin
        starts.append((LAST if step < 0 else 0) if first else begin)
        stops.append((-LAST if step < 0 else LAST) if last else end)
        strides.append(step)
    found = node.emit(
        "Slice",
        node.input(0),
        starts=tuple(starts),
        ends=tuple(stops),
        steps=tuple(strides),
        axes=tuple(range(len(starts))),
    )
    wanted = node.result().shape
    return found if node.shape_of(found) == wanted else node.emit("Reshape", found, shape=wanted)


def _bit(node: LiteNode, mask: str, axis: int) -> bool:
    return bool(node.option(mask) >> axis & 1)


@lite_op("GATHER", moves=True)
def _gather(node: LiteNode) -> Result:
    if node.option("batch_dims"):
        raise UnsupportedError(f"expected batch_dims 0, found {node.option('batch_dims')}")
    return node.emit("Gather", node.input(0), node.input(1), axis=node.option("axis"))


@lite_op("REVERSE_V2", moves=True)
def _reverse(node: LiteNode) -> Result:
    """Axes from behind."""
    value, shape = node.input(0), node.shape()
    for axis in node.axes(1, len(shape)):
        value = _reversed(node, value, axis, LAST, -LAST)
    return value


@lite_op("TILE", moves=True)
def _tile(node: LiteNode) -> Result:
    return node.emit("Tile", node.input(0), repeats=node.integers(1, "repeats"))


@lite_op("BROADCAST_TO", moves=True)
def _broadcast(node: LiteNode) -> Result:
    return node.emit("Expand", node.input(0), shape=node.result().shape)


@lite_op("SHAPE")
def _shape(node: LiteNode) -> Result:
    """The file fixes every shape."""
    return node.constant(np.array(node.shape(), node.result().dtype))


def _pads(node: LiteNode) -> tuple[int, ...]:
    """All pads before, then all after, of the pairs in input 1."""
    pairs, rank = node.array(1, "pads"), len(node.shape())
    if pairs.dtype.kind not in "iu" or pairs.shape != (rank, 2):
        raise InputError(f"expected pads [{rank}, 2], found {pairs.dtype.name}{list(pairs.shape)}")
    if pairs.size and not 0 <= int(pairs.min()) <= int(pairs.max()) < 2**28:
        raise InputError("expected pads from 0 to 2**28, found others")
    return tuple(int(v) for v in pairs.T.reshape(-1))


@lite_op("PAD", moves=True)
def _pad(node: LiteNode) -> Result:
    """With the number 0."""
    return _padded(node, 0.0)


@lite_op("PADV2", moves=True)
def _pad_with(node: LiteNode) -> Result:
    """With the number of input 2, whose codes are those of the result."""
    code, tensor = node.array(2, "the number to pad with"), node.tensor(2)
    if code.size != 1:
        raise InputError(f"expected one number to pad with, found {list(code.shape)}")
    value = code.reshape(-1)[0]
    quantization = (
        node.result().quantization if tensor.dtype in ("int8", "int16", "uint8") else None
    )
    if quantization is None:
        return _padded(node, float(value))
    return _padded(node, (int(value) - quantization.zero_points[0]) * quantization.scales[0])


def _padded(node: LiteNode, value: float) -> str:
    return node.emit("Pad", node.input(0), pads=_pads(node), mode="constant", value=value)


@lite_op("MIRROR_PAD", moves=True)
def _mirror_pad(node: LiteNode) -> Result:
    """With the numbers inside, the outermost ones repeated where the mode is SYMMETRIC."""
    pads, value = _pads(node), node.input(0)
    if not node.option("mode"):
        return node.emit("Pad", value, pads=pads, mode="reflect", value=0.0)
    rank = len(node.shape())
    for axis, size in enumerate(node.shape()):
        before, after = pads[axis], pads[axis + rank]
        if max(before, after) > size:
            raise InputError(f"expected pads of at most {size} along axis {axis}")
        parts = [_reversed(node, value, axis, before - 1, -LAST)] if before else []
        parts.append(value)
        if after:
            parts.append(_reversed(node, value, axis, size - 1, size - 1 - after - size))
        value = node.emit("Concat", *parts, axis=axis) if len(parts) > 1 else value
    return value


def _reversed(node: LiteNode, value: str, axis: int, first: int, end: int) -> str:
    """The positions of an axis from `first` down to the one behind `end`."""
    ends = {"starts": (first,), "ends": (end,), "steps": (-1,), "axes": (axis,)}
    return node.emit("Slice", value, **ends)
