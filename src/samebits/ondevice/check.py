"""The C of a run beside PyTorch on this machine: the state and the loss after every step."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from samebits import progress
from samebits.csrc import WORK, compiler, run_tool
from samebits.errors import InputError, SamebitsError
from samebits.files import write_folder
from samebits.ondevice.package import LIBRARY, TrainingCode
from samebits.ondevice.state import TrainingState, to_bytes
from samebits.train.run.engine import Engine

Batch = tuple[torch.Tensor, torch.Tensor]
FLAGS = ("-std=c99", "-O2")
SUM = slice(16, 24)  # of a saved state: its checksum

HARNESS = r"""
/* Steps on samples from standard input, as hexadecimal words; of each the status, the loss and the
 * checksum of the state after it. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "@name@.h"

static uint64_t arena[@NAME@_ARENA_BYTES / 8 + 1];
static float inputs[@NAME@_BATCH * @NAME@_INPUTS];
static uint8_t labels[@NAME@_BATCH], state[@NAME@_STATE_BYTES];

static int word(uint64_t *to) { return scanf("%" SCNx64, to) == 1; }

int main(void) {
    @name@_net net;
    uint64_t count, rate, each;
    if (@name@_init(&net, arena, sizeof arena)) return 2;
    while (word(&rate) && word(&count)) {
        double lr;
        uint64_t i, loss;
        int status;
        memcpy(&lr, &rate, sizeof lr);
        if (count > @NAME@_BATCH) return 2;
        for (i = 0; i < count; i++) {
            if (!word(&each)) return 2;
            labels[i] = (uint8_t)each;
        }
        for (i = 0; i < count * @NAME@_INPUTS; i++) {
            uint32_t bits;
            if (!word(&each)) return 2;
            bits = (uint32_t)each;
            memcpy(&inputs[i], &bits, sizeof bits);
        }
        status = @name@_set_rate(&net, lr);
        if (!status) status = @name@_train_step(&net, inputs, labels, (int32_t)count);
        if (status) {
            printf("%d 0 00\n", status);
            return 0;
        }
        if (@name@_state_save(&net, state, sizeof state)) return 2;
        memcpy(&loss, &net.loss, sizeof loss);
        printf("0 %" PRIx64 " ", loss);
        for (i = 16; i < 24; i++) printf("%02x", state[i]);
        printf("\n");
    }
    return 0;
}
"""


@dataclass(frozen=True)
class StepTrace:
    """One step: its loss, and the checksum of the state after it."""

    loss: float
    checksum: bytes


def c_steps(
    code: TrainingCode, batches: Sequence[Batch], rates: Sequence[float]
) -> list[StepTrace]:
    """The steps of generated C, built by this machine's compiler.

    Raises InputError where there is none or it fails, and where C refuses a step.
    """
    name = code.prefix
    main = HARNESS.replace("@name@", name).replace("@NAME@", name.upper())
    progress.stage("building C")
    with tempfile.TemporaryDirectory() as home:
        folder = Path(home) / "c"
        write_folder(folder, {**code.files, "main.c": main.encode()})
        sources = [file for file in (*code.files, "main.c") if file.endswith(".c")]
        command = [*compiler(), *FLAGS, "-I.", f"-I{LIBRARY}", *sources, "-o", "steps"]
        try:
            built = run_tool(command, WORK, folder=folder)
        except OSError as error:
            raise InputError(
                f"expected a C compiler, found none that runs ({error.strerror}); install one, or "
                "name it in $CC"
            ) from error
        if built.returncode:
            raise SamebitsError(f"the generated C does not compile: {built.stderr[:300]}")
        progress.stage("training in C")
        done = run_tool([str(folder / "steps")], WORK, text=_words(batches, rates))
    if done.returncode:
        raise SamebitsError(f"the generated C ended with code {done.returncode}")
    lines = [line.split() for line in done.stdout.splitlines()]
    for step, line in enumerate(lines):
        if line[0] != "0":
            raise InputError(
                f"step {step}: expected samples that C trains on, found that it refuses them with "
                f"code {line[0]} (samebits_train.h); give other samples or a lower learning rate"
            )
    reals = np.array([int(line[1], 16) for line in lines], np.uint64).view(np.float64)
    return [
        StepTrace(float(loss), bytes.fromhex(line[2]))
        for loss, line in zip(reals, lines, strict=True)
    ]


def torch_steps(
    engine: Engine,
    code: TrainingCode,
    first: int,
    batches: Sequence[Batch],
    rates: Sequence[float],
) -> list[StepTrace]:
    """The same steps in PyTorch, from step `first` on. Raises RangeError."""
    progress.stage("training in PyTorch")
    found = []
    for step, (batch, rate) in enumerate(zip(batches, rates, strict=True), first):
        loss = engine.step(batch, rate, step)
        moments = engine.optimizer.state_dict()["state"]
        state = TrainingState(engine.model.state_dict(), moments, step + 1)
        found.append(StepTrace(loss, to_bytes(state, code.places)[SUM]))
    return found


def _words(batches: Sequence[Batch], rates: Sequence[float]) -> str:
    """Samples as the harness reads them: images with channels last."""
    words = []
    for (images, labels), rate in zip(batches, rates, strict=True):
        last = images.movedim(1, -1) if images.dim() > 2 else images
        reals = last.contiguous().numpy().astype(np.float32).view(np.uint32).ravel()
        words += [int(np.float64(rate).view(np.uint64)), len(labels), *labels.tolist(), *reals]
    return " ".join(f"{int(word):x}" for word in words)
