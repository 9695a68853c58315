import json
import os
import shutil
import subprocess
import sys

import pytest
import torch

from samebits.train.run.checkpoint import list_checkpoints


@pytest.fixture(scope="module", params=["float32", "bfp"])
def trained(request, npz, tmp_path_factory):
    """(folder, result.json) of a short run."""
    from samebits.data import load
    from samebits.train.run.config import TrainConfig
    from samebits.train.run.loop import train

    out = tmp_path_factory.mktemp("trained")
    config = TrainConfig(
        data=str(npz), arch="cnn", numerics=request.param, epochs=1, batch=16, lr=0.05
    )
    return out, train(config, load(str(npz)), out)


def test_eval_repeats_the_accuracy(samebits, npz, trained):
    out, result = trained
    done = samebits("eval", out, "--data", npz)
    assert done.code == 0
    file = list_checkpoints(out)[-1]
    assert done.out == (
        f"{file} on {npz}\n\naccuracy {100 * result.accuracy:.2f} % ({result.correct} of 24)\n"
        f"arithmetic: {result.arithmetic}\n"
        f"sha256 {result.sha256}\n"
    )
    record = json.loads(samebits("eval", file, "--data", npz, "--json").out)
    assert (record["correct"], record["sha256"]) == (result.correct, result.sha256)
    assert record["arithmetic"] == result.arithmetic


def test_a_checkpoint_in_another_ones_place_is_told(samebits, trained, tmp_path):
    """Of a run's files, the checkpoint is what counts; that the others are of another is said, and
    `verify` does not go on."""
    folder = shutil.copytree(trained[0], tmp_path / "run")
    commands = [("inspect", folder)]
    if trained[1].arithmetic == "deployed":
        commands.append(("verify", folder, "--data", "random:1", "--backends", "torch"))
    for command in commands:
        assert samebits(*command).err == ""
    for name, field, value in (("config.json", "lr", 0.5), ("result.json", "sha256", "0" * 64)):
        record = json.loads((folder / name).read_text())
        (folder / name).write_text(json.dumps({**record, field: value}))
    for command in commands:
        done = samebits(*command)
        assert done.code == (command[0] == "verify")
        config, result = done.err.splitlines()
        file = "checkpoint-00000006.safetensors"
        assert config == (
            f"note: warning: {folder}/config.json: not of the run that wrote {file} (lr: expected "
            "0.05, found 0.5)"
        )
        assert result == (
            f"note: warning: {folder}/result.json: records a run whose parameters have the sha256 "
            f"{'0' * 16}, and those of {file} have {trained[1].sha256[:16]}: another file took its "
            "place, or training went on since"
        )


def test_inspect_lists_every_tensor(samebits, trained):
    out, result = trained
    record = json.loads(samebits("inspect", out, "--json").out)
    assert record["sha256"] == result.sha256
    assert record["step"] == 6
    assert record["config"]["arch"] == "cnn"
    tensors = {tensor["name"]: tensor for tensor in record["tensors"]}
    if record["config"]["numerics"] == "bfp":
        assert tensors["0.0.weight.codes"]["dtype"] == "int8"
        assert tensors["0.0.weight.codes"]["shape"] == [16, 1, 3, 3]
        assert isinstance(tensors["0.0.weight.exponent"]["exponent"], int)
        assert not [t for t in tensors.values() if t["dtype"] == "float32"]
    else:
        assert tensors["0.0.weight"]["shape"] == [16, 1, 3, 3]
    text = samebits("inspect", out)
    assert text.code == 0
    assert text.out.endswith(f"sha256 {result.sha256}\n")
    assert len(text.out.splitlines()) <= 20
    assert "16x1x3x3" not in text.out
    whole = samebits("inspect", out, "--nodes")
    assert whole.out.startswith(text.out)
    assert "16x1x3x3" in whole.out


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_eval_on_a_device_that_is_not_there(samebits, npz, trained):
    done = samebits("eval", trained[0], "--data", npz, "--device", "cuda")
    assert (done.code, done.out) == (2, "")
    assert "error: expected a GPU for --device cuda, found none" in done.err


