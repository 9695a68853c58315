"""The seal of a package: what it states, and what an untrusted folder shows against it."""

from __future__ import annotations

import json
import os
from hashlib import sha256

import pytest

from samebits.codegen.packaging import seal
from samebits.codegen.packaging.package import replace_folder
from samebits.codegen.packaging.seal import (
    check_file,
    check_same,
    check_seal,
    folder_sha256,
    read_seal,
    sealed,
)
from samebits.errors import PackageError

REPORT = json.dumps({"generator": "samebits", "format": "samebits-package-2"}).encode()
FILES = {"report.json": REPORT, "a.c": b"int a;\n", "test/b.h": b"\n", "model.onnx": b"\x08"}


@pytest.fixture
def folder(tmp_path):
    replace_folder(tmp_path / "pk", FILES)
    return tmp_path / "pk"


def refused(folder, *lines):
    """These lines, below a first one that counts them."""
    with pytest.raises(PackageError) as raised:
        check_seal(folder, read_seal(folder)[1])
    first, *found = str(raised.value).split("\n")
    files = "file that differs" if len(lines) == 1 else "files that differ"
    assert first == (
        f"{folder}: expected the package as it was written, found {len(lines)} {files}; nothing of "
        "it was built or run. Compile again, or remove what is not of the package:"
    )
    assert found == [f"  {line}" for line in lines]


def test_a_report_states_every_other_file(folder):
    report, stated = read_seal(folder)
    assert list(report) == ["generator", "format", "files"]
    assert list(stated) == ["a.c", "model.onnx", "test/b.h"]
    assert stated["a.c"] == sha256(b"int a;\n").hexdigest()
    assert check_seal(folder, stated).keys() == FILES.keys()
    assert (
        folder_sha256(folder, FILES)[0]["report.json"]
        == sha256(sealed(FILES)["report.json"]).hexdigest()
    )


def test_a_seal_is_made_anew_and_stays(tmp_path):
    once = sealed(FILES)
    assert sealed(once) == once
    assert replace_folder(tmp_path / "pk", once) == sha256(once["report.json"]).hexdigest()
    page = sealed({**once, "report.html": b"<p>"})
    assert "report.html" in json.loads(page["report.json"])["files"]
    assert sealed({"a.c": b""}) == {"a.c": b""}  # files without a report
    assert replace_folder(tmp_path / "plain", {"a.c": b""}) == ""


def test_what_differs_is_named(folder):
    (folder / "a.c").write_bytes(b"int b;\n")
    (folder / "test" / "b.h").unlink()
    (folder / "test" / "évil.c").write_bytes(b"")
    refused(
        folder,
        "a.c: another SHA-256 than report.json states",
        "test/b.h: missing, though report.json states it",
        "'test/\\xe9vil.c': not of the package, as report.json does not state it",
    )


def test_only_regular_files_are_read(folder, tmp_path):
    """A link with the right content, a pipe, a link to a device and a folder in place of a file."""
    (tmp_path / "outside").write_bytes(b"int a;\n")
    (folder / "a.c").unlink()
    (folder / "a.c").symlink_to(tmp_path / "outside")
    (folder / "model.onnx").unlink()
    os.mkfifo(folder / "model.onnx")
    (folder / "test" / "b.h").unlink()
    (folder / "test" / "b.h").mkdir()
    (folder / "zero").symlink_to("/dev/zero")
    (folder / "more").symlink_to(tmp_path)
    refused(
        folder,
        "a.c: expected a regular file that can be read",
        "model.onnx: expected a regular file that can be read",
        "more: not of the package, as report.json does not state it",
        "test/b.h: missing, though report.json states it",
        "zero: not of the package, as report.json does not state it",
    )
    for name in ("a.c", "model.onnx"):
        with pytest.raises(PackageError, match=f"{name}: expected a regular file"):
            check_file(folder, name)


@pytest.mark.parametrize("kind", ["link", "pipe", "folder", "none"])
def test_a_report_that_is_no_file(folder, tmp_path, kind):
    report = folder / "report.json"
    report.rename(tmp_path / "report.json")
    if kind == "link":
        report.symlink_to(tmp_path / "report.json")
    elif kind == "pipe":
        os.mkfifo(report)
    elif kind == "folder":
        report.mkdir()
    found = "none that can be read" if kind == "none" else f"a {kind}"
    with pytest.raises(PackageError, match=rf"report\.json: expected a file.*, found {found}"):
        read_seal(folder)
    check_file(folder, "a.c")  # it states nothing


