"""One hash over threads, instruction sets and realisations: processes of their own."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from samebits import kernels

STEPS, MANY_STEPS = 10, 200
CAPS = {
    "default": {},
    "ATEN default": {"ATEN_CPU_CAPABILITY": "default"},
    "ATEN avx2": {"ATEN_CPU_CAPABILITY": "avx2"},
    "oneDNN AVX2": {"ONEDNN_MAX_CPU_ISA": "AVX2", "ATEN_CPU_CAPABILITY": "avx2"},
    "oneDNN AVX512_CORE": {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE"},
    "native x86-64-v2": {"SAMEBITS_NATIVE_ARCH": "x86-64-v2"},
    "native x86-64-v3": {"SAMEBITS_NATIVE_ARCH": "x86-64-v3"},
}
QUICK = [
    ("default", 2, "native"),
    pytest.param("native x86-64-v2", 2, "native", marks=pytest.mark.slow),
    pytest.param("ATEN default", 2, "eager", marks=pytest.mark.slow),
]
ALL = [(cap, threads, name) for cap in CAPS for threads in (1, 2) for name in ("native", "eager")]
ALL += [("default", 1, "compiled"), ("ATEN avx2", 2, "compiled")]


@functools.cache
def parameter_hash(
    cap: str, threads: int, realisation: str, steps: int = STEPS, exponents: str = "tensor"
) -> str:
    environment = {k: v for k, v in os.environ.items() if k not in ("ATEN_CPU_CAPABILITY",)}
    environment.update(CAPS[cap])
    script = Path(__file__).with_name("same_bits_run.py")
    command = [sys.executable, str(script), str(steps), str(threads), realisation, exponents]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    return run.stdout.strip()


def skip_unless_possible(cap: str, realisation: str) -> None:
    if realisation == "native" and kernels.realisation() != "native":
        pytest.skip("native kernels need a C compiler")
    if cap.startswith("native") and not torch.backends.cpu.get_cpu_capability().startswith("AVX"):
        pytest.skip("x86-64 instruction-set levels need an x86-64 CPU with AVX2")


@pytest.mark.parametrize(("cap", "threads", "realisation"), QUICK)
def test_same_hash(cap: str, threads: int, realisation: str) -> None:
    skip_unless_possible(cap, realisation)
    assert parameter_hash(cap, threads, realisation) == parameter_hash("default", 1, "eager")


@pytest.mark.parametrize(
    ("cap", "threads", "realisation"),
    [
        pytest.param("default", 2, "native", marks=pytest.mark.slow),
        pytest.param("ATEN default", 2, "eager", marks=pytest.mark.slow),
    ],
)
def test_same_hash_with_exponents_by_rows(cap: str, threads: int, realisation: str) -> None:
    skip_unless_possible(cap, realisation)
    expected = parameter_hash("default", 1, "eager", STEPS, "row-shift")
    assert parameter_hash(cap, threads, realisation, STEPS, "row-shift") == expected


@pytest.mark.slow
@pytest.mark.parametrize(("cap", "threads", "realisation"), ALL)
def test_same_hash_everywhere(cap: str, threads: int, realisation: str) -> None:
    skip_unless_possible(cap, realisation)
    expected = parameter_hash("default", 1, "eager", MANY_STEPS)
    assert parameter_hash(cap, threads, realisation, MANY_STEPS) == expected
