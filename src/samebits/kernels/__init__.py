"""Exact integer kernels of training, in four realisations with the same bits.

`eager` says what a realisation does, and does it in torch on any device; `compiled` is the same
fused by torch.compile, `native` C on the CPU, compiled at first use, and `triton` kernels for CUDA
devices. `of(tensor)` picks one: native where it can be built, else eager. $SAMEBITS_KERNELS or,
inside a with block, `use("eager")` chooses another; `triton` serves only where it is chosen, as it
has not run on a GPU yet. A realisation serves only after it has passed a full-range known-answer
test on this machine.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import os
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from samebits.errors import InputError, UnsupportedError
from samebits.kernels import selftest
from samebits.kernels.build import BuildError
from samebits.kernels.eager import Eager
from samebits.kernels.geometry import ConvShape, Window, conv_shape
from samebits.kernels.native import Native
from samebits.kernels.optimize import Roster, StepOptions, is_taken
from samebits.kernels.protocol import Part, WholePart
from samebits.kernels.routine import NotRecordableError, RoutineRecorder

__all__ = [
    "ConvShape",
    "Kernels",
    "Window",
    "announce",
    "cell",
    "check",
    "chosen",
    "clipped_by_norm",
    "clipped_by_value",
    "conv_shape",
    "enrols",
    "keeps_numbers",
    "kept_on",
    "number",
    "of",
    "on_behalf_of",
    "realisation",
    "recording",
    "slots",
    "use",
]

Kernels = Eager
"""The type of all realisations, of which each is one."""
REALISATIONS = ("native", "compiled", "eager", "triton")
_forced: list[str] = []
_recorders: list[RoutineRecorder] = []


@functools.cache
def _native() -> Native | None:
    """The native kernels if they can be built and pass their self-test; otherwise a warning."""
    try:
        native = Native()
    except BuildError as error:
        warnings.warn(f"native kernels are off (slower, same bits): {error}", stacklevel=4)
        return None
    if (wrong := selftest.failures(native, "cpu")) != []:
        warnings.warn(
            f"native kernels are off (slower, same bits): self-test failed in {', '.join(wrong)}",
            stacklevel=4,
        )
        return None
    return native


@functools.cache
def _triton(device: str) -> Kernels | None:
    """The Triton kernels if they run on a device and pass their self-test, else None; a warning
    where they fail."""
    if importlib.util.find_spec("triton") is None:
        return None
    from samebits.kernels.triton.launch import INTERPRETED
    from samebits.kernels.triton.realisation import Triton

    if device != ("cpu" if INTERPRETED else "cuda"):
        return None
    if wrong := selftest.failures(kernels := Triton(), device):
        warnings.warn(
            f"Triton kernels are off (slower, same bits): self-test failed in {', '.join(wrong)}",
            stacklevel=4,
        )
        return None
    return kernels


@functools.cache
def _serving(name: str, device: str) -> Kernels:
    """A realisation that has passed its self-test on a device."""
    if name == "native" and (native := _native()) is not None:
        return native
    if name == "triton" and (kernels := _triton(device)) is not None:
        return kernels
    kernels = Eager()
    if name == "compiled":
        from samebits.kernels.compiled import Compiled  # torch._dynamo takes a second to import

        kernels = Compiled()
    if wrong := selftest.failures(kernels, device):
        raise RuntimeError(
            f"the torch build on {device!r} fails the integer self-test in {', '.join(wrong)}: "
            "expected exact integers and float64 matrix products; use another torch build or device"
        )
    return kernels


def of(tensor: Tensor) -> Kernels:
    """The kernels that serve a tensor."""
    if _recorders:
        return _recorders[-1]
    device = tensor.device.type
    return _serving(realisation(device), device)


def realisation(device: str = "cpu") -> str:
    """The name of the realisation in use on a device.

    Raises InputError if $SAMEBITS_KERNELS is none of them.
    """
    name = _forced[-1] if _forced else chosen()
    if name == "triton" and _triton(device) is not None:
        return name
    if name in ("native", "triton"):  # each has a device of its own
        return "native" if device == "cpu" and _native() is not None else "eager"
    return name


def keeps_numbers(device: torch.device) -> bool:
    """Whether the kernels of a device keep exponents and largest magnitudes in its memory."""
    return realisation(device.type) == "triton"


def number(cell: Tensor, copied: bool = True) -> int:
    """The number in a cell, int64 []; where the kernels keep numbers on a device, not read yet.

    copied: as it is now, whatever the cell holds later
    """
    if not keeps_numbers(cell.device):
        return int(cell)
    from samebits.kernels.triton.numbers import DeviceNumber

    return DeviceNumber(cell.clone() if copied else cell)


@contextlib.contextmanager
def slots(device: torch.device) -> Iterator[None]:
    """Let the largest magnitudes inside a with block, a step, lie in memory that one launch clears,
    where the kernels of a device keep them; they are gone in the next one."""
    if not keeps_numbers(device):
        yield
        return
    from samebits.kernels.triton import launch

    with launch.slots(device):
        yield


def cell(value: int, device: torch.device) -> Tensor:
    """A number in a cell, int64 [], where the kernels of a device keep numbers."""
    own = device if keeps_numbers(device) else torch.device("cpu")
    return torch.tensor(int(value), device="cpu").to(own)


@functools.cache
def chosen() -> str:
    """The realisation that $SAMEBITS_KERNELS names, read once. Raises InputError as above."""
    name = os.environ.get("SAMEBITS_KERNELS", "native")
    if name not in REALISATIONS:
        raise InputError(
            f"SAMEBITS_KERNELS: expected one of {', '.join(REALISATIONS)}, found {name!r}"
        )
    return name


def enrols(codes: Tensor, delayed: Tensor, cell: Tensor) -> bool:
    """Whether `optimize` of the kernels takes a weight, W, A and the cell of its exponent."""
    takes = realisation(codes.device.type) in ("native", "triton")
    return takes and is_taken(codes, delayed, cell)


def kept_on(device: torch.device, numbers: Any) -> Any:
    """The numbers that an optimizer keeps of a parameter, where the kernels of a device do."""
    if not keeps_numbers(device):
        return numbers
    from samebits.kernels.triton.steps import DeviceNumbers

    return numbers if isinstance(numbers, DeviceNumbers) else DeviceNumbers(numbers, device)


def clipped_by_value(part: Part, limit: float) -> WholePart:
    """A gradient within +-limit, by the kernels of a device that keep numbers there."""
    from samebits.kernels.triton import limits

    return limits.by_value(of(part[0]), part, limit)


def clipped_by_norm(parts: Sequence[Part], limit: float) -> list[WholePart]:
    """Gradients within a common norm, as above."""
    from samebits.kernels.triton import limits

    return limits.by_norm(of(parts[0][0]), parts, limit)


def announce(roster: Roster, options: Sequence[StepOptions]) -> list[Tensor]:
    """Write the coefficients of a roster's step on a device, which reads them; what it changes."""
    from samebits.kernels.triton import steps

    steps.write_rates(roster, options)
    return steps.written(roster)


