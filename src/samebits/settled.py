"""The state that results rest on, set for a call of the front door and given back after it.

A process has many settings that change what torch and numpy compute, or whether they do: default
types and devices, modes, rounding, subnormal numbers. No result of samebits may depend on them. So
each function of the front door is `settled`: while it runs, they are what a fresh process has, and
what the caller had set is back when it ends. What cannot be set, because another thread or a
transform of torch holds it, is refused in one sentence. IEEE 754-2019, section 4.3.

Everything here is imported by `import samebits`, and loads neither torch nor numpy: where torch is
not loaded yet, nobody can have changed it.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import platform
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from samebits import progress
from samebits.errors import InputError, UnsupportedError

P = ParamSpec("P")
R = TypeVar("R")

HERE = str(Path(__file__).parent)
GRAIN = 1 << 15  # elements that torch leaves to one thread
HALF_STEP = 2.0**-54  # below half a unit in the last place of 1, above and below
SMALLEST_NORMAL = 2.0**-1022
ENVIRONMENT = 256  # bytes, more than a C library's fenv_t has
DEFAULT_ENVIRONMENT = ctypes.c_void_p(-1)  # FE_DFL_ENV of Linux on these processors
KNOWN = sys.platform == "linux" and platform.machine() in ("x86_64", "aarch64")
BUFFER = 8192  # elements that numpy converts at once: sums of converted numbers depend on it
DEVICES = ("cpu", "cuda")
HOOKS = (
    *("_global_forward_pre_hooks", "_global_forward_hooks"),
    *("_global_backward_pre_hooks", "_global_backward_hooks"),
)
ADVICE = (
    "set it back (fesetround(FE_TONEAREST), torch.set_flush_denormal(False)) before samebits "
    "computes, or in the library that changed it"
)


def settled(function: Callable[P, R]) -> Callable[P, R]:
    """A function of the front door, computed in the settled state.

    Called in code that torch.compile compiles, it runs as it is. Raises UnsupportedError under
    transforms of torch (vmap, grad, jit.trace), and InputError for arithmetic that cannot be set.
    """

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        run = function
        if (disable := getattr(sys.modules.get("torch._dynamo"), "disable", None)) is not None:
            run = disable(function, reason="functions of samebits are not compiled")
        with state():
            return run(*args, **kwargs)

    return call


@contextlib.contextmanager
def state() -> Iterator[None]:
    """The settled state, inside a with block of this thread. Errors as `settled`."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(_arithmetic())
        if "numpy" in sys.modules:
            stack.enter_context(_numpy())
        if "torch" in sys.modules:
            _refuse_transforms()
            stack.enter_context(_process())
            stack.enter_context(_thread())
        yield


TORCH = ("_dynamo", "torch/overrides", "torch/nn/")  # parts of torch between a caller and us


def outside() -> int:
    """The `stacklevel` of a warning of samebits at the line of the user's that called it."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and (
        frame.f_code.co_filename.startswith(HERE)
        or any(part in frame.f_code.co_filename for part in TORCH)
    ):
        frame, level = frame.f_back, level + 1
    return level


# --- arithmetic -----------------------------------------------------------------------------------


def check_thread() -> None:
    """Raise InputError unless this thread rounds to nearest and keeps subnormal numbers."""
    if fault := _fault():
        raise InputError(f"expected {fault}; {ADVICE}")


def _fault() -> str:
    """The fault of this thread's arithmetic; "" for none."""
    small = HALF_STEP  # sums of it differ in every mode but to nearest
    if not (1.0 + small == 1.0 == 1.0 - small / 2 and -1.0 - small == -1.0):
        return "arithmetic that rounds to nearest, found another rounding mode"
    if SMALLEST_NORMAL * (small / small) / 2 == 0:
        return "subnormal numbers, found them flushed to zero"
    return ""


