"""The numbers that a user sets inputs to, as numbers of the inputs' types."""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np

from samebits.errors import InputError
from samebits.ir.real.define import code_range

Array = np.ndarray[Any, Any]

_BOOLEANS = {"true": True, "false": False}
_INTEGER = re.compile(r"[+-]?[0-9]{1,20}")
_MOST = 2**70  # of whole numbers: beyond every type
_SHOWN = 40  # characters of what was found


def scalar_of(given: Any, dtype: np.dtype[Any], name: str) -> Array:
    """A number, or the text of one, in the type of the input `name`.

    Integers take whole numbers in their range, bool takes true, false, 0 and 1, floating point
    takes numbers that are finite in it, rounded once. Raises InputError for anything else.
    """
    found = _number(given)
    if dtype == np.bool_:
        expected, fits = "true, false, 0 or 1", found in (0, 1)
    elif dtype.kind in "iu" or "int" in dtype.name:
        least, most = code_range(dtype.name)
        expected = f"a whole number from {least} to {most}"
        fits = not isinstance(found, bool) and found == found // 1 and least <= found <= most
        found = int(found) if fits else found
    else:
        expected = f"a finite number of {dtype.name}"
        found = found if isinstance(found, bool) else float(found)
        with np.errstate(over="ignore"):
            fits = not isinstance(found, bool) and bool(np.isfinite(np.array(found).astype(dtype)))
    if not fits:
        raise InputError(
            f"--set {name}: expected {expected}, the type of this input, found "
            f"{str(given)[:_SHOWN]!r}"
        )
    return np.asarray(found).astype(dtype)


def _number(given: Any) -> bool | int | float:
    """A scalar as a number of Python; NaN for anything else."""
    if isinstance(given, str):
        text = given.strip()
        if text.lower() in _BOOLEANS:
            return _BOOLEANS[text.lower()]
        if _INTEGER.fullmatch(text):
            return int(text)
        given = text
    elif hasattr(given, "item") and getattr(given, "ndim", 1) == 0:
        given = given.item()
    if isinstance(given, bool) or (isinstance(given, int) and abs(given) < _MOST):
        return given
    try:
        return float(given)
    except (TypeError, ValueError, OverflowError):
        return math.nan
