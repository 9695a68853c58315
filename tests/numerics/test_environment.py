"""Other rounding modes and flushed subnormal numbers: noticed, in this thread and in torch's."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest
import torch

from samebits.errors import InputError
from samebits.numerics.environment import check_thread, check_threads

# fenv.h of x86-64 and of aarch64
MODES = {
    "x86_64": {"downward": 0x400, "upward": 0x800, "towards zero": 0xC00},
    "aarch64": {"upward": 0x400000, "downward": 0x800000, "towards zero": 0xC00000},
}.get(platform.machine(), {})

SCRIPT = """
import ctypes, sys, torch
torch.set_num_threads(2)
from samebits.errors import InputError
from samebits.numerics.environment import check_thread, check_threads
from samebits.train import SGD, BFPTensor, convert, mse_loss
libm = ctypes.CDLL("libm.so.6")
model = convert(torch.nn.Sequential(torch.nn.Linear(4, 2)))
optimizer = SGD(model.parameters(), lr=0.1)
mse_loss(model(BFPTensor.from_real(torch.ones(3, 4))), torch.zeros(3, 2)).backward()
check_threads()
before = model.state_dict()
before = {key: value.clone() for key, value in before.items()}
assert libm.fesetround(int(sys.argv[1])) == 0
for check in (check_thread, check_threads, optimizer.step):
    try:
        check()
    except InputError as error:
        assert "expected arithmetic that rounds to nearest" in str(error), error
    else:
        raise AssertionError(f"{check} accepts it")
libm.fesetround(0)
assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())
optimizer.step()
"""
THREADS = """
import ctypes, sys, torch
from samebits.errors import InputError
from samebits.numerics.environment import check_thread, check_threads
libm = ctypes.CDLL("libm.so.6")
libm.fesetround(int(sys.argv[1]))
torch.set_num_threads(2)
torch.ones(1 << 20).add(1)  # starts the threads, which inherit the mode
libm.fesetround(0)
check_thread()
try:
    check_threads()
except InputError as error:
    assert "expected torch's threads to round to nearest" in str(error), error
else:
    raise AssertionError("the threads' mode is not seen")
"""


def run(script: str, mode: int) -> None:
    command = [sys.executable, "-c", script, str(mode)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(not MODES or sys.platform != "linux", reason="modes of this machine unknown")
@pytest.mark.parametrize(
    "mode",
    [m if m == "upward" else pytest.param(m, marks=pytest.mark.slow) for m in MODES],
)
def test_a_rounding_mode_is_refused_before_anything_changes(mode: str) -> None:
    run(SCRIPT, MODES[mode])


@pytest.mark.skipif(not MODES or sys.platform != "linux", reason="modes of this machine unknown")
def test_a_mode_that_threads_inherited() -> None:
    run(THREADS, MODES["upward"])


def test_flushed_subnormal_numbers() -> None:
    check_threads()
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor cannot flush subnormal numbers")
    try:
        with pytest.raises(InputError, match="expected subnormal numbers, found them flushed"):
            check_thread()
    finally:
        torch.set_flush_denormal(False)
    check_threads()