def check_threads() -> None:
    """As `check_thread`, for the threads of torch's operations too."""
    import torch

    check_thread()
    count = GRAIN * torch.get_num_threads()
    ones = torch.ones(count, dtype=torch.float64, device="cpu")
    nearest = (ones + HALF_STEP == 1) & (ones - HALF_STEP / 2 == 1) & (-ones - HALF_STEP == -1)
    if not bool(nearest.all()):
        raise InputError(
            "expected torch's threads to round to nearest, found another rounding mode in one of "
            f"them; {ADVICE}, and before torch starts its threads"
        )
    if bool((ones * SMALLEST_NORMAL / 2 == 0).any()):
        raise InputError(
            "expected torch's threads to keep subnormal numbers, found them flushed to zero in one "
            f"of them; {ADVICE}, and before torch starts its threads"
        )


@contextlib.contextmanager
def _arithmetic() -> Iterator[None]:
    """C's default floating-point environment, in this thread and in those that it starts."""
    if not _fault():
        yield
        return
    library: Any = ctypes.CDLL(None) if KNOWN else None
    if not hasattr(library, "fesetenv"):
        check_thread()
    kept = ctypes.create_string_buffer(ENVIRONMENT)
    library.fegetenv(kept)
    library.fesetenv(DEFAULT_ENVIRONMENT)
    try:
        check_thread()
        yield
    finally:
        library.fesetenv(kept)


@contextlib.contextmanager
def _numpy() -> Iterator[None]:
    """numpy's own ways with overflow and invalid operations."""
    import numpy as np

    with np.errstate(divide="warn", over="warn", under="ignore", invalid="warn"):
        before = np.setbufsize(BUFFER)
        try:
            yield
        finally:
            np.setbufsize(before)


# --- torch ----------------------------------------------------------------------------------------


def _refuse_transforms() -> None:
    """UnsupportedError where torch runs the caller on stand-ins for tensors, once for all."""
    import torch

    found = None
    if torch._C._functorch.peek_interpreter_stack() is not None:
        found = "a transform of torch.func (vmap, grad, jvp ...)"
    elif torch.jit.is_tracing():  # type: ignore[attr-defined, no-untyped-call]
        found = "torch.jit.trace"
    if found is not None:
        raise UnsupportedError(
            f"expected a call of samebits by itself, found one under {found}, which would keep or "
            "repeat parts of it; call it outside, and give its result to what is transformed"
        )


def is_traced() -> bool:
    """Whether torch.compile or torch.export follows what this thread does.

    torch's own flag is one for the process: it is true, too, while another thread exports.
    """
    import torch

    if torch.compiler.is_dynamo_compiling():
        return True
    return torch.compiler.is_compiling() and torch._C._len_torch_dispatch_stack() > 0


@contextlib.contextmanager
def tracing() -> Iterator[None]:
    """The only trace of a network that this process makes: torch changes its modules meanwhile, and
    two that overlap would each undo what the other needs."""
    with _tracing:
        yield


_tracing = threading.RLock()
_lock = threading.Lock()  # of the two below
_holders: list[int] = []  # the threads inside `_process`, as often as they are
_kept: dict[str, Any] = {}  # what the caller had set, of settings that were something else


def _settings() -> dict[str, tuple[Callable[[], Any], Callable[[Any], Any], Any]]:
    """torch's settings of all threads: how to read and set each, and what it is to be."""
    import torch
    from torch.nn.modules import module

    hooks = [getattr(module, name) for name in HOOKS]  # of all modules of the process

    def set_hooks(kept: list[dict[int, Any]]) -> None:
        for found, own in zip(hooks, kept, strict=True):
            found.clear()
            found.update(own)

    def anomaly() -> tuple[bool, bool]:
        return torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()

    def set_anomaly(both: tuple[bool, bool]) -> None:
        torch.set_anomaly_enabled(*both)

    return {
        "type": (torch.get_default_dtype, torch.set_default_dtype, torch.float32),
        "products": (
            torch.get_float32_matmul_precision,
            torch.set_float32_matmul_precision,
            "highest",
        ),
        "anomaly": (anomaly, set_anomaly, (False, True)),
        "hooks": (lambda: [dict(found) for found in hooks], set_hooks, [{} for _ in HOOKS]),
    }


