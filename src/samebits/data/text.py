"""A text file as windows of characters, with the character that follows each window, or, for
language models, each place of it."""

from __future__ import annotations

from codecs import BOM_UTF8
from pathlib import Path
from typing import Any

import numpy as np
import torch

from samebits import ledger
from samebits.data.dataset import Dataset
from samebits.entrance import read
from samebits.errors import InputError

LENGTH, STRIDE = 64, 8  # characters in a window, and from window to window
TEST_PART = 10  # the last tenth of the file
MAX_BYTES = 1 << 26
WORK = 26  # bytes of memory for one of a text: indices of int64, and sorted ones


def load_text(path: Path) -> Dataset:
    """Windows uint8 [N, 64] of character indices and the next character as label [N].

    Characters are bytes; the classes are those that occur, in ascending order. A window begins at
    every eighth byte; the last tenth of the text is for testing, and no window crosses into it. A
    byte-order mark before the text is skipped.
    """
    text = _read(path, LENGTH)
    alphabet, indices = np.unique(text, return_inverse=True)
    codes = torch.from_numpy(indices.astype(np.uint8))
    cut = len(codes) - len(codes) // TEST_PART
    windows, labels = zip(*map(_windows, (codes[:cut], codes[cut:])), strict=True)
    return Dataset(
        windows[0], labels[0], windows[1], labels[1], tuple(map(_name, alphabet)), str(path)
    )


def load_tokens(path: Path, length: int) -> Dataset:
    """Windows uint8 [N, length] of bytes, and as labels [N, length] the byte after each of them.

    The classes are the 256 bytes. A window begins in the middle of the one before; the last tenth
    of the text is for testing. A byte-order mark before the text is skipped.
    """
    if length < 1:
        raise InputError(f"{path}: expected windows of at least 1 byte, found {length}")
    codes = torch.from_numpy(_read(path, length).copy())
    cut, step = len(codes) - len(codes) // TEST_PART, max(1, length // 2)
    parts = [part.unfold(0, length + 1, step) for part in (codes[:cut], codes[cut:])]
    train, test = ((windows[:, :-1], windows[:, 1:].long()) for windows in parts)
    return Dataset(*train, *test, tuple(map(_name, range(256))), str(path))


def _read(path: Path, length: int) -> np.ndarray[Any, Any]:
    """The bytes of a text that is long enough for windows in its last tenth. Raises InputError."""
    least = TEST_PART * (length + 1)
    try:
        data = read(path, MAX_BYTES, "cut it").removeprefix(BOM_UTF8)
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from error
    if len(data) < least:
        raise InputError(
            f"{path}: expected a text of {least} to {MAX_BYTES} bytes, found {len(data)}"
        )
    ledger.keep(WORK * len(data), str(path))
    return np.frombuffer(data, np.uint8)


def _windows(codes: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Views of the windows, and the code after each."""
    return codes[:-1].unfold(0, LENGTH, STRIDE), codes[LENGTH::STRIDE].long()


def _name(byte: int) -> str:
    return chr(byte) if 32 < byte < 127 else f"\\x{byte:02x}"
