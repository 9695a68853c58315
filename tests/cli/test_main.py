"""What all commands have in common: versions, help, completion, quiet, JSON, warnings, Ctrl-C."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import warnings
from importlib import metadata

import numpy as np
import pytest
import torch
from google.protobuf.message import DecodeError, EncodeError

import samebits as sb
from samebits import api, progress
from samebits.cli import app
from samebits.cli.output import RunProgress, working

COMMANDS = [command.name for command in app.registered_commands]


@pytest.fixture
def audit(monkeypatch):
    """Lets `samebits audit` do something else."""

    def instead(action):
        monkeypatch.setattr(api, "audit", lambda a, b: action())

    return instead


# --- versions, help, completion ---------------------------------------------------------------


def test_version(samebits):
    done = samebits("--version")
    expected = f"samebits {sb.__version__}, torch {metadata.version('torch')}\n"
    assert (done.code, done.out, done.err) == (0, expected, "")


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["quantize", "-h"]])
def test_help_loads_nothing_large(arguments):
    code = (
        "import sys\n"
        "from samebits.cli import main\n"
        f"try:\n    main({arguments})\n"
        "except SystemExit:\n"
        "    print(*({'torch', 'numpy', 'rich', 'onnx', 'samebits.api'} & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.stdout.splitlines()[-1], done.stderr) == ("", "")


def test_short_help(samebits):
    assert len(COMMANDS) == 21
    for command in ([], *([name] for name in COMMANDS)):
        short, long = samebits(*command, "-h"), samebits(*command, "--help")
        assert short == long
        assert (short.code, short.err) == (0, "")
        assert short.out.startswith(f"Usage: samebits {' '.join(command)}")


def test_no_command_is_help(samebits):
    done = samebits()
    assert (done.code, done.out) == (2, "")
    assert done.err == samebits("--help").out


def test_completion(samebits, monkeypatch):
    monkeypatch.setenv("_SAMEBITS_COMPLETE", "complete_bash")
    for words, position, expected in (
        ("samebits tr", 1, "train\ntrace\n"),
        ("samebits quantize --ga", 2, "--gates\n"),
        ("samebits train --arch mo", 3, "mobilenetv2\n"),
        ("samebits ship m.onnx --package a", 4, "arduino\n"),
        ("samebits compile m.onnx --cpu cortex-m5", 4, "cortex-m52\ncortex-m55\n"),
    ):
        monkeypatch.setenv("COMP_WORDS", words)
        monkeypatch.setenv("COMP_CWORD", str(position))
        done = samebits()
        assert (done.code, done.out) == (0, expected)


# --- quiet, JSON ------------------------------------------------------------------------------


def test_every_command_has_quiet_and_json(samebits):
    for command in COMMANDS:
        text = samebits(command, "--help").out
        assert "--quiet" in text, command
        assert "--json" in text, command


@pytest.mark.parametrize(
    "arguments",
    [
        ("eval", "none.onnx", "--data", "digits"),
        ("train", "--epochs", "0"),
        ("quantise",),
    ],
)
def test_errors_are_json_too(samebits, arguments):
    done = samebits(*arguments, "--json")
    told = json.loads(done.out)
    assert (done.code, done.out.count("\n")) == (2, 1)
    assert done.err == f"error: {told['error']}\n"
    assert told["explain"] in ("usage", "input-onnx")


def test_notes_are_for_stderr(samebits, shelf, tmp_path):
    command = ("quantize", shelf["open"], "--data", shelf["samples"])
    done = samebits(*command, "--out", tmp_path / "q.onnx")
    (note,) = done.err.splitlines()
    assert note.startswith("note: input 'x': its open leading dimension is fixed at 1")
    quiet = samebits(*command, "--out", tmp_path / "q.onnx", "--quiet")
    assert (quiet.code, quiet.out, quiet.err) == (0, done.out, "")
    fixed = samebits(*command, "--out", tmp_path / "q.onnx", "--shape", "x=2,4")
    assert (fixed.code, fixed.err) == (0, "")
    assert sb.load(tmp_path / "q.onnx").inputs[0].shape == (2, 4)


def test_quiet_training(samebits, npz, tmp_path):
    command = ("train", "--data", npz, "--arch", "mlp", "--epochs", 1, "--batch", 32)
    loud = samebits(*command, "--out", tmp_path / "a")
    quiet = samebits(*command, "--out", tmp_path / "b", "--quiet")
    assert (quiet.code, quiet.out, quiet.err) == (0, loud.out, "")
    assert "mlp bfp: epoch 1" in loud.err


def test_what_own_code_prints_is_no_json(samebits, npz, tmp_path):
    own = tmp_path / "own.py"
    own.write_text(
        "from torch import nn\n"
        "print('own code runs')\n"
        "def net(input_shape, classes):\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(36, classes))\n"
    )
    command = ("train", "--data", npz, "--arch", f"{own}:net", "--epochs", 1, "--batch", 32)
    done = samebits(*command, "--out", tmp_path / "run", "--json")
    assert (done.code, done.out.count("\n")) == (0, 1)
    assert json.loads(done.out)["config"]["arch"] == f"{own}:net"
    assert "own code runs\n" in done.err


def test_narrow_terminals_lose_no_text(samebits, shelf, monkeypatch):
    command = ("verify", shelf["quantized"], "--data", "random:2", "--backends", "torch")
    wide = samebits(*command)
    monkeypatch.setenv("COLUMNS", "20")
    assert samebits(*command) == wide


# --- warnings, errors, Ctrl-C -----------------------------------------------------------------


def test_a_warning_is_a_sentence(samebits, audit):
    def warn():
        warnings.warn(
            "torch has\n something to say. (Triggered internally at a.cpp:3.)", stacklevel=1
        )
        return api.Audit(("a", "b"), None)

    audit(warn)
    before = warnings.showwarning
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        done = samebits("audit", "a", "b", "--quiet")
    assert done.err == "warning: torch has something to say.\n"
    assert warnings.showwarning is before


@pytest.mark.parametrize(
    ("error", "amount"),
    [
        (MemoryError(), "enough free memory"),
        (OSError(12, "Cannot allocate memory"), "enough free memory"),
        (
            RuntimeError(
                "[enforce fail at alloc_cpu.cpp:117] err == 0. DefaultCPUAllocator: can't allocate "
                "memory: you tried to allocate 4000000000 bytes. Error code 12"
            ),
            "4000000000 bytes more of free memory",
        ),
        (
            torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a"),
            "2.00 GiB more of free memory",
        ),
        (np._core._exceptions._ArrayMemoryError((2**40,), np.dtype("f8")), "8.00 TiB more of free"),
        (SystemError("<method 'at'> returned NULL without setting an exception"), "enough free"),
        (SystemError("error return without exception set"), "enough free memory"),
        (EncodeError("Failed to serialize proto"), "enough free memory"),
        (DecodeError("Error parsing message: Arena alloc failed"), "enough free memory"),
    ],
)
def test_out_of_memory(samebits, audit, error, amount):
    def fail():
        raise error

    audit(fail)
    done = samebits("audit", "a", "b")
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith(f"error: expected {amount}")
    assert done.err.endswith(
        "; lower --batch, recompute with --memory-budget, use fewer samples, or a machine with "
        "more memory\n"
    )


def test_a_fault_of_the_program_is_not_hidden(audit):
    from samebits.cli import main

    def fail():
        raise RuntimeError("a bug")

    audit(fail)
    with pytest.raises(RuntimeError, match="a bug"):
        main(["audit", "a", "b"])


def test_files_that_cannot_be_read(samebits, audit):
    def fail():
        raise PermissionError(13, "Permission denied", "a.json")

    audit(fail)
    done = samebits("audit", "a", "b")
    assert (done.code, done.err) == (
        2,
        "error: a.json: expected a file that can be read or written, found: Permission denied; "
        "check the path and its permissions\n",
    )


def interrupt(*_):
    raise KeyboardInterrupt


def test_ctrl_c(samebits, audit):
    audit(interrupt)
    done = samebits("audit", "a", "b")
    assert (done.code, done.out, done.err) == (130, "", "interrupted\n")


def test_ctrl_c_in_training(samebits, npz, tmp_path, monkeypatch):
    command = ("train", "--data", npz, "--arch", "mlp", "--epochs", 2, "--batch", 32)
    whole = samebits(*command, "--out", tmp_path / "whole")
    out = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(RunProgress, "stepped", interrupt)
        done = samebits(*command, "--out", out)
    assert (done.code, done.out) == (130, "")
    assert done.err == (
        f"interrupted; {out} holds no checkpoint yet: run again with --resume, which starts from "
        "the first step; --checkpoint-every N writes one every N steps\n"
    )
    with monkeypatch.context() as patch:
        patch.setattr(RunProgress, "stepped", lambda self, step, loss: step < 5 or interrupt())
        done = samebits(*command, "--out", out, "--resume")
    assert (done.code, done.out) == (130, "")
    assert done.err.endswith(
        f"interrupted; {out} holds checkpoint-00000003.safetensors: run again with --resume\n"
    )
    done = samebits(*command, "--out", out, "--resume")
    assert (done.code, done.out) == (0, whole.out)


def test_of_several_workers_one_tells_of_ctrl_c(samebits, npz, tmp_path, monkeypatch):
    monkeypatch.setattr(api, "fit", lambda *a, **k: interrupt())
    monkeypatch.setenv("RANK", "1")
    done = samebits("train", "--data", npz, "--arch", "mlp", "--out", tmp_path / "run")
    assert (done.code, done.out, done.err) == (130, "", "")


# --- progress ---------------------------------------------------------------------------------


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def terminal(monkeypatch):
    """Makes stderr a terminal; called in a test, whose streams are not those of its fixtures."""

    def make():
        monkeypatch.setenv("TERM", "xterm")
        monkeypatch.setenv("COLUMNS", "120")
        found = Terminal()
        monkeypatch.setattr(sys, "stderr", found)
        return found

    return make


def test_a_bar_on_a_terminal(terminal, capsys):
    stderr = terminal()
    with working(quiet=False):
        for _ in progress.track(range(3), "calibrating", 3):
            pass
        progress.note("a dimension was fixed")
        progress.stage("generating C")
        print("a result")
    shown = stderr.getvalue()
    assert "calibrating" in shown
    assert "0/3" in shown
    assert "note: a dimension was fixed" in shown
    assert "generating C" in shown
    assert shown.endswith("\x1b[2K")  # the bar is gone
    assert capsys.readouterr().out == "a result\n"


def test_quiet_on_a_terminal(terminal):
    stderr = terminal()
    with working(quiet=True):
        progress.stage("generating C")
        progress.note("a dimension was fixed")
    assert stderr.getvalue() == ""


def test_no_bar_in_a_file(capsys):
    with working(quiet=False):
        progress.stage("generating C", 3)
        progress.note("a dimension was fixed")
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "note: a dimension was fixed\n")


def test_the_bar_goes_with_an_error(terminal):
    stderr = terminal()

    def work():
        with working(quiet=False):
            progress.stage("generating C")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        work()
    assert stderr.getvalue().endswith("\x1b[2K")


def test_training_on_a_terminal(terminal):
    stderr = terminal()
    run = RunProgress("mlp bfp")
    with working(False, drawn=run):
        progress.stage("planning")
        run.started(2, 6)
        run.stepped(3, 0.5)
        run.epoch_done({"epoch": 1, "step": 3, "train_loss": 0.5, "test_accuracy": 1, "seconds": 2})
        run.say("a.safetensors: [red]resuming")
    shown = stderr.getvalue()
    assert "2/6" in shown
    assert "mlp bfp: epoch 1  step 3  train loss 0.5000  test accuracy 100.00 %  (2.0 s)" in shown
    assert "[red]resuming" in shown


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full, a full disk")
def test_output_that_cannot_be_written():
    """What is still in Python's buffer when the command is done: a sentence and an exit code."""
    command = [sys.executable, "-m", "samebits", "--version"]
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONUNBUFFERED"}
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            command, stdout=full, stderr=subprocess.PIPE, text=True, env=environment, check=False
        )
    assert done.returncode == 2
    assert done.stderr.startswith(
        "error: standard output: cannot be written (No space left on device); give it another"
    )
    assert done.stderr.count("\n") == 2, done.stderr
