"""Where tensors lie: register files while they fit, DRAM where they do not. docs/spec/npu.md 2, 3.

A buffer has a copy in every memory that something reads it from, written by the same chains at
once. Copies that are read beyond the image have a border. An operand that does not fit its register
file is brought there piece by piece, some rows of the image at a time, before each piece of the
chain that uses it.

Two copies may have the same addresses if their lives do not meet: from the chain that writes a copy
to the last one that reads it. Constants, states and the numbers of borders live always. A copy
takes the lowest gap that is free for all of its life (first fit), in the order in which lives
begin.

For example (N = 8) an image x of 8 channels and 4 x 4 pixels, read by a convolution of 3 x 3 with a
border of one pixel, and added to its result:

    s_wr iterations, 16; s_wr iterations_x, 4
    v_rd netq
    v_wr_inc asvrf1, 0, 1, 4     ; the operand: 16 vectors
    v_wr_inc ivrf, 8, 1, 6       ; 6 x 6 vectors from address 1, pixel (0, 0) at 1 + 6 + 1
    end_chain

`ivrf 0` holds a vector of zeros, with which chains before fill the border. The convolution's window
then begins at `v_rd_inc ivrf, 1, 1, 6` with `window` 3, `window_run` 3 and `window_pitch` 6: no
pixel needs another rule. If `asvrf1` has 8 vectors, x does not fit it. It stays in `ivrf`, and
before each row of the result 6 vectors, a row with its border, are brought to `asvrf1 0`:

    s_wr iterations, 6; v_rd_inc ivrf, 7, 1, 0; v_wr_inc asvrf1, 0, 1, 0; end_chain
    s_wr iterations, 4; v_rd_inc ivrf, 1, 1, 0; mv_mul 0; ... vv_add_inc asvrf1, 1, 1, 0; ...

Whether the pieces fit is known only when everything else has its place, and that may leave no room
for a row. Then the largest operand in that file is brought there in pieces too, and all is placed
again. This ends, as each turn adds one operand to those that are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from samebits.errors import UnsupportedError
from samebits.npu.compiler.build import Builder
from samebits.npu.compiler.layout import Buffer, BufferAccess, Draft, WeightTiles
from samebits.npu.machine.isa import INSTRUCTIONS, STEP
from samebits.npu.machine.program import QUEUE

# The memories that v_rd reads, in order of preference.
READ_FILES = tuple(name for name in INSTRUCTIONS["v_rd"].memories if name != QUEUE)
FOREVER = 1 << 30
Slot = tuple[int, int]  # (index of a chain, slot of an access)
Borders = tuple[int, int, int, int]  # pixels at the top, left, bottom, right


@dataclass(frozen=True)
class TilePlace:
    """Tiles in mrf from the memory image, or in mdram and loaded before use.

    groups: pieces of `rows` rows of tiles (the last may be smaller), each loaded by itself
    Tiles that are made as the program runs have the memory that they are in, mrf, and are loaded
    before each product.
    """

    memory: str
    address: int
    groups: int
    rows: int


def place_tiles(chains: Sequence[Draft], depths: Mapping[str, int]) -> dict[WeightTiles, TilePlace]:
    """All weights in mrf if they fit; else all in mdram, loaded layer by layer. Tiles that are made
    as the program runs share the first addresses of mrf.

    Raises UnsupportedError if mdram, or mrf for one row of tiles, is too small.
    """
    every = list(dict.fromkeys(chain.tiles for chain in chains if chain.tiles is not None))
    found = [tiles for tiles in every if not tiles.sources]
    moved = [tiles for tiles in every if tiles.sources]
    total = sum(tiles.rows * tiles.columns for tiles in found)
    start = max((tiles.rows * tiles.columns for tiles in moved), default=0)
    if start > depths["mrf"]:
        raise UnsupportedError(
            f"expected tensors of at most {depths['mrf']} native tiles (mrf) to multiply, found "
            f"{start}; use a larger native dimension or shorter sequences"
        )
    memory = "mrf" if start + total <= depths["mrf"] else "mdram"
    if total > depths[memory]:
        raise UnsupportedError(
            f"expected weights of at most {depths[memory]} native tiles (mdram), found {total}; "
            "use a larger native dimension or a smaller network"
        )
    places = {tiles: TilePlace("mrf", 0, 1, tiles.rows) for tiles in moved}
    address = start if memory == "mrf" else 0
    for tiles in found:
        rows = tiles.rows if memory == "mrf" else min(tiles.rows, depths["mrf"] // tiles.columns)
        if rows < 1:
            raise UnsupportedError(
                f"weights {tiles.name}: expected at most {depths['mrf']} tiles (mrf) in a row, "
                f"found {tiles.columns}; use a larger native dimension"
            )
        places[tiles] = TilePlace(memory, address, -(-tiles.rows // rows), rows)
        address += tiles.rows * tiles.columns
    return places


@dataclass(frozen=True)
class Copy:
    """A buffer in a memory, with a border of `fill` around it; address: of the border's corner."""

    buffer: Buffer
    memory: str
    border: Borders = (0, 0, 0, 0)
    fill: float = 0.0
    address: int = 0

    @property
    def pitch(self) -> int:
        """Vectors from a row to the next."""
        return (self.buffer.width + self.border[1] + self.border[3]) * self.buffer.vectors

    @property
    def rows(self) -> int:
        """Rows of pixels, with the border."""
        return self.buffer.height + self.border[0] + self.border[2]

    @property
    def size(self) -> int:
        """Native vectors, with the border."""
        return self.rows * self.pitch

    def at(self, y: int, x: int, vector: int = 0) -> int:
        """The address of a vector of pixel (y, x) of the buffer."""
        return (
            self.address
            + (y + self.border[0]) * self.pitch
            + (x + self.border[1]) * self.buffer.vectors
            + vector
        )


