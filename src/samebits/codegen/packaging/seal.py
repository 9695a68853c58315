"""The seal of a package: its report.json states the SHA-256 of every other file, under `files`.

A folder is untrusted: no name that its report states is opened, and only regular files are read.
A seal shows what was changed since; against somebody who writes a new seal too, only a copy of the
SHA-256 of report.json, which `compile` prints, helps, or a signature (`signature`), whose file lies
beside the report and is not sealed.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from samebits import entrance
from samebits.codegen.packaging.signature import signature_of
from samebits.codegen.run.interface import LARGEST_REPORT, REPORT, parse_report
from samebits.errors import InputError, PackageError, listed

MOST_FILES = 10_000  # of a package: those of samebits hold a few dozen
DEEPEST = 20  # folders within folders
UNSEALED = (REPORT, signature_of(REPORT))  # what a report cannot state

Hashes = Mapping[str, str]


def sealed(files: Mapping[str, bytes]) -> dict[str, bytes]:
    """The files of a package, whose report.json states the SHA-256 of all others; files without a
    report as they are."""
    if REPORT not in files:
        return dict(files)
    hashes = {name: hashlib.sha256(data).hexdigest() for name, data in files.items()}
    return {**files, REPORT: seal(files[REPORT], hashes)}


def seal(report: bytes, hashes: Hashes) -> bytes:
    """A report that states these hashes; its own and that of its signature are left out."""
    stated = {name: hashes[name] for name in sorted(hashes) if name not in UNSEALED}
    return (json.dumps({**json.loads(report), "files": stated}, indent=2) + "\n").encode()


# --- an untrusted folder --------------------------------------------------------------------


def file_bytes(folder: Path, name: str, limit: int) -> bytes:
    """A file of the folder. Raises PackageError where there is none, or one above the limit."""
    path = folder / name
    try:
        return entrance.read(path, limit, "compile again", within=folder)
    except InputError as error:
        raise PackageError(str(error)) from error
    except OSError as error:
        raise PackageError(
            f"{path}: expected a file of a package, found none that can be read "
            f"({error.strerror or error}); compile again"
        ) from error


def folder_sha256(folder: Path, wanted: Collection[str]) -> tuple[dict[str, str], set[str]]:
    """The SHA-256 of every file by its path in the folder, "" of those that are not wanted and so
    not read, and the paths of all that is no file.

    Raises PackageError for more files than any package has, and a folder that cannot be read.
    """
    found: dict[str, str] = {}
    others: set[str] = set()
    try:
        for name in _entries(folder, "", DEEPEST):
            if len(found) + len(others) >= MOST_FILES:
                raise PackageError(
                    f"{folder}: expected a package, found more than {MOST_FILES} files; remove "
                    "what is not of the package"
                )
            try:
                path = folder / name
                found[name] = entrance.sha256(path, within=folder) if name in wanted else ""
            except (InputError, OSError):
                others.add(name)
    except OSError as error:
        raise PackageError(
            f"{error.filename or folder}: cannot be read ({error.strerror or error}); check the "
            "folder and its permissions"
        ) from error
    return found, others


def _entries(folder: Path, before: str, depth: int) -> Iterator[str]:
    """Everything in a folder that is no folder, by name; links are not followed."""
    with os.scandir(folder) as entries:
        for entry in sorted(entries, key=lambda entry: entry.name):
            if entry.is_dir(follow_symlinks=False) and depth:
                yield from _entries(Path(entry.path), f"{before}{entry.name}/", depth - 1)
            else:
                yield before + entry.name


# --- what differs ---------------------------------------------------------------------------


def read_seal(folder: Path, data: bytes | None = None) -> tuple[dict[str, Any], Hashes]:
    """The report of a package, whose bytes are `data` if they have been read, and the hashes that
    it states. Raises PackageError."""
    if data is None:
        data = file_bytes(folder, REPORT, LARGEST_REPORT)
    try:
        report = parse_report(data, folder)
    except InputError as error:
        raise PackageError(str(error)) from error
    stated = report.get("files")
    if not isinstance(stated, dict) or not all(isinstance(h, str) for h in stated.values()):
        raise PackageError(
            f"{folder / REPORT}: expected the SHA-256 of every file of the package (field files), "
            "found none; an earlier version wrote it: compile again"
        )
    return report, stated


def check_file(folder: Path, name: str) -> None:
    """PackageError where a report states another SHA-256 of one file than it has.

    A folder without a report that can be read states none.
    """
    try:
        stated = read_seal(folder)[1].get(name)
    except PackageError:
        return
    try:
        if stated not in (None, entrance.sha256(folder / name, within=folder)):
            raise refused(folder, [changed(name, REPORT)])
    except (InputError, OSError) as error:
        raise PackageError(
            f"{folder / name}: expected a regular file that can be read; compile again"
        ) from error


def check_seal(folder: Path, stated: Hashes) -> dict[str, str]:
    """The SHA-256 of every file but the signature. PackageError, which names them, where files
    differ from those that are stated, are missing or are not stated."""
    found, others = folder_sha256(folder, {*stated, REPORT})
    lines = []
    for name in sorted({*stated, *found, *others} - {*UNSEALED}):
        if name in others:
            lines.append(f"{shown(name)}: expected a regular file that can be read")
        elif name not in found:
            lines.append(f"{shown(name)}: missing, though {REPORT} states it")
        elif name not in stated:
            lines.append(f"{shown(name)}: not of the package, as {REPORT} does not state it")
        elif stated[name] != found[name]:
            lines.append(changed(name, REPORT))
    if lines:
        raise refused(folder, lines)
    return {name: found[name] for name in found if name != signature_of(REPORT)}


def check_same(folder: Path, found: Hashes, made: Hashes, writer: str) -> None:
    """PackageError, which names them, for files other than those `made`, by `writer`."""
    names = sorted(
        name for name in {*found, *made} if name not in made or found.get(name) != made[name]
    )
    if names:
        lines = [f"{shown(name)}: not what {writer} writes for the model file" for name in names]
        raise refused(folder, lines)


def changed(name: str, report: str) -> str:
    """The line of a file of which a report states another SHA-256."""
    return f"{shown(name)}: another SHA-256 than {report} states"


def shown(name: str) -> str:
    """A name from anywhere, on a terminal."""
    plain = name.isascii() and name.isprintable()
    return (name if plain else ascii(name))[:120]


def refused(folder: Path, lines: Sequence[str]) -> PackageError:
    """The error of files of a package that are not as they were written, a line for each."""
    files = "file that differs" if len(lines) == 1 else "files that differ"
    return PackageError(
        f"{folder}: expected the package as it was written, found {len(lines)} {files}; nothing "
        f"of it was built or run. Compile again, or remove what is not of the package:\n"
        f"{listed(lines)}"
    )
