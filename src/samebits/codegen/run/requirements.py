"""Flash, RAM and stack that a model needs of each board, measured on a built program, apart from
the harness that starts it."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

from samebits.codegen.packaging.package import write_package
from samebits.codegen.run import boards
from samebits.codegen.run.execute import build
from samebits.codegen.run.footprint import (
    float_symbols,
    linked_sizes,
    section_sizes,
    stack_bound,
)
from samebits.codegen.run.interface import Interface
from samebits.codegen.run.targets import TARGETS
from samebits.errors import InputError
from samebits.ir.graph import Graph

BOARDS = ("cortex-m0", "cortex-m3", "cortex-m55")
HARNESS = tuple(Path(name).stem for name in boards.SOURCES)


@dataclass(frozen=True)
class Requirements:
    """The needs of a model on one target, in bytes.

    flash: code, weights and tables of the model; code: without weights and tables. ram: arena and
    state of one instance. stack: at most, below the model's run function. harness: flash and RAM of
    what starts and measures it here, buffers for inputs and outputs among them; a product has its
    own in their place. why: the reason where nothing is measured.
    """

    target: str
    code: int | None = None
    flash: int | None = None
    ram: int | None = None
    stack: int | None = None
    harness_flash: int | None = None
    harness_ram: int | None = None
    float_symbols: tuple[str, ...] = ()
    why: str | None = None


def requirements(graph: Graph, target: str, weights_file: bool = False) -> Requirements:
    """Package, build and measure an integer graph for a board (a name of TARGETS), with the kernels
    of its processor. weights_file: as `codegen.packaging.package.package` takes it."""
    reason = TARGETS[target].unavailable()
    if reason is not None:
        return Requirements(target, why=reason)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        report = write_package(
            graph, folder / "package", cpu=TARGETS[target].cpu, weights_file=weights_file
        )
        try:
            program = build(
                folder / "package", TARGETS[target], folder / "build", Interface.of(graph)
            )
        except InputError as error:
            return Requirements(target, why=str(error))
        whole, parts = section_sizes(program), linked_sizes(program)
        harness = [parts[name] for name in HARNESS if name in parts]
        flash = whole.flash - sum(part.flash for part in harness)
        ram = report.arena + report.state
        return Requirements(
            target,
            flash - report.weights - report.tables,
            flash,
            ram,
            stack_bound(program).bytes,
            whole.flash - flash,
            whole.ram - report.arena,
            tuple(float_symbols(program)),
        )
