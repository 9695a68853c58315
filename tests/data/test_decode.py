"""Untrusted files: every error names its file, and the first bad one is reported."""

from __future__ import annotations

from pathlib import Path

import pytest

from samebits.data.decode import decoding, in_threads
from samebits.errors import InputError


def test_what_a_decoder_raises_becomes_an_input_error():
    with (
        pytest.raises(InputError) as found,
        decoding(Path("a.wav"), "a WAV file", "replace it"),
    ):
        raise EOFError("no header")
    assert str(found.value) == "a.wav: corrupt or not a WAV file (EOFError: no header); replace it"
    assert isinstance(found.value.__cause__, EOFError)


def test_input_errors_pass():
    with (
        pytest.raises(InputError, match=r"^too long$"),
        decoding(Path("a.wav"), "a WAV file", "replace it"),
    ):
        raise InputError("too long")


def test_the_first_bad_file_is_reported():
    def work(index):
        if index % 3 == 2:
            raise InputError(f"bad {index}")
        return index

    assert in_threads(work, range(2)) == [0, 1]
    with pytest.raises(InputError, match=r"^bad 2$"):
        in_threads(work, range(20))
