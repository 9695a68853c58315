"""Packages inside other programs: C++, several models, several threads, other kernels."""

from __future__ import annotations

import shutil
import subprocess
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from c_files import write_files
from samebits.codegen.packaging.package import kernel_symbol, texts
from samebits.ir.graph import Graph, GraphBuilder
from samebits.ir.interpreter import run
from samebits.ir.value import Quantization

STRICT = ["-Wall", "-Wextra", "-Wconversion", "-Wshadow", "-pedantic", "-Werror"]
CODES = {"low": -128, "high": 127, "dtype": "int8"}
COMPILERS = [("gcc", "g++"), ("clang", "clang++")]


def net(seed: int) -> Graph:
    """Two convolutions with an arena between them."""
    rng = np.random.default_rng(seed)
    g = GraphBuilder(f"net {seed}")
    x = y = g.input("x", "int8", (1, 6, 6, 3), Quantization(Fraction(1, 32), -3))
    for _ in range(2):
        w = g.constant("w", rng.integers(-20, 20, (3, 3, 3, g.values[y].shape[-1]), "int8"))
        b = g.constant("b", rng.integers(-99, 99, 3, "int32"))
        acc = g.add("conv", [y, w, b], {"pads": (1, 1, 1, 1)})
        y = g.add("requantize", [acc], {"ratios": (Fraction(5, 512),), **CODES})
    table = g.constant("t", rng.integers(-128, 127, 256, "int8"))
    return g.build([g.add("table", [y, table]), g.add("reduce_sum", [x], {"axes": (1, 2)})])


def folder_of_two(folder: Path) -> None:
    for seed, prefix in enumerate(("first", "second")):
        write_files(folder, texts(net(seed), prefix=prefix)[0])


def tools(pair: tuple[str, str]) -> tuple[str, str]:
    for tool in pair:
        if shutil.which(tool) is None:
            pytest.skip(f"needs {tool}")
    return pair


def command(folder: Path, *words: str) -> str:
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, (done.stdout + done.stderr)[:4000]
    return done.stdout


def objects(folder: Path, cc: str, *flags: str, level: str = "-O0") -> list[str]:
    """The models and the kernels, once, as object files."""
    sources = [f"{p}{part}.c" for p in ("first", "second") for part in ("", "_constants")]
    made = []
    for source in (*sources, "samebits/samebits_kernels.c"):
        made.append(f"{Path(source).stem}.o")
        command(folder, cc, "-std=c99", *STRICT, level, *flags, "-c", source, "-o", made[-1])
    return made


MAIN = r"""
#include <cstdio>
#include "first.h"
#include "second.h"
FIRST_INSTANCE(one);
static int64_t memory[SECOND_ARENA_BYTES / 8 + 1];
static first_input0_t x[FIRST_INPUT0_SIZE];
static first_output0_t y[FIRST_OUTPUT0_SIZE];
static first_output1_t z[FIRST_OUTPUT1_SIZE];
int main() {
    second_t two;
    second_init(&two, memory);
    if (first_selftest(&one, x, y, z)) return 1;
    if (second_selftest(&two, x, y, z)) return 2;
    if (first_input0_code(0.25f) != 5) return 3;
    for (int i = 0; i < FIRST_INPUT0_SIZE; i++) x[i] = (first_input0_t)(i - 50);
    first_run(&one, x, y, z);
    for (int i = 0; i < FIRST_OUTPUT0_SIZE; i++) std::printf("%d ", y[i]);
    std::printf("%s %d\n", FIRST_INPUT0_NAME, FIRST_INPUT0_RANK);
    return 0;
}
"""


@pytest.mark.parametrize("pair", COMPILERS, ids=lambda pair: pair[0])
def test_two_models_and_a_main_in_cpp(pair: tuple[str, str], tmp_path: Path) -> None:
    """One copy of the kernels, headers as C++11, no warning."""
    cc, cpp = tools(pair)
    folder_of_two(tmp_path)
    made = objects(tmp_path, cc)
    (tmp_path / "main.cpp").write_text(MAIN)
    command(tmp_path, cpp, "-std=c++11", *STRICT, "main.cpp", *made, "-o", "main")
    x = (np.arange(108) - 50).astype(np.int8).reshape(1, 6, 6, 3)
    y = run(net(0), [x])[0].reshape(-1).tolist()
    assert command(tmp_path, "./main").split() == [*map(str, y), "x", "4"]


