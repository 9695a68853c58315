"""Matrix products."""

from __future__ import annotations

from samebits.errors import InputError, UnsupportedError
from samebits.ir.foreign import Result
from samebits.tflite.exact.node import LiteNode, lite_op


@lite_op("FULLY_CONNECTED")
def _fully_connected(node: LiteNode) -> Result:
    """Rows of the input times weights [O, K], whatever the rank of both ends."""
    if node.option("weights_format"):
        raise UnsupportedError("expected weights as rows, found shuffled ones")
    weights = node.weights(1, (0, 1))
    outputs, each = node.shape(1)
    rows, value = node.shape(), node.input(0)
    if not each or not rows or any(not n for n in rows):
        raise InputError(f"expected rows of {each} numbers, found {list(rows)}")
    if rows != (*rows[:-1], each) or len(rows) != 2:
        value = node.emit("Reshape", value, shape=_rows(rows, each))
    found = node.emit("Gemm", value, weights, *node.bias(2, 0, 1), transB=1)
    shape = node.result().shape
    if node.shape_of(found) != shape:
        if not shape or shape[-1] != outputs:
            raise InputError(f"expected results of {outputs} numbers, found {list(shape)}")
        found = node.emit("Reshape", found, shape=shape)
    return node.activated(found)


def _rows(shape: tuple[int, ...], each: int) -> tuple[int, int]:
    count = 1
    for n in shape:
        count *= n
    if count % each:
        raise InputError(f"expected a multiple of {each} numbers, found {list(shape)}")
    return count // each, each


@lite_op("BATCH_MATMUL")
def _batch_matmul(node: LiteNode) -> Result:
    """The last two axes of each factor, swapped where an option says so."""
    factors = []
    for index, option in ((0, "adj_x"), (1, "adj_y")):
        rank = len(node.shape(index))
        if rank < 2:
            raise InputError(f"expected matrices, found shape {list(node.shape(index))}")
        last = (rank - 1, rank - 2) if node.option(option) else (rank - 2, rank - 1)
        factors.append(node.weights(index, (*range(rank - 2), *last)))
    return node.emit("MatMul", *factors)
