"""This machine as a `Device`: what its memory and arithmetic reach from PyTorch, measured."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable
from typing import Any

import torch

from samebits import kernels
from samebits.kernels import conv_shape
from samebits.recompute.plan.cost import Device, Tier

LINE = 64  # bytes
# glibc's names; where a system does not know them, caches of a common size are assumed.
CACHES = (
    ("registers and L1 cache", "SC_LEVEL1_DCACHE_SIZE", 32 << 10),
    ("on-chip L2 cache", "SC_LEVEL2_CACHE_SIZE", 1 << 20),
    ("on-chip L3 cache", "SC_LEVEL3_CACHE_SIZE", 8 << 20),
)
MEMORY = 64 << 20  # bytes that stand for off-chip memory, at least


def measure_device(seconds: float = 0.2) -> Device:
    """Bandwidth and random-read time of each tier, throughput and dispatch, on torch's threads.

    seconds: spent on each of about ten measurements; the best time counts. The figures are those of
    this moment: they serve plans and never reach a result.
    """
    caches: list[tuple[str, int]] = []
    for name, key, assumed in CACHES:
        size = _sysconf(key) or assumed
        if not caches or size > caches[-1][1]:
            caches.append((name, size))
    memory = max(_sysconf("SC_PAGE_SIZE") * _sysconf("SC_PHYS_PAGES"), 2 * caches[-1][1])
    tiny = torch.zeros(8)
    dispatch = _best(lambda: torch.add(tiny, tiny, out=tiny), seconds)
    tiers: list[Tier] = []
    for name, size in reversed([*caches, ("off-chip memory", memory)]):
        room = size // 2 if tiers else max(MEMORY, 4 * caches[-1][1])
        rate, latency = _memory(room, dispatch, seconds)
        if tiers:  # a nearer tier is not slower: what looks so is noise
            rate = max(rate, tiers[0].bytes_per_second)
            latency = min(latency, tiers[0].latency_ns)
        tiers.insert(0, Tier(name, size, rate, latency))
    return Device(
        f"{platform.machine()}, {torch.get_num_threads()} threads",
        _integer_rate(seconds),
        _float_rate(seconds),
        max(int(dispatch * 1e9), 1),
        tuple(tiers),
    )


def _sysconf(name: str) -> int:
    try:
        return max(os.sysconf(name), 0)
    except (ValueError, OSError, AttributeError):
        return 0


def _best(action: Callable[[], Any], seconds: float) -> float:
    """The shortest time of the calls that fit in `seconds`, three calls at least."""
    best, calls, end = float("inf"), 0, time.perf_counter() + seconds
    while calls < 3 or time.perf_counter() < end:
        start = time.perf_counter()
        action()
        best, calls = min(best, time.perf_counter() - start), calls + 1
    return best


def _memory(size: int, dispatch: float, seconds: float) -> tuple[int, int]:
    """Bytes per second of a read and a write over `size` bytes; ns of a read at random in them."""
    half = max(size // 2, 4 * LINE)
    source = torch.zeros(half // 4)
    target = torch.zeros_like(source)
    taken = _best(lambda: torch.add(source, 1.0, out=target), seconds) - dispatch
    rate = int(2 * half / max(taken, dispatch / 10))
    rows = torch.zeros(max(size // LINE, 8), LINE // 4)
    places = torch.randint(len(rows), (4096,), generator=torch.Generator().manual_seed(0))
    taken = _best(lambda: torch.index_select(rows, 0, places), seconds) - dispatch
    return max(rate, 1), max(int(taken * 1e9 / len(places)), 0)


def _integer_rate(seconds: float) -> int:
    """Operations per second of the exact 8-bit convolution."""
    x = torch.ones((16, 64, 16, 16), dtype=torch.int8)
    w = torch.ones((64, 64, 3, 3), dtype=torch.int8)
    kernel, shape = kernels.of(x), conv_shape((16, 64, 16, 16), (64, 64, 3, 3), padding=(1, 1))
    operations = 2 * 16 * 64 * 16 * 16 * 64 * 9
    return int(operations / _best(lambda: kernel.conv(x, w, shape), seconds))


def _float_rate(seconds: float) -> int:
    n = 512
    a = torch.ones(n, n)
    return int(2 * n**3 / _best(lambda: a @ a, seconds))
