"""`load(source)`: the one place that decides what kind of data a source names."""

from __future__ import annotations

from pathlib import Path

from samebits.data.archive import load_npz
from samebits.data.dataset import Dataset
from samebits.data.digits import load_digits
from samebits.data.folder import load_folder
from samebits.data.text import load_text, load_tokens
from samebits.errors import InputError

LOADERS = {".npz": load_npz, ".txt": load_text}


def load(
    source: str, *, limit: int | None = None, input_shape: tuple[int, ...] | None = None
) -> Dataset:
    """The data named by `source`: `digits`, a folder of images or recordings, an NPZ or TXT file.

    `limit` keeps the first `limit` training samples of every class (sorted file names, or stored
    order) and all test samples. `input_shape` is that of a model that the data is for: recordings
    get its number of frames instead of one of their own, and texts for a language model, [T],
    windows of T bytes with the byte after each place as labels. Raises InputError naming what is
    wrong and where.
    """
    if limit is not None and limit < 1:
        raise InputError(f"expected a limit of at least 1 training sample per class, found {limit}")
    if source == "digits":
        data = load_digits()
    else:
        path = Path(source)
        if path.is_dir():
            sequence = input_shape is not None and len(input_shape) == 2
            steps = input_shape[0] if input_shape and sequence else None
            return load_folder(path, limit=limit, steps=steps)
        if not path.exists():
            raise InputError(
                f"{source}: no such file or folder; expected 'digits', a folder of images or WAV "
                "audio (train/<class>/* and test/<class>/*, or <class>/*), or an .npz or .txt file"
            )
        kind = path.suffix.lower()
        if kind not in LOADERS:
            raise InputError(
                f"{source}: expected 'digits', a folder of images or WAV audio, or an .npz or "
                f".txt file, found a file ending in {path.suffix or 'nothing'}"
            )
        if input_shape is not None and len(input_shape) == 1 and kind == ".txt":
            data = load_tokens(path, input_shape[0])
        else:
            data = LOADERS[kind](path)
    return data if limit is None else data.limited(limit)
