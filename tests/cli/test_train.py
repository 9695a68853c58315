import errno
import json
import os
import shutil
import subprocess
import sys

import numpy as np
import pytest
import torch
from PIL import Image

from recordings import split_folder
from samebits.train.run.checkpoint import list_checkpoints, read_checkpoint


@pytest.fixture(params=["float32", "bfp"])
def numerics(request):
    return request.param


@pytest.fixture
def options(npz, numerics, tmp_path):
    """A run of 2 epochs of 6 steps into tmp_path/run."""
    return (
        *("train", "--data", npz, "--arch", "cnn", "--numerics", numerics, "--epochs", 2),
        *("--batch", 16, "--lr", 0.05, "--out", tmp_path / "run"),
    )


def test_prints_accuracy_and_hash(samebits, options, tmp_path, numerics):
    done = samebits(*options)
    assert done.code == 0
    title, empty, accuracy, sha256 = done.out.splitlines()
    result = json.loads((tmp_path / "run/result.json").read_text())
    assert accuracy == f"accuracy {100 * result['accuracy']:.2f} % ({result['correct']} of 24)"
    assert sha256 == f"sha256 {result['sha256']}"
    assert (title, empty) == (f"cnn {numerics} on {options[2]}", "")
    assert done.err.count(f"cnn {numerics}: epoch ") == 2


def test_json_is_the_only_thing_on_stdout(samebits, options, tmp_path):
    done = samebits(*options, "--json", "--nesterov", "--weight-decay", 0.001, "--schedule", "step")
    assert done.code == 0
    assert done.out.count("\n") == 1
    record = json.loads(done.out)
    assert record["config"]["nesterov"] is True
    assert record["config"]["weight_decay"] == 0.001
    assert record["config"]["schedule"] == "step"
    assert len(record["sha256"]) == 64
    assert record["steps"] == 12


def test_limit_and_threads(samebits, options, monkeypatch):
    threads, given = torch.get_num_threads(), []
    monkeypatch.setattr(torch, "set_num_threads", given.append)
    done = samebits(*options, "--limit", 6, "--threads", 3, "--json")
    assert given == [3, threads]
    assert json.loads(done.out)["steps"] == 2  # 18 images in batches of 16


def test_default_learning_rate_follows_the_optimizer(samebits, npz, tmp_path):
    for optimizer, lr in (("sgd", 0.1), ("adam", 0.001), ("adamw", 0.001)):
        done = samebits(
            *("train", "--data", npz, "--arch", "mlp", "--numerics", "float32", "--epochs", 1),
            *("--optimizer", optimizer, "--out", tmp_path / optimizer, "--json"),
        )
        assert json.loads(done.out)["config"]["lr"] == lr


def refused(done, *texts):
    assert done.code == 2
    assert done.out == "" or json.loads(done.out).keys() == {"error", "explain"}
    assert "Traceback" not in done.err
    for text in texts:
        assert text in done.err


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        (("--arch", "resnet9"), "error: unknown architecture 'resnet9'; expected one of mlp, cnn,"),
        (("--arch", "no_module:x"), "--arch no_module:x: cannot import 'no_module'"),
        (("--data", "nowhere"), "error: nowhere: no such file or folder"),
        (("--batch", 4, "--shards", 8), "error: expected a batch of at least one sample per shard"),
        (("--batch", 100), "give --shards N with N dividing 100"),
        (("--batch", 128), "expected at least one batch of 128 training images, found 96"),
        (
            ("--memory-budget", 1000, "--plan", "none"),
            "error: --memory-budget needs --plan auto, found --plan none",
        ),
        (("--plan", "nothing.json"), "error: nothing.json: cannot be read"),
        (("--plan", "auto", "--plan-device", "abacus"), "error: abacus: no such device"),
        (("--plan", "auto", "--memory-budget", 10), "error: --memory-budget: expected at least"),
        (("--device", "tpu"), "error: expected --device among cpu, cuda, found 'tpu'"),
        (
            ("--schedule", "cosin"),
            "--schedule: expected one of constant, step, linear, cosine, found",
        ),
        (("--numerics", "int4"), "--numerics: expected one of bfp, float32, found 'int4'"),
        (("--optimizer", "lion"), "--optimizer: expected one of sgd, adam, adamw, found 'lion'"),
        (("--lr", "nan"), "--lr: expected a number in [0, inf), found"),
        (("--epochs", 0), "--epochs: expected a whole number from 1, found '0'"),
        (("--nonsense",), "--nonsense"),
    ],
)
def test_bad_usage_exits_with_two(samebits, npz, tmp_path, changes, text):
    done = samebits(
        *("train", "--data", npz, "--arch", "mlp", "--numerics", "float32"),
        *("--out", tmp_path / "run", *changes),
    )
    refused(done, text)
    assert not list(tmp_path.iterdir())


