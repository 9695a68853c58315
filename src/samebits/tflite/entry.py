"""Reading an untrusted TensorFlow Lite file."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path

from samebits import ledger, progress
from samebits.contract import UNKNOWN, Contract
from samebits.entrance import read
from samebits.errors import InputError, UnsupportedError
from samebits.excerpt import MEANING, WHOLE, Excerpt
from samebits.ir import Graph, Trait, has
from samebits.ir.cut import cut
from samebits.tflite.exact.importer import import_file
from samebits.tflite.file import File
from samebits.tflite.loops import unrolled
from samebits.tflite.meaning import EXACT, SAME, STATED, Meaning, meaning_named
from samebits.tflite.part import part_of
from samebits.tflite.reader import parse
from samebits.tflite.same.importer import import_same
from samebits.tflite.schema import OWN
from samebits.tflite.writer import to_bytes

MAX_FILE = 2**31 - 1  # the longest distance in a file
SUFFIX = ".tflite"
_ROUNDED_ONCE = (
    "; runtimes of TensorFlow Lite round several times, and single codes of theirs differ: "
    f"{MEANING} tflite takes theirs"
)
CONTRACT = f"{OWN}contract"  # the metadata of what inputs and outputs mean


@dataclass(frozen=True, eq=False)
class Lite:
    """A file that was read.

    graph:    a real graph, float or in QDQ form, or an integer graph with the bits of a runtime
    meaning:  of its integers; None of a float network
    file:     the part that was taken
    contract: what its inputs and outputs mean, as far as its metadata says
    """

    graph: Graph
    meaning: Meaning | None
    file: File
    contract: Contract = UNKNOWN

    def in_other_meaning(self) -> Lite:
        """The same quantized network in the other meaning: that of the newest runtime, or exact.
        Raises InputError and UnsupportedError for what that does not take."""
        assert self.meaning is not None
        other = EXACT if self.meaning.runtime else SAME
        return from_bytes(to_bytes(self.file), f"meaning {other}", Excerpt(meaning=other))

    def to_bytes(self, contract: Contract) -> bytes:
        """The bytes of a file that is read as this network, whatever the meaning by default."""
        assert self.meaning is not None
        texts = {STATED: self.meaning.name, CONTRACT: contract.to_json()}
        return to_bytes(replace(self.file, metadata={k: text for k, text in texts.items() if text}))


@ledger.load()
def load(path: str | os.PathLike[str], part: Excerpt = WHOLE, within: Path | None = None) -> Lite:
    """Read a TensorFlow Lite file.

    part:   the tensors at which it is cut, and the meaning in which it is read
    within: the folder that a user named, where the file is one inside it

    Raises InputError for a file that is damaged or contradicts itself, and for a meaning that it
    has not; UnsupportedError with every operator that has no counterpart.
    """
    found = from_bytes(_bytes(path, within), str(Path(path)), part)
    if found.meaning is not None:
        other = "" if found.meaning.runtime else _ROUNDED_ONCE
        progress.note(f"{path}: read in the meaning {found.meaning}{other}")
    return found


def from_bytes(data: bytes, source: str, part: Excerpt = WHOLE) -> Lite:
    """Read a file's bytes. source: what messages call it. Errors as `load`."""
    file = parse(data, source)
    stated = file.metadata.get(STATED, EXACT)
    meaning = meaning_named(part.meaning) if part.meaning else meaning_named(stated, source)
    try:
        file = unrolled(file, fixed=meaning.runtime is not None)
    except (InputError, UnsupportedError) as error:
        raise type(error)(f"{source}: {error}") from None
    contract = Contract.from_json(file.metadata.get(CONTRACT, ""))
    if meaning.runtime is not None:
        file = part_of(file, part)
        return Lite(import_same(file, source, meaning.runtime), meaning, file, contract)
    graph = import_file(file, source)
    quantized = any(
        has(node.op, Trait.QUANTIZES) and node.op != "DequantizeLinear" for node in graph.nodes
    )
    if part.meaning and not quantized:
        raise InputError(
            f"{source}: {MEANING} applies to quantized .tflite files, found a float one; leave it "
            "out"
        )
    return Lite(cut(graph, part), meaning if quantized else None, file, contract)


def _bytes(path: str | os.PathLike[str], within: Path | None) -> bytes:
    """The bytes of a file. Raises InputError."""
    advice = f"give the path of a {SUFFIX} file"
    try:
        return read(path, MAX_FILE, within=within)
    except FileNotFoundError:
        raise InputError(
            f"{path}: expected a {SUFFIX} file, found no such file; {advice}"
        ) from None
    except (OSError, ValueError) as error:  # ValueError: a null character in the path
        raise InputError(f"{path}: expected a readable file, found {error}; {advice}") from None
