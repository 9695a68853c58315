"""Programs as 32-bit words. docs/spec/npu.md section 5."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NoReturn

from samebits.errors import InputError
from samebits.npu.machine.isa import INSTRUCTIONS, VALUE_MAX, Operand, Record, fault
from samebits.npu.machine.program import (
    DEPTHS,
    INSTRUCTIONS_MAX,
    MANTISSA,
    MEMORIES,
    NATIVE,
    REGISTERS,
    STORED,
    Instruction,
    Program,
)

NO_UNIT = 15  # in place of a memory's number: an activation that leaves its unit out
NUMBERS = tuple(REGISTERS)
_BY_OPCODE = {record.opcode: record for record in INSTRUCTIONS.values()}


def to_words(program: Program) -> tuple[int, ...]:
    """The instructions in 32-bit words; hints are not part of them. Instructions must be legal."""
    return tuple(word for instruction in program.instructions for word in _words(instruction))


def _words(instruction: Instruction) -> list[int]:
    record, number = INSTRUCTIONS[instruction.op], 0
    if instruction.memory is not None:
        number = MEMORIES.index(instruction.memory)
    elif instruction.register is not None:
        number = NUMBERS.index(instruction.register)
    elif Operand.UNIT in record.operands:
        number = NO_UNIT if instruction.unit is None else instruction.unit
    # A legal instruction has an address or a value: what it does not use is 0.
    word = record.opcode << 26 | number << 22 | instruction.address | instruction.value
    if instruction.steps is None:
        return [word]
    dx, dy = instruction.steps
    return [word, (dx & 0xFFFF) << 16 | dy & 0xFFFF]


def from_words(
    words: Sequence[int],
    native: int,
    mantissa: int,
    depths: Mapping[str, int],
    name: str = "program",
) -> Program:
    """The program that words say. An instruction's line is its number, from 1.

    Raises InputError "name: word i: expected ..., found ..." for words that no instruction gives.
    """
    _check_settings(name, native, mantissa, depths)
    instructions: list[Instruction] = []
    at = 0
    while at < len(words):
        if len(instructions) == INSTRUCTIONS_MAX:
            _fail(name, words, at, f"at most {INSTRUCTIONS_MAX} instructions")
        found = _instruction(name, words, at, len(instructions) + 1)
        instructions.append(found)
        at += 1 if found.steps is None else 2
    return Program(native, mantissa, depths, tuple(instructions), (), name)


def _fail(name: str, words: Sequence[int], at: int, expected: str) -> NoReturn:
    word = words[at] if at < len(words) else None
    found = "the end" if word is None else f"0x{word:08X}" if 0 <= word < 1 << 32 else str(word)
    raise InputError(
        f"{name}: word {at}: expected {expected}, found {found}; assemble the program again"
    )


def _check_settings(name: str, native: int, mantissa: int, depths: Mapping[str, int]) -> None:
    for memory in depths:
        if memory not in STORED:
            raise InputError(
                f"{name}: expected depths of {', '.join(STORED)}, found {memory!a}; leave it out"
            )
    checks = [("native dimension", native, NATIVE), ("number of mantissa bits", mantissa, MANTISSA)]
    checks += [(f"depth of {memory}", depth, DEPTHS) for memory, depth in depths.items()]
    for what, value, limits in checks:
        if value not in limits:
            raise InputError(
                f"{name}: expected a {what} from {limits[0]} to {limits[-1]}, found {value}; "
                "give what the program was written for"
            )


def _instruction(name: str, words: Sequence[int], at: int, line: int) -> Instruction:
    """The instruction that begins at word `at`. Raises InputError if none does."""
    word = words[at]
    if not 0 <= word < 1 << 32:
        _fail(name, words, at, "32 bits")
    record = _BY_OPCODE.get(word >> 26)
    if record is None:
        _fail(name, words, at, "the opcode of an instruction")
    steps = None
    if record.steps:
        if at + 1 == len(words) or not 0 <= words[at + 1] < 1 << 32:
            _fail(name, words, at + 1, f"the steps of {record.name}")
        steps = _signed(words[at + 1] >> 16), _signed(words[at + 1] & 0xFFFF)
    found = replace(_decoded(record, word >> 22 & 15, word & VALUE_MAX), steps=steps, line=line)
    # What the coder would not write is an error, so that a program has one binary form.
    if fault(found) or _words(found)[0] != word:
        _fail(name, words, at, f"operands of {record.name}")
    return found


def _signed(half: int) -> int:
    return half - (1 << 16) if half & 1 << 15 else half


def _decoded(record: Record, number: int, operand: int) -> Instruction:
    """The fields that the record uses, whatever they hold."""
    used = set(record.operands)
    return Instruction(
        record.name,
        memory=_at(MEMORIES, number) if Operand.MEMORY in used else None,
        address=operand if used & {Operand.MEMORY, Operand.ADDRESS} else 0,
        register=_at(NUMBERS, number) if Operand.REGISTER in used else None,
        value=operand if used & {Operand.VALUE, Operand.COUNT} else 0,
        unit=number if Operand.UNIT in used and number != NO_UNIT else None,
    )


def _at(names: tuple[str, ...], number: int) -> str | None:
    return names[number] if number < len(names) else None
