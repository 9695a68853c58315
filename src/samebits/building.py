"""Compilation of a network: to packages of C, for inference or training, and to firmware of the
neural processor."""

from __future__ import annotations

import hashlib
import json
from importlib.metadata import version
from pathlib import Path

from samebits import progress
from samebits.codegen.lowering.lower import table_bytes
from samebits.codegen.packaging.package import replace_folder
from samebits.codegen.packaging.seal import seal
from samebits.codegen.packaging.signature import given_key, sign, signature_of
from samebits.codegen.run.interface import LARGEST_REPORT, REPORT
from samebits.codegen.run.requirements import BOARDS, requirements
from samebits.entrance import read
from samebits.errors import InputError
from samebits.files import write_atomically
from samebits.ir.integer.transfer import transfer_tables
from samebits.model import LITE_FILE, ONNX_FILE, Model
from samebits.npu.compiler.lower import lower_real_graph
from samebits.npu.machine.image import FOLDER_FORMAT, encoded, firmware_sha256
from samebits.ondevice.package import code_of_run
from samebits.onnx import to_qdq
from samebits.onnx.writer.emit import model_bytes
from samebits.results import CompiledNetwork, CompiledTraining, Firmware
from samebits.train.run.restore import StoppedRun
from samebits.verification.package import AUDIO, packaged


def package_of(
    model: Model,
    out: Path,
    prefix: str,
    cpu: str,
    package: str,
    sizes: bool,
    sign_by: str | Path | None = None,
) -> CompiledNetwork:
    """Write the package of the network's model file, with the features of recordings beside it, and
    with a signature if there is a key."""
    key = given_key(sign_by)
    integer = model.integer
    out = out.absolute()  # the folder is replaced as a whole, even if it is the current one
    progress.stage("generating C")
    if model.lite is not None and model.real.integer:  # ONNX has no form of a runtime's own bits
        name, data = LITE_FILE, model.lite.to_bytes(model.meaning)
    else:
        name = ONNX_FILE
        data = model_bytes(to_qdq(model.real, "float", model.facts), out / name)
    made = packaged(name, data, model.source, prefix, cpu, package)
    sha256 = replace_folder(out, made.files, key)
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
        None if key is None else out / signature_of(REPORT),
    )


def training_of(run: StoppedRun, out: Path, batch: int, prefix: str) -> CompiledTraining:
    """Write the C that trains the network of a run on."""
    progress.stage("generating C")
    code = code_of_run(run, batch, prefix)
    sha256 = replace_folder(out.absolute(), code.files)
    return CompiledTraining(str(run.path), out.absolute(), code, run, sha256)


def firmware_of(
    model: Model,
    out: Path,
    native: int,
    mantissa: int,
    requantize: bool,
    steps: int | None,
    sign_by: str | Path | None = None,
) -> Firmware:
    """Write the program of a float network for the neural processor, its memory image and, last, a
    report.json that states the SHA-256 of both, signed by a key if there is one.

    Other files of the folder stay, but for a signature of an earlier report. InputError where the
    report.json in it is of something else.
    """
    key = given_key(sign_by)
    _check_report(out)
    progress.stage("generating firmware")
    program, image = lower_real_graph(
        model.real, native, mantissa, requantize=requantize, steps=steps
    )
    path = out / "model.nnp"
    files = encoded(path, program, image)
    report = {
        "format": FOLDER_FORMAT,
        "version": version("samebits"),
        "options": {
            "native_dim": native,
            "mantissa": mantissa,
            "requantize": requantize,
            "steps": steps,
        },
        "sha256": firmware_sha256(program, image),
    }
    data = seal(json.dumps(report).encode(), {file.name: _sha256(files[file]) for file in files})
    signature, signed = out / signature_of(REPORT), None if key is None else sign(data, key)
    with_report = {**files, out / REPORT: data, **({} if signed is None else {signature: signed})}
    if signed is None:
        signature.unlink(missing_ok=True)
    for file, content in with_report.items():
        write_atomically(file, content)
    return Firmware(
        model.source, path, program, _sha256(data), None if signed is None else signature
    )


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _check_report(out: Path) -> None:
    """InputError where a folder holds a report.json of anything but firmware."""
    try:
        found = json.loads(read(out / REPORT, LARGEST_REPORT, within=out)).get("format")
    except (FileNotFoundError, NotADirectoryError):
        return
    except (InputError, OSError, ValueError, RecursionError, AttributeError):
        found = None
    if found != FOLDER_FORMAT:
        raise InputError(
            f"{out}: expected a folder without a {REPORT}, or with that of firmware, found "
            "another; choose another folder"
        )
