"""Compilation of a network: to packages of C, for inference or training, and to firmware of the
neural processor."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

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
from samebits.ondevice.check import c_steps, torch_steps
from samebits.ondevice.optimizer import parse_schedule
from samebits.ondevice.package import TrainingCode, code_of_run, state_bytes, trained_on
from samebits.onnx import to_qdq
from samebits.onnx.writer.emit import model_bytes
from samebits.reports.html import Table
from samebits.reports.report import Report, Reported, printable, section
from samebits.results import SAME, CompiledNetwork, Firmware
from samebits.settled import settled
from samebits.train.run.checkpoint import write_checkpoint
from samebits.train.run.restore import StoppedRun, open_checkpoint, open_run
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


@dataclass(frozen=True, eq=False)
class TrainingVerification(Reported):
    """Steps in C beside the same in PyTorch. True where every state and loss is equal.

    parting: the first step after which one differs. losses: of PyTorch
    """

    source: str
    steps: int
    parting: int | None
    losses: tuple[float, ...]

    def __bool__(self) -> bool:
        return self.parting is None

    def to_dict(self) -> dict[str, Any]:
        """As JSON data."""
        return {
            "model": self.source,
            "steps": self.steps,
            "same": bool(self),
            "parting": self.parting,
            "losses": list(self.losses),
        }

    def report(self) -> Report:
        """The verdict, and the first step that differs."""
        found = f"{self.steps} steps in C and in PyTorch, state and loss after each: "
        found += "equal" if self else f"the first that differ are those of step {self.parting}"
        return Report(f"Training of {printable(self.source)}", SAME[bool(self)], [section(found)])


@dataclass(frozen=True, eq=False)
class CompiledTraining(Reported):
    """A folder of C that trains the network of a run on, with the bits of `samebits.train`.

    code: its tape, its memory and its files. report_sha256: of report.json, which states that of
    all other files. arch: as `load` takes it
    """

    source: str
    folder: Path
    code: TrainingCode
    run: StoppedRun
    report_sha256: str = ""
    arch: Any = None

    @settled
    def state(self, run: str | Path | None = None) -> bytes:
        """The bytes that NAME_state_load takes: of this run, or of another of the same network.

        Raises InputError for a run of another network, and CheckpointError.
        """
        checkpoint = self.run.checkpoint
        if run is not None:
            checkpoint = open_checkpoint(Path(run), lambda text: None)[1]
        return state_bytes(checkpoint, self.code.places)

    @settled
    def verify(self, images: Any, labels: Any, lr: float | None = None) -> TrainingVerification:
        """Train on samples in C on this machine and in PyTorch, from where the run stands, and
        compare the state and the loss after every step.

        images: float32 [n, C, H, W] or rows [n, features], an array or a tensor, cut into batches
        of those that the C was made for; labels: n whole numbers; lr: by default that of the run

        Raises InputError for samples that do not fit and for a machine without a compiler,
        RangeError where training diverges.
        """
        x, y = torch.as_tensor(images).float(), torch.as_tensor(labels).long()
        shape, size = self.run.input_shape, self.code.tape.batch
        if tuple(x.shape[1:]) != shape or y.shape != x.shape[:1] or len(x) < 1:
            raise InputError(
                f"expected images [n, {', '.join(map(str, shape))}] and n labels, found "
                f"{list(x.shape)} and {list(y.shape)}"
            )
        batches = list(zip(x.split(size), y.split(size), strict=True))
        rates = [self.run.config.lr if lr is None else lr] * len(batches)
        again = open_run(self.run.path, self.arch)
        first = self.run.checkpoint.step
        found = c_steps(self.code, batches, rates)
        wanted = torch_steps(again.engine, self.code, first, batches, rates)
        same = [a == b for a, b in zip(found, wanted, strict=True)]
        parting = None if all(same) else same.index(False)
        losses = tuple(each.loss for each in wanted)
        return TrainingVerification(self.source, len(batches), parting, losses)

    @settled
    def checkpoint(self, state: bytes, out: str | Path) -> Path:
        """Write what NAME_state_save gave as a checkpoint of the run, into a folder.

        `samebits.evaluate` takes it, and so does `samebits train --resume` beside the run's
        config.json. Raises InputError for bytes that are no state of this network.
        """
        made = trained_on(self.run.checkpoint, state, self.code.places)
        Path(out).mkdir(parents=True, exist_ok=True)
        return write_checkpoint(Path(out), made)

    def to_dict(self) -> dict[str, Any]:
        """As JSON data."""
        places = self.code.places
        return {
            "model": self.source,
            "out": str(self.folder),
            "prefix": self.code.prefix,
            "batch": self.code.tape.batch,
            "step": self.run.checkpoint.step,
            "report_sha256": self.report_sha256,
            "bytes": {
                "state": places.state,
                "saved_state": places.saved,
                "arena": places.arena,
                "arena_bound": places.bound,
            },
        }

    def report(self) -> Report:
        """Memory of a step, and where the C is."""
        tape, places = self.code.tape, self.code.places
        elements = sum(p.size for p in tape.parameters)
        rows = [
            ("state", f"{places.state:,}"),
            ("beside it, for a step", f"{places.arena - places.state:,}"),
            ("arena", f"{places.arena:,}"),
            ("saved state", f"{places.saved:,}"),
        ]
        return Report(
            f"Training step of {printable(self.source)} in C",
            f"{elements:,} parameters, batches of up to {tape.batch}, after step "
            f"{self.run.checkpoint.step}",
            [
                section(
                    Table(("memory", "bytes"), rows),
                    f"report.json, which seals all files: sha256 {self.report_sha256}",
                    f"written: {self.folder}; {self.code.prefix}.h tells its functions",
                )
            ],
        )


def training_of(
    run: StoppedRun,
    out: Path,
    batch: int,
    prefix: str,
    arch: Any,
    schedule: str | Sequence[float] | None = None,
) -> CompiledTraining:
    """Write the C that trains the network of a run on."""
    progress.stage("generating C")
    rates = schedule or ()
    if isinstance(rates, str):
        rates = parse_schedule(rates, run.config.lr)
    code = code_of_run(run, batch, prefix, rates)
    sha256 = replace_folder(out.absolute(), code.files)
    return CompiledTraining(str(run.path), out.absolute(), code, run, sha256, arch)


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
