"""Flash, RAM and stack that a model needs of each board, measured on a built program."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

from samebits.codegen.packaging.package import write_package
from samebits.codegen.run.execute import build
from samebits.codegen.run.footprint import float_symbols, section_sizes, stack_bound
from samebits.codegen.run.interface import Interface
from samebits.codegen.run.targets import TARGETS
from samebits.errors import InputError
from samebits.ir.graph import Graph

BOARDS = ("cortex-m0", "cortex-m3", "cortex-m55")


@dataclass(frozen=True)
class Requirements:
    """The needs of a model on one target, in bytes: flash and RAM, harness included, and the stack
    below the model's run function. `why`: the reason where there are none."""

    target: str
    flash: int | None = None
    ram: int | None = None
    stack: int | None = None
    float_symbols: tuple[str, ...] = ()
    why: str | None = None


def requirements(graph: Graph, target: str) -> Requirements:
    """Package, build and measure an integer graph for a board (a name of TARGETS)."""
    reason = TARGETS[target].unavailable()
    if reason is not None:
        return Requirements(target, why=reason)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_package(graph, folder / "package")
        try:
            program = build(
                folder / "package", TARGETS[target], folder / "build", Interface.of(graph)
            )
        except InputError as error:
            return Requirements(target, why=str(error))
        sizes = section_sizes(program)
        symbols = tuple(float_symbols(program))
        return Requirements(target, sizes.flash, sizes.ram, stack_bound(program).bytes, symbols)
