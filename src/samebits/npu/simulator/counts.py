"""The work of a program, counted. docs/spec/npu.md section 6."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from samebits.npu.machine.chain import Chain, Loop, Send, Statement


@dataclass(frozen=True)
class ChainCounts:
    """All executions of one chain. products: of a tile and a vector."""

    line: int
    executions: int
    iterations: int
    products: int


@dataclass(frozen=True)
class Counts:
    """One run of a program of native dimension `native`. It says nothing of time."""

    native: int
    chains: tuple[ChainCounts, ...]

    @property
    def executions(self) -> int:
        """Chains executed."""
        return sum(chain.executions for chain in self.chains)

    @property
    def products(self) -> int:
        """Products of a tile and a vector."""
        return sum(chain.products for chain in self.chains)

    @property
    def multiply_adds(self) -> int:
        """Multiplications in those products, N * N each, those with padding among them."""
        return self.products * self.native**2


def count(statements: Sequence[Statement], native: int) -> Counts:
    """The work of one run, of each chain in program order.

    A loop's first turn may be resolved apart from the others: what has one line is one chain.
    """
    found: dict[int, ChainCounts] = {}
    for index, (chain, times) in enumerate(_executed(statements, 1)):
        key = chain.line or -index  # made without text: chains have no lines
        before = found.get(key, ChainCounts(chain.line, 0, 0, 0))
        iterations = times * chain.iterations
        products = iterations * chain.rows * chain.columns if chain.mvm_address is not None else 0
        found[key] = ChainCounts(
            chain.line,
            before.executions + times,
            before.iterations + iterations,
            before.products + products,
        )
    return Counts(native, tuple(found.values()))


def _executed(statements: Sequence[Statement], times: int) -> Iterator[tuple[Chain, int]]:
    for statement in statements:
        if isinstance(statement, Loop):
            yield from _executed(statement.body, times * statement.count)
        elif not isinstance(statement, Send):
            yield statement, times
