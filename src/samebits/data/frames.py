"""Frames of pandas that a user gives, or that stand for an array."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from samebits.errors import InputError

if TYPE_CHECKING:
    import pandas

IN_MEMORY = "data"  # the name of a frame in messages


def is_frame(given: object) -> bool:
    """Whether something is a frame of pandas."""
    return hasattr(given, "iloc") and hasattr(given, "columns")


def frames_given(given: object) -> list[tuple[str, pandas.DataFrame]]:
    """Name the frame that a user gives, or the two for training and for testing; [] for anything
    else."""
    if is_frame(given):
        return [(IN_MEMORY, given)]
    if isinstance(given, list | tuple) and len(given) == 2 and all(map(is_frame, given)):
        return list(zip((f"training {IN_MEMORY}", f"test {IN_MEMORY}"), given, strict=True))
    return []


def frame_of(rows: np.ndarray[Any, Any], names: Sequence[str], source: str) -> pandas.DataFrame:
    """A frame of rows [n, columns] in the order of the columns, or [columns], one row. Raises
    InputError for another shape, and without pandas."""
    rows = rows[None] if rows.ndim == 1 else rows
    if rows.ndim != 2 or rows.shape[1] != len(names):
        raise InputError(
            f"{source}: expected rows of the {len(names)} columns {', '.join(names):.300}, in this "
            f"order, found an array of shape {list(rows.shape)}; give prepared=True (--prepared) "
            "for what the network itself takes"
        )
    frame = pandas_of(source).DataFrame(dict(zip(names, rows.T, strict=True)))
    return frame.infer_objects()


def pandas_of(source: str) -> Any:
    """The package. Raises InputError where it is not installed."""
    try:
        import pandas
    except ImportError as error:
        raise InputError(
            f"{source}: tables are read by pandas, which is not installed; run: pip install pandas"
        ) from error
    return pandas
