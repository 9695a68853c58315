"""`samebits compile`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from samebits.cli.output import log_console, print_json
from samebits.errors import InputError

TARGETS = ("c",)
VECTORS = 8


def compile_command(
    model: Annotated[
        Path, typer.Argument(help="A quantized .onnx file, a training output folder or checkpoint.")
    ],
    out: Annotated[Path, typer.Option(help="Folder for the generated sources.")],
    target: Annotated[str, typer.Option(help="c.")] = "c",
    prefix: Annotated[str, typer.Option(help="Prefix of every C name.")] = "model",
    arch: Annotated[
        str | None,
        typer.Option(help="Needed for a model of a module:callable of your own: its name."),
    ] = None,
    sizes: Annotated[bool, typer.Option(help="Build for the boards to measure them.")] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Generate portable C: sources, Makefile, test vectors, and what it needs of a device."""
    from samebits.codegen import write_package
    from samebits.codegen.requirements import BOARDS, requirements
    from samebits.ir.transfer import transfer_tables
    from samebits.onnx import save_qdq
    from samebits.verify.inputs import random_codes
    from samebits.verify.model import ONNX_FILE, load_model

    if target not in TARGETS:
        raise InputError(f"--target: expected one of {', '.join(TARGETS)}, found {target!r}")
    loaded = load_model(model, arch)
    out = out.absolute()  # the folder is replaced as a whole, even if it is the current one
    vectors = random_codes(loaded.integer, VECTORS)
    report = write_package(loaded.integer, out, prefix=prefix, vectors=vectors)
    save_qdq(loaded.real, out / ONNX_FILE)
    tables = transfer_tables(loaded.integer)
    needs = [requirements(loaded.integer, name) for name in BOARDS] if sizes else []
    if as_json:
        print_json(
            {
                "model": str(model),
                "out": str(out),
                "memory": asdict(report),
                "tables": asdict(tables),
                "targets": [asdict(n) for n in needs],
            }
        )
        return
    table = Table("target", "flash", "RAM", "stack", title="bytes")
    flash, ram = report.constants, report.arena + report.scratch
    table.add_row("constants, arena", f"{flash:,}", f"{ram:,}", f"at most {report.stack:,}")
    for n in needs:
        if n.flash is None or n.ram is None:
            log_console().print(n.why)
            table.add_row(n.target, Text("not measured"))
        else:
            table.add_row(n.target, f"{n.flash:,}", f"{n.ram:,}", f"{n.stack:,}")
    Console(highlight=False).print(table)
    print(
        f"{tables.pairs} transfer functions share {tables.tables} tables: {tables.bytes:,} bytes "
        f"instead of {tables.unshared:,}"
    )
    print(f"written: {out}; try: make -C {out} test")
