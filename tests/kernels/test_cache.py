"""The cache of compiled code: only what was written is loaded, and no fault of the disk is one of
the user's."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from samebits.csrc import compiler
from samebits.kernels import build, cache

pytestmark = pytest.mark.skipif(shutil.which(compiler()[0]) is None, reason="needs a C compiler")


@pytest.fixture(scope="module")
def answer(tmp_path_factory) -> bytes:
    """A library of one function, samebits_answer, which gives 42."""
    folder = tmp_path_factory.mktemp("answer")
    (folder / "answer.c").write_text("int samebits_answer(void) { return 42; }\n")
    command = [*compiler(), "-shared", "-fPIC", "answer.c", "-o", "answer.so"]
    subprocess.run(command, cwd=folder, check=True)
    return (folder / "answer.so").read_bytes()


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "samebits"


def refuse() -> bytes:
    raise AssertionError("compiled again")


def kept(folder: Path) -> Path:
    (path,) = folder.iterdir()
    return path


def loads(build) -> bool:
    return cache.library("x", lambda kept: build()).samebits_answer() == 42


def test_compiled_once(folder, answer):
    assert loads(lambda: answer)
    path = kept(folder)
    assert path.name == f"x-{hashlib.sha256(answer).hexdigest()}.so"
    assert (path.stat().st_mode & 0o777, folder.stat().st_mode & 0o777) == (0o600, 0o700)
    assert loads(refuse)


def test_umask_of_a_group_changes_nothing(folder, answer):
    before = os.umask(0)
    try:
        assert loads(lambda: answer)
        assert loads(refuse)
    finally:
        os.umask(before)


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"",
        lambda data: data[:100],
        lambda data: data[: len(data) // 2],
        lambda data: data[:-1],
        lambda data: data + b"\0",
        lambda data: b"\x7fELG" + data[4:],
        lambda data: data[:1000] + bytes([data[1000] ^ 1]) + data[1001:],
    ],
    ids=["empty", "header", "half", "last byte", "longer", "magic", "bit"],
)
def test_a_damaged_library_is_compiled_again(folder, answer, damage):
    """It would end the process with SIGBUS or SIGSEGV."""
    loads(lambda: answer)
    path = kept(folder)
    data = damage(answer)
    path.write_bytes(data)
    with pytest.warns(UserWarning, match="damaged") as told:
        assert loads(lambda: answer)
    assert [str(warning.message) for warning in told] == [
        f"{path}: damaged: expected the SHA-256 in its name, found "
        f"{hashlib.sha256(data).hexdigest()} of {len(data)} bytes; it is not loaded, and compiled "
        "again"
    ]
    assert path.read_bytes() == answer
    assert loads(refuse)


def test_every_flipped_byte_is_found(folder, answer):
    """Of the whole file, in some hundred places."""
    loads(lambda: answer)
    path = kept(folder)
    for place in range(0, len(answer), 97):
        data = bytearray(answer)
        data[place] ^= 0x10
        path.write_bytes(data)
        assert isinstance(cache._checked(path, path.stem[2:]), str)


WRITABLE = "others can write to; run chmod go-w on it"


def as_link(path: Path) -> None:
    path.rename(path.parent.parent / "elsewhere.so")
    path.symlink_to(path.parent.parent / "elsewhere.so")


def as_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def of_another_user(path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a file away")
    os.chown(path, 12345, -1)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda path: path.chmod(0o620), f" of your own, found one that {WRITABLE}"),
        (lambda path: path.chmod(0o602), f" of your own, found one that {WRITABLE}"),
        (of_another_user, " of your own, found one that belongs to user 12345; move it away"),
        (as_link, ", found a link"),
        (as_pipe, ", found a pipe"),
    ],
    ids=["group", "others", "owner", "link", "pipe"],
)
def test_what_another_may_have_written_is_not_loaded(folder, answer, change, told):
    """The owner and the mode of the file itself, not of its folder alone."""
    loads(lambda: answer)
    path = kept(folder)
    change(path)
    with pytest.warns(UserWarning, match="expected a file") as warned:
        assert loads(lambda: answer)
    assert [str(warning.message) for warning in warned] == [
        f"{path}: expected a file{told}; it is not loaded, and compiled again"
    ]
    assert path.is_file()
    assert not path.is_symlink()
    assert loads(refuse)


def unkept(reason: str) -> str:
    """The warning that a library is not kept."""
    return (
        f"compiled kernels cannot be kept, so every process compiles its own ({reason}); name a "
        "folder of yours that can be written to by $XDG_CACHE_HOME"
    )


def test_a_folder_of_others_is_not_used(folder, answer):
    folder.mkdir()
    folder.chmod(0o777)
    with pytest.warns(UserWarning, match="cannot be kept") as told:
        assert loads(lambda: answer)
    reason = "expected a folder of your own, found one that others can write to; run chmod go-w on"
    assert [str(warning.message) for warning in told] == [unkept(f"{folder}: {reason} it")]
    assert list(folder.iterdir()) == []


def test_no_such_folder(tmp_path, answer, monkeypatch):
    """As a home on a read-only file system: root may write everywhere else."""
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    with pytest.warns(UserWarning, match="cannot be kept") as told:
        assert loads(lambda: answer)
    reason = f"{tmp_path / 'file/samebits'}: Not a directory"
    assert [str(warning.message) for warning in told] == [unkept(reason)]
    assert [path.name for path in tmp_path.iterdir()] == ["file"]  # nothing is left


@pytest.mark.slow  # compiles all kernels
def test_a_run_without_a_cache_has_native_kernels():
    program = "import samebits.kernels as kernels; print(kernels.realisation())"
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "XDG_CACHE_HOME": "/dev/null"},
    )
    assert (done.returncode, done.stdout) == (0, "native\n"), done.stderr
    assert done.stderr.count(unkept("/dev/null/samebits: Not a directory")) == 1


@pytest.mark.parametrize("place", ["no folder", "no rights"])
def test_what_cannot_be_kept_is_compiled_quickly(folder, tmp_path, answer, monkeypatch, place):
    """Short runs without a cache would take longer than without native kernels at all."""
    monkeypatch.setenv("CC", stub(tmp_path, answer))
    if place == "no folder":
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "stub"))
    else:
        folder.mkdir(0o700)
        monkeypatch.setattr(os, "access", lambda path, mode: path != folder)  # root may write
        monkeypatch.setattr(cache, "write_atomically", refused)
    with pytest.warns(UserWarning, match="cannot be kept"):
        assert build.load().samebits_answer() == 42
    calls = (tmp_path / "calls").read_text().splitlines()
    assert [line.split()[1] for line in calls] == ["--version", "-O2"]


def refused(path, data, mode):
    raise PermissionError(errno.EACCES, "Permission denied", str(path))


def test_two_processes_at_once(folder, answer):
    """The other one compiles while this one does: the same bytes, or others that are as good."""
    assert loads(lambda: loads(lambda: answer) and answer)
    assert kept(folder).read_bytes() == answer
    shutil.rmtree(folder)
    other = answer + b"\0"
    assert loads(lambda: loads(lambda: other) and answer)
    assert sorted(path.read_bytes() for path in folder.iterdir()) == [answer, other]
    assert loads(refuse)


@pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="needs files in memory, as Linux has")
def test_what_happens_to_the_file_later_does_not_matter(folder, answer):
    """A mapped file that is truncated ends the process with SIGBUS."""
    library = cache.library("x", lambda kept: answer)
    kept(folder).write_bytes(b"")
    assert library.samebits_answer() == 42


# --- what cannot be kept is done without ------------------------------------------------------


def stub(folder: Path, answer: bytes) -> str:
    """$CC with an argument, a compiler that logs its own and gives the library `answer`."""
    (folder / "answer.bin").write_bytes(answer)
    (folder / "stub").write_text(
        f'#!/bin/sh\necho "$@" >> {folder}/calls\n'
        f'while [ "$#" -gt 0 ]; do [ "$1" = -o ] && cp {folder}/answer.bin "$2"; shift; done\n'
    )
    return f"sh '{folder}/stub' -m64"


def test_a_compiler_with_arguments(folder, tmp_path, answer, monkeypatch):
    monkeypatch.setenv("CC", stub(tmp_path, answer))
    assert build.load().samebits_answer() == 42
    calls = (tmp_path / "calls").read_text().splitlines()
    assert calls[0] == "-m64 --version"
    assert calls[1].startswith("-m64 -O3 ")
    build.load()
    assert len((tmp_path / "calls").read_text().splitlines()) == 3  # its version again
    monkeypatch.setenv("CC", f"{os.environ['CC']} -O1")
    build.load()
    assert len(list(folder.iterdir())) == 2


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("absent -m64", "the C compiler absent is not installed; name another by $CC"),
        ("gcc '", '$CC: expected a compiler and its arguments, found "gcc \'" (No closing quotat'),
    ],
)
def test_a_compiler_that_is_not_there(folder, monkeypatch, given, told):
    monkeypatch.setenv("CC", given)
    with pytest.raises(build.BuildError) as caught:
        build.load()
    assert str(caught.value).startswith(told)


@pytest.mark.parametrize("limit", ["ANSWER", "WORK"])
def test_a_compiler_that_never_ends(folder, tmp_path, monkeypatch, limit):
    """With its version, or with the library."""
    quick = '[ "$1" = --version ] && exit\n' if limit == "WORK" else ""
    (tmp_path / "stub").write_text(f"{quick}exec sleep 1000\n")
    monkeypatch.setenv("CC", f"sh '{tmp_path}/stub'")
    monkeypatch.setattr(build, limit, 0.2)
    with pytest.raises(build.BuildError, match=r"to end within 0\.2 seconds, found it st"):
        build.load()
    assert not folder.exists() or not list(folder.iterdir())


@pytest.mark.parametrize("call", ["write", "fsync", "replace", "mkdir"])
def test_a_full_disk_of_the_cache(folder, answer, monkeypatch, call):
    """The library serves this process all the same; the warning says where, and why."""
    real = getattr(os, call)

    def full(*args, **named):
        if call == "mkdir" and not str(args[0]).startswith(str(folder)):
            return real(*args, **named)
        raise OSError(errno.ENOSPC, "No space left on device", str(args[0]))

    monkeypatch.setattr(os, call, full)
    with pytest.warns(UserWarning, match="cannot be kept") as told:
        assert loads(lambda: answer)
    monkeypatch.undo()
    library = folder / f"x-{hashlib.sha256(answer).hexdigest()}.so"
    assert [str(warning.message) for warning in told] == [
        unkept(
            f"{folder}: No space left on device"
            if call == "mkdir"
            else f"{library}: no space left to write {len(answer)} bytes (No space left on "
            "device); free some space and run again"
        )
    ]
    assert not folder.exists() or not list(folder.iterdir())


@pytest.mark.parametrize("call", ["mkdtemp", "write_text"])
def test_a_full_disk_under_the_compiler(folder, tmp_path, answer, monkeypatch, call):
    """The system's folder of temporary files, where it compiles."""
    monkeypatch.setenv("CC", stub(tmp_path, answer))

    def full(*args, **named):
        raise OSError(errno.ENOSPC, "No space left on device", "/tmp/x")

    monkeypatch.setattr(tempfile if call == "mkdtemp" else Path, call, full)
    with pytest.raises(build.BuildError, match=r"^/tmp/x: No space left on device$"):
        build.load()
    assert list(folder.iterdir()) == []


def test_a_limit_of_the_system_ends_in_eager_kernels(folder, tmp_path):
    """Writes that the kernel really refuses, the compiler's and those of Python."""
    program = (
        "import resource, samebits.kernels as kernels\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (5000, 5000))\n"
        "print(kernels.realisation())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "eager\n"), done.stderr
    assert "native kernels are off (slower, same bits): " in done.stderr
    assert "Traceback" not in done.stderr
    assert list(folder.iterdir()) == []
