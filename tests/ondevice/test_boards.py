"""The step on an emulated Cortex-M: the state after some steps is that of PyTorch."""

from __future__ import annotations

import struct
import subprocess

import numpy as np
import pytest

from c_files import write_files
from on_device import batches, code_of, config, engine, network, state_of
from samebits.codegen.run import boards
from samebits.codegen.run.targets import TARGETS
from samebits.ondevice.state import to_bytes

MAIN = r"""
#include "data.h"
#include "harness.h"
#include "model.h"
#include "timer.h"

static uint8_t arena[MODEL_ARENA_BYTES] __attribute__((aligned(8)));
static uint8_t state[MODEL_STATE_BYTES];
static double losses[STEPS];
static uint32_t ticks[MARKS]; /* of every instruction, in units of 64 */

void mark(int i) {
    if (i >= 0) ticks[i] += timer_read() >> 6;
    timer_reset();
}

static void put(int32_t file, const void *data, uint32_t size) {
    uint32_t block[3] = {(uint32_t)file, (uint32_t)(uintptr_t)data, size};
    if (semihost(SYS_WRITE, block) != 0) samebits_exit(EXIT_NO_OUTPUT);
}

int samebits_main(void) {
    const uint32_t *word = __stack_start;
    uint32_t open[3] = {(uint32_t)(uintptr_t)"out.bin", 5, 7}, used;
    int32_t file, t;
    model_net net;
    if (model_init(&net, arena, sizeof arena)) samebits_exit(20);
    for (t = 0; t < STEPS; t++) {
        model_set_rate(&net, rates[t]);
        timer_reset();
        if (model_train_step(&net, inputs[t], labels[t], MODEL_BATCH)) samebits_exit(21);
        losses[t] = net.loss;
    }
    if (model_state_save(&net, state, sizeof state)) samebits_exit(22);
    while (word < __stack_end && *word == STACK_PAINT) ++word;
    used = (uint32_t)((const uint8_t *)__stack_end - (const uint8_t *)word);
    file = semihost(SYS_OPEN, open);
    put(file, state, sizeof state);
    put(file, losses, sizeof losses);
    put(file, &used, sizeof used);
    put(file, ticks, sizeof ticks);
    return 0;
}
"""


def data(given, rates, marks):
    """The samples of all steps as C; reals as they are."""
    rows = [
        (x.permute(0, 2, 3, 1).contiguous().numpy().ravel(), y.numpy().tolist()) for x, y in given
    ]
    inputs = ",\n".join("{" + ",".join(f"{float(v).hex()}f" for v in x) + "}" for x, _ in rows)
    labels = ", ".join("{" + ",".join(map(str, y)) + "}" for _, y in rows)
    return (
        f"#define STEPS {len(rows)}\n#define MARKS {marks}\n"
        f"static const double rates[] = {{{', '.join(float(r).hex() for r in rates)}}};\n"
        f"static const float inputs[][{len(rows[0][0])}] = {{{inputs}}};\n"
        f"static const uint8_t labels[][{len(rows[0][1])}] = {{{labels}}};\n"
    )


def on_board(folder, target, name, steps, parts=(), arena=0):
    """State, losses, bytes of stack and instructions of a step, beside the state and the losses of
    PyTorch. parts: what is trained; (): all"""
    options = config()
    run = engine(network(name), options)
    if parts:
        run.train_only(parts)
    code = code_of(run, options, arena=arena)
    given, rates = batches(steps, 8), [0.1 * (steps - t) / steps for t in range(steps)]
    marks = len(code.tape.training)
    write_files(
        folder,
        {
            **code.files,
            "main.c": MAIN,
            "data.h": "#include <stdint.h>\n" + data(given, rates, marks),
            "mark.h": "void mark(int i);\n#define SAMEBITS_TRAIN_MARK(i) mark(i);\n",
            "board.ld": boards.linker_script(target.board),
        },
    )
    sources = [*folder.glob("*.c"), *folder.glob("samebits/*.c")]
    sources += [boards.FOLDER / file for file in ("startup.c", "memory.c")]
    command = [*target.compiler_command, *target.flags, "-include", "mark.h"]
    command += [*target.board.defines, "-I.", "-Isamebits", "-I", str(boards.FOLDER)]
    command += ["-L", str(boards.FOLDER), "-T", "board.ld", *map(str, sources), "-lgcc"]
    subprocess.run([*command, "-o", "program"], cwd=folder, check=True)
    emulator = [str(target.tools[1].path), "-machine", target.board.machine, "-kernel", "program"]
    emulator += ["-semihosting-config", "enable=on,target=native", "-nodefaults"]
    emulator += ["-display", "none", "-monitor", "none", "-serial", "null"]
    emulator += ["-icount", f"shift={target.board.icount_shift},sleep=off"]
    subprocess.run(emulator, cwd=folder, check=True, timeout=500)
    found = (folder / "out.bin").read_bytes()
    saved = code.places.saved
    losses = struct.unpack_from(f"<{steps}d", found, saved)
    (stack,) = struct.unpack_from("<I", found, saved + 8 * steps)
    ticks = np.frombuffer(found, "<u4", marks, saved + 8 * steps + 4).astype(np.int64) * 64
    each = ticks * 10**9 / (target.board.timer_hz << target.board.icount_shift) / steps
    want = tuple(run.step(batch, rates[t], t) for t, batch in enumerate(given))
    state = to_bytes(state_of(run, steps), code.places)
    return (found[:saved], losses, stack, each), (state, want), code


@pytest.mark.slow  # a minute: programs of 36 million instructions a step
@pytest.mark.parametrize(
    ("name", "target", "parts", "arena", "millions", "kib"),
    [
        ("cnn", "cortex-m3", (), 0, 29, 156),
        ("cnn", "cortex-m3", (), 161_860, 24, 160),
        ("cnn", "cortex-m4", (), 161_860, 18, 160),
        ("cnn", "cortex-m55", (), 161_860, 10, 160),
        ("cnn", "cortex-m3", ("6", "10"), 0, 15, 112),
        ("cnn", "cortex-m3", ("10",), 0, 8, 15),
        ("chain", "cortex-m55", (), 0, 4, 17),
        ("resnet", "cortex-m4", (), 0, 50, 56),
        ("mobile", "cortex-m55", (), 0, 62, 92),
        ("dropout", "cortex-m0-large", (), 0, 9, 15),
        ("lstm", "cortex-m3", (), 0, 9, 32),
        ("gru", "cortex-m4", (), 0, 9, 40),
        ("block", "cortex-m4", (), 0, 19, 40),
        ("cells", "cortex-m55", (), 0, 19, 30),
    ],
)
def test_the_state_is_that_of_pytorch(tmp_path, name, target, parts, arena, millions, kib):
    chosen = TARGETS[target]
    if chosen.unavailable():
        pytest.skip(chosen.unavailable())
    found, wanted, code = on_board(tmp_path, chosen, name, 5, parts, arena)
    print(f"{code.places.arena} + {found[2]} bytes of RAM, {found[3].sum():,.0f} instructions")
    assert found[:2] == wanted
    assert found[2] < 3000  # bytes of stack
    assert found[3].sum() < millions * 1e6  # instructions a step
    assert code.places.arena + found[2] <= 1024 * kib  # of RAM
