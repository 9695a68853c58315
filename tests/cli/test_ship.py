"""`samebits ship`: one command, one summary, exit codes."""

from __future__ import annotations

import json

import numpy as np
import pytest

from samebits.verification.backends.pytorch import PyTorch
from tiny_models import quantized_file

NET = """
import torch
from torch import nn


def make():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 3), nn.Tanh())
"""


@pytest.fixture(autouse=True)
def no_sizes(monkeypatch):
    monkeypatch.setattr("samebits.codegen.run.requirements.BOARDS", ())


@pytest.fixture
def shelf(tmp_path, monkeypatch):
    """A folder with net.py and samples, which is the current one."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.py").write_text(NET)
    x = np.random.default_rng(0).normal(size=(9, 4)).astype(np.float32)
    np.savez(tmp_path / "samples.npz", x=x)
    return tmp_path


def test_a_model_of_a_file(samebits, shelf):
    done = samebits(
        "ship", "net.py:make", "--data", "samples.npz", "--package", "zephyr",
        "--backends", "torch", "--out", "firmware",
    )  # fmt: skip
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith("Shipping net.py:make\n")
    assert done.out.endswith(
        "written: firmware, for zephyr; see its README.md\n\nreport: firmware/report.html\n"
    )
    assert (shelf / "firmware" / "zephyr" / "module.yml").is_file()


def test_json(samebits, shelf):
    model = quantized_file(shelf / "q.onnx")
    done = samebits("ship", model, "--backends", "torch", "--out", "c", "--json")
    record = json.loads(done.out)
    assert (done.code, record["out"], record["page"]) == (0, "c", "c/report.html")
    assert record["compiled"]["out"] == "c"
    assert len(record["notes"]) == 1


def test_a_difference(samebits, shelf, monkeypatch):
    run = PyTorch.run
    monkeypatch.setattr(PyTorch, "run", lambda *given: [codes ^ 1 for codes in run(*given)])
    model = quantized_file(shelf / "q.onnx")
    done = samebits("ship", model, "--backends", "torch", "--out", "c")
    assert done.code == 1
    assert done.out.endswith("nothing written: no package without the same bits\n")
    assert not (shelf / "c").exists()
