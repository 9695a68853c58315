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

    optional: instructions do without, in more time; calls have the whole pointer in their place
    """

    size: int
    first: int = -1
    last: int = -1
    optional: bool = False


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
    least:    the fewest samples of a batch
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
    exponents: int = 0
    reaches: int = 0

    def room(self, size: int, optional: bool = False) -> Room:
        """New bytes, whose life instructions will tell."""
        made = Room(size, optional=optional)
        self.rooms.append(made)
        return made

    def array(self, shape: tuple[int, ...], width: int) -> Array:
        """A new tensor."""
        room = self.room(math.prod(shape) * width // 8)
        self.exponents += 1
        return Array(room, self.exponents - 1, width, shape)

    def over(self, array: Array, width: int | None = None) -> Array:
        """A new tensor of at most its width in the place of one that nobody reads any more."""
        self.exponents += 1
        return replace(array, exponent=self.exponents - 1, width=width or array.width)

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


def pointer(kind: str, place: int) -> str:
    """The address of the room at a place of an instruction's, as C."""
    return f"({kind} *)(void *)(m + {{{place}}})"


def codes(array: Array, place: int) -> str:
    """The codes of an array whose room has this place, as C."""
    return pointer(f"int{array.width}_t", place)


def exponent(array: Array) -> str:
    """The exponent of an array, as C."""
    return f"e[{array.exponent}]"


def gradient(array: Array, place: int) -> str:
    """A gradient of either width, as C."""
    held = f"m + {{{place}}}"
    return f"(samebits_gradient){{{{{held}, {array.width}, {exponent(array)}}}}}"


def record_of(kind: str, numbers: Sequence[object]) -> str:
    """A record of a layer's geometry, as C."""
    return f"&(samebits_{kind}){{{{{', '.join(map(str, numbers))}}}}}"
