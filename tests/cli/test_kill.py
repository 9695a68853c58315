"""SIGKILL at seeded moments, then --resume: the end must be that of an uninterrupted run."""

import json
import random
import shutil
import subprocess
import sys
import time

import pytest


def arguments(npz, out, numerics):
    """A run of 24 steps with a checkpoint after each."""
    return (
        *("train", "--data", npz, "--arch", "mlp", "--seed", 3, "--numerics", numerics),
        *("--epochs", 8, "--batch", 32, "--checkpoint-every", 1),
        *("--threads", 1, "--resume", "--out", out),
    )


def start(npz, out, numerics):
    command = [sys.executable, "-m", "samebits", *arguments(npz, out, numerics)]
    return subprocess.Popen(
        [str(word) for word in command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def finish(samebits, npz, out, numerics):
    """What the run prints that is not killed, here in this process."""
    done = samebits(*arguments(npz, out, numerics))
    assert done.code == 0, done.err
    return done.out


def kill_when_running(process, out, delay):
    """Wait for a new file in the run folder, then `delay` seconds, then kill. False if it ended."""
    known = set(out.iterdir()) if out.is_dir() else set()
    while process.poll() is None and (not out.is_dir() or set(out.iterdir()) <= known):
        time.sleep(0.002)
    time.sleep(delay)
    process.kill()
    process.communicate()
    return process.returncode == -9


def kill_and_resume(samebits, npz, tmp_path, numerics, kills, seed):
    whole = finish(samebits, npz, tmp_path / "whole", numerics)
    delays = random.Random(seed)
    killed = 0
    for _ in range(20 * kills):
        process = start(npz, tmp_path / "cut", numerics)
        if kill_when_running(process, tmp_path / "cut", delays.uniform(0, 0.12)):
            killed += 1
        else:  # it was faster than this process, which may have had to wait: from the beginning
            assert process.returncode == 0
            shutil.rmtree(tmp_path / "cut")
        if killed == kills:
            break
    assert killed == kills
    assert finish(samebits, npz, tmp_path / "cut", numerics) == whole
    lines = [
        [json.loads(line) for line in (tmp_path / name / "metrics.jsonl").read_text().splitlines()]
        for name in ("whole", "cut")
    ]
    for records in lines:
        for record in records:
            del record["seconds"]
    assert lines[0] == lines[1]
    assert not list((tmp_path / "cut").glob(".*"))


@pytest.mark.parametrize(("numerics", "seed"), [("bfp", 11)])
def test_killed_run_ends_with_the_same_hash(samebits, npz, tmp_path, numerics, seed):
    kill_and_resume(samebits, npz, tmp_path, numerics, kills=1, seed=seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("numerics", ["float32", "bfp"])
def test_many_kills_end_with_the_same_hash(samebits, npz, tmp_path, numerics, seed):
    kill_and_resume(samebits, npz, tmp_path, numerics, kills=8, seed=100 + seed)
