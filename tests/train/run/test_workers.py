"""One result on any number of workers: processes of their own under torchrun."""

import json
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("workers_run.py")
RUNS = ("sgd", "two-shards", "adam", "decay", "short", "clipped", "rows")
OWN = ("seconds", "step_seconds_median", "workers", "wire_bytes_per_step", "plan")


def run(out, workers):
    launcher = ("-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={workers}")
    command = [sys.executable, *launcher, SCRIPT, out]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stderr


def files(folder):
    """What a run left: results and metrics without what is its own, and the names of its files."""
    result = json.loads((folder / "result.json").read_text())
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    for record in (result, *lines):
        for key in OWN:
            record.pop(key, None)
    return result, lines, sorted(path.name for path in folder.iterdir())


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    folder = tmp_path_factory.mktemp("alone")
    runpy.run_path(str(SCRIPT))["main"](folder, (*RUNS, "float32"))
    return folder


def check(alone, folder, names=RUNS):
    for name in names:
        assert files(folder / name) == files(alone / name), name


def test_two_workers(alone, tmp_path):
    run(tmp_path, 2)
    check(alone, tmp_path)
    check_plans(tmp_path)
    hashes = [files(tmp_path / name)[0]["sha256"] for name in ("sgd", "short", "clipped", "rows")]
    assert len(set(hashes)) == 4
    # Ordinary arithmetic: a mean of two means, batch-norm over half a batch.
    results = [files(folder / "float32")[0] for folder in (alone, tmp_path)]
    assert results[0]["sha256"] != results[1]["sha256"]
    assert results[0]["steps"] == results[1]["steps"]


def check_plans(folder):
    """A plan changes nothing; in float32, of what DistributedDataParallel gives without it."""
    for name, plain in (("planned", "sgd"), ("planned float32", "float32")):
        assert files(folder / name) == files(folder / plain)
        result = json.loads((folder / name / "result.json").read_text())
        assert result["plan"]["recomputed"] > 0


@pytest.mark.slow
def test_four_workers(alone, tmp_path):
    run(tmp_path, 4)
    check(alone, tmp_path)
    check_plans(tmp_path)
