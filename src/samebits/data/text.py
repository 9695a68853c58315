"""A text file as windows of characters, each with the character that follows it."""

from __future__ import annotations

from codecs import BOM_UTF8
from pathlib import Path

import numpy as np
import torch

from samebits.data.dataset import Dataset
from samebits.errors import InputError

LENGTH, STRIDE = 64, 8  # characters in a window, and from window to window
TEST_PART = 10  # the last tenth of the file
MAX_BYTES = 1 << 26
LEAST_BYTES = TEST_PART * (LENGTH + 1)


def load_text(path: Path) -> Dataset:
    """Windows uint8 [N, 64] of character indices and the next character as label [N].

    Characters are bytes; the classes are those that occur, in ascending order. A window begins at
    every eighth byte; the last tenth of the text is for testing, and no window crosses into it. A
    byte-order mark before the text is skipped.
    """
    try:
        size = path.stat().st_size
        data = path.read_bytes().removeprefix(BOM_UTF8) if size <= MAX_BYTES else b""
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from error
    size = len(data) or size
    if not LEAST_BYTES <= size <= MAX_BYTES:
        raise InputError(
            f"{path}: expected a text of {LEAST_BYTES} to {MAX_BYTES} bytes, found {size}"
        )
    text = np.frombuffer(data, np.uint8)
    alphabet, indices = np.unique(text, return_inverse=True)
    codes = torch.from_numpy(indices.astype(np.uint8))
    cut = len(codes) - len(codes) // TEST_PART
    windows, labels = zip(*map(_windows, (codes[:cut], codes[cut:])), strict=True)
    return Dataset(
        windows[0], labels[0], windows[1], labels[1], tuple(map(_name, alphabet)), str(path)
    )


def _windows(codes: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Views of the windows, and the code after each."""
    return codes[:-1].unfold(0, LENGTH, STRIDE), codes[LENGTH::STRIDE].long()


def _name(byte: int) -> str:
    return chr(byte) if 32 < byte < 127 else f"\\x{byte:02x}"
