"""How long a program takes, estimated. docs/spec/npu.md section 6."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from samebits.npu.machine.chain import Chain, Loop, Send, Statement
from samebits.npu.machine.isa import ENGINES, FILL, INSTRUCTIONS, Cost, Stage


@dataclass(frozen=True)
class ChainTime:
    """All executions of one chain. passes: of tiles through the matrix-vector unit."""

    line: int
    executions: int
    iterations: int
    passes: int
    cycles: int


@dataclass(frozen=True)
class Estimate:
    """One run of a program. utilisation: tile passes done over those the engines had time for."""

    cycles: int
    passes: int
    chains: tuple[ChainTime, ...]

    @property
    def utilisation(self) -> float:
        """In [0, 1]; 0 of a program without chains."""
        return self.passes / (self.cycles * ENGINES) if self.cycles else 0.0


def estimate(statements: Sequence[Statement]) -> Estimate:
    """Cycles of one run, in all and of each chain, in program order.

    A loop's first turn may be resolved apart from the others: what has one line is one chain.
    """
    found: dict[int, ChainTime] = {}
    for index, (chain, times) in enumerate(_executed(statements, 1)):
        key = chain.line or -index  # made without text: chains have no lines
        before = found.get(key, ChainTime(chain.line, 0, 0, 0, 0))
        iterations = times * chain.iterations
        passes = iterations * chain.rows * chain.columns if chain.mvm_address is not None else 0
        found[key] = ChainTime(
            chain.line,
            before.executions + times,
            before.iterations + iterations,
            before.passes + passes,
            before.cycles + times * cycles(chain),
        )
    chains = tuple(found.values())
    return Estimate(sum(c.cycles for c in chains), sum(c.passes for c in chains), chains)


def cycles(chain: Chain) -> int:
    """Cycles of one execution: the slowest instruction, iteration by iteration, and the fill."""
    moves = [r for r in INSTRUCTIONS.values() if r.stage in (Stage.READ, Stage.WRITE)]
    costs = [record.cost for record in moves if record.kind == chain.kind]
    costs += [Cost.PASSES] * (chain.mvm_address is not None)
    costs += [INSTRUCTIONS[operation.op].cost for operation in chain.operations]
    counts = {
        Cost.NONE: 0,
        Cost.VECTORS_READ: chain.read_count,
        Cost.PASSES: -(-chain.rows * chain.columns // ENGINES),
        Cost.VECTORS: chain.rows,
        Cost.TILES: chain.rows * chain.columns,
    }
    return chain.iterations * max(counts[cost] for cost in costs) + FILL


def _executed(statements: Sequence[Statement], times: int) -> Iterator[tuple[Chain, int]]:
    for statement in statements:
        if isinstance(statement, Loop):
            yield from _executed(statement.body, times * statement.count)
        elif not isinstance(statement, Send):
            yield statement, times
