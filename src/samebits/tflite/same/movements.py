"""Operators that move codes: input and result have one scale and zero point."""

from __future__ import annotations

from samebits.errors import InputError, UnsupportedError
from samebits.tflite.file import Array
from samebits.tflite.same.node import SameNode, same_op, scale_of
from samebits.tflite.window import image


def _whole(node: SameNode, index: int, what: str, rank: int) -> list[int]:
    """As many whole numbers as there are dimensions."""
    array = node.array(index, what).reshape(-1)
    if array.dtype.kind not in "iu" or array.size != rank:
        raise InputError(f"expected {rank} {what}, found {array.dtype}[{array.size}]")
    return [int(v) for v in array]


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
    code = scale_of(node.result).zero_points[0]
    if node.operator.op == "PADV2":
        given: Array = node.array(2, "the code to pad with").reshape(-1)
        if node.scale(2) != scale_of(node.result) or given.size != 1:
            raise UnsupportedError("expected one code with the scale of the result, found others")
        code = int(given[0])
    return node.moved("pad", [node.input(0)], before=before, after=after, code=code)


@same_op("TRANSPOSE")
def _transpose(node: SameNode) -> str:
    """The axes in the order of input 1."""
    node.alike()
    rank = len(node.tensor(0).shape)
    order = _whole(node, 1, "axes", rank)
    if sorted(order) != list(range(rank)):
        raise InputError(f"expected each of {rank} axes once, found {order[:8]}")
    return node.moved("transpose", [node.input(0)], perm=tuple(order))


@same_op("SLICE")
def _slice(node: SameNode) -> str:
    """From begins, as many as the sizes say; -1 stands for all."""
    node.alike()
    shape = node.tensor(0).shape
    starts = _whole(node, 1, "begins", len(shape))
    sizes = _whole(node, 2, "sizes", len(shape))
    stops = [
        n if size == -1 else start + size
        for start, size, n in zip(starts, sizes, shape, strict=True)
    ]
    ends = zip(starts, stops, shape, strict=True)
    if not all(0 <= start <= stop <= n for start, stop, n in ends):
        raise InputError(f"expected places in {list(shape)}, found {starts[:8]} to {stops[:8]}")
    steps = (1,) * len(shape)
    given = {"starts": tuple(starts), "stops": tuple(stops), "steps": steps}
    return node.moved("slice", [node.input(0)], **given)


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
    names, rank = [], len(node.result.shape)
    axis = node.option("axis") % max(rank, 1)
    for index in range(len(node.operator.inputs)):
        if node.scale(index) != scale_of(node.result):
            raise UnsupportedError("expected tensors with the scale of the result, found others")
        shape = list(node.tensor(index).shape)
        one = (*shape[:axis], 1, *shape[axis:])
        names.append(node.emit("reshape", [node.input(index)], shape=one))
    return node.moved("concat", names, axis=axis)


@same_op("CONCATENATION")
def _concatenation(node: SameNode) -> str:
    """Tensors with the scale of the result, one behind the other: the runtime refuses others."""
    count = len(node.operator.inputs)
    if any(node.scale(i) != scale_of(node.result) for i in range(count)):
        raise UnsupportedError("expected tensors with the scale of the result, found others")
    if node.option("activation"):
        raise UnsupportedError("expected no fused activation, found one")
    axis = node.option("axis") % max(len(node.result.shape), 1)
    return node.moved("concat", [node.input(i) for i in range(count)], axis=axis)