@dataclass(frozen=True)
class Staged:
    """An operand brought to its register file in pieces: rows of `home` to `address` there."""

    home: Copy
    memory: str
    address: int


@dataclass
class MemoryMap:
    """copies: of every buffer. places: where each access reads. blocks: rows of the image that a
    chain computes at once. fills: the constants that borders hold, by their value."""

    tiles: Mapping[WeightTiles, TilePlace]
    copies: dict[Buffer, list[Copy]] = field(default_factory=dict)
    places: dict[Slot, Copy | Staged] = field(default_factory=dict)
    blocks: dict[int, int] = field(default_factory=dict)
    fills: dict[float, Copy] = field(default_factory=dict)


@dataclass(frozen=True)
class _Need:
    """Accesses that one copy serves."""

    copy: Copy
    start: int
    end: int
    slots: tuple[Slot, ...]


def borders(access: BufferAccess, height: int, width: int) -> Borders:
    """How far beyond the image an access reads, over a grid of pixels."""
    bottom = access.y + (height - 1) * access.step_y + (access.kernel[0] - 1) * access.dilation
    right = access.x + (width - 1) * access.step_x + access.kernel[1] - 1
    return (
        max(0, -access.y),
        max(0, -access.x),
        max(0, bottom - access.buffer.height + 1),
        max(0, right - access.buffer.width + 1),
    )


class _File:
    """One memory: what lies where, and when."""

    def __init__(self, depth: int) -> None:
        self.depth = depth
        self.held: list[tuple[int, int, int, int]] = []  # address, size, start, end

    def gaps(self, start: int, end: int) -> list[tuple[int, int]]:
        """(address, size) of what is free during all of these chains."""
        taken = sorted((a, n) for a, n, s, e in self.held if s <= end and start <= e)
        found, free = [], 0
        for address, size in taken:
            if address > free:
                found.append((free, address - free))
            free = max(free, address + size)
        if free < self.depth:
            found.append((free, self.depth - free))
        return found

    def place(self, size: int, start: int, end: int) -> int | None:
        """The lowest free address, now taken; None if there is none."""
        for address, room in self.gaps(start, end):
            if size <= room:
                self.held.append((address, size, start, end))
                return address
        return None


