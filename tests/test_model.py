"""load: what is a model, and what to do about what is none."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

import samebits as sb
from samebits.codegen import write_package
from samebits.errors import CheckpointError, InputError, UnsupportedError
from samebits.ir import GraphBuilder
from samebits.ir.interpreter import run
from samebits.ir.printer import text
from samebits.model import Model, is_quantized, kind_of, load
from samebits.onnx import load as load_onnx
from samebits.onnx import save_qdq
from samebits.train.run.checkpoint import list_checkpoints
from samebits.verification.inputs import random_codes
from tiny_models import float_file, quantized_file, quantized_graph, trained_folder

FIRMWARE = Path(__file__).parents[1] / "examples" / "firmware" / "lstm.nnp"


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    return trained_folder(tmp_path_factory)


def refused(path, message, error=InputError, arch=None):
    with pytest.raises(error) as caught:
        load(path, arch).integer  # noqa: B018
    assert str(caught.value) == f"{path}: {message}"


def same(a: Model, b: Model) -> None:
    inputs = random_codes(a.integer, 1)
    for left, right in zip(run(a.integer, inputs), run(b.integer, inputs), strict=True):
        assert left.tolist() == right.tolist()
    assert a.integer.inputs == b.integer.inputs
    assert a.integer.outputs == b.integer.outputs


def test_a_graph():
    model = Model("here", quantized_graph())
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
    model = load(path)
    assert model.source == str(path)
    same(model, Model("here", quantized_graph()))


def test_a_compiled_folder(tmp_path):
    model = Model("here", quantized_graph())
    folder = tmp_path / "package"
    write_package(model.integer, folder)
    save_qdq(model.real, folder / "model.onnx")
    found = load(folder)
    assert found.source == str(folder)
    same(found, model)
    assert text(found.graph) == text(load_onnx(folder / "model.onnx"))


def test_a_training_folder_and_its_checkpoint(trained):
    model = load(trained)
    assert model.deployed is not None
    assert model.source == str(trained)
    checkpoint = list_checkpoints(trained)[-1]
    same(load(checkpoint), model)
    assert model.integer.values["input"].shape == (1, 1, 8, 8)


def test_float_models_are_refused_with_advice(tmp_path):
    path = float_file(tmp_path / "f.onnx")
    refused(
        path,
        "expected a quantized model (QuantizeLinear and DequantizeLinear nodes), found a float "
        "one; quantize it first: samebits quantize MODEL.onnx --data X.npz --out Q.onnx",
    )
    assert not is_quantized(load(path).graph)
    assert is_quantized(quantized_graph())


def test_float_training_is_a_float_graph(tmp_path_factory):
    folder = trained_folder(tmp_path_factory, "float32")
    model = load(folder)
    assert not is_quantized(model.real)
    assert model.deployed is None
    with pytest.raises(InputError, match=r"expected a quantized model .*, found a float one"):
        _ = model.integer


def test_missing(tmp_path):
    refused(
        tmp_path / "none",
        "no such file or folder; expected an .onnx, .pt2 or .tflite file, a training output "
        "folder, a checkpoint, or a compiled folder (with model.onnx)",
    )
    refused(
        tmp_path / "none.onnx",
        "expected an ONNX file, found no such file; give the path of an .onnx file",
    )
    refused(
        tmp_path / "none.safetensors",
        "no such file or folder; expected a training output folder or a checkpoint",
    )


@pytest.mark.parametrize("name", ["model.txt", "model", "model.onnx.txt", "model.xyz"])
def test_wrong_suffix(tmp_path, name):
    path = tmp_path / name
    path.write_bytes(b"hello")
    suffix = path.suffix or "nothing"
    refused(
        path,
        "expected an .onnx, .pt2 or .tflite file, a training output folder, a checkpoint or a "
        f"compiled folder, found a file ending in {suffix}; write ONNX with the tool that it is "
        "from, or give a callable of yours that gives the torch.nn.Module, as file.py:callable",
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
            load(path)
    path = tmp_path / "checkpoint-1.safetensors"
    path.write_bytes(list_checkpoints(trained)[-1].read_bytes()[:-7])
    with pytest.raises(CheckpointError, match=f"^{re.escape(str(path))}: "):
        load(path)
    folder = tmp_path / "folder.onnx"
    folder.mkdir()
    message = "expected an ONNX file, found no such file; give the path of an .onnx file"
    with pytest.raises(InputError, match=f"^{re.escape(str(folder))}.*: {message}$"):
        load(folder)


def test_another_architecture(trained):
    with pytest.raises(CheckpointError, match="expected the architecture 'cnn', found 'mlp'"):
        load(trained, "cnn")


def test_what_cannot_be_lowered_is_named():
    builder = GraphBuilder("g")
    x = builder.input("x", "float32", (1, 3))
    s, z = builder.constant("s", np.float32(0.5)), builder.constant("z", np.int8(0))
    y = builder.add("Tanh", [x])
    y = builder.add("QuantizeLinear", [y, s, z])
    y = builder.add("DequantizeLinear", [y, s, z])
    with pytest.raises(UnsupportedError, match="found Tanh; quantize the model first"):
        Model("g", builder.build([y])).integer  # noqa: B018


def test_a_model_without_inputs():
    """All of it is constant; whatever the answer, it is none about rewrites."""
    builder = GraphBuilder("g")
    s, z = builder.constant("s", np.float32(0.5)), builder.constant("z", np.int8(0))
    y = builder.add("DequantizeLinear", [builder.constant("k", np.ones((1, 3), np.int8)), s, z])
    y = builder.add("QuantizeLinear", [y, s, z])
    try:
        Model("g", builder.build([y])).integer  # noqa: B018
    except UnsupportedError as error:
        if "simplify" in str(error):
            pytest.fail(f"advice for programmers: {error}")


def test_a_model_says_that_it_is_of_the_other_kind():
    firmware = load(FIRMWARE)
    for asked in ("real", "integer"):
        with pytest.raises(InputError) as caught:
            getattr(firmware, asked)
        assert str(caught.value) == (
            f"{FIRMWARE}: expected a network, found firmware; give the model it was compiled from"
        )
    assert firmware.interface.inputs == ("x",)
    model = Model("here", quantized_graph())
    for asked in ("program", "image"):
        with pytest.raises(InputError) as caught:
            getattr(model, asked)
        assert str(caught.value) == (
            "here: expected firmware, found a network; compile it first (samebits compile "
            "--target npu)"
        )


def test_an_integer_graph_stands_for_itself():
    integer = Model("here", quantized_graph()).integer
    model = Model("here", integer)
    assert model.integer is model.interface is integer


def test_the_integer_form_is_computed_when_it_is_asked_for(tmp_path):
    """What has none can be read, and compiled for the neural processor."""
    model = load(float_file(tmp_path / "f.onnx"))
    assert model.real.nodes
    assert model.real is model.real
    with pytest.raises(InputError, match="found a float one"):
        assert model.interface


def test_kinds(tmp_path, trained):
    quantized_file(tmp_path / "m.onnx")
    (tmp_path / "m.txt").write_text("")
    compiled, both = tmp_path / "compiled", tmp_path / "both"
    for folder in (compiled, both):
        folder.mkdir()
        quantized_file(folder / "model.onnx")
    (both / "model.nnp").write_text("")
    (tmp_path / "npu").mkdir()
    (tmp_path / "npu" / "model.nnp").write_text("")
    found = {
        "graph": [tmp_path / "m.onnx", tmp_path / "none.onnx", compiled, both],
        "firmware": [FIRMWARE, tmp_path / "none.nnp", tmp_path / "npu"],
        "training": [trained, tmp_path, list_checkpoints(trained)[-1]],
        None: [tmp_path / "m.txt", tmp_path / "none"],
    }
    for kind, paths in found.items():
        assert [kind_of(path) for path in paths] == [kind] * len(paths)


@pytest.mark.parametrize("suffix", [".onnx", ""])
def test_a_small_file_of_huge_values_is_refused(tmp_path, suffix):
    """Nothing is computed before the sizes are known, in a file or in a compiled folder."""
    g = GraphBuilder("bomb")
    x = g.input("x", "float32", (1, 4))
    wide = g.add("Expand", [x], {"shape": (1 << 24, 4)}, outputs=["wide"])
    graph = g.build([g.add("ReduceMax", [wide], {"axes": (0,), "keepdims": 1})])
    path = tmp_path / f"bomb{suffix}"
    file = path if suffix else path / "model.onnx"
    file.parent.mkdir(exist_ok=True)
    save_qdq(graph, file)
    with pytest.raises(InputError) as error:
        load(path)
    assert str(error.value).startswith(f"{path}: value 'wide': expected at most 536870912 bytes")
    with sb.memory_limit("4GiB"):
        assert load(path).graph is not None
