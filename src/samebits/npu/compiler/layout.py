"""Data of the compiler to firmware: buffers of native vectors, views of tensors, drafts of chains.

A buffer is an image of pixels of some native vectors each; where it lies in memory is decided
later. A view says at which lane of a buffer each element of a tensor stands, so reshaping,
transposing and slicing move numbers in the view and nothing in the machine.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from samebits.errors import NonFiniteError, UnsupportedError
from samebits.npu.machine.image import entry_count
from samebits.npu.machine.isa import INSTRUCTIONS, UNIT_STAGES
from samebits.npu.machine.program import QUEUE

Array = np.ndarray[Any, Any]
OUTSIDE = -1  # the place of an element that is not stored: a zero of an explicit pad


@dataclass(frozen=True, eq=False)
class Buffer:
    """height x width pixels of `vectors` native vectors.

    values: of a constant, binary16 [height * width * vectors, N]; of a state, its first values.
    A state is read like a constant and written once a turn.   shape: of its hint
    """

    name: str
    height: int
    width: int
    vectors: int
    values: Array | None = None
    shape: tuple[int, ...] = ()

    @property
    def geometry(self) -> tuple[int, int, int]:
        """Height, width and native vectors of a pixel."""
        return self.height, self.width, self.vectors


@dataclass(frozen=True)
class Port:
    """A tensor of the network queue, as its hint says."""

    name: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class BufferAccess:
    """Where a chain reads: for output pixel (i, j) the kernel[0] x kernel[1] pixels from
    (y + i * step_y, x + j * step_x), rows `dilation` apart; the vectors of a pixel from `vector`.

    Pixels outside the buffer read `fill`.
    """

    buffer: Buffer
    y: int = 0
    x: int = 0
    step_y: int = 1
    step_x: int = 1
    kernel: tuple[int, int] = (1, 1)
    dilation: int = 1
    vector: int = 0
    fill: float = 0.0

    def whole(self, height: int, width: int, rows: int) -> bool:
        """Whether a chain of this grid reads every vector once, pixel by pixel, in order."""
        steps = (self.y, self.x, self.step_y, self.step_x, *self.kernel, self.vector)
        return steps == (0, 0, 1, 1, 1, 1, 0) and self.buffer.geometry == (height, width, rows)


@dataclass(frozen=True, eq=False)
class WeightTiles:
    """Weights of a product: binary16 [O, I] or [O, I, KH, KW], O x I lanes of outputs and inputs.

    rows, columns: native tiles
    sources: in the place of weights, what becomes tiles when the product runs: the vectors of each
    column of tiles, of each row of them if the tiles are turned
    """

    name: str
    weights: Array | None
    rows: int
    columns: int
    sources: tuple[BufferAccess, ...] = ()
    turned: bool = False


@dataclass(frozen=True)
class UnitOperation:
    """One instruction of a multifunction unit; `unit` is set when the chain is complete."""

    op: str
    operand: BufferAccess | None = None
    unit: int = 0

    @property
    def stage(self) -> int:
        """Place of the instruction in a unit: add-subtract 0, multiply 1, activation 2."""
        return UNIT_STAGES.index(INSTRUCTIONS[self.op].stage)

    @property
    def memory(self) -> str:
        """The memory that the operand must be in."""
        return INSTRUCTIONS[self.op].memories[self.unit]


@dataclass(frozen=True)
class WriteTarget:
    """Where a chain writes: its vectors become those of each pixel from `vector`; its pixel (i, j)
    is (y + i * step_y, x + j * step_x) of the buffer."""

    place: Buffer | Port
    vector: int = 0
    y: int = 0
    x: int = 0
    step_y: int = 1
    step_x: int = 1


@dataclass(frozen=True)
class Draft:
    """A chain without places: it names buffers, not yet memories and addresses.

    `rows` vectors for each pixel of height x width. It may become several chains of instructions,
    one for each block of pixel rows and of tile rows. looped: it is in the body of the loop over
    time.
    """

    name: str
    height: int
    width: int
    rows: int
    read: BufferAccess | Port
    tiles: WeightTiles | None = None
    operations: tuple[UnitOperation, ...] = ()
    targets: tuple[WriteTarget, ...] = ()
    looped: bool = False

    @property
    def grid(self) -> tuple[int, int, int]:
        """Height, width and vectors of a pixel."""
        return self.height, self.width, self.rows

    @property
    def accesses(self) -> list[tuple[int, BufferAccess]]:
        """(slot, access): slot -1 is the read, -2 and on are sources of tiles, others the operands
        of `operations`."""
        found = [(-1, self.read)] if isinstance(self.read, BufferAccess) else []
        if self.tiles is not None:
            found += [(-2 - i, source) for i, source in enumerate(self.tiles.sources)]
        operands = [(i, operation.operand) for i, operation in enumerate(self.operations)]
        return found + [(i, operand) for i, operand in operands if operand is not None]

    @property
    def buffers(self) -> list[Buffer]:
        """Buffers that it writes."""
        return [t.place for t in self.targets if isinstance(t.place, Buffer)]


def with_units(operations: tuple[UnitOperation, ...]) -> tuple[UnitOperation, ...] | None:
    """The operations in the units that come first, or None if one chain cannot hold them all."""
    placed: list[UnitOperation] = []
    before = (0, -1)
    for operation in operations:
        unit = before[0] if operation.stage > before[1] else before[0] + 1
        if unit > 1:
            return None
        before = unit, operation.stage
        placed.append(replace(operation, unit=unit))
    return tuple(placed)


# --- views ------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class View:
    """A tensor. places: int64 of its shape (with the batch axis, 1), lanes of the whole buffer.

    nonnegative: no element is below zero     uniform: all lanes of a pixel hold one number
    """

    buffer: Buffer
    places: Array
    nonnegative: bool = False
    uniform: bool = False


@dataclass(frozen=True, eq=False)
class ImageView:
    """A view [C, H, W] whose pixels are those of its buffer.

    lanes: int64 [C], in a pixel. pads: zeros around it (top, left, bottom, right)
    """

    buffer: Buffer
    lanes: Array
    pads: tuple[int, int, int, int] = (0, 0, 0, 0)


def image_places(lanes: Array, buffer: Buffer, native: int) -> Array:
    """Places [1, C, H, W] of channels that stand at these lanes of every pixel."""
    pixels = np.arange(buffer.height * buffer.width).reshape(1, 1, buffer.height, buffer.width)
    return np.asarray(lanes.reshape(1, -1, 1, 1) + pixels * (buffer.vectors * native))


def image_of(view: View, native: int) -> ImageView:
    """A tensor [1, C, H, W] or [1, C, W] as an image. Raises UnsupportedError if it is none."""
    places = view.places
    if places.ndim == 3:
        places = places[:, :, np.newaxis]
    if places.ndim != 4:
        raise UnsupportedError(f"expected an image [1, C, H, W], found {list(view.places.shape)}")
    stored = np.argwhere(places[0, 0] != OUTSIDE)
    if not len(stored):
        raise UnsupportedError("expected an image, found nothing but padding")
    (top, left), (bottom, right) = stored.min(0), stored.max(0)
    inside = places[:, :, top : bottom + 1, left : right + 1]
    pads = (int(top), int(left), places.shape[2] - 1 - bottom, places.shape[3] - 1 - right)
    lanes, buffer = inside[0, :, 0, 0], view.buffer
    if (
        inside.shape[2:] != (buffer.height, buffer.width)
        or not np.array_equal(inside, image_places(lanes, buffer, native))
        or np.count_nonzero(places != OUTSIDE) != inside.size
    ):
        raise UnsupportedError(
            "expected an image whose pixels lie together as they were computed, found one that "
            "was cut or reordered; move the reshaping elsewhere"
        )
    return ImageView(buffer, lanes, pads)


def dense_places(shape: tuple[int, ...], native: int) -> Array:
    """Places of the elements of a tensor of the network queue (spec section 4), in its shape."""
    channels = shape[-1] if len(shape) == 2 else shape[0]
    pixel = -(-channels // native) * native
    lanes = np.arange(channels)
    if len(shape) == 1:
        return lanes
    if len(shape) == 2:
        return np.asarray(np.arange(shape[0])[:, np.newaxis] * pixel + lanes)
    pixels = np.arange(shape[1] * shape[2]).reshape(shape[1:])
    return np.asarray(lanes.reshape(-1, 1, 1) + pixels * pixel)


def port_shape(view: View, native: int) -> tuple[int, ...] | None:
    """The shape of a queue hint that lists the elements of a view in their order, or None."""
    shape, (height, width, vectors) = view.places.shape[1:], view.buffer.geometry
    size, pixels = view.places.size, height * width
    wanted = [shape] if 1 <= len(shape) <= 3 else []
    if size % pixels == 0:
        wanted += [(size // pixels,), (size // pixels, height, width), (pixels, size // pixels)]
    for candidate in wanted:
        if entry_count(candidate, QUEUE, native) != pixels * vectors:
            continue
        if np.array_equal(dense_places(candidate, native).reshape(-1), view.places.reshape(-1)):
            return tuple(candidate)
    return None


def binary16(array: Array, what: str) -> Array:
    """Rounded to binary16.

    Raises NonFiniteError for NaN and infinities, UnsupportedError where a finite number becomes
    infinite.
    """
    wrong = ~np.isfinite(array)
    if wrong.any():
        raise NonFiniteError(
            f"expected finite {what}, found {array[wrong][0]}; the network is damaged or diverged"
        )
    with np.errstate(over="ignore"):
        rounded = array.astype(np.float16)
    if np.isinf(rounded).any():
        raise UnsupportedError(
            f"expected {what} of magnitude below 65520, found {float(np.abs(array).max()):g}; "
            "scale the layer"
        )
    return rounded


def scattered(view: View, array: Array, native: int) -> tuple[Array, bool]:
    """A constant laid over a view: (binary16 [pixels, vectors * N], the same for every pixel).

    Lanes without an element hold 0. Raises UnsupportedError where it does not fit.
    """
    buffer = view.buffer
    if (view.places == OUTSIDE).any():
        raise UnsupportedError("expected an unpadded tensor, found an explicit Pad before it")
    wanted = np.broadcast_to(binary16(array, "constants"), view.places.shape)
    flat = np.zeros(buffer.height * buffer.width * buffer.vectors * native, np.float16)
    flat[view.places] = wanted
    if not np.array_equal(flat[view.places], wanted):
        raise UnsupportedError("expected one constant for every stored element, found several")
    pixels = flat.reshape(buffer.height * buffer.width, -1)
    return pixels, bool((pixels == pixels[0]).all())
