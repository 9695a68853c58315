"""Routes by name, and how what they compute becomes a hash."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

Pins = dict[str, str]
Array = np.ndarray[Any, Any]


class UnavailableError(Exception):
    """A route needs something that this machine lacks; the message says what."""


@dataclass(frozen=True)
class Route:
    """One way through the project. compute: the hashes of what it gives, by name; raises
    UnavailableError. slow: takes more than a few seconds."""

    name: str
    compute: Callable[[], Pins]
    slow: bool = False


ROUTES: dict[str, Route] = {}


def route(name: str, slow: bool = False) -> Callable[[Callable[[], Pins]], Callable[[], Pins]]:
    """Register a function that computes the pins of a route."""

    def register(compute: Callable[[], Pins]) -> Callable[[], Pins]:
        if name in ROUTES:
            raise ValueError(f"expected every route once, found {name!r} again; rename it")
        ROUTES[name] = Route(name, compute, slow)
        return compute

    return register


def digest(*parts: Any) -> str:
    """SHA-256 over types, shapes and little-endian bytes of arrays; of integers beyond 64 bits, of
    fractions and of text their decimal form."""
    found = hashlib.sha256()
    for part in parts:
        array = np.asarray(part)
        found.update(f"{array.dtype.name} {list(array.shape)} ".encode())
        if array.dtype.kind in "OU":
            found.update("\0".join(map(str, array.reshape(-1).tolist())).encode())
        else:
            found.update(array.astype(array.dtype.newbyteorder("<"), order="C").tobytes())
    return found.hexdigest()


def digest_of_set(parts: Iterable[Any]) -> str:
    """The hash of the different arrays among these, in any order."""
    return hashlib.sha256("".join(sorted({digest(part) for part in parts})).encode()).hexdigest()
