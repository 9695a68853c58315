"""Folders of images or WAV recordings: train/<class>/* and test/<class>/*, or <class>/*."""

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image

from samebits import progress
from samebits.data.dataset import Dataset
from samebits.data.decode import decoding, in_threads
from samebits.data.recordings import load_recordings
from samebits.errors import InputError

IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png")
AUDIO_SUFFIX = ".wav"
LEFT_BY_OTHERS = ("thumbs.db", "desktop.ini", "icon\r", "__macosx")
CHANNELS = {"L": 1, "RGB": 3}
GREY_MODES = ("1", "L", "LA")
WIDE_MODES = ("I", "F")  # prefixes of the 16- and 32-bit modes

Sample = tuple[Path, int]  # file, label


def load_folder(root: Path, *, limit: int | None = None, steps: int | None = None) -> Dataset:
    """Images of one size as uint8 [N, C, H, W], or the features of WAV recordings as int16
    [N, T, F] (docs/spec/audio.md); classes are the sorted folder names.

    Without train/ and test/ a file is for testing when the first 8 hex digits of the SHA-256 of
    its name, as a number, are a multiple of five (about 20 %), so adding files moves none.
    Grey images keep one channel, all others become RGB (transparency is dropped). `limit` keeps
    the first training files of every class in sorted name order. `steps`: the frames of
    every recording [default: what the training recordings suggest].
    """
    classes, train, test = _samples(root, limit)
    if not train or not test:
        missing = "test" if train else "training"
        raise InputError(
            f"{root}: expected training and test files, found no {missing} file; add some, or "
            f"give the split explicitly as {root}/train/<class>/* and {root}/test/<class>/*"
        )
    paths = [path for path, _ in train + test]
    if _is_audio(paths[0]):
        train_images, test_images, rate = load_recordings(
            paths[: len(train)], paths[len(train) :], steps
        )
    else:
        (train_images, test_images), rate = _decode_all(paths, len(train)), None
    return Dataset(
        train_images,
        torch.tensor([label for _, label in train], dtype=torch.int64),
        test_images,
        torch.tensor([label for _, label in test], dtype=torch.int64),
        classes,
        str(root),
        rate=rate,
    )


def is_test_name(name: str) -> bool:
    """Whether a file of an unsplit folder is for testing, from its name alone."""
    return int(hashlib.sha256(os.fsencode(name)).hexdigest()[:8], 16) % 5 == 0


def _samples(root: Path, limit: int | None) -> tuple[tuple[str, ...], list[Sample], list[Sample]]:
    """Class names, training samples and test samples, in class then file-name order."""
    split = {name: root / name for name in ("train", "test") if _holds_folders(root / name)}
    if len(split) == 1:
        (present,) = split
        absent = "test" if present == "train" else "train"
        raise InputError(
            f"{root}: found {present}/<class>/ but no {absent}/<class>/; expected both train/ and "
            "test/, or the class folders directly"
        )
    if not split:
        classes = _classes(root)
        files = {name: _files(root / name) for name in classes}
        train = {name: [p for p in files[name] if not is_test_name(p.name)] for name in classes}
        test = {name: [p for p in files[name] if is_test_name(p.name)] for name in classes}
    else:
        classes = _classes(split["train"])
        found = _classes(split["test"])
        if found != classes:
            first = sorted(set(found) ^ set(classes))[0]
            where = "train" if first in classes else "test"
            raise InputError(
                f"{root}: expected the same classes in train/ and test/, found class {first!r} "
                f"only in {where}/"
            )
        train = {name: _files(split["train"] / name) for name in classes}
        test = {name: _files(split["test"] / name) for name in classes}
    _check_one_kind([p for name in classes for p in (*train[name], *test[name])])
    return (
        classes,
        [(p, label) for label, name in enumerate(classes) for p in train[name][:limit]],
        [(p, label) for label, name in enumerate(classes) for p in test[name]],
    )