def test_eval_of_an_exported_model_on_a_device(samebits, npz, tmp_path):
    done = samebits("eval", tmp_path / "m.onnx", "--data", npz, "--device", "cuda")
    assert (done.code, done.out) == (2, "")
    assert "m.onnx: expected --device cpu for an exported model, found cuda" in done.err


def test_eval_on_other_data_is_refused(samebits, trained):
    done = samebits("eval", trained[0], "--data", "digits")
    assert done.code == 2
    assert "error: digits: expected images [1, 6, 6] as in training, found [1, 8, 8]" in done.err


def test_eval_runs_code_of_a_checkpoint_only_when_asked(samebits, npz, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own_evaluated.py").write_text(
        "from torch import nn\n"
        "print('own code runs')\n"
        "def net(input_shape, classes):\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(36, classes))\n"
    )
    out = tmp_path / "run"
    done = samebits(
        *("train", "--data", npz, "--arch", "own_evaluated:net", "--numerics", "float32"),
        *("--epochs", 1, "--out", out),
    )
    assert done.code == 0, done.err
    sys.modules.pop("own_evaluated")
    done = samebits("eval", out, "--data", npz)
    assert (done.code, done.out) == (2, "")
    assert "if you trust it, give --arch own_evaluated:net" in done.err
    done = samebits("eval", out, "--data", npz, "--arch", "own_evaluated:other")
    assert (done.code, done.out) == (2, "")
    assert "expected the architecture 'own_evaluated:other', found 'own_evaluated:net'" in done.err
    done = samebits("eval", out, "--data", npz, "--arch", "own_evaluated:net")
    assert done.code == 0, done.err
    assert done.out.startswith(f"own code runs\n{out}")
    sys.modules.pop("own_evaluated")


def test_eval_refuses_another_architecture(samebits, npz, trained):
    assert samebits("eval", trained[0], "--data", npz, "--arch", "cnn").code == 0
    done = samebits("eval", trained[0], "--data", npz, "--arch", "mlp")
    assert done.code == 2
    assert "expected the architecture 'mlp', found 'cnn'" in done.err


def test_names_that_are_not_utf8_are_printed(shelf, tmp_path):
    out = os.fsencode(tmp_path) + b"/caf\xe9"
    shutil.copytree(os.fsencode(shelf["run"]), out)
    done = subprocess.run(
        [sys.executable, "-m", "samebits", "inspect", out],
        capture_output=True,
        env={**os.environ, "PYTHONIOENCODING": "utf-8:strict"},
    )
    assert done.returncode == 0, done.stderr
    assert b"/caf\\udce9/checkpoint-" in done.stdout


@pytest.mark.parametrize("command", ["eval", "inspect"])
def test_models_that_are_none(samebits, tmp_path, npz, command):
    more = ("--data", npz) if command == "eval" else ()
    for path, text in (
        (tmp_path / "nowhere", "no such file or folder; expected an .onnx, .pt2 or .tflite file, "),
        (tmp_path, "found no checkpoint-*.safetensors in it; train first"),
        (npz, "found arrays without a network; samples are given by --data"),
    ):
        done = samebits(command, path, *more)
        assert (done.code, done.out) == (2, "")
        assert done.err.startswith(f"error: {path}: ")
        assert text in done.err
    damaged = tmp_path / "checkpoint-1.safetensors"
    damaged.write_bytes(b"\x10")
    done = samebits(command, damaged, *more)
    assert done.code == 2
    assert "truncated: expected at least 9 bytes, found 1" in done.err


def test_help_names_the_commands(samebits):
    done = samebits("--help")
    assert done.code == 0
    for command in ("demo", "train", "eval", "inspect"):
        assert f"\n  {command} " in done.out
    assert samebits("quantise").code == 2


def test_help_does_not_load_torch():
    code = (
        "import sys\n"
        "from samebits.cli import main\n"
        "try:\n    main(['--help'])\n"
        "except SystemExit:\n    sys.exit('torch' in sys.modules)\n"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True).returncode == 0
