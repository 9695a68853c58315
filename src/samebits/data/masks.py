"""Folders of images/ and masks/ of equal names, for segmentation: a class for every pixel."""

from __future__ import annotations

from itertools import chain
from pathlib import Path

import numpy as np
import torch

from samebits import ledger
from samebits.data.dataset import Dataset, places_of
from samebits.data.decode import in_threads
from samebits.data.folder import TAKES as IMAGE_TAKES
from samebits.data.folder import is_test_name, visible
from samebits.data.labels import encode
from samebits.data.pictures import IMAGE_SUFFIXES, Pixels, read_mask, read_picture, stored_size
from samebits.errors import InputError
from samebits.recipes.reading import PLAIN, Reading

TAKES = ("task", *IMAGE_TAKES)
TASK = "segmentation"
COPIES = 3  # of images and masks, while they become one array


def holds_masks(root: Path) -> bool:
    """Whether a folder, or its train/, holds images/ and masks/."""
    return any(
        (place / "images").is_dir() and (place / "masks").is_dir()
        for place in (root, root / "train")
    )


def load_masks(root: Path, options: Reading = PLAIN) -> Dataset:
    """Images uint8 [N, C, H, W] with masks [N, H, W] of indices of classes.

    A mask is the PNG file in masks/ whose name, but for its ending, is that of an image. Without
    train/ and test/ a hash of the image's name says which are for testing, as of other folders.
    Raises InputError that names the first file that is bad or lacks its counterpart.
    """
    if options.task not in (None, TASK):
        raise InputError(
            f"{root}: --task {options.task}: expected {TASK} of images and masks; leave it out"
        )
    places = None
    if (root / "train").is_dir():
        train, test = (_pairs(root / split) for split in ("train", "test"))
    else:
        pairs = _pairs(root)
        chosen = np.array([is_test_name(image.name) for image, _ in pairs], bool)
        places = places_of(chosen)
        train, test = (
            [pair for pair, found in zip(pairs, chosen, strict=True) if found == split]
            for split in (False, True)
        )
    if not train or not test:
        missing = "test" if train else "training"
        raise InputError(
            f"{root}: expected training and test images, found no {missing} image; add some, or "
            f"give the split as {root}/train and {root}/test, each with images/ and masks/"
        )
    both = [*train, *test]
    first = read_picture(train[0][0], None, options, root)
    pixels = first.nbytes + first[0].nbytes  # of an image and its mask
    ledger.keep_of(chain.from_iterable(both), COPIES * pixels * len(both), str(root))

    def read(pair: tuple[Path, Path]) -> tuple[Pixels, Pixels]:
        image = read_picture(pair[0], (train[0][0], first.shape), options, root)
        mask = read_mask(pair[1], options, root)
        sizes = image.shape[:0:-1], mask.shape[::-1]
        if options.resize is not None:  # of other proportions they would be cut differently
            sizes = stored_size(pair[0], root), stored_size(pair[1], root)
        if sizes[0] != sizes[1]:
            wanted, found = (f"{width}x{height}" for width, height in sizes)
            raise InputError(
                f"{pair[1]}: expected a mask of {wanted} pixels as its image has, found {found}"
            )
        return image, mask

    found = in_threads(read, both)
    parts = found[: len(train)], found[len(train) :]
    images = [torch.from_numpy(np.stack([image for image, _ in part])) for part in parts]
    masks = [np.stack([mask for _, mask in part]) for part in parts]
    labels = encode(masks, TASK, [str(root)] * 2)
    return Dataset(
        images[0],
        labels.parts[0],
        images[1],
        labels.parts[1],
        labels.names,
        str(root),
        task=TASK,
        options=options,
        places=places,
    )


def _pairs(root: Path) -> list[tuple[Path, Path]]:
    """Images with their masks, in order of their names."""
    folders = root / "images", root / "masks"
    for folder in folders:
        if not folder.is_dir():
            raise InputError(f"{folder}: no such folder; expected images/ and masks/ side by side")
    images, masks = (
        _named(folder, ending) for folder, ending in zip(folders, ENDINGS, strict=True)
    )
    for name, path in (images | masks).items():
        if name not in images or name not in masks:
            lacking = "mask" if name in images else "image"
            raise InputError(
                f"{path}: expected {'a' if lacking == 'mask' else 'an'} {lacking} of that name, "
                "found none; add it, or remove this file"
            )
    return [(images[name], masks[name]) for name in sorted(images)]


ENDINGS = (IMAGE_SUFFIXES, (".png",))


def _named(folder: Path, endings: tuple[str, ...]) -> dict[str, Path]:
    """The files of a folder by their names without endings."""
    found: dict[str, Path] = {}
    for path in visible(folder):
        if path.suffix.lower() not in endings or not path.is_file() or path.stem in found:
            raise InputError(
                f"{path}: expected only {', '.join(endings)} files of different names; move this "
                "one elsewhere"
            )
        found[path.stem] = path
    return found
