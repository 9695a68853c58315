"""A ledger of the bytes that a load takes in memory, charged before they are allocated.

A file states how large it is when it is unpacked, and a small one may become very large. What is
read therefore asks here first. A load ends in one sentence where all that it keeps and has in hand
is more than the limit, or more than RATIO times the bytes of the files that it has opened.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path

from samebits.errors import InputError

LARGEST = 1 << 32  # bytes of a load, where no limit is given
FREE = 1 << 26  # bytes of a load for which nobody asks how much memory there is
RATIO = 512  # bytes that one of the files may become, where no limit is given
SMALL = 1 << 20  # fewer bytes of files count as this many
ADVICE = "give fewer or smaller samples, or a larger --memory-limit such as 8GiB"
UNITS = {"": 1, "B": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
MEMORY_INFO, GROUPS, OWN_GROUPS = "/proc/meminfo", "/sys/fs/cgroup", "/proc/self/cgroup"


@dataclass
class Ledger:
    """The bytes that a load has taken.

    limit: bytes, None before anybody asked how much memory there is; given: a user chose them
    near:  bytes up to which nothing can be too much, so that nobody need ask
    files: bytes of those it has opened, by device and number; stored: their sum, or an earlier one
    kept:  bytes that stay; held: those in hand for a while; waiting: threads that wait for them
    """

    limit: int | None
    given: bool
    near: int = field(init=False)
    files: dict[tuple[int, int], int] = field(default_factory=dict)
    stored: int = 0
    kept: int = 0
    held: int = 0
    waiting: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)
    changed: threading.Condition = field(init=False)

    def __post_init__(self) -> None:
        self.near = FREE if self.limit is None else self.limit
        self.changed = threading.Condition(self.lock)

    def opens(self, status: os.stat_result) -> None:
        """Count the bytes of a file, once. One operation, for which no thread waits."""
        self.files[status.st_dev, status.st_ino] = status.st_size

    def room(self, size: int) -> bool:
        """Whether so many bytes more are within the limit, which is asked for when it matters."""
        total = self.kept + self.held + size
        if self.limit is None and total > FREE:
            self.limit = min(LARGEST, free_memory() // 2)
            self.near = min(FREE, self.limit)
        return self.limit is None or total <= self.limit

    def check(self, size: int, where: str) -> None:
        """Raise InputError where there is no room for so many bytes more."""
        total = self.kept + self.held + size
        if total <= self.near:
            return
        if not self.room(size):
            raise InputError(
                f"{where}: expected at most {self.limit} bytes in memory for all that is read, "
                f"found {total}; {ADVICE}"
            )
        if self.given or total <= RATIO * max(self.stored, SMALL):
            return
        self.stored = sum(list(self.files.values()))  # seldom: it grows with what they become
        most = RATIO * max(self.stored, SMALL)
        if total > most:
            raise InputError(
                f"{where}: expected at most {most} bytes in memory of what is stored in "
                f"{self.stored}, found {total}; {ADVICE}"
            )


_LEDGER: ContextVar[Ledger | None] = ContextVar("ledger", default=None)
_LIMIT: ContextVar[int | None] = ContextVar("memory limit", default=None)
_HOLDS: ContextVar[bool] = ContextVar("holds", default=False)


def opens(status: os.stat_result) -> None:
    """Tell the current load of a file that it reads."""
    _current().opens(status)


def keep(size: int, where: str) -> None:
    """Charge bytes that stay until the load ends. where: what messages call it. Raises InputError
    where there is no room for them."""
    ledger = _current()
    with ledger.lock:
        ledger.check(size, where)
        ledger.kept += size


def keep_of(paths: Iterable[Path], size: int, where: str) -> None:
    """Charge bytes that stay of all these files, before any but the first is opened: whether they
    fit together depends on no order. Raises InputError as `keep`."""
    if size > RATIO * SMALL:
        for path in paths:
            opens(path.stat())
    keep(size, where)


def hold(size: int, where: str) -> AbstractContextManager[None]:
    """Charge bytes that are in hand inside, after those of other threads where there is no room for
    both. Raises InputError."""
    return _Held(size, where, _current())


def ample(size: int) -> bool:
    """Whether so many bytes more are far from being too much: they may be held for a group at once,
    which costs less than for each of its files."""
    ledger = _current()
    return ledger.kept + ledger.held + size <= ledger.near


class _Held:
    """Bytes in hand: a class, since a generator would cost as much as all else that it does."""

    __slots__ = ("ledger", "size", "token", "where")

    def __init__(self, size: int, where: str, ledger: Ledger) -> None:
        self.size, self.where, self.ledger = size, where, ledger

    def __enter__(self) -> None:
        ledger = self.ledger
        with ledger.lock:
            if ledger.kept + ledger.held + self.size > ledger.near:
                self._wait()
            ledger.held += self.size
        self.token = _HOLDS.set(True)

    def _wait(self) -> None:
        """Until other threads have left room. Raises InputError where there will be none."""
        ledger = self.ledger
        # Who has bytes in hand already would wait for itself.
        while ledger.held and not ledger.room(self.size) and not _HOLDS.get():
            ledger.waiting += 1
            ledger.changed.wait()
            ledger.waiting -= 1
        ledger.check(self.size, self.where)

    def __exit__(self, *raised: object) -> None:
        _HOLDS.reset(self.token)
        ledger = self.ledger
        with ledger.lock:
            ledger.held -= self.size
            if ledger.waiting:
                ledger.changed.notify_all()


def _current() -> Ledger:
    """The ledger of the load; of its own where something is read alone."""
    return _LEDGER.get() or Ledger(_LIMIT.get(), _LIMIT.get() is not None)


@contextmanager
def memory_limit(limit: int | str | None) -> Iterator[None]:
    """Let every load inside take at most so many bytes in memory for what it reads, such as
    3000000000 or "8GiB".

    None: the smaller of 4 GiB and half of what is free, and at most 512 times the bytes of the
    files, or 512 MiB where that is more. Raises InputError for another text, and for less than one
    byte.
    """
    found = None if limit is None else byte_count(limit)
    if limit is not None and found is None:
        raise InputError(
            f"--memory-limit: expected a number of bytes such as 3000000000, 500M or 8GiB, found "
            f"{str(limit)[:40]!r}"
        )
    token = _LIMIT.set(found)
    try:
        yield
    finally:
        _LIMIT.reset(token)


def byte_count(given: int | str) -> int | None:
    """The number of bytes of a number, or of a text: 3000000, 3M, 1.5G, 8GiB (powers of 1024); None
    for anything else, and for less than one byte."""
    found = re.fullmatch(r"(\d{1,15}(?:\.\d{1,9})?)\s*(B|[KMG](?:i?B)?|)", str(given).strip(), re.A)
    size = int(Fraction(found[1]) * UNITS[found[2][:1]]) if found else 0
    return size or None


@contextmanager
def load() -> Iterator[None]:
    """A load, in which all that is read is charged to one ledger; inside another, part of it."""
    if _LEDGER.get() is not None:
        yield
        return
    token = _LEDGER.set(_current())
    try:
        yield
    finally:
        _LEDGER.reset(token)


def free_memory() -> int:
    """Bytes that this process may still take: of the machine, and of its control group."""
    found = [LARGEST * 2]
    with suppress(OSError, ValueError):
        lines = Path(MEMORY_INFO).read_text(encoding="utf-8").splitlines()
        sizes = dict(line.split(":") for line in lines)
        found.append(int(sizes["MemAvailable"].split()[0]) << 10)
    with suppress(OSError, ValueError):
        for line in Path(OWN_GROUPS).read_text(encoding="utf-8").splitlines():
            _, controllers, name = line.split(":", 2)
            if controllers in ("", "memory"):
                found += [*_group_free(controllers, name), *_group_free(controllers, "/")]
    return max(0, min(found))


def _group_free(controllers: str, name: str) -> list[int]:
    """Bytes that a control group (version 2, or 1 of `controllers`) may still take."""
    folder = os.path.join(GROUPS, controllers, name.lstrip("/"))
    limit, used = ("memory.limit_in_bytes", "memory.usage_in_bytes")
    if not controllers:
        limit, used = ("memory.max", "memory.current")
    try:
        texts = [Path(folder, file).read_text(encoding="utf-8") for file in (limit, used)]
        cached = [
            int(line.split()[1])
            for line in Path(folder, "memory.stat").read_text(encoding="utf-8").splitlines()
            if line.split()[0] in ("inactive_file", "total_inactive_file")
        ]
        return [int(texts[0]) - int(texts[1]) + max(cached, default=0)]
    except (OSError, ValueError, IndexError):  # no such group, or no limit ("max")
        return []
