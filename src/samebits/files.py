"""Files written whole or not at all, and untrusted archives of arrays read safely."""

from __future__ import annotations

import errno
import io
import math
import os
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from samebits.errors import InputError, SamebitsError

Array = np.ndarray[Any, Any]

LARGEST_ARCHIVE = 1 << 32  # bytes of all arrays together


def write_atomically(
    path: Path, data: bytes, *, advice: str = "free some space and run again"
) -> None:
    """Replace `path` by `data` so that a crash leaves the old file or the new one, never a part.

    Raises SamebitsError when the disk is full (what to do then: `advice`) or the folder cannot be
    written; the temporary file is removed.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(descriptor, view) :]
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        os.replace(temporary, path)
        _sync_folder(path.parent)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if not isinstance(error, OSError):  # interrupted
            raise
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise SamebitsError(
                f"{path}: no space left to write {len(data)} bytes ({error.strerror}); {advice}"
            ) from error
        raise SamebitsError(
            f"{path}: cannot be written ({error.strerror or error}); check the folder and its "
            "permissions"
        ) from error


def _sync_folder(folder: Path) -> None:
    """Wait until the entries of a folder are on the disk: a rename is not before that."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_archive(path: Path, arrays: Mapping[str, Array]) -> None:
    """Write arrays as an .npz archive, the same bytes whenever it is written. Raises SamebitsError
    as `write_atomically`."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for name, array in arrays.items():
            member = io.BytesIO()
            np.lib.format.write_array(member, array, allow_pickle=False)
            archive.writestr(zipfile.ZipInfo(f"{name}.npy"), member.getvalue())
    write_atomically(path, stream.getvalue())


def read_archive(
    path: Path, choose: Callable[[Sequence[str]], Sequence[str]] = lambda names: names
) -> dict[str, Array]:
    """The arrays of an untrusted .npz archive that `choose` picks by name, by default all of them.

    Nothing is unpickled, and sizes are checked before anything is unpacked. Raises InputError where
    the file is no archive of plain numbers or holds more than LARGEST_ARCHIVE bytes; OSError where
    there is no such file.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            members = archive.infolist()
            total = sum(member.file_size for member in members)
            if total > LARGEST_ARCHIVE:
                raise InputError(
                    f"{path}: expected at most {LARGEST_ARCHIVE} bytes of arrays, found {total}; "
                    "use fewer samples"
                )
            named = {member.filename.removesuffix(".npy"): member for member in members}
            return {name: _member(path, archive, named[name]) for name in choose(list(named))}
    except (InputError, FileNotFoundError, IsADirectoryError, PermissionError):
        raise
    except Exception as error:  # a damaged archive may raise anything
        raise InputError(
            f"{path}: not a readable .npz archive ({type(error).__name__}: {error}); save one with "
            "numpy.savez"
        ) from error


def _member(path: Path, archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> Array:
    """One array of an archive, read only after its header has shown plain numbers of its size."""
    where = f"{path}: array {member.filename.removesuffix('.npy')}"
    with archive.open(member) as file:
        version = np.lib.format.read_magic(file)
        if version == (1, 0):
            shape, _, dtype = np.lib.format.read_array_header_1_0(file)
        else:
            shape, _, dtype = np.lib.format.read_array_header_2_0(file)
    if dtype.hasobject or dtype.kind not in "fiub":
        raise InputError(f"{where}: expected plain numbers, found {dtype}")
    if min(shape, default=1) < 0 or math.prod(shape) * dtype.itemsize > member.file_size:
        raise InputError(
            f"{where}: expected as many bytes as the shape {list(shape)} says, found "
            f"{member.file_size}"
        )
    with archive.open(member) as file:
        return np.asarray(np.lib.format.read_array(file, allow_pickle=False))
