"""load_model: what is a model, and what to do about what is none."""

from __future__ import annotations

import re

import numpy as np
import pytest

from samebits.codegen import write_package
from samebits.errors import CheckpointError, InputError, UnsupportedError
from samebits.ir import GraphBuilder
from samebits.ir.interpreter import run
from samebits.ir.printer import text
from samebits.model import Model, is_quantized, load_graph, load_model, model_of
from samebits.onnx import load, save_qdq
from samebits.train.run.checkpoint import list_checkpoints
from samebits.verification.inputs import random_codes
from tiny_models import float_file, quantized_file, quantized_graph, trained_folder


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    return trained_folder(tmp_path_factory)


def refused(path, message, error=InputError, arch=None):
    with pytest.raises(error) as caught:
        load_model(path, arch)
    assert str(caught.value) == f"{path}: {message}"


def same(a: Model, b: Model) -> None:
    inputs = random_codes(a.integer, 1)
    for left, right in zip(run(a.integer, inputs), run(b.integer, inputs), strict=True):
        assert left.tolist() == right.tolist()
    assert a.integer.inputs == b.integer.inputs
    assert a.integer.outputs == b.integer.outputs


def test_a_graph():
    model = model_of(quantized_graph(), "here")
    assert (model.source, model.deployed) == ("here", None)
    assert model.integer.integer
    assert not model.real.integer
    assert [node.op for node in model.integer.nodes] == [
        "linear", "requantize", "table", "linear", "requantize",
    ]  # fmt: skip


def test_what_makes_a_graph_quantized():
    builder = GraphBuilder("g")
    x = builder.input("x", "float32", (4,))
    plain = builder.build([builder.add("Relu", [x])])
    assert not is_quantized(plain)
    codes, *_ = builder.add_all("DynamicQuantizeLinear", [x])
    assert is_quantized(builder.build([codes]))


def test_an_onnx_file(tmp_path):
    path = quantized_file(tmp_path / "m.onnx")
    model = load_model(path)
    assert model.source == str(path)
    same(model, model_of(quantized_graph(), "here"))


def test_a_compiled_folder(tmp_path):
    model = model_of(quantized_graph(), "here")
    folder = tmp_path / "package"
    write_package(model.integer, folder)
    save_qdq(model.real, folder / "model.onnx")
    found = load_model(folder)
    assert found.source == str(folder)
    same(found, model)
    assert text(load_graph(folder)) == text(load(folder / "model.onnx"))


def test_a_training_folder_and_its_checkpoint(trained):
    model = load_model(trained)
    assert model.deployed is not None
    assert model.source == str(trained)
    checkpoint = list_checkpoints(trained)[-1]
    same(load_model(checkpoint), model)
    assert model.integer.values["input"].shape == (1, 1, 8, 8)


def test_float_models_are_refused_with_advice(tmp_path):
    path = float_file(tmp_path / "f.onnx")
    refused(
        path,
        "expected a quantized model (QuantizeLinear and DequantizeLinear nodes), found a float "
        "one; quantize it first: samebits quantize MODEL.onnx --calibration X.npz --out Q.onnx",
    )
    assert not is_quantized(load_graph(path))
    assert is_quantized(quantized_graph())


def test_float_training_is_refused_with_advice(tmp_path_factory):
    folder = trained_folder(tmp_path_factory, "float32")
    with pytest.raises(UnsupportedError, match="trained with --numerics bfp, found float32"):
        load_model(folder)


def test_missing(tmp_path):
    refused(
        tmp_path / "none",
        "no such file or folder; expected an .onnx file, a training output folder, a checkpoint, "
        "or a compiled folder (with model.onnx)",
    )
    refused(
        tmp_path / "none.onnx",
        "expected an ONNX file, found no such file; give the path of an .onnx file",
    )
    refused(
        tmp_path / "none.safetensors",
        "no such file or folder; expected a training output folder or a checkpoint",
    )


@pytest.mark.parametrize("name", ["model.txt", "model", "model.onnx.txt", "model.pt"])
def test_wrong_suffix(tmp_path, name):
    path = tmp_path / name
    path.write_bytes(b"hello")
    suffix = path.suffix or "nothing"
    refused(
        path,
        "expected an .onnx file, a training output folder, a checkpoint or a compiled folder, "
        f"found a file ending in {suffix}",
    )


def test_empty_and_damaged(tmp_path, trained):
    refused(
        tmp_path,
        "expected a training output folder, found no checkpoint-*.safetensors in it; train first, "
        "or give a checkpoint file",
    )
    path = tmp_path / "m.onnx"
    for data in (b"", b"hello", quantized_file(tmp_path / "q.onnx").read_bytes()[:100]):
        path.write_bytes(data)
        with pytest.raises(InputError, match=f"^{re.escape(str(path))}: .*ONNX file"):
            load_model(path)
    path = tmp_path / "checkpoint-1.safetensors"
    path.write_bytes(list_checkpoints(trained)[-1].read_bytes()[:-7])
    with pytest.raises(CheckpointError, match=f"^{re.escape(str(path))}: "):
        load_model(path)
    folder = tmp_path / "folder.onnx"
    folder.mkdir()
    message = "expected an ONNX file, found no such file; give the path of an .onnx file"
    with pytest.raises(InputError, match=f"^{re.escape(str(folder))}.*: {message}$"):
        load_model(folder)


def test_another_architecture(trained):
    with pytest.raises(CheckpointError, match="expected the architecture 'cnn', found 'mlp'"):
        load_model(trained, "cnn")


def test_what_cannot_be_lowered_is_named():
    builder = GraphBuilder("g")
    x = builder.input("x", "float32", (1, 3))
    s, z = builder.constant("s", np.float32(0.5)), builder.constant("z", np.int8(0))
    y = builder.add("Tanh", [x])
    y = builder.add("QuantizeLinear", [y, s, z])
    y = builder.add("DequantizeLinear", [y, s, z])
    with pytest.raises(UnsupportedError, match="found Tanh; quantize the model first"):
        model_of(builder.build([y]), "g")


def test_a_model_without_inputs():
    """All of it is constant; whatever the answer, it is none about rewrites."""
    builder = GraphBuilder("g")
    s, z = builder.constant("s", np.float32(0.5)), builder.constant("z", np.int8(0))
    y = builder.add("DequantizeLinear", [builder.constant("k", np.ones((1, 3), np.int8)), s, z])
    y = builder.add("QuantizeLinear", [y, s, z])
    try:
        model_of(builder.build([y]), "g")
    except UnsupportedError as error:
        if "simplify" in str(error):
            pytest.fail(f"advice for programmers: {error}")
