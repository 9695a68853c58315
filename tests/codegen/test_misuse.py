"""Calls that break what the header demands end, in a debug build, with the argument's name."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from c_files import write_files
from integer_graphs import random_network
from samebits.codegen.packaging.package import texts
from shared_kernels import WARNINGS, compile_c, shared_kernels
from step_graphs import GRAPHS, runs_of
from stream_program import stream

DEBUG = "-DSAMEBITS_DEBUG"
# Ports of the graph "widths": x of int8; y of int64; state1 of int32 is the widest of four.
PROGRAM = """
#include <stdio.h>
#include <stdlib.h>
#include "model.h"
MODEL_INSTANCE(net);
static int64_t whole[(MODEL_ARENA_BYTES + 7) / 8], small[(MODEL_ARENA_BYTES - 1) / 8];
static model_t own, empty;
static model_state_t state, unwritten, copied;
static model_input0_t x[3 * MODEL_INPUT0_SIZE];
static model_output0_t y[3 * MODEL_OUTPUT0_SIZE + 1];
static struct { int8_t s0[3]; int32_t s1[3]; int16_t s2[3]; uint8_t s3[3]; } in, out;

int main(int count, char **words) {
    const int wrong = count > 1 ? atoi(words[1]) : 0;
    if (wrong != @unreset@) model_reset(&state);
    model_init(&own, whole);
    switch (wrong) {
@cases@    }
    model_reset(&state);
    model_step(&own, &state, x, y);
    copied = state;
    model_step(&net, &copied, x, y);
    model_steps(&net, &copied, 3, x, y);
    model_steps(&net, &copied, 0, x, y);
    model_run(&net, x, in.s0, in.s1, in.s2, in.s3, y, out.s0, out.s1, out.s2, out.s3);
    return model_selftest(&net, x, in.s0, in.s1, in.s2, in.s3, y, out.s0, out.s1, out.s2, out.s3);
}
"""
MISUSES = {
    "model_init(0, whole)": "net is null",
    "model_init(&own, 0)": "arena is null",
    "model_init(&own, (char *)whole + 4)": "arena is not at a multiple of 8 bytes",
    "model_init(&own, small)": "arena is shorter than MODEL_ARENA_BYTES",
    "model_reset(0)": "state is null",
    "model_reset((void *)((char *)&state + 1))": "state is not aligned for codes of 4 bytes",
    "model_step(0, &state, x, y)": "net is null",
    "model_step(&empty, &state, x, y)": "net was not made by MODEL_INSTANCE or model_init",
    "model_step(&net, 0, x, y)": "state is null",
    "model_step(&net, &unwritten, x, y)": "state was not written by model_reset",
    "model_steps(&net, &unwritten, 1, x, y)": "state was not written by model_reset",
    "model_step(&net, &state, 0, y)": "input0 is null",
    "model_step(&net, &state, x, 0)": "output0 is null",
    "model_step(&net, &state, x, (void *)((char *)y + 2))":
        "output0 is not aligned for codes of 8 bytes",
    "model_step(&own, &state, (void *)whole, y)": "input0 overlaps the arena or the state",
    "model_step(&net, &state, (void *)state.state0, y)": "input0 overlaps the arena or the state",
    "model_step(&net, &state, (void *)(y + 2), y)":
        "output0 overlaps the arena or the state or another argument",
    "model_steps(&net, &state, 3, (void *)(y + 8), y)":
        "output0 overlaps the arena or the state or another argument",
    "model_steps(&net, &state, -1, x, y)": "steps is negative",
    "model_run(&net, x, in.s0, in.s1, 0, in.s3, y, out.s0, out.s1, out.s2, out.s3)":
        "input3 is null",
    "model_run(&net, x, in.s0, in.s1, in.s2, in.s3, y, in.s0, out.s1, out.s2, out.s3)":
        "output1 overlaps the arena or another argument",
    "model_selftest(&net, x, x, in.s1, in.s2, in.s3, y, out.s0, out.s1, out.s2, out.s3)":
        "input1 overlaps the arena or another argument",
}  # fmt: skip
UNRESET = "model_step(&net, &state, x, y)"


def program(folder: Path) -> None:
    """main.c, and the package whose functions it calls: case n > 0 of the command line is wrong."""
    files, _ = texts(GRAPHS["widths"])
    write_files(folder, {name: files[name] for name in files if name.startswith("model")})
    lines = [f"    case {i}: {call}; return 0;\n" for i, call in enumerate(MISUSES, 1)]
    lines.append(f"    case {len(MISUSES) + 1}: {UNRESET}; return 0;\n")
    text = PROGRAM.replace("@cases@", "".join(lines)).replace("@unreset@", str(len(MISUSES) + 1))
    (folder / "main.c").write_text(text)


SOURCES = ["main.c", "model.c", "model_constants.c"]


def test_a_debug_build_names_the_argument(cc: str, tmp_path: Path, objects: Path) -> None:
    program(tmp_path)
    kernels = shared_kernels(cc, tmp_path, objects, "portable", "-O1")
    compile_c(cc, tmp_path, [*SOURCES, kernels], "all", "-O1", DEBUG, "-I.")

    def call(case: int) -> tuple[int, str]:
        done = subprocess.run(
            [tmp_path / "all", str(case)], capture_output=True, check=False, text=True
        )
        return done.returncode, done.stderr

    assert call(0) == (0, "")
    expected = [*MISUSES.items(), (UNRESET, "state was not written by model_reset")]
    for case, (text, message) in enumerate(expected, 1):
        status, said = call(case)
        assert status == -6, (text, said)
        name = text.partition("(")[0]
        assert f"{name}_checked: " in said, said
        assert f'"{message}"' in said, said


def test_another_assert_needs_no_library(cc: str, tmp_path: Path, objects: Path) -> None:
    """SAMEBITS_ASSERT may be the caller's; without it NDEBUG is refused."""
    program(tmp_path)
    (tmp_path / "halt.h").write_text(
        "#ifndef HALT\n#define HALT\nextern void exit(int);\nextern int puts(const char *);\n"
        "#define SAMEBITS_ASSERT(condition, message) \\\n"
        "    ((condition) ? (void)0 : (puts(message), exit(9)))\n#endif\n"
    )
    kernels = shared_kernels(cc, tmp_path, objects, "portable", "-O1")
    flags = ["-O1", "-DNDEBUG", DEBUG, "-I."]
    compile_c(cc, tmp_path, [*SOURCES, kernels], "all", *flags, "-include", "halt.h")
    done = subprocess.run([tmp_path / "all", "1"], capture_output=True, check=False, text=True)
    assert (done.returncode, done.stdout) == (9, "net is null\n")
    command = [cc, *WARNINGS, *flags, "-c", "model.c"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, check=False, text=True)
    assert done.returncode != 0
    assert "SAMEBITS_DEBUG with NDEBUG would check nothing" in done.stderr


