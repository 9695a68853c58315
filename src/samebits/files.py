"""Files written whole or not at all, and untrusted files of arrays read safely."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import io
import math
import os
import re
import secrets
import shutil
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeAlias

from samebits import ledger
from samebits.entrance import opened
from samebits.errors import InputError, SamebitsError

if TYPE_CHECKING:
    import numpy as np

    Array: TypeAlias = np.ndarray[Any, Any]

LARGEST_ARCHIVE = 1 << 32  # bytes of all arrays together


def write_atomically(
    path: Path, data: bytes, *, advice: str = "free some space and run again", mode: int = 0o666
) -> None:
    """Replace `path` by `data` so that a crash leaves the old file or the new one, never a part.

    The folder is made where there is none. Only a killed process leaves its temporary file; the
    next to write `path` removes it when it is an hour old. `mode` holds the permissions of the
    file, from which the umask takes. Raises SamebitsError when the disk is full (what to do then:
    `advice`) or the folder cannot be written.
    """
    with _explained(path, len(data), advice):
        make_folder(path.parent)
        _remove_left(path)
        temporary = _beside(path)
        try:
            _write_synced(temporary, data, mode)
            os.replace(temporary, path)
            sync_folder(path.parent)
        except BaseException:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
            raise


def write_folder(folder: Path, files: Mapping[str, bytes]) -> None:
    """Replace `folder` by one of these files, so that a crash leaves the old one or the new one.

    Names may have folders before them ("audio/Makefile"). An earlier folder, whatever it holds,
    and the new one change places in one step where the system can do that (Linux, on most file
    systems); elsewhere a crash between two renames leaves the earlier one beside, in a hidden
    folder, from which the next call brings it back. Raises SamebitsError as `write_atomically`.
    """
    folder = Path(os.path.abspath(folder))
    with _explained(folder, sum(map(len, files.values())), "free some space and run again"):
        make_folder(folder.parent)
        _bring_back(folder)
        _remove_left(folder)
        temporary = _beside(folder)
        new, old = temporary / "new", temporary / _OLD
        try:
            temporary.mkdir(mode=0o700)
            new.mkdir()
            for name, data in files.items():
                path = new / name
                path.parent.mkdir(parents=True, exist_ok=True)
                _write_synced(path, data)
            for place, _, _ in os.walk(new):
                sync_folder(Path(place))
            if not os.path.lexists(folder):
                new.rename(folder)
            elif not _exchanged(new, folder):
                folder.rename(old)
                new.rename(folder)
            sync_folder(folder.parent)
        finally:
            _bring_back(folder)
            shutil.rmtree(temporary, ignore_errors=True)


LEFT = 3600.0  # seconds: whatever is being written is younger
_OLD = "old"


@contextlib.contextmanager
def _explained(path: Path, size: int, advice: str) -> Iterator[None]:
    """Errors of the file system as sentences about `path`, to which `size` bytes were written."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise SamebitsError(
                f"{path}: no space left to write {size} bytes ({error.strerror}); {advice}"
            ) from error
        raise SamebitsError(
            f"{path}: cannot be written ({error.strerror or error}); check the folder and its "
            "permissions"
        ) from error


def _beside(path: Path) -> Path:
    """A hidden name beside `path` that no other process or thread takes."""
    return path.with_name(f".{path.name}.{secrets.randbits(48)}.tmp")


def _left(path: Path) -> list[Path]:
    """Files and folders that `_beside(path)` has named."""
    pattern = re.compile(rf"\.{re.escape(path.name)}\.\d+\.tmp")
    return [found for found in path.parent.iterdir() if pattern.fullmatch(found.name)]


def _remove_left(path: Path) -> None:
    """Remove what killed processes left beside `path`."""
    with contextlib.suppress(OSError):
        for found in _left(path):
            if found.lstat().st_mtime < time.time() - LEFT:
                if found.is_dir():
                    shutil.rmtree(found, ignore_errors=True)
                else:
                    found.unlink()


def _bring_back(folder: Path) -> None:
    """Give a folder back its place that was moved aside for a new one which never came."""
    if not os.path.lexists(folder):
        for found in _left(folder):
            if os.path.lexists(found / _OLD):
                (found / _OLD).rename(folder)
                shutil.rmtree(found, ignore_errors=True)
                return


