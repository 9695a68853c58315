"""Reading an untrusted TensorFlow Lite file."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from samebits import ledger, progress
from samebits.entrance import read
from samebits.errors import InputError
from samebits.excerpt import WHOLE, Excerpt
from samebits.ir import Graph, Trait, has
from samebits.ir.cut import cut
from samebits.tflite.exact.importer import import_file
from samebits.tflite.reader import parse
from samebits.tflite.same.importer import import_same
from samebits.tflite.same.versions import NEWEST

MAX_FILE = 2**31 - 1  # the longest distance in a file
SUFFIX = ".tflite"


@ledger.load()
def load(path: str | os.PathLike[str], part: Excerpt = WHOLE) -> Graph:
    """The real graph of a TensorFlow Lite file: float, or in QDQ form where it is quantized.

    part: the tensors at which it is cut

    Raises InputError for a file that is damaged or contradicts itself, UnsupportedError with every
    operator that has no counterpart.
    """
    graph = from_bytes(_bytes(path), str(Path(path)))
    if any(has(node.op, Trait.QUANTIZES) and node.op != "DequantizeLinear" for node in graph.nodes):
        progress.note(
            f"{path}: read in the meaning 'exact': every result is rounded once, from the exact "
            "number; runtimes of TensorFlow Lite round several times, and single codes of theirs "
            "differ"
        )
    return cut(graph, part)


@ledger.load()
def load_same(
    path: str | os.PathLike[str], runtime: str = NEWEST, end_at: Sequence[str] = ()
) -> Graph:
    """The integer graph of an int8 TensorFlow Lite file with the bits of a runtime, in every tensor
    (the meaning `tflite`).

    runtime: a name of `same.versions.RUNTIMES`. end_at: names of the tensors that are the outputs;
    (): those of the file. Errors as `load`, UnsupportedError also for operators whose bits are not
    known here.
    """
    source = str(Path(path))
    return import_same(parse(_bytes(path), source), source, runtime, end_at)


def _bytes(path: str | os.PathLike[str]) -> bytes:
    """The bytes of a file. Raises InputError."""
    advice = f"give the path of a {SUFFIX} file"
    try:
        return read(path, MAX_FILE)
    except FileNotFoundError:
        raise InputError(
            f"{path}: expected a {SUFFIX} file, found no such file; {advice}"
        ) from None
    except (OSError, ValueError) as error:  # ValueError: a null character in the path
        raise InputError(f"{path}: expected a readable file, found {error}; {advice}") from None


def from_bytes(data: bytes, source: str) -> Graph:
    """The real graph of a file's bytes. source: what messages call it. Errors as `load`."""
    return import_file(parse(data, source), source)
