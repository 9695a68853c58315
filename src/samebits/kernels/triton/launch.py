"""How kernels are launched: places of numbers, memory orders, tiles."""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Iterator
from typing import Any

import torch
import triton
from torch import Tensor

from samebits.errors import UnsupportedError
from samebits.kernels.geometry import ConvShape
from samebits.kernels.memory import dense
from samebits.kernels.triton.integers import rne
from samebits.kernels.triton.numbers import DeviceNumber

INTERPRETED = type(rne).__name__ == "InterpretedFunction"
"""Whether Triton's interpreter runs the kernels, on the CPU: TRITON_INTERPRET was 1."""
BLOCK = 4096 if INTERPRETED else 1024
EXACT = {"enable_fp_fusion": False}
"""Of kernels whose binary64 is rounded operation by operation: no fused multiply-adds."""


def check_device(v: Tensor) -> None:
    """Refuse tensors that no kernel here computes on. Raises UnsupportedError."""
    if v.is_cuda or (INTERPRETED and v.is_cpu):
        return
    raise UnsupportedError(
        f"Triton kernels: expected tensors on a CUDA device, found some on {v.device}; "
        "TRITON_INTERPRET=1 runs them on the CPU, slowly"
    )


def ordered(v: Tensor) -> Tensor:
    """A tensor whose elements fill its memory, on a device that kernels compute on."""
    check_device(v)
    return dense(v)


def over(kernel: Any, n: int, *arguments: Any, **options: Any) -> None:
    """Launch a kernel over n elements, BLOCK a program; none for no elements."""
    if n:
        size = options.pop("BLOCK", BLOCK)
        kernel[(triton.cdiv(n, size),)](*arguments, BLOCK=size, **EXACT | options)


class Slots:
    """Memory of the cells of a step, which one memset clears; beyond it each has its own."""

    def __init__(self, device: torch.device) -> None:
        self.memory, self.taken = torch.zeros(0, dtype=torch.int64, device=device), 0
        self.former = list[Tensor]()  # which a captured step may still use

    def take(self, count: int) -> Tensor:
        """So many cells of 0."""
        first, self.taken = self.taken, self.taken + count
        if self.taken <= len(self.memory):
            return self.memory[first : self.taken]
        return self.memory.new_zeros(count)


_SLOTS: dict[torch.device, Slots] = {}
_USED: list[Slots] = []  # by the step that is being made


@contextlib.contextmanager
def slots(device: torch.device) -> Iterator[None]:
    """Let the cells of a step, a with block, lie in memory that is cleared as it begins.

    They are as many as those of the largest step before.
    """
    if device not in _SLOTS:
        _SLOTS[device] = Slots(device)
    own = _SLOTS[device]
    if own.taken > len(own.memory):
        own.former.append(own.memory)
        own.memory = own.memory.new_empty(own.taken)
    own.memory.zero_()
    own.taken = 0
    _USED.append(own)
    try:
        yield
    finally:
        _USED.pop()


def cell(like: Tensor, count: int | None = None) -> Tensor:
    """A number, or several, that a kernel raises from 0: int64."""
    if _USED:
        own = _USED[-1].take(1 if count is None else count)
        return own.view(()) if count is None else own
    return torch.zeros(() if count is None else count, dtype=torch.int64, device=like.device)


def room(like: Tensor, count: int | None = None) -> Tensor:
    """A number, or several, that a kernel writes: int64."""
    return torch.empty(() if count is None else count, dtype=torch.int64, device=like.device)


def found(v: Tensor) -> DeviceNumber:
    """The number in a cell."""
    return DeviceNumber(v)


def bits_of(value: float) -> int:
    """A binary64 as an argument of kernels: Triton takes numbers of Python as binary32."""
    return struct.unpack("<q", struct.pack("<d", value))[0]


def real_of(bits: int) -> float:
    """The binary64 of 64 bits."""
    (value,) = struct.unpack("<d", struct.pack("<q", bits))
    return float(value)


def block_of(n: int) -> int:
    """The least power of two that holds n places in one program."""
    return triton.next_power_of_2(max(n, 1))


def geometry(s: ConvShape) -> dict[str, int]:
    """The constants of a convolution; channels are those of a group."""
    names = ("SH", "SW", "PH", "PW", "DH", "DW")
    own = dict(zip(names, (*s.stride, *s.padding, *s.dilation), strict=True))
    return {"CI": s.ci // s.groups, "CO": s.co // s.groups, "KH": s.kh, "KW": s.kw, **own}


def sizes(s: ConvShape) -> tuple[int, ...]:
    """Images and groups of a convolution, as all products take them."""
    return s.h, s.w, s.oh, s.ow, s.groups


def tiles(m: int, n: int, k: int, widest: int = 128) -> dict[str, int]:
    """The tile of a product of so many rows, columns and terms."""
    rows, columns, terms = (max(16, block_of(v)) for v in (m, n, k))
    own = {"BM": min(rows, 128), "BN": min(columns, widest), "BK": min(max(terms, 32), 64)}
    return {**own, "num_warps": 8 if own["BM"] == 128 else 4}
