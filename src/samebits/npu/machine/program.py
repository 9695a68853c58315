"""A program for the neural processor as data. docs/spec/npu.md sections 2 to 4."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NoReturn

import numpy as np

from samebits.errors import InputError

VECTOR_FILES = ("ivrf", "asvrf0", "asvrf1", "mvrf0", "mvrf1", "dram")
TILE_FILES = ("mrf", "mdram")
QUEUE = "netq"
STORED = (*VECTOR_FILES, *TILE_FILES)  # memories with addresses
MEMORIES = (*STORED, QUEUE)
REGISTERS: Mapping[str, int] = MappingProxyType(
    {
        "rows": 1,
        "columns": 1,
        "iterations": 1,
        "iterations_x": 1,
        "window": 1,
        "window_run": 1,
        "window_pitch": 0,
        "requantize": 0,
    }
)
"""Scalar registers and their reset values."""
NATIVE = range(8, 513)
MANTISSA = range(2, 16)
DEPTH_MAX = 1 << 20
DEPTHS = range(1, DEPTH_MAX + 1)
INSTRUCTIONS_MAX = 1 << 16
LOOPS_MAX = 4
ITERATIONS_MAX = 10**8


@dataclass(frozen=True)
class Instruction:
    """One instruction; what its operator does not use keeps its default.

    memory:  of reads, writes and operands        address: its first vector or tile; of mv_mul too
    steps:   (DX, DY) of an `_inc` form           register, value: of s_wr and s_rd; value: of loop
    unit:    multifunction unit of an activation  line: in the source, for messages
    """

    op: str
    memory: str | None = None
    address: int = 0
    steps: tuple[int, int] | None = None
    register: str | None = None
    value: int = 0
    unit: int | None = None
    line: int = 0


@dataclass(frozen=True)
class Hint:
    """kind: input, output or tensor. shape: logical sizes. memory, address: of a tensor."""

    kind: str
    name: str
    shape: tuple[int, ...]
    memory: str = QUEUE
    address: int = 0
    line: int = 0


@dataclass(frozen=True)
class Program:
    """The contents of an assembly file. Memory images travel beside it."""

    native: int
    mantissa: int
    depths: Mapping[str, int]
    instructions: tuple[Instruction, ...]
    hints: tuple[Hint, ...] = ()
    name: str = "program"

    def __post_init__(self) -> None:
        object.__setattr__(self, "depths", MappingProxyType(dict(self.depths)))

    def fail(self, line: int, message: str) -> NoReturn:
        """InputError at a line of the program."""
        raise InputError(f"{self.name}:{line}: {message}")


@dataclass(frozen=True)
class Image:
    """Initial memory: memory -> {address: binary16 array}, a vector [N] or a tile [N, N] each.

    `mrf` tiles are given in binary16 and quantized when they are loaded, as m_wr does.
    """

    entries: Mapping[str, Mapping[int, np.ndarray[Any, Any]]] = field(default_factory=dict)
