"""Chains and loops of a program, and the rules of one chain. docs/spec/npu.md section 3."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from samebits.npu.machine.assembly import instruction_text
from samebits.npu.machine.chain import Access, Chain, Operation, Statement
from samebits.npu.machine.isa import (
    INSTRUCTIONS,
    LANES_MAX,
    REDUCTIONS,
    UNIT_STAGES,
    Operand,
    Stage,
)
from samebits.npu.machine.program import (
    LOOPS_MAX,
    QUEUE,
    REGISTERS,
    VECTOR_FILES,
    Instruction,
    Program,
)

Registers = tuple[int, ...]  # in the order of REGISTERS


class Block:
    """The program or a loop: settings (`s_wr`, `s_rd`), chains (lists of instructions), loops.

    resolved: filled by samebits.npu.machine.check, by the registers a block is entered with.
    """

    def __init__(self, count: int, line: int) -> None:
        self.count = count
        self.line = line
        self.items: list[Instruction | list[Instruction] | Block] = []
        self.resolved: dict[Registers, tuple[tuple[Statement, ...], Registers]] = {}


def structure(program: Program) -> Block:
    """Chains and loops, properly nested. Instructions must be legal by themselves."""
    blocks = [Block(1, 1)]
    chain: list[Instruction] = []
    for instruction in program.instructions:
        record, line = INSTRUCTIONS[instruction.op], instruction.line
        if record.stage not in (Stage.SCALAR, Stage.LOOP):
            chain.append(instruction)
            if record.stage is Stage.END:
                blocks[-1].items.append(chain)
                chain = []
        elif chain:
            program.fail(
                line,
                f"expected the rest of the chain of line {chain[0].line}, found "
                f"{_shown(instruction)}; write end_chain first",
            )
        elif record.nesting > 0:
            if len(blocks) > LOOPS_MAX:
                program.fail(
                    line, f"expected loops at most {LOOPS_MAX} deep, found one more; write it out"
                )
            blocks.append(Block(instruction.value, line))
        elif record.nesting < 0:
            if len(blocks) == 1:
                program.fail(line, "expected a loop before it, found end_loop outside; delete it")
            body = blocks.pop()
            blocks[-1].items.append(body)
        else:
            blocks[-1].items.append(instruction)
    last = program.instructions[-1].line if program.instructions else 1
    if chain:
        program.fail(
            last,
            f"expected the rest of the chain of line {chain[0].line}, found the end of the "
            "program; write end_chain",
        )
    if len(blocks) > 1:
        program.fail(
            last,
            f"expected end_loop of the loop of line {blocks[-1].line}, found the end of the "
            "program; write end_loop",
        )
    return blocks[0]


def _shown(instruction: Instruction) -> str:
    return f"'{instruction_text(instruction)}'"


# --- one chain --------------------------------------------------------------------------------


def build(program: Program, instructions: Sequence[Instruction], registers: Registers) -> Chain:
    """The chain of these instructions (the last is end_chain) under these registers.

    Checks order, units and lengths, not addresses.
    """
    values: dict[str, Any] = dict(zip(REGISTERS, registers, strict=True))
    values["requantize"] = bool(values["requantize"])
    head, *middle = instructions[:-1] or instructions
    if INSTRUCTIONS[head.op].stage is not Stage.READ:
        program.fail(
            head.line,
            f"expected a chain to begin with v_rd or m_rd, found {_shown(head)}; read first",
        )
    matrix = INSTRUCTIONS[head.op].kind == "matrix"
    product, operations, writes = _split(program, middle, matrix)
    if not writes or (matrix and len(writes) > 1):
        line = instructions[-1].line
        wanted = "one m_wr" if matrix else "one or more v_wr"
        program.fail(
            line,
            f"expected {wanted} in the chain of line {head.line}, found {len(writes)}; "
            "write what the chain carries",
        )
    queues = [write for write in writes if write.memory == QUEUE]
    if len(queues) > 1:
        program.fail(
            queues[1].line, "expected one v_wr netq in a chain, found another; use another chain"
        )
    chain = Chain(
        kind="matrix" if matrix else "vector",
        **values,
        read=_access(head),
        mvm_address=None if product is None else product.address,
        operations=_operations(program, operations),
        writes=tuple(_access(write) for write in writes),
        line=head.line,
        turned=INSTRUCTIONS[head.op].turned,
        tile=program.native if matrix and head.memory in VECTOR_FILES else 1,
    )
    _check_lengths(program, chain)
    return _plain(chain)


def _plain(chain: Chain) -> Chain:
    """With the reset values of registers that it does not depend on: alike chains compare equal."""
    plain = replace(chain, iterations_x=min(chain.iterations_x, chain.iterations))
    if not chain.windowed:
        plain = replace(plain, window=1, window_run=1, window_pitch=0)
    if chain.mvm_address is None:
        columns = chain.columns if chain.kind == "matrix" else 1
        plain = replace(plain, columns=columns, requantize=False)
    return plain


def _access(instruction: Instruction) -> Access:
    assert instruction.memory is not None
    dx, dy = instruction.steps or (0, 0)
    return Access(instruction.memory, instruction.address, dx, dy, instruction.line)


def _split(
    program: Program, middle: Sequence[Instruction], matrix: bool
) -> tuple[Instruction | None, list[Instruction], list[Instruction]]:
    """(mv_mul, instructions of the multifunction units, writes), in this order in the chain."""
    product: Instruction | None = None
    operations: list[Instruction] = []
    writes: list[Instruction] = []
    for instruction in middle:
        record = INSTRUCTIONS[instruction.op]
        moves_tiles, wanted = record.kind == "matrix", None
        if record.stage is Stage.READ:
            wanted = "one read in a chain"
        elif matrix and not moves_tiles:
            wanted = "m_wr in a chain that begins with m_rd"
        elif not matrix and moves_tiles:
            wanted = "v_wr in a chain that begins with v_rd"
        elif record.stage is Stage.WRITE:
            writes.append(instruction)
        elif writes:
            wanted = "v_wr or end_chain after v_wr"
        elif record.stage is not Stage.PRODUCT:
            operations.append(instruction)
        elif product is not None:
            wanted = "at most one mv_mul in a chain"
        elif operations:
            wanted = "mv_mul directly after v_rd"
        else:
            product = instruction
        if wanted is not None:
            program.fail(
                instruction.line,
                f"expected {wanted}, found {_shown(instruction)}; use another chain",
            )
    return product, operations, writes


def _operations(program: Program, found: Sequence[Instruction]) -> tuple[Operation, ...]:
    """Instructions of the multifunction units with the unit of each, in order of unit and stage.

    An operand's memory says the unit; an activation is in the unit it names, or in the current one.
    """
    operations: list[Operation] = []
    before = (0, -1)  # (unit, stage in it)
    for instruction in found:
        record = INSTRUCTIONS[instruction.op]
        stage = UNIT_STAGES.index(record.stage)
        operand = None
        if Operand.UNIT in record.operands:
            unit = before[0] if instruction.unit is None else instruction.unit
        else:
            operand = _access(instruction)
            unit = record.memories.index(operand.memory)
        if (unit, stage) <= before:
            order = ", ".join(stage.value for stage in UNIT_STAGES)
            program.fail(
                instruction.line,
                f"expected {order} at most once each in unit 0, then in unit 1, found "
                f"{_shown(instruction)} (unit {unit}) after {UNIT_STAGES[before[1]].value} of unit "
                f"{before[0]}; use the other unit or another chain",
            )
        before = unit, stage
        operations.append(Operation(record.base, unit, operand, instruction.line))
    return tuple(operations)


def _check_lengths(program: Program, chain: Chain) -> None:
    """A window must hold as many vectors as the chain reads, from a memory; a reduction may have
    so many lanes that its sum is exact."""
    lanes = chain.rows * program.native
    for operation in chain.operations:
        if operation.op in REDUCTIONS and lanes > LANES_MAX:
            program.fail(
                operation.line,
                f"expected at most {LANES_MAX} lanes for {operation.op}, found rows * N = "
                f"{chain.rows} * {program.native}; set rows, and add vectors with vv_add first",
            )
    taken = chain.window * chain.window_run
    if chain.kind == "matrix" or taken == 1:
        return
    line = chain.read.line
    if chain.read.memory == QUEUE:
        program.fail(
            line,
            f"expected window * window_run = 1 to read netq, found {chain.window} * "
            f"{chain.window_run}; windows apply to memories: set both to 1",
        )
    if taken != chain.read_count:
        name = "rows" if chain.mvm_address is None else "columns"
        program.fail(
            line,
            f"expected window * window_run = 1 or {name} ({chain.read_count}), found "
            f"{chain.window} * {chain.window_run}; set window, window_run or {name}",
        )
