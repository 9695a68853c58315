"""Exact integer kernels of training, in two realisations with the same bits.

`eager` is torch on any device; `native` is C on the CPU, compiled at first use. `of(tensor)` picks
one; `use("eager")` forces the choice (tests, comparisons). A realisation serves only after it
has passed a full-range known-answer test on this machine.
"""

from __future__ import annotations

import contextlib
import functools
import warnings
from collections.abc import Iterator
from typing import Any

from torch import Tensor

from samebits.errors import UnsupportedError
from samebits.kernels import eager, selftest
from samebits.kernels.build import BuildError
from samebits.kernels.geometry import ConvShape, conv_shape
from samebits.kernels.native import Native

__all__ = ["ConvShape", "conv_shape", "of", "realisation", "use"]

_forced: list[str] = []


@functools.cache
def _native() -> Native | None:
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
def _eager(device: str) -> Any:
    if wrong := selftest.failures(eager, device):
        raise RuntimeError(
            f"the torch build on {device!r} fails the integer self-test in {', '.join(wrong)}: "
            "expected exact float64 matrix products; use another torch build or device"
        )
    return eager


def of(tensor: Tensor) -> Any:
    """The kernels that serve a tensor: native on the CPU where it can be built, else eager."""
    device = tensor.device.type
    if device == "cpu" and (not _forced or _forced[-1] == "native") and _native() is not None:
        return _native()
    return _eager(device)


def realisation(device: str = "cpu") -> str:
    """The name of the realisation in use on a device: "native" or "eager"."""
    forced_eager = bool(_forced) and _forced[-1] == "eager"
    return "native" if device == "cpu" and not forced_eager and _native() else "eager"


@contextlib.contextmanager
def use(name: str) -> Iterator[None]:
    """Force a realisation ("eager" or "native") inside a with block; speed only, never bits."""
    if name not in ("eager", "native"):
        raise ValueError(f"expected 'eager' or 'native', found {name!r}")
    if name == "native" and _native() is None:
        raise UnsupportedError("native kernels are not available: expected a working C compiler")
    _forced.append(name)
    try:
        yield
    finally:
        _forced.pop()
