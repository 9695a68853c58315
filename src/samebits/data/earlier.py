"""`Earlier`: what a run has recorded of its data, by which other data and arrays are judged."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from samebits import progress
from samebits.data.preparation import Feature, Preparation
from samebits.errors import InputError
from samebits.recipes.reading import PLAIN, Reading
from samebits.spec.tables import FEATURE_BITS, FEATURE_MAX

Array = np.ndarray[Any, Any]
Reals = npt.NDArray[np.float64]
FARTHEST = (FEATURE_MAX + 1) * 2.0**-FEATURE_BITS  # standard deviations: codes go no farther
EVIDENCE = 3.0  # nats, of all values together, by which rows must look raw: twenty to one
RELEVANCE = 0.02  # nats of each value: below, it makes no difference which of the two they are
BIG = 1e300
PLAIN_SCALE = 0.5  # mean and deviation of pixels where none are given
ADVICE = "--prepared takes them as they are"


@dataclass(frozen=True)
class Earlier:
    """How a run read its data: applied to other data, as far as it applies.

    pixels: whether they were images of whole numbers, whose values `options` choose
    missing: what is done about cells without a value, as a contract has it
    """

    options: Reading = PLAIN
    preparation: Preparation | None = None
    pixels: bool = False
    missing: str = ""

    def check_dataset(self, preparation: Preparation | None, source: str) -> None:
        """Raise InputError for a `Dataset` of rows, targets or classes in other scales or another
        order than the run's; what only one of the two has, as of another task, is not compared."""
        mine, other = self.preparation, preparation
        if mine is None or other is None:
            return
        pairs = [(mine.features, other.features), (mine.classes, other.classes)]
        if len(mine.targets) == len(other.targets):
            pairs.append((mine.targets, other.targets))
        if any(one and another and one != another for one, another in pairs):
            raise InputError(
                f"{source}: expected rows and targets in the scales of training, found others; "
                "give the file or arrays by their name, or from_arrays(..., prepared=...) of the "
                "data that was trained on"
            )

    def check_array(self, array: Array, source: str) -> None:
        """Raise InputError for real numbers that the run's preparation of its samples cannot have
        given, [N, ...] with the axes of a sample last: rows of a table that were not standardised,
        pixels in another range."""
        if array.dtype.kind != "f" or not np.isfinite(array).all():
            return  # codes, or what is refused elsewhere
        if self.preparation is not None and self.preparation.features:
            if array.ndim and array.shape[-1] == self.preparation.width:
                rows = array.reshape(-1, array.shape[-1]).astype(np.float64)
                _check_rows(rows, self.preparation, source)
        elif self.pixels:
            _check_pixels(array, self.options, source)

    def check_raw(self, rows: Reals, source: str) -> None:
        """Raise InputError for rows [n, columns] that are likelier standardised already than in the
        units of the table, by the measure of `check_array`; those of words have no number."""
        assert self.preparation is not None
        scaled = [
            _gain(column[np.isfinite(column)], feature)
            for feature, column in zip(self.preparation.features, rows.T, strict=True)
            if feature.scale is not None
        ]
        total, count = sum(float(part.sum()) for part in scaled), sum(map(len, scaled))
        if -total > max(EVIDENCE, RELEVANCE * count):
            raise InputError(
                f"{source}: expected rows in the units of the table, found numbers that look "
                "standardised already; give prepared=True (--prepared) if they are, or a "
                "pandas.DataFrame"
            )


NONE = Earlier()


def _check_rows(rows: Reals, preparation: Preparation, source: str) -> None:
    """Rows [n, width] must be possible in the scales of training, and likelier in them than in the
    units of the table: of each value, the logarithms of two Cauchy densities are compared, one
    around 0 with a width of 1, and one around the column's mean with its standard deviation."""
    found, numbers, gains, place = "", [], [], 0
    for feature in preparation.features:
        part = rows[:, place : place + feature.width]
        place += feature.width
        if feature.scale is None:
            strange = part[(part != 0) & (part != 1)]
            expected = "where each word has 0 or 1"
        else:
            column = part[:, 0]
            numbers.append((feature, column))
            gains.append(_gain(column, feature))
            strange = column[np.abs(column) > FARTHEST]
            expected = f"where they lie from {-FARTHEST:g} to {FARTHEST:g}"
        if len(strange) and not found:
            found = f"{strange[0]:.6g} in column {feature.name!r}, {expected}"
    total = float(np.sum(gains))
    if total > EVIDENCE and total > RELEVANCE * len(rows) * len(gains):
        feature, column = numbers[int(np.argmax([gain.sum() for gain in gains]))]
        assert feature.scale is not None
        ends = dict.fromkeys(f"{number:.6g}" for number in (column.min(), column.max()))
        found = (
            f"{' to '.join(ends)} in column {feature.name!r}, in the units of "
            f"the table (mean {feature.scale.centre:.6g}, standard deviation "
            f"{feature.scale.spread:.6g})"
        )
    if found:
        raise InputError(
            f"{source}: expected rows that are standardised as in training, found {found}; give "
            "the table as a file or as a pandas.DataFrame, whose columns are standardised by their "
            f"names; {ADVICE}"
        )


def _gain(column: Reals, feature: Feature) -> Reals:
    """By how many nats each number of a column is likelier in the units of the table."""
    assert feature.scale is not None
    with np.errstate(over="ignore"):
        deviations = (column - feature.scale.centre) / feature.scale.spread
    raw, scaled = (2 * np.log(np.hypot(1, np.clip(x, -BIG, BIG))) for x in (deviations, column))
    return np.asarray(scaled - raw - np.log(feature.scale.spread))


def _check_pixels(array: Array, options: Reading, source: str) -> None:
    """Values must lie in the range that those of pixels 0 to 255 have, or near it."""
    means, stds = (n or (PLAIN_SCALE,) for n in (options.mean, options.std))
    low = min(-mean / std for mean, std in zip(means, stds, strict=True))
    high = max((1 - mean) / std for mean, std in zip(means, stds, strict=True))
    least, most = float(array.min()), float(array.max())
    mean, std = (",".join(f"{n:g}" for n in numbers) for numbers in (means, stds))
    scaled = f"(pixel / 255 - {mean}) / {std}"
    slack = (high - low) / 2  # for noise and sharpening
    if least < low - slack or most > high + slack:
        raise InputError(
            f"{source}: expected pixels as in training, {low:g} to {high:g}, which is {scaled}, "
            f"found {least:g} to {most:g}; bring them to that, or give the images as files or as "
            f"uint8 in an archive with their labels; {ADVICE}"
        )
    if low < 0 <= least and most <= 1 and most > least:
        progress.note(
            f"{source}: all values lie from 0 to 1, where pixels in training went from {low:g} to "
            f"{high:g}; if they are pixel / 255, bring them to {scaled}"
        )
