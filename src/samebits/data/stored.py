"""Data sets that Hugging Face's `datasets` has saved to disk (`save_to_disk`).

They are read without that library, which would decode what a stranger's bytes ask for, and open
what their paths name: the files are streams of Arrow, with two of JSON beside them.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from PIL import Image, ImageOps

from samebits import ledger
from samebits.data import folder
from samebits.data.arrays import TAKES as ARRAYS_TAKE
from samebits.data.arrays import from_arrays
from samebits.data.dataset import Dataset
from samebits.data.decode import decoding
from samebits.data.earlier import Earlier
from samebits.data.own import array_of, stacked
from samebits.data.pictures import Reference, decoded, pixels_of
from samebits.data.preparation import Preparation
from samebits.data.table import cell_bytes, check_flat, dataset_of, features_of_frames
from samebits.entrance import opened, read
from samebits.errors import InputError
from samebits.recipes.reading import PLAIN, Reading

TAKES = ("target", "task", *folder.TAKES)
SPLITS = (("train", "test"), ("train", "validation"))
LARGEST_JSON = 1 << 26  # bytes
KIND, ADVICE = "a data set saved by datasets", "save it again with save_to_disk"
DICTIONARY_BATCH, RECORD_BATCH = 2, 3  # kinds of messages
COPIES = 3  # of images, while they become one array


def is_stored(path: Path) -> bool:
    """Whether a folder is one that `save_to_disk` writes."""
    whole = (path / "dataset_info.json").is_file() and (path / "state.json").is_file()
    return whole or (path / "dataset_dict.json").is_file()


def load_stored(
    path: Path,
    options: Reading = PLAIN,
    prepared: Preparation | None = None,
    whole: bool = False,
) -> Dataset:
    """The images and labels, or the table, of a saved data set, split as it is: train and test (or
    validation); else as an archive and a table are. whole: of a table, as `load_table`.

    The label is the column `options.target`, by default the only one of class labels, else the last
    one. Raises InputError for other data.
    """
    with decoding(path, KIND, ADVICE):
        parts = _parts(path)
        images, marked = parts[0].of_kind("Image"), parts[0].of_kind("ClassLabel")
        target = options.target or (marked[0] if len(marked) == 1 else parts[0].names[-1],)
        chosen = options.apart("resample").but(target=tuple(target))
        if not images:
            return dataset_of(str(path), _frames(path, parts, chosen), chosen, prepared, whole)
        return _of_images(path, parts, (images[0], target[0]), chosen, prepared)


def load_features(path: Path, options: Reading, earlier: Earlier) -> torch.Tensor:
    """Codes of the features of all rows of a table, with or without labels, as
    `table.load_features`. Raises InputError for images, which are not prepared so."""
    with decoding(path, KIND, ADVICE):
        parts = _parts(path)
        if parts[0].of_kind("Image"):
            raise InputError(
                f"{path}: expected the columns of a table as in training, found images; give data "
                "of the kind the model was trained on"
            )
        return features_of_frames(str(path), _frames(path, parts, options), options, earlier)


@dataclass(frozen=True)
class _Part:
    """One split: its name, its table (of pyarrow), and what its columns are, as JSON data."""

    where: str
    table: Any
    features: Mapping[str, Any]

    @property
    def names(self) -> list[str]:
        """The names of its columns."""
        return list(self.table.column_names)

    def of_kind(self, kind: str) -> list[str]:
        """The columns of a kind, such as Image."""
        return [name for name in self.names if self.about(name).get("_type") == kind]

    def about(self, name: str) -> Mapping[str, Any]:
        """The record of a column: its kind, and more."""
        found = self.features.get(name)
        return found if isinstance(found, dict) else {}


def _parts(path: Path) -> list[_Part]:
    """The parts of a saved data set: for training and for testing, or one alone."""
    if not (path / "dataset_dict.json").is_file():
        return [_part(path, path)]
    held = list(_json(path / "dataset_dict.json", path)["splits"])
    for names in SPLITS:
        if set(names) <= set(held):
            return [_part(path / name, path) for name in names]
    if len(held) == 1:
        return [_part(path / held[0], path)]
    raise InputError(
        f"{path}: expected the splits train and test (or validation), or one alone, found "
        f"{', '.join(held)}"
    )


def _part(folder: Path, root: Path) -> _Part:
    """The table in a folder, checked; `root` is the folder that the user named."""
    try:
        import pyarrow
    except ImportError as error:
        raise InputError(
            f"{root}: a data set saved by Hugging Face's datasets is read by pyarrow, which is not "
            "installed; run: pip install pyarrow"
        ) from error
    state = _json(folder / "state.json", root)
    features = _json(folder / "dataset_info.json", root).get("features") or {}
    if state.get("_indices_data_files"):
        raise InputError(f"{folder}: expected rows in their order, found indices of rows; {ADVICE}")
    tables = []
    for entry in state["_data_files"]:
        with opened(folder / entry["filename"], within=root) as file:
            size = os.fstat(file.fileno()).st_size
            ledger.keep(size, str(root))
            data = file.read(size)
        for message in pyarrow.ipc.MessageReader.open_stream(data):
            if is_compressed(message.metadata.to_pybytes()):
                raise InputError(f"{folder}: expected plain columns, found packed ones; {ADVICE}")
        tables.append(pyarrow.ipc.open_stream(data).read_all())
    table = pyarrow.concat_tables(tables)
    table.validate(full=True)  # before anything follows the offsets that a file states
    return _Part(f"{root} ({state.get('_split')})", table, features)


def is_compressed(message: bytes) -> bool:
    """Whether the head of a message of Arrow says that its columns are packed: unpacked, they would
    take what they say. docs of Arrow, format/Message.fbs; FlatBuffers, internals."""

    def field(table: int, number: int) -> int:
        """The place of a field of a table; 0 where it has none."""
        (back,) = struct.unpack_from("<i", message, table)
        (end,) = struct.unpack_from("<H", message, table - back)
        if 4 + 2 * number >= end:
            return 0
        (offset,) = struct.unpack_from("<H", message, table - back + 4 + 2 * number)
        return table + offset if offset else 0

    def inner(place: int) -> int:
        return place + int(struct.unpack_from("<I", message, place)[0])

    root = inner(0)
    kind, head = message[field(root, 1)], inner(field(root, 2))
    if kind == DICTIONARY_BATCH:
        kind, head = RECORD_BATCH, inner(field(head, 1))
    return kind == RECORD_BATCH and field(head, 3) != 0


def _json(path: Path, root: Path) -> dict[str, Any]:
    found = json.loads(read(path, LARGEST_JSON, ADVICE, within=root))
    if not isinstance(found, dict):
        raise InputError(f"{path}: expected a JSON object, found {type(found).__name__}; {ADVICE}")
    return found


def _frames(path: Path, parts: list[_Part], options: Reading) -> list[tuple[str, Any]]:
    """The parts as frames of pandas, with their names."""
    options.apart_from(str(path), "a table", ("target", "task"))
    for part in parts:
        check_flat(path, part.table.schema)
        ledger.keep(cell_bytes(len(part.table), len(part.names)), part.where)
    return [(part.where, part.table.to_pandas()) for part in parts]


def _of_images(
    path: Path,
    parts: list[_Part],
    names: tuple[str, str],
    options: Reading,
    prepared: Preparation | None,
) -> Dataset:
    """The images of one column with the labels of another, which may be images, too."""
    image, target = names
    if target not in parts[0].names or target == image:
        raise InputError(
            f"{path}: --target: expected a column of labels among "
            f"{', '.join(parts[0].names)}, found {target!r}"
        )
    reference: Reference | None = None
    samples, labels = [], []
    for part in parts:
        made = []
        for picture, where in _pictures(part, image):
            made.append(pixels_of(picture, where, reference, options))
            ledger.keep(COPIES * made[-1].nbytes, where)
            reference = reference or ("the first image", made[0].shape)
        values = part.table.column(target).to_pylist()
        if target in part.of_kind("Image"):
            values = [picture for picture, _ in _pictures(part, target)]
        samples.append(stacked(made, f"{path}: images"))
        labels.append(stacked([array_of(value) for value in values], f"{path}: {target}"))
    data = from_arrays(
        samples,
        labels,
        str(path),
        names=[names] * len(parts),
        options=options.among(ARRAYS_TAKE),
        prepared=prepared,
    )
    return replace(data, options=options)


def _pictures(part: _Part, name: str) -> Iterator[tuple[Image.Image, str]]:
    """The images of a column, each with what messages call it: bytes of our own formats, turned
    upright and of the mode that the column asks for, as `datasets` gives them. Raises InputError
    for a path, which could name any file of this machine."""
    mode = part.about(name).get("mode")
    for index, cell in enumerate(part.table.column(name)):
        where = f"{part.where}: {name} {index}"
        held = cell.as_py()
        data = held.get("bytes") if isinstance(held, dict) else None
        if not isinstance(data, bytes):
            raise InputError(
                f"{where}: expected the bytes of an image, found "
                f"{'the path of a file' if held else 'none'}; store the images themselves: "
                "save_to_disk does, unless embedding them is turned off"
            )
        with decoded(data, where) as image:
            upright = ImageOps.exif_transpose(image)
            yield (upright.convert(mode) if mode and mode != upright.mode else upright), where
