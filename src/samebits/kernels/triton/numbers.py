"""Numbers that lie in the memory of a device, and the flag of exponents that leave their range.

An operation gives its exponent and its largest magnitude as such numbers. The next one hands their
places to a kernel, so that nobody waits for the device until somebody reads one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from samebits.errors import InputError
from samebits.kernels.geometry import not_finite, out_of_range
from samebits.kernels.norm import unfit_scale

UNFIT_SCALE, NOT_FINITE, BAD_INDEX = 1 << 20, 1 << 21, 1 << 22
"""In the flag, in place of an exponent: what else is found late."""
NAN = 1  # added where what is not finite is no number
UNREAD = 1 << 200
"""What C code finds in the place of a number that was not read: none that it can hold."""


class DeviceNumber(int):
    """The number in a cell, int64 [] on a device, plus an offset that is known.

    It may be added to others and go to kernels; all else that Python does with it reads it, which
    waits for the device.
    """

    cell: Tensor
    offset: int

    def __new__(cls, cell: Tensor, offset: int = 0) -> DeviceNumber:
        made = int.__new__(cls, UNREAD)
        made.cell, made.offset = cell, offset
        return made

    def read(self) -> int:
        """The number. Waits for the device."""
        return int(self.cell.item()) + self.offset

    @property
    def numerator(self) -> int:
        """The number, of which `fractions` asks in this way. Waits for the device."""
        return self.read()

    def tensor(self) -> Tensor:
        """The number as int64 [], which waits for nothing."""
        return self.cell + self.offset if self.offset else self.cell

    def __add__(self, other: int) -> Any:
        if isinstance(other, DeviceNumber):
            return DeviceNumber(self.cell + other.cell, self.offset + other.offset)
        return (
            DeviceNumber(self.cell, self.offset + other) if type(other) is int else NotImplemented
        )

    __radd__ = __add__

    def __mul__(self, other: int) -> Any:
        if type(other) is not int:
            return self.read() * other
        return DeviceNumber(self.cell * other, self.offset * other)

    __rmul__ = __mul__

    def larger(self, other: int) -> DeviceNumber:
        """The larger of two numbers."""
        rest = other.tensor() if isinstance(other, DeviceNumber) else other
        return DeviceNumber(self.tensor().clamp(min=rest))

    def __neg__(self) -> DeviceNumber:
        return DeviceNumber(-self.cell, -self.offset)

    def __sub__(self, other: int) -> Any:
        return self + -other if isinstance(other, int) else NotImplemented

    def __rsub__(self, other: int) -> Any:
        return -self + other

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        """A function of torch that takes such numbers beside tensors."""
        given = {k: v.tensor() if isinstance(v, cls) else v for k, v in (kwargs or {}).items()}
        return func(*(v.tensor() if isinstance(v, cls) else v for v in args), **given)

    def __reduce__(self) -> Any:
        return int, (self.read(),)


def _reading(name: str) -> Callable[..., Any]:
    """A method of numbers that reads them first."""

    def method(self: DeviceNumber, *others: Any) -> Any:
        return getattr(self.read(), name)(*(plain(other) for other in others))

    return method


for _name in (
    *("__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__", "__bool__", "__int__"),
    *("__index__", "__float__", "__hash__", "__str__", "__repr__", "__format__", "__abs__"),
    *("__floordiv__", "__mod__", "__lshift__", "__rlshift__"),
    *("__rshift__", "__rrshift__", "__and__", "__or__", "__xor__", "__pow__", "__rpow__"),
    *("__truediv__", "__rtruediv__", "bit_length", "bit_count", "__rfloordiv__", "__rmod__"),
    *("__divmod__", "__rdivmod__", "__rand__", "__ror__", "__rxor__", "__pos__", "__invert__"),
    *("__round__", "__trunc__", "__floor__", "__ceil__"),
):
    setattr(DeviceNumber, _name, _reading(_name))


def plain(v: Any) -> Any:
    """A number as Python knows it, read where it lies on a device; all else as it is."""
    if isinstance(v, DeviceNumber):
        return v.read()
    if isinstance(v, tuple):
        found = [plain(each) for each in v]
        return type(v)(*found) if hasattr(v, "_fields") else tuple(found)
    return [plain(each) for each in v] if isinstance(v, list) else v


def _cell_of(name: str) -> Callable[[torch.device], Tensor]:
    """One cell of 0 for each device, by whatever name a device is called."""
    cells: dict[tuple[str, int], Tensor] = {}

    def cell(device: torch.device) -> Tensor:
        """The cell of a device."""
        index = device.index or 0
        if device.type == "cuda" and device.index is None:
            index = torch.cuda.current_device()
        own = (device.type, index)
        if own not in cells:
            cells[own] = torch.zeros((), dtype=torch.int64, device=device)
        return cells[own]

    cell.__name__ = cell.__qualname__ = name
    return cell


zero = _cell_of("zero")  # beside which a number that is known is all offset


def place(v: int, device: torch.device) -> tuple[Tensor, int]:
    """The cell and the offset of a number, as kernels take them."""
    return (v.cell, v.offset) if isinstance(v, DeviceNumber) else (zero(device), v)


def tensor_of(v: int | Tensor, device: torch.device) -> Tensor:
    """A number as int64 [] on a device, which waits for nothing; a tensor as it is."""
    if isinstance(v, Tensor):
        return v
    own, by = place(v, device)
    return own + by


flag = _cell_of("flag")
"""Where kernels leave the largest exponent that passed 127: int64 [], 0 while there is none."""


def check(device: torch.device) -> None:
    """Raise RangeError if an exponent has passed 127 since the last look, or a number was not
    finite, and InputError for an index out of range. Waits for the device."""
    found = int(flag(device).item())
    if not found:
        return
    flag(device).zero_()
    if found == BAD_INDEX:
        raise InputError("expected indices of classes or rows that there are, found others")
    value = math.nan if found & NAN else math.inf
    if found & UNFIT_SCALE:
        raise unfit_scale(value)
    raise not_finite(value) if found & NOT_FINITE else out_of_range(found)
