import json
import subprocess
import sys

import pytest

from samebits.train.checkpoint import list_checkpoints


@pytest.fixture(scope="module", params=["float32", "bfp"])
def trained(request, npz, tmp_path_factory):
    """(folder, result.json) of a short run."""
    from samebits.data import load
    from samebits.train.config import TrainConfig
    from samebits.train.loop import train

    out = tmp_path_factory.mktemp("trained")
    config = TrainConfig(str(npz), "cnn", request.param, epochs=1, batch=16, lr=0.05)
    return out, train(config, load(str(npz)), out)


def test_eval_repeats_the_accuracy(samebits, npz, trained):
    out, result = trained
    done = samebits("eval", out, "--data", npz)
    assert done.code == 0
    assert done.out == (
        f"accuracy {100 * result.accuracy:.2f} % ({result.correct} of 24)\nsha256 {result.sha256}\n"
    )
    file = list_checkpoints(out)[-1]
    record = json.loads(samebits("eval", file, "--data", npz, "--json").out)
    assert (record["correct"], record["sha256"]) == (result.correct, result.sha256)


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
    assert "16x1x3x3" in text.out


def test_eval_on_other_data_is_refused(samebits, trained):
    done = samebits("eval", trained[0], "--data", "digits")
    assert done.code == 2
    assert "belongs to another architecture: tensor" in done.err


@pytest.mark.parametrize("command", ["eval", "inspect"])
def test_models_that_are_none(samebits, tmp_path, npz, command):
    more = ("--data", npz) if command == "eval" else ()
    for path, text in (
        (tmp_path / "nowhere", "no such file or folder; expected a training output folder"),
        (tmp_path, "found no checkpoint-*.safetensors in it; train first"),
        (npz, "expected a training output folder or a .safetensors checkpoint, found a file"),
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
