"""Language models step by step in C: rings of keys and values that are written in place."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from compare import assert_same
from language_nets import CONTEXT, stepwise, tokens_of
from samebits.codegen.lowering.lower import lower_to_calls
from samebits.codegen.memory import states_in_place
from samebits.codegen.packaging.package import texts
from samebits.codegen.stream import state_bytes
from stream_program import Run, steps_of, stream

STEPS = 3 * CONTEXT + 5


@pytest.mark.parametrize("flags", ["-O1", "-O1 -DSAMEBITS_BLOCKS=0"])
def test_streams_are_the_steps_of_the_interpreter(
    flags: str, cc: str, tmp_path: Path, objects: Path
) -> None:
    """Chunks of 1, of 7 and of all steps, the ring turned three times, states copied out between
    them; the blocks compute products for 16 steps at once."""
    graph = stepwise()
    run = Run([tokens_of(STEPS)])
    ((results,),) = stream([graph], [[run]], tmp_path, cc, *flags.split(), objects=objects)
    logits, *states = steps_of(graph, run)[1]
    expected = [logits, *(codes[-1] for codes in states)]
    for arrays in results:
        for name, e, f in zip(graph.outputs, expected, arrays, strict=True):
            assert_same(f, e, [(name, *index) for index in np.ndindex(e.shape)])


def test_the_rings_are_in_memory_once() -> None:
    """model_step copies the place of the step alone."""
    graph = stepwise()
    stays = states_in_place(lower_to_calls(graph))
    assert [state.input for state in graph.states if state.input not in stays] == ["position"]
    files, report = texts(graph)
    assert report.state == state_bytes(graph) == 8 + 4 * CONTEXT + 2 * 2 * CONTEXT * 64
    step = files["model.c"][files["model.c"].index("\nvoid model_step(") :]  # the definition
    step = step[: step.index("\n}\n")]
    assert "static" not in step
    assert step.count("samebits_copy_bytes(") == 1
    assert ", state->state0, 8u);" in step