def folder_of_images(root):
    for split in ("train", "test"):
        for label in ("cat", "dog"):
            (root / split / label).mkdir(parents=True)
            for index in range(4):
                pixels = np.full((6, 6), 20 * index + 100 * (label == "dog"), np.uint8)
                Image.fromarray(pixels).save(root / split / label / f"{index}.png")
    return root


def test_folder_of_images(samebits, tmp_path, numerics):
    data = folder_of_images(tmp_path / "pets")
    run = ("train", "--data", data, "--arch", "mlp", "--batch", 4, "--epochs", 1)
    assert samebits(*run, "--numerics", numerics, "--out", tmp_path / "run").code == 0
    bad = data / "test/dog/2.png"
    bad.write_bytes(bad.read_bytes()[:40])
    refused(samebits(*run, "--out", tmp_path / "b"), f"error: {bad}: corrupt or not a JPEG, PNG")
    bad.unlink()
    for path in (data / "train/dog").iterdir():
        path.unlink()
    refused(samebits(*run, "--out", tmp_path / "c"), "error: ", "at least 2 classes, found 1")
    for path in (data / "train/cat").iterdir():
        path.unlink()
    refused(samebits(*run, "--out", tmp_path / "d"), "found no training file; add some")


def test_folder_of_recordings(samebits, tmp_path, numerics):
    data = split_folder(tmp_path / "words")
    run = ("train", "--data", data, "--arch", "mlp", "--batch", 2, "--epochs", 2, "--limit", 2)
    out = tmp_path / "run"
    done = samebits(*run, "--numerics", numerics, "--out", out)
    assert done.code == 0
    # Without the limit the recordings would suggest more frames; eval takes those of the model.
    again = samebits("eval", out, "--data", data)
    assert again.out.splitlines()[2::2] == done.out.splitlines()[2:]
    other = split_folder(tmp_path / "other", 16000)
    refused(
        samebits("eval", out, "--data", other),
        f"error: {other}: expected recordings at 8000 Hz as in training, found recordings at 16000",
    )
    (data / "test/yes/1.wav").write_bytes(b"")
    bad = f"error: {data / 'test/yes/1.wav'}: corrupt or not a WAV file"
    refused(samebits("eval", out, "--data", data), bad)


def test_text(samebits, tmp_path, numerics):
    text = tmp_path / "words.txt"
    text.write_bytes(b"the same bits everywhere. " * 40)
    run = ("train", "--data", text, "--arch", "mlp", "--batch", 32, "--epochs", 2)
    done = samebits(*run, "--numerics", numerics, "--out", tmp_path / "run")
    assert done.code == 0
    assert samebits("eval", tmp_path / "run", "--data", text).code == 0
    text.write_bytes(b"short")
    refused(samebits(*run, "--out", tmp_path / "b"), f"error: {text}: expected a text of 650 to")


def intact(folder, steps):
    found = [read_checkpoint(path).step for path in list_checkpoints(folder)]
    assert found == steps
    assert not list(folder.glob(".*"))


