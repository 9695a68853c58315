"""The product of two tensors that both depend on inputs: one becomes tiles as the program runs.

A tile has the vectors of N pixels as its rows, or as its columns (`m_rd_t`). For queries and keys
of attention [heads, T, features] the rows of tiles are keys, for its values the columns are:

    scores[t] = sum over features of keys[., f] * queries[t, f]        rows: a key each
    results[t] = sum over steps of values[s, .] * weights[t, s]        columns: a value each

Tiles are loaded before the product that uses them, native vector by native vector of a pixel; what
lies beyond the last pixel is read from a border of zeros. Results by rows of tiles have a pixel for
each head, those by columns the heads one after the other in a pixel, as a layer after them reads
them. A head whose features are not whole native vectors is cut out by a product with 1 in its lanes
and 0 in others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from samebits.errors import UnsupportedError
from samebits.ir.graph import Node
from samebits.npu.compiler.build import Builder
from samebits.npu.compiler.layout import (
    OUTSIDE,
    Array,
    Buffer,
    BufferAccess,
    UnitOperation,
    View,
    WeightTiles,
)
from samebits.npu.compiler.rules import Input, Shape, matmul, view_of

ADVICE = (
    "move the reshaping elsewhere, or make a head's features a multiple of the native dimension"
)


@dataclass(frozen=True, eq=False)
class _Rows:
    """A matrix in a buffer, a row in each of `count` pixels from (y, x), `step` apart.

    lanes: of the columns, the same in every pixel
    """

    buffer: Buffer
    y: int
    x: int
    step: tuple[int, int]
    count: int
    lanes: Array

    @property
    def grid(self) -> tuple[int, int]:
        """Height and width of the chains that go through it."""
        return (1, self.count) if self.step[1] else (self.count, 1)

    def read(self, buffer: Buffer, vector: int) -> BufferAccess:
        """A native vector of every row."""
        return BufferAccess(buffer, self.y, self.x, *self.step, vector=vector)


def _rows(buffer: Buffer, places: Array, native: int) -> _Rows | None:
    """Places [rows, columns] as a matrix; None if they are none."""
    pixel, lane = np.divmod(places, buffer.vectors * native)
    if (pixel != pixel[:, :1]).any() or (lane != lane[:1]).any():
        return None
    y, x = np.divmod(pixel[:, 0], buffer.width)
    steps = {(int(dy), int(dx)) for dy, dx in zip(np.diff(y), np.diff(x), strict=True)} or {(1, 0)}
    if len(steps) > 1 or 0 not in min(steps) or min(min(steps)) < 0:
        return None
    return _Rows(buffer, int(y[0]), int(x[0]), steps.pop(), len(places), lane[0])


def product(b: Builder, node: Node, inputs: Sequence[Input], shape: Shape) -> View:
    """MatMul of x [..., M, K] and constant weights, or another tensor [..., K, O]."""
    if not isinstance(inputs[1], View):
        return matmul(b, node, inputs, shape)
    left, right = view_of(inputs[0]), inputs[1]
    if any((view.places == OUTSIDE).any() for view in (left, right)):
        raise UnsupportedError("expected unpadded tensors, found an explicit Pad before one")
    lead = shape[:-2]
    many = [
        np.broadcast_to(view.places, (*lead, *view.places.shape[-2:])).reshape(
            -1, *view.places.shape[-2:]
        )
        for view in (left, right)
    ]
    made: list[tuple[_Rows, WeightTiles, int, Array]] = []
    for at, (rows, other) in enumerate(zip(*many, strict=True)):
        found = _rows(left.buffer, rows, b.native)
        turned = _rows(right.buffer, other, b.native)
        straight = _rows(right.buffer, other.T, b.native)
        if found is not None and straight is not None:
            made.append(_by_rows(b, f"{node.name}_{at}", found, straight))
        elif found is not None and turned is not None:
            made.append(_by_columns(b, f"{node.name}_{at}", found, turned))
        else:
            raise UnsupportedError(
                f"expected matrices whose rows or columns are pixels, found others; {ADVICE}"
            )
    (height, width), (_, tiles, _, _), heads = made[0][0].grid, made[0], len(made)
    each, count = tiles.rows, height * width
    # Native vectors from the result of a head to that of the next, and from a row to the next.
    apart, along = (count * each, each) if width > 1 and not tiles.turned else (each, heads * each)
    geometry = (height, width, heads * each)
    if not tiles.turned:
        geometry = (heads, width, each) if width > 1 else (height, heads, each)
    target, places = Buffer(node.name, *geometry), []
    for at, (found, tiles, first, lanes) in enumerate(made):
        read = found.read(found.buffer, first)
        b.add(node.name, read, target, (height, width, each), tiles=tiles, vector=at * apart)
        starts = at * apart + np.arange(count)[:, np.newaxis] * along
        places.append(starts * b.native + lanes)
    return View(target, np.stack(places).reshape(shape))


def _by_rows(
    b: Builder, name: str, left: _Rows, right: _Rows
) -> tuple[_Rows, WeightTiles, int, Array]:
    """(left matrix, tiles, its first native vector, lanes of the results), rows of tiles are rows
    of `right`, the features of which lie as those of `left` do."""
    native = b.native
    first, other = (int(rows.lanes.min()) // native for rows in (left, right))
    if not np.array_equal(left.lanes - first * native, right.lanes - other * native):
        raise UnsupportedError(f"expected features of both tensors in the same lanes; {ADVICE}")
    columns = int(left.lanes.max()) // native + 1 - first
    kept = np.zeros(left.buffer.vectors * native)
    kept[left.lanes] = 1
    if not kept[first * native : (first + columns) * native].all():
        operation = UnitOperation("vv_mul", b.lanes(f"{name}_lanes", kept))
        cut = Buffer(f"{name}_cut", *left.buffer.geometry)
        b.add(name, BufferAccess(left.buffer), cut, cut.geometry, [operation])
        left = _Rows(cut, left.y, left.x, left.step, left.count, left.lanes)
    blocks = -(-right.count // native)
    sources = tuple(_column(b, name, right, other + c, blocks) for c in range(columns))
    tiles = WeightTiles(name, None, blocks, columns, sources)
    return left, tiles, first, np.arange(right.count)


def _by_columns(
    b: Builder, name: str, left: _Rows, right: _Rows
) -> tuple[_Rows, WeightTiles, int, Array]:
    """The same where columns of tiles are rows of `right`."""
    native = b.native
    first, start = divmod(int(left.lanes[0]), native)
    if start or not np.array_equal(left.lanes, left.lanes[0] + np.arange(right.count)):
        raise UnsupportedError(f"expected elements from the first lane of a vector on; {ADVICE}")
    outputs = int(right.lanes.min()) // native
    rows = int(right.lanes.max()) // native + 1 - outputs
    blocks = -(-right.count // native)
    sources = tuple(_column(b, name, right, outputs + r, blocks) for r in range(rows))
    tiles = WeightTiles(name, None, rows, blocks, sources, turned=True)
    return left, tiles, first, right.lanes - outputs * native


def _column(b: Builder, name: str, rows: _Rows, vector: int, blocks: int) -> BufferAccess:
    """One native vector of every row, one after the other, as N * blocks of them: zeros follow."""
    made = Buffer(f"{name}_rows", *rows.grid, 1)
    b.add(name, rows.read(rows.buffer, vector), made, made.geometry)
    count = blocks * b.native
    kernel = (1, count) if rows.grid[0] == 1 else (count, 1)
    return BufferAccess(made, step_y=0, step_x=0, kernel=kernel)