def _visible(folder: Path) -> list[Path]:
    """Files and folders in a folder, by name; hidden ones are passed over."""
    found = sorted(folder.iterdir(), key=lambda p: p.name)
    hidden = [path for path in found if path.name.startswith(".")]
    for path in hidden:
        progress.note(f"{path}: passed over, hidden")
    return [path for path in found if path not in hidden]


def _holds_folders(folder: Path) -> bool:
    return folder.is_dir() and any(path.is_dir() for path in _visible(folder))


def _classes(root: Path) -> tuple[str, ...]:
    names = tuple(path.name for path in _visible(root) if path.is_dir())
    if len(names) < 2:
        raise InputError(
            f"{root}: expected at least 2 class folders of images or recordings, found {len(names)}"
            + (f" ({names[0]!r})" if names else "")
        )
    return names


def _files(folder: Path) -> list[Path]:
    """The samples of a class folder. Raises InputError for a file of another kind, but for those
    that file managers leave, which are passed over."""
    files = _visible(folder)
    left = [path for path in files if path.name.lower() in LEFT_BY_OTHERS]
    for path in left:
        progress.note(f"{path}: passed over, no sample")
    files = [path for path in files if path not in left]
    for path in files:
        if path.suffix.lower() not in (*IMAGE_SUFFIXES, AUDIO_SUFFIX) or not path.is_file():
            raise InputError(
                f"{path}: expected only .jpg, .jpeg, .png or .wav files in a class folder; "
                "move this one elsewhere"
            )
    return files


def _is_audio(path: Path) -> bool:
    return path.suffix.lower() == AUDIO_SUFFIX


def _check_one_kind(paths: Sequence[Path]) -> None:
    for path in paths:
        if _is_audio(path) != _is_audio(paths[0]):
            expected, found = ("WAV audio", "an image")[:: 1 if _is_audio(paths[0]) else -1]
            raise InputError(
                f"{path}: expected {expected} like {paths[0]}, found {found}; keep images and "
                "recordings in folders of their own"
            )


def _decode_all(paths: Sequence[Path], train: int) -> tuple[torch.Tensor, torch.Tensor]:
    """uint8 [N, C, H, W] of paths[:train] and of the rest; each file is checked before decoding."""
    first = _decode(paths[0])
    reference = (paths[0], first.shape)
    parts = [np.empty((n, *first.shape), np.uint8) for n in (train, len(paths) - train)]

    def place(index: int) -> None:
        part, offset = (parts[0], 0) if index < train else (parts[1], train)
        part[index - offset] = _decode(paths[index], reference)

    in_threads(place, range(len(paths)))
    return torch.from_numpy(parts[0]), torch.from_numpy(parts[1])


def _decode(
    path: Path, reference: tuple[Path, tuple[int, ...]] | None = None
) -> npt.NDArray[np.uint8]:
    """One image as uint8 [C, H, W]; InputError names the file if it is corrupt or differs.

    From memory: of a file, Pillow would ask for as many bytes as a damaged chunk claims to have.
    """
    with (
        decoding(path, "a JPEG or PNG image", "replace or remove it"),
        Image.open(io.BytesIO(path.read_bytes()), formats=("JPEG", "PNG")) as image,
    ):
        width, height = image.size
        ceiling = Image.MAX_IMAGE_PIXELS
        if ceiling is not None and width * height > ceiling:
            raise InputError(f"{path}: expected at most {ceiling} pixels, found {width}x{height}")
        if image.mode.startswith(WIDE_MODES):
            raise InputError(f"{path}: expected 8 bits per channel, found mode {image.mode}")
        mode = "L" if image.mode in GREY_MODES else "RGB"
        shape = (CHANNELS[mode], height, width)
        if reference is not None and shape != reference[1]:
            raise InputError(
                f"{path}: expected {_size(reference[1])} like {reference[0]}, found "
                f"{_size(shape)}; resize or convert the images to one size and mode"
            )
        pixels = np.asarray(image.convert(mode), dtype=np.uint8)
    return pixels.reshape(height, width, CHANNELS[mode]).transpose(2, 0, 1)


def _size(shape: tuple[int, ...]) -> str:
    channels, height, width = shape
    return f"{width}x{height} {'grey' if channels == 1 else 'RGB'}"