def _exchanged(a: Path, b: Path) -> bool:
    """Let two paths change places in one step; False where the system or file system cannot."""
    try:
        renameat2 = ctypes.CDLL(None).renameat2
    except (AttributeError, OSError, TypeError):  # of glibc and musl on Linux
        return False
    at, exchange = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
    done: int = renameat2(at, os.fsencode(a), at, os.fsencode(b), ctypes.c_uint(exchange))
    return done == 0


def _write_synced(path: Path, data: bytes, mode: int = 0o666) -> None:
    """Write a new file, and wait until its bytes are on the disk."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(descriptor, view) :]
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_folder(folder: Path) -> None:
    """Make a folder, and those above it, that a loss of power does not take away again."""
    if not os.path.lexists(folder):
        make_folder(folder.parent)
        folder.mkdir(exist_ok=True)
        sync_folder(folder.parent)


def sync_folder(folder: Path) -> None:
    """Wait until the entries of a folder are on the disk: a rename is not before that."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_archive(path: Path, arrays: Mapping[str, Array]) -> None:
    """Write arrays as an .npz archive, the same bytes whenever it is written. Raises SamebitsError
    as `write_atomically`."""
    import numpy as np  # only here and below: `samebits doctor` runs without it

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
    with (
        _readable(path, ".npz archive", "numpy.savez"),
        opened(path) as file,
        zipfile.ZipFile(file) as archive,
    ):
        members = archive.infolist()
        _check_size(path, sum(member.file_size for member in members))
        check_packing(path, members)
        named = {member.filename.removesuffix(".npy"): member for member in members}
        return {name: _member(path, archive, named[name]) for name in choose(list(named))}


def read_array(path: Path) -> Array:
    """The array of an untrusted .npy file. Errors as `read_archive`."""
    with _readable(path, ".npy file", "numpy.save"):
        size = path.stat().st_size
        _check_size(path, size)
        ledger.keep(size, str(path))
        return _array(str(path), lambda: opened(path), size)


@contextlib.contextmanager
def _readable(path: Path, kind: str, writer: str) -> Iterator[None]:
    """Whatever a damaged file of arrays raises, as an InputError."""
    try:
        yield
    except (InputError, FileNotFoundError, PermissionError):
        raise
    except Exception as error:
        raise InputError(
            f"{path}: not a readable {kind} ({type(error).__name__}: {error}); save one with "
            f"{writer}"
        ) from error


def check_packing(path: Path, members: Sequence[zipfile.ZipInfo]) -> None:
    """Raise InputError for members that are packed in ways of which `zipfile` unpacks the whole,
    whatever their size is said to be: bzip2 and LZMA."""
    for member in members:
        if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise InputError(
                f"{path}: {member.filename!r}: expected a member that is stored or deflated, found "
                f"compression {member.compress_type}; save it with numpy.savez_compressed"
            )


def _check_size(path: Path, size: int) -> None:
    if size > LARGEST_ARCHIVE:
        raise InputError(
            f"{path}: expected at most {LARGEST_ARCHIVE} bytes of arrays, found {size}; use fewer "
            "samples"
        )


def _member(path: Path, archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> Array:
    """One array of an archive."""
    where = f"{path}: array {member.filename.removesuffix('.npy')}"
    ledger.keep(member.file_size, where)
    return _array(where, lambda: archive.open(member), member.file_size)


def _array(where: str, opened: Callable[[], IO[bytes]], size: int) -> Array:
    """An array of a file of `size` bytes, read only after its header has shown plain numbers of
    that size."""
    import numpy as np

    with opened() as file:
        version = np.lib.format.read_magic(file)
        if version == (1, 0):
            shape, _, dtype = np.lib.format.read_array_header_1_0(file)
        else:
            shape, _, dtype = np.lib.format.read_array_header_2_0(file)
    if dtype.hasobject or dtype.kind not in "fiub":
        raise InputError(f"{where}: expected plain numbers, found {dtype}")
    if min(shape, default=1) < 0 or math.prod(shape) * dtype.itemsize > size:
        raise InputError(
            f"{where}: expected as many bytes as the shape {list(shape)} says, found {size}"
        )
    with opened() as file:
        return np.asarray(np.lib.format.read_array(file, allow_pickle=False))
