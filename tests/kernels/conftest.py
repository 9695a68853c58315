"""Every realisation of the kernels that this machine can run."""

from __future__ import annotations

import functools
import platform

import pytest
import torch

import interpreted
from samebits.kernels import build
from samebits.kernels.eager import Eager
from samebits.kernels.native import Native

# Flags of /proc/cpuinfo that tell an x86-64 level from the one below (x86-64 psABI, 3.1.1).
LEVELS = {
    "x86-64-v2": {"ssse3", "sse4_1", "sse4_2", "popcnt", "cx16", "lahf_lm"},
    "x86-64-v3": {"avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "movbe"},
    "x86-64-v4": {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"},
}
# "native" is the highest level that this machine has; the slow set runs the others too.
REALISATIONS = (
    *("eager", "native"),
    *(pytest.param(name, marks=pytest.mark.slow) for name in (*LEVELS, "triton")),
)


@functools.cache
def cpu_flags() -> frozenset[str]:
    try:
        with open("/proc/cpuinfo") as file:
            lines = [line for line in file if line.startswith("flags")]
    except OSError:
        lines = []
    return frozenset(lines[0].split(":")[1].split()) if lines else frozenset()


@functools.cache
def load(name: str):
    """The kernels, or why they cannot run here."""
    if name == "eager":
        return Eager()
    if name == "triton":
        return interpreted.MISSING or interpreted.checked()
    if name in LEVELS:
        if platform.machine().lower() not in ("x86_64", "amd64"):
            return f"{name}: this machine is {platform.machine()}"
        levels = list(LEVELS)[: list(LEVELS).index(name) + 1]
        missing = set().union(*(LEVELS[level] for level in levels)) - cpu_flags()
        if missing:
            return f"{name}: this CPU lacks {', '.join(sorted(missing))}"
    try:
        return Native(None if name == "native" else name)
    except build.BuildError as error:
        return f"{name}: {error}"


@pytest.fixture(params=REALISATIONS, scope="module")
def k(request):
    """A realisation."""
    loaded = load(request.param)
    if isinstance(loaded, str):
        pytest.skip(loaded)
    return loaded


def pytest_collection_modifyitems(items):
    """An interpreter has one thread."""
    own = [getattr(item, "callspec", None) for item in items]
    items[:] = [
        item
        for item, spec in zip(items, own, strict=True)
        if spec is None or spec.params.get("k") != "triton" or spec.params.get("threads") != 2
    ]


@pytest.fixture(params=[1, 2])
def threads(request):
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)
