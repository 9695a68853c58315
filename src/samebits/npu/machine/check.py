"""Whether a program is legal, before it runs; and its chains with their settings resolved.

docs/spec/npu.md sections 3 and 4. All rules are static: addresses do not depend on data or loop
counters, so what is found here holds for every run. Messages read "program:line: expected ...,
found ...; what to do".
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any, NamedTuple, NoReturn

import numpy as np

from samebits.errors import InputError, NonFiniteError
from samebits.npu.machine import cover
from samebits.npu.machine.assembly import HINTS_MAX, SIZE_MAX, TENSOR_NAME
from samebits.npu.machine.chain import Access, Chain, Loop, Send, Statement
from samebits.npu.machine.image import entry_count, entry_shape
from samebits.npu.machine.isa import INSTRUCTIONS, Operand, fault
from samebits.npu.machine.program import (
    DEPTHS,
    INSTRUCTIONS_MAX,
    ITERATIONS_MAX,
    MANTISSA,
    NATIVE,
    QUEUE,
    REGISTERS,
    STORED,
    TILE_FILES,
    Hint,
    Image,
    Instruction,
    Program,
)
from samebits.npu.machine.structure import Block, Registers, build, structure

TOUCHED_MAX = 1 << 32  # bounds the time that checking takes
Covered = tuple[Access, cover.Cover]


def check(program: Program, image: Image) -> tuple[Statement, ...]:
    """The statements of a legal program.

    Raises InputError for the first rule that it breaks, NonFiniteError (one of them) for NaN or an
    infinity in the memory image.
    """
    _check_settings(program)
    for hint in program.hints:
        _check_hint(program, hint)
    checker = _Checker(program)
    checker.load(image)
    _check_tensors(program, checker)
    statements, _ = checker.resolve(structure(program), tuple(REGISTERS.values()))
    total = _total(statements, program.native)
    if total.iterations > ITERATIONS_MAX:
        most = max(statements, key=lambda statement: _total([statement], program.native).iterations)
        program.fail(
            most.line,
            f"expected at most {ITERATIONS_MAX} executed iterations, found {total.iterations}, "
            "most of them here; lower the counts of loops or iterations",
        )
    _check_queue(program, "input", statements, total.read)
    _check_queue(program, "output", statements, total.written)
    return statements


def _check_settings(program: Program) -> None:
    """The rules that the assembler checks as it reads: programs may be made without it."""
    checks = [("native dimension", program.native, NATIVE)]
    checks += [("mantissa", program.mantissa, MANTISSA)]
    checks += [(f"depth of {memory}", depth, DEPTHS) for memory, depth in program.depths.items()]
    checks += [("number of instructions", len(program.instructions), range(INSTRUCTIONS_MAX + 1))]
    checks += [("number of hints", len(program.hints), range(HINTS_MAX + 1))]
    for what, found, limits in checks:
        if found not in limits:
            raise InputError(
                f"{program.name}: expected a {what} from {limits[0]} to {limits[-1]}, found "
                f"{found}; correct the program"
            )
    for memory in program.depths:
        if memory not in STORED:
            raise InputError(
                f"{program.name}: expected depths of {', '.join(STORED)}, found {memory!a}; "
                "leave it out"
            )
    for instruction in program.instructions:
        wrong = fault(instruction)
        if wrong is not None:
            program.fail(instruction.line, f"{wrong}; docs/spec/isa.md lists the instructions")


# --- chains -----------------------------------------------------------------------------------


class _Checker:
    """Resolves and checks; knows which entries of the memories have been written so far."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.written = {memory: np.zeros(d, np.bool_) for memory, d in program.depths.items()}
        self.touched = 0
        self.chains: dict[tuple[int, Registers], Chain] = {}

    def load(self, image: Image) -> None:
        """The memory image."""
        name = self.program.name
        for memory, entries in image.entries.items():
            if memory not in STORED:
                raise InputError(
                    f"{name}: expected an image of {', '.join(STORED)}, found {memory!a}; "
                    "leave it out"
                )
            shape = entry_shape(memory, self.program.native)
            depth = self.program.depths.get(memory, 0)
            for address, entry in entries.items():
                if not 0 <= address < depth:
                    raise InputError(
                        f"{name}{self._hinted(memory, address)}: memory image: expected addresses "
                        f"of {memory} below its depth {depth}, found {address}; raise .depth "
                        f"{memory}"
                    )
                if entry.shape != shape or entry.dtype != np.float16:
                    raise InputError(
                        f"{name}: memory image: {memory} {address}: expected float16 "
                        f"{list(shape)}, found {entry.dtype} {list(entry.shape)}; pad and convert"
                    )
                self._check_finite(memory, address, entry)
            if entries:
                self.written[memory][list(entries)] = True

    def _check_finite(self, memory: str, address: int, entry: np.ndarray[Any, Any]) -> None:
        """NonFiniteError for NaN and infinities, but for the border that a maximum reads: a native
        vector of minus infinities."""
        wrong = np.argwhere(~np.isfinite(entry))
        if len(wrong) and not (entry.ndim == 1 and np.isneginf(entry).all()):
            at = tuple(wrong[0].tolist())
            raise NonFiniteError(
                f"{self.program.name}{self._hinted(memory, address)}: memory image: expected "
                f"finite numbers, or minus infinity in all lanes of a vector for the border of a "
                f"maximum, found {entry[at]} in {memory} {address} at {list(at)}; correct the image"
            )

    def _hinted(self, memory: str, address: int) -> str:
        """A colon and the line of the tensor that lies there; nothing if no hint says so."""
        for hint in self.program.hints:
            if hint.kind == "tensor" and hint.memory == memory:
                end = hint.address + entry_count(hint.shape, memory, self.program.native)
                if hint.address <= address < end:
                    return f":{hint.line}"
        return ""

    def resolve(
        self, block: Block, registers: Registers
    ) -> tuple[tuple[Statement, ...], Registers]:
        """The statements of a block entered with these registers, and the registers after it."""
        if registers in block.resolved:
            return block.resolved[registers]
        entered, names = registers, tuple(REGISTERS)
        statements: list[Statement] = []
        for item in block.items:
            if isinstance(item, Block):
                loops, registers = self._loop(item, registers)
                statements += loops
            elif isinstance(item, list):
                statements.append(self._chain(item, registers))
            else:
                assert item.register is not None
                at = names.index(item.register)
                if Operand.VALUE in INSTRUCTIONS[item.op].operands:
                    registers = (*registers[:at], item.value, *registers[at + 1 :])
                else:
                    statements.append(Send(item.register, registers[at], item.line))
        block.resolved[entered] = tuple(statements), registers
        return tuple(statements), registers

    def _loop(self, block: Block, registers: Registers) -> tuple[list[Statement], Registers]:
        """As one Loop; as two where the body begins with other registers the second time.

        From the second time on it begins with what its s_wr left, always the same.
        """
        first, after = self.resolve(block, registers)
        if block.count == 1:
            again = first
        else:
            again, after = self.resolve(block, after)
        counts = [(block.count, first)]
        if again != first:
            counts = [(1, first), (block.count - 1, again)]
        return [Loop(count, body, block.line) for count, body in counts if body], after

    def _chain(self, instructions: list[Instruction], registers: Registers) -> Chain:
        """Checked once for each setting of the registers: later runs find no less in memory."""
        key = id(instructions), registers
        if key not in self.chains:
            chain = build(self.program, instructions, registers)
            self._check_addresses(chain)
            self.chains[key] = chain
        return self.chains[key]

    def _check_addresses(self, chain: Chain) -> None:
        operands = [o.operand for o in chain.operations if o.operand is not None]
        reads = [chain.read, *operands]
        if chain.mvm_address is not None:
            self._check_tiles(chain, chain.mvm_address)
        read, written = self._covers(chain, reads), self._covers(chain, chain.writes)
        for access, found in read:
            self._check_written(access, found)
        for at, (access, found) in enumerate(written):
            self._check_once(chain, access, found)
            self._check_apart(access, found, read, "both read and written")
            self._check_apart(access, found, written[:at], "written twice")
        for access, found in written:
            self.written[access.memory][found.places] |= found.mask

    def check_tensor(self, hint: Hint, end: int) -> None:
        """A tensor hint whose last entry is end - 1: in its memory, and in the image."""
        access = Access(hint.memory, hint.address, line=hint.line)
        if hint.address < 0 or end > self._depth(access):
            self._beyond(access, hint.address, end - 1)
        missing = np.flatnonzero(~self.written[hint.memory][hint.address : end])
        if len(missing):
            self.program.fail(
                hint.line,
                f"expected tensor {hint.name} in the memory image, found no {hint.memory} "
                f"{hint.address + int(missing[0])} there; add it to the image or delete the hint",
            )

    def _covers(self, chain: Chain, accesses: Sequence[Access]) -> list[Covered]:
        stored = [access for access in accesses if access.memory != QUEUE]
        for access in stored:
            self._check_ends(chain, access)
        return [(access, cover.cover(chain, access)) for access in stored]

    def _check_tiles(self, chain: Chain, address: int) -> None:
        access = Access("mrf", address, line=chain.line)
        tiles = chain.rows * chain.columns
        self._depth(access)
        if address + tiles > len(self.written["mrf"]):
            self._beyond(access, address, address + tiles - 1)
        self._check_written(access, cover.Cover(address, np.ones(tiles, np.bool_)))

    def _depth(self, access: Access) -> int:
        if access.memory not in self.written:
            self.program.fail(
                access.line,
                f"expected the depth of {access.memory}, found none; write .depth "
                f"{access.memory} and the depth at the beginning",
            )
        return len(self.written[access.memory])

    def _beyond(self, access: Access, low: int, high: int) -> NoReturn:
        depth = self._depth(access)
        self.program.fail(
            access.line,
            f"expected addresses of {access.memory} from 0 to {depth - 1}, found {low} to {high} "
            "over all vectors and iterations; raise its .depth or lower the address, the steps "
            "or the registers",
        )

    def _check_ends(self, chain: Chain, access: Access) -> None:
        low, high = cover.ends(chain, access)
        if low < 0 or high >= self._depth(access):
            self._beyond(access, low, high)
        self.touched += high + 1 - low
        if self.touched > TOUCHED_MAX:
            self.program.fail(
                access.line,
                f"expected chains that span at most {TOUCHED_MAX} addresses in all, found more; "
                "use loops, iterations or fewer chains",
            )

    def _check_written(self, access: Access, found: cover.Cover) -> None:
        missing = np.flatnonzero(found.mask & ~self.written[access.memory][found.places])
        if len(missing):
            self.program.fail(
                access.line,
                f"expected {access.memory} {found.low + int(missing[0])} to be written before it "
                f"is read, found nothing there ({len(missing)} entries in all); write it first or "
                "give it in the memory image",
            )

    def _check_once(self, chain: Chain, access: Access, found: cover.Cover) -> None:
        times, places = chain.iterations * chain.write_count, int(np.count_nonzero(found.mask))
        if times != places:
            self.program.fail(
                access.line,
                f"expected a chain to write every address once, found {times} writes to {places} "
                f"addresses of {access.memory}; use the _inc form with steps that lead apart",
            )

    def _check_apart(
        self, access: Access, found: cover.Cover, others: Sequence[Covered], what: str
    ) -> None:
        for other, covered in others:
            same = other.memory == access.memory
            shared = cover.common(found, covered) if same else None
            if shared is not None:
                self.program.fail(
                    access.line,
                    f"expected no address {what} in one chain, found {access.memory} {shared} "
                    f"(see line {other.line}); write it elsewhere or in another chain",
                )


