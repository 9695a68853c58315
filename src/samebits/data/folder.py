"""Folders of images or WAV recordings: train/<class>/* and test/<class>/*, or <class>/*."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch

from samebits import ledger, progress
from samebits.data import decode
from samebits.data.dataset import PEAK, Dataset, check_channels, pixel_values, value_table
from samebits.data.decode import in_threads
from samebits.data.pictures import IMAGE_SUFFIXES, in_hand, read_picture
from samebits.data.recordings import TAKES as RECORDINGS
from samebits.data.recordings import load_recordings
from samebits.errors import InputError
from samebits.recipes.reading import PLAIN, Reading

AUDIO_SUFFIX = ".wav"
LEFT_BY_OTHERS = ("thumbs.db", "desktop.ini", "icon\r", "__macosx")
TAKES = ("resize", "colour", "mean", "std")

DEPTH = 2  # of folders of samples below one: train/<class>

Sample = tuple[Path, int]  # file, label


def load_folder(
    root: Path,
    *,
    limit: int | None = None,
    steps: int | None = None,
    options: Reading = PLAIN,
    whole: bool = False,
) -> Dataset:
    """Images of one size as uint8 [N, C, H, W], or the features of WAV recordings as int16
    [N, T, F] (docs/spec/audio.md); classes are the sorted folder names.

    Without train/ and test/ a file is for testing when the first 8 hex digits of the SHA-256 of
    its name, as a number, are a multiple of five (about 20 %), so adding files moves none.
    Grey images keep one channel, all others become RGB (transparency is dropped). `limit` keeps
    the first training files of every class in sorted name order. `steps`: the frames of
    every recording [default: what the training recordings suggest]. `options` resize images and
    choose their colours, or resample recordings. With `whole` all files are for testing: class by
    class, in order of their names, those of train/ first.
    """
    classes, train, test, places = _samples(root, limit, whole)
    if whole:
        both, order = [*train, *test], np.argsort(places, kind="stable")
        train, test = [], [both[place] for place in order]
    if not test or not (train or whole):
        missing = "test" if train else "training"
        raise InputError(
            f"{root}: expected training and test files, found no {missing} file; add some, or "
            f"give the split explicitly as {root}/train/<class>/* and {root}/test/<class>/*"
        )
    paths = [path for path, _ in train + test]
    if _is_audio(paths[0]):
        train_images, test_images, rate = load_recordings(
            paths[: len(train)], paths[len(train) :], steps, options.resample, root
        )
    else:
        (train_images, test_images), rate = _decode_all(paths, len(train), options, root), None
    return Dataset(
        train_images,
        torch.tensor([label for _, label in train], dtype=torch.int64),
        test_images,
        torch.tensor([label for _, label in test], dtype=torch.int64),
        classes,
        str(root),
        rate=rate,
        options=options,
        only_test=whole,
        places=None if whole else torch.from_numpy(places),
    )


def holds_recordings(root: Path) -> bool:
    """Whether the first file of the first class, or of a flat folder, is a recording."""
    if is_flat(root):
        return any(map(_is_audio, _shown(root)))
    train = root / "train"
    place = train if train.is_dir() and any(path.is_dir() for path in _shown(train)) else root
    for folder in [path for path in _shown(place) if path.is_dir()]:
        files = [path for path in _shown(folder) if path.is_file()]
        if files:
            return _is_audio(files[0])
    return False


def is_flat(root: Path) -> bool:
    """Whether a folder holds images or recordings themselves, and no folders."""
    shown = _shown(root)
    kinds = (*IMAGE_SUFFIXES, AUDIO_SUFFIX)
    return not any(map(Path.is_dir, shown)) and any(p.suffix.lower() in kinds for p in shown)


def load_flat(
    root: Path, steps: int | None = None, options: Reading = PLAIN
) -> tuple[torch.Tensor, int | None]:
    """Values of all images [N, C, H, W] or recordings [N, T, F] of a flat folder, by name, as those
    of `load_folder` are: samples without labels. The rate of recordings, None of images."""
    return load_files(_files(root), root, steps, options)


def load_files(
    paths: Sequence[Path],
    root: Path | None,
    steps: int | None = None,
    options: Reading = PLAIN,
    raw: bool = False,
) -> tuple[torch.Tensor, int | None]:
    """The same of files, all below a folder `root` that a user named, or each named by itself; with
    `raw` the bytes of images, uint8.

    Raises InputError for files of other kinds, or of both.
    """
    for path in paths:
        _check_sample(path)
    _check_one_kind(paths)
    if _is_audio(paths[0]):
        codes, _, rate = load_recordings(paths, (), steps, options.resample, root)
        return codes.float() * 2.0**-15, rate
    images, _ = _decode_all(paths, len(paths), options, root)
    check_channels(str(root or paths[0]), images.shape[1], options)
    if raw:
        return images, None
    return pixel_values(images, value_table(PEAK, options.mean, options.std)), None


def sample_files(root: Path, depth: int = DEPTH) -> list[Path]:
    """All images or recordings of a folder, in it or in folders of classes, which may be in train/
    and test/: by name. Raises InputError for a file of another kind, and for folders below."""
    found: list[Path] = []
    for path in visible(root):
        if depth and path.is_dir():
            found += sample_files(path, depth - 1)
        else:
            _check_sample(path)
            found.append(path)
    return found


def is_sample(path: Path) -> bool:
    """Whether a name is that of an image or a recording."""
    return path.suffix.lower() in (*IMAGE_SUFFIXES, AUDIO_SUFFIX)


def takes_of(path: Path) -> tuple[str, ...]:
    """The options of reading a file of samples."""
    return RECORDINGS if _is_audio(path) else TAKES


def is_test_name(name: str) -> bool:
    """Whether a file of an unsplit folder is for testing, from its name alone."""
    return int(hashlib.sha256(os.fsencode(name)).hexdigest()[:8], 16) % 5 == 0


def _samples(
    root: Path, limit: int | None, whole: bool
) -> tuple[tuple[str, ...], list[Sample], list[Sample], np.ndarray[Any, Any]]:
    """Class names, training samples and test samples, in class then file-name order, and the places
    of them all: where there is no train/ and test/, in that order together.

    whole: one of train/ and test/ is enough
    """
    split = {name: root / name for name in ("train", "test") if _holds_folders(root / name)}
    if len(split) == 1 and whole:
        (root,), split = split.values(), {}
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
    chosen = [(p, label) for label, name in enumerate(classes) for p in train[name][:limit]]
    tests = [(p, label) for label, name in enumerate(classes) for p in test[name]]
    both = [*chosen, *tests]
    places = np.arange(len(both))
    if not split:
        sorted_places = sorted(places, key=lambda i: (both[i][1], both[i][0].name))
        places[sorted_places] = np.arange(len(both))
    return classes, chosen, tests, places


def visible(folder: Path) -> list[Path]:
    """Files and folders in a folder, by name; hidden ones and those that file managers leave are
    passed over, which a note says."""
    shown = _shown(folder)
    for path in sorted(set(folder.iterdir()) - set(shown)):
        why = "hidden" if path.name.startswith(".") else "no sample"
        progress.note(f"{path}: passed over, {why}")
    return shown


def _shown(folder: Path) -> list[Path]:
    """The same, without a note."""
    found = sorted(folder.iterdir(), key=lambda path: path.name)
    return [
        path
        for path in found
        if not path.name.startswith(".") and path.name.lower() not in LEFT_BY_OTHERS
    ]


def _holds_folders(folder: Path) -> bool:
    return folder.is_dir() and any(path.is_dir() for path in _shown(folder))


def _classes(root: Path) -> tuple[str, ...]:
    names = tuple(path.name for path in visible(root) if path.is_dir())
    if len(names) < 2:
        raise InputError(
            f"{root}: expected at least 2 class folders of images or recordings, found {len(names)}"
            + (f" ({names[0]!r})" if names else "")
            + "; for quantize and verify, which need no labels, images or recordings alone will "
            "do, without folders"
        )
    return names


def _files(folder: Path) -> list[Path]:
    """The samples of a folder of them. Raises InputError for a file of another kind."""
    files = visible(folder)
    for path in files:
        _check_sample(path)
    return files


def _check_sample(path: Path) -> None:
    if not is_sample(path) or not path.is_file():
        raise InputError(
            f"{path}: expected only {', '.join(IMAGE_SUFFIXES)} or .wav files in a folder of "
            "samples; move this one elsewhere"
        )


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


def _decode_all(
    paths: Sequence[Path], train: int, options: Reading, root: Path | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """uint8 [N, C, H, W] of paths[:train] and of the rest, all below `root`; each file is checked
    before decoding."""
    first = read_picture(paths[0], None, options, root)
    reference = (paths[0], first.shape)
    where = str(root or paths[0])
    ledger.keep_of(paths, len(paths) * first.nbytes, where)
    parts = [np.empty((n, *first.shape), np.uint8) for n in (train, len(paths) - train)]
    size = first.shape[2], first.shape[1]
    together = decode.THREADS * in_hand(size)  # of small images, all that threads have in hand
    held = size if options.resize is None and ledger.ample(together) else None

    def place(index: int) -> None:
        part, offset = (parts[0], 0) if index < train else (parts[1], train)
        part[index - offset] = read_picture(paths[index], reference, options, root, held)

    with nullcontext() if held is None else ledger.hold(together, where):
        in_threads(place, range(len(paths)))
    return torch.from_numpy(parts[0]), torch.from_numpy(parts[1])