def test_a_folder_of_too_many_files(folder, monkeypatch):
    monkeypatch.setattr(seal, "MOST_FILES", 4)
    assert len(folder_sha256(folder, FILES)[0]) == 4
    (folder / "more").write_bytes(b"")
    with pytest.raises(PackageError, match="found more than 4 files"):
        folder_sha256(folder, FILES)
    (folder / "more").unlink()


def test_a_folder_of_folders(folder):
    deep = folder.joinpath(*"d" * 30)
    deep.mkdir(parents=True)
    (deep / "x").write_bytes(b"")
    name = "/".join("d" * 21)
    assert folder_sha256(folder, {name})[1] == {name}
    refused(folder, f"{name}: not of the package, as report.json does not state it")


def test_the_model_is_checked_where_it_is_read(folder):
    check_file(folder, "model.onnx")
    (folder / "model.onnx").write_bytes(b"\x09")
    with pytest.raises(
        PackageError, match=r"model\.onnx: another SHA-256 than report\.json states"
    ):
        check_file(folder, "model.onnx")
    (folder / "report.json").write_bytes(REPORT)  # of an earlier version
    check_file(folder, "model.onnx")


def test_what_another_writes_is_named(folder):
    found = {"a.c": "1", "b.c": "2", "d.c": "4"}
    check_same(folder, found, dict(found), "samebits 1")
    with pytest.raises(PackageError) as raised:
        check_same(folder, found, {"a.c": "1", "b.c": "3", "c.c": "3"}, "samebits 1")
    assert [line.split(":")[0].strip() for line in str(raised.value).split("\n")[1:]] == [
        "b.c", "c.c", "d.c",
    ]  # fmt: skip


HOSTILE = {
    "empty": (b"", "found none that can be read"),
    "deep": (b"[" * 100_000, "found none that can be read"),
    "a list": (b"[]", "list instead of an object"),
    "no text": (b"\xff\xfe{}", "found none that can be read"),
    "a field twice": (
        b'{"format": "samebits-package-2", "files": {}, "files": {"a.c": ""}}',
        "the field 'files' twice",
    ),
    "a file twice": (
        b'{"format": "samebits-package-2", "files": {"a.c": "", "a.c": ""}}',
        "the field 'a.c' twice",
    ),
    "another format": (b'{"format": "samebits-package-9"}', "expected format 'samebits-package-2'"),
    "no seal": (REPORT, "expected the SHA-256 of every file of the package"),
    "a list of files": (
        b'{"format": "samebits-package-2", "files": ["a.c"]}',
        "expected the SHA-256 of every file of the package",
    ),
    "hashes that are numbers": (
        b'{"format": "samebits-package-2", "files": {"a.c": 1e999}}',
        "expected the SHA-256 of every file of the package",
    ),
    "a long number": (b'{"format": ' + b"9" * 10_000 + b"}", "found none that can be read"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_report(folder, name):
    data, message = HOSTILE[name]
    (folder / "report.json").write_bytes(data)
    with pytest.raises(PackageError) as raised:
        read_seal(folder)
    assert message in str(raised.value)
    assert str(raised.value).startswith(f"{folder}/report.json: ")
    assert "\n" not in str(raised.value)


def test_a_huge_report_is_not_read_to_its_end(folder, monkeypatch):
    monkeypatch.setattr(seal, "LARGEST_REPORT", 1000)
    (folder / "report.json").write_bytes(b" " * 1001)
    with pytest.raises(
        PackageError, match=r"report\.json: expected at most 1000 bytes, found 1001"
    ):
        read_seal(folder)


def test_names_of_a_report_are_no_paths(folder, tmp_path):
    """Names that lead out of the folder are compared with what lies in it, and never opened."""
    (tmp_path / "outside").write_bytes(b"secret")
    hashes = {
        name: sha256(b"secret").hexdigest() for name in ("../outside", "/etc/passwd", "\ud800")
    }
    made = seal.seal((folder / "report.json").read_bytes(), hashes)
    (folder / "report.json").write_bytes(made)
    refused(
        folder,
        "../outside: missing, though report.json states it",
        "/etc/passwd: missing, though report.json states it",
        "a.c: not of the package, as report.json does not state it",
        "model.onnx: not of the package, as report.json does not state it",
        "test/b.h: not of the package, as report.json does not state it",
        "'\\ud800': missing, though report.json states it",
    )
