"""Compilation of a network: to packages of C, and to firmware of the neural processor."""

from __future__ import annotations

from pathlib import Path

from samebits import progress
from samebits.codegen.lowering.lower import table_bytes
from samebits.codegen.packaging.package import replace_folder
from samebits.codegen.run.requirements import BOARDS, requirements
from samebits.ir.integer.transfer import transfer_tables
from samebits.model import ONNX_FILE, Model
from samebits.npu.compiler.lower import lower_real_graph
from samebits.npu.machine.image import write_program
from samebits.onnx import to_qdq
from samebits.onnx.writer.emit import model_bytes
from samebits.results import CompiledNetwork, Firmware
from samebits.verification.package import AUDIO, packaged


def package_of(
    model: Model, out: Path, prefix: str, cpu: str, package: str, sizes: bool
) -> CompiledNetwork:
    """Write the package of the network's model.onnx, with the features of recordings beside it."""
    integer = model.integer
    out = out.absolute()  # the folder is replaced as a whole, even if it is the current one
    progress.stage("generating C")
    data = model_bytes(to_qdq(model.real, "float", model.facts), out / ONNX_FILE)
    made = packaged(data, model.source, prefix, cpu, package)
    sha256 = replace_folder(out, made.files)
    boards = progress.track(BOARDS, "measuring boards", len(BOARDS)) if sizes else ()
    return CompiledNetwork(
        model.source,
        out,
        made.report,
        transfer_tables(integer, table_bytes),
        tuple(requirements(integer, name) for name in boards),
        model.rate,
        None if model.rate is None else out / AUDIO,
        package,
        model,
        sha256,
    )


def firmware_of(
    model: Model, out: Path, native: int, mantissa: int, requantize: bool, steps: int | None
) -> Firmware:
    """Write the program of a float network for the neural processor, and its memory image."""
    progress.stage("generating firmware")
    program, image = lower_real_graph(
        model.real, native, mantissa, requantize=requantize, steps=steps
    )
    out.mkdir(parents=True, exist_ok=True)
    path = out / "model.nnp"
    write_program(path, program, image)
    return Firmware(model.source, path, program)
