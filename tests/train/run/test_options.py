"""Every pair of a run's options and of the ways to compute it: the bits of the plain integers."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from reference_run import averaged, reference_run, state_dict
from samebits import kernels
from samebits.train.architectures import initialise
from samebits.train.run.checkpoint import list_checkpoints, read_checkpoint
from samebits.train.widths import Widths
from training_options import CHOSEN, ROWS, config_of, covering, data, every_pair, net, pairs_of, run

SCRIPT = Path(__file__).parents[2] / "training_options.py"


@pytest.fixture(scope="module")
def on_workers(tmp_path_factory):
    """The folder of all rows on a number of workers, computed by one torchrun."""
    done = {}

    def folder(workers):
        if workers not in done:
            out = done[workers] = tmp_path_factory.mktemp(f"workers{workers}")
            rows = [str(i) for i, row in enumerate(ROWS) if row["workers"] == workers]
            launcher = ("-m", "torch.distributed.run", "--standalone")
            command = (sys.executable, *launcher, f"--nproc-per-node={workers}", SCRIPT, out, *rows)
            ended = subprocess.run(command, capture_output=True, text=True, timeout=900)
            assert ended.returncode == 0, ended.stderr
        return done[workers]

    return folder


ALONE = [number for number, row in enumerate(ROWS) if row["workers"] == 1]


@pytest.mark.parametrize(
    "number",
    [n if n in ALONE[:2] else pytest.param(n, marks=pytest.mark.slow) for n in range(len(ROWS))],
)
def test_a_run_is_that_of_the_plain_integers(number, on_workers, tmp_path):
    row = ROWS[number]
    if row["kernels"] == "native" and kernels.realisation() != "native":
        pytest.skip("no native kernels: no C compiler on this machine")
    if row["workers"] == 1:
        out = tmp_path / "run"
        run(row, out)
    else:
        out = on_workers(row["workers"]) / str(number)
    config, model = config_of(row), net()
    initialise(model, config.seed)
    wanted = reference_run(config, data(), model)
    last = read_checkpoint(list_checkpoints(out)[-1])
    trained = last.model if config.ema is None else last.average["training"]
    compare(trained, state_dict(wanted.parameters, wanted.buffers))
    if config.ema is not None:
        bits = Widths.parse(config.widths).values
        compare(last.model, state_dict(averaged(wanted, bits), wanted.buffers))
    result = json.loads((out / "result.json").read_text())
    epoch = wanted.losses[-len(wanted.losses) // config.epochs :]
    assert result["train_loss"] == total(epoch) / len(epoch)
    assert (result["plan"] is not None) == (row["plan"] is not None)
    if row["plan"] is not None:
        assert result["plan"]["recomputed"] > 0


def total(values):
    """In this order: `sum` compensates in some versions of Python."""
    result = 0.0
    for value in values:
        result += value
    return result


def compare(found, wanted):
    assert set(found) == set(wanted)
    for name, tensor in found.items():
        expected = wanted[name]
        values = tensor.flatten().tolist() if isinstance(expected, list) else int(tensor)
        if values != expected:
            pairs = [
                (i, a, b) for i, (a, b) in enumerate(zip(values, expected, strict=True)) if a != b
            ]
            raise AssertionError(f"{name}: {len(pairs)} of {len(values)} differ: {pairs[:5]}")


def test_the_rows_hold_every_pair():
    assert set().union(*map(pairs_of, CHOSEN)) == every_pair()
    assert covering() == CHOSEN  # in every process: workers take rows by their numbers
