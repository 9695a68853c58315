"""Files from outside, opened as files alone.

A folder may have been unpacked from a stranger's archive. Nothing inside one may be a link, and
nothing but a regular file is opened for its bytes: a pipe would wait for ever, a device never end,
and a link read or write where nobody asked for it. A path that a user names may itself be a link.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from samebits import ledger
from samebits.errors import InputError

PLAIN = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0) | getattr(os, "O_CLOEXEC", 0)
STAY = getattr(os, "O_NOFOLLOW", 0)
KINDS: tuple[tuple[Callable[[int], bool], str], ...] = (
    (stat.S_ISLNK, "a link"),
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


def opened(
    path: str | os.PathLike[str], flags: int = os.O_RDONLY, *, within: Path | None = None
) -> BinaryIO:
    """A regular file, opened without waiting.

    flags:  of `os.open`; those of reading by default
    within: the folder that a user named, where the file is one inside it: then neither the file
            nor a folder on the way may be a link, and nothing lies outside

    Raises InputError for anything but a regular file, OSError as `os.open`.
    """
    if "\0" in os.fspath(path):
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
    descriptor = _inside(Path(path), flags, within) if within else _regular(path, path, flags)
    if flags & os.O_ACCMODE == os.O_RDONLY:
        return os.fdopen(descriptor, "rb")
    return os.fdopen(descriptor, "wb" if flags & os.O_WRONLY else "r+b")  # truncates nothing


def read(
    path: str | os.PathLike[str],
    most: int,
    advice: str = "give a smaller file",
    *,
    within: Path | None = None,
) -> bytes:
    """The bytes of a regular file of at most `most` bytes, charged to the load's ledger. Raises
    InputError for a larger one, and as `opened`."""
    with opened(path, within=within) as file:
        size = os.fstat(file.fileno()).st_size
        if size > most:
            raise InputError(f"{path}: expected at most {most} bytes, found {size}; {advice}")
        ledger.keep(size, str(path))
        return file.read(size)


def sha256(path: str | os.PathLike[str], *, within: Path | None = None) -> str:
    """The SHA-256 of a regular file of any size, a part of which is in memory at a time. Raises as
    `opened`."""
    digest = hashlib.sha256()
    with opened(path, within=within) as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def append(path: Path, data: bytes, *, within: Path) -> None:
    """Add bytes to a file of a folder, made if there is none, and wait until they are on the disk.
    Raises as `opened`."""
    with opened(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, within=within) as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _inside(path: Path, flags: int, within: Path) -> int:
    """A descriptor of a file below a folder, reached one name at a time."""
    if not path.is_relative_to(within) or ".." in path.relative_to(within).parts:
        raise InputError(f"{path}: expected a file below {within}, found a path out of it")
    *folders, name = path.relative_to(within).parts
    place = os.open(within, os.O_RDONLY | os.O_DIRECTORY | PLAIN)
    reached = within
    try:
        for folder in folders:
            reached = reached / folder
            found = os.stat(folder, dir_fd=place, follow_symlinks=False)
            if not stat.S_ISDIR(found.st_mode):
                raise _other(reached, "folder", found)
            inner = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | PLAIN | STAY, dir_fd=place)
            os.close(place)
            place = inner
        return _regular(path, name, flags | STAY, place)
    finally:
        os.close(place)


def _regular(
    path: str | os.PathLike[str],
    name: str | os.PathLike[str],
    flags: int,
    place: int | None = None,
) -> int:
    """A descriptor of a regular file, which is looked at before it is opened, for opening a device
    may do something, and after, for another may have come between."""
    try:
        _check(path, os.stat(name, dir_fd=place, follow_symlinks=not flags & STAY))
    except FileNotFoundError:
        if not flags & os.O_CREAT:
            raise
    descriptor = os.open(name, flags | PLAIN, 0o666, dir_fd=place)
    try:
        found = os.fstat(descriptor)
        _check(path, found)
    except BaseException:
        os.close(descriptor)
        raise
    ledger.opens(found)
    return descriptor


def _check(path: str | os.PathLike[str], found: os.stat_result) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise _other(path, "file", found)


def _other(path: str | os.PathLike[str], wanted: str, found: os.stat_result) -> InputError:
    kind = next((kind for known, kind in KINDS if known(found.st_mode)), "something else")
    return InputError(f"{path}: expected a {wanted}, found {kind}; put the {wanted} itself there")
