"""States of a process that a caller may leave, and what the front door computes in them."""

from __future__ import annotations

import contextlib
import ctypes
import decimal
import gc
import hashlib
import json
import locale
import multiprocessing
import os
import platform
import random
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import mpmath
import numpy as np
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

import samebits as sb

# fenv.h of x86-64 and of aarch64
ROUNDING = {
    "x86_64": {"downward": 0x400, "upward": 0x800, "towards zero": 0xC00},
    "aarch64": {"upward": 0x400000, "downward": 0x800000, "towards zero": 0xC00000},
}.get(platform.machine() if sys.platform == "linux" else "", {})


def network() -> torch.nn.Module:
    """Its weights are the same in every state."""
    net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10)).eval()
    weights = np.random.default_rng(0).standard_normal((10, 64)).astype(np.float32)
    with torch.no_grad():
        net[1].weight.copy_(torch.from_numpy(weights))
        net[1].bias.zero_()
    return net


SAMPLES = np.random.default_rng(1).random((8, 1, 8, 8), dtype=np.float32)


def fit(folder: Path, epochs: int = 1) -> str:
    return sb.fit("digits", "mlp", folder / "run", sb.Training(epochs=epochs, limit=20)).sha256


def quantize(folder: Path, net: torch.nn.Module) -> str:
    path = sb.quantize(net, SAMPLES).save(folder / "net.onnx")
    return hashlib.sha256(path.read_bytes()).hexdigest()


def compiled(folder: Path) -> str:
    sb.load(folder / "net.onnx").compile(folder / "c")
    digest = hashlib.sha256()
    for path in sorted((folder / "c").rglob("*")):
        if path.is_file():
            digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()


def evaluate(folder: Path) -> str:
    scores = [sb.evaluate(folder / name, "digits") for name in ("run", "net.onnx")]
    outputs = sb.load(folder / "net.onnx").run(SAMPLES)
    counts = [(score.correct, score.total) for score in scores]
    return repr([*counts, *(a.tobytes() for a in outputs.values())])


def computed(folder: Path, net: torch.nn.Module) -> dict[str, str]:
    """One hash of each call."""
    folder.mkdir(parents=True)
    return {
        "fit": fit(folder),
        "quantize": quantize(folder, net),
        "compile": compiled(folder),
        "eval": evaluate(folder),
    }


# --- states ---------------------------------------------------------------------------------------

State = Callable[[], contextlib.AbstractContextManager[Any]]


def setting(get: Callable[[], Any], put: Callable[[Any], Any], value: Any) -> State:
    """A state that sets something, sees that it is still set at the end, and sets it back."""

    @contextlib.contextmanager
    def state() -> Iterator[None]:
        before = get()
        put(value)
        set_to = get()
        try:
            yield
            assert get() == set_to, "expected the caller's setting back"
        finally:
            put(before)

    return state


def default_type(dtype: torch.dtype) -> State:
    return setting(torch.get_default_dtype, torch.set_default_dtype, dtype)


@contextlib.contextmanager
def default_device() -> Iterator[None]:
    torch.set_default_device("meta")
    try:
        yield
        assert torch.ones(1).is_meta
    finally:
        torch.set_default_device(None)


@contextlib.contextmanager
def mode_of_gradients(context: contextlib.AbstractContextManager[Any]) -> Iterator[None]:
    with context:
        before = torch.is_grad_enabled(), torch.is_inference_mode_enabled()
        yield
        assert (torch.is_grad_enabled(), torch.is_inference_mode_enabled()) == before


def rounding(mode: int) -> State:
    library = ctypes.CDLL(None)
    return setting(library.fegetround, library.fesetround, mode)


@contextlib.contextmanager
def flushed() -> Iterator[None]:
    torch.set_flush_denormal(True)
    try:
        yield
        assert sys.float_info.min * float("0.5") == 0
    finally:
        torch.set_flush_denormal(False)


@contextlib.contextmanager
def strict_numpy() -> Iterator[None]:
    with np.errstate(all="raise"):
        yield
        assert set(np.geterr().values()) == {"raise"}


@contextlib.contextmanager
def deterministic() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


@contextlib.contextmanager
def seeds() -> Iterator[None]:
    before = random.getstate(), np.random.get_state(), torch.get_rng_state()  # noqa: NPY002
    random.seed(5)
    np.random.seed(5)  # noqa: NPY002
    torch.manual_seed(5)
    try:
        yield
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])  # noqa: NPY002
        torch.set_rng_state(before[2])


class Functions(TorchFunctionMode):
    """Makes integers of all that torch's functions give."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        return result.short() if isinstance(result, torch.Tensor) else result


class Dispatched(TorchDispatchMode):
    """Doubles all that torch computes."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        return result * 2 if isinstance(result, torch.Tensor) else result


@contextlib.contextmanager
def thread_beside() -> Iterator[None]:
    """One that computes with another default type, in modes of its own."""
    stop = threading.Event()

    def work() -> None:
        with torch.no_grad(), torch.autocast("cpu"):
            while not stop.wait(0.001):
                torch.nn.functional.relu(torch.ones(64, 64) @ torch.ones(64, 64))

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


