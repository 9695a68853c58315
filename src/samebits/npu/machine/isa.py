"""The instruction set, one record an instruction. docs/spec/npu.md sections 3 and 5.

Assembler, binary coder, checker, simulator, compiler, the translators to software and the table in
docs/spec/isa.md derive from these records: a point-wise instruction is added by one record here and
a line of docs/spec/npu.md. What it computes is its formula (samebits.spec.npu_formula).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from types import MappingProxyType
from typing import Any

from samebits.npu.machine.program import (
    DEPTH_MAX,
    QUEUE,
    REGISTERS,
    TILE_FILES,
    VECTOR_FILES,
    Instruction,
)
from samebits.spec.npu_binary16 import binary16_largest, binary16_total
from samebits.spec.npu_formula import (
    A,
    B,
    Formula,
    Reduction,
    Tabulated,
    choose,
    look_up,
    number,
)
from samebits.tables.binary16 import (
    exponential_table,
    inverse_root_table,
    logarithm_table,
    reciprocal_table,
    sigmoid_table,
    tanh_table,
)

VALUE_MAX = (1 << 22) - 1
STEP = range(-(1 << 15), 1 << 15)
LANES_MAX = 1 << 13  # of one reduction: binary64 holds the sum of so many binary16 numbers


class Operand(Enum):
    """The operands after the name of an instruction."""

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


UNIT_FILES: Mapping[Stage, tuple[str, ...]] = MappingProxyType(
    {
        Stage.ADD: ("asvrf0", "asvrf1"),
        Stage.MULTIPLY: ("mvrf0", "mvrf1"),
        Stage.ACTIVATE: (),
    }
)
"""Stages of a multifunction unit, in order; the operand memory of each in unit 0 and in unit 1."""
UNIT_STAGES = tuple(UNIT_FILES)


INC = "_inc"
INC_BIT = 1 << 5  # of the opcode


Files = tuple[str, ...]
# Whether a result is known not to be below zero, from what is known of the operands.
Sign = Callable[[Sequence[bool]], bool]


@dataclass(frozen=True)
class Record:
    """One instruction: everything that assembler, checker, simulator and translators know of it.

    memories:    those that its MEMORY operand may name; of `mv_mul` the one that ADDRESS is in
    meaning:     a formula of a point-wise instruction, which everything that computes it derives
                 from; a `Reduction` of one that works across lanes; a sentence of the others
    turned:      tiles are transposed
    steps:       an `_inc` form, whose address moves by DX and DY
    exchanged:   the instruction that gives the same with a and b exchanged, up to the sign of a
                 zero and to NaN; None if there is none
    nonnegative: whether the result is at least 0, given whether each operand is
    """

    name: str
    opcode: int
    stage: Stage
    operands: tuple[Operand, ...]
    memories: Files
    meaning: Formula | Reduction | str
    steps: bool = False
    turned: bool = False
    exchanged: str | None = None
    nonnegative: Sign = lambda operands: False

    @property
    def base(self) -> str:
        """The name without `_inc`."""
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

    @property
    def kind(self) -> str:
        """The kind of chain that it may stand in: "matrix" if it moves tiles, else "vector"."""
        moves = Operand.MEMORY in self.operands
        return "matrix" if moves and set(self.memories) & set(TILE_FILES) else "vector"

    @property
    def nesting(self) -> int:
        """Levels that the loops after it are deeper: 1 of `loop`, -1 of `end_loop`, else 0."""
        if self.stage is not Stage.LOOP:
            return 0
        return 1 if Operand.COUNT in self.operands else -1


SIGMOID = Tabulated("sigmoid", "1 / (1 + exp(-{}))", sigmoid_table)
TANH = Tabulated("tanh", "tanh {}", tanh_table)
EXPONENTIAL = Tabulated("exponential", "exp({})", exponential_table)
LOGARITHM = Tabulated("logarithm", "the natural logarithm of {}", logarithm_table)
RECIPROCAL = Tabulated("reciprocal", "1 / {}", reciprocal_table)
INVERSE_ROOT = Tabulated("inverse_root", "1 / sqrt {}", inverse_root_table)
TOTAL = Reduction("total", "rne(the sum of a over all lanes)", binary16_total)
LARGEST = Reduction("largest", "the largest a of all lanes", binary16_largest)

_MEMORY = (Operand.MEMORY,)


def _pointwise(
    name: str, opcode: int, stage: Stage, meaning: Formula | Reduction, **traits: Any
) -> Record:
    """An instruction of the multifunction units; its operand is in the files of its stage."""
    files = UNIT_FILES[stage]
    operands = _MEMORY if files else (Operand.UNIT,)
    return Record(name, opcode, stage, operands, files, meaning, **traits)


def _move(
    name: str, opcode: int, stage: Stage, files: Files, meaning: str, **traits: Any
) -> Record:
    """An instruction that begins or ends a chain with vectors or tiles of these memories."""
    return Record(name, opcode, stage, _MEMORY, files, meaning, **traits)


_READ, _WRITE, _SCALAR, _LOOP = Stage.READ, Stage.WRITE, Stage.SCALAR, Stage.LOOP
_ADD, _MULTIPLY, _ACTIVATE = UNIT_STAGES
_V_RD, _V_WR, _M_RD = (
    ("ivrf", "dram", QUEUE),
    (*VECTOR_FILES, QUEUE),
    ("mdram", "ivrf", "dram", QUEUE),
)
_MV_MUL = "quantize the vectors; rows x columns tiles of mrf times them"
_RELU = choose(A, number(0), A, number(0))
_RECORDS = (
    Record("s_wr", 1, _SCALAR, (Operand.REGISTER, Operand.VALUE), (), "register = VALUE"),
    Record("s_rd", 2, _SCALAR, (Operand.REGISTER,), (), "register to the scalar output queue"),
    _move("v_rd", 3, _READ, _V_RD, "begin a chain with vectors"),
    _move("v_wr", 4, _WRITE, _V_WR, "write the vectors of the chain"),
    _move("m_rd", 5, _READ, _M_RD, "begin a chain with tiles"),
    _move("m_wr", 6, _WRITE, TILE_FILES, "write the tiles; quantize them for mrf"),
    Record("mv_mul", 7, Stage.PRODUCT, (Operand.ADDRESS,), ("mrf",), _MV_MUL),
    _pointwise("vv_add", 8, _ADD, A + B, exchanged="vv_add", nonnegative=all),
    _pointwise("vv_a_sub_b", 9, _ADD, A - B, exchanged="vv_b_sub_a"),
    _pointwise("vv_b_sub_a", 10, _ADD, B - A, exchanged="vv_a_sub_b"),
    _pointwise("vv_max", 11, _ADD, choose(A, B, A, B), exchanged="vv_max", nonnegative=any),
    _pointwise("vv_mul", 12, _MULTIPLY, A * B, exchanged="vv_mul", nonnegative=all),
    _pointwise("v_relu", 13, _ACTIVATE, _RELU, nonnegative=lambda _: True),
    _pointwise("v_sigm", 14, _ACTIVATE, look_up(SIGMOID, A), nonnegative=lambda _: True),
    _pointwise("v_tanh", 15, _ACTIVATE, look_up(TANH, A)),
    Record("end_chain", 16, Stage.END, (), (), "end the chain, which runs it"),
    Record("loop", 17, _LOOP, (Operand.COUNT,), (), "run what follows COUNT times"),
    Record("end_loop", 18, _LOOP, (), (), "end of the innermost loop"),
    _pointwise("v_exp", 19, _ACTIVATE, look_up(EXPONENTIAL, A), nonnegative=lambda _: True),
    _pointwise("v_log", 20, _ACTIVATE, look_up(LOGARITHM, A)),
    _pointwise("v_recip", 21, _ACTIVATE, look_up(RECIPROCAL, A)),
    _pointwise("v_rsqrt", 22, _ACTIVATE, look_up(INVERSE_ROOT, A)),
    _pointwise("v_sum", 23, _ACTIVATE, TOTAL, nonnegative=all),
    _pointwise("v_max", 24, _ACTIVATE, LARGEST, nonnegative=all),
    _move("m_rd_t", 25, _READ, _M_RD, "begin a chain with tiles, each transposed", turned=True),
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

POINTWISE: Mapping[str, Formula] = MappingProxyType(
    {record.name: record.meaning for record in _RECORDS if isinstance(record.meaning, Formula)}
)
"""What the instructions of the multifunction units compute, by their names without `_inc`."""

REDUCTIONS: Mapping[str, Reduction] = MappingProxyType(
    {record.name: record.meaning for record in _RECORDS if isinstance(record.meaning, Reduction)}
)
"""What those compute that work across lanes."""

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
    """The fault of an instruction by itself: "expected ..., found ..."; None if there is none.

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
