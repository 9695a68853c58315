"""NPZ archives: x_train, y_train, x_test, y_test; or x, y with every fifth sample for testing."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from samebits.data.arrays import from_arrays
from samebits.data.dataset import Dataset
from samebits.data.preparation import Preparation
from samebits.errors import InputError
from samebits.files import read_archive
from samebits.recipes.reading import PLAIN, Reading

SPLIT_KEYS = ("x_train", "y_train", "x_test", "y_test")
WHOLE_KEYS = ("x", "y")


def load_npz(path: Path, options: Reading = PLAIN, prepared: Preparation | None = None) -> Dataset:
    """The data set in an archive, of arrays as `from_arrays` takes them.

    Read without pickle. Raises InputError naming the key, what was expected and what was found.
    """
    archive = read_archive(path, lambda names: _keys(path, names))
    keys, arrays = list(archive), list(archive.values())
    names = list(zip(keys[::2], keys[1::2], strict=True))
    return from_arrays(
        arrays[::2], arrays[1::2], str(path), names=names, options=options, prepared=prepared
    )


def _keys(path: Path, found: Sequence[str]) -> tuple[str, ...]:
    for keys in (SPLIT_KEYS, WHOLE_KEYS):
        if set(keys) <= set(found):
            return keys
    raise InputError(
        f"{path}: expected the arrays {', '.join(SPLIT_KEYS)} (or {', '.join(WHOLE_KEYS)}), "
        f"found {', '.join(sorted(found)) or 'none'}"
    )
