"""Reading an untrusted ONNX file."""

from __future__ import annotations

import os
from pathlib import Path

import onnx
from google.protobuf.message import DecodeError, EncodeError  # type: ignore[import-untyped]

from samebits import ledger
from samebits.entrance import read
from samebits.errors import InputError
from samebits.excerpt import WHOLE, Excerpt
from samebits.ir import Graph
from samebits.onnx.metadata import FileFacts, read_facts
from samebits.onnx.reader.importer import import_model
from samebits.onnx.reader.wire import scan

MAX_FILE = 2**31 - 1  # protobuf's own limit: larger models keep their data in other files


@ledger.load()
def load(
    path: str | os.PathLike[str],
    batch: int = 1,
    part: Excerpt = WHOLE,
    within: Path | None = None,
) -> Graph:
    """The real graph of an ONNX file (opsets 6 to the newest known).

    batch: size of the leading dimension where the file leaves it open
    part:  what is taken of it
    within: the folder that a user named, where the file is one inside it

    Raises InputError for a file that is damaged or breaks ONNX's rules and for a part that
    contradicts it, UnsupportedError with every operator and attribute that has no counterpart.
    """
    path = Path(path)
    return import_model(read_model(path, within), batch, str(path), path.parent, part)


def facts(path: str | os.PathLike[str], within: Path | None = None) -> FileFacts:
    """The metadata that an ONNX file has of its model. Raises InputError as `load`, and for a
    sampling rate that is no positive number."""
    return _facts_of(read_model(Path(path), within), str(path))


def _facts_of(model: onnx.ModelProto, source: str) -> FileFacts:
    try:
        return read_facts(model)
    except InputError as error:
        raise InputError(f"{source}: {error}") from None


def from_bytes(data: bytes, source: str) -> tuple[Graph, FileFacts]:
    """The real graph and the metadata of a file's bytes. Errors as `from_model` and `facts`."""
    model = parse_model(data, source)
    return import_model(model, 1, source, None), _facts_of(model, source)


def from_model(model: onnx.ModelProto, batch: int = 1, source: str = "model") -> Graph:
    """The real graph of a model in memory; see `load`. source: what messages call the model.

    External data is refused: there is no folder for it.
    """
    try:
        data = model.SerializeToString()
    except (EncodeError, ValueError) as error:  # above protobuf's limit
        raise InputError(f"{source}: expected a model of at most 2 GiB, found {error}") from None
    # The messages of a damaged file may already be in memory: text that is no text, for one.
    scan(data, source)
    del data
    return import_model(model, batch, source, None)


def read_model(path: Path, within: Path | None = None) -> onnx.ModelProto:
    """The parsed file. Its size, its framing and the size of its parsed form are checked before it
    is parsed. within: as `load`. Raises InputError."""
    advice = "give the path of an .onnx file"
    try:
        data = read(path, MAX_FILE, "store the tensors as external data", within=within)
    except FileNotFoundError:
        raise InputError(f"{path}: expected an ONNX file, found no such file; {advice}") from None
    except (OSError, ValueError) as error:  # ValueError: a null character in the path
        raise InputError(f"{path}: expected a readable file, found {error}; {advice}") from None
    return parse_model(data, str(path))


def parse_model(data: bytes, source: str) -> onnx.ModelProto:
    """The ModelProto that the bytes of a file encode. source: what messages call it. Raises
    InputError where they encode none, or one out of all proportion."""
    if not data:
        raise InputError(f"{source}: expected an ONNX file, found no bytes; export the model again")
    if len(data) > MAX_FILE:
        raise InputError(f"{source}: expected at most {MAX_FILE} bytes, found {len(data)}")
    scan(data, source)
    try:
        return onnx.ModelProto.FromString(data)
    except (DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(
            f"{source}: expected an ONNX file, found bytes that are none ({error}); "
            "export the model again or copy it whole"
        ) from None
