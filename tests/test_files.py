import contextlib
import os
import re
import struct
import zipfile

import numpy as np
import pytest

from samebits import files as module
from samebits.errors import InputError, SamebitsError
from samebits.files import read_archive, write_atomically


def test_short_writes_are_continued(tmp_path, monkeypatch):
    real = os.write
    monkeypatch.setattr(module.os, "write", lambda fd, data: real(fd, bytes(data)[:3]))
    write_atomically(tmp_path / "x", b"0123456789")
    assert (tmp_path / "x").read_bytes() == b"0123456789"


def test_unwritable_folder_is_named(tmp_path):
    with pytest.raises(SamebitsError, match="cannot be written"):
        write_atomically(tmp_path / "nowhere" / "x", b"")


def unreadable(path, text: str = "not a readable .npz archive"):
    with pytest.raises(InputError, match=f"^{re.escape(str(path))}: {text}"):
        read_archive(path)


def test_pickles_are_not_loaded(tmp_path):
    path = tmp_path / "x.npz"

    class Bomb:
        def __reduce__(self):
            return (pytest.fail, ("the pickle ran",))

    np.savez(path, x=np.array([Bomb()], object))
    unreadable(path, "array x: expected plain numbers, found object")


def test_files_that_are_no_archives(tmp_path):
    path = tmp_path / "x.npz"
    for data in (b"", b"PK", b"\x93NUMPY", b"PK\x05\x06" + b"\0" * 17, b"hello" * 99):
        path.write_bytes(data)
        unreadable(path)
    np.save(tmp_path / "x.npy", np.zeros(3))
    unreadable(tmp_path / "x.npy")
    with pytest.raises(OSError, match=r"none\.npz"):
        read_archive(tmp_path / "none.npz")
    with pytest.raises(OSError, match="directory"):
        read_archive(tmp_path)


def test_damaged_archives(tmp_path):
    path = tmp_path / "x.npz"
    np.savez_compressed(path, x=np.arange(1000))
    data = path.read_bytes()
    rng = np.random.default_rng(0)
    for _ in range(300):
        broken = bytearray(data)
        for _ in range(rng.integers(1, 4)):
            broken[rng.integers(len(broken))] = rng.integers(256)
        path.write_bytes(broken[: rng.integers(1, len(broken) + 1)])
        with contextlib.suppress(InputError):  # or other numbers: a flipped bit may be one
            read_archive(path)


def npy(shape: str, dtype: str = "'|i1'", data: bytes = b"") -> bytes:
    header = f"{{'descr': {dtype}, 'fortran_order': False, 'shape': {shape}, }}".encode()
    header += b" " * (-(len(header) + 11) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + data


@pytest.mark.parametrize(
    ("shape", "dtype", "text"),
    [
        (f"({1 << 45},)", "'|i1'", "array x: expected as many bytes as the shape"),
        (f"({1 << 62}, 8)", "'|i1'", "array x: expected as many bytes as the shape"),
        (f"({1 << 70},)", "'|i1'", "array x: expected as many bytes as the shape"),
        ("(-1,)", "'|i1'", "array x: expected as many bytes as the shape"),
        ("(3,)", "'|V999999999999'", ""),
        ("(3,)", "'|O'", "array x: expected plain numbers, found object"),
        ("(3,)", "'i1; import os'", "not a readable .npz archive"),
        ("(3,)", "__import__('os')", "not a readable .npz archive"),
        ("(" * 300, "'|i1'", "not a readable .npz archive"),
    ],
)
def test_headers_that_promise_too_much(tmp_path, shape, dtype, text):
    path = tmp_path / "x.npz"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x.npy", npy(shape, dtype, b"\0" * 3))
    unreadable(path, text)


def test_a_bomb_is_refused_before_it_is_unpacked(tmp_path, monkeypatch):
    path = tmp_path / "x.npz"
    np.savez_compressed(path, x=np.zeros(1 << 20, np.int8))
    assert path.stat().st_size < 1 << 12
    monkeypatch.setattr(module, "LARGEST_ARCHIVE", 1 << 20)
    monkeypatch.setattr(np.lib.format, "read_array", lambda *a, **k: pytest.fail("unpacked"))
    message = f"{path}: expected at most {1 << 20} bytes of arrays, found {(1 << 20) + 128}"
    with pytest.raises(InputError, match=f"^{re.escape(message)}"):
        read_archive(path)
