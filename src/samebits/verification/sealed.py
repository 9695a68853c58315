"""The check of the folder that a model was read from, before anything of it runs.

A package of C is made again (`package.checked`). Firmware and training runs cannot be: of these,
the files of the folder are compared with the SHA-256 that its report states, and no more is said.
Nothing that a report names is opened unless it is the name of a file that such a folder has.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from samebits import entrance, progress
from samebits.codegen.packaging.seal import changed, shown
from samebits.codegen.packaging.signature import signature_of, signer_of
from samebits.codegen.run.interface import LARGEST_REPORT, REPORT
from samebits.errors import InputError, PackageError, listed
from samebits.model import Model, model_file
from samebits.npu.machine.image import FOLDER_FORMAT, firmware_sha256, program_files
from samebits.train.run.record import FORMAT, LARGEST_FILE, LOCK, RESULT, run_files
from samebits.verification.package import checked, folder_of_c


@dataclass(frozen=True)
class Checked:
    """A folder whose files are as its report states.

    model:  with the C of its folder, of a package of C
    sha256: of the report, which states that of every other file; "" where none does
    found:  what was compared and what was not, as a sentence; "" of a model from no folder
    signer: who signed the report, where that was asked
    refused: why nothing of the folder may be run
    """

    model: Model
    sha256: str = ""
    found: str = ""
    signer: str = ""
    refused: str = ""

    @property
    def said(self) -> tuple[str, str, str]:
        """As a result of `verify` has it."""
        return self.sha256, self.found, self.signer


def check_folder(model: Model, signers: str | Path | None = None) -> Checked:
    """Check the folder of a model; `signers`: a file of those who may have signed its report.

    It is refused where files differ or the signature does not hold. Raises InputError for a
    signature of a model that was read from no folder as a whole.
    """
    try:
        return _checked(model, None if signers is None else Path(signers))
    except PackageError as error:
        return Checked(model, refused=str(error))


def _checked(model: Model, signers: Path | None) -> Checked:
    """As `check_folder`, with a PackageError where it refuses."""
    folder, people = model.package, list[str]()
    if folder is None:
        if signers is not None:
            raise InputError(
                f"{model.source}: expected a folder that samebits wrote, whose report is signed, "
                "found another model; give the folder, or leave --signers out"
            )
        return Checked(model)
    name = REPORT if model.firmware is not None or folder_of_c(model) else RESULT

    def signed(data: bytes) -> None:
        if signers is not None:
            people.append(signer_of(folder, name, data, signers))

    if folder_of_c(model):
        model, sha256 = checked(model, signed)
        found = f"every file is what this version writes for its {model_file(folder)}; {REPORT}"
        return Checked(model, sha256, f"{found}: sha256 {sha256}", *people)
    progress.stage("checking the files of the folder")
    data = _report(folder, name, LARGEST_REPORT if name == REPORT else LARGEST_FILE)
    if data is not None:
        signed(data)
    report = _record(data)
    stated = report.get("files")
    if not isinstance(stated, dict) or not all(isinstance(h, str) for h in stated.values()):
        if signers is not None:
            raise PackageError(
                f"{folder / name}: expected the SHA-256 of the files of the folder (field files), "
                "which a signature would stand for, found none; compile or train again"
            )
        return Checked(model, "", f"no file was compared with a SHA-256: {name} states none")
    if report.get("format") != (wanted := FOLDER_FORMAT if name == REPORT else FORMAT):
        raise PackageError(
            f"{folder / name}: expected format {wanted!r} of samebits, found "
            f"{report.get('format')!a:.60}; use the release of samebits that wrote it"
        )
    if model.firmware is not None:
        own, lines = [file.name for file in program_files(Path(model.source))], []
        if report.get("sha256") != firmware_sha256(*model.firmware):
            lines.append(f"{name}: states the SHA-256 of another program than was read")
        more = "what network the program was made of cannot be seen"
    else:
        own, lines = [path.name for path in run_files(folder)], []
        more = "the training was not repeated"
    lines += _differing(folder, name, stated, own)
    if lines:
        files = "file that differs" if len(lines) == 1 else "files that differ"
        raise PackageError(
            f"{folder}: expected the files that {name} states, found {len(lines)} {files}; nothing "
            "of it was run. Something was changed since, or the folder written to again; make it "
            f"anew, or finish the run with --resume:\n{listed(lines)}"
        )
    sha256 = hashlib.sha256(data or b"").hexdigest()
    known = {*own, name, signature_of(name), LOCK}
    others = sum(entry not in known for entry in os.listdir(folder))
    aside = f"; not looked at: {others} other{'s' * (others > 1)} in the folder" if others else ""
    found = f"the {len(stated)} files that {name} states are unchanged; {more}{aside}; {name}"
    return Checked(model, sha256, f"{found}: sha256 {sha256}", *people)


def _report(folder: Path, name: str, most: int) -> bytes | None:
    """The report's bytes; None where there is none. Raises PackageError for what is no file."""
    try:
        return entrance.read(folder / name, most, within=folder)
    except FileNotFoundError:
        return None
    except (InputError, OSError) as error:
        raise PackageError(f"{error}; nothing of the folder was run") from error


def _record(data: bytes | None) -> Mapping[str, Any]:
    """The object of a report; empty where it holds none."""
    try:
        record = json.loads(data or b"")
    except (ValueError, RecursionError):
        return {}
    return record if isinstance(record, dict) else {}


def _differing(
    folder: Path, report: str, stated: Mapping[str, str], own: Collection[str]
) -> list[str]:
    """A line for each file that is not as stated: of those that such a folder has, `own`."""
    lines = []
    for name in sorted({*stated, *own}):
        if name not in own:
            lines.append(f"{shown(name)}: missing, though {report} states it")
        elif name not in stated:
            lines.append(f"{shown(name)}: not of the folder, as {report} does not state it")
        else:
            try:
                if entrance.sha256(folder / name, within=folder) != stated[name]:
                    lines.append(changed(name, report))
            except (InputError, OSError):
                lines.append(f"{shown(name)}: expected a regular file that can be read")
    return lines
