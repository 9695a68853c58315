"""Compiles the native kernels once with the system compiler and loads them with ctypes.

The library is a cache entry named by everything that can change it (sources, compiler, flags, CPU).
No compiler, or a compiler that fails, is not an error: the eager realisation gives the same bits.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from pathlib import Path

from samebits.csrc import FOLDER, flat

FILES = [f"training/{path.name}" for path in sorted((FOLDER / "training").glob("*.[ch]"))]
FLAGS = ("-O3", "-std=gnu11", "-ffp-contract=off", "-fPIC", "-shared")
THREADS = "-fopenmp"  # left out where the compiler has no OpenMP: one thread, the same bits


class BuildError(Exception):
    """Why there are no native kernels on this machine."""


def cache_folder() -> Path:
    """Folder of the compiled libraries, created if need be, that only the user may write to.

    A library is code: BuildError where others can write to the folder, or there can be none.
    """
    try:
        return _private_folder()
    except OSError as error:
        raise BuildError(f"no folder for the compiled kernels: {error}") from error


def _private_folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    folder = Path(base) / "samebits"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = folder.stat()
    if status.st_uid != os.getuid() or status.st_mode & 0o022:
        raise BuildError(f"{folder} can be written by others; run chmod go-w on it")
    return folder


def compiler() -> str:
    """Path of the C compiler: $CC, cc, gcc or clang. Raises BuildError where there is none."""
    for name in (os.environ.get("CC"), "cc", "gcc", "clang"):
        if name and (path := shutil.which(name)):
            return path
    raise BuildError("no C compiler found (looked for $CC, cc, gcc, clang)")


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
    compiler, flags and processor. Raises BuildError.
    """
    arch = arch or os.environ.get("SAMEBITS_NATIVE_ARCH") or "native"
    if arch == "none":
        raise BuildError("SAMEBITS_NATIVE_ARCH is none")
    path = compiler()
    version = subprocess.run([path, "--version"], capture_output=True, text=True, check=False)
    texts = flat(["samebits_integer.h", *FILES])
    digest = hashlib.sha256()
    for item in (path, version.stdout, " ".join(FLAGS), arch, _processor()):
        digest.update(item.encode() + b"\0")
    for name, text in texts.items():
        digest.update(f"{name}\0{text}".encode())
    target = cache_folder() / f"kernels-{digest.hexdigest()[:24]}.so"
    if not target.exists():
        _compile(path, arch, texts, target)
    try:
        return ctypes.CDLL(str(target))
    except OSError as error:
        raise BuildError(f"cannot load {target}: {error}") from error


def _compile(path: str, arch: str, texts: dict[str, str], target: Path) -> None:
    """Compile sources (text by file name) with a compiler into the library `target`.

    In a folder beside it, so that the result is moved there whole; with threads first, then
    without. Raises BuildError with the compiler's first error.
    """
    with tempfile.TemporaryDirectory(dir=target.parent) as work:
        for name, text in texts.items():
            Path(work, name).write_text(text, encoding="utf-8")
        output = Path(work, "kernels.so")
        sources = [name for name in texts if name.endswith(".c")]
        command = [path, *FLAGS, f"-march={arch}", "-o", str(output), *sources]
        for extra in ([THREADS], []):
            run = subprocess.run(
                command + extra, cwd=work, capture_output=True, text=True, check=False
            )
            if run.returncode == 0:
                break
        if run.returncode:
            lines = [line for line in run.stderr.splitlines() if "error" in line]
            raise BuildError(f"{path} failed: {lines[0] if lines else run.returncode}")
        os.replace(output, target)
