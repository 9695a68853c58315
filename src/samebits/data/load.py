"""`load(source)`: the one place that decides what kind of data a source names."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from samebits import ledger, progress
from samebits.callables import FORM, is_callable_name
from samebits.data import arrays, folder, frames, masks, own, recordings, stored, table
from samebits.data.archive import load_npz
from samebits.data.dataset import SCALED, Dataset, check_rate
from samebits.data.digits import NAME, load_digits
from samebits.data.earlier import NONE, Earlier
from samebits.data.preparation import Preparation
from samebits.data.text import load_text, load_tokens
from samebits.errors import InputError
from samebits.recipes.reading import PLAIN, Reading

EXPECTED = (
    "'digits', a folder of images or WAV audio (train/<class>/* and test/<class>/*, or <class>/*), "
    "of images/ and masks/, a table (.csv, .parquet), an .npz or .txt file, or "
    f"{FORM}"
)
VALUES = (
    "pixels of 0 to 255 become values of -1 to 1, as in samebits train; for a network that wants "
    "others give --mean and --std"
)


@dataclass(frozen=True)
class _Kind:
    """A kind of source: its name, the options that apply to it, and its reader."""

    what: str
    takes: tuple[str, ...]
    read: Callable[[Reading, Preparation | None], Dataset]
    limits: bool = False  # whether the reader keeps to a limit itself
    features: Callable[[Reading, Earlier], torch.Tensor] | None = None  # of a table, unlabelled


@ledger.load()
def load(
    source: str,
    *,
    limit: int | None = None,
    input_shape: tuple[int, ...] | None = None,
    options: Reading = PLAIN,
    earlier: Earlier = NONE,
    whole: bool = False,
) -> Dataset:
    """The data named by `source`: `digits`, a folder of images or recordings, of images and masks,
    a table, an NPZ or TXT file, a data set saved by Hugging Face, or a callable of a user's own.

    `limit` keeps the first `limit` training samples of every class (sorted file names, or stored
    order) and all test samples. `input_shape` is that of a model that the data is for: recordings
    get its number of frames instead of one of their own, and texts for a language model, [T],
    windows of T bytes with the byte after each place as labels. `options` leave no choice to the
    source; `earlier` is how a run read its data. With `whole` all samples are test samples; of a
    table whose scales `earlier` has, and of each class folder, one is enough. Raises InputError
    naming what is wrong and where.
    """
    if limit is not None and limit < 1:
        raise InputError(f"expected a limit of at least 1 training sample per class, found {limit}")
    kind = _kind(source, limit, input_shape, whole)
    options.apart_from(source, kind.what, kind.takes)
    data = kind.read(options.beside(earlier.options, kind.takes), earlier.preparation)
    data = data.with_values_of(earlier.options)
    if limit is not None and not kind.limits:
        data = data.limited(limit)
    return data.whole() if whole else data


def given_data(
    given: Any,
    *,
    limit: int | None = None,
    input_shape: tuple[int, ...] | None = None,
    options: Reading = PLAIN,
    earlier: Earlier | None = None,
    whole: bool = False,
) -> Dataset:
    """Data that a user gives: a `Dataset`, which is limited already, a frame of pandas, two of them
    for training and for testing, or the name of what `load` reads. Without `earlier` a note says
    which values pixels become. Raises InputError as `load`, and for options of a `Dataset`."""
    if held := frames.frames_given(given):
        read = earlier or NONE
        options.apart_from(frames.IN_MEMORY, "a pandas.DataFrame", table.TAKES)
        chosen = options.beside(read.options, table.TAKES)
        found = table.dataset_of(frames.IN_MEMORY, held, chosen, read.preparation, whole)
        found = found if limit is None else found.limited(limit)
        return found.whole() if whole else found
    if not isinstance(given, Dataset):
        found = load(
            source_name(given),
            limit=limit,
            input_shape=input_shape,
            options=options,
            earlier=earlier or NONE,
            whole=whole,
        )
        _say_values(str(given), found.pixels, found.options, earlier)
        return found
    options.apart_from(given.source, "a Dataset", ())
    if earlier is not None:
        earlier.check_dataset(given.preparation, given.source)
        given = given.with_values_of(earlier.options)
    return given.whole() if whole else given


def source_name(given: object) -> str:
    """The name of what a user gives as data. Raises InputError for what is neither a string nor a
    path: numbers and loaders of torch have no split into training and test samples."""
    if isinstance(given, str | Path):
        return str(given)
    raise InputError(
        f"data: expected {EXPECTED}, a pandas.DataFrame or a samebits.data.Dataset, found "
        f"{type(given).__name__}; of "
        "arrays make Dataset(train_images, train_labels, test_images, test_labels, class_names)"
    )


@ledger.load()
def load_samples(
    source: str,
    *,
    input_shape: tuple[int, ...] | None = None,
    options: Reading = PLAIN,
    rate: int | None = None,
    earlier: Earlier | None = None,
    whole: bool = False,
) -> torch.Tensor:
    """Samples [N, ...] without labels, as a network sees them: the training samples of what `load`
    takes, or all images or recordings of a flat folder.

    rate:    samples per second that a network of recordings takes
    earlier: how the run of a network read its data
    whole:   all samples, in the order of the source; a table of a run's columns needs no labels

    Raises InputError as `load`, and for data of another rate.
    """
    path, read = Path(source), earlier or NONE
    if path.is_dir() and not table.table_files(path) and folder.is_flat(path):
        takes = options_of(source)
        options.apart_from(source, "a folder of samples without classes", takes)
        options = options.beside(read.options, takes).with_values_of(read.options)
        steps = input_shape[0] if input_shape and len(input_shape) == 2 else None
        values, found_rate = folder.load_flat(path, steps, options)
        if rate is not None:
            check_rate(source, found_rate, rate)
        _say_values(source, values.ndim == 4, options, earlier)
        return values
    kind = _kind(source, None, input_shape)
    if whole and kind.features is not None and read.preparation is not None:
        options.apart_from(source, kind.what, kind.takes)
        return table.values_of(kind.features(options, read))
    found = load(source, input_shape=input_shape, options=options, earlier=read, whole=whole)
    if rate is not None:
        found.check_rate(rate)
    if found.rows and read.preparation is None:
        labels = ", ".join(found.options.target)
        left = f"all columns but {labels}, its labels (--target names others), " if labels else ""
        progress.note(f"{source}: {left}{SCALED}")
    _say_values(source, found.pixels, found.options, earlier)
    if whole:
        return found.values(found.test_images)
    total = len(found.train_images) + len(found.test_images)
    progress.note(
        f"{source}: the {len(found.train_images):,} of its {total:,} {found.noun}s that are for "
        "training are taken"
    )
    return found.values(found.train_images)


@ledger.load()
def load_files(
    paths: Sequence[Path],
    root: Path | None,
    *,
    input_shape: tuple[int, ...],
    options: Reading = PLAIN,
    rate: int | None = None,
    earlier: Earlier | None = None,
    raw: bool = False,
) -> torch.Tensor:
    """The same of images or recordings by their names, one for each, in this order; with `raw` the
    bytes of images.

    root: the folder that a user named, below which all of them are; None where each was named
    """
    takes, source = folder.takes_of(paths[0]), str(root or paths[0])
    options.apart_from(source, "images" if "mean" in takes else "recordings", takes)
    read = earlier or NONE
    options = options.beside(read.options, takes).with_values_of(read.options)
    steps = input_shape[0] if len(input_shape) == 2 else None
    values, found_rate = folder.load_files(paths, root, steps, options, raw)
    if rate is not None:
        check_rate(source, found_rate, rate)
    if values.ndim == 4 and not options.mean and earlier is None:
        progress.note(f"{source}: {VALUES}")
    return values


def _say_values(source: str, pixels: bool, options: Reading, earlier: Earlier | None) -> None:
    """Note which values the pixels of a file or folder have become, where nothing chose them: no
    option, and no run whose network it is."""
    chosen = bool(options.mean) or earlier is not None
    if pixels and not chosen and "mean" in options_of(source):
        progress.note(f"{source}: {VALUES}")


def options_of(source: object) -> tuple[str, ...]:
    """The options of reading a source as samples. Raises InputError as `load`."""
    if source is None or isinstance(source, Dataset):
        return ()
    if not isinstance(source, str | Path):
        return ("target", "prepared") if frames.is_frame(source) else ("prepared",)
    takes = _kind(str(source), None, None).takes
    return (*takes, "prepared") if Path(source).suffix == ".npz" else takes


def _kind(
    source: str, limit: int | None, shape: tuple[int, ...] | None, whole: bool = False
) -> _Kind:
    """The kind of a source. Raises InputError for a source that is none of EXPECTED."""
    if source == NAME:
        return _Kind(NAME, (), lambda options, prepared: load_digits())
    path = Path(source)
    if path.is_dir():
        return _folder(path, limit, shape, whole)
    if not path.exists() and is_callable_name(source):
        return _Kind(
            "data of your own",
            arrays.TAKES,
            lambda options, prepared: own.load_callable(source, options, prepared),
        )
    if not path.exists():
        raise InputError(f"{source}: no such file or folder; expected {EXPECTED}")
    suffix = path.suffix.lower()
    if suffix == ".npz":
        return _Kind(
            "an archive", arrays.TAKES, lambda options, prepared: load_npz(path, options, prepared)
        )
    if suffix in table.SUFFIXES:
        return _table(path, whole)
    if suffix == ".txt":
        language = shape is not None and len(shape) == 1
        length = shape[0] if shape and language else None
        return _Kind(
            "a text",
            (),
            lambda options, prepared: (
                load_text(path) if length is None else load_tokens(path, length)
            ),
        )
    raise InputError(
        f"{source}: expected {EXPECTED}, found a file ending in {path.suffix or 'nothing'}"
    )


def _folder(path: Path, limit: int | None, shape: tuple[int, ...] | None, whole: bool) -> _Kind:
    """The kind of a folder."""
    if stored.is_stored(path):
        return _Kind(
            "a data set saved by Hugging Face",
            stored.TAKES,
            lambda options, prepared: stored.load_stored(path, options, prepared, whole),
            features=lambda options, earlier: stored.load_features(path, options, earlier),
        )
    if table.table_files(path):
        return _table(path, whole)
    if masks.holds_masks(path):
        return _Kind(
            "a folder of images and masks",
            masks.TAKES,
            lambda options, prepared: masks.load_masks(path, options),
        )
    steps = shape[0] if shape and len(shape) == 2 else None
    takes = recordings.TAKES if folder.holds_recordings(path) else folder.TAKES
    what = "a folder of recordings" if takes == recordings.TAKES else "a folder of images"
    return _Kind(
        what,
        takes,
        lambda options, prepared: folder.load_folder(
            path, limit=limit, steps=steps, options=options, whole=whole
        ),
        limits=True,
    )


def _table(path: Path, whole: bool) -> _Kind:
    return _Kind(
        "a table",
        table.TAKES,
        lambda options, prepared: table.load_table(path, options, prepared, whole),
        features=lambda options, earlier: table.load_features(path, options, earlier),
    )
