"""What happens to a run when one of its workers dies, stops answering, or cannot write."""

import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

OPTIONS = (
    *("--arch", "mlp", "--seed", 3, "--epochs", 8, "--batch", 32, "--shards", 4),
    *("--augment", "flip,crop:1", "--checkpoint-every", 1, "--resume"),
)


def start(npz, out, workers, *more):
    """A run of 24 steps with a checkpoint after each, on processes of torchrun."""
    launcher = ("-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={workers}")
    command = [
        *(sys.executable, *launcher, "-m", "samebits", "train"),
        *("--data", npz, *OPTIONS, "--out", out, *more),
    ]
    return subprocess.Popen(
        [str(word) for word in command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def children(process):
    """The workers of a torchrun process, by the order of their ranks."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                parent = int((entry / "stat").read_text().rpartition(") ")[2].split()[1])
                command = (entry / "cmdline").read_bytes().split(b"\0")
            except OSError:  # it has ended
                continue
            if parent == process.pid and b"samebits" in command:
                found.append(int(entry.name))
    return sorted(found)


def wait_for_progress(process, out):
    known = set(out.iterdir()) if out.is_dir() else set()
    while process.poll() is None and (not out.is_dir() or set(out.iterdir()) <= known):
        time.sleep(0.002)


def signal_one(process, rng, number):
    """Send a signal to a random worker; false if there is none any more."""
    workers = children(process)
    if not workers:
        return False
    try:
        os.kill(rng.choice(workers), number)
    except ProcessLookupError:
        return False
    return True


def messages(err):
    return [line for line in err.splitlines() if line.startswith("error: ")]


def end(process):
    out, err = process.communicate(timeout=300)
    return process.returncode, out, err


def alone(samebits, npz, out):
    """What a run on one process prints, which is this one."""
    done = samebits("train", "--data", npz, *OPTIONS, "--out", out)
    assert done.code == 0, done.err
    return done.out


@pytest.fixture
def whole(samebits, npz, tmp_path):
    """What an uninterrupted run on one process prints."""
    return alone(samebits, npz, tmp_path / "whole")


def kill_and_resume(samebits, npz, out, kills, seed):
    """Kills of a random worker at random moments, each followed by a run on 1, 2 or 4 workers."""
    rng = random.Random(seed)
    killed = 0
    for _ in range(20 * kills):
        process = start(npz, out, rng.choice([2, 2, 4]))
        wait_for_progress(process, out)
        time.sleep(rng.uniform(0, 0.2))
        hit = signal_one(process, rng, signal.SIGKILL)
        code, printed, err = end(process)
        if hit and code and "sha256" not in printed:
            killed += 1
            assert len(messages(err)) == 1, err
            assert "earlier checkpoints are intact: run again with --resume" in err
            assert err.count("Traceback") == 1, err  # torchrun's own
        else:  # all was done: it was faster than this process, and begins again
            shutil.rmtree(out)
        if killed == kills:
            break
    assert killed == kills
    workers = rng.choice([1, 2, 4])
    if workers == 1:
        return alone(samebits, npz, out)
    code, printed, err = end(start(npz, out, workers))
    assert code == 0, err
    return printed


def test_killed_worker(samebits, npz, tmp_path, whole):
    """Of two, and resumed on one."""
    assert kill_and_resume(samebits, npz, tmp_path / "run", 1, seed=2) == whole


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
def test_fifty_killed_workers(samebits, npz, tmp_path, whole, seed):
    assert kill_and_resume(samebits, npz, tmp_path / "run", 10, seed=10 + seed) == whole


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="needs prlimit (Linux)")
def test_full_disk(npz, tmp_path, whole):
    """The first worker cannot write any more; the others hear of it."""
    out = tmp_path / "run"
    process = start(npz, out, 2)
    while process.poll() is None and len(list(out.glob("checkpoint-*"))) < 2:
        time.sleep(0.01)
    first, _ = children(process)  # torchrun starts them in the order of their ranks
    resource.prlimit(first, resource.RLIMIT_FSIZE, (500, 500))
    code, _, err = end(process)
    assert code != 0
    assert len(messages(err)) == 1, err
    (message,) = messages(err)
    assert "no space left to write" in message
    assert not list(out.glob("*.tmp"))
    damaged = sorted(out.glob("checkpoint-*"))[-1]  # and then the last checkpoint is lost
    damaged.write_bytes(damaged.read_bytes()[:-1])
    process = start(npz, out, 4)
    _, printed, err = end(process)
    assert printed == whole
    assert err.count(f"warning: {damaged}: truncated or extended") == 1


@pytest.mark.slow
@pytest.mark.parametrize("numerics", ["bfp", "float32"])
def test_silent_worker(npz, tmp_path, numerics):
    """A stopped worker is one that never answers."""
    process = start(
        npz, tmp_path / "run", 2, "--worker-timeout", 3, "--epochs", 200, "--numerics", numerics
    )
    wait_for_progress(process, tmp_path / "run")
    stopped = random.Random(numerics).choice(children(process))
    os.kill(stopped, signal.SIGSTOP)
    try:
        deadline = time.monotonic() + 60
        while len(children(process)) > 1 and time.monotonic() < deadline:
            time.sleep(0.1)
    finally:
        os.kill(stopped, signal.SIGCONT)  # else torchrun waits 30 seconds before it kills
    code, _, err = end(process)
    assert code != 0
    assert len(messages(err)) == 1, err
    (message,) = messages(err)
    assert "one of the 2 workers of this run gave no answer for 3 seconds" in message, err
    assert "--resume" in message


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        pytest.param(("--lr", 1e30), "error: training diverged in step", marks=pytest.mark.slow),
        pytest.param(
            *(("--shards", 1), "error: expected a number of workers that divides the 1 shards"),
            marks=pytest.mark.slow,
        ),
        pytest.param(("--data", "nowhere"), "error: ", marks=pytest.mark.slow),
        pytest.param(("--device", "gpu"), "error: expected --device", marks=pytest.mark.slow),
    ],
)
def test_an_error_is_told_once(npz, tmp_path, changes, text):
    code, out, err = end(start(npz, tmp_path / "run", 2, *changes))
    assert code != 0
    assert out == ""
    assert len(messages(err)) == 1, err
    (message,) = messages(err)
    assert message.startswith(text)
    assert err.count("Traceback") == 1, err  # torchrun's own
