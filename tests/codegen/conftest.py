"""Compiles packages and runs them: many small graphs in one program, or one package's harness."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from c_files import write_files
from compare import assert_same
from samebits.codegen.packaging.package import texts
from samebits.csrc import compiler
from samebits.ir.graph import Graph
from samebits.ir.integer.layers import fnv1a, layers
from samebits.ir.interpreter import trace
from shared_kernels import compile_c, shared_kernels

Array = np.ndarray[Any, Any]
HASHED = 300  # codes; hashing more in Python takes longer than all else


@pytest.fixture(scope="session")
def cc() -> str:
    found = shutil.which(compiler()[0])
    if found is None:
        pytest.skip("needs a C compiler")
    return found


def random_inputs(graph: Graph, rng: np.random.Generator, samples: int) -> list[list[Array]]:
    """Samples over the whole types, the first two all least and all greatest codes."""
    result = []
    for index in range(samples):
        sample = []
        for name in graph.inputs:
            value = graph.values[name]
            info = np.iinfo(value.dtype)
            codes = rng.integers(info.min, info.max, value.shape, value.dtype, endpoint=True)
            if index < 2:
                codes = np.full(value.shape, (info.min, info.max)[index], value.dtype)
            sample.append(codes)
        result.append(sample)
    return result


@pytest.fixture
def same_in_c(cc: str, tmp_path: Path, objects: Path) -> Callable[..., None]:
    """same_in_c(graphs): every layer of every graph is in C what the interpreter says."""

    def check(
        graphs: Sequence[Graph],
        *flags: str,
        samples: int = 4,
        compiler: str = cc,
        cpu: str = "portable",
        runner: Sequence[str] = (),
        inputs: Sequence[Sequence[Sequence[Array]]] | None = None,
        weights_file: bool = False,
    ) -> None:
        flags = flags or ("-O1",)
        rng = np.random.default_rng(7)
        kernels = shared_kernels(compiler, tmp_path, objects, cpu, *flags)
        bodies, expected, stdin = [], [], []
        for number, graph in enumerate(graphs):
            prefix = f"g{number}"
            files, _ = texts(graph, prefix=prefix, vectors=None, cpu=cpu, weights_file=weights_file)
            own = (prefix, "samebits/samebits_image.h")
            write_files(tmp_path, {n: t for n, t in files.items() if n.startswith(own)})
            cases = inputs[number] if inputs else random_inputs(graph, rng, samples)
            bodies.append(_runs(graph, prefix, len(cases)))
            for sample in cases:
                values = trace(graph, sample)
                for index, name in enumerate(layers(graph)):
                    array = np.asarray(values[name], graph.values[name].dtype)
                    expected.append((number, name, index, array))
                for name in graph.outputs:
                    dtype = graph.values[name].dtype
                    array = graph.constants.get(name)
                    array = np.asarray(values[name] if array is None else array, dtype)
                    expected.append((number, name, "output", array))
                stdin += [a.astype(a.dtype.newbyteorder("<")).tobytes() for a in sample]
        (tmp_path / "all.c").write_text(_program(bodies, len(graphs), weights_file))
        compile_c(
            compiler,
            tmp_path,
            ["all.c", kernels],
            "all",
            "-I.",
            "-DSAMEBITS_TRACE",
            *flags,
        )
        done = subprocess.run(
            [*runner, str(tmp_path / "all")],
            input=b"".join(stdin),
            capture_output=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr.decode()[:4000]
        lines = done.stdout.decode().split("\n")[:-1]
        assert len(lines) == len(expected)
        for line, (number, name, index, array) in zip(lines, expected, strict=True):
            where, digest, data = line.split(" ")
            assert where == str(index), (graphs[number], name)
            codes = np.frombuffer(bytes.fromhex(data), array.dtype.newbyteorder("<"))
            if codes.tobytes() != array.astype(codes.dtype).tobytes():
                print(graphs[number], name, *graphs[number].nodes, sep="\n")
                assert_same(codes, array.reshape(-1), list(np.ndindex(array.shape)))
            if array.size < HASHED:
                assert int(digest, 16) == fnv1a(array)

    return check


def _runs(graph: Graph, prefix: str, samples: int) -> str:
    upper = prefix.upper()
    lines = []
    for kind, names in (("input", graph.inputs), ("output", graph.outputs)):
        for i in range(len(names)):
            lines.append(
                f"    static {prefix}_{kind}{i}_t {kind}{i}[{upper}_{kind.upper()}{i}_SIZE];"
            )
    lines.append(f"    {upper}_INSTANCE(net);\n    int k;")
    lines.append(f"    for (k = 0; k < {samples}; k++) {{")
    for i, name in enumerate(graph.inputs):
        width = np.dtype(graph.values[name].dtype).itemsize
        lines.append(f"        get(input{i}, {width}, {upper}_INPUT{i}_SIZE);")
    arguments = ["&net", *(f"input{i}" for i in range(len(graph.inputs)))]
    arguments += [f"output{i}" for i in range(len(graph.outputs))]
    lines.append(f"        {prefix}_run({', '.join(arguments)});")
    for i, name in enumerate(graph.outputs):
        width = np.dtype(graph.values[name].dtype).itemsize
        lines.append(f'        show("output", output{i}, {width}, {upper}_OUTPUT{i}_SIZE);')
    lines.append("    }")
    return f"static void run_{prefix}(void) {{\n" + "\n".join(lines) + "\n}\n"


def _program(bodies: Sequence[str], count: int, weights_file: bool) -> str:
    constants = "image" if weights_file else "constants"
    # One translation unit: starting the compiler for every file takes longer than compiling.
    includes = "".join(
        f'#define g{i}_trace trace\n#include "g{i}.c"\n#include "g{i}_{constants}.c"\n'
        for i in range(count)
    )
    calls = "".join(f"    run_g{i}();\n" for i in range(count))
    return f"""#include <stdio.h>
#include <stdlib.h>
#include "samebits/samebits_io.h"
static void trace(uint32_t layer, const void *codes, uint32_t count, uint32_t width);
{includes}
static void get(void *codes, uint32_t width, uint32_t count) {{
    static uint8_t bytes[1 << 22];
    if (fread(bytes, width, count, stdin) != count) exit(3);
    samebits_decode(bytes, width, count, codes);
}}
static void show(const char *name, const void *codes, uint32_t width, uint32_t count) {{
    const uint64_t hash = samebits_fnv1a(codes, width, count);
    static const char digits[] = "0123456789abcdef";
    uint32_t i, b;
    printf("%s %08lx%08lx ", name, (unsigned long)(hash >> 32),
           (unsigned long)(hash & 0xffffffffu));
    for (i = 0; i < count; i++) {{
        for (b = 0; b < width; b++) {{
            const uint8_t byte = samebits_io_byte(codes, width, i, b);
            putchar(digits[byte >> 4]);
            putchar(digits[byte & 15]);
        }}
    }}
    putchar('\\n');
}}
static void trace(uint32_t layer, const void *codes, uint32_t count, uint32_t width) {{
    char name[16];
    sprintf(name, "%lu", (unsigned long)layer);
    show(name, codes, width, count);
}}
{"".join(bodies)}
int main(void) {{
{calls}    return 0;
}}
"""