def test_second_run_in_a_folder_is_refused(samebits, options, tmp_path):
    samebits(*options)
    refused(samebits(*options), "already holds a training run", "give --resume to continue it")
    intact(tmp_path / "run", [6, 12])


def test_second_process_in_a_folder_is_refused(samebits, options, tmp_path):
    (tmp_path / "run").mkdir()
    holder = subprocess.Popen(
        [
            *(sys.executable, "-c"),
            "import fcntl, sys\n"
            "file = open(sys.argv[1], 'w')\n"
            "fcntl.flock(file, fcntl.LOCK_EX)\n"
            "print('held', flush=True)\n"
            "sys.stdin.read()\n",
            tmp_path / "run/.samebits.lock",
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert holder.stdout.readline() == b"held\n"
    done = samebits(*options)
    holder.kill()
    holder.communicate()
    refused(done, "error: ", "run: another run is writing there")
    assert samebits(*options).code == 0
    intact(tmp_path / "run", [6, 12])


def test_workers_without_torchrun_are_refused(samebits, options, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.delenv("RANK", raising=False)
    refused(samebits(*options), "error: found WORLD_SIZE=2 but no RANK", "torchrun")


def test_checkpoint_of_another_architecture(samebits, options, tmp_path):
    samebits(*options)
    other = ["mlp" if option == "cnn" else option for option in options]
    refused(
        samebits(*other, "--resume"),
        "checkpoint-00000012.safetensors: belongs to another architecture: tensor '1.weight",
        "expected",
        "found none",
        "give the architecture it was trained with",
    )
    intact(tmp_path / "run", [6, 12])


def test_truncated_checkpoint_falls_back_to_the_one_before(samebits, options, tmp_path):
    first = samebits(*options)
    newest = list_checkpoints(tmp_path / "run")[-1]
    newest.write_bytes(newest.read_bytes()[:-1])
    second = samebits(*options, "--resume")
    assert second.code == 0
    assert f"warning: {newest}: truncated" in second.err
    assert "checkpoint-00000006.safetensors: resuming after step 6" in second.err
    assert second.out == first.out
    for path in list_checkpoints(tmp_path / "run"):
        path.write_bytes(b"")
    refused(samebits(*options, "--resume"), "error: ", "no intact checkpoint is left", "found 0")


def test_full_disk(samebits, options, tmp_path, monkeypatch):
    """The third checkpoint finds no space; what is there stays and the run can go on."""
    whole = samebits(*options)
    shutil.rmtree(tmp_path / "run")
    real = os.replace

    def replace(source, target):
        if "checkpoint-00000009" in str(target):
            raise OSError(errno.ENOSPC, "No space left on device")
        real(source, target)

    monkeypatch.setattr(os, "replace", replace)
    done = samebits(*options, "--checkpoint-every", 3)
    monkeypatch.undo()
    refused(done, "checkpoint-00000009.safetensors: no space left to write", "with --resume")
    intact(tmp_path / "run", [3, 6])
    assert samebits(*options, "--resume").out == whole.out


def test_full_disk_at_the_first_file(samebits, options, tmp_path, monkeypatch):
    def write(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", write)
    done = samebits(*options)
    monkeypatch.undo()
    refused(done, "config.json: no space left to write")
    assert not list((tmp_path / "run").iterdir())


def test_learning_rate_that_overflows(samebits, options, tmp_path):
    done = samebits(*options, "--lr", 1e36, "--warmup", 8, "--checkpoint-every", 1)
    refused(done, "error: training diverged in step ", "lower the learning rate (--lr)")
    for path in list_checkpoints(tmp_path / "run"):
        read_checkpoint(path)


def test_unwritable_output_folder(samebits, npz, tmp_path):
    (tmp_path / "file").write_text("x")
    out = tmp_path / "file" / "run"
    done = samebits("train", "--data", npz, "--arch", "mlp", "--numerics", "float32", "--out", out)
    refused(done, f"error: {out}: cannot be created", "give another --out")
