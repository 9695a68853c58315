"""Keras models where tensorflow is: converted in a child process, or refused with its words."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile

import numpy as np
import pytest

import samebits as sb
from samebits.errors import InputError
from samebits.ir.interpreter import run
from samebits.tflite.peers.keras import is_convertible
from samebits.tflite.peers.process import PYTHON
from tflite_files import image_net

STAND_IN = """#!/bin/sh
case "$2" in -c) exit {missing};; esac
{then}
"""


@pytest.fixture
def stand_in(tmp_path, monkeypatch):
    """A Python whose converter writes the file of a network, or says something and fails."""

    def make(then: str, missing: bool = False) -> None:
        command = tmp_path / f"python{missing}{len(then)}"
        command.write_text(STAND_IN.format(missing=int(missing), then=then))
        command.chmod(0o755)
        monkeypatch.setenv(PYTHON, str(command))

    return make


@pytest.fixture
def model(tmp_path):
    path = tmp_path / "model.KERAS"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("config.json", "layers")
    return path


def test_a_model_is_converted(model, stand_in, tmp_path):
    net, y = image_net(2, "float32")
    (tmp_path / "made.tflite").write_bytes(net.bytes(y))
    stand_in(f'cp {tmp_path}/made.tflite "$4" && cmp {model} "$3"')
    loaded = sb.load(model)
    assert loaded.kind == "float network"
    assert loaded.model.real.nodes == sb.load(tmp_path / "made.tflite").model.real.nodes
    assert str(model) in str(sb.inspect(model))
    with pytest.raises(InputError, match="found a float one; leave it out"):
        sb.load(model, meaning="exact")


def test_what_is_not_converted_is_told_in_the_converters_words(model, stand_in):
    stand_in("echo 'no  lambdas here' >&2; exit 3")
    with pytest.raises(InputError) as caught:
        sb.load(model)
    assert str(caught.value) == (
        f"{model}: expected a model that TensorFlow converts, found exit code 3: no lambdas here; "
        "convert it to a .tflite file yourself"
    )
    stand_in("echo damaged > $4")
    with pytest.raises(InputError, match=r"model\.KERAS: expected a TensorFlow Lite file"):
        sb.load(model)


@pytest.mark.parametrize("content", [b"", b"\x89HDF\r\n\x1a\n" + bytes(64), b"\x80\x04pickle"])
def test_another_file_does_not_reach_the_converter(content, model, stand_in, tmp_path):
    """Keras takes files by their content, HDF5 among them, in which layers hold code."""
    model.write_bytes(content)
    stand_in(f"touch {tmp_path}/reached")
    with pytest.raises(InputError, match=r"KERAS: expected a zip archive, as Keras 3 saves models"):
        sb.load(model)
    assert not (tmp_path / "reached").exists()


def test_a_converter_that_does_not_end(model, stand_in, monkeypatch):
    monkeypatch.setattr("samebits.tflite.peers.keras.WORK", 0.2)
    stand_in("exec sleep 60")
    with pytest.raises(InputError) as caught:
        sb.load(model)
    assert str(caught.value) == (
        f"{model}: expected TensorFlow to convert the model within 0.2 seconds, found it still at "
        "work; convert it to a .tflite file yourself"
    )


@pytest.mark.parametrize("python", ["", "/nowhere/python", "stand-in"])
def test_without_tensorflow_the_way_is_told(python, model, stand_in, monkeypatch):
    monkeypatch.setattr("samebits.tflite.peers.keras.find_spec", lambda name: None)
    monkeypatch.setenv(PYTHON, python)
    if python == "stand-in":
        stand_in("exit 0", missing=True)
    with pytest.raises(InputError, match="pip install tensorflow, by which samebits converts it"):
        sb.load(model)


MAKE = """
import json, sys
import numpy as np, tensorflow as tf
L = tf.keras.layers
tf.keras.utils.set_random_seed(1)
x = tf.keras.Input((6, 4))
y = L.Bidirectional(L.GRU(3, return_sequences=True))(x)
y = L.LSTM(3, return_sequences=True)(y)
y = L.Dense(2)(L.Conv1D(5, 3, activation="relu")(y))
model = tf.keras.Model(x, y)
model.save(sys.argv[1])
samples = np.random.default_rng(1).normal(0, 1, (5, 6, 4)).astype(np.float32)
np.savez(sys.argv[2], x=samples, y=model.predict(samples, verbose=0))
tf.keras.Sequential([L.Input((3,)), L.Lambda(lambda x: 2 * x)]).save(sys.argv[3])
"""


@pytest.mark.slow
def test_keras_itself(tmp_path):
    if not is_convertible():
        pytest.skip(f"tensorflow is not installed, and ${PYTHON} names no Python that has it")
    python = os.environ.get(PYTHON, "") or sys.executable
    path, other = tmp_path / "model.keras", tmp_path / "lambda.keras"
    files = [str(path), str(tmp_path / "theirs.npz"), str(other)]
    subprocess.run([python, "-c", MAKE, *files], check=True, capture_output=True)
    theirs = np.load(files[1])
    real = sb.load(path).model.real
    ours = np.concatenate([run(real, [x[None]])[0] for x in theirs["x"]])
    np.testing.assert_allclose(ours, theirs["y"], atol=1e-5)  # float32, summed in another order
    assert np.ptp(ours) > 0.1
    with pytest.raises(InputError, match="safe_mode"):
        sb.load(other)
