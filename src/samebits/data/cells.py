"""Cells of a column of pandas as numbers or words, and what stands for those without a value."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from samebits import progress
from samebits.data.preparation import Column, Feature, check_numbers
from samebits.errors import InputError

COMMAS = re.compile(r"\s*[+-]?[\d.,]*\d[\d.,]*\s*")  # a number, maybe with commas


def column_of(series: Any, where: str) -> Column:
    """Numbers float64 [n], or words. Raises InputError by row where one is missing."""
    missing = np.flatnonzero(series.isna().to_numpy())
    if len(missing):
        place = where.replace("ROW", str(int(missing[0]) + 1))
        raise InputError(
            f"{place}: expected a value, found none (an empty cell, or NA); fill it in or remove "
            "the row"
        )
    if getattr(series.dtype, "kind", "O") in "iufb":
        values = np.asarray(series.to_numpy(), np.float64)
        if series.dtype.kind in "iu" and np.abs(values).max() >= 2.0**53:
            row = int(np.abs(values).argmax()) + 1
            raise InputError(
                f"{where.replace('ROW', str(row))}: expected an integer below 2**53, found "
                f"{series.iloc[row - 1]}; remove the column, if it is a number of an entry"
            )
        check_numbers(values, where)
        return values
    words = _words(series)
    for row, word in enumerate(words, 1):
        if not isinstance(word, str | bool | int | float):
            raise InputError(
                f"{where.replace('ROW', str(row))}: expected a number or a word, found "
                f"{type(word).__name__}; convert the column"
            )
    texts = [str(word) for word in words]
    _check_words(texts, where)
    return texts


def _words(series: Any) -> list[Any]:
    """The cells of a column that is none of numbers. Each word of a dictionary is one object."""
    if not hasattr(series, "cat"):
        return list(series.tolist())
    known = series.cat.categories.tolist()
    return [known[code] for code in series.cat.codes]


def _check_words(words: Sequence[str], where: str) -> None:
    """Raise InputError for numbers with commas, which would count as words. Other numbers among
    words are noted."""
    different = set(words)
    if any("," in word for word in different) and all(map(COMMAS.fullmatch, different)):
        row = next(row for row, word in enumerate(words, 1) if "," in word)
        raise InputError(
            f"{where.replace('ROW', str(row))}: expected a number with a point, found "
            f"{words[row - 1]!r:.60}; write 1.5 and 1000 for numbers with commas"
        )
    others = sorted(word for word in different if not is_number(word))
    if 2 * len(others) < len(different):
        found = f"such as {others[0]!r:.60}" if others else "all of them numbers as text"
        place = where.replace("row ROW, ", "")
        progress.note(f"{place} is one of words, {found}: each different one is an input or class")


def is_number(word: str) -> bool:
    """Whether a word is a number as Python reads it."""
    try:
        float(word)
    except ValueError:
        return False
    return True


def filled(series: Any, feature: Feature) -> Any:
    """A column with something of its kind in the cells that have no value."""
    if feature.scale is None:
        return series.astype(object).where(series.notna(), feature.categories[0])
    if series.isna().all() or getattr(series.dtype, "kind", "O") in "iufb":
        numbers = series.astype(object).where(series.notna(), feature.scale.centre)
        return numbers.astype("float64")
    return series.astype(object).where(series.notna(), "")  # words, which are refused
