"""Exact integer kernels of training, in three realisations with the same bits.

`eager` says what a realisation does, and does it in torch on any device; `compiled` is the same
fused by torch.compile, `native` C on the CPU, compiled at first use. `of(tensor)` picks one:
native where it can be built, else eager.
$SAMEBITS_KERNELS or, inside a with block, `use("eager")` chooses another. A realisation serves only
after it has passed a full-range known-answer test on this machine.
"""

from __future__ import annotations

import contextlib
import functools
import os
import warnings
from collections.abc import Iterator

from torch import Tensor

from samebits.errors import InputError, UnsupportedError
from samebits.kernels import selftest
from samebits.kernels.build import BuildError
from samebits.kernels.eager import Eager
from samebits.kernels.geometry import ConvShape, Window, conv_shape
from samebits.kernels.native import Native
from samebits.kernels.routine import NotRecordableError, RoutineRecorder

__all__ = [
    "ConvShape",
    "Kernels",
    "Window",
    "chosen",
    "conv_shape",
    "of",
    "realisation",
    "recording",
    "use",
]

Kernels = Eager  # every realisation is one
REALISATIONS = ("native", "compiled", "eager")
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
def _serving(name: str, device: str) -> Kernels:
    """A realisation that has passed its self-test on a device."""
    if name == "native" and (native := _native()) is not None:
        return native
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
    if name == "native" and (device != "cpu" or _native() is None):
        return "eager"
    return name


@functools.cache
def chosen() -> str:
    """The realisation that $SAMEBITS_KERNELS names, read once. Raises InputError as above."""
    name = os.environ.get("SAMEBITS_KERNELS", "native")
    if name not in REALISATIONS:
        raise InputError(
            f"SAMEBITS_KERNELS: expected one of {', '.join(REALISATIONS)}, found {name!r}"
        )
    return name


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


@contextlib.contextmanager
def use(name: str) -> Iterator[None]:
    """Force a realisation inside a with block; speed only, never bits.

    Raises UnsupportedError where the native kernels are asked for and not available.
    """
    if name not in REALISATIONS:
        raise ValueError(f"expected one of {REALISATIONS}, found {name!r}")
    if name == "native" and _native() is None:
        raise UnsupportedError("native kernels are not available: expected a working C compiler")
    _forced.append(name)
    try:
        yield
    finally:
        _forced.pop()
