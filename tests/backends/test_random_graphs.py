"""Random graphs of every depth and operator: reference, PyTorch and C give the same codes."""

from __future__ import annotations

import numpy as np
import pytest

from backends.test_backends import side_by_side
from compare import assert_same
from random_graphs import awkward_inputs, random_graph
from samebits.codegen.run.targets import host
from samebits.ir.lowering.lower import lower_graph
from samebits.model import Model
from samebits.verification.backends.generated_c import GeneratedC
from samebits.verification.backends.pytorch import PyTorch
from samebits.verification.backends.reference import Reference

EIGHT_BITS = ("int8", "uint8")
PROGRAM = 40  # graphs in one program


def check(first: int, count: int, flags: tuple[str, ...]) -> int:
    """`count` graphs from seed `first` on, two awkward samples each; the number of cases."""
    c = GeneratedC(host("cc", *flags))
    cases = 0
    for start in range(first, first + count, PROGRAM):
        graphs = []
        for seed in range(start, min(start + PROGRAM, first + count)):
            dtypes = EIGHT_BITS if seed % 4 else ("int8", "uint8", "int16", "uint16")
            graphs.append(lower_graph(random_graph(seed, 1 + seed % 30, dtypes)))
        graph = side_by_side(graphs)
        model = Model(f"seeds {start}...", graph)
        inputs = awkward_inputs(graph, start, samples=2)
        expected = Reference().run(model, inputs)
        backends = [PyTorch()] if c.unavailable() else [PyTorch(), c]
        for backend in backends:
            found = backend.run(model, inputs)
            for name, e, f in zip(graph.outputs, expected, found, strict=True):
                assert f.dtype == e.dtype, (backend.name, name)
                assert_same(f, e, [(backend.name, name, *i) for i in np.ndindex(e.shape)])
        cases += 2 * len(graphs)
    return cases


@pytest.mark.slow
@pytest.mark.parametrize("first", [5000, 5040])
def test_a_program_of_random_graphs(first):
    assert check(first, 24, ("-O1",)) == 2 * 24


@pytest.mark.slow
@pytest.mark.parametrize("block", range(10))
def test_thousands_of_cases(block):
    assert check(10000 + 200 * block, 200, ("-O2",)) == 400
