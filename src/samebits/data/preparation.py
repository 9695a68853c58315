"""`Preparation`: what turns columns of a table into codes; a run records it, so that other data of
the same columns gets the same numbers. docs/spec/tables.md."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from samebits import progress
from samebits.data.columns import ColumnScale, Reals
from samebits.errors import InputError
from samebits.spec.tables import FEATURE_BITS, LARGEST

Column = Reals | Sequence[str]  # numbers, or words
MAX_CATEGORIES = 100  # of one column: each becomes an input
MAX_NAMES = 1 << 16  # of columns and classes in a record
MOST_LISTED = 20  # names of columns in a message
PARTS = ("features", "targets", "classes")
ONE = 1 << FEATURE_BITS


@dataclass(frozen=True)
class Feature:
    """A column of a table: numbers with their scale, or words with the categories they name."""

    name: str
    scale: ColumnScale | None = None
    categories: tuple[str, ...] = ()

    @property
    def width(self) -> int:
        """The number of inputs of a network that it becomes."""
        return len(self.categories) or 1


@dataclass(frozen=True)
class Preparation:
    """Features in order, scales of the targets of a regression, classes of a classification."""

    features: tuple[Feature, ...] = ()
    targets: tuple[ColumnScale, ...] = ()
    classes: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """As JSON data; numbers are binary64 and read back as they were."""
        return {
            "features": [feature_record(feature) for feature in self.features],
            "targets": [scale_record(scale) for scale in self.targets],
            "classes": list(self.classes),
        }

    @staticmethod
    def from_dict(record: object) -> Preparation:
        """The preparation that `to_dict` has recorded; the record is untrusted. Raises InputError
        for anything else."""
        try:
            require(isinstance(record, Mapping))
            features, targets, classes = (record[key] for key in PARTS)  # type: ignore[index]
            for part in (features, targets, classes):
                require(isinstance(part, list) and len(part) <= MAX_NAMES)
            return Preparation(
                tuple(map(feature_from, features)),
                tuple(map(scale_from, targets)),
                tuple(map(_text, classes)),
            )
        except (KeyError, TypeError):
            raise InputError(
                f"expected the columns of a table as samebits records them, found {record!r:.80}"
            ) from None

    @property
    def width(self) -> int:
        """Inputs that all features have together."""
        return sum(feature.width for feature in self.features)

    def codes(self, columns: Mapping[str, Column], source: str) -> torch.Tensor:
        """Codes int16 [n, width] of columns by name. Raises InputError where one of the features
        is missing, is of another kind, or has a word that is none of its categories."""
        known = {feature.name for feature in self.features}
        extra = [name for name in columns if name not in known]
        missing = [feature.name for feature in self.features if feature.name not in columns]
        if extra or missing:
            raise InputError(_misfit(missing, extra, source))
        parts = [_codes(f, columns[f.name], source) for f in self.features]
        return torch.from_numpy(np.concatenate(parts, axis=1))


def _misfit(missing: Sequence[str], extra: Sequence[str], source: str) -> str:
    """The sentence on columns that are not those of training: all that lack, and all besides."""
    found = [f"no {_listed(missing)}"] if missing else []
    found += [f"{_listed(extra)} besides"] if extra else []
    advice = "give each the name that it had in training"
    if not missing:
        advice = f"remove {'it' if len(extra) == 1 else 'them'}, or train again"
    elif not extra:
        advice = "add what is missing"
    return f"{source}: expected the columns of training, found {' and '.join(found)}; {advice}"


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - MOST_LISTED} more" if len(names) > MOST_LISTED else ""
    return ", ".join(f"{name!r:.60}" for name in names[:MOST_LISTED]) + more


def feature_record(feature: Feature) -> dict[str, Any]:
    """A feature as JSON data."""
    if feature.scale is None:
        return {"name": feature.name, "categories": list(feature.categories)}
    return {"name": feature.name, **scale_record(feature.scale)}


def scale_record(scale: ColumnScale) -> dict[str, float]:
    """A scale as JSON data."""
    return {"centre": scale.centre, "spread": scale.spread}


def feature_from(record: Any) -> Feature:
    """The feature of a record, which is untrusted. Raises TypeError or KeyError."""
    if "categories" in record:
        categories = tuple(map(_text, record["categories"]))
        require(0 < len(categories) <= MAX_CATEGORIES)
        return Feature(_text(record["name"]), None, categories)
    return Feature(_text(record["name"]), scale_from(record))


def scale_from(record: Any) -> ColumnScale:
    """The scale of a record, which is untrusted. Raises TypeError or KeyError."""
    centre, spread = record["centre"], record["spread"]
    require(type(centre) is float and type(spread) is float)
    require(math.isfinite(centre) and 0 < spread < math.inf)
    return ColumnScale(centre, spread)


def _text(found: object) -> str:
    if not isinstance(found, str):
        raise TypeError
    return found


def require(good: bool) -> None:
    """Raise TypeError for a record that is not as samebits writes it."""
    if not good:
        raise TypeError


def _codes(feature: Feature, column: Column, source: str) -> npt.NDArray[np.int16]:
    """Codes [n, width] of one feature."""
    numbers = isinstance(column, np.ndarray)
    if numbers != (feature.scale is not None):
        expected = "words" if feature.scale is None else "numbers"
        found = "numbers" if numbers else "words"
        raise InputError(
            f"{source}: expected a column {feature.name!r} of {expected} as in training, found "
            f"{found}"
        )
    if feature.scale is not None:
        assert isinstance(column, np.ndarray)
        return feature.scale.features(column)[:, None]
    places = {word: place for place, word in enumerate(feature.categories)}
    codes = np.zeros((len(column), len(places)), np.int16)
    for row, word in enumerate(column):
        if word not in places:
            raise InputError(
                f"{source}: row {row + 1}, column {feature.name!r}: expected one of the "
                f"{len(places)} categories of training, found {word!r:.60}"
            )
        codes[row, places[word]] = ONE
    return codes


def features_of(
    columns: Mapping[str, Column], training: npt.NDArray[np.bool_], source: str
) -> tuple[Feature, ...]:
    """The features of columns: scales of the training rows, categories of all rows, sorted.

    Raises InputError for a column of words with more than MAX_CATEGORIES different ones.
    """
    features = []
    for name, column in columns.items():
        if isinstance(column, np.ndarray):
            chosen = column[training]
            if chosen.min() == chosen.max():
                progress.note(
                    f"{source}: column {name!r} holds one number in all training rows: it says "
                    "nothing"
                )
            features.append(Feature(name, ColumnScale.of(chosen)))
            continue
        categories = tuple(sorted(set(column)))
        if len(categories) > MAX_CATEGORIES:
            raise InputError(
                f"{source}: column {name!r}: expected numbers, or at most {MAX_CATEGORIES} "
                f"different words, found {len(categories)}; remove the column"
            )
        features.append(Feature(name, None, categories))
    return tuple(features)


def check_numbers(values: Reals, where: str) -> None:
    """Raise InputError for a number [n] that is missing, infinite or beyond 2**500, by its row,
    counted from 1."""
    bad = np.flatnonzero(~(np.abs(values) < float(LARGEST)))
    if len(bad):
        found = "no value" if np.isnan(values[bad[0]]) else repr(float(values[bad[0]]))
        place = where.replace("ROW", str(int(bad[0]) + 1))
        raise InputError(
            f"{place}: expected a finite number, found {found}; fill it in or remove the row"
        )
