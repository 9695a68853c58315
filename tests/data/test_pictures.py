"""Images of the size and colours that are asked for."""

from __future__ import annotations

import numpy as np
import PIL
import pytest
from PIL import Image

from samebits.data import load
from samebits.data.pictures import middle, pixels_of, read_picture
from samebits.errors import InputError
from samebits.recipes.reading import Reading


@pytest.mark.parametrize(
    ("size", "sides", "box"),
    [
        ((10, 10), (5, 5), (0, 0, 10, 10)),
        ((20, 10), (5, 5), (5, 0, 15, 10)),
        ((10, 21), (4, 4), (0, 5, 10, 15)),
        ((10, 10), (1, 3), (0, 3, 10, 6)),
        ((1, 9), (2, 9), (0, 4, 1, 5)),
        ((9, 1), (9, 2), (4, 0, 5, 1)),
    ],
)
def test_the_middle_has_the_proportions_asked_for(size, sides, box):
    assert middle(size, sides) == box


def test_grey_is_an_integer_formula():
    pixels = np.random.default_rng(0).integers(0, 256, (40, 30, 3), dtype=np.uint8)
    found = pixels_of(Image.fromarray(pixels), "x", options=Reading(colour="grey"))
    wide = pixels.astype(np.int64) @ [19595, 38470, 7471]
    assert found[0].tolist() == ((wide + 0x8000) >> 16).tolist()


def test_rgb_of_grey_is_three_times_the_same():
    pixels = np.arange(30, dtype=np.uint8).reshape(5, 6)
    found = pixels_of(Image.fromarray(pixels), "x", options=Reading(colour="rgb"))
    assert found.tolist() == [pixels.tolist()] * 3


def test_resizing_to_half_takes_means():
    pixels = np.full((8, 8), 40, np.uint8)
    pixels[:4] = 200
    found = pixels_of(Image.fromarray(pixels), "x", options=Reading(resize=4))
    assert found[0, [0, 3]].tolist() == [[200] * 4, [40] * 4]
    same = pixels_of(Image.fromarray(pixels), "x", options=Reading(resize=8))
    assert same[0].tolist() == pixels.tolist()


def test_webp_is_read(tmp_path):
    path = tmp_path / "x.webp"
    pixels = np.random.default_rng(0).integers(0, 256, (7, 5, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path, lossless=True)
    assert read_picture(path).tolist() == pixels.transpose(2, 0, 1).tolist()


def fill(root, sizes, modes):
    for index, (size, mode) in enumerate(zip(sizes, modes, strict=True)):
        for split in ("train", "test"):
            path = root / split / ("a", "b")[index % 2] / f"{index}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.new(mode, size, 40 * index if mode == "L" else (index,) * 3).save(path)


def test_mixed_images_need_options_that_are_named(tmp_path):
    fill(tmp_path, [(6, 5), (6, 5), (8, 8), (6, 5)], ["L", "L", "L", "RGB"])
    with pytest.raises(
        InputError, match=r"found 8x8 grey; convert .* --resize HEIGHTxWIDTH to make"
    ):
        load(str(tmp_path))
    with pytest.raises(InputError, match=r"found 4x4 RGB; convert .* give --colour grey or rgb to"):
        load(str(tmp_path), options=Reading(resize=4))
    data = load(str(tmp_path), options=Reading(resize=4, colour="rgb"))
    assert data.input_shape == (3, 4, 4)
    assert data.record() == {
        "class_names": ["a", "b"],
        "reading": {"resize": [4, 4], "colour": "rgb"},
        "pixels": True,
        "pillow": PIL.__version__,
    }
