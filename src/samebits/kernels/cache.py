"""Compiled code that is kept between processes, and loaded only where it is what was written.

A library is one file, `<name>-<SHA-256 of its bytes>.so`: one rename makes bytes and checksum
appear together, so that no crash leaves one without the other, and of two processes that compile at
once the later one replaces equal bytes, or adds a second library that is as good.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
import re
import stat
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path

from samebits.entrance import opened
from samebits.errors import InputError, SamebitsError
from samebits.files import write_atomically

LARGEST = 1 << 28  # bytes of a library that is read


def library(name: str, build: Callable[[bool], bytes]) -> ctypes.CDLL:
    """The library `name` of the user's cache; where none is kept `build` gives its bytes, told
    whether they can be.

    A library is code: it must be a file of the user's own that only the user may write to, with the
    bytes that its name promises. Any other is removed with a warning and built anew. Where the
    folder cannot be used or written, a warning says so, and the library is built for this process
    alone. Raises OSError and SamebitsError where the library cannot be used.
    """
    try:
        folder = _private_folder()
        data = _kept(folder, name)
    except (OSError, SamebitsError) as error:
        return _unkept(name, build(False), error)
    if data is None:
        data = build(os.access(folder, os.W_OK))
        try:
            write_atomically(_path(folder, name, data), data, mode=0o600)
        except (OSError, SamebitsError) as error:
            return _unkept(name, data, error)
    return _loaded(_path(folder, name, data), data)


def kept_file(name: str) -> Path | None:
    """The file of a library that the user's cache holds; None where it holds none to be loaded."""
    folder = _private_folder()
    data = _kept(folder, name)
    return None if data is None else _path(folder, name, data)


def _unkept(name: str, data: bytes, error: OSError | SamebitsError) -> ctypes.CDLL:
    """A library of these bytes for this process alone, since the cache cannot be used: `error`."""
    reason = str(error)
    if isinstance(error, OSError) and error.filename is not None:
        reason = f"{error.filename}: {error.strerror}"
    warnings.warn(
        f"compiled kernels cannot be kept, so every process compiles its own ({reason}); name a "
        "folder of yours that can be written to by $XDG_CACHE_HOME",
        stacklevel=7,
    )
    with tempfile.TemporaryDirectory(prefix="samebits-kernels-") as folder:  # of mode 0700
        path = Path(folder, f"{name}.so")
        path.write_bytes(data)
        return _loaded(path, data)  # the loader needs the file no longer


def _path(folder: Path, name: str, data: bytes) -> Path:
    return folder / f"{name}-{hashlib.sha256(data).hexdigest()}.so"


def _private_folder() -> Path:
    """The folder of compiled libraries, created if need be, that only the user may write to."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    folder = Path(base) / "samebits"
    if not hasattr(os, "geteuid"):
        raise SamebitsError(f"{folder}: expected a system whose files have owners; found {os.name}")
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if (fault := _fault(folder.stat())) is not None:
        raise SamebitsError(f"{folder}: expected a folder of your own, found one that {fault}")
    return folder


def _fault(status: os.stat_result) -> str | None:
    """Why another user may have made or changed a file or folder; None where nobody may."""
    if status.st_uid != os.geteuid():
        return f"belongs to user {status.st_uid}; move it away"
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return "others can write to; run chmod go-w on it"
    return None


def _kept(folder: Path, name: str) -> bytes | None:
    """The bytes of the library that is kept under a name; what is kept wrongly is removed."""
    pattern = re.compile(rf"{re.escape(name)}-([0-9a-f]{{64}})\.so")
    for found in sorted(os.listdir(folder)):
        if match := pattern.fullmatch(found):
            data = _checked(folder / found, match[1])
            if isinstance(data, bytes):
                return data
            warnings.warn(
                f"{folder / found}: {data}; it is not loaded, and compiled again", stacklevel=7
            )
            with contextlib.suppress(OSError):
                (folder / found).unlink()
    return None


def _checked(path: Path, sha256: str) -> bytes | str:
    """The bytes of a file, or why they are not to be loaded.

    Owner and mode are those of the file that is read, and what is read here is what is loaded:
    nobody can change it in between. Opening waits for no pipe and follows no link.
    """
    try:
        with opened(path, within=path.parent) as file:
            if (fault := _fault(os.fstat(file.fileno()))) is not None:
                return f"expected a file of your own, found one that {fault}"
            data = file.read(LARGEST)
    except InputError as error:
        return str(error).removeprefix(f"{path}: ").partition(";")[0]
    except OSError as error:
        return f"expected a file that can be read, found: {error.strerror}"
    found = hashlib.sha256(data).hexdigest()
    if found != sha256:
        return f"damaged: expected the SHA-256 in its name, found {found} of {len(data)} bytes"
    return data


def _loaded(path: Path, data: bytes) -> ctypes.CDLL:
    """The library of these bytes, which were read from or written to `path`.

    From memory where the system can, since a file that is truncated later would end the process,
    too. The descriptor stays open: the loader knows a library by its path.
    """
    try:
        descriptor = os.memfd_create(path.stem)
        with open(descriptor, "wb", closefd=False) as file:
            file.write(data)
        return ctypes.CDLL(f"/proc/self/fd/{descriptor}")
    except (AttributeError, OSError):  # only Linux has it, and /proc may be missing
        return ctypes.CDLL(str(path))
