"""Runtimes in processes of their own: found or named as missing, and what they compute compared."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import samebits as sb
from lite_models import OPERATORS, make
from samebits.errors import InputError
from samebits.ir.interpreter import run_steps
from samebits.tflite import parse
from samebits.tflite.peers.process import PYTHON, computed, missing
from samebits.tflite.same.importer import import_same
from samebits.tflite.same.versions import NEWEST, RUNTIMES
from samebits.verification.registry import backend_named
from tflite_files import image_net, streaming_net

ROOT = Path(__file__).parents[2]
STAND_IN = """
import sys, types
sys.path[:0] = {paths!r}
import numpy as np
from samebits.ir import interpreter
from samebits.tflite import parse
from samebits.tflite.same.importer import import_same
from samebits.tflite.same.versions import NEWEST, RUNTIMES

class Interpreter:
    @classmethod
    def from_bytes(cls, data, arena_size, intrepreter_config):
        made = cls()
        made.file = parse(data, "f").subgraphs[0]
        made.graph = import_same(parse(data, "f"), "f", RUNTIMES[NEWEST])
        made.given = {{}}
        return made

    def set_input(self, array, index):
        self.given[index] = array

    def invoke(self):
        if {ends}:
            raise SystemExit("ended by itself")
        self.found = interpreter.trace(self.graph, [self.given[i] for i in sorted(self.given)])

    def GetTensor(self, number, subgraph):
        codes = self.found[self.file.tensors[number].name].copy()
        if number == {wrong}:
            codes.reshape(-1)[0] ^= 1
        return {{"tensor_data": codes}}

runtime = types.ModuleType("runtime")
runtime.Interpreter = Interpreter
runtime.InterpreterConfig = types.SimpleNamespace(kPreserveAllTensors=1)
package = types.ModuleType("tflite_micro")
package.runtime = runtime
sys.modules["tflite_micro"] = package
import importlib.metadata
importlib.metadata.version = lambda name: "0.0.stand-in"
script, *rest = [a for a in sys.argv[1:] if a != "-I"]
sys.argv = [script, *rest]
exec(compile(open(script).read(), script, "exec"), {{"__name__": "__main__"}})
"""


@pytest.fixture
def stand_in(tmp_path, monkeypatch):
    """A Python that has a runtime which computes as ours, but for the first code of a tensor."""

    def make(wrong: int = -1, ends: bool = False) -> None:
        script, command = tmp_path / "runtime.py", tmp_path / f"python{wrong}{ends}"
        paths = [str(ROOT / "src")]
        script.write_text(STAND_IN.format(wrong=wrong, ends=ends, paths=paths))
        command.write_text(f'#!/bin/sh\nexec {sys.executable} {script} "$@"\n')
        command.chmod(0o755)
        monkeypatch.setenv(PYTHON, str(command))

    return make


@pytest.fixture
def path(tmp_path):
    net, y = image_net(1)
    file = tmp_path / "f.tflite"
    file.write_bytes(net.bytes(y))
    return file


def test_runtimes_that_are_missing(monkeypatch):
    monkeypatch.delenv(PYTHON, raising=False)
    monkeypatch.setattr("samebits.tflite.peers.process.find_spec", lambda name: None)
    for name, package in (("tflm", "tflite-micro"), ("litert-xnnpack", "ai-edge-litert")):
        assert backend_named(name).unavailable() == (
            f"{name}: expected the package {package}; pip install {package}, or name a Python that "
            "has it by $SAMEBITS_TFLITE_PYTHON"
        )
    monkeypatch.setenv(PYTHON, "/nowhere/python")
    assert "expected $SAMEBITS_TFLITE_PYTHON to be a Python, found '/nowhere/python'" in missing(
        "tflm"
    )
    monkeypatch.setenv(PYTHON, sys.executable)
    if subprocess.run(
        [sys.executable, "-c", "import tflite_micro"], capture_output=True
    ).returncode:
        assert f"expected the package tflite-micro in the Python {sys.executable}" in missing(
            "tflm"
        )


def test_a_runtime_is_compared_in_every_tensor(path, stand_in):
    stand_in()
    net = sb.load(path, meaning="tflite")
    found = net.verify("random:3", ["tflm"])
    (verdict,) = found.verdicts
    assert verdict.equal
    assert verdict.total == 15
    assert verdict.between == (0, 3 * 293, 7)
    assert "backend  differing  of  between   of  largest" in str(found)
    assert (
        verdict.note
        == "tflite-micro 0.0.stand-in is installed, not tflite-micro 0.dev20261013214400 to "
        "0.dev20261023182759"
    )


def test_one_code_between_is_found(path, stand_in):
    stand_in(wrong=3)
    found = sb.load(path, meaning="tflite").verify("random:3", ["tflm", "torch"])
    assert not found
    assert found.verdicts[0].between[0] == 3
    assert found.verdicts[0].differing == 0
    assert "0.0.stand-in is installed" in str(found)


def test_what_a_runtime_says_where_it_ends(path, stand_in):
    stand_in(ends=True)
    net = sb.load(path, meaning="tflite")
    with pytest.raises(InputError, match=r"tflm 0\.0\.stand-in refuses the file: exit code 1"):
        net.verify("random:1", ["tflm"])


def test_networks_of_other_files(path, stand_in, tmp_path):
    stand_in()
    net = sb.load(path)
    net.save(tmp_path / "f.onnx")
    with pytest.raises(InputError, match=r"runs \.tflite files, not .*f\.onnx"):
        sb.load(tmp_path / "f.onnx").verify("random:1", ["tflm"])
    assert backend_named("tflm").note(net.model) == (
        "tflite-micro rounds several times; read the file with --meaning tflite"
    )
    assert backend_named("litert").note(net.model) == (
        "ai-edge-litert rounds several times; no meaning is its"
    )


# --- the runtime itself, where it is --------------------------------------------------------------


@pytest.fixture
def tflm():
    if reason := missing("tflm"):
        pytest.skip(reason)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["int8", "int4", "int16"])
@pytest.mark.parametrize("op", OPERATORS)
def test_an_operator_is_that_of_the_runtime(op, kind, tflm):
    """Random models, with the states of an operator carried from input to input."""
    compared = 0
    for seed in range(3):
        made = make(op, kind, np.random.default_rng(seed))
        if made is None:
            continue
        net, outputs = made
        data = net.bytes(*outputs)
        graph = import_same(parse(data, "f"), "f", RUNTIMES[NEWEST])
        given = [steps(graph, name, seed) for name in graph.own_inputs]
        theirs = computed("tflm", data, given, outputs)
        for number, ours in zip(outputs, run_steps(graph, given), strict=False):
            np.testing.assert_array_equal(ours, theirs[number].reshape(ours.shape))
            compared += ours.size
    assert compared or kind != "int8"


def steps(graph, name, seed, count=6):
    value = graph.values[name]
    low, high = np.iinfo(value.dtype).min, np.iinfo(value.dtype).max
    rng = np.random.default_rng(seed)
    found = rng.integers(low, high + 1, (count, *value.shape)).astype(value.dtype)
    found[0], found[1] = low, high
    return found


@pytest.mark.slow
def test_a_thousand_steps_are_those_of_the_runtime(tflm):
    net, y = streaming_net(1)
    data = net.bytes(y)
    graph = import_same(parse(data, "f"), "f", RUNTIMES[NEWEST])
    given = [steps(graph, graph.inputs[0], 1, 1000)]
    ours = run_steps(graph, given)
    np.testing.assert_array_equal(ours[0], computed("tflm", data, given, [y])[y])
