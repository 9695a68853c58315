"""The instruction set, one record an instruction. docs/spec/npu.md sections 3, 5 and 6.

Assembler, binary coder, checker and the table in docs/spec/isa.md derive from these records.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from types import MappingProxyType

from samebits.npu.machine.program import (
    DEPTH_MAX,
    QUEUE,
    REGISTERS,
    TILE_FILES,
    VECTOR_FILES,
    Instruction,
)

ENGINES = 6  # tile passes of the matrix-vector unit in one cycle
FILL = 20  # cycles that a chain takes beside its iterations
VALUE_MAX = (1 << 22) - 1
STEP = range(-(1 << 15), 1 << 15)


class Operand(Enum):
    """What an instruction takes after its name, and its limits."""

    MEMORY = "MEM"  # one of the record's memories; all but the queue are followed by an address
    ADDRESS = "ADDRESS"  # a tile of mrf
    REGISTER = "NAME"
    VALUE = "VALUE"
    COUNT = "COUNT"
    UNIT = "[UNIT]"  # of an activation: 0, 1 or left out


class Stage(Enum):
    """Where an instruction stands in a chain, in this order; the last two stand outside."""

    READ = "read"
    PRODUCT = "matrix-vector unit"
    ADD = "add-subtract"
    MULTIPLY = "multiply"
    ACTIVATE = "activation"
    WRITE = "write"
    END = "end"
    SCALAR = "scalar"
    LOOP = "loop"


class Cost(Enum):
    """What an instruction counts in one iteration of its chain, in cycles."""

    NONE = "0"
    VECTORS_READ = "vectors read"
    PASSES = f"rows * columns / {ENGINES}"
    VECTORS = "vectors"
    TILES = "rows * columns"


INC = "_inc"
INC_BIT = 1 << 5  # of the opcode


@dataclass(frozen=True)
class Record:
    """One instruction. memories: those that its MEMORY operand may name.

    steps: an `_inc` form, whose address moves by DX and DY. base: the name without `_inc`.
    """

    name: str
    opcode: int
    stage: Stage
    operands: tuple[Operand, ...]
    memories: tuple[str, ...]
    meaning: str
    cost: Cost = Cost.NONE
    steps: bool = False

    @property
    def base(self) -> str:
        return self.name.removesuffix(INC)

    @property
    def syntax(self) -> str:
        """The instruction as it is written; [] holds what may be left out."""
        shown = [operand.value for operand in self.operands]
        if Operand.MEMORY in self.operands:
            shown.append("ADDRESS")
        if self.steps:
            shown += ["DX", "DY"]
        return f"{self.name} {', '.join(shown)}".rstrip()


_MEMORY = (Operand.MEMORY,)
_ADDERS, _MULTIPLIERS = ("asvrf0", "asvrf1"), ("mvrf0", "mvrf1")
_ADD, _ACTIVATE, _LOOP = Stage.ADD, Stage.ACTIVATE, Stage.LOOP
_RECORDS = (
    Record("s_wr", 1, Stage.SCALAR, (Operand.REGISTER, Operand.VALUE), (), "register = VALUE"),
    Record("s_rd", 2, Stage.SCALAR, (Operand.REGISTER,), (), "register to the scalar output queue"),
    Record(
        "v_rd",
        3,
        Stage.READ,
        _MEMORY,
        ("ivrf", "dram", QUEUE),
        "begin a chain with vectors",
        Cost.VECTORS_READ,
    ),
    Record(
        "v_wr",
        4,
        Stage.WRITE,
        _MEMORY,
        (*VECTOR_FILES, QUEUE),
        "write the vectors of the chain",
        Cost.VECTORS,
    ),
    Record(
        "m_rd",
        5,
        Stage.READ,
        _MEMORY,
        ("mdram", QUEUE),
        "begin a chain with tiles",
        Cost.TILES,
    ),
    Record(
        "m_wr",
        6,
        Stage.WRITE,
        _MEMORY,
        TILE_FILES,
        "write the tiles; quantize them for mrf",
        Cost.TILES,
    ),
    Record(
        "mv_mul",
        7,
        Stage.PRODUCT,
        (Operand.ADDRESS,),
        (),
        "quantize the vectors; rows x columns tiles of mrf times them",
        Cost.PASSES,
    ),
    Record("vv_add", 8, _ADD, _MEMORY, _ADDERS, "rne(a + b)", Cost.VECTORS),
    Record("vv_a_sub_b", 9, _ADD, _MEMORY, _ADDERS, "rne(a - b)", Cost.VECTORS),
    Record("vv_b_sub_a", 10, _ADD, _MEMORY, _ADDERS, "rne(b - a)", Cost.VECTORS),
    Record("vv_max", 11, _ADD, _MEMORY, _ADDERS, "a if a > b, else b", Cost.VECTORS),
    Record("vv_mul", 12, Stage.MULTIPLY, _MEMORY, _MULTIPLIERS, "rne(a * b)", Cost.VECTORS),
    Record("v_relu", 13, _ACTIVATE, (Operand.UNIT,), (), "a if a > 0, else +0", Cost.VECTORS),
    Record("v_sigm", 14, _ACTIVATE, (Operand.UNIT,), (), "1 / (1 + exp(-a))", Cost.VECTORS),
    Record("v_tanh", 15, _ACTIVATE, (Operand.UNIT,), (), "tanh a", Cost.VECTORS),
    Record("end_chain", 16, Stage.END, (), (), "end the chain, which runs it"),
    Record("loop", 17, _LOOP, (Operand.COUNT,), (), "run what follows COUNT times"),
    Record("end_loop", 18, _LOOP, (), (), "end of the innermost loop"),
)


def _with_steps(record: Record) -> Record:
    memories = tuple(name for name in record.memories if name != QUEUE)
    name, opcode = record.name + INC, record.opcode | INC_BIT
    return replace(record, name=name, opcode=opcode, memories=memories, steps=True)


INSTRUCTIONS: Mapping[str, Record] = MappingProxyType(
    {record.name: record for record in _RECORDS}
    | {
        record.name + INC: _with_steps(record)
        for record in _RECORDS
        if Operand.MEMORY in record.operands
    }
)
"""By name. What takes a memory has an `_inc` form too, whose opcode is 32 more."""

LIMITS: Mapping[str, range] = MappingProxyType(
    {
        **{name: range(1, VALUE_MAX + 1) for name in REGISTERS},
        "window_pitch": range(VALUE_MAX + 1),
        "requantize": range(2),
    }
)
"""Values that a register may have."""
COUNTS = range(1, VALUE_MAX + 1)  # of a loop
ADDRESSES = range(DEPTH_MAX)


def fault(instruction: Instruction) -> str | None:
    """What is wrong with an instruction by itself: "expected ..., found ..."; None if nothing is.

    What the assembler and the binary coder read is never wrong.
    """
    record = INSTRUCTIONS.get(instruction.op)
    if record is None:
        return f"expected an instruction, found {instruction.op!a}"
    wanted = record.operands
    queue = instruction.memory == QUEUE
    memories = record.memories if Operand.MEMORY in wanted else (None,)
    registers = tuple(REGISTERS) if Operand.REGISTER in wanted else (None,)
    addressed = (Operand.MEMORY in wanted and not queue) or Operand.ADDRESS in wanted
    values = range(1)
    if Operand.COUNT in wanted:
        values = COUNTS
    elif Operand.VALUE in wanted:
        values = LIMITS.get(str(instruction.register), values)
    steps = instruction.steps or ()
    fields = (
        ("memory", instruction.memory, memories),
        ("address", instruction.address, ADDRESSES if addressed else range(1)),
        ("register", instruction.register, registers),
        ("value", instruction.value, values),
        ("unit", instruction.unit, (None, 0, 1) if Operand.UNIT in wanted else (None,)),
        ("number of steps", len(steps), (2 if record.steps else 0,)),
        *(("step", step, STEP) for step in steps),
    )
    for what, found, allowed in fields:
        if found not in allowed:
            span = f"{allowed[0]} to {allowed[-1]}" if isinstance(allowed, range) else None
            limits = span or " or ".join(map(str, allowed))
            return f"expected {what} {limits} of {record.name}, found {found!a}"
    return None
