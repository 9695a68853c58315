"""Equal tables are stored once."""

from __future__ import annotations

from collections.abc import Sequence


def share(tables: Sequence[Sequence[int]]) -> tuple[tuple[tuple[int, ...], ...], tuple[int, ...]]:
    """The distinct tables, in order of first use, and the index of each given table in them."""
    unique: dict[tuple[int, ...], int] = {}
    index = tuple(unique.setdefault(tuple(table), len(unique)) for table in tables)
    return tuple(unique), index
