"""Compilation of a network: to packages of C, and to firmware of the neural processor."""

from __future__ import annotations

from pathlib import Path

from samebits import progress
from samebits.codegen import write_package
from samebits.codegen.lowering.lower import table_bytes
from samebits.codegen.packaging import audio
from samebits.codegen.run.requirements import BOARDS, requirements
from samebits.data.audio import LogMel
from samebits.ir.integer.transfer import transfer_tables
from samebits.model import ONNX_FILE, Model
from samebits.npu.compiler.lower import lower_real_graph
from samebits.npu.machine.image import write_program
from samebits.onnx import to_qdq
from samebits.onnx.writer.emit import model_bytes
from samebits.results import CompiledNetwork, Firmware
from samebits.verification.inputs import random_codes

AUDIO = "audio"  # folder of the features, in that of a model of recordings
VECTORS = 8  # samples of a package's own test


def package_of(
    model: Model, out: Path, prefix: str, cpu: str, package: str, sizes: bool
) -> CompiledNetwork:
    """Write the package, with the network itself and the features of recordings beside it."""
    integer = model.integer
    features = None if model.rate is None else LogMel.at(model.rate)
    out = out.absolute()  # the folder is replaced as a whole, even if it is the current one
    progress.stage("generating C")
    vectors = random_codes(integer, VECTORS)
    beside: dict[str, str | bytes] = {
        ONNX_FILE: model_bytes(to_qdq(model.real, "float", model.facts), out / ONNX_FILE)
    }
    if features is not None:
        texts = audio.texts(features)
        beside.update((f"{AUDIO}/{name}", text) for name, text in texts.items())
    memory = write_package(
        integer, out, prefix=prefix, vectors=vectors, cpu=cpu, project=package, beside=beside
    )
    boards = progress.track(BOARDS, "measuring boards", len(BOARDS)) if sizes else ()
    return CompiledNetwork(
        model.source,
        out,
        memory,
        transfer_tables(integer, table_bytes),
        tuple(requirements(integer, name) for name in boards),
        model.rate,
        None if features is None else out / AUDIO,
        package,
        model,
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