# --- counts and hints -------------------------------------------------------------------------


class _Total(NamedTuple):
    """Totals of one run: executed iterations (and s_rd), vectors of the queue read and written."""

    iterations: int
    read: int
    written: int


def _total(statements: Sequence[Statement], native: int) -> _Total:
    """Totals of statements; a loop counts its body `count` times."""
    iterations = read = written = 0
    for statement in statements:
        if isinstance(statement, Loop):
            found, times = _total(statement.body, native), statement.count
        elif isinstance(statement, Send):
            found, times = _Total(1, 0, 0), 1
        else:
            vectors = statement.read_count * (native if statement.kind == "matrix" else 1)
            puts = sum(access.memory == QUEUE for access in statement.writes)
            takes = vectors * (statement.read.memory == QUEUE)
            found, times = _Total(1, takes, puts * statement.write_count), statement.iterations
        iterations += times * found.iterations
        read += times * found.read
        written += times * found.written
    return _Total(iterations, read, written)


def _check_queue(program: Program, kind: str, statements: Sequence[Statement], found: int) -> None:
    """At the first hint that is not filled, or else at the first chain that uses the queue."""
    hints = [hint for hint in program.hints if hint.kind == kind]
    counts = [entry_count(hint.shape, QUEUE, program.native) for hint in hints]
    if sum(counts) == found:
        return
    done = {"input": "read", "output": "written"}[kind]
    ends = zip(hints, accumulate(counts), strict=True)
    line = next((hint.line for hint, end in ends if end > found), None)
    said = ", ".join(f"{c} of {h.name}" for h, c in zip(hints[:8], counts, strict=False))
    said += ", ..." * (len(hints) > 8)
    program.fail(
        _queue_line(statements, kind) if line is None else line,
        f"expected {sum(counts)} vectors of netq to be {done}, as the {kind} hints say "
        f"({said or 'there are none'}), found {found}; correct the hints or the chains",
    )


