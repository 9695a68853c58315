"""Random legal programs for the neural processor, with memory images and inputs.

`random_case(seed)` is a function of its seed. The programs use windows, strides, iterations, loops,
re-quantization, several writes a chain and every instruction that computes.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from itertools import product

import numpy as np

from samebits.npu.machine.isa import INSTRUCTIONS, POINTWISE, REDUCTIONS, UNIT_STAGES
from samebits.npu.machine.program import (
    QUEUE,
    REGISTERS,
    VECTOR_FILES,
    Hint,
    Image,
    Instruction,
    Program,
)

DEPTHS = dict(zip(VECTOR_FILES, (40, 24, 24, 16, 16, 48), strict=True)) | {"mrf": 14, "mdram": 10}
# The instructions of each stage of a multifunction unit.
ADD_SUB, MULTIPLY, ACTIVATIONS = (
    tuple(op for op in (*POINTWISE, *REDUCTIONS) if INSTRUCTIONS[op].stage is stage)
    for stage in UNIT_STAGES
)
EXECUTIONS = 200  # of chains, about; the tests stay quick


@dataclass
class Case:
    """A program, its memory image, and whether its numbers hold infinities and other extremes."""

    program: Program
    image: Image
    extreme: bool


def random_case(seed: int) -> Case:
    """A legal program of a few chains and loops that reads and writes the network queue."""
    rng = random.Random(seed)
    native = rng.choice([8, 8, 8, 11, 16, 24])
    mantissa = rng.choice([2, 3, 5, 8, 11, 15, 15])
    extreme = rng.random() < 0.2
    numbers = np.random.default_rng(seed)
    writer = Writer(rng, native)
    entries, tensors = memory_image(rng, numbers, native, extreme, writer.known)
    writer.body(rng.randint(2, 6), nesting=0, times=1)
    writer.dump()
    hints = [*tensors, *queue_hints(rng, "input", "x", writer.read, native)]
    hints += queue_hints(rng, "output", "y", writer.written, native)
    numbered = [replace(i, line=n) for n, i in enumerate(writer.instructions, start=1)]
    program = Program(native, mantissa, DEPTHS, tuple(numbered), tuple(hints), f"random{seed}")
    return Case(program, Image(entries), extreme)


def random_inputs(case: Case, batch: int | None = None, seed: int = 0) -> dict[str, np.ndarray]:
    """One binary16 array for each input hint, with a leading batch axis unless batch is None."""
    numbers = np.random.default_rng([seed, 1])
    lead = () if batch is None else (batch,)
    return {
        hint.name: values(numbers, (*lead, *hint.shape), case.extreme)
        for hint in case.program.hints
        if hint.kind == "input"
    }


def values(numbers: np.random.Generator, shape: tuple[int, ...], extreme: bool) -> np.ndarray:
    """Finite binary16 numbers of mixed sizes, zeros among them; extreme ones soon overflow."""
    scale = 2.0 ** numbers.integers(-3, 2)
    array = (numbers.standard_normal(shape) * scale).astype(np.float16)
    array = np.where(numbers.random(shape) < 0.1, np.float16(0), array)
    if extreme:
        odd = np.array([65504, -65504, 65472, -60000, 2.0**-24, -(2.0**-20), -0.0], np.float16)
        picked = odd[numbers.integers(0, len(odd), shape)]
        array = np.where(numbers.random(shape) < 0.04, picked, array)
    return array


def memory_image(rng, numbers, native, extreme, known):
    """(entries, tensor hints): every memory filled but for a few addresses."""
    entries, hints = {}, []
    for memory, depth in DEPTHS.items():
        tiles = memory in ("mrf", "mdram")
        shape = (native, native) if tiles else (native,)
        held = {a: values(numbers, shape, extreme) for a in range(depth) if rng.random() < 0.9}
        # A tensor at the start, so its vectors are all there; the padding is zero.
        count = rng.randint(1, 4)
        last = rng.randint(1, native)
        for address in range(count):
            held[address] = values(numbers, shape, extreme)
        held[count - 1][..., last:] = 0
        size = (count - 1) * native + last
        if rng.random() < 0.7:
            hints.append(
                Hint("tensor", f"t_{memory}", (native, size) if tiles else (size,), memory, 0)
            )
        entries[memory] = held
        known[memory] = set(held)
    return entries, hints


def queue_hints(rng, kind, name, count, native):
    """Hints whose shapes take `count` vectors of the queue in all."""
    hints = []
    while count:
        take = rng.randint(1, count)
        each = rng.choice([n for n in (1, 2, 3) if take % n == 0])
        channels = each * native - rng.choice([0, 0, rng.randrange(native)])
        steps = take // each
        wide = rng.choice([n for n in range(1, steps + 1) if steps % n == 0])
        shapes = [(steps, channels), (channels, steps // wide, wide)]
        shape = (channels,) if steps == 1 else rng.choice(shapes)
        hints.append(Hint(kind, f"{name}{len(hints)}", shape))
        count -= take
    return hints


@dataclass
class Access:
    """A read, operand or write of a chain: the instruction and the addresses of all iterations."""

    instruction: Instruction
    addresses: list[int] = field(default_factory=list)


@dataclass
class Writer:
    """Instructions so far, and what is known of the machine after them."""

    rng: random.Random
    native: int
    instructions: list[Instruction] = field(default_factory=list)
    registers: dict[str, int | None] = field(default_factory=lambda: dict(REGISTERS))
    known: dict[str, set[int]] = field(default_factory=dict)
    changed: dict[str, set[int]] = field(default_factory=lambda: {name: set() for name in DEPTHS})
    read: int = 0
    written: int = 0
    executions: int = 0

    def emit(self, op: str, **fields) -> None:
        self.instructions.append(Instruction(op, **fields))

    def set(self, **wanted: int) -> None:
        for register, value in wanted.items():
            if self.registers[register] != value or self.rng.random() < 0.05:
                self.emit("s_wr", register=register, value=value)
            self.registers[register] = value

    def body(self, items: int, nesting: int, times: int) -> None:
        for _ in range(items):
            if nesting < 3 and self.rng.random() < 0.25:
                self.loop(nesting, times)
            else:
                self.chain(times)
        if self.rng.random() < 0.2:
            self.emit("s_rd", register=self.rng.choice(list(REGISTERS)))

    def loop(self, nesting: int, times: int) -> None:
        count = self.rng.randint(1, 3)
        before = dict(self.registers)
        self.emit("loop", value=count)
        # The second turn starts with the registers of the end of the body: assume nothing, but
        # that any value of `requantize` is legal.
        requantize = self.registers["requantize"]
        self.registers = {**dict.fromkeys(self.registers), "requantize": requantize}
        self.body(self.rng.randint(1, 2), nesting + 1, times * count)
        self.emit("end_loop")
        self.registers = {
            name: before[name] if value is None else value for name, value in self.registers.items()
        }

    def chain(self, times: int) -> None:
        if self.executions > EXECUTIONS:
            return
        tiles = self.rng.random() < 0.2
        while not (self.tile_chain(times) if tiles else self.vector_chain(times)):
            pass

    def tile_chain(self, times: int) -> bool:
        rng = self.rng
        rows, columns = rng.randint(1, 3), rng.randint(1, 2)
        iterations, wide = rng.choice([1, 1, 2]), rng.randint(1, 2)
        source = rng.choice(["mdram", "mdram", "mdram", "ivrf", "dram", QUEUE])
        each = 1 if source in ("mdram", QUEUE) else self.native  # addresses of a tile
        if source != "mdram":
            rows = columns = 1
        places = [divmod(t, wide) for t in range(iterations)]
        op = rng.choice(["m_rd", "m_rd_t"])
        read = self.access(op, source, places, range(rows * columns * each))
        write = self.access(
            "m_wr", rng.choice(["mrf", "mrf", "mdram"]), places, range(rows * columns)
        )
        if read is None or write is None or not self.readable(read):
            return False
        if not disjoint(write, [read], iterations * rows * columns):
            return False
        self.set(rows=rows, columns=columns, iterations=iterations, iterations_x=wide)
        self.set(window=1, window_run=1)
        self.instructions += [read.instruction, write.instruction]
        self.emit("end_chain")
        self.changes(write)
        self.read += times * iterations * self.native * (source == QUEUE)
        self.executions += times * iterations
        return True

    def vector_chain(self, times: int) -> bool:
        rng = self.rng
        rows, columns = rng.randint(1, 3), rng.randint(1, 4)
        product_unit = rng.random() < 0.5
        taken = columns if product_unit else rows
        iterations = rng.choice([1, 1, rng.randint(2, 6)])
        wide = rng.randint(1, 4)
        source = rng.choice([QUEUE, "ivrf", "ivrf", "dram"])
        window = run = 1
        pitch = rng.choice([0, rng.randint(1, 5)])
        if source != QUEUE and rng.random() < 0.5:
            window = rng.choice([n for n in range(1, taken + 1) if taken % n == 0])
            run = taken // window
        places = [divmod(t, wide) for t in range(iterations)]
        offsets = range(taken)
        if window * run != 1:
            offsets = [w * pitch + r for w, r in product(range(window), range(run))]

        read = self.access("v_rd", source, places, offsets)
        tiles = rng.randrange(DEPTHS["mrf"] - min(rows * columns, DEPTHS["mrf"]) + 1)
        operations = self.operations(places, rows, product_unit)
        reads = [read, *operations]
        if any(a is None or not self.readable(a) for a in reads):
            return False
        if product_unit and not set(range(tiles, tiles + rows * columns)) <= self.known["mrf"]:
            return False
        targets = rng.sample([QUEUE, *VECTOR_FILES], rng.randint(1, 3))
        writes = [self.access("v_wr", memory, places, range(rows)) for memory in targets]
        if any(w is None or not disjoint(w, reads, iterations * rows) for w in writes):
            return False

        self.set(rows=rows, columns=columns, iterations=iterations, iterations_x=wide)
        self.set(window=window, window_run=run, window_pitch=pitch)
        self.set(requantize=int(rng.random() < 0.3))
        self.instructions.append(read.instruction)
        if product_unit:
            self.emit("mv_mul", address=tiles)
        self.instructions += [a.instruction for a in (*operations, *writes)]
        self.emit("end_chain")
        for access in writes:
            self.changes(access)
        self.read += times * iterations * taken * (source == QUEUE)
        self.written += times * iterations * rows * (QUEUE in targets)
        self.executions += times * iterations
        return True

    def operations(self, places, rows, product_unit):
        rng = self.rng
        chosen, last = [], 0
        for unit in (0, 1):
            if rng.random() < 0.45:
                op = rng.choice(ADD_SUB)
                chosen.append(self.access(op, f"asvrf{unit}", places, range(rows)))
                last = unit
            if rng.random() < 0.4:
                chosen.append(self.access(rng.choice(MULTIPLY), f"mvrf{unit}", places, range(rows)))
                last = unit
            if rng.random() < 0.4:
                named = unit if last != unit or rng.random() < 0.3 else None
                chosen.append(Access(Instruction(rng.choice(ACTIVATIONS), unit=named)))
                last = unit
        return chosen

    def access(self, op, memory, places, offsets) -> Access | None:
        """An access somewhere in the memory, often of the _inc form; None if it does not fit."""
        if memory == QUEUE:
            return Access(Instruction(op, memory=memory))
        rng = self.rng
        steps = None
        if rng.random() < (0.8 if len(places) > 1 else 0.2):
            steps = rng.randint(-2, 4), rng.randint(-3, 6)
        dx, dy = steps or (0, 0)
        moves = [tx * dx + ty * dy + offset for ty, tx in places for offset in offsets]
        low, high = -min(moves), DEPTHS[memory] - 1 - max(moves)
        if low > high or high < 0:
            return None
        base = rng.randint(max(low, 0), high)
        instruction = Instruction(
            op + ("_inc" if steps else ""), memory=memory, address=base, steps=steps
        )
        return Access(instruction, [base + move for move in moves])

    def readable(self, access: Access) -> bool:
        memory = access.instruction.memory
        return memory in (None, QUEUE) or set(access.addresses) <= self.known[memory]

    def changes(self, access: Access) -> None:
        memory = access.instruction.memory
        if memory != QUEUE:
            self.known[memory] |= set(access.addresses)
            self.changed[memory] |= set(access.addresses)

    def dump(self) -> None:
        """Send vectors that chains have written to the network, so that they count."""
        self.set(rows=1, columns=1, iterations=1, iterations_x=1, window=1, window_run=1)
        written = {name: sorted(self.changed[name]) or [0] for name in VECTOR_FILES}
        longest = max(len(addresses) for addresses in written.values())
        for n in range(0, longest, 1 + longest // 6):
            at = {name: addresses[n % len(addresses)] for name, addresses in written.items()}
            source = ("ivrf", "dram")[n % 2]
            self.emit("v_rd", memory=source, address=at[source])
            for unit in (0, 1):
                self.emit("vv_add", memory=f"asvrf{unit}", address=at[f"asvrf{unit}"])
                self.emit("vv_mul", memory=f"mvrf{unit}", address=at[f"mvrf{unit}"])
            self.emit("v_wr", memory=QUEUE)
            self.emit("end_chain")
            self.written += 1


def disjoint(write: Access, reads: list[Access], count: int) -> bool:
    """Whether a write hits no address twice and none that its chain reads."""
    memory = write.instruction.memory
    if memory == QUEUE:
        return True
    taken = {a for read in reads if read.instruction.memory == memory for a in read.addresses}
    return len(set(write.addresses)) == count and not taken & set(write.addresses)
