"""Changes of layers' running state (statistics, magnitudes of channels) in the order of shards."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Protocol, Self

from torch import Tensor


class ShardUpdate(Protocol):
    """A change that one shard makes to the running state of one layer.

    Shards are applied in shard order, whoever computed them, so that every worker holds the same
    state (training.md 5, 8 and 12.4).
    """

    @property
    def state(self) -> tuple[Tensor, ...]:
        """The layer's buffers that it changes."""

    def apply(self) -> None:
        """Change the layer's buffers."""

    def to_bytes(self) -> bytes:
        """The shard's numbers, for other workers."""

    def from_bytes(self, data: bytes) -> tuple[Self, bytes]:
        """The same layer's update in another shard, and the bytes after it."""


_DEFERRED: ContextVar[list[ShardUpdate] | None] = ContextVar("deferred", default=None)


@contextlib.contextmanager
def deferred_updates() -> Iterator[list[ShardUpdate]]:
    """List the updates inside a with block instead of applying them."""
    updates: list[ShardUpdate] = []
    token = _DEFERRED.set(updates)
    try:
        yield updates
    finally:
        _DEFERRED.reset(token)


def defer(update: ShardUpdate) -> None:
    """Apply an update, or list it where updates are deferred."""
    deferred = _DEFERRED.get()
    if deferred is None:
        update.apply()
    else:
        deferred.append(update)
