"""Step graphs streamed through generated C: many in one program, in chunks of several sizes."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from c_files import write_files
from samebits.codegen.packaging.package import texts
from samebits.ir import Graph
from samebits.ir.interpreter import initial_state, run
from shared_kernels import compile_c, shared_kernels

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Run:
    """A sequence from given states on (None: from those after a reset).

    inputs: [T, ...] for each input that is no state. states: codes of each state.
    """

    inputs: Sequence[Array]
    states: Sequence[Array] | None = None

    @property
    def steps(self) -> int:
        return len(self.inputs[0])


def steps_of(graph: Graph, run_: Run) -> tuple[list[Array], list[Array]]:
    """(what every step takes, what every step gives), by the interpreter: [T, ...] of each input
    and of each output of the graph, states among them."""
    states = run_.states
    if states is None:
        states = [initial_state(graph, state) for state in graph.states]
    taken, given = [], []
    for arrays in zip(*run_.inputs, strict=True):
        taken.append([*arrays, *states])
        given.append(run(graph, taken[-1]))
        states = given[-1][len(graph.own_outputs) :]
    return (
        [np.stack(column) for column in zip(*taken, strict=True)],
        [np.stack(column) for column in zip(*given, strict=True)],
    )


def stream(
    graphs: Sequence[Graph],
    runs: Sequence[Sequence[Run]],
    folder: Path,
    compiler: str,
    *flags: str,
    chunks: Sequence[int] = (1, 7, 0),
    objects: Path | None = None,
) -> list[list[list[list[Array]]]]:
    """For every graph, run and chunk size (0: all steps): the outputs of all steps as [T, ...], and
    the last state of each. Between chunks the state is exported as bytes, wiped and imported.
    objects: where the kernels of all programs are; None: those of this one are in `folder`."""
    sources, bodies, stdin = [], [], []
    for number, (graph, cases) in enumerate(zip(graphs, runs, strict=True)):
        prefix = f"g{number}"
        files, _ = texts(graph, prefix=prefix)
        write_files(folder, {n: text for n, text in files.items() if n.startswith(prefix)})
        sources.append(f'#include "{prefix}.c"\n#include "{prefix}_constants.c"')
        bodies += [_body(graph, prefix, case, chunks) for case in cases]
        for case in cases:
            arrays = [*case.inputs, *(case.states or ())]
            stdin += [a.astype(a.dtype.newbyteorder("<")).tobytes() for a in arrays]
    (folder / "all.c").write_text(_program(sources, bodies))
    kernels = shared_kernels(compiler, folder, objects or folder, "portable", *flags)
    compile_c(compiler, folder, ["all.c", kernels], "all", "-I.", *flags)
    done = subprocess.run(
        [str(folder / "all")], input=b"".join(stdin), capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr.decode()[:4000]
    found, rest = [], done.stdout
    for graph, cases in zip(graphs, runs, strict=True):
        found.append([])
        for case in cases:
            found[-1].append([])
            for _ in chunks:
                arrays, rest = _read(graph, case.steps, rest)
                found[-1][-1].append(arrays)
    assert not rest
    return found


def _read(graph: Graph, steps: int, data: bytes) -> tuple[list[Array], bytes]:
    arrays = []
    for index, name in enumerate(graph.outputs):
        value = graph.values[name]
        own = index < len(graph.own_outputs)
        shape = (steps, *value.shape) if own else value.shape
        kind = np.dtype(value.dtype).newbyteorder("<")
        size = int(np.prod(shape)) * kind.itemsize
        arrays.append(np.frombuffer(data[:size], kind).astype(value.dtype).reshape(shape))
        data = data[size:]
    return arrays, data


def _body(graph: Graph, prefix: str, case: Run, chunks: Sequence[int]) -> str:
    own_inputs, own_outputs = len(graph.own_inputs), len(graph.own_outputs)
    upper, steps = prefix.upper(), case.steps
    lines = []
    for kind, count in (("input", own_inputs), ("output", own_outputs)):
        for i in range(count):
            size = f"{steps} * {upper}_{kind.upper()}{i}_SIZE"
            lines.append(f"    static {prefix}_{kind}{i}_t {kind}{i}[{size}];")
    lines += [
        f"    {upper}_INSTANCE(net);",
        f"    static {prefix}_state_t start, state;",
        "    static uint8_t exported[sizeof state];",
        "    int32_t t, n;",
        f"    {prefix}_reset(&start);",
    ]
    for i, name in enumerate(graph.own_inputs):
        lines.append(f"    get(input{i}, {_width(graph, name)}, sizeof input{i});")
    for i, state in enumerate(graph.states if case.states is not None else ()):
        lines.append(
            f"    get(start.state{i}, {_width(graph, state.input)}, sizeof start.state{i});"
        )
    arguments = ["&net", "&state", "n"]
    for kind, count in (("input", own_inputs), ("output", own_outputs)):
        for i in range(count):
            arguments.append(f"{kind}{i} + t * {upper}_{kind.upper()}{i}_SIZE")
    for chunk in chunks:
        size = chunk or steps
        lines += [
            "    state = start;",
            f"    for (t = 0; t < {steps}; t += n) {{",
            f"        n = {steps} - t < {size} ? {steps} - t : {size};",
            f"        {prefix}_steps({', '.join(arguments)});",
            "        memcpy(exported, &state, sizeof state);",
            "        memset(&state, 0xa5, sizeof state);",
            "        memcpy(&state, exported, sizeof state);",
            "    }",
        ]
        for i, name in enumerate(graph.own_outputs):
            lines.append(f"    put(output{i}, {_width(graph, name)}, sizeof output{i});")
        for i, state in enumerate(graph.states):
            lines.append(
                f"    put(state.state{i}, {_width(graph, state.input)}, sizeof state.state{i});"
            )
    return "\n".join(lines) + "\n"


def _width(graph: Graph, name: str) -> int:
    return np.dtype(graph.values[name].dtype).itemsize


def _program(sources: Sequence[str], bodies: Sequence[str]) -> str:
    # One translation unit: starting the compiler for every file takes longer than compiling.
    functions = "".join(f"static void run{i}(void) {{\n{body}}}\n" for i, body in enumerate(bodies))
    calls = "".join(f"    run{i}();\n" for i in range(len(bodies)))
    return f"""#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "samebits/samebits_io.h"
{chr(10).join(sources)}
static uint8_t bytes[1 << 22];
static void get(void *codes, uint32_t width, size_t size) {{
    if (size > sizeof bytes || fread(bytes, 1, size, stdin) != size) exit(3);
    samebits_decode(bytes, width, (uint32_t)size / width, codes);
}}
static void put(const void *codes, uint32_t width, size_t size) {{
    if (size > sizeof bytes) exit(4);
    samebits_encode(codes, width, (uint32_t)size / width, bytes);
    if (fwrite(bytes, 1, size, stdout) != size) exit(5);
}}
{functions}
int main(void) {{
{calls}    return 0;
}}
"""
