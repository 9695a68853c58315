"""Programs as text (.nnp). docs/spec/npu.md sections 3 and 4; as words: samebits.npu.machine.words.

Text is untrusted: a line is a name and integers, sizes are bounded, nothing nests but by count.
Whether a program makes sense beyond its lines is samebits.npu.machine.check's business.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple, NoReturn

from samebits.errors import InputError
from samebits.npu.machine.isa import ADDRESSES, COUNTS, INSTRUCTIONS, LIMITS, STEP, Operand, Record
from samebits.npu.machine.program import (
    DEPTHS,
    INSTRUCTIONS_MAX,
    MANTISSA,
    NATIVE,
    QUEUE,
    STORED,
    TILE_FILES,
    Hint,
    Instruction,
    Program,
)
from samebits.npu.machine.words import NUMBERS

TEXT_MAX = 1 << 23  # characters
HINTS_MAX = 1 << 12
SIZE_MAX = 1 << 20  # of one dimension in a hint
MANTISSA_DEFAULT = 15
BYTE_ORDER_MARK = "\ufeff"  # that some editors write before a text
BLANKS = " \t\r\v\f"  # between words; other white space is not

_TOKEN = re.compile(r"[^\s,;]+|,", re.ASCII)
_INTEGER = re.compile(r"-?[0-9]{1,9}", re.ASCII)
TENSOR_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}", re.ASCII)
_SHAPE = re.compile(r"[0-9]{1,9}(x[0-9]{1,9}){0,3}", re.ASCII)


# --- reading text -----------------------------------------------------------------------------


def parse(text: str, source: str = "program") -> Program:
    """The program that a text says; `source` becomes its name and begins messages.

    Raises InputError "source:line:column: expected ..., found ...; what to do".
    """
    if len(text) > TEXT_MAX:
        raise InputError(
            f"{source}: expected at most {TEXT_MAX} characters, found {len(text)}; "
            "split the program"
        )
    reader = _Reader(source)
    for number, line in enumerate(text.removeprefix(BYTE_ORDER_MARK).split("\n"), start=1):
        reader.read(number, line)
    return reader.program()


class _Token(NamedTuple):
    text: str
    column: int  # from 1


class _Line:
    """The tokens of one line (or hint), taken one after the other."""

    def __init__(self, source: str, number: int, text: str, start: int, end: int) -> None:
        self.where = f"{source}:{number}"
        self.tokens = [
            _Token(found[0], found.start() + 1) for found in _TOKEN.finditer(text, start, end)
        ]
        self.end = len(text[:end].rstrip()) + 1
        self.at = 0

    def fail(self, expected: str, advice: str, back: int = 0) -> NoReturn:
        """The error of the next token, or of the one `back` tokens before it."""
        at = self.at - back
        token = self.tokens[at] if at < len(self.tokens) else None
        column = token.column if token else self.end
        found = _quoted(token.text) if token else "the end of the line"
        raise InputError(f"{self.where}:{column}: expected {expected}, found {found}; {advice}")

    def more(self) -> bool:
        return self.at < len(self.tokens)

    def word(self, expected: str, advice: str) -> str:
        if not self.more() or self.tokens[self.at].text == ",":
            self.fail(expected, advice)
        self.at += 1
        return self.tokens[self.at - 1].text

    def choice(self, what: str, names: Sequence[str], advice: str) -> str:
        expected = f"{what} ({', '.join(names)})"
        word = self.word(expected, advice)
        if word not in names:
            self.fail(expected, advice, back=1)
        return word

    def integer(self, what: str, limits: range, advice: str = "write a decimal integer") -> int:
        expected = f"{what} from {limits[0]} to {limits[-1]}"
        word = self.word(expected, advice)
        if not _INTEGER.fullmatch(word) or int(word) not in limits:
            self.fail(expected, advice, back=1)
        return int(word)

    def comma(self) -> None:
        if not self.more() or self.tokens[self.at].text != ",":
            self.fail("a comma", "separate operands by commas")
        self.at += 1

    def done(self, what: str) -> None:
        if self.more():
            self.fail(f"the end of {what}", "write one instruction a line; ';' begins a comment")


def _quoted(text: str) -> str:
    return ascii(text if len(text) <= 40 else text[:37] + "...")


class _Reader:
    def __init__(self, source: str) -> None:
        self.source = source
        self.native: int | None = None
        self.mantissa: int | None = None
        self.depths: dict[str, int] = {}
        self.instructions: list[Instruction] = []
        self.hints: list[Hint] = []

    def read(self, number: int, text: str) -> None:
        code, _, comment = text.partition(";")
        if code.strip(BLANKS):
            line = _Line(self.source, number, text, 0, len(code))
            if line.tokens[0].text.startswith("."):
                self._directive(line)
            else:
                self._instruction(line, number)
        if comment.startswith("!"):
            start = len(code) + 2
            end = start + len(comment[1:].partition(";")[0])
            self._hint(_Line(self.source, number, text, start, end), number)

    def program(self) -> Program:
        if self.native is None:
            raise InputError(
                f"{self.source}:1: expected the directive .native, found none; "
                "begin the program with '.native N', the native dimension"
            )
        mantissa = MANTISSA_DEFAULT if self.mantissa is None else self.mantissa
        instructions, hints = tuple(self.instructions), tuple(self.hints)
        return Program(self.native, mantissa, self.depths, instructions, hints, self.source)

    # --- directives -----------------------------------------------------------------------------

    def _directive(self, line: _Line) -> None:
        """`.native`, `.mantissa` or `.depth`: before the first instruction, each once."""
        once = "give each directive once"
        if self.instructions:
            line.fail("an instruction", "directives come before the first instruction")
        names = (".native", ".mantissa", ".depth")
        name = line.choice("a directive", names, "correct the name")
        if name == ".native":
            if self.native is not None:
                line.fail("no second .native", once, back=1)
            self.native = line.integer("a native dimension", NATIVE)
        elif name == ".mantissa":
            if self.mantissa is not None:
                line.fail("no second .mantissa", once, back=1)
            self.mantissa = line.integer("mantissa bits", MANTISSA)
        else:
            memory = line.choice("a memory", STORED, "name a memory that has a depth")
            if memory in self.depths:
                line.fail("a memory without a depth so far", once, back=1)
            self.depths[memory] = line.integer("a depth", DEPTHS)
        line.done("the directive")

    # --- instructions ---------------------------------------------------------------------------

    def _instruction(self, line: _Line, number: int) -> None:
        if len(self.instructions) == INSTRUCTIONS_MAX:
            line.fail(f"at most {INSTRUCTIONS_MAX} instructions", "use loops or iterations")
        word = line.word("an instruction", "docs/spec/isa.md lists the instructions")
        record = INSTRUCTIONS.get(word)
        if record is None:
            line.fail("an instruction", "docs/spec/isa.md lists the instructions", back=1)
        found = _operands(line, record, number)
        line.done(word)
        self.instructions.append(found)

    # --- hints ----------------------------------------------------------------------------------

    def _hint(self, line: _Line, number: int) -> None:
        if len(self.hints) == HINTS_MAX:
            line.fail(f"at most {HINTS_MAX} hints", "hint fewer tensors")
        kind = line.choice("a hint", ("input", "output", "tensor"), "or begin a comment with ';'")
        rule = "use letters, digits and '_', at most 64, no digit first"
        name = line.word("a tensor name", rule)
        if not TENSOR_NAME.fullmatch(name):
            line.fail("a tensor name", rule, back=1)
        memory, address = QUEUE, 0
        if kind == "tensor":
            memory = line.choice("a memory", STORED, "name where the tensor lies")
            address = line.integer("an address", ADDRESSES)
        shape = self._shape(line, memory)
        line.done("the hint")
        self.hints.append(Hint(kind, name, shape, memory, address, number))

    def _shape(self, line: _Line, memory: str) -> tuple[int, ...]:
        tiles = memory in TILE_FILES
        expected = "a shape OxI or OxIxHxW" if tiles else "a shape C, TxC or CxHxW"
        advice = f"write sizes from 1 to {SIZE_MAX} with 'x' between them"
        word = line.word(expected, advice)
        sizes = tuple(map(int, word.split("x"))) if _SHAPE.fullmatch(word) else ()
        ranks = (2, 4) if tiles else (1, 2, 3)
        if len(sizes) not in ranks or not all(1 <= size <= SIZE_MAX for size in sizes):
            line.fail(expected, advice, back=1)
        return sizes


def _operands(line: _Line, record: Record, number: int) -> Instruction:
    """The rest of a line as the record says. number: of the line, from 1."""
    memory, register, unit, steps = None, None, None, None
    address = value = 0
    for at, operand in enumerate(record.operands):
        if at:
            line.comma()
        if operand is Operand.MEMORY:
            memory = line.choice("a memory", record.memories, f"{record.name} takes no other")
            if memory != QUEUE:
                line.comma()
                address = line.integer("an address", ADDRESSES)
        elif operand is Operand.ADDRESS:
            address = line.integer("an address", ADDRESSES)
        elif operand is Operand.REGISTER:
            register = line.choice("a register", NUMBERS, "correct the name")
        elif operand is Operand.VALUE:
            assert register is not None
            value = line.integer(f"a value of {register}", LIMITS[register])
        elif operand is Operand.COUNT:
            value = line.integer("a count", COUNTS)
        elif line.more():
            unit = line.integer("a multifunction unit", range(2), "write 0, 1 or nothing")
    if record.steps:
        line.comma()
        dx = line.integer("a step DX", STEP)
        line.comma()
        steps = (dx, line.integer("a step DY", STEP))
    return Instruction(record.name, memory, address, steps, register, value, unit, number)


# --- writing text -----------------------------------------------------------------------------


def to_text(program: Program) -> str:
    """The program as text: directives, hints, instructions, indented inside chains' loops."""
    lines = [f".native {program.native}", f".mantissa {program.mantissa}"]
    lines += [f".depth {memory} {depth}" for memory, depth in program.depths.items()]
    lines += [hint_text(hint) for hint in program.hints]
    level = 0
    for instruction in program.instructions:
        nesting = INSTRUCTIONS[instruction.op].nesting
        level = max(level + min(nesting, 0), 0)
        lines.append("    " * min(level, 8) + instruction_text(instruction))
        level += max(nesting, 0)
    return "\n".join(lines) + "\n"


def hint_text(hint: Hint) -> str:
    """`;! kind name ...`"""
    place = f" {hint.memory} {hint.address}" if hint.kind == "tensor" else ""
    return f";! {hint.kind} {hint.name}{place} {'x'.join(map(str, hint.shape))}"


def instruction_text(instruction: Instruction) -> str:
    """One instruction as it is written in a program."""
    shown: list[object] = []
    for operand in INSTRUCTIONS[instruction.op].operands:
        if operand is Operand.MEMORY:
            shown.append(instruction.memory)
            shown += [instruction.address] * (instruction.memory != QUEUE)
        elif operand is Operand.ADDRESS:
            shown.append(instruction.address)
        elif operand is Operand.REGISTER:
            shown.append(instruction.register)
        elif operand in (Operand.VALUE, Operand.COUNT):
            shown.append(instruction.value)
        elif instruction.unit is not None:
            shown.append(instruction.unit)
    shown += instruction.steps or ()
    return f"{instruction.op} {', '.join(map(str, shown))}".rstrip()
