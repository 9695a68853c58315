import contextlib
import ctypes
import errno
import os
import re
import struct
import zipfile

import numpy as np
import pytest

from samebits import files as module
from samebits.errors import InputError, SamebitsError
from samebits.files import read_archive, read_array, write_atomically, write_folder


def test_short_writes_are_continued(tmp_path, monkeypatch):
    real = os.write
    monkeypatch.setattr(module.os, "write", lambda fd, data: real(fd, bytes(data)[:3]))
    write_atomically(tmp_path / "x", b"0123456789")
    assert (tmp_path / "x").read_bytes() == b"0123456789"


def test_a_missing_folder_is_made(tmp_path):
    write_atomically(tmp_path / "new" / "too" / "x", b"0")
    assert (tmp_path / "new" / "too" / "x").read_bytes() == b"0"


def test_a_parent_that_is_a_file(tmp_path):
    (tmp_path / "x").write_bytes(b"")
    with pytest.raises(SamebitsError) as caught:
        write_atomically(tmp_path / "x" / "y", b"")
    assert str(caught.value) == (
        f"{tmp_path}/x/y: cannot be written (Not a directory); check the folder and its permissions"
    )


def test_the_mode_of_a_file(tmp_path):
    before = os.umask(0o022)
    try:
        write_atomically(tmp_path / "x", b"")
        write_atomically(tmp_path / "y", b"", mode=0o600)
    finally:
        os.umask(before)
    modes = [(tmp_path / name).stat().st_mode & 0o777 for name in "xy"]
    assert modes == [0o644, 0o600]


def test_what_a_killed_process_left_is_removed_after_an_hour(tmp_path):
    """Of the same file or folder, and nothing else."""
    mine, young = ".x.123.tmp", ".x.124.tmp"
    others = [".x.tmp", ".x.y.tmp", "x.123.tmp", ".y.123.tmp", young]
    for name in (mine, *others):
        (tmp_path / name).write_text("half")
        if name != young:
            os.utime(tmp_path / name, (1e9, 1e9))
    write_atomically(tmp_path / "x", b"")
    assert sorted(os.listdir(tmp_path)) == sorted(["x", *others])
    (tmp_path / "deep" / ".f.5.tmp" / "new").mkdir(parents=True)
    os.utime(tmp_path / "deep" / ".f.5.tmp", (1e9, 1e9))
    write_folder(tmp_path / "deep" / "f", {"a": b"1"})
    assert os.listdir(tmp_path / "deep") == ["f"]


def contents(folder):
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.mark.parametrize("exchange", [True, False])
def test_a_folder_is_replaced_as_a_whole(tmp_path, monkeypatch, exchange):
    if not exchange:
        monkeypatch.setattr(module, "_exchanged", lambda a, b: False)
    folder = tmp_path / "deep" / "out"
    write_folder(folder, {"a": b"1", "more/b": b"2"})
    assert contents(folder) == {"a": b"1", "more/b": b"2"}
    (folder / "mine").write_bytes(b"3")
    write_folder(folder, {"a": b"4", "c/d/e": b"5"})
    assert contents(folder) == {"a": b"4", "c/d/e": b"5"}
    assert os.listdir(tmp_path / "deep") == ["out"]


def test_folders_change_places_in_one_step(tmp_path, monkeypatch):
    """On Linux, where the file system can; nothing is renamed over the earlier folder."""
    if not hasattr(ctypes.CDLL(None), "renameat2"):
        pytest.skip("needs renameat2 of glibc or musl")
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / name).write_bytes(b"")
    if not module._exchanged(tmp_path / "a", tmp_path / "b"):
        pytest.skip("the file system of temporary files cannot exchange names")
    assert (os.listdir(tmp_path / "a"), os.listdir(tmp_path / "b")) == (["b"], ["a"])
    assert not module._exchanged(tmp_path / "a", tmp_path / "none")


@pytest.mark.parametrize("call", ["mkdir", "write", "fsync", "rename"])
def test_a_folder_that_cannot_be_written_stays_what_it_was(tmp_path, monkeypatch, call):
    folder = tmp_path / "out"
    write_folder(folder, {"a": b"old"})

    def refuse(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(module, "_exchanged", lambda a, b: False)
    monkeypatch.setattr(os, call, refuse)
    with pytest.raises(SamebitsError) as caught:
        write_folder(folder, {"a": b"new", "b": b""})
    monkeypatch.undo()
    assert str(caught.value) == (
        f"{folder}: no space left to write 3 bytes (No space left on device); free some space and "
        "run again"
    )
    assert contents(tmp_path) == {"out/a": b"old"}


def test_an_earlier_folder_that_cannot_be_put_back_is_not_deleted(tmp_path, monkeypatch):
    """Without an exchange of names: the second rename fails, and so does the one back."""
    folder = tmp_path / "out"
    write_folder(folder, {"a": b"old"})
    real, calls = os.rename, []

    def once(a, b, **named):
        calls.append(b)
        if len(calls) > 1:
            raise OSError(errno.EIO, "Input/output error")
        real(a, b, **named)

    monkeypatch.setattr(module, "_exchanged", lambda a, b: False)
    monkeypatch.setattr(os, "rename", once)
    with pytest.raises(SamebitsError, match="cannot be written"):
        write_folder(folder, {"a": b"new"})
    monkeypatch.undo()
    assert b"old" in contents(tmp_path).values()
    assert not folder.exists()
    monkeypatch.setattr(os, "fsync", lambda _: (_ for _ in ()).throw(OSError(errno.EIO, "broken")))
    with pytest.raises(SamebitsError, match="broken"):
        write_folder(folder, {"a": b"new"})
    assert contents(tmp_path) == {"out/a": b"old"}  # brought back first


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
    with pytest.raises(InputError, match="expected a file, found a folder"):
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


def test_one_array_is_read_as_one_of_an_archive(tmp_path):
    path = tmp_path / "x.npy"
    np.save(path, np.asfortranarray(np.arange(6, dtype=np.float32).reshape(2, 3)))
    np.testing.assert_array_equal(read_array(path), [[0, 1, 2], [3, 4, 5]])
    whole = path.read_bytes()
    for data, message in (
        (whole[:-1], "expected as many bytes as the shape|not a readable .npy file"),
        (whole[:20], "not a readable .npy file"),
        (b"", "not a readable .npy file"),
        (b"PK\x03\x04", "not a readable .npy file"),
        (whole.replace(b"(2, 3)", b"(9**9,"), "not a readable .npy file"),
        (whole.replace(b"(2, 3), }", b"(2, 3000)}"), "expected as many bytes as the shape"),
    ):
        path.write_bytes(data)
        with pytest.raises(InputError, match=message) as caught:
            read_array(path)
        assert str(caught.value).startswith(f"{path}: ")
    with pytest.raises(OSError, match=r"none\.npy"):
        read_array(tmp_path / "none.npy")


def test_an_array_of_objects_is_not_loaded(tmp_path):
    class Bomb:
        def __reduce__(self):
            return (pytest.fail, ("the pickle ran",))

    np.save(tmp_path / "x.npy", np.array([Bomb()], object))
    with pytest.raises(InputError, match="expected plain numbers, found object"):
        read_array(tmp_path / "x.npy")
