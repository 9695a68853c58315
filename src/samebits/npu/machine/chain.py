"""A checked program with its settings resolved: what the simulator and the translator execute.

docs/spec/npu.md section 3. `npu.machine.check` makes these; nothing in them needs to be checked
again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from samebits.npu.machine.program import QUEUE


@dataclass(frozen=True)
class Access:
    """Where a read, write or operand lies: at address + tx * dx + ty * dy in iteration (ty, tx).

    Of the network queue address, dx and dy are 0 and mean nothing.
    """

    memory: str
    address: int = 0
    dx: int = 0
    dy: int = 0
    line: int = 0


@dataclass(frozen=True)
class Operation:
    """One instruction of multifunction unit `unit`. operand: of `vv_` instructions."""

    op: str
    unit: int
    operand: Access | None = None
    line: int = 0


@dataclass(frozen=True)
class Chain:
    """One chain with the registers it runs under. line: of its first instruction.

    kind "vector": `read`, `mv_mul` at `mvm_address` if there is one, `operations`, `writes`.
    kind "matrix": `read` and one of `writes` move rows * columns tiles; a tile of the network queue
    is its N rows, in order.
    turned: each tile is transposed.    tile: addresses that one takes where it is read: N in a
    memory of vectors, which are its rows
    """

    kind: str
    rows: int
    columns: int
    iterations: int
    iterations_x: int
    window: int
    window_run: int
    window_pitch: int
    requantize: bool
    read: Access
    mvm_address: int | None
    operations: tuple[Operation, ...]
    writes: tuple[Access, ...]
    line: int = 0
    turned: bool = False
    tile: int = 1

    @property
    def read_count(self) -> int:
        """Vectors (tiles of a matrix chain) that `read` takes in one iteration."""
        if self.kind == "matrix":
            return self.rows * self.columns
        return self.rows if self.mvm_address is None else self.columns

    @property
    def write_count(self) -> int:
        """Vectors (tiles) that each of `writes` puts in one iteration."""
        return self.rows * self.columns if self.kind == "matrix" else self.rows

    @property
    def windowed(self) -> bool:
        """Whether `read` follows the window pattern."""
        product = self.window * self.window_run
        return self.kind == "vector" and self.read.memory != QUEUE and product != 1


@dataclass(frozen=True)
class Loop:
    """`body` is executed `count` (>= 1) times over, each time the same."""

    count: int
    body: tuple[Chain | Loop | Send, ...]
    line: int = 0


@dataclass(frozen=True)
class Send:
    """`s_rd`: a register's value goes to the scalar output queue."""

    register: str
    value: int
    line: int = 0


Statement = Chain | Loop | Send
Array = np.ndarray[Any, Any]


def base(access: Access, iteration: int, iterations_x: int) -> int:
    """The first address of an access in one iteration."""
    ty, tx = divmod(iteration, iterations_x)
    return access.address + tx * access.dx + ty * access.dy


def bases(access: Access, chain: Chain) -> Array:
    """The first address of an access in every iteration: int64 [iterations]."""
    ty, tx = np.divmod(np.arange(chain.iterations, dtype=np.int64), chain.iterations_x)
    return np.asarray(access.address + tx * access.dx + ty * access.dy)


def read_offsets(chain: Chain) -> Array:
    """The offset of every address of `read` from its base: int64 [read_count * tile]."""
    k = np.arange(chain.read_count * chain.tile, dtype=np.int64)
    if not chain.windowed:
        return k
    return np.asarray(k // chain.window_run * chain.window_pitch + k % chain.window_run)
