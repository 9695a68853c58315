"""Drafts of chains, one for each operation; `compiler.fuse` joins them.

A rule of an operator (`compiler.rules`, `compiler.pointwise`) calls the builder, which appends
drafts: a read, perhaps tiles, perhaps one instruction of a multifunction unit, and a write to a
buffer of its own. Nothing is shared or reused yet and nothing has an address: each draft is right
by itself, and those that follow only ever read what earlier ones wrote. What could be done at once
or in place is decided where all of it is known.

For example Relu(W x + b) with N = 8 and 8 features is, draft by draft:

    read           tiles   instruction            write
    network x                                     x
    x              W                              Gemm
    Gemm                   vv_add Gemm_bias       Gemm_bias
    Gemm_bias              v_relu                 Relu
    Relu                                          network Relu_out

and becomes one chain: `v_rd netq; mv_mul 0; vv_add asvrf0, 0; v_relu; v_wr netq; end_chain`.

A tensor is a `View`: where its elements stand in a buffer. Reshape, Transpose and Slice make
another view and no draft. Constants are laid out as the tensor they meet, and stored once.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256

import numpy as np

from samebits.errors import UnsupportedError
from samebits.npu.compiler.layout import (
    OUTSIDE,
    Array,
    Buffer,
    BufferAccess,
    Draft,
    ImageView,
    Port,
    UnitOperation,
    View,
    WeightTiles,
    WriteTarget,
    binary16,
    image_places,
    scattered,
)

NAME_MAX = 64


@dataclass
class Names:
    """Identifiers for the names of a model, which may be any text."""

    taken: set[str] = field(default_factory=set)

    def unique(self, wanted: str) -> str:
        """Letters, digits and '_' of a name; a number behind it if it is taken."""
        plain = re.sub(r"[^A-Za-z0-9_]+", "_", wanted).strip("_") or "value"
        plain = (f"_{plain}" if plain[0].isdigit() else plain)[: NAME_MAX - 8]
        name, count = plain, 1
        while name in self.taken:
            count += 1
            name = f"{plain}_{count}"
        self.taken.add(name)
        return name


@dataclass
class Builder:
    """Appends drafts. Every operation writes a buffer of its own.

    native:    N                     looped: whether drafts go to the body of the loop over time
    names:     of hints              chains: the drafts so far
    constants: by shape and numbers  tiles:  by a hash of the weights
    borders:   by their number
    """

    native: int
    looped: bool = False
    names: Names = field(default_factory=Names)
    chains: list[Draft] = field(default_factory=list)
    constants: dict[tuple[object, ...], Buffer] = field(default_factory=dict)
    borders: dict[float, Buffer] = field(default_factory=dict)
    tiles: dict[bytes, WeightTiles] = field(default_factory=dict)

    def vectors(self, channels: int) -> int:
        """Native vectors of a pixel."""
        return -(-channels // self.native)

    def add(
        self,
        name: str,
        read: BufferAccess | Port,
        target: Buffer | Port,
        grid: tuple[int, int, int],
        operations: Sequence[UnitOperation] = (),
        *,
        tiles: WeightTiles | None = None,
        vector: int = 0,
        pixels: tuple[int, int, int, int] = (0, 0, 1, 1),
    ) -> None:
        """Append a draft with one target.

        grid: height, width and vectors of a pixel. vector: the first that it writes of each of the
        target's pixels. pixels: y, x, step_y and step_x of these. tiles: of the product that comes
        before the operations.
        """
        targets = (WriteTarget(target, vector, *pixels),)
        self.chains.append(Draft(name, *grid, read, tiles, tuple(operations), targets, self.looped))

    # --- constants ------------------------------------------------------------------------------

    def constant(self, name: str, view: View, array: Array) -> BufferAccess:
        """A constant that broadcasts to the shape of a view, as an operand for it."""
        pixels, same = scattered(view, array, self.native)
        buffer = view.buffer
        shape = self._hint_shape(view, same)
        if same:
            pixels = pixels[:1]
        geometry = (1, 1) if same else (buffer.height, buffer.width)
        found = self._stored(name, pixels, (*geometry, buffer.vectors), shape)
        return BufferAccess(found, step_y=0, step_x=0) if same else BufferAccess(found)

    def lanes(self, name: str, values: Array) -> BufferAccess:
        """A constant for every lane of a pixel, the same for all pixels, as an operand."""
        pixels = binary16(np.asarray(values, np.float64), "constants")[np.newaxis]
        geometry = (1, 1, pixels.shape[1] // self.native)
        found = self._stored(name, pixels, geometry, (pixels.shape[1],))
        return BufferAccess(found, step_y=0, step_x=0)

    def border(self, number: float) -> Buffer:
        """The native vector of which borders consist, a number in every lane: 0, or minus infinity
        for a maximum. It is stored apart, so that none bears the name of an equal constant."""
        if number not in self.borders:
            name = self.names.unique("zero" if number == 0 else "minus_infinity")
            pixels = np.full((1, self.native), number, np.float16)
            self.borders[number] = Buffer(name, 1, 1, 1, pixels, (self.native,))
        return self.borders[number]

    def _hint_shape(self, view: View, same: bool) -> tuple[int, ...]:
        """Logical channels where they stand at the first lanes of every pixel, else all lanes."""
        buffer, pixel = view.buffer, view.buffer.vectors * self.native
        highest = int((view.places % pixel).max()) + 1
        channels = max(highest, pixel - self.native + 1)
        return (channels,) if same else (channels, buffer.height, buffer.width)

    def _stored(
        self, name: str, pixels: Array, geometry: tuple[int, int, int], shape: tuple[int, ...]
    ) -> Buffer:
        key = (geometry, pixels.tobytes())
        if key not in self.constants:
            values = pixels.reshape(-1, self.native)
            self.constants[key] = Buffer(self.names.unique(name), *geometry, values, shape)
        return self.constants[key]

    def weights(self, name: str, array: Array) -> WeightTiles:
        """Tiles of [O, I] or [O, I, KH, KW]; equal weights are stored once."""
        rounded = binary16(array, "weights")
        if rounded.ndim == 4 and rounded.shape[2:] == (1, 1):
            rounded = rounded[:, :, 0, 0]
        key = sha256(repr(rounded.shape).encode() + rounded.tobytes()).digest()
        if key not in self.tiles:
            rows = self.vectors(rounded.shape[0])
            columns = self.vectors(rounded.shape[1]) * int(np.prod(rounded.shape[2:]))
            self.tiles[key] = WeightTiles(self.names.unique(name), rounded, rows, columns)
        return self.tiles[key]

    # --- operations -----------------------------------------------------------------------------

    def operate(self, name: str, view: View, *operations: UnitOperation) -> View:
        """Instructions of the multifunction units, a draft each, on all of a buffer.

        Raises UnsupportedError for a padded view.
        """
        if (view.places == OUTSIDE).any():
            raise UnsupportedError("expected an unpadded tensor, found an explicit Pad before it")
        buffer = view.buffer
        for operation in operations:
            target = Buffer(name, *buffer.geometry)
            self.add(name, BufferAccess(buffer), target, buffer.geometry, [operation])
            buffer = target
        plain = all(operation.operand is None for operation in operations)
        return View(buffer, view.places, uniform=view.uniform and plain)

    def with_constant(self, name: str, op: str, view: View, array: Array) -> View:
        """`op` with a constant operand."""
        if view.uniform and array.size == 1:
            every = np.full(view.buffer.vectors * self.native, array.item())
            made = self.operate(name, view, UnitOperation(op, self.lanes(name, every)))
            return replace(made, uniform=True)
        return self.operate(name, view, UnitOperation(op, self.constant(name, view, array)))

    def first_vector(self, name: str, view: View) -> View:
        """One element of every pixel of a uniform tensor in the first lane of its only vector."""
        buffer, native = view.buffer, self.native
        target = Buffer(name, buffer.height, buffer.width, 1)
        self.add(name, BufferAccess(buffer), target, target.geometry)
        return View(target, view.places // (buffer.vectors * native) * native, view.nonnegative)

    def padded(self, name: str, view: View, number: float) -> View:
        """The tensor with a number, 0 or 1, in the lanes of its buffer that hold no element, where
        there are such. 1 is added to what stands there."""
        pixel = view.buffer.vectors * self.native
        used = np.zeros((view.buffer.height * view.buffer.width, pixel), np.bool_)
        used.reshape(-1)[view.places] = True
        if view.uniform or used.all():
            return view
        if (used != used[0]).any():
            raise UnsupportedError("expected a whole tensor, found one that was cut")
        values, op = (used[0], "vv_mul") if number == 0 else (~used[0], "vv_add")
        return self.operate(name, view, UnitOperation(op, self.lanes(f"{name}_lanes", values)))

    def operand(self, view: View, other: View) -> BufferAccess | None:
        """`other`, broadcast to the shape of `view`, as an operand for it; None if it cannot be."""
        pixel = view.buffer.vectors * self.native
        places = np.broadcast_to(other.places, view.places.shape)
        if other.uniform and other.buffer.vectors == view.buffer.vectors:
            places = places // pixel * pixel + view.places % pixel
        if view.buffer.geometry == other.buffer.geometry and np.array_equal(places, view.places):
            return BufferAccess(other.buffer)
        if other.buffer.geometry == (1, 1, view.buffer.vectors) and np.array_equal(
            places, view.places % pixel
        ):
            return BufferAccess(other.buffer, step_y=0, step_x=0)
        return None

    def image(self, name: str, channels: int, height: int, width: int) -> View:
        """A new image whose channels fill its vectors."""
        buffer = Buffer(name, height, width, self.vectors(channels))
        return View(buffer, image_places(np.arange(channels), buffer, self.native))

    def input_lanes(self, lanes: Array, vectors: int, weights: Array) -> Array:
        """Weights [O, C, ...] as [O, I, ...] for inputs that stand at these lanes of a pixel."""
        count = max(int(lanes.max()) + 1, (vectors - 1) * self.native + 1)
        laid = np.zeros((weights.shape[0], count, *weights.shape[2:]))
        for channel, lane in enumerate(lanes.tolist()):  # a lane may be read twice
            laid[:, lane] += weights[:, channel]
        return laid

    def vectors_of(self, name: str, image: ImageView, first: int, count: int) -> ImageView:
        """Some native vectors of every pixel as an image of their own."""
        buffer = image.buffer
        target = Buffer(name, buffer.height, buffer.width, count)
        self.add(name, BufferAccess(buffer, vector=first), target, target.geometry)
        return replace(image, buffer=target, lanes=image.lanes - first * self.native)
