"""One result on any number of workers: processes of their own under torchrun."""

import json
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("workers_run.py")
QUICK = ("sgd", "short", "clipped", "rows")
RUNS = (*QUICK, "two-shards", "adam", "decay")
PLANNED = ("planned", "planned float32")
OWN = ("seconds", "step_seconds_median", "workers", "wire_bytes_per_step", "plan", "files")


def run(out, workers, names):
    launcher = ("-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={workers}")
    command = [sys.executable, *launcher, SCRIPT, out, *names]
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
    """Gives the folder of named runs of one process, each made when first asked for."""
    folder = tmp_path_factory.mktemp("alone")
    main = runpy.run_path(str(SCRIPT))["main"]

    def made(names):
        missing = [name for name in names if not (folder / name).exists()]
        if missing:
            main(folder, missing)
        return folder

    return made


def check(alone, folder, names):
    for name in names:
        assert files(folder / name) == files(alone(names) / name), name


def test_two_workers(alone, tmp_path):
    names = (*QUICK, "float32")
    run(tmp_path, 2, names)
    check(alone, tmp_path, QUICK)
    hashes = [files(tmp_path / name)[0]["sha256"] for name in QUICK]
    assert len(set(hashes)) == 4
    # Ordinary arithmetic: a mean of two means, batch-norm over half a batch.
    results = [files(folder / "float32")[0] for folder in (alone(names), tmp_path)]
    assert results[0]["sha256"] != results[1]["sha256"]
    assert results[0]["steps"] == results[1]["steps"]


@pytest.mark.slow
@pytest.mark.parametrize("workers", [2, 4])
def test_every_setting(alone, tmp_path, workers):
    run(tmp_path, workers, (*RUNS, "float32", *PLANNED))
    check(alone, tmp_path, RUNS)
    # A plan changes nothing; in float32, of what DistributedDataParallel gives without it.
    for name, plain in zip(PLANNED, ("sgd", "float32"), strict=True):
        assert files(tmp_path / name) == files(tmp_path / plain)
        result = json.loads((tmp_path / name / "result.json").read_text())
        assert result["plan"]["recomputed"] > 0
