"""Language models step by step on every backend, beyond the length of their rings."""

from __future__ import annotations

import numpy as np
import pytest

from compare import assert_same
from language_nets import CONTEXT, language_model, stepwise, tokens_of
from samebits.ir.figures import graph_sha256
from samebits.ir.lowering.lower import lower_graph
from samebits.ir.rewrite import simplify
from samebits.ir.steps import step_graph
from samebits.model import Model
from samebits.onnx import from_model, to_qdq
from samebits.verification.registry import backend_named
from stream_program import Run, steps_of

STEPS = 2 * CONTEXT + 3


@pytest.mark.parametrize("name", ["torch", "cortex-m3", "onnxruntime-integer"])
def test_backends_take_and_give_the_rings(name: str) -> None:
    backend, graph = backend_named(name), stepwise()
    reason = backend.unavailable()
    if reason is not None:
        pytest.skip(reason)
    taken, given = steps_of(graph, Run([tokens_of(STEPS)]))
    found = backend.run(Model("rings", graph), [a.reshape(-1, *a.shape[2:]) for a in taken])
    for value, f, e in zip(graph.outputs, found, given, strict=True):
        assert_same(f.reshape(e.shape), e, [(value, *index) for index in np.ndindex(e.shape)])


def test_a_file_gives_the_states_back() -> None:
    """TensorScatter, and the number of states, are in the file."""
    step = simplify(step_graph(language_model(4, 32, 1)))
    again = from_model(to_qdq(step, "float"))
    assert again.states == step.states
    assert graph_sha256(lower_graph(again)) == graph_sha256(lower_graph(step))
