"""Models of other tools: the message names the way, and Troubleshooting has it too."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import samebits as sb
from samebits.elsewhere import FILES, FOLDERS, UNMADE
from samebits.errors import CheckpointError, InputError
from samebits.explanations import explanations, topic_of

SCRIPTING = "ignore:`torch.jit:DeprecationWarning"
WAYS = {
    ".h5": "tf.lite.TFLiteConverter.from_keras_model(model).convert()",
    ".hdf5": "tf2onnx.convert --keras",
    ".keras": 'model.export("model.onnx", format="onnx")',
    ".pb": "tf2onnx.convert --graphdef {path}",
    ".jit": "as file.py:callable: it builds the module from its class",
    ".torchscript": "torch.jit.load('{path}').state_dict()",
    ".pt": "loads these weights into it (torch.load with weights_only=True",
    ".ckpt": "as file.py:callable",
    ".npy": "samples are given by --data",
    ".mlmodel": "export the model that it was made from to ONNX",
    ".trt": "give the ONNX file that it was built from",
    ".joblib": "skl2onnx.to_onnx",
    ".py": "{path}:make, once a function make() in it gives it",
}


def refused(call, path) -> str:
    with pytest.raises(InputError) as caught:
        call(path)
    assert topic_of(caught.value) == "input-format"
    message = str(caught.value)
    assert message.startswith(f"{path}: expected an .onnx, .pt2 or .tflite file, ")
    assert "\n" not in message
    return message


@pytest.fixture(autouse=True)
def without_tensorflow(monkeypatch):
    monkeypatch.setattr("samebits.tflite.peers.keras.is_convertible", lambda: False)


@pytest.mark.parametrize("ending", FILES)
@pytest.mark.parametrize("call", [sb.load, sb.inspect])
def test_files_of_other_tools(tmp_path, ending, call):
    path = tmp_path / f"model {{0}}{ending.upper()}"
    path.write_bytes(b"whatever")
    message = refused(call, path)
    assert FILES[ending].what in message
    assert WAYS.get(ending, "").format(path=path) in message


@pytest.mark.parametrize("name", FOLDERS)
def test_folders_of_other_tools(tmp_path, name):
    (tmp_path / name).write_bytes(b"")
    message = refused(sb.load, tmp_path)
    assert (
        "optimum-cli export onnx" if FOLDERS[name].what.endswith("Face") else "tf2onnx"
    ) in message


def test_a_core_ml_package_is_a_folder(tmp_path):
    path = tmp_path / "net.mlpackage"
    path.mkdir()
    assert "found a Core ML model" in refused(sb.load, path)


def test_what_is_not_there_is_said_first(tmp_path):
    with pytest.raises(InputError, match="no such file or folder"):
        sb.load(tmp_path / "model.keras")


def test_weights_in_safetensors(tmp_path):
    from safetensors.torch import save_file

    save_file({"w": torch.zeros(2)}, tmp_path / "w.safetensors")
    with pytest.raises(CheckpointError, match=r"builds their network and loads them, as file\.py:"):
        sb.load(tmp_path / "w.safetensors")


SOURCE = """
from torch import nn
def make(): return nn.Linear(4, 3)
def sized(n, m=3): return nn.Linear(n, m)
def spread(*, n): return nn.Linear(n, 3)
class Net(nn.Module):
    def __init__(self, n=4): super().__init__()
class Other(nn.Module):
    def __init__(self, n): super().__init__()
class Plain: ...
raise RuntimeError("it is read, not run")
"""


@pytest.mark.parametrize(
    ("source", "named"),
    [
        (SOURCE, "{path}:make or {path}:Net"),
        ("x = 1", UNMADE),
        ("def (", UNMADE),
        ("\0", UNMADE),
        ("(" * 100_000, UNMADE),
    ],
)
def test_source_is_searched_for_what_may_give_the_module(tmp_path, source, named):
    path = tmp_path / "train.py"
    path.write_text(source)
    for call in (sb.load, lambda path: sb.quantize(path, torch.rand(8, 4))):
        message = refused(call, path)
        assert message.endswith(
            f"found Python source; name the callable in it that gives the module: "
            f"{named.format(path=path)}"
        )


def test_every_ending_stands_in_troubleshooting():
    text = explanations()["input-format"].text
    assert [ending for ending in FILES if f"`{ending}`" not in text] == []


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor, rate: int = 16000) -> torch.Tensor:
        return self.layer(x)


@pytest.mark.filterwarnings(SCRIPTING)
def test_modules_that_torch_jit_compiled_or_loaded(tmp_path):
    x = torch.rand(8, 4)
    scripted = torch.jit.script(Net())
    path = tmp_path / "net.pt"
    torch.jit.save(scripted, path)
    assert "found a TorchScript module" in refused(sb.load, path)
    for module in (scripted, torch.jit.load(path), torch.jit.trace(Net(), x)):
        for call in (
            lambda net: sb.quantize(net, calibration=x),
            lambda net: sb.load(net, example=x),
            lambda net: sb.ship(net, x, tmp_path / "out"),
            lambda net: sb.report(net),
        ):
            with pytest.raises(
                InputError, match=r"found a TorchScript module.* its class and load"
            ):
                call(module)
    assert not (tmp_path / "out").exists()
    (tmp_path / "net.py").write_text(
        f"import torch\ndef make():\n    return torch.jit.load({str(path)!r})\n"
    )
    with pytest.raises(InputError, match=r"net\.py:make: .*found a TorchScript module"):
        sb.load(f"{tmp_path / 'net.py'}:make", example=x)


def test_a_forward_that_python_cannot_read_needs_an_example():
    module = nn.Module()
    module.forward = torch.relu  # type: ignore[assignment]
    with pytest.raises(InputError, match="expected a forward with parameters that Python knows"):
        sb.quantize(module, calibration=torch.rand(8, 4))
