"""Decoding untrusted files: many at once, each error an InputError that names its file."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import copy_context
from pathlib import Path
from typing import Any

from samebits.errors import InputError

THREADS = min(8, os.cpu_count() or 1)


@contextmanager
def decoding(path: Path | str, kind: str, advice: str) -> Iterator[None]:
    """Turn whatever a decoder raises on a damaged or hostile file into an InputError.

    kind: what was expected ("a WAV file"); advice: what to do about it. InputErrors pass.
    """
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        found = f"{type(error).__name__}: {error}"
        raise InputError(f"{path}: corrupt or not {kind} ({found}); {advice}") from error


def in_threads(work: Callable[[Any], Any], items: Iterable[Any]) -> list[Any]:
    """The results of `work`, in order, so that the first bad file is the one reported. The threads
    know what the caller's context holds, such as the ledger of a load."""
    context = copy_context()
    with ThreadPoolExecutor(THREADS) as pool:
        return list(pool.map(lambda item: context.copy().run(work, item), items))