def check(device: torch.device) -> None:
    """Raise RangeError if kernels of a device have found an exponent out of range, since the last
    look. Waits for the device where they keep such numbers there."""
    if keeps_numbers(device):
        from samebits.kernels.triton import numbers

        numbers.check(device)


def recorder() -> RoutineRecorder:
    """A recorder of the native kernels. Raises NotRecordableError where they do not serve."""
    if realisation() != "native" or (native := _native()) is None:
        raise NotRecordableError("the kernels are not the native ones")
    return RoutineRecorder(native)


@contextlib.contextmanager
def recording(recorder: RoutineRecorder, part: str) -> Iterator[None]:
    """Let a recorder write down all kernel calls inside a with block, as a part of its routine.

    Raises NotRecordableError in the block where something else computes.
    """
    _recorders.append(recorder)
    try:
        with recorder.part(part):
            yield
    finally:
        _recorders.pop()


def on_behalf_of(layer: str, phase: str | None = None) -> str:
    """Tell the recorder, if there is one, for which layer kernels are called from here on, and in
    which phase of a step; gives the layer before."""
    if not _recorders:
        return ""
    recorder = _recorders[-1]
    before, recorder.layer = recorder.layer, layer
    if phase is not None:
        recorder.phase = phase
    return before


@contextlib.contextmanager
def use(name: str) -> Iterator[None]:
    """Force a realisation inside a with block; speed only, never bits.

    Raises UnsupportedError where the native kernels, or those in Triton, are asked for and not
    available.
    """
    if name not in REALISATIONS:
        raise ValueError(f"expected one of {REALISATIONS}, found {name!r}")
    if name == "native" and _native() is None:
        raise UnsupportedError("native kernels are not available: expected a working C compiler")
    if name == "triton" and importlib.util.find_spec("triton") is None:
        raise UnsupportedError(
            "Triton kernels are not available: expected the package triton, which `pip install "
            "triton` installs on Linux"
        )
    _forced.append(name)
    try:
        yield
    finally:
        _forced.pop()
