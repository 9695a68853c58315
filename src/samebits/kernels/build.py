"""Compiles the native kernels with the system compiler, once: the library is kept in a cache.

It is named by everything that can change it (sources, compiler, flags, CPU). No compiler, one that
fails, or a full disk is not an error: the eager realisation gives the same bits.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import logging
import os
import platform
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from samebits.csrc import ANSWER, FOLDER, WORK, compiler, flat, run_tool
from samebits.errors import SamebitsError
from samebits.kernels import cache, declarations

FILES = [f"training/{path.name}" for path in sorted((FOLDER / "training").glob("*.[ch]"))]
EFFORT, QUICK = "-O3", "-O2"  # the latter of what is compiled anew in every process
FLAGS = ("-std=gnu11", "-ffp-contract=off", "-fno-math-errno", "-fPIC", "-shared")
THREADS = "-fopenmp"  # left out where the compiler has no OpenMP: one thread, the same bits

_log = logging.getLogger(__name__)


class BuildError(Exception):
    """Why there are no native kernels on this machine."""


def _processor() -> str:
    try:
        with open("/proc/cpuinfo") as file:
            flags = [line for line in file if line.startswith(("flags", "Features"))]
        return platform.machine() + (flags[0] if flags else "")
    except OSError:
        return platform.machine() + platform.processor()


def load(arch: str | None = None) -> ctypes.CDLL:
    """The compiled kernels for `-march=<arch>` (default: this machine's own instruction set).

    `arch` (or $SAMEBITS_NATIVE_ARCH, e.g. x86-64-v3) changes speed only, never a bit; the latter
    may be none: no native kernels. Compiled where the cache has no library of the same sources,
    compiler, flags and processor. Where it cannot be kept, compiling takes less than half of the
    time and its code a third more, so that short runs end soon, too. Raises BuildError.
    """
    with _explained():
        command, arch, texts = _chosen(arch)
        compile_all = functools.partial(_compile, command, arch, texts)
        return cache.library(_name(command, arch, texts), compile_all)


def where() -> Path:
    """The file of the cache that `load()` has read or written. Raises BuildError if there is none,
    and where there can be none."""
    with _explained():
        found = cache.kept_file(_name(*_chosen(None)))
    if found is None:
        raise BuildError("the cache holds no library of these sources, compiler and processor")
    return found


@contextlib.contextmanager
def _explained() -> Iterator[None]:
    """Errors of the system as reasons."""
    try:
        yield
    except SamebitsError as error:
        raise BuildError(str(error)) from error
    except OSError as error:
        place = "" if error.filename is None else f"{error.filename}: "
        raise BuildError(f"{place}{error.strerror or error}") from error


def _chosen(arch: str | None) -> tuple[tuple[str, ...], str, dict[str, str]]:
    """The compiler's command, the instruction set, and the sources by name. Raises BuildError."""
    arch = arch or os.environ.get("SAMEBITS_NATIVE_ARCH") or "native"
    if arch == "none":
        raise BuildError("SAMEBITS_NATIVE_ARCH is none")
    command = compiler()
    if shutil.which(command[0]) is None:
        raise BuildError(f"the C compiler {command[0]} is not installed; name another by $CC")
    return command, arch, sources()


@functools.cache
def sources() -> dict[str, str]:
    """Texts of the kernels by file name, and of what runs lists of their calls."""
    texts = flat(["samebits_bytes.h", "samebits_integer.h", *FILES])
    return texts | {"routine.c": declarations.runner(texts.values())}


def _name(command: tuple[str, ...], arch: str, texts: Mapping[str, str]) -> str:
    """The library's name in the cache: a hash of all that can change it."""
    about = run_tool([*command, "--version"], ANSWER).stdout
    digest = hashlib.sha256()
    for item in (*command, about, " ".join((EFFORT, *FLAGS)), arch, _processor()):
        digest.update(item.encode() + b"\0")
    for name, text in texts.items():
        digest.update(f"{name}\0{text}".encode())
    return f"kernels-{digest.hexdigest()[:24]}"


def _compile(command: tuple[str, ...], arch: str, texts: dict[str, str], kept: bool) -> bytes:
    """The library of sources (text by file name), in a temporary folder of the system.

    With threads first, then without. Raises BuildError with the compiler's first error.
    """
    _log.info("compiling the native kernels with %s, for -march=%s", " ".join(command), arch)
    with tempfile.TemporaryDirectory(prefix="samebits-kernels-") as work:
        for name, text in texts.items():
            Path(work, name).write_text(text, encoding="utf-8")
        output = Path(work, "kernels.so")
        sources = [name for name in texts if name.endswith(".c")]
        words = [
            *command,
            EFFORT if kept else QUICK,
            *FLAGS,
            f"-march={arch}",
            "-o",
            str(output),
            *sources,
        ]
        for extra in ([THREADS], []):
            run = run_tool(words + extra, WORK, folder=Path(work))
            if run.returncode == 0:
                return output.read_bytes()
        lines = [line for line in run.stderr.splitlines() if "error" in line or "failed" in line]
        raise BuildError(f"{' '.join(command)} failed: {lines[0] if lines else run.returncode}")
