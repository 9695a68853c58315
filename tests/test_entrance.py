"""The one entrance: regular files alone, and nothing of a folder that lies outside of it."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from samebits.entrance import append, opened, read
from samebits.errors import InputError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    inside = tmp_path / "inside"
    (inside / "deep").mkdir(parents=True)
    (inside / "file").write_bytes(b"data")
    (inside / "deep" / "file").write_bytes(b"deep")
    (tmp_path / "secret").write_bytes(b"secret")
    return inside


def message(path: Path, within: Path | None = None, flags: int = os.O_RDONLY) -> str:
    with pytest.raises(InputError) as caught:
        opened(path, flags, within=within)
    return str(caught.value)


def test_files_are_read(folder: Path) -> None:
    assert read(folder / "file", 4) == b"data"
    assert read(folder / "deep" / "file", 4, within=folder) == b"deep"
    with pytest.raises(InputError, match="expected at most 3 bytes, found 4; cut it"):
        read(folder / "file", 3, "cut it")
    for missing in (folder / "none", "a\0b"):
        with pytest.raises(FileNotFoundError):
            read(missing, 4)


FOUND = {
    "a link": lambda path: path.symlink_to("file"),
    "a folder": lambda path: path.mkdir(),
    "a pipe": os.mkfifo,
    "a device": lambda path: os.mknod(path, 0o020600, os.makedev(1, 5)),
    "something else": lambda path: bound(path),
}


def bound(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(path))


@pytest.mark.parametrize("found", FOUND)
@pytest.mark.parametrize("flags", [os.O_RDONLY, os.O_WRONLY | os.O_APPEND | os.O_CREAT, os.O_RDWR])
def test_anything_else_is_refused(folder: Path, found: str, flags: int) -> None:
    path = folder / "x"
    try:
        FOUND[found](path)
    except PermissionError:
        pytest.skip("only root makes devices")
    told = f"{path}: expected a file, found {found}; put the file itself there"
    assert message(path, folder, flags) == told
    if found != "a link":
        assert message(path, None, flags) == told


def test_a_user_may_name_a_link(folder: Path) -> None:
    (folder / "link").symlink_to("file")
    (folder.parent / "other").symlink_to(folder)
    assert read(folder / "link", 4) == b"data"
    assert read(folder.parent / "other" / "file", 4, within=folder.parent / "other") == b"data"


def test_nothing_leaves_the_folder(folder: Path) -> None:
    (folder / "up").symlink_to(folder.parent)
    found = message(folder / "up" / "secret", folder)
    assert found.startswith(f"{folder / 'up'}: expected a folder, found a link")
    for path in (folder / ".." / "secret", folder.parent / "secret", Path("/etc/passwd")):
        assert "found a path out of it" in message(path, folder)


def test_appending_writes_through_no_link(folder: Path) -> None:
    append(folder / "file", b" more", within=folder)
    append(folder / "new", b"new", within=folder)
    assert (folder / "file").read_bytes() + (folder / "new").read_bytes() == b"data morenew"
    (folder / "link").symlink_to(folder.parent / "made")
    with pytest.raises(InputError, match="found a link"):
        append(folder / "link", b"x", within=folder)
    assert not (folder.parent / "made").exists()


def test_what_takes_the_place_of_a_file_meanwhile_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the look and the opening."""
    real = os.stat

    def stat(path, **options):
        found = real(path, **options)
        if path == "file":
            os.unlink(folder / "file")
            os.mkfifo(folder / "file")
        return found

    monkeypatch.setattr(os, "stat", stat)
    assert "found a pipe" in message(folder / "file", folder)
