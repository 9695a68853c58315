"""Faults of the machine under a run: its clock, its file system, its last checkpoint."""

import errno
import itertools
import os
import time
from pathlib import Path

import pytest
import torch

from samebits.data import Dataset
from samebits.errors import InputError, SamebitsError
from samebits.numerics import philox
from samebits.train.run.checkpoint import list_checkpoints
from samebits.train.run.config import TrainConfig
from samebits.train.run.loop import Silent, train
from samebits.train.run.record import read_json


def data():
    words = philox.words(72 * 36, (1, 7)) % 256
    images, labels = words.view(72, 1, 6, 6).to(torch.uint8), torch.arange(72) % 3
    return Dataset(images[:48], labels[:48], images[48:], labels[48:], ("a", "b", "c"), "made")


DATA = data()
CONFIG = TrainConfig(data="made", arch="cnn", epochs=2, batch=16, shards=2, augment="flip,crop:1")


class Log(Silent):
    def __init__(self):
        self.lines = []

    def say(self, text):
        self.lines.append(text)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return train(CONFIG, DATA, tmp_path_factory.mktemp("whole"))


@pytest.mark.parametrize("jumps", [(0.0, -1e9, 1e9), (5.0, 5.0, 5.0), (0.0, float("inf"), 1.0)])
def test_clock_that_jumps(tmp_path, monkeypatch, whole, jumps):
    times = itertools.cycle(jumps)
    for clock in ("perf_counter", "time", "monotonic"):
        monkeypatch.setattr(time, clock, lambda: next(times))
    result = train(CONFIG, DATA, tmp_path)
    assert result.sha256 == whole.sha256
    assert result.train_loss == whole.train_loss


def test_times_of_files_do_not_matter(tmp_path, whole):
    train(CONFIG, DATA, tmp_path, checkpoint_every=2)
    for age, path in enumerate(reversed(list_checkpoints(tmp_path))):
        os.utime(path, (1e9 + age, 1e9 + age))  # the newest looks oldest
    (tmp_path / "result.json").unlink()
    log = Log()
    assert train(CONFIG, DATA, tmp_path, resume=True, reporter=log).sha256 == whole.sha256
    assert "checkpoint-00000006.safetensors: resuming after step 6" in log.lines[0]


@pytest.mark.parametrize("place", [0, 100, -1])
def test_corrupted_last_checkpoint(tmp_path, whole, place):
    """One flipped bit: the run goes on from the checkpoint before it, and says so."""
    train(CONFIG, DATA, tmp_path, checkpoint_every=2)
    last = list_checkpoints(tmp_path)[-1]
    content = bytearray(last.read_bytes())
    content[place] ^= 1
    last.write_bytes(content)
    log = Log()
    assert train(CONFIG, DATA, tmp_path, resume=True, reporter=log).sha256 == whole.sha256
    assert log.lines[0].startswith(f"warning: {last}: ")
    assert log.lines[0].endswith("falling back to the checkpoint before it")
    assert "checkpoint-00000004.safetensors: resuming after step 4" in log.lines[1]


@pytest.mark.parametrize("number", [errno.EROFS, errno.EACCES, errno.EIO])
def test_folder_that_becomes_read_only(tmp_path, monkeypatch, whole, number):
    real, calls = os.open, itertools.count()

    def refuse(path, *rest, **named):
        if str(path).endswith(".tmp") and next(calls) >= 3:  # configuration and two checkpoints
            raise OSError(number, os.strerror(number))
        return real(path, *rest, **named)

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(SamebitsError, match=r"cannot be written .*check the folder and its perm"):
        train(CONFIG, DATA, tmp_path, checkpoint_every=1)
    monkeypatch.undo()
    assert [path.name[-13:] for path in list_checkpoints(tmp_path)] == [
        f"{step}.safetensors" for step in (1, 2)
    ]
    assert train(CONFIG, DATA, tmp_path, resume=True).sha256 == whole.sha256


def test_folder_that_cannot_be_made():
    if not Path("/proc/self").exists():
        pytest.skip("needs /proc, in which nobody can make a folder")
    with pytest.raises(InputError, match=r"cannot be created .*; give another --out"):
        train(CONFIG, DATA, Path("/proc/samebits"))


def test_a_record_that_cannot_be_read_is_not_one_that_is_missing(tmp_path):
    """Else a report would leave out what it says, without a word."""
    assert read_json(tmp_path / "none") == {}
    with pytest.raises(InputError, match="expected a file, found a folder"):
        read_json(tmp_path)
    with pytest.raises(OSError, match="File name too long"):
        read_json(tmp_path / ("x" * 300))
