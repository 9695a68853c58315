"""`samebits compile`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table
from rich.text import Text

from samebits.cli.options import Arch, AsJson
from samebits.cli.output import log_console, print_json, print_table
from samebits.errors import InputError

if TYPE_CHECKING:
    from samebits.npu.machine.program import Image, Program

TARGETS = ("c", "npu")
VECTORS = 8
AUDIO = "audio"  # folder of the features, in that of a model of recordings


def compile_command(
    model: Annotated[
        Path, typer.Argument(help="A quantized .onnx file, a training output folder or checkpoint.")
    ],
    out: Annotated[Path, typer.Option(help="Folder for the generated sources.")],
    target: Annotated[str, typer.Option(help="c, or npu (which takes float models too).")] = "c",
    prefix: Annotated[str, typer.Option(help="Prefix of every C name.")] = "model",
    arch: Arch = None,
    native_dim: Annotated[int, typer.Option(min=8, max=512, help="npu: native dimension.")] = 16,
    mantissa: Annotated[int, typer.Option(min=2, max=15, help="npu: bits beside the sign.")] = 15,
    requantize: Annotated[
        bool, typer.Option(help="npu: partial products go through binary16 between tiles.")
    ] = False,
    steps: Annotated[
        int | None,
        typer.Option(min=1, help="npu: length of a recurrent model's sequences, if not its own."),
    ] = None,
    sizes: Annotated[bool, typer.Option(help="Build for the boards to measure them.")] = True,
    as_json: AsJson = False,
) -> None:
    """Generate portable C (sources, Makefile, test vectors, memory report), or NPU firmware."""
    from samebits.codegen import write_package
    from samebits.codegen.lowering.lower import table_bytes
    from samebits.codegen.packaging.audio import write_audio
    from samebits.codegen.run.requirements import BOARDS, requirements
    from samebits.data.audio import LogMel
    from samebits.ir.integer.transfer import transfer_tables
    from samebits.model import ONNX_FILE, load
    from samebits.onnx import save_qdq
    from samebits.verification.inputs import random_codes

    if target not in TARGETS:
        raise InputError(f"--target: expected one of {', '.join(TARGETS)}, found {target!r}")
    if target == "npu":
        program, image = _program(model, arch, native_dim, mantissa, requantize, steps)
        _write_firmware(model, out, program, image, as_json)
        return
    loaded = load(model, arch)
    features = None if loaded.rate is None else LogMel.at(loaded.rate)
    out = out.absolute()  # the folder is replaced as a whole, even if it is the current one
    vectors = random_codes(loaded.integer, VECTORS)
    report = write_package(loaded.integer, out, prefix=prefix, vectors=vectors)
    save_qdq(loaded.real, out / ONNX_FILE, rate=loaded.rate)
    if features is not None:
        write_audio(features, out / AUDIO)
    tables = transfer_tables(loaded.integer, table_bytes)
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
    print_table(table)
    print(
        f"{tables.pairs} transfer functions share {tables.tables} tables: {tables.bytes:,} bytes "
        f"in C instead of {tables.unshared:,}"
    )
    if features is not None:
        print(f"features of sound at {features.rate} Hz: {out / AUDIO}")
    print(f"written: {out}; try: make -C {out} test")


def _program(
    model: Path, arch: str | None, native: int, mantissa: int, requantize: bool, steps: int | None
) -> tuple[Program, Image]:
    """A program with its memory image, from a float or a quantized model."""
    from samebits.model import load
    from samebits.npu.compiler.lower import lower_real_graph

    return lower_real_graph(
        load(model, arch).real, native, mantissa, requantize=requantize, steps=steps
    )


def _write_firmware(model: Path, out: Path, program: Program, image: Image, as_json: bool) -> None:
    """Write model.nnp and its memory image into `out`, and print what the program is."""
    from samebits.npu.machine.image import write_program

    path = out / "model.nnp"
    out.mkdir(parents=True, exist_ok=True)
    write_program(path, program, image)
    record = {
        "model": str(model),
        "out": str(path),
        "native": program.native,
        "mantissa": program.mantissa,
        "instructions": len(program.instructions),
        "inputs": {h.name: list(h.shape) for h in program.hints if h.kind == "input"},
        "outputs": {h.name: list(h.shape) for h in program.hints if h.kind == "output"},
        "depths": dict(program.depths),
    }
    if as_json:
        print_json(record)
        return
    print(f"{len(program.instructions)} instructions, native dimension {program.native}")
    print(f"written: {path}; try: samebits simulate {path} --inputs X.npz --out Y.npz")
