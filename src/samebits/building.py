"""Compilation of a network: to packages of C, for inference or training, and to firmware of the
neural processor."""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from samebits import progress
from samebits.codegen.lowering.table import table_bytes
from samebits.codegen.packaging.package import replace_folder
from samebits.codegen.packaging.seal import seal
from samebits.codegen.packaging.signature import given_key, sign, signature_of
from samebits.codegen.run.interface import LARGEST_REPORT, REPORT
from samebits.codegen.run.requirements import BOARDS, requirements
from samebits.codegen.run.targets import TARGETS
from samebits.data.load import given_data
from samebits.entrance import read
from samebits.errors import InputError
from samebits.files import write_atomically
from samebits.ir.integer.transfer import transfer_tables
from samebits.model import LITE_FILE, ONNX_FILE, Model
from samebits.npu.compiler.lower import lower_real_graph
from samebits.npu.machine.image import FOLDER_FORMAT, encoded, firmware_sha256
from samebits.ondevice.check import (
    HOST,
    Batch,
    StepTrace,
    c_steps,
    checked_names,
    parting_instruction,
    parting_tensor,
    step_program,
    torch_steps,
)
from samebits.ondevice.optimizer import parse_schedule
from samebits.ondevice.package import TrainingCode, code_of_run, state_bytes, trained_on
from samebits.onnx import to_qdq
from samebits.onnx.writer.emit import model_bytes
from samebits.recipes import PLAIN, Accelerator, Packaging
from samebits.reports.html import Table
from samebits.reports.report import Report, Reported, printable, section
from samebits.results import SAME, CompiledNetwork, Firmware
from samebits.settled import settled
from samebits.train.run.checkpoint import write_checkpoint
from samebits.train.run.loop import data_order
from samebits.train.run.restore import (
    StoppedRun,
    earlier_reading,
    open_checkpoint,
    open_run,
)
from samebits.verification.package import AUDIO, packaged

CHECKED_BATCH = 8  # samples of a training step that `verify` makes