@pytest.mark.parametrize("checked", ["main.c", "model.c"])
def test_files_of_both_builds_do_not_link(
    checked: str, cc: str, tmp_path: Path, objects: Path
) -> None:
    """The state has a mark in one of them only."""
    program(tmp_path)
    kernels = shared_kernels(cc, tmp_path, objects, "portable", "-O1")
    for name in SOURCES:
        flags = [DEBUG] if name == checked else []
        compile_c(cc, tmp_path, ["-c", name], f"{name}.o", "-O1", "-I.", *flags)
    done = subprocess.run(
        [cc, *(f"{name}.o" for name in SOURCES), kernels],
        cwd=tmp_path, capture_output=True, check=False, text=True,
    )  # fmt: skip
    assert done.returncode != 0
    suffix = "_checked" if checked == "main.c" else ""
    for name in ("init", "run", "selftest", "reset", "step", "steps"):
        assert re.search(rf"model_{name}{suffix}\b", done.stderr), done.stderr


def test_right_calls_pass(
    cc: str, tmp_path: Path, objects: Path, same_in_c: Callable[..., None]
) -> None:
    """Streams in chunks whose state is stored and copied back, by blocks among them; one graph."""
    graphs = list(GRAPHS.values())
    runs = [runs_of(graph, index) for index, graph in enumerate(graphs)]
    folder = tmp_path / "streams"
    folder.mkdir()
    checked = stream(graphs, runs, folder, cc, "-O1", DEBUG, objects=objects)
    plain = stream(graphs, runs, folder, cc, "-O1", objects=objects)
    for a, b in zip(checked, plain, strict=True):
        for one, other in zip(a, b, strict=True):
            for x, y in zip(one, other, strict=True):
                assert [v.tobytes() for v in x] == [v.tobytes() for v in y]
    same_in_c([random_network(3)], "-O1", DEBUG)
