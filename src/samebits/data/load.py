"""`load(source)`: the one place that decides what kind of data a source names."""

from __future__ import annotations

from pathlib import Path

from samebits.data.archive import load_npz
from samebits.data.dataset import Dataset
from samebits.data.digits import load_digits
from samebits.data.folder import load_folder
from samebits.errors import InputError


def load(source: str, *, limit: int | None = None) -> Dataset:
    """The data named by `source`: `digits`, an image folder, or an NPZ file.

    `limit` keeps the first `limit` training images of every class (sorted file names, or stored
    order) and all test images. Raises InputError naming what is wrong and where.
    """
    if limit is not None and limit < 1:
        raise InputError(f"expected a limit of at least 1 training image per class, found {limit}")
    if source == "digits":
        data = load_digits()
    else:
        path = Path(source)
        if path.is_dir():
            return load_folder(path, limit=limit)
        if not path.exists():
            raise InputError(
                f"{source}: no such file or folder; expected 'digits', a folder of images "
                "(train/<class>/* and test/<class>/*, or <class>/*) or an .npz file"
            )
        if path.suffix.lower() != ".npz":
            raise InputError(
                f"{source}: expected 'digits', a folder of images or an .npz file, found a file "
                f"ending in {path.suffix or 'nothing'}"
            )
        data = load_npz(path)
    return data if limit is None else data.limited(limit)
