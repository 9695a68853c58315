"""This machine as a `Device`: what its memory and arithmetic reach from PyTorch, measured."""

from __future__ import annotations

import math
import os
import platform
import statistics
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn

from samebits import kernels
from samebits.kernels import conv_shape
from samebits.recompute.network.operations import PER_ELEMENT
from samebits.recompute.plan.cost import Device, Tier
from samebits.recompute.run.profile import survey
from samebits.recompute.run.timing import PICOSECONDS_PER_NANOSECOND, measured_times, shortest
from samebits.train.convert import convert
from samebits.train.losses.difference import mse_loss
from samebits.train.tensor import BFPTensor

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
    dispatch = _best(lambda: torch.add(tiny, tiny), seconds)
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
        _pointwise_rate(dispatch, seconds),
        max(int(dispatch * 1e9), 1),
        max(int(_overhead() - dispatch * 1e9), 0),
        tuple(tiers),
    )


def _sysconf(name: str) -> int:
    try:
        return max(os.sysconf(name), 0)
    except (ValueError, OSError, AttributeError):
        return 0


def _best(action: Callable[[], Any], seconds: float) -> float:
    """The shortest time of the calls that fit in `seconds`, three calls at least."""
    return shortest(action, seconds) / 1e9


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
    """Operations per second of products as networks have them: the geometric mean of four."""
    rates = []
    for rows, width in ((64, 128), (1024, 128)):
        a, b = torch.ones(rows, width), torch.ones(width, width)
        rates.append(2 * rows * width**2 / _best(partial(torch.mm, a, b), seconds / 4))
    for channels, size in ((16, 32), (64, 8)):
        x, w = torch.ones(8, channels, size, size), torch.ones(channels, channels, 3, 3)
        operations = 2 * x.numel() * channels * 9
        taken = _best(partial(torch.conv2d, x, w, padding=1), seconds / 4)
        rates.append(operations / taken)
    return int(math.prod(rates) ** (1 / len(rates)))


def _pointwise_rate(dispatch: float, seconds: float) -> int:
    """Operations per second of a batch-norm, whose kernel is slow enough to hide memories."""
    x = torch.ones(8, 32, 32, 32)
    taken = _best(lambda: nn.functional.batch_norm(x, None, None, training=True), seconds)
    count = PER_ELEMENT["native_batch_norm"] * x.numel()
    return max(int(count / max(taken - dispatch, dispatch / 10)), 1)


def _overhead(passes: int = 20) -> float:
    """Nanoseconds that a sub-layer of nearly no elements takes in a pass in BFP."""
    chain = convert(nn.Sequential(*(nn.ReLU() for _ in range(16))))
    tape, network = survey(chain, x := BFPTensor.from_real(torch.ones(1, 8)), _loss)
    taken = measured_times(tape, network, x, passes)[1:]
    return statistics.median(taken) / PICOSECONDS_PER_NANOSECOND


def _loss(output: Any) -> torch.Tensor:
    return mse_loss(output, torch.zeros(output.shape))
