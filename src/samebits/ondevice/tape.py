"""One training step as a list of instructions over values with lives.

An instruction is a call of a function of csrc/ondevice. Its text names values, not addresses: a
value's place in memory is decided when all lives are known (`places`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace


@dataclass(eq=False)
class Room:
    """Bytes of the arena between the first and the last instruction that names them.

    saves:  products that an instruction does not compute again where it has this room, which may be
            left out; calls have the whole pointer in its place. None: the room is needed
    around: of one that may be left out: it may lie over this one, which grows for it
    """

    size: int
    first: int = -1
    last: int = -1
    saves: int | None = None
    around: Room | None = None


@dataclass(frozen=True, eq=False)
class Array:
    """A tensor of the tape.

    room:  its codes; exponent: the number of its exponent
    width: bits of a code
    shape: of the largest batch, images as [n, h, w, c]
    """

    room: Room
    exponent: int
    width: int
    shape: tuple[int, ...]

    @property
    def sample(self) -> int:
        """Elements of one sample."""
        return math.prod(self.shape[1:])

    def shaped(self, shape: tuple[int, ...]) -> Array:
        """The same codes in another shape."""
        return replace(self, shape=shape)


@dataclass(frozen=True, eq=False)
class TapeGradient(Array):
    """A gradient: stored, or computed where it is read, from what is stored of a later one.

    room, width: of what is stored; exponent, shape: its own
    pool:  the geometry of the max pool that it is behind, as C, and the places of maxima
    lines: of the batch norm that it is behind, and the norm's input
    """

    pool: tuple[str, Room] | None = None
    lines: tuple[Room, Room] | None = None

    @property
    def is_stored(self) -> bool:
        """Whether memory holds its own codes."""
        return self.pool is None and self.lines is None

    @property
    def rooms(self) -> list[Room]:
        """All that its text names, in order."""
        behind = [] if self.pool is None else [self.pool[1]]
        return [self.room, *behind, *(self.lines or ())]

    @property
    def rows(self) -> int:
        """Codes of a channel of one sample."""
        return self.sample // self.shape[-1]


@dataclass(frozen=True)
class StoredParameter:
    """A parameter of the state: its name, its shape in PyTorch, and its number among those of the
    optimizer."""

    name: str
    shape: tuple[int, ...]
    index: int

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class StoredStatistics:
    """Running means or variances of the state, by the name of their buffer."""

    name: str
    channels: int


@dataclass(frozen=True)
class StepCall:
    """One call.

    call:   C; {0}, {1}, ... stand for the rooms, in their order
    fails:  whether it returns a status
    where:  the layer it is of
    """

    call: str
    rooms: tuple[Room, ...]
    where: str
    fails: bool = True


@dataclass
class StepTape:
    """A step: all instructions in order, in four parts, and what lies in memory.

    forward:  up to the gradient of the logits. bounds: they prove that no update can fail.
    moves:    of running statistics. backward: gradients and updates
    run:      the forward pass of one sample by the running statistics
    no_run:   why there is none, or ""
    least:    the fewest samples of a batch
    has_curves, has_vectors, has_matrices: whether it takes those of recurrent cells, norms of
              vectors, and products of activations
    parameters, statistics: of the state, which steps change
    frozen, standing:       those that no step changes
    exponents, reaches:     how many arrays have one, and how many bounds wait for others
    """

    batch: int
    classes: int = 0
    inputs: int = 0
    least: int = 1
    logits: Array | None = None
    forward: list[StepCall] = field(default_factory=list)
    bounds: list[StepCall] = field(default_factory=list)
    moves: list[StepCall] = field(default_factory=list)
    backward: list[StepCall] = field(default_factory=list)
    run: list[StepCall] = field(default_factory=list)
    rooms: list[Room] = field(default_factory=list)
    parameters: list[StoredParameter] = field(default_factory=list)
    statistics: list[StoredStatistics] = field(default_factory=list)
    frozen: list[StoredParameter] = field(default_factory=list)
    standing: list[StoredStatistics] = field(default_factory=list)
    has_curves: bool = False
    has_vectors: bool = False
    has_matrices: bool = False
    no_run: str = ""
    exponents: int = 0
    reaches: int = 0

    def room(self, size: int) -> Room:
        """New bytes, whose life instructions will tell."""
        self.rooms.append(Room(size))
        return self.rooms[-1]

    def optional(self, size: int, saves: int, around: Room | None = None) -> Room:
        """New bytes that save products; they may lie over those of a room, from its first on."""
        self.rooms.append(Room(size, saves=saves, around=around))
        return self.rooms[-1]

    def new_exponent(self) -> int:
        """The number of an exponent."""
        self.exponents += 1
        return self.exponents - 1

    def new_exponents(self, count: int) -> int:
        """The number of the first of several exponents."""
        self.exponents += count
        return self.exponents - count

    def array(self, shape: tuple[int, ...], width: int) -> Array:
        """A new tensor."""
        room = self.room(math.prod(shape) * width // 8)
        return Array(room, self.new_exponent(), width, shape)

    def gradient(self, shape: tuple[int, ...], width: int) -> TapeGradient:
        """A new gradient."""
        return stored(self.array(shape, width))

    def over(self, array: Array, width: int | None = None) -> Array:
        """A new tensor of at most its width in the place of one that nobody reads any more."""
        return replace(array, exponent=self.new_exponent(), width=width or array.width)

    @property
    def training(self) -> list[StepCall]:
        """All calls of a step, in order."""
        return [*self.forward, *self.bounds, *self.moves, *self.backward]

    def live(self) -> None:
        """Note the lives of all rooms: by the place of instructions in a step."""
        for at, instruction in enumerate(self.training):
            for room in instruction.rooms:
                room.first = at if room.first < 0 else room.first
                room.last = at


def stored(array: Array) -> TapeGradient:
    """An array as a gradient."""
    return TapeGradient(array.room, array.exponent, array.width, array.shape)


def pointer(kind: str, place: int) -> str:
    """The address of the room at a place of an instruction's, as C."""
    return f"({kind} *)(void *)(m + {{{place}}})"


def codes(array: Array, place: int) -> str:
    """The codes of an array whose room has this place, as C."""
    return pointer(f"int{array.width}_t", place)


def exponent(array: Array) -> str:
    """The exponent of an array, as C."""
    return f"e[{array.exponent}]"


def gradient(g: TapeGradient, place: int) -> str:
    """A gradient as C; `place`: of the first of its rooms."""
    given = {"codes": f"m + {{{place}}}", "width": g.width, "e": exponent(g)}
    if g.pool is not None:
        place += 1
        given |= {"pool": g.pool[0], "where": pointer("uint8_t", place)}
    if g.lines is not None:
        given |= {"lines": pointer("int64_t", place + 1), "z": pointer("int8_t", place + 2)}
    return f"(samebits_gradient){{{{{', '.join(f'.{k} = {v}' for k, v in given.items())}}}}}"


def record_of(kind: str, numbers: Sequence[object]) -> str:
    """A record of a layer's geometry, as C."""
    return f"&(samebits_{kind}){{{{{', '.join(map(str, numbers))}}}}}"
