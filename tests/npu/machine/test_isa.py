"""The instruction records: the tables in the documentation, and what makes an instruction legal."""

from __future__ import annotations

import ast
from dataclasses import replace
from pathlib import Path

import pytest

from samebits.npu.machine.isa import (
    INC,
    INSTRUCTIONS,
    LIMITS,
    POINTWISE,
    REDUCTIONS,
    Operand,
    fault,
)
from samebits.npu.machine.program import DEPTH_MAX, MEMORIES, QUEUE, REGISTERS, Instruction

ROOT = Path(__file__).resolve().parents[3]
PAGE = "docs/spec/isa.md"


def table(head: list[str], rows: list[list[object]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)


def instructions() -> str:
    rows = []
    for record in INSTRUCTIONS.values():
        if record.steps:
            continue
        memories = " ".join(f"`{name}`" for name in record.memories)
        inc = record.opcode + 32 if record.name + INC in INSTRUCTIONS else ""
        fields = [record.opcode, inc, f"`{record.syntax}`", memories, record.stage.value]
        rows.append([*fields, record.meaning])
    head = ["opcode", "`_inc`", "instruction", "memories", "unit", "meaning"]
    return table(head, rows)


def registers() -> str:
    rows = []
    for number, (name, reset) in enumerate(REGISTERS.items()):
        limits = LIMITS[name]
        rows.append([number, f"`{name}`", reset, f"{limits[0]} to {limits[-1]}"])
    return table(["number", "register", "reset value", "values"], rows)


def memories() -> str:
    rows = []
    for number, name in enumerate(MEMORIES):
        users = [r.name for r in INSTRUCTIONS.values() if name in r.memories and not r.steps]
        rows.append([number, f"`{name}`", " ".join(f"`{user}`" for user in users)])
    return table(["number", "memory", "used by"], rows)


def test_documented_tables(golden):
    text = (ROOT / PAGE).read_text(encoding="utf-8")
    for name, found in (
        ("instructions", instructions()),
        ("registers", registers()),
        ("memories", memories()),
    ):
        before, rest = text.split(f"<!-- {name} -->")
        _, after = rest.split(f"<!-- /{name} -->")
        text = f"{before}<!-- {name} -->\n{found}\n<!-- /{name} -->{after}"
    golden(PAGE, text)


def test_opcodes_are_apart_and_fit():
    codes = [record.opcode for record in INSTRUCTIONS.values()]
    assert len(set(codes)) == len(codes)
    assert 0 < min(codes) <= max(codes) < 64


def test_opcodes_stay():
    """Binary programs live on: a number once given is never given again."""
    names = ["s_wr", "s_rd", "v_rd", "v_wr", "m_rd", "m_wr", "mv_mul"]
    names += ["vv_add", "vv_a_sub_b", "vv_b_sub_a", "vv_max", "vv_mul"]
    names += ["v_relu", "v_sigm", "v_tanh", "end_chain", "loop", "end_loop"]
    names += ["v_exp", "v_log", "v_recip", "v_rsqrt", "v_sum", "v_max", "m_rd_t"]
    for code, name in enumerate(names, start=1):
        assert INSTRUCTIONS[name].opcode == code


def test_point_wise_instructions_stand_in_records_alone():
    """No module lists them by name but the rules of operators, which write programs."""
    folder = ROOT / "src" / "samebits" / "npu"
    for path in [*folder.rglob("*.py")]:
        if path.parent.name == "compiler" or path.name == "isa.py":
            continue
        tree = ast.parse(path.read_text(encoding="utf-8"))
        found = {n.value for n in ast.walk(tree) if isinstance(n, ast.Constant)}
        assert not found & {*POINTWISE, *REDUCTIONS}, path


def test_inc_forms():
    for record in INSTRUCTIONS.values():
        has = record.base + INC in INSTRUCTIONS
        assert has == (Operand.MEMORY in record.operands)
        if record.steps:
            base = INSTRUCTIONS[record.base]
            assert record.opcode == base.opcode + 32
            assert set(base.memories) - set(record.memories) <= {QUEUE}
            assert replace(base, name="", opcode=0, memories=(), steps=True) == replace(
                record, name="", opcode=0, memories=()
            )


def test_fields_fit_the_word():
    assert len(MEMORIES) < 16
    assert len(REGISTERS) < 16
    assert DEPTH_MAX <= 1 << 22


@pytest.mark.parametrize(
    ("instruction", "wanted"),
    [
        (Instruction("v_rd", "ivrf", 3), None),
        (Instruction("v_rd", QUEUE), None),
        (Instruction("v_rd_inc", "ivrf", 3, (-32768, 32767)), None),
        (Instruction("mv_mul", address=1048575), None),
        (Instruction("s_wr", register="requantize", value=1), None),
        (Instruction("s_rd", register="rows"), None),
        (Instruction("v_relu", unit=1), None),
        (Instruction("loop", value=1), None),
        (Instruction("nop"), "expected an instruction, found 'nop'"),
        (Instruction("v_rd", "mrf"), "expected memory ivrf or dram or netq of v_rd, found 'mrf'"),
        (Instruction("v_rd", QUEUE, 1), "expected address 0 to 0 of v_rd, found 1"),
        (Instruction("v_rd", "ivrf", -1), "expected address 0 to 1048575 of v_rd, found -1"),
        (
            Instruction("v_rd", "ivrf", 0, (1, 1)),
            "expected number of steps 0 of v_rd, found 2",
        ),
        (
            Instruction("v_rd_inc", "ivrf", 0),
            "expected number of steps 2 of v_rd_inc, found 0",
        ),
        (
            Instruction("v_rd_inc", "ivrf", 0, (0, 32768)),
            "expected step -32768 to 32767 of v_rd_inc, found 32768",
        ),
        (
            Instruction("v_rd_inc", QUEUE, 0, (0, 0)),
            "expected memory ivrf or dram of v_rd_inc, found 'netq'",
        ),
        (
            Instruction("s_wr", register="requantize", value=2),
            "expected value 0 to 1 of s_wr, found 2",
        ),
        (Instruction("s_rd", register="rows", value=1), "expected value 0 to 0 of s_rd, found 1"),
        (Instruction("loop", value=0), "expected value 1 to 4194303 of loop, found 0"),
        (Instruction("v_tanh", unit=2), "expected unit None or 0 or 1 of v_tanh, found 2"),
        (Instruction("end_chain", unit=0), "expected unit None of end_chain, found 0"),
    ],
)
def test_fault(instruction, wanted):
    assert fault(instruction) == wanted
