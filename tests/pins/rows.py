"""Columns as codes, resampled recordings, and training on rows for numbers and for labels."""

from __future__ import annotations

import numpy as np

from pins.registry import Pins, digest, route
from pins.samples import recording
from pins.training import named, trained
from samebits.data import from_arrays
from samebits.data.columns import ColumnScale
from samebits.data.resample import ratio, resampled
from samebits.tables.audio import resampling_filter

ROWS, COLUMNS = 96, 6
RATES = (8000, 12000, 48000)


def columns() -> np.ndarray:
    """Numbers of binary64 whose exponents differ, made of integers."""
    noise = recording(81, ROWS * COLUMNS).astype(np.float64).reshape(ROWS, COLUMNS)
    return noise / 1000.0 * 2.0 ** np.arange(-9, 9, 3)


@route("columns")
def scales_and_codes() -> Pins:
    found = {}
    for index, column in enumerate(columns().T):
        scale = ColumnScale.of(column)
        numbers = np.array([scale.centre, scale.spread])
        found[f"column {index}"] = digest(numbers, scale.features(column), scale.targets(column))
    return found


@route("resampling")
def resampling() -> Pins:
    found = {}
    for rate in RATES:
        factors = ratio(rate)
        assert factors is not None
        taps = np.array(resampling_filter(*factors))
        found[f"{rate} Hz"] = digest(taps, resampled(recording(82, 3000), rate))
    return found


@route("rows")
def train_rows() -> Pins:
    x = columns()
    numbers, labels = x[:, 0] * 64 + x[:, 1], (x[:, :3] > 0).astype(np.int64)
    options = {"batch": 16, "lr": 0.02}
    regression = trained(from_arrays([x], [numbers]), "mlp", **options)
    return {
        **named("regression", regression),
        **named("multilabel", trained(from_arrays([x], [labels]), "mlp", **options)),
    }
