"""Where the vectors of a program come from: for every memory entry, a value and a vector of it.

A memory of the symbolic machine is two integer arrays by address: the number of the tensor that the
entry's vector belongs to (its owner), and which native vector of that tensor it is. Number 0 is the
memory image, all of whose vectors stand in one pool. Copying vectors between memories copies
integers, and reading an address gives the tensor that its contents were computed as.

For example N = 8 and the input x of 3 vectors as tensor 1:

    ivrf holds the vector b of the image     ivrf:   owners [0]         vectors [1]
    s_wr iterations, 3; s_wr iterations_x, 3
    v_rd netq; v_wr_inc dram, 4, 2, 0        dram:   owners  [. . . . 1 . 1 . 1]
                                                     vectors [. . . . 0 . 1 . 2]
    v_rd_inc dram, 8, -2, 0                  reads owners [1 1 1], vectors [2 1 0]: x backwards

A read is right whatever wrote the entry before, as it is the symbolic machine's state at that point
of the program. Tiles are entries of N vectors, so that a program may move them too.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from samebits.errors import UnsupportedError
from samebits.npu.concord.graph import Array
from samebits.npu.machine.program import QUEUE, TILE_FILES, Hint, Image, Program

CONSTANT = 0  # the owner of what the memory image holds; a vector of it is a row of the pool
NOTHING = -1
ENTRIES_MAX = 1 << 25  # half a gigabyte
ZERO = 0  # the row of the pool that is a vector of zeros


@dataclass(frozen=True)
class Sources:
    """Vectors in order: owners (numbers of values) and which native vector of each. int64 [n]."""

    owners: Array
    vectors: Array

    def __len__(self) -> int:
        return len(self.owners)

    def __getitem__(self, index: slice | Array) -> Sources:
        return Sources(self.owners[index], self.vectors[index])


def joined(parts: Sequence[Sources]) -> Sources:
    """Sources one after the other."""
    empty = np.zeros(0, np.int64)
    return Sources(
        np.concatenate([empty, *(part.owners for part in parts)]),
        np.concatenate([empty, *(part.vectors for part in parts)]),
    )


def all_of(owner: int, count: int) -> Sources:
    """All `count` vectors of one value, in order."""
    return Sources(np.full(count, owner, np.int64), np.arange(count, dtype=np.int64))


@dataclass
class Entries:
    """Sources by memory and address. An entry of a tile memory is N vectors: addresses times N.

    where: the program, and the line if one is being translated, for messages.
    """

    where: str
    memories: dict[str, Sources] = field(default_factory=dict)

    def copy(self) -> Entries:
        """The same entries in arrays of their own."""
        copied = {m: Sources(s.owners.copy(), s.vectors.copy()) for m, s in self.memories.items()}
        return Entries(self.where, copied)

    def read(self, memory: str, addresses: Array) -> Sources:
        """The sources at addresses (int64, in native vectors); NOTHING where none was written."""
        return self._reaching(memory, addresses)[addresses]

    def write(self, memory: str, addresses: Array, sources: Sources) -> None:
        """Sources to addresses, one each."""
        held = self._reaching(memory, addresses)
        held.owners[addresses] = sources.owners
        held.vectors[addresses] = sources.vectors

    def _reaching(self, memory: str, addresses: Array) -> Sources:
        none = np.zeros(0, np.int64)
        held = self.memories.get(memory, Sources(none, none))
        need = int(addresses.max(initial=-1)) + 1
        if need > ENTRIES_MAX:
            raise UnsupportedError(
                f"{self.where}: expected addresses of {memory} below {ENTRIES_MAX:,} native "
                f"vectors to translate a program, found {need - 1:,}; use lower addresses"
            )
        if need > len(held):
            more = max(need, 2 * len(held)) - len(held)
            nothing = Sources(np.full(more, NOTHING, np.int64), np.zeros(more, np.int64))
            self.memories[memory] = held = joined([held, nothing])
        return held


@dataclass
class Tracker:
    """Which entries the turn of a loop wrote, and which it read before it wrote them.

    What is in both sets, and nothing else, goes from one turn to the next. What was only read early
    has the same contents in every turn; what was only written is written again before it is read.
    """

    written: dict[str, set[int]] = field(default_factory=dict)
    early: dict[str, set[int]] = field(default_factory=dict)

    def read(self, memory: str, addresses: Array) -> None:
        """Take note of a read."""
        new = set(addresses.tolist()) - self.written.get(memory, set())
        self.early.setdefault(memory, set()).update(new)

    def write(self, memory: str, addresses: Array) -> None:
        """Take note of a write."""
        self.written.setdefault(memory, set()).update(addresses.tolist())

    def carried(self) -> dict[str, Array]:
        """Addresses whose contents go from one turn of a loop to the next."""
        both = {m: self.written[m] & self.early.get(m, set()) for m in self.written}
        return {m: np.array(sorted(found), np.int64) for m, found in both.items() if found}


@dataclass(frozen=True)
class Pool:
    """The memory image. bits: uint16 [vectors, N], the first all zeros; a tile is N rows.

    lanes: [vectors] how many lanes are logical, by the hints; 0 of a padding row of a matrix.
    labels: [vectors] index of the hint that names it, -1 of none.
    """

    bits: Array
    lanes: Array
    labels: Array
    hints: tuple[Hint, ...]

    def name(self, vectors: Array) -> str | None:
        """The hint that names all of these vectors, if there is one."""
        labels = np.unique(self.labels[vectors])
        return self.hints[int(labels[0])].name if len(labels) == 1 and labels[0] >= 0 else None


def load_image(program: Program, image: Image) -> tuple[Pool, Entries]:
    """The pool of constants and where its vectors lie."""
    native = program.native
    rows = [np.zeros((1, native), np.float16)]
    entries = Entries(program.name)
    at = 1
    for memory, held in image.entries.items():
        for address in sorted(held):
            vectors = np.asarray(held[address], np.float16).reshape(-1, native)
            rows.append(vectors)
            number = np.arange(len(vectors), dtype=np.int64)
            place = address * (native if memory in TILE_FILES else 1) + number
            owners = np.full(len(vectors), CONSTANT, np.int64)
            entries.write(memory, place, Sources(owners, at + number))
            at += len(vectors)
    bits = np.concatenate(rows)
    bits[np.isnan(bits)] = np.nan
    lanes = np.full(len(bits), native, np.int64)
    labels = np.full(len(bits), -1, np.int64)
    hints = tuple(h for h in program.hints if h.kind == "tensor" and h.memory != QUEUE)
    for label, hint in enumerate(hints):
        place, logical = _hinted(hint, native)
        if hint.memory not in entries.memories:
            continue
        found = entries.read(hint.memory, place)
        here = found.owners == CONSTANT
        lanes[found.vectors[here]] = logical[here]
        labels[found.vectors[here]] = label
    return Pool(np.ascontiguousarray(bits).view(np.uint16), lanes, labels, hints), entries


def _hinted(hint: Hint, native: int) -> tuple[Array, Array]:
    """(addresses in vectors, logical lanes of each) of a tensor hint."""
    if hint.memory in TILE_FILES:
        outputs, inputs, *kernel = hint.shape
        across, down = -(-inputs // native), -(-outputs // native)
        shape = (down, math.prod(kernel), across, native)
        r, _, c, n = np.unravel_index(np.arange(math.prod(shape)), shape)
        lanes = np.minimum(inputs - c * native, native)
        lanes = np.where(r * native + n < outputs, lanes, 0)
        start = hint.address * native
    else:
        channels, positions = channels_and_positions(hint.shape)
        each = -(-channels // native)
        lanes = np.minimum(channels - np.arange(each) * native, native)
        lanes = np.tile(lanes, positions)
        start = hint.address
    return start + np.arange(len(lanes), dtype=np.int64), lanes


def channels_and_positions(shape: Sequence[int]) -> tuple[int, int]:
    """(C, pixels or steps) of a shape C, T x C or C x H x W."""
    if len(shape) == 3:
        return shape[0], shape[1] * shape[2]
    return shape[-1], shape[0] if len(shape) == 2 else 1


def remapped(sources: Sources, owners: Mapping[int, int]) -> Sources:
    """The sources with some owners replaced: old number -> new number."""
    changed = sources.owners.copy()
    for old, new in owners.items():
        changed[sources.owners == old] = new
    return Sources(changed, sources.vectors)
