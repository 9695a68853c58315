"""The streaming interface of step graphs: reset, step, steps, and the struct of states."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from c_files import write_files
from compare import assert_same
from samebits.codegen.packaging.package import kernel_symbol, library, texts, write_package
from samebits.codegen.stream import STEPS, state_bytes
from samebits.ir import GraphBuilder
from samebits.ir.interpreter import run_steps
from step_graphs import GRAPHS, runs_of
from stream_program import steps_of, stream


def test_streams_are_the_steps_of_the_interpreter(cc: str, tmp_path: Path, objects: Path) -> None:
    graphs = list(GRAPHS.values())
    runs = [runs_of(graph, index) for index, graph in enumerate(graphs)]
    found = stream(graphs, runs, tmp_path, cc, "-O1", objects=objects)
    for graph, cases, results in zip(graphs, runs, found, strict=True):
        own = len(graph.own_outputs)
        for case, result in zip(cases, results, strict=True):
            expected = steps_of(graph, case)[1]
            expected = [*expected[:own], *(states[-1] for states in expected[own:])]
            for arrays in result:
                for name, e, f in zip(graph.outputs, expected, arrays, strict=True):
                    assert_same(f, e, [(name, *index) for index in np.ndindex(e.shape)])


@pytest.mark.parametrize("name", ["widths", "two outputs", "no output"])
def test_make_test_streams_a_sequence(name: str, cc: str, tmp_path: Path) -> None:
    graph = GRAPHS[name]
    report = write_package(graph, tmp_path / "out")
    assert report.state == state_bytes(graph)

    def make() -> str:
        done = subprocess.run(
            ["make", "test", f"CC={cc}", "OPTIMIZE=-O0 -Werror"],
            cwd=tmp_path / "out", capture_output=True, text=True, check=False,
        )  # fmt: skip
        return done.stdout + done.stderr

    states = sum(graph.values[s.input].size for s in graph.states)
    own = sum(graph.values[n].size for n in graph.own_outputs)
    total = 1 + 4 * (own + states) + 3 * (STEPS * own + states)
    assert f"0 of {total} outputs differ" in make()
    vectors = tmp_path / "out/test/model_vectors.h"
    text = vectors.read_text()
    start = text.index("{\n", text.index("model_sequence_state0"))
    number = text[start:].split()[1].rstrip(",")
    vectors.write_text(text[:start] + text[start:].replace(number, str(int(number) ^ 1), 1))
    assert f"3 of {total} outputs differ" in make()


def test_the_struct_has_no_padding(cc: str, tmp_path: Path) -> None:
    """The wider states first; bytes that remain are a member."""
    lines = ["#include <stddef.h>", "#include <stdint.h>"]
    for index, graph in enumerate(GRAPHS.values()):
        prefix = f"g{index}"
        files, report = texts(graph, prefix=prefix)
        write_files(tmp_path, {f"{prefix}.h": files[f"{prefix}.h"], **library()})
        lines.append(f'#include "{prefix}.h"')
        offset = 0
        order = sorted(
            range(len(graph.states)),
            key=lambda i: -np.dtype(graph.values[graph.states[i].input].dtype).itemsize,
        )
        for i in order:
            lines.append(
                f"typedef char {prefix}_{i}"
                f"[offsetof({prefix}_state_t, state{i}) == {offset} ? 1 : -1];"
            )
            value = graph.values[graph.states[i].input]
            offset += value.size * np.dtype(value.dtype).itemsize
        assert 0 <= report.state - offset < 4
        assert ("unused" in files[f"{prefix}.h"]) == (report.state > offset)
        lines.append(
            f"typedef char {prefix}_all[sizeof({prefix}_state_t) == {report.state} ? 1 : -1];"
        )
    (tmp_path / "all.c").write_text("\n".join(lines) + "\n")
    done = subprocess.run(
        [cc, "-std=c99", "-fsyntax-only", "all.c"], cwd=tmp_path, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr.decode()


def test_a_graph_without_states_has_no_streams() -> None:
    g = GraphBuilder("g")
    x = g.input("x", "int8", (2,))
    files, report = texts(g.build([g.add("clip", [x], {"low": 0, "high": 1})]))
    assert report.state == 0
    for name in ("model.h", "model.c", "test/model_main.c", "test/model_vectors.h"):
        assert "state_t" not in files[name]
        assert "steps" not in files[name]


def test_golden_header(golden: Callable[[str, str], None]) -> None:
    files, _ = texts(GRAPHS["trailing"])
    head = files["model.h"][files["model.h"].index("typedef struct {\n    model_") :]
    golden("tests/golden/codegen/step/model.h", head)
    tail = files["model.c"][files["model.c"].index("void model_reset") :]
    tail = tail.replace(kernel_symbol(), "samebits_kernels_0")
    golden("tests/golden/codegen/step/stream.c", tail)


def test_sequences_of_the_vectors_are_the_interpreters() -> None:
    """The codes that `make test` compares with, against the states that the C begins with."""
    graph = GRAPHS["widths"]
    files, _ = texts(graph)
    text = files["test/model_vectors.h"]

    def numbers(name: str) -> list[int]:
        start = text.index("{\n", text.index(f"model_sequence_{name}["))
        return [int(n) for n in text[start + 1 : text.index("}", start)].split(",")]

    x = np.array(numbers("input0"), np.int8).reshape(STEPS, 1, 3)
    y, *states = run_steps(graph, [x])
    assert numbers("output0") == y.reshape(-1).tolist()
    for index, codes in enumerate(states):
        assert numbers(f"state{index}") == codes[-1].reshape(-1).tolist()
