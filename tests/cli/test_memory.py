"""Memory that ends, really: in code of a user's own, in torch, under a limit of the system."""

import subprocess
import sys

import pytest

OWN = """
import torch
from torch import nn

class Greedy(nn.Module):
    def __init__(self, classes, size):
        super().__init__()
        self.flat, self.dense, self.size = nn.Flatten(), nn.Linear(36, classes), size

    def forward(self, x):
        if self.size is None:
            raise MemoryError
        return self.dense(self.flat(x)) + torch.zeros(self.size)[:1]

def forward(input_shape, classes):
    return Greedy(classes, 1 << 50)

def python(input_shape, classes):
    return Greedy(classes, None)

def weights(input_shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(36, 1 << 44))

def wide(input_shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(36, 1 << 20), nn.ReLU(), nn.Linear(1 << 20, 3))
"""
ADVICE = (
    "; lower --batch, recompute with --memory-budget, use fewer samples, or a machine with more "
    "memory\n"
)


@pytest.fixture
def own(tmp_path):
    (tmp_path / "own.py").write_text(OWN)
    return tmp_path / "own.py"


@pytest.mark.parametrize("plan", ["none", "auto"])
@pytest.mark.parametrize("numerics", ["float32", "bfp"])
@pytest.mark.parametrize(
    ("arch", "amount"),
    [
        ("forward", f"{4 << 50} bytes more of free memory"),
        ("python", "enough free memory"),
        ("weights", f"{4 * 36 << 44} bytes more of free memory"),
    ],
)
def test_a_model_that_needs_too_much(samebits, npz, own, tmp_path, arch, amount, numerics, plan):
    """In its construction, in its forward pass, and while a plan is made for it."""
    done = samebits(
        *("train", "--data", npz, "--arch", f"{own}:{arch}", "--epochs", 1, "--batch", 32),
        *("--numerics", numerics, "--plan", plan, "--out", tmp_path / "run"),
    )
    assert (done.code, done.out) == (2, "")
    assert done.err.endswith(f"error: expected {amount}, found less{ADVICE}")


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc and a limit on memory")
@pytest.mark.parametrize("numerics", [pytest.param("float32", marks=pytest.mark.slow), "bfp"])
def test_a_limit_of_the_system(npz, own, tmp_path, numerics):
    """200 MB more than a process has that is about to train a network which needs 500."""
    program = f"""
import resource, sys
from samebits import kernels
from samebits.cli import main
import torch
kernels.of(torch.zeros(1))
pages = int(open("/proc/self/statm").read().split()[0])
limit = pages * resource.getpagesize() + (200 << 20)
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
main("train --data {npz} --arch {own}:wide --numerics {numerics} --epochs 1 --batch 96 --threads 1 \
--out {tmp_path}/run".split())
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    assert "Traceback" not in done.stderr
    assert done.stderr.endswith(f"found less{ADVICE}explain: samebits explain memory\n")
