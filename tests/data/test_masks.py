"""Folders of images and masks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from samebits.data import load
from samebits.data.folder import is_test_name
from samebits.errors import InputError
from samebits.recipes.reading import Reading

SHAPE = (5, 6)


def mask(index: int) -> np.ndarray:
    return (np.arange(30).reshape(SHAPE) + index) % 3


def save(path: Path, pixels: np.ndarray, mode: str | None = None) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    image = Image.fromarray(pixels.astype(np.uint8))
    image.putpalette(bytes(range(48))) if mode == "P" else None
    image.save(path)


def fill(root: Path, count: int = 12, ending: str = ".png") -> Path:
    for index in range(count):
        save(root / "images" / f"{index}{ending}", 80 * mask(index))
        save(root / "masks" / f"{index}.png", mask(index), "P" if index % 2 else None)
    return root


def message(root: Path, **options) -> str:
    with pytest.raises(InputError) as caught:
        load(str(root), options=Reading(**options))
    return str(caught.value)


def test_masks_belong_to_images_of_their_names(tmp_path):
    data = load(str(fill(tmp_path)))
    names = sorted(f"{index}.png" for index in range(12))
    test = [int(name[:-4]) for name in names if is_test_name(name)]
    assert (data.task, data.class_names) == ("segmentation", ("0", "1", "2"))
    assert data.test_labels.tolist() == [mask(index).tolist() for index in test]
    assert data.test_images[:, 0].tolist() == [(80 * mask(index)).tolist() for index in test]


def test_a_split_of_its_own(tmp_path):
    fill(tmp_path / "train", 4, ".webp")
    fill(tmp_path / "test", 3)
    data = load(str(tmp_path), options=Reading(colour="grey"))
    assert (len(data.train_labels), len(data.test_labels)) == (4, 3)


def test_masks_are_resized_without_mixing(tmp_path):
    data = load(str(fill(tmp_path)), options=Reading(resize="3x3", colour="rgb"))
    assert data.input_shape == (3, 3, 3)
    assert tuple(data.train_labels.shape[1:]) == (3, 3)
    assert set(data.train_labels.unique().tolist()) <= {0, 1, 2}


def test_what_is_wrong_is_named(tmp_path):
    fill(tmp_path)
    assert "--task regression: expected segmentation of images and masks" in message(
        tmp_path, task="regression"
    )
    assert "--resample does not apply to a folder of images and masks" in message(
        tmp_path, resample=True
    )
    save(tmp_path / "masks" / "1.png", mask(1)[:4])
    for options in ({}, {"resize": 3}):
        wanted = f"{tmp_path / 'masks' / '1.png'}: expected a mask of 6x5 pixels"
        assert wanted in message(tmp_path, **options)
    save(tmp_path / "masks" / "1.png", np.full(SHAPE, 255))
    assert "expected indices of classes below 255, found 255" in message(tmp_path)
    Image.fromarray(np.zeros((*SHAPE, 3), np.uint8)).save(tmp_path / "masks" / "1.png")
    assert "expected a grey or palette mask of 8 bits" in message(tmp_path)
    (tmp_path / "masks" / "1.png").unlink()
    assert f"{tmp_path / 'images' / '1.png'}: expected a mask of that name" in message(tmp_path)
    save(tmp_path / "masks" / "1.jpg", mask(1))
    assert "expected only .png files of different names" in message(tmp_path)
