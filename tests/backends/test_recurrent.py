"""Random recurrent networks, step by step: the same bits from torch, streaming C and boards.

A sequence of all-least, all-greatest and zero inputs, then random ones, starts from a reset; two of
random inputs start from states drawn at random, one of them from the ends of their ranges.
"""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from backends.test_backends import side_by_side
from compare import assert_same
from integer_graphs import limits, random_codes
from recurrent_nets import quantized_network
from samebits import csrc
from samebits.ir import Graph
from samebits.model import Model
from samebits.verification.backends.pytorch import PyTorch
from samebits.verification.registry import backend_named
from stream_program import Run, steps_of, stream

Array = np.ndarray[Any, Any]
STEPS = 16
PROGRAM = 50  # networks in one program
FEW = 8  # in one of the quick programs
QUICK, SLOW = range(2 * FEW), range(1000, 2000)
FLASH = 200_000  # bytes of constants of the networks that the boards run


def runs_of(graph: Graph, seed: int) -> list[Run]:
    rng = np.random.default_rng(seed)
    runs = []
    for start in (None, False, True):
        inputs = []
        for name in graph.own_inputs:
            value = graph.values[name]
            codes = random_codes(rng, value.dtype, (STEPS, *value.shape))
            if start is None:
                low, high = limits(value.dtype)
                zero = value.quantization.zero_point if value.quantization else 0
                for at, code in enumerate((low, low, high, high, zero, zero, zero)):
                    codes[at] = code
            inputs.append(codes)
        states = []
        for state in graph.states:
            value = graph.values[state.input]
            codes = random_codes(rng, value.dtype, value.shape)
            if start is True:
                codes[:] = limits(value.dtype)[int(rng.integers(2))]
            states.append(codes)
        runs.append(Run(inputs, None if start is None else states))
    return runs


def same(graph: Graph, found: Sequence[Array], expected: Sequence[Array], where: object) -> None:
    for name, f, e in zip(graph.outputs, found, expected, strict=True):
        assert f.dtype == e.dtype, (where, name)
        f = f.reshape(e.shape)
        if not np.array_equal(f, e):
            assert_same(f, e, [(where, name, *index) for index in np.ndindex(e.shape)])


def rows(array: Array) -> Array:
    """[T, B, ...] as samples along axis 0."""
    return array.reshape(-1, *array.shape[2:])


def check(
    seeds: Sequence[int], folder: Path, objects: Path, compiler: str | None, *flags: str
) -> int:
    """Networks of these seeds on torch and in streaming C; the number of steps compared."""
    graphs = [quantized_network(seed)[0] for seed in seeds]
    runs = [runs_of(graph, seed) for seed, graph in zip(seeds, graphs, strict=True)]
    expected = [
        [steps_of(graph, run) for run in case] for graph, case in zip(graphs, runs, strict=True)
    ]
    steps = 0
    for seed, graph, case in zip(seeds, graphs, expected, strict=True):
        taken, given = (
            [np.concatenate(c) for c in zip(*part, strict=True)] for part in zip(*case, strict=True)
        )
        found = PyTorch().run(Model("test", graph), [rows(array) for array in taken])
        same(graph, found, given, ("torch", seed))
        steps += len(taken[0])
    if compiler is None:
        return steps
    streamed = stream(graphs, runs, folder, compiler, *flags, objects=objects)
    for seed, graph, case, results in zip(seeds, graphs, expected, streamed, strict=True):
        own = len(graph.own_outputs)
        for number, ((_, given), chunks) in enumerate(zip(case, results, strict=True)):
            wanted = [*given[:own], *(states[-1] for states in given[own:])]
            for chunk, found in zip((1, 7, "T"), chunks, strict=True):
                same(graph, found, wanted, ("c", seed, number, chunk))
    return steps


@pytest.fixture
def compiler() -> str | None:
    return shutil.which(csrc.compiler()[0])


@pytest.mark.parametrize(
    "start", [QUICK.start, pytest.param(QUICK.start + FEW, marks=pytest.mark.slow)]
)
def test_two_programs(start: int, compiler: str | None, tmp_path: Path, objects: Path) -> None:
    seeds = range(start, start + FEW)
    flags = ("-O1",) if start == QUICK.start else ("-O2", "-march=native")
    assert check(seeds, tmp_path, objects, compiler, *flags) == FEW * 3 * STEPS


@pytest.mark.slow
@pytest.mark.parametrize("start", SLOW[::PROGRAM])
def test_a_thousand_networks(
    start: int, compiler: str | None, tmp_path: Path, objects: Path
) -> None:
    seeds = range(start, start + PROGRAM)
    flags = ("-O3", "-march=native") if start // PROGRAM % 2 else ("-O2",)
    assert check(seeds, tmp_path, objects, compiler, *flags) == PROGRAM * 3 * STEPS


@pytest.mark.parametrize(
    "name", ["cortex-m0-large", "cortex-m3", "cortex-m55", "onnxruntime-integer"]
)
def test_other_backends(name: str) -> None:
    several_at_once(name, 8)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["aarch64", "s390x", "riscv64"])
def test_other_processors(name: str) -> None:
    several_at_once(name, 24)


def several_at_once(name: str, count: int) -> None:
    """The first networks that fit, side by side in one program, on every step of their runs."""
    backend = backend_named(name)
    reason = backend.unavailable()
    if reason is not None:
        pytest.skip(reason)
    graphs, taken, given = [], [], []
    room = FLASH
    for seed in itertools.count(QUICK.start):
        graph = quantized_network(seed)[0]
        size = sum(a.nbytes for a in graph.constants.values() if a.size < 1 << 16)
        if size > room:
            continue
        room -= size
        graphs.append(graph)
        steps = [steps_of(graph, run) for run in runs_of(graph, seed)]
        for parts, columns in zip((taken, given), zip(*steps, strict=True), strict=True):
            parts += [np.concatenate(column) for column in zip(*columns, strict=True)]
        if len(graphs) == count:
            break
    whole = side_by_side(graphs)
    found = backend.run(Model("test", whole), [rows(array) for array in taken])
    same(whole, found, given, name)