def package_of(
    model: Model,
    out: Path,
    how: Packaging,
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
    made = packaged(name, data, model.source, how)
    sha256 = replace_folder(out, made.files, key)
    boards = progress.track(BOARDS, "measuring boards", len(BOARDS)) if sizes else ()
    return CompiledNetwork(
        model.source,
        out,
        made.report,
        transfer_tables(integer, table_bytes),
        tuple(requirements(integer, name, how.weights_file) for name in boards),
        model.rate,
        None if model.rate is None else out / AUDIO,
        how.package,
        model,
        sha256,
        None if key is None else out / signature_of(REPORT),
    )


@dataclass(frozen=True)
class StepsVerdict:
    """The steps of one backend beside those of PyTorch.

    parting: the first step after which state or loss differ, or None; where: instruction and tensor
    """

    backend: str
    parting: int | None
    where: str = ""

    def to_dict(self) -> dict[str, Any]:
        """As JSON data."""
        return {"backend": self.backend, "parting": self.parting, "where": self.where}


@dataclass(frozen=True, eq=False)
class TrainingVerification(Reported):
    """Steps in C beside the same in PyTorch. True where every state and loss is equal.

    verdicts: of every backend but PyTorch. losses: of PyTorch
    """

    source: str
    steps: int
    verdicts: tuple[StepsVerdict, ...]
    losses: tuple[float, ...]

    @property
    def parting(self) -> int | None:
        """The first step after which a backend differs."""
        return min((v.parting for v in self.verdicts if v.parting is not None), default=None)

    def __bool__(self) -> bool:
        return self.parting is None

    def to_dict(self) -> dict[str, Any]:
        """As JSON data."""
        return {
            "model": self.source,
            "steps": self.steps,
            "same": bool(self),
            "parting": self.parting,
            "backends": [verdict.to_dict() for verdict in self.verdicts],
            "losses": list(self.losses),
        }

    def report(self) -> Report:
        """The verdict of every backend, and where it differs."""
        rows = []
        for verdict in self.verdicts:
            text = "equal to training"
            if verdict.parting is not None:
                text = f"differs after step {verdict.parting}: {verdict.where}"
            rows.append((verdict.backend, text))
        return Report(
            f"Training of {printable(self.source)}",
            SAME[bool(self)],
            [
                section(
                    f"{self.steps} steps, state and loss after each:",
                    Table(("backend", "found"), rows),
                )
            ],
        )


@dataclass(frozen=True, eq=False)
class CompiledTraining(Reported):
    """A folder of C that trains the network of a run on, with the bits of `samebits.train`.

    code: its tape, its memory and its files. report_sha256: of report.json, which states that of
    all other files. arch: as `load` takes it. parts: names of what is trained; (): all
    """

    source: str
    folder: Path
    code: TrainingCode
    run: StoppedRun
    report_sha256: str = ""
    arch: Any = None
    parts: tuple[str, ...] = ()

    @settled
    def state(self, run: str | Path | None = None) -> bytes:
        """The bytes that NAME_state_load takes: of this run, or of another of the same network.

        Raises InputError for a run of another network, and CheckpointError.
        """
        checkpoint = self.run.checkpoint
        if run is not None:
            checkpoint = open_checkpoint(Path(run), lambda text: None)[1]
        return state_bytes(checkpoint, self.code)

    @settled
    def verify(
        self,
        images: Any,
        labels: Any,
        lr: float | None = None,
        backends: Sequence[str] = (HOST,),
    ) -> TrainingVerification:
        """Train on samples in C and in PyTorch, from where the run stands, and compare the state
        and the loss after every step. Where they part, name the instruction and the tensor.

        images: float32 [n, C, H, W] or rows [n, features], an array or a tensor, cut into batches
        of those that the C was made for; labels: n whole numbers; lr: by default that of the run;
        backends: c, this machine, and emulated processors and boards, such as cortex-m3

        Raises InputError for samples that do not fit and for a backend that cannot run here,
        RangeError where training diverges.
        """
        names = checked_names(backends)
        x, y = torch.as_tensor(images).float(), torch.as_tensor(labels).long()
        shape, size = self.run.input_shape, self.code.tape.batch
        if tuple(x.shape[1:]) != shape or y.shape != x.shape[:1] or len(x) < 1:
            raise InputError(
                f"expected images [n, {', '.join(map(str, shape))}] and n labels, found "
                f"{list(x.shape)} and {list(y.shape)}"
            )
        batches = list(zip(x.split(size), y.split(size), strict=True))
        rates = [self.run.config.lr if lr is None else lr] * len(batches)
        found = {name: c_steps(self.code, batches, rates, name) for name in names[1:]}
        wanted, _ = self._in_torch(batches, rates)
        partings = {name: _parting(steps, wanted) for name, steps in found.items()}
        good = next((name for name, parting in partings.items() if parting is None), None)
        verdicts = []
        for name, parting in partings.items():
            where = ""
            if parting is not None:
                until = parting + 1
                where = self._where(name, good, batches[:until], rates[:until])
            verdicts.append(StepsVerdict(name, parting, where))
        losses = tuple(each.loss for each in wanted)
        return TrainingVerification(self.source, len(batches), tuple(verdicts), losses)

    def _in_torch(
        self, batches: Sequence[Batch], rates: Sequence[float]
    ) -> tuple[list[StepTrace], bytes]:
        again = open_run(self.run.path, self.arch)
        if self.parts:
            again.engine.train_only(self.parts)
        return torch_steps(again.engine, self.code, self.run.checkpoint.step, batches, rates)

    def _where(
        self, name: str, good: str | None, batches: Sequence[Batch], rates: Sequence[float]
    ) -> str:
        """Where the last step of a backend leaves that of PyTorch: an instruction, if another
        backend's C, whose instructions are the same, is right; and a tensor."""
        with tempfile.TemporaryDirectory() as home:
            bad = step_program(self.code, TARGETS[name], Path(home) / "bad")
            if good is not None:
                other = step_program(self.code, TARGETS[good], Path(home) / "good")
                found = parting_instruction(other, bad, batches, rates)
                if found is not None:
                    return found
            state = bad.steps(batches, rates)[1]
        return parting_tensor(self.code, state, self._in_torch(batches, rates)[1])

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
            "train_only": list(self.parts),
            "report_sha256": self.report_sha256,
            "bytes": {
                "state": places.state,
                "saved_state": places.saved,
                "arena": places.arena,
                "arena_bound": places.bound,
                "frozen": self.code.frozen.size,
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
            ("parts that stand, in flash", f"{self.code.frozen.size:,}"),
        ]
        return Report(
            f"Training step of {printable(self.source)} in C",
            f"{elements:,} parameters to train, batches of up to {tape.batch}, after step "
            f"{self.run.checkpoint.step}",
            [
                section(
                    Table(("memory", "bytes"), rows),
                    f"report.json, which seals all files: sha256 {self.report_sha256}",
                    f"written: {self.folder}; {self.code.prefix}.h tells its functions",
                )
            ],
        )


def _parting(found: Sequence[StepTrace], wanted: Sequence[StepTrace]) -> int | None:
    same = [a == b for a, b in zip(found, wanted, strict=True)]
    return None if all(same) else same.index(False)


def training_of(
    run: StoppedRun,
    out: Path,
    batch: int,
    prefix: str,
    arch: Any,
    schedule: str | Sequence[float] | None = None,
    parts: tuple[str, ...] = (),
    arena: int = 0,
) -> CompiledTraining:
    """Write the C that trains the network of a run on, or parts of it."""
    progress.stage("generating C")
    rates = schedule or ()
    if isinstance(rates, str):
        rates = parse_schedule(rates, run.config.lr)
    if parts:
        run.engine.train_only(parts)
    code = code_of_run(run, batch, prefix, rates, arena)
    sha256 = replace_folder(out.absolute(), code.files)
    return CompiledTraining(str(run.path), out.absolute(), code, run, sha256, arch, parts)


def training_verified(
    run: StoppedRun, steps: int, backends: Sequence[str], arch: Any, parts: tuple[str, ...] = ()
) -> TrainingVerification:
    """Compare steps on the run's own data, in the order of its training."""
    path, checkpoint, config = run.path, run.checkpoint, run.config
    earlier = earlier_reading(path, checkpoint)
    data = given_data(
        config.data,
        limit=config.limit,
        input_shape=run.input_shape,
        options=PLAIN,
        earlier=earlier,
    )
    count, own = steps * CHECKED_BATCH, len(data.train_labels)
    epochs = range(-(-count // own))
    chosen = torch.cat([data_order(own, config.seed, epoch) for epoch in epochs])[:count]
    images, labels = data.values(data.images("train")[chosen]), data.targets("train", chosen)
    if parts:
        run.engine.train_only(parts)
    code = code_of_run(run, CHECKED_BATCH, "model")
    compiled = CompiledTraining(str(path), Path(), code, run, arch=arch, parts=parts)
    return compiled.verify(images, labels, None, backends)


def firmware_of(
    model: Model,
    out: Path,
    how: Accelerator,
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
        model.real,
        how.native_dim,
        how.mantissa,
        requantize=how.requantize,
        steps=how.steps,
    )
    path = out / "model.nnp"
    files = encoded(path, program, image)
    report = {
        "format": FOLDER_FORMAT,
        "version": version("samebits"),
        "options": {
            "native_dim": how.native_dim,
            "mantissa": how.mantissa,
            "requantize": how.requantize,
            "steps": how.steps,
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
