"""Progress of long work, told to whoever listens.

Functions that take long name their stages and count their items here; they know nothing of
terminals. The command line listens and draws; a program that imports samebits hears nothing unless
it listens too, or has Python's logging show the logger "samebits": notes are messages of level
INFO, stages of level DEBUG. What a user must not miss is a warning or an error, and never here.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Protocol, TypeVar

T = TypeVar("T")

logging.getLogger("samebits").addHandler(logging.NullHandler())
_log = logging.getLogger(__name__)


class Listener(Protocol):
    """Whoever draws progress. Stages do not overlap: the next one ends the one before."""

    def stage(self, what: str, total: int | None) -> None:
        """Work on `what` begins, of `total` items (None: of unknown length)."""

    def advance(self, done: int) -> None:
        """So many items of the stage are done."""

    def note(self, text: str) -> None:
        """A sentence that the user should read, such as an assumption that was made."""


_listener: ContextVar[Listener | None] = ContextVar("samebits progress", default=None)


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Tell `listener` of all work inside the `with` block (of this thread and context)."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


def stage(what: str, total: int | None = None) -> None:
    """Say that work on `what` begins."""
    _log.debug("%s", what if total is None else f"{what}: {total}")
    listener = _listener.get()
    if listener is not None:
        listener.stage(what, total)


def track(items: Iterable[T], what: str, total: int | None = None) -> Iterator[T]:
    """The items, one by one; each counts as done when the next one is asked for."""
    stage(what, total)
    for done, item in enumerate(items):
        if done and (listener := _listener.get()) is not None:
            listener.advance(done)
        yield item


def note(text: str) -> None:
    """Tell the user something that is neither an error nor a result."""
    _log.info("%s", text)
    listener = _listener.get()
    if listener is not None:
        listener.note(text)