@contextlib.contextmanager
def _process() -> Iterator[None]:
    """Settings of all threads: set by the first call that runs, given back by the last."""
    settings, thread = _settings(), threading.get_ident()
    with _lock:
        _holders.append(thread)
        for name, (get, put, wanted) in settings.items():
            if (found := get()) != wanted:
                _kept[name] = found
                put(wanted)
    try:
        yield
    finally:
        with _lock:
            _holders.remove(thread)
            if not _holders:
                for name, found in _kept.items():
                    settings[name][1](found)
                _kept.clear()


@contextlib.contextmanager
def _thread() -> Iterator[None]:
    """torch's state of one thread: gradients on, no mode of the caller's, and after a fork one
    thread alone."""
    import torch

    with contextlib.ExitStack() as stack:
        if _lost:
            _tell_fork()
            stack.enter_context(threads(1))
        if torch.is_inference_mode_enabled():
            stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.enable_grad())
        for device in DEVICES:
            if torch.is_autocast_enabled(device):
                stack.enter_context(torch.autocast(device, enabled=False))
        stack.enter_context(_without_hooks_of_savings())
        if torch._C._len_torch_function_stack():  # a default device is one of these modes
            stack.enter_context(_without_function_modes())
        if torch._C._len_torch_dispatch_stack():
            from torch.utils._python_dispatch import _disable_current_modes

            stack.enter_context(_disable_current_modes())
        yield


@contextlib.contextmanager
def _without_hooks_of_savings() -> Iterator[None]:
    """No hook that changes what a forward pass keeps for its backward pass."""
    from torch._C import _autograd

    hooks = []
    while (top := _autograd._top_saved_tensors_default_hooks(True)) is not None:
        hooks.append(top)
        _autograd._pop_saved_tensors_default_hooks()
    try:
        yield
    finally:
        for pack, unpack in reversed(hooks):
            _autograd._push_saved_tensors_default_hooks(pack, unpack)


@contextlib.contextmanager
def _without_function_modes() -> Iterator[None]:
    """No mode that hears torch's functions."""
    import torch
    from torch.overrides import _pop_mode, _push_mode

    modes = [_pop_mode() for _ in range(torch._C._len_torch_function_stack())]
    try:
        yield
    finally:
        for mode in reversed(modes):
            _push_mode(mode)


# --- threads --------------------------------------------------------------------------------------

_lost = False  # whether torch's threads stayed in the process that this one was forked from
_told = False
SPAWN = "start processes by the method spawn (multiprocessing.get_context('spawn'))"


def _after_fork() -> None:
    """In a forked child: other threads are gone, with what they held."""
    global _tracing, _lock, _lost
    _tracing, _lock = threading.RLock(), threading.Lock()
    _holders[:] = [thread for thread in _holders if thread == threading.get_ident()]
    _lost = _lost or "torch" in sys.modules


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def _tell_fork() -> None:
    global _told
    if not _told:
        _told = True
        progress.note(
            "this process was forked from one that had loaded torch, whose threads no fork takes "
            f"along: one thread computes the same bits; {SPAWN} for more"
        )


@contextlib.contextmanager
def threads(count: int | None) -> Iterator[None]:
    """Set torch's CPU threads, which change speed and never the bits of BFP; None: as they are.

    Raises InputError for a number below 1, and for more than 1 in a process that was forked from
    one that had loaded torch: torch would wait there for threads that do not exist.
    """
    import torch

    before = torch.get_num_threads()
    if count is not None:
        if count < 1:
            raise InputError(f"threads: expected at least 1, found {count}")
        if count > 1 and _lost:
            raise InputError(
                "threads: expected 1 in a process that was forked from one that had loaded torch, "
                f"found {count}; {SPAWN}"
            )
        torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
