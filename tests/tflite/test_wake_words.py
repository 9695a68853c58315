"""The streaming wake words of the package pymicro-wakeword, from file to a Zephyr folder."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

import samebits as sb
from samebits.ir.interpreter import run_steps
from samebits.tflite import parse
from samebits.tflite.peers.process import computed, missing

NAMES = ("alexa", "hey_jarvis", "hey_mycroft", "okay_nabu")


@pytest.fixture(params=NAMES)
def path(request) -> Path:
    """A model, whose package holds no other file that is read."""
    found = find_spec("pymicro_wakeword")
    if found is None or found.origin is None:
        pytest.skip("expected the package pymicro-wakeword; pip install --no-deps pymicro-wakeword")
    return Path(found.origin).parent / "models" / f"{request.param}.tflite"


@pytest.mark.slow
def test_a_thousand_steps_are_those_of_the_runtime(path):
    if reason := missing("tflm"):
        pytest.skip(reason)
    data = path.read_bytes()
    graph = sb.load(path, meaning="tflite").model.integer
    shape = graph.values[graph.inputs[0]].shape
    steps = np.random.default_rng(1).integers(-128, 128, (1000, *shape)).astype(np.int8)
    file = parse(data, "f").subgraphs[0]
    own = {output for node in graph.nodes for output in node.outputs}
    kept = [o for op in file.operators for o in op.outputs if file.tensors[o].name in own]
    theirs = computed("tflm", data, [steps], kept)
    found = run_steps(graph, [steps])
    by_name = {file.tensors[number].name: array for number, array in theirs.items()}
    for name, ours in zip(graph.outputs, found, strict=True):
        np.testing.assert_array_equal(ours, by_name[name].reshape(ours.shape))
    assert len(graph.states) == 6


@pytest.mark.slow
def test_from_file_to_a_zephyr_folder(path, tmp_path):
    backends = ["torch", "c", *([] if missing("tflm") else ["tflm"])]
    net = sb.load(path, meaning="tflite")
    shipped = sb.ship(net, None, tmp_path / "out", sb.Packaging("zephyr"), backends=backends)
    assert shipped
    assert (tmp_path / "out" / "zephyr" / "module.yml").is_file()
