"""The C of a run beside PyTorch, on this machine and on emulated boards: the state and the loss
after every step, and where two part."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from samebits import csrc, progress
from samebits.codegen.run import boards
from samebits.codegen.run.execute import compile_with, run_program
from samebits.codegen.run.targets import TARGETS, Target
from samebits.csrc import WORK
from samebits.errors import InputError
from samebits.files import write_folder
from samebits.ondevice.package import LIBRARY, TrainingCode
from samebits.ondevice.state import TrainingState, to_bytes
from samebits.train.run.engine import Engine

Batch = tuple[torch.Tensor, torch.Tensor]
SUM = slice(16, 24)  # of a saved state: its checksum
NOWHERE = 2**32 - 1
RECORD = 20  # bytes of a step: status, loss, checksum
TRAINING, HOST = "training", "c"
NAMES = (TRAINING, *(name for name in TARGETS if not name.startswith("x86")))
MARK = """\
#include <stdint.h>
void steps_mark(int i, const uint8_t *arena);
#define SAMEBITS_TRAIN_MARK(i) steps_mark(i, m);
"""


@dataclass(frozen=True)
class StepTrace:
    """One step: its loss, and the checksum of the state after it."""

    loss: float
    checksum: bytes


@dataclass(frozen=True)
class StepProgram:
    """Training steps of generated C, built for a target in a folder."""

    code: TrainingCode
    target: Target
    path: Path

    def steps(
        self, batches: Sequence[Batch], rates: Sequence[float]
    ) -> tuple[list[StepTrace], bytes]:
        """Every step, and the state at the end. Raises InputError where C refuses one."""
        output = self._output(batches, rates, NOWHERE, NOWHERE)
        found = []
        for step in range(len(batches)):
            record = output[RECORD * step : RECORD * (step + 1)]
            status = int.from_bytes(record[:4], "little")
            if status:
                raise InputError(
                    f"step {step}: expected samples that C trains on, found that it refuses them "
                    f"with code {status} (samebits_train.h); give other samples or a lower "
                    "learning rate"
                )
            found.append(StepTrace(float(np.frombuffer(record, "<f8", 1, 4)[0]), record[12:]))
        return found, output[RECORD * len(batches) :]

    def instructions(
        self, batches: Sequence[Batch], rates: Sequence[float]
    ) -> list[tuple[int, bytes]]:
        """The instructions of the last step, with the hash of the arena behind each."""
        last = len(batches) - 1
        output = self._output(batches, rates, last, NOWHERE)
        traced = output[RECORD * last : len(output) - RECORD - self.code.places.saved]
        each = [traced[at : at + 12] for at in range(0, len(traced), 12)]
        return [(int.from_bytes(mark[:4], "little"), mark[4:]) for mark in each]

    def arena(self, batches: Sequence[Batch], rates: Sequence[float], place: int) -> bytes:
        """The arena behind an instruction of the last step, by its place among them."""
        last = len(batches) - 1
        output = self._output(batches, rates, last, place)
        start = RECORD * last + 12 * (place + 1)
        return output[start : start + self.code.places.arena]

    def _output(
        self, batches: Sequence[Batch], rates: Sequence[float], traced: int, shown: int
    ) -> bytes:
        words = np.array([len(batches), traced, shown], "<u4").tobytes()
        data = words + b"".join(map(_given, batches, rates))
        return run_program(self.target, self.path, data, len(batches), WORK).output


def step_program(code: TrainingCode, target: Target, folder: Path) -> StepProgram:
    """Build a package of training for a target, in an empty folder.

    Raises InputError where the target is not available here or the program does not fit it.
    """
    if reason := target.unavailable():
        raise InputError(reason)
    name = code.prefix
    head = f'#include "{name}.h"\n#define steps_net {name}_net\n'
    for function in ("init", "set_rate", "train_step", "state_save"):
        head += f"#define steps_{function} {name}_{function}\n"
    for own, theirs in (
        ("ARENA", "ARENA_BYTES"),
        ("STATE", "STATE_BYTES"),
        ("BATCH", "BATCH"),
        ("INPUTS", "INPUTS"),
    ):
        head += f"#define STEPS_{own} {name.upper()}_{theirs}\n"
    text = csrc.source("ondevice/steps.c")
    written = {"steps.h": head + MARK, "mark.h": MARK, "steps.c": text}
    if target.board:
        written["board.ld"] = boards.linker_script(target.board)
    write_folder(folder, {**code.files, **{k: v.encode() for k, v in written.items()}})
    sources = [file for file in (*code.files, "steps.c") if file.endswith(".c")]
    flags = [*target.flags, "-I.", f"-I{LIBRARY}", "-include", "mark.h"]
    if target.board:
        sources += [str(boards.FOLDER / file) for file in ("startup.c", "memory.c")]
        flags += [*target.board.defines, "-DSAMEBITS_BOARD", "-I", str(boards.FOLDER)]
        flags += ["-L", str(boards.FOLDER), "-T", "board.ld"]
    end = ["-lgcc"] if target.board else []
    progress.stage(f"building for {target.name}")
    compile_with(target, [*flags, *sources, "-o", "program", *end], folder)
    return StepProgram(code, target, folder / "program")


def c_steps(
    code: TrainingCode, batches: Sequence[Batch], rates: Sequence[float], name: str = HOST
) -> list[StepTrace]:
    """The steps of generated C, on a target. Errors as `step_program` and `StepProgram.steps`."""
    with tempfile.TemporaryDirectory() as home:
        program = step_program(code, TARGETS[name], Path(home) / "c")
        progress.stage(f"training on {name}")
        return program.steps(batches, rates)[0]


def torch_steps(
    engine: Engine,
    code: TrainingCode,
    first: int,
    batches: Sequence[Batch],
    rates: Sequence[float],
) -> tuple[list[StepTrace], bytes]:
    """The same steps in PyTorch, from step `first` on; the state at the end. Raises RangeError."""
    progress.stage("training in PyTorch")
    found, data = [], b""
    for step, (batch, rate) in enumerate(zip(batches, rates, strict=True), first):
        loss = engine.step(batch, rate, step)
        moments = engine.optimizer.state_dict()["state"]
        data = to_bytes(TrainingState(engine.model.state_dict(), moments, step + 1), code.places)
        found.append(StepTrace(loss if loss < 2.0**27 else float("inf"), data[SUM]))
    return found, data


def checked_names(names: Sequence[str]) -> tuple[str, ...]:
    """The backends of a comparison. Raises InputError for one that is unknown or cannot run."""
    for name in names:
        if name not in NAMES:
            raise InputError(
                f"--backends: expected some of {', '.join(NAMES)} for --train, found {name!r:.60}"
            )
        if name != TRAINING and (reason := TARGETS[name].unavailable()):
            raise InputError(reason)
    return tuple(dict.fromkeys((TRAINING, *names)))


def parting_tensor(code: TrainingCode, a: bytes, b: bytes) -> str:
    """The first tensor of two saved states that differs, by its name."""
    places, at = code.places, 24
    each = 4 * (1 + len(places.moments))
    spans = [(f"{held.parameter.name}: exponents", each) for held in places.parameters]
    for held in places.parameters:
        own, size = held.parameter.name, held.parameter.size
        spans += [(f"{own}: codes", size), (f"{own}: delayed update", 2 * size)]
        spans += [(f"{own}: {moment}", 2 * size) for moment in places.moments]
    spans += [(statistics.name, 8 * statistics.channels) for statistics, _ in places.statistics]
    for name, size in spans:
        if a[at : at + size] != b[at : at + size]:
            return name
        at += size
    return "the loss" if a == b else "the optimizer's powers"


def parting_instruction(
    good: StepProgram, bad: StepProgram, batches: Sequence[Batch], rates: Sequence[float]
) -> str | None:
    """The first instruction of the last step behind which the arenas of two programs differ, with
    the tensor; None where all are equal."""
    pairs = zip(good.instructions(batches, rates), bad.instructions(batches, rates), strict=False)
    for place, (a, b) in enumerate(pairs):
        if a == b:
            continue
        call = good.code.tape.training[a[0]]
        arenas = (program.arena(batches, rates, place) for program in (good, bad))
        at = next(k for k, (x, y) in enumerate(zip(*arenas, strict=True)) if x != y)
        name = call.call.partition("(")[0]
        return f"instruction {a[0]}, {call.where or 'the model'}: {name}, {_tensor_at(good, at)}"
    return None


def _tensor_at(program: StepProgram, at: int) -> str:
    """A tensor of the arena by a byte of it."""
    places = program.code.places
    for held in places.parameters:
        size = held.parameter.size
        spans = [(held.w, size, "codes"), (held.a, 2 * size, "delayed update")]
        spans += [(m, 2 * size, n) for m, n in zip(held.moments, places.moments, strict=True)]
        for start, length, what in (*spans, (held.scale, 16, "exponents")):
            if start <= at < start + length:
                return f"{held.parameter.name}: {what}"
    for statistics, start in places.statistics:
        if start <= at < start + 8 * statistics.channels:
            return statistics.name
    return f"byte {at} of the arena"


def _given(batch: Batch, rate: float) -> bytes:
    """A step as the program reads it: images with channels last."""
    images, labels = batch
    last = images.movedim(1, -1) if images.dim() > 2 else images
    reals = last.contiguous().numpy().astype("<f4").tobytes()
    own = np.array([rate], "<f8").tobytes() + np.array([len(labels)], "<u4").tobytes()
    return own + labels.numpy().astype(np.uint8).tobytes() + reals