@contextlib.contextmanager
def printing() -> Iterator[None]:
    torch.set_printoptions(precision=1, sci_mode=True)
    try:
        with np.printoptions(precision=1, legacy="1.13"):
            yield
    finally:
        torch.set_printoptions(profile="default")


@contextlib.contextmanager
def coarse_numbers() -> Iterator[None]:
    with mpmath.workprec(5), decimal.localcontext(prec=2):
        yield


@contextlib.contextmanager
def time_zone() -> Iterator[None]:
    before = os.environ.get("TZ")
    os.environ["TZ"] = "Pacific/Kiritimati"
    time.tzset()
    try:
        yield
    finally:
        os.environ.pop("TZ") if before is None else os.environ.__setitem__("TZ", before)
        time.tzset()


@contextlib.contextmanager
def warned() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


@contextlib.contextmanager
def no_collection() -> Iterator[None]:
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@contextlib.contextmanager
def hooks() -> Iterator[None]:
    """Of the process, one that spoils outputs."""
    handle = torch.nn.modules.module.register_module_forward_hook(lambda m, i, output: output * 2)
    try:
        yield
    finally:
        handle.remove()


@contextlib.contextmanager
def comma() -> Iterator[None]:
    """A locale whose numbers have commas, where the system has one."""
    before = locale.setlocale(locale.LC_ALL)
    for name in ("de_DE.UTF-8", "de_DE.utf8", "fr_FR.UTF-8", "C.UTF-8"):
        with contextlib.suppress(locale.Error):
            locale.setlocale(locale.LC_ALL, name)
            break
    try:
        yield
    finally:
        locale.setlocale(locale.LC_ALL, before)


STATES: dict[str, State] = {
    "default type float64": default_type(torch.float64),
    "default type bfloat16": default_type(torch.bfloat16),
    "default type float16": default_type(torch.float16),
    "default device meta": default_device,
    "with torch.device": lambda: torch.device("meta"),
    "no_grad": lambda: mode_of_gradients(torch.no_grad()),
    "inference_mode": lambda: mode_of_gradients(torch.inference_mode()),
    "anomaly": lambda: torch.autograd.set_detect_anomaly(True),
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "deterministic algorithms": deterministic,
    "1 thread": setting(torch.get_num_threads, torch.set_num_threads, 1),
    "2 threads": setting(torch.get_num_threads, torch.set_num_threads, 2),
    "4 threads": setting(torch.get_num_threads, torch.set_num_threads, 4),
    "products of medium precision": setting(
        torch.get_float32_matmul_precision, torch.set_float32_matmul_precision, "medium"
    ),
    "subnormal numbers flushed": flushed,
    **{f"rounding {name}": rounding(mode) for name, mode in ROUNDING.items()},
    "numpy raises": strict_numpy,
    "numpy's buffer": setting(np.getbufsize, np.setbufsize, 16),
    "seeds": seeds,
    "no oneDNN": setting(torch._C._get_mkldnn_enabled, torch._C._set_mkldnn_enabled, False),
    "a function mode": Functions,
    "a dispatch mode": Dispatched,
    "stand-ins for tensors": FakeTensorMode,
    "a counter of operations": lambda: FlopCounterMode(display=False),
    "what backward keeps doubled": lambda: torch.autograd.graph.saved_tensors_hooks(
        lambda x: x + x, lambda x: x
    ),
    "hooks on all modules": hooks,
    "a thread beside": thread_beside,
    "printing": printing,
    "short numbers as text": setting(
        sys.get_int_max_str_digits, sys.set_int_max_str_digits, 640
    ),
    "coarse mpmath and decimal": coarse_numbers,
    "umask": setting(lambda: (os.umask(0o77), os.umask(0o77))[1], os.umask, 0o77),
    "another folder": lambda: contextlib.chdir("/"),
    "another time zone": time_zone,
    "warnings as errors": warned,
    "no collection of garbage": no_collection,
    "a decimal comma": comma,
}  # fmt: skip
SETTLED = (  # what can be set all at once, and spoils results where it is not settled
    "default type float64", "default device meta", "inference_mode", "anomaly", "autocast",
    "products of medium precision", "subnormal numbers flushed", "rounding upward", "numpy raises",
    "numpy's buffer", "a function mode", "a dispatch mode",
)  # fmt: skip


def _child(folder: str) -> None:
    print(json.dumps(computed(Path(folder), network())), flush=True)


if __name__ == "__main__":
    method = os.environ.get("METHOD")
    if os.environ.get("BEFORE"):  # torch's threads are there then
        torch.set_num_threads(2)
        computed(Path(sys.argv[1]).with_name("before"), network())
    if method is None:
        _child(sys.argv[1])
    else:
        process = multiprocessing.get_context(method).Process(target=_child, args=(sys.argv[1],))
        process.start()
        process.join()
        sys.exit(process.exitcode)