def _queue_line(statements: Sequence[Statement], kind: str) -> int:
    """The first line that reads or writes the network queue, 0 if none does."""
    for statement in statements:
        line = 0
        if isinstance(statement, Loop):
            line = _queue_line(statement.body, kind)
        elif isinstance(statement, Chain):
            accesses = (statement.read,) if kind == "input" else statement.writes
            line = next((a.line for a in accesses if a.memory == QUEUE), 0)
        if line:
            return line
    return 0


def _check_hint(program: Program, hint: Hint) -> None:
    kinds = ("input", "output", "tensor")
    memories = STORED if hint.kind == "tensor" else (QUEUE,)
    ranks = (2, 4) if hint.memory in TILE_FILES else (1, 2, 3)
    sizes = all(1 <= size <= SIZE_MAX for size in hint.shape)
    named = isinstance(hint.name, str) and TENSOR_NAME.fullmatch(hint.name)
    known = hint.kind in kinds and hint.memory in memories
    if not (named and known and sizes and len(hint.shape) in ranks):
        program.fail(hint.line, f"expected a hint as in docs/spec/npu.md 4, found {hint!a:.200}")


def _check_tensors(program: Program, checker: _Checker) -> None:
    """Tensors against the memory image and each other."""
    lines: dict[str, int] = {}
    taken: dict[str, list[tuple[int, int, Hint]]] = {}
    for hint in program.hints:
        if hint.name in lines:
            program.fail(
                hint.line,
                f"expected names of tensors to be used once, found {hint.name} of line "
                f"{lines[hint.name]} again; rename it",
            )
        lines[hint.name] = hint.line
        if hint.kind == "tensor":
            end = hint.address + entry_count(hint.shape, hint.memory, program.native)
            checker.check_tensor(hint, end)
            taken.setdefault(hint.memory, []).append((hint.address, end, hint))
    for memory, places in taken.items():
        places.sort(key=lambda place: place[:2])
        for (_, end, before), (start, _, hint) in pairwise(places):
            if start < end:
                program.fail(
                    hint.line,
                    f"expected tensors apart, found {hint.name} at {memory} {start} inside "
                    f"{before.name} (line {before.line}), which ends at {end - 1}; move it",
                )
