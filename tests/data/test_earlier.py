"""What a run has recorded of its data: arrays and data sets that are none of that are refused."""

from __future__ import annotations

import numpy as np
import pytest

from samebits.data.columns import ColumnScale
from samebits.data.earlier import NONE, Earlier
from samebits.data.preparation import Feature, Preparation
from samebits.errors import InputError
from samebits.recipes.reading import Reading

RNG = np.random.default_rng(5)
SIZES = ((14.1, 3.5), (0.004, 0.003), (654.0, 352.0), (0.5, 0.29))  # means and deviations
FEATURES = tuple(Feature(f"c{i}", ColumnScale(*size)) for i, size in enumerate(SIZES))
TABLE = Earlier(preparation=Preparation(FEATURES))
CENTRES, SPREADS = np.array(SIZES).T
SCALED = RNG.normal(size=(400, 4))
RAW = SCALED * SPREADS + CENTRES


@pytest.mark.parametrize("rows", [1, 3, 400])
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_rows_in_the_units_of_the_table_are_refused(rows, dtype):
    TABLE.check_array(SCALED[:rows].astype(dtype), "x")
    with pytest.raises(InputError) as caught:
        TABLE.check_array(RAW[:rows].astype(dtype), "x")
    text = str(caught.value)
    assert text.startswith("x: expected rows that are standardised as in training, found ")
    assert "in column 'c2', in the units of the table (mean 654, standard deviation 352)" in text
    assert "as a pandas.DataFrame, whose columns are standardised by their names; --prep" in text


def test_every_row_alone_is_told_apart():
    def refused(rows):
        count = 0
        for row in rows:
            try:
                TABLE.check_array(row, "x")
            except InputError:
                count += 1
        return count

    assert refused(RAW) == 400
    assert refused(SCALED) <= 4


def test_scales_that_make_no_difference_are_not_told_apart():
    """Columns that were nearly standardised before, in any number, either way."""
    features = tuple(Feature(f"c{i}", ColumnScale(0.05 * i - 0.1, 1.0)) for i in range(4))
    earlier = Earlier(preparation=Preparation(features))
    for rows in (SCALED, SCALED + 0.05, np.tile(SCALED, (20, 1)), np.zeros((3, 4))):
        earlier.check_array(rows, "x")


@pytest.mark.parametrize("spread", [1e-20, 1e-150, 1e150, 5e-324])
def test_deviations_of_any_size(spread):
    earlier = Earlier(preparation=Preparation((Feature("c", ColumnScale(1.0, spread)),) * 4))
    earlier.check_array(SCALED, "x")
    if spread < 1:
        with pytest.raises(InputError, match="in the units of the table"):
            earlier.check_array(np.ones((5, 4)), "x")


def test_numbers_that_no_code_stands_for():
    with pytest.raises(InputError, match=r"found -8\.5 in column 'c1', where they lie from -8 to"):
        TABLE.check_array(np.array([[0.0, -8.5, 1.0, 0.5], [0.0, 0.0, 0.0, 9.5]]), "x")
    TABLE.check_array(np.full((2, 4), 8.0), "x")


def test_words_are_zeros_and_ones():
    words = Feature("colour", None, ("blue", "red"))
    earlier = Earlier(preparation=Preparation((FEATURES[0], words)))
    earlier.check_array(np.array([[0.5, 0.0, 1.0], [-1.0, 1.0, 0.0]]), "x")
    with pytest.raises(InputError, match="found 2 in column 'colour', where each word has 0 or 1"):
        earlier.check_array(np.array([[0.5, 0.0, 2.0]]), "x")


def test_what_is_no_row_is_left_to_others():
    for array in (RAW[:, :3], RAW.astype(np.int8), np.full((1, 4), np.nan), np.float64(3)):
        TABLE.check_array(np.asarray(array), "x")
    NONE.check_array(RAW, "x")


def test_pixels_beyond_those_of_training():
    pixels = RNG.integers(0, 256, (5, 3, 4, 4)).astype(np.float32)
    plain = Earlier(pixels=True)
    plain.check_array(pixels / 127.5 - 1, "x")
    plain.check_array((pixels / 127.5 - 1) * 1.5, "x")  # sharpened
    for scale in (1, 16 / 255):
        with pytest.raises(InputError, match=r"pixels as in training, -1 to 1, which is \(pixel /"):
            plain.check_array(pixels * np.float32(scale), "x")
    Earlier().check_array(pixels, "x")  # float32 images, which are taken as they are
    options = Reading(mean="0.485,0.456,0.406", std="0.229,0.224,0.225")
    chosen = Earlier(options, pixels=True)
    chosen.check_array(np.full((1, 3, 2, 2), 2.64, np.float32), "x")
    with pytest.raises(
        InputError, match=r"-2\.11790* to 2\.64.*- 0\.485,0\.456,0\.406\) / 0\.229,"
    ):
        chosen.check_array(pixels, "x")


def test_pixels_of_zero_to_one_are_noted(caplog):
    caplog.set_level("INFO", "samebits")
    pixels = RNG.random((5, 1, 4, 4))
    Earlier(Reading(mean=0, std=1), pixels=True).check_array(pixels, "x")
    Earlier(pixels=True).check_array(pixels - 0.5, "x")
    assert not caplog.text
    Earlier(pixels=True).check_array(pixels, "x")
    assert (
        "x: all values lie from 0 to 1, where pixels in training went from -1 to 1" in caplog.text
    )


def test_data_sets_in_other_scales():
    other = Preparation(FEATURES[::-1])
    TABLE.check_dataset(TABLE.preparation, "d")
    TABLE.check_dataset(None, "d")
    NONE.check_dataset(other, "d")
    with pytest.raises(InputError, match="d: expected rows and targets in the scales of training"):
        TABLE.check_dataset(other, "d")
    classes = Earlier(preparation=Preparation(FEATURES, classes=("a", "b")))
    with pytest.raises(InputError, match="in the scales of training"):
        classes.check_dataset(Preparation(FEATURES, classes=("b", "c")), "d")
    scaled = Earlier(preparation=Preparation(targets=(ColumnScale(0.0, 1.0),)))
    scaled.check_dataset(Preparation(targets=(ColumnScale(2.0, 1.0),) * 2), "d")  # another task
    with pytest.raises(InputError, match="in the scales of training"):
        scaled.check_dataset(Preparation(targets=(ColumnScale(2.0, 1.0),)), "d")
