"""The instruction set, one record an instruction. docs/spec/npu.md sections 3, 5 and 6.

Assembler, binary coder, checker and the table in docs/spec/isa.md derive from these records.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType

from samebits.npu.program import DEPTH_MAX, QUEUE, REGISTERS, VECTOR_FILES

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


@dataclass(frozen=True)
class Record:
    """One instruction. memories: those that its MEMORY operand may name. opcode: 1 to 31."""

    name: str
    opcode: int
    stage: Stage
    operands: tuple[Operand, ...]
    memories: tuple[str, ...]
    meaning: str
    cost: Cost = Cost.NONE

    @property
    def steps(self) -> bool:
        """Whether it has an `_inc` form: whether it takes a memory."""
        return Operand.MEMORY in self.operands

    @property
    def syntax(self) -> str:
        """The operands as they are written."""
        shown = [operand.value for operand in self.operands]
        return ", ".join(shown + ["ADDRESS"] * self.steps)


INC = "_inc"
INC_BIT = 1 << 5  # of the opcode


def _records() -> Iterable[Record]:
    register, memory = (Operand.REGISTER,), (Operand.MEMORY,)
    adders, multipliers = ("asvrf0", "asvrf1"), ("mvrf0", "mvrf1")
    vectors = Cost.VECTORS

    def record(name: str, *rest: object) -> Record:
        return Record(name, 0, *rest)  # type: ignore[arg-type]

    yield record("s_wr", Stage.SCALAR, (*register, Operand.VALUE), (), "register = VALUE")
    yield record("s_rd", Stage.SCALAR, register, (), "send a register to the scalar output queue")
    yield record(
        "v_rd",
        *(Stage.READ, memory, ("ivrf", "dram", QUEUE)),
        *("begin a chain with vectors", Cost.VECTORS_READ),
    )
    yield record(
        "v_wr", Stage.WRITE, memory, (*VECTOR_FILES, QUEUE), "write the chain's vectors", vectors
    )
    yield record(
        "m_rd", Stage.READ, memory, ("mdram", QUEUE), "begin a chain with tiles", Cost.TILES
    )
    yield record("m_wr", Stage.WRITE, memory, ("mrf", "mdram"), "write the tiles", Cost.TILES)
    yield record(
        "mv_mul",
        *(Stage.PRODUCT, (Operand.ADDRESS,), ()),
        *("quantize the vectors; rows x columns tiles of mrf times them", Cost.PASSES),
    )
    for name, meaning in (
        ("vv_add", "rne(a + b)"),
        ("vv_a_sub_b", "rne(a - b)"),
        ("vv_b_sub_a", "rne(b - a)"),
        ("vv_max", "a if a > b, else b"),
    ):
        yield record(name, Stage.ADD, memory, adders, meaning, vectors)
    yield record("vv_mul", Stage.MULTIPLY, memory, multipliers, "rne(a * b)", vectors)
    for name, meaning in (
        ("v_relu", "a if a > 0, else +0"),
        ("v_sigm", "1 / (1 + exp(-a)), correctly rounded"),
        ("v_tanh", "tanh a, correctly rounded"),
    ):
        yield record(name, Stage.ACTIVATE, (Operand.UNIT,), (), meaning, vectors)
    yield record("end_chain", Stage.END, (), (), "end and run the chain")
    yield record("loop", Stage.LOOP, (Operand.COUNT,), (), "run what follows COUNT times")
    yield record("end_loop", Stage.LOOP, (), (), "end of the innermost loop")


def _numbered(records: Iterable[Record]) -> dict[str, Record]:
    from dataclasses import replace

    return {r.name: replace(r, opcode=code) for code, r in enumerate(records, start=1)}


INSTRUCTIONS: Mapping[str, Record] = MappingProxyType(_numbered(_records()))
"""By name. The `_inc` form of an instruction has its record and its opcode plus 32."""

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