def test_other_kernels_do_not_link(tmp_path: Path) -> None:
    """The missing symbol names the version."""
    cc, cpp = tools(COMPILERS[0])
    folder_of_two(tmp_path)
    kernels = tmp_path / "samebits/samebits_kernels.c"
    kernels.write_text(kernels.read_text().replace(kernel_symbol(), "samebits_kernels_0"))
    made = objects(tmp_path, cc)
    (tmp_path / "main.cpp").write_text(MAIN)
    words = [cpp, "-std=c++11", "main.cpp", *made, "-o", "main", "-Wl,--gc-sections"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert kernel_symbol() in done.stderr


THREADS = r"""
#include <pthread.h>
#include <stdio.h>
#include "first.h"
#define RUNS 10000
FIRST_INSTANCE(one);
FIRST_INSTANCE(two);
static first_output0_t expected[FIRST_OUTPUT0_SIZE];
typedef struct {
    const first_t *net;
    unsigned long differ;
} work;
static void *runs(void *given) {
    work *w = (work *)given;
    first_input0_t x[FIRST_INPUT0_SIZE];
    first_output0_t y[FIRST_OUTPUT0_SIZE];
    first_output1_t z[FIRST_OUTPUT1_SIZE];
    int run, i;
    for (run = 0; run < RUNS; run++) {
        for (i = 0; i < FIRST_INPUT0_SIZE; i++) x[i] = (first_input0_t)(i - 50);
        first_run(w->net, x, y, z);
        for (i = 0; i < FIRST_OUTPUT0_SIZE; i++) w->differ += y[i] != expected[i];
    }
    return 0;
}
int main(void) {
    work a = {&one, 0}, b = {&OTHER, 0};
    pthread_t t, u;
    int i, value;
    for (i = 0; i < FIRST_OUTPUT0_SIZE; i++) {
        if (scanf("%d", &value) != 1) return 2;
        expected[i] = (first_output0_t)value;
    }
    if (pthread_create(&t, 0, runs, &a) || pthread_create(&u, 0, runs, &b)) return 2;
    pthread_join(t, 0);
    pthread_join(u, 0);
    printf("%lu\n", a.differ + b.differ);
    return 0;
}
"""


def test_two_threads_with_two_instances(tmp_path: Path) -> None:
    """10,000 runs each, no difference; `net` alone is written to."""
    cc, _ = tools(COMPILERS[0])
    folder_of_two(tmp_path)
    made = objects(tmp_path, cc, level="-O1")
    (tmp_path / "threads.c").write_text(THREADS)
    flags = ["-std=c99", "-O1", "-pthread", "-DOTHER=two"]
    command(tmp_path, cc, *flags, "threads.c", *made[:2], made[-1], "-o", "threads")
    x = (np.arange(108) - 50).astype(np.int8).reshape(1, 6, 6, 3)
    expected = " ".join(map(str, run(net(0), [x])[0].reshape(-1).tolist()))
    done = subprocess.run(
        [tmp_path / "threads"], input=expected, capture_output=True, text=True, check=True
    )
    assert done.stdout == "0\n"
    for part in (*made[:2], made[-1]):  # what threads could share
        sizes = command(tmp_path, "size", "-A", part).splitlines()
        written = [line.split() for line in sizes if line.startswith((".data ", ".bss "))]
        assert all(int(fields[1]) == 0 for fields in written), (part, sizes)


def test_places_of_weights_tables_and_arena(tmp_path: Path) -> None:
    """The macros put what they name into the sections that a user gives."""
    cc, _ = tools(COMPILERS[0])
    folder_of_two(tmp_path)
    wanted = {"WEIGHTS": ".w", "TABLES": ".t", "ARENA": ".a"}
    flags = [
        f'-DFIRST_{what}=__attribute__((section("{section}")))' for what, section in wanted.items()
    ]
    made = objects(tmp_path, cc, *flags)
    (tmp_path / "main.c").write_text('#include "first.h"\nFIRST_INSTANCE(net);\n'
                                     "const first_t *model(void);\n"
                                     "const first_t *model(void) { return &net; }\n")  # fmt: skip
    command(tmp_path, cc, "-std=c99", *STRICT, *flags, "-c", "main.c")
    report = texts(net(0), prefix="first")[1]

    def size(part: str, section: str) -> int:
        lines = command(tmp_path, "size", "-A", part).splitlines()
        return sum(int(line.split()[1]) for line in lines if line.startswith(section + " "))

    assert size(made[1], ".t") == report.tables == 256
    assert report.weights <= size(made[1], ".w") < report.weights + 64 * 8  # with alignment
    assert size(made[1], ".rodata") == 0
    assert report.arena <= size("main.o", ".a") < report.arena + 64
