"""Packages of C as a function of their model file: made, and compared with a folder."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from samebits import progress
from samebits.codegen.lowering.cpu import PORTABLE
from samebits.codegen.packaging import audio
from samebits.codegen.packaging.package import PAGE, Package, package, replace_folder
from samebits.codegen.packaging.seal import (
    Hashes,
    check_same,
    check_seal,
    file_bytes,
    read_seal,
    seal,
)
from samebits.codegen.packaging.signature import LARGEST_SIGNATURE, signature_of
from samebits.codegen.run.interface import LARGEST_REPORT, REPORT
from samebits.data.audio import LogMel
from samebits.errors import InputError, PackageError, SamebitsError
from samebits.model import LITE_FILE, ONNX_FILE, Model, model_file
from samebits.onnx import from_bytes
from samebits.onnx.reader.load import MAX_FILE
from samebits.recipes import Packaging
from samebits.tflite import from_bytes as lite_from_bytes
from samebits.verification.inputs import random_codes

AUDIO = "audio"  # folder of the features, in that of a model of recordings
VECTORS = 8  # samples of a package's own test
LARGEST_PAGE = 1 << 30  # bytes
SIGNATURE = signature_of(REPORT)


def packaged(name: str, data: bytes, source: str, how: Packaging) -> Package:
    """The package of a model.onnx or model.tflite: the same bytes from the same version wherever it
    is made, since nothing else enters it.

    name: which of both. how: of its prefix, processor and layout. source: what messages call the
    model. Errors as `codegen.packaging.package.package`.
    """
    model = _model(name, data, source)
    beside: dict[str, str | bytes] = {name: data}
    if model.rate is not None:
        texts = audio.texts(LogMel.at(model.rate))
        beside.update((f"{AUDIO}/{name}", text) for name, text in texts.items())
    return package(
        model.integer,
        prefix=how.prefix,
        vectors=random_codes(model.integer, VECTORS),
        cpu=how.cpu or PORTABLE.name,
        project=how.package,
        weights_file=how.weights_file,
        beside=beside,
        contract=model.meaning,
        rate=model.rate,
    )


def _model(name: str, data: bytes, source: str) -> Model:
    if name == LITE_FILE:
        found = lite_from_bytes(data, source)
        return Model(source, found.graph, contract=found.contract, lite=found)
    graph, facts = from_bytes(data, source)
    return Model(source, graph, rate=facts.rate, contract=facts.contract)


def checked(
    model: Model, signed: Callable[[bytes], object] = lambda report: None
) -> tuple[Model, str]:
    """The model with the C of the folder that it was read from, where that is a package of C, and
    the SHA-256 of its report; any other model as it is, and "".

    signed: sees the bytes of the report before anything is compared, and raises where they are not
    signed

    Every file has the SHA-256 that the folder's report states, and is what this version writes for
    its model file and the options of the report, byte for byte; `sources` are those bytes, so that
    nothing else is built whatever becomes of the folder. A page of `ship` has its SHA-256 alone.

    Raises PackageError, which names the files, where one differs, is missing or is not of the
    package, and where another version wrote the folder.
    """
    folder = folder_of_c(model)
    if folder is None:
        return model, ""
    progress.stage("checking the package")
    data = file_bytes(folder, REPORT, LARGEST_REPORT)
    signed(data)
    report, stated = read_seal(folder, data)
    found = {**check_seal(folder, stated), REPORT: hashlib.sha256(data).hexdigest()}
    made = _again(folder, report)
    check_same(folder, found, _hashes(made, found), f"samebits {made.report.version}")
    return replace(model, sources=(made.report.prefix, made.sources)), found[REPORT]


def rebuild(model: Model, out: Path) -> str:
    """Write the package that a model was read from anew, from its model file and the options of its
    report; the SHA-256 of the report. The page of `ship` and a signature are copied.

    Raises InputError for a model from elsewhere, PackageError where another version wrote the
    folder, or its report cannot be read.
    """
    folder = folder_of_c(model)
    if folder is None:
        raise InputError(
            f"{model.source}: expected a folder that samebits compile or ship wrote to build "
            "again, found another model; compile it"
        )
    report, stated = read_seal(folder)
    made = _again(folder, report)
    kept = {PAGE: LARGEST_PAGE} if PAGE in stated else {}
    if (folder / SIGNATURE).exists():
        kept[SIGNATURE] = LARGEST_SIGNATURE
    copies = {name: file_bytes(folder, name, most) for name, most in kept.items()}
    return replace_folder(out, {**made.files, **copies})


def folder_of_c(model: Model) -> Path | None:
    """The package of C that a model was read from as a whole; None for any other model."""
    folder = model.package
    if folder is None or model.firmware is not None or model_file(folder) is None:
        return None
    return folder


def _again(folder: Path, report: Mapping[str, Any]) -> Package:
    """The package as this version writes it for the model file of a folder. Errors as `checked`."""
    ours, theirs = version("samebits"), report.get("version")
    if theirs != ours:
        raise PackageError(
            f"{folder / REPORT}: samebits {theirs!a:.40} wrote this package, and this is {ours}: "
            "its files were compared with the SHA-256 of the report alone, and its C was not run; "
            "verify it with that version, or compile again"
        )
    chosen: dict[str, Any] = {name: report.get(name) for name in ("prefix", "cpu", "package")}
    name = model_file(folder) or ONNX_FILE
    data = file_bytes(folder, name, MAX_FILE)
    try:
        how = Packaging(**chosen, weights_file=bool(report.get("structure")))
        return packaged(name, data, str(folder), how)
    except SamebitsError as error:
        raise PackageError(
            f"{folder / REPORT}: expected the prefix, cpu and package that the folder was made "
            f"with, found some that nothing can be made with: {error}"
        ) from error


def _hashes(made: Package, found: Hashes) -> dict[str, str]:
    """Those of a package as it is written, with a page that stands in the folder."""
    hashes = {name: hashlib.sha256(data).hexdigest() for name, data in made.files.items()}
    if PAGE in found:
        hashes[PAGE] = found[PAGE]
    hashes[REPORT] = hashlib.sha256(seal(made.files[REPORT], hashes)).hexdigest()
    return hashes
