"""Drafts with their places as instructions, hints and a memory image. docs/spec/npu.md 3, 4."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from samebits.errors import UnsupportedError
from samebits.npu.compiler.build import Builder
from samebits.npu.compiler.layout import Array, Buffer, BufferAccess, Draft, Port, WeightTiles
from samebits.npu.compiler.memory import Copy, MemoryMap, Staged, TilePlace
from samebits.npu.machine.assembly import HINTS_MAX, parse, to_text
from samebits.npu.machine.image import pack_tiles
from samebits.npu.machine.isa import STEP
from samebits.npu.machine.program import (
    INSTRUCTIONS_MAX,
    MEMORIES,
    QUEUE,
    REGISTERS,
    Hint,
    Image,
    Instruction,
    Program,
)


def emit(
    chains: Sequence[Draft],
    memory_map: MemoryMap,
    builder: Builder,
    name: str,
    mantissa: int,
    requantize: bool,
    turns: int,
) -> tuple[Program, Image]:
    """The program, as the assembler would read it from its text, and the memory image.

    turns: of the loop over the first chains, if these are looped.
    """
    writer = _Writer(memory_map, builder.native)
    writer.set(requantize=int(requantize))
    writer.run(chains, turns)
    hints = [*writer.ports]
    image: dict[str, dict[int, Array]] = {}
    for buffer, copies in memory_map.copies.items():
        if buffer.values is None:
            continue
        for number, copy in enumerate(copies):
            # A constant that is read from several memories has a hint in each.
            called = builder.names.unique(f"{buffer.name}_{copy.memory}") if number else buffer.name
            hints.append(Hint("tensor", called, buffer.shape, copy.memory, copy.address))
            held = image.setdefault(copy.memory, {})
            held.update(enumerate(buffer.values, copy.address))
    for tiles, place in memory_map.tiles.items():
        if tiles.weights is None:
            continue
        shape = tiles.weights.shape
        hints.append(Hint("tensor", tiles.name, shape, place.memory, place.address))
        packed = pack_tiles(tiles.weights, builder.native)
        image.setdefault(place.memory, {}).update(enumerate(packed, place.address))
    depths = {m: writer.depths[m] for m in MEMORIES if m in writer.depths}
    for memory, held in image.items():
        depths[memory] = max(depths.get(memory, 0), max(held) + 1)
    draft = Program(
        builder.native, mantissa, depths, tuple(writer.instructions), tuple(hints[:HINTS_MAX])
    )
    if len(draft.instructions) > INSTRUCTIONS_MAX:
        raise UnsupportedError(
            f"{name}: expected a program of at most {INSTRUCTIONS_MAX} instructions, found "
            f"{len(draft.instructions)}; use a larger native dimension or larger register files"
        )
    program = parse(to_text(draft), builder.names.unique(name))
    return program, Image(image)


@dataclass(frozen=True)
class _Place:
    """An operand of an instruction: a first address and its DX and DY; memory QUEUE has none."""

    memory: str
    address: int = 0
    dx: int = 0
    dy: int = 0


_NETWORK = _Place(QUEUE)


@dataclass
class _Writer:
    memory_map: MemoryMap
    native: int
    instructions: list[Instruction] = field(default_factory=list)
    # What is known of their values: all of it but where a turn of a loop begins.
    registers: dict[str, int] = field(default_factory=lambda: dict(REGISTERS))
    depths: dict[str, int] = field(default_factory=dict)
    ports: list[Hint] = field(default_factory=list)
    filled: set[Buffer] = field(default_factory=set)

    def run(self, chains: Sequence[Draft], turns: int) -> None:
        """All chains; those that are looped come first."""
        body = sum(chain.looped for chain in chains)
        if body:
            self.loop(chains[:body], turns)
        for index in range(body, len(chains)):
            self.chain(index, chains[index])

    def loop(self, body: Sequence[Draft], turns: int) -> None:
        """The body once for all turns: a register that it sets holds another value as a turn
        begins, so its first chains must not rely on it. A trial finds these registers."""
        trial = _Writer(self.memory_map, self.native)
        for index, chain in enumerate(body):
            trial.chain(index, chain)
        for instruction in trial.instructions:
            if instruction.op == "s_wr":
                self.registers.pop(instruction.register or "", None)
        self.instructions.append(Instruction("loop", value=turns))
        for index, chain in enumerate(body):
            self.chain(index, chain)
        self.instructions.append(Instruction("end_loop"))

    # --- chains ---------------------------------------------------------------------------------

    def set(self, **values: int) -> None:
        """Registers, where they differ from what they are known to hold."""
        for register, value in values.items():
            if self.registers.get(register) != value:
                self.registers[register] = value
                self.instructions.append(Instruction("s_wr", register=register, value=value))

    def iterate(self, rows: int, width: int) -> None:
        self.set(iterations=rows * width)
        if rows * width > 1:
            self.set(iterations_x=width)

    def put(self, op: str, place: _Place | None = None, unit: int | None = None) -> None:
        """An instruction; its `_inc` form where the address moves from iteration to iteration."""
        if place is None:
            self.instructions.append(Instruction(op, unit=unit))
            return
        count, width = self.registers["iterations"], self.registers.get("iterations_x", 1)
        dx = place.dx if min(count, width) > 1 else 0
        dy = place.dy if count > width else 0
        if dx or dy:
            op, moves = f"{op}_inc", (dx, dy)
            made = Instruction(op, place.memory, place.address, moves)
        else:
            made = Instruction(op, place.memory, place.address)
        self.instructions.append(made)

    def copied(self, read: _Place, writes: Sequence[_Place], rows: int, width: int) -> None:
        """A chain that only moves single vectors."""
        self.set(rows=1, window=1, window_run=1)
        self.iterate(rows, width)
        self.put("v_rd", read)
        for place in writes:
            self.put("v_wr", place)
        self.put("end_chain")

    # --- chains ----------------------------------------------------------------------------------

    def chain(self, index: int, chain: Draft) -> None:
        """The chains of a chain."""
        self.hint("input", chain.read)
        for target in chain.targets:
            self.hint("output", target.place)
        for buffer in chain.buffers:
            if buffer not in self.filled:
                self.filled.add(buffer)
                for copy in self.memory_map.copies[buffer]:
                    self.note(copy.memory, copy.address + copy.size)
                    self.fill(copy)
        place = None if chain.tiles is None else self.memory_map.tiles[chain.tiles]
        height = self.memory_map.blocks[index]
        for first in range(0, chain.rows, chain.rows if place is None else place.rows):
            rows = chain.rows if place is None else min(place.rows, chain.rows - first)
            if chain.tiles is not None and place is not None and place.memory == "mdram":
                self.load(chain.tiles, place, first, rows)
            if chain.tiles is not None and chain.tiles.sources:
                self.load_vectors(index, chain.tiles)
            for top in range(0, chain.height, height):
                block = _Block(first, rows, top, min(height, chain.height - top))
                self.block(index, chain, block)

    def hint(self, kind: str, place: BufferAccess | Buffer | Port) -> None:
        if isinstance(place, Port):
            self.ports.append(Hint(kind, place.name, place.shape))

    def note(self, memory: str, end: int) -> None:
        self.depths[memory] = max(self.depths.get(memory, 0), end)

    def fill(self, copy: Copy) -> None:
        """The border: before the first row, between rows, after the last."""
        top, left, bottom, right = copy.border
        vectors, pitch = copy.buffer.vectors, copy.pitch
        fill = self.memory_map.fills.get(copy.fill)
        if fill is None or not any(copy.border):
            return
        read = _Place(fill.memory, fill.address)
        runs = [
            (copy.address, 1, top * pitch + left * vectors),
            (copy.at(0, copy.buffer.width), copy.buffer.height - 1, (left + right) * vectors),
            (
                copy.at(copy.buffer.height - 1, copy.buffer.width),
                1,
                bottom * pitch + right * vectors,
            ),
        ]
        for address, rows, count in runs:
            if not rows * count:
                continue
            each = rows if pitch in STEP else 1  # rows whose distance an instruction can hold
            for row in range(0, rows, each):
                place = _Place(copy.memory, address + row * pitch, 1, pitch)
                self.copied(read, [place], each, count)

    def load(self, tiles: WeightTiles, place: TilePlace, first: int, rows: int) -> None:
        """Some rows of tiles into mrf."""
        self.note("mrf", rows * tiles.columns)
        self.set(rows=rows, columns=tiles.columns, iterations=1)
        self.put("m_rd", _Place(place.memory, place.address + first * tiles.columns))
        self.put("m_wr", _Place("mrf", 0))
        self.put("end_chain")

    def load_vectors(self, index: int, tiles: WeightTiles) -> None:
        """Vectors as tiles into mrf, N of them each."""
        self.note("mrf", tiles.rows * tiles.columns)
        self.set(rows=1, columns=1)
        native, across = self.native, (1, tiles.columns)
        step, along = across if tiles.turned else across[::-1]
        count = tiles.columns if tiles.turned else tiles.rows
        for number in range(len(tiles.sources)):
            found = self.memory_map.places[index, -2 - number]
            assert isinstance(found, Copy)
            self.iterate(1, count)
            op = "m_rd_t" if tiles.turned else "m_rd"
            self.put(op, _Place(found.memory, found.at(0, 0), native))
            self.put("m_wr", _Place("mrf", number * along, step))
            self.put("end_chain")

    def block(self, index: int, chain: Draft, block: _Block) -> None:
        """One block of rows and of tiles."""
        places = {}
        for slot, access in chain.accesses:
            if slot < -1:
                continue
            found = self.memory_map.places[index, slot]
            if isinstance(found, Staged):
                places[slot] = self.staged(found, access, block)
            else:
                address = found.at(access.y + block.top * access.step_y, access.x, access.vector)
                places[slot] = _strided(found, found.memory, address, access)
        self.settings(index, chain, block)
        self.put("v_rd", places.get(-1, _NETWORK))
        if chain.tiles is not None:
            tiles = self.memory_map.tiles[chain.tiles]
            address = block.first * chain.tiles.columns
            address = tiles.address + address if tiles.memory == "mrf" else 0
            self.instructions.append(Instruction("mv_mul", address=address))
        unit = 0
        for slot, operation in enumerate(chain.operations):
            if slot in places:
                place = places[slot]
                self.put(operation.op, replace(place, address=place.address + block.first))
            else:
                self.put(operation.op, unit=None if operation.unit == unit else operation.unit)
            unit = operation.unit
        for target in chain.targets:
            if isinstance(target.place, Port):
                self.put("v_wr", _NETWORK)
                continue
            for copy in self.memory_map.copies[target.place]:
                row = target.y + block.top * target.step_y
                address = copy.at(row, target.x, target.vector + block.first)
                moves = target.step_x * copy.buffer.vectors, target.step_y * copy.pitch
                self.put("v_wr", _Place(copy.memory, address, *moves))
        self.put("end_chain")

    def settings(self, index: int, chain: Draft, block: _Block) -> None:
        """The registers of a chain."""
        self.set(rows=block.rows)
        window, run, pitch = 1, 1, 0
        if chain.tiles is not None:
            self.set(columns=chain.tiles.columns)
            found = self.memory_map.places.get((index, -1))
            if isinstance(chain.read, BufferAccess) and isinstance(found, Copy):
                window, run = chain.read.kernel[0], chain.read.kernel[1] * found.buffer.vectors
                pitch = chain.read.dilation * found.pitch
        if window == 1 or run == pitch:  # the vectors lie one after the other
            self.set(window=1, window_run=1)
        else:
            self.set(window=window, window_run=run, window_pitch=pitch)
        self.iterate(block.height, chain.width)

    def staged(self, found: Staged, access: BufferAccess, block: _Block) -> _Place:
        """The rows of an operand that a block needs, copied to its register file."""
        home = found.home
        first = access.y + block.top * access.step_y
        count = ((block.height - 1) * access.step_y + 1) * home.pitch
        source = home.at(first, 0) - home.border[1] * home.buffer.vectors
        self.note(found.memory, found.address + count)
        self.copied(
            _Place(home.memory, source, 1), [_Place(found.memory, found.address, 1)], 1, count
        )
        column = (access.x + home.border[1]) * home.buffer.vectors + access.vector
        return _strided(home, found.memory, found.address + column, access)


@dataclass(frozen=True)
class _Block:
    """Vectors `first` and on (`rows` of them) of the pixels from row `top` on."""

    first: int
    rows: int
    top: int
    height: int


def _strided(copy: Copy, memory: str, address: int, access: BufferAccess) -> _Place:
    dx = access.step_x * copy.buffer.vectors
    return _Place(memory, address, dx, access.step_y * copy.pitch)
