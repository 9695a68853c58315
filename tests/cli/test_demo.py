import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from samebits import demo


class Result(SimpleNamespace):
    """The result of a demo that computes nothing."""

    page = Path("out/report.html")

    def __bool__(self):
        return self.same

    def __str__(self):
        return f"same bits: {'yes' if self.same else 'NO'}"

    def to_dict(self):
        return {"same_bits": self.same}


@pytest.fixture
def calls(monkeypatch):
    """Calls of `demo.run`, which trains nothing but reports an epoch of two runs."""
    found = SimpleNamespace(same=True, arguments=[])
    epoch = {"epoch": 1, "step": 2, "train_loss": 0.5, "test_accuracy": 0.75, "seconds": 0.25}

    def run(out, seed, threads, reporter_of):
        found.arguments.append((out, seed, threads))
        for title in ("cnn bfp", "cnn float32"):
            reporter = reporter_of(title)
            if reporter is not None:
                reporter.started(0, 2)
                reporter.epoch_done(epoch)
        return Result(same=found.same)

    monkeypatch.setattr(demo, "run", run)
    return found


def test_the_result_is_printed_and_progress_goes_to_stderr(samebits, calls):
    done = samebits("demo", "--out", "out", "--seed", 3, "--threads", 2)
    assert (done.code, done.out) == (0, "same bits: yes\n")
    assert calls.arguments == [(Path("out"), 3, 2)]
    line = "epoch 1  step 2  train loss 0.5000  test accuracy 75.00 %  (0.2 s)"
    assert done.err.splitlines() == [
        f"cnn bfp: {line}",
        f"cnn float32: {line}",
        "report: out/report.html",
    ]


def test_a_quiet_demo_prints_its_result_alone(samebits, calls):
    done = samebits("demo", "--quiet")
    assert (done.out, done.err) == ("same bits: yes\n", "")
    assert calls.arguments == [(Path("samebits-demo"), 0, None)]


def test_json_stands_alone_on_stdout(samebits, calls):
    assert json.loads(samebits("demo", "--json").out) == {"same_bits": True}


def test_a_difference_is_exit_code_1(samebits, calls):
    calls.same = False
    for options in ([], ["--json"]):
        assert samebits("demo", *options).code == 1
    assert samebits("demo").out == "same bits: NO\n"


def test_a_seed_that_is_none_is_refused(samebits, calls):
    done = samebits("demo", "--seed", -1)
    assert done.code == 2
    assert "expected a whole number from 0 to 4294967295, found '-1'" in done.err
    assert calls.arguments == []