def map_memory(
    chains: Sequence[Draft],
    tiles: Mapping[WeightTiles, TilePlace],
    builder: Builder,
    depths: Mapping[str, int],
) -> MemoryMap:
    """Places for everything. Raises UnsupportedError that names the memory which is too small."""
    return _Mapper(chains, tiles, builder, depths).run()


class _Mapper:
    def __init__(
        self,
        chains: Sequence[Draft],
        tiles: Mapping[WeightTiles, TilePlace],
        builder: Builder,
        depths: Mapping[str, int],
    ) -> None:
        self.chains, self.builder, self.depths = chains, builder, depths
        self.tiles = tiles
        self.writers: dict[Buffer, int] = {}
        for index, chain in enumerate(chains):
            for buffer in chain.buffers:
                self.writers.setdefault(buffer, index)
        self.slots = {
            (index, slot): access
            for index, chain in enumerate(chains)
            for slot, access in chain.accesses
        }

    def run(self) -> MemoryMap:
        staged: set[tuple[Buffer, str]] = set()
        while True:  # ends: every turn stages one more operand
            result = MemoryMap(self.tiles)
            files = {memory: _File(depth) for memory, depth in self.depths.items()}
            waiting = self.operands(result, files, staged)
            self.homes(result, files, waiting)
            crowded = self.stage(result, files, waiting)
            if crowded is None:
                return result
            staged.add(crowded)

    # --- copies ---------------------------------------------------------------------------------

    def needs(self, memory: str, slots: Iterable[Slot]) -> list[_Need]:
        """Copies for these accesses: one of each buffer, one more for each other border value."""
        groups: dict[tuple[Buffer, float], list[Slot]] = {}
        plain: dict[Buffer, list[Slot]] = {}
        for slot in slots:
            access, chain = self.slots[slot], self.chains[slot[0]]
            if any(borders(access, chain.height, chain.width)):
                groups.setdefault((access.buffer, access.fill), []).append(slot)
            else:
                plain.setdefault(access.buffer, []).append(slot)
        for buffer, members in plain.items():
            bordered = next((key for key in groups if key[0] is buffer), (buffer, 0.0))
            groups.setdefault(bordered, []).extend(members)
        found = []
        for (buffer, fill), members in groups.items():
            sides = [
                borders(self.slots[m], self.chains[m[0]].height, self.chains[m[0]].width)
                for m in members
            ]
            top, left, bottom, right = (max(side) for side in zip(*sides, strict=True))
            copy = Copy(buffer, memory, (top, left, bottom, right), fill)
            constant = buffer.values is not None
            start = -1 if constant else self.writers[buffer]
            end = FOREVER if constant else max(m[0] for m in members)
            found.append(_Need(copy, start, end, tuple(members)))
        return sorted(found, key=lambda need: (need.start, need.copy.size))

    def operands(
        self, result: MemoryMap, files: Mapping[str, _File], staged: set[tuple[Buffer, str]]
    ) -> list[Slot]:
        """Operands in their register files; the accesses of those that must be staged."""
        waiting: list[Slot] = []
        by_memory: dict[str, list[Slot]] = {}
        for (index, slot), access in self.slots.items():
            if slot >= 0:
                memory = self.memory((index, slot))
                pile = (
                    waiting
                    if (access.buffer, memory) in staged
                    else by_memory.setdefault(memory, [])
                )
                pile.append((index, slot))
        for memory, slots in by_memory.items():
            for need in self.needs(memory, slots):
                if not self.placed(result, files[memory], need):
                    waiting += need.slots
        return waiting

    def memory(self, slot: Slot) -> str:
        return self.chains[slot[0]].operations[slot[1]].memory

    def placed(self, result: MemoryMap, file: _File, need: _Need) -> bool:
        address = file.place(need.copy.size, need.start, need.end)
        if address is None:
            return False
        copy = replace(need.copy, address=address)
        result.copies.setdefault(copy.buffer, []).append(copy)
        for slot in need.slots:
            result.places[slot] = copy
        return True

    def homes(self, result: MemoryMap, files: Mapping[str, _File], waiting: Sequence[Slot]) -> None:
        """Copies that v_rd reads: of reads, operands to be staged and numbers of borders.

        A buffer that nothing reads has one there too, as every chain writes something.
        """
        reads = [slot for slot in self.slots if slot[1] < 0]
        needs = self.needs(READ_FILES[0], [*reads, *waiting])
        copies = [copy for copies in result.copies.values() for copy in copies]
        bordered = {c.fill for c in (*copies, *(n.copy for n in needs)) if any(c.border)}
        fills = {fill: self.builder.border(fill) for fill in sorted(bordered)}
        for buffer in fills.values():
            needs.insert(0, _Need(Copy(buffer, READ_FILES[0]), -1, FOREVER, ()))
        for buffer, index in self.writers.items():
            if buffer not in result.copies and all(n.copy.buffer is not buffer for n in needs):
                needs.append(_Need(Copy(buffer, READ_FILES[0]), index, index, ()))
        for need in needs:
            self.home(result, files, need)
        for fill, buffer in fills.items():
            found = (copy for copy in result.copies[buffer] if copy.memory in READ_FILES)
            result.fills[fill] = next(found)

    def home(self, result: MemoryMap, files: Mapping[str, _File], need: _Need) -> None:
        for memory in READ_FILES:
            if memory in files and self.placed(
                result, files[memory], replace(need, copy=replace(need.copy, memory=memory))
            ):
                return
        raise UnsupportedError(
            f"tensor {need.copy.buffer.name!r}: expected room for {need.copy.size} native vectors "
            f"in dram, found a depth of {self.depths['dram']}; use a machine with more of it"
        )

    # --- pieces ---------------------------------------------------------------------------------

    def stage(
        self, result: MemoryMap, files: Mapping[str, _File], waiting: Sequence[Slot]
    ) -> tuple[Buffer, str] | None:
        """Blocks of rows for every chain; an operand that must make room if there is too little."""
        by_step: dict[int, list[Slot]] = {}
        for slot in waiting:
            by_step.setdefault(slot[0], []).append(slot)
        for index, chain in enumerate(self.chains):
            block = chain.height
            if block > 1 and not self.strides_fit(result, index):
                block = 1
            for slot in by_step.get(index, ()):
                access, home = self.slots[slot], result.places[slot]
                assert isinstance(home, Copy)
                memory = self.memory(slot)
                gaps = files[memory].gaps(index, index)
                address, room = max(gaps, key=lambda gap: gap[1], default=(0, 0))
                fits = room // home.pitch
                if fits < 1:
                    return self.crowding(result, memory, index)
                possible = chain.height if access.step_y == 0 else (fits - 1) // access.step_y + 1
                block = min(block, possible)
                result.places[slot] = Staged(home, memory, address)
            result.blocks[index] = block
        return None

    def strides_fit(self, result: MemoryMap, index: int) -> bool:
        """Whether the distance of rows can be written in an instruction."""
        found = [place.pitch * access.step_y for place, access in self.copies_read(result, index)]
        for target in self.chains[index].targets:
            if isinstance(target.place, Buffer):
                copies = result.copies[target.place]
                found += [copy.pitch * target.step_y for copy in copies]
        return max(found, default=0) in STEP

    def copies_read(self, result: MemoryMap, index: int) -> list[tuple[Copy, BufferAccess]]:
        places = [
            (result.places[index, slot], access) for slot, access in self.chains[index].accesses
        ]
        return [(place, access) for place, access in places if isinstance(place, Copy)]

    def crowding(self, result: MemoryMap, memory: str, index: int) -> tuple[Buffer, str]:
        """The largest tensor in a memory while a chain runs."""
        operands = [s for s in self.slots if s[1] >= 0 and self.memory(s) == memory]
        held = [
            need.copy
            for need in self.needs(memory, operands)
            if need.start <= index <= need.end
            and any(c.memory == memory for c in result.copies.get(need.copy.buffer, ()))
        ]
        if not held:
            raise UnsupportedError(
                f"step {self.chains[index].name!r}: expected room for one row of the image in "
                f"{memory}, found a depth of {self.depths[memory]}; use a machine with more of it"
            )
        return max(held, key=lambda copy: copy.size).buffer, memory
