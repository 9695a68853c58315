"""Traces of a model's layers as files, and the audit that finds where two of them part."""

from __future__ import annotations

import base64
import json
import math
import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from samebits.entrance import read
from samebits.errors import InputError
from samebits.ir.integer.layers import layers
from samebits.model import Model
from samebits.verification.backend import TracedValue

Array = np.ndarray[Any, Any]
FORMAT = "samebits-trace-1"
LARGEST_FILE = 1 << 30
AXES_MAX, ELEMENTS_MAX = 32, 1 << 28
SHOWN = 5


@dataclass(frozen=True)
class Parting:
    """The first place where two traces differ.

    elements:  (index, code in A, code in B) of the first few, where both files hold codes
    differing: number of elements that differ there, or None where a file holds no codes
    """

    run: int
    layer: str
    hashes: tuple[str, str]
    elements: tuple[tuple[tuple[int, ...], int, int], ...] = ()
    differing: int | None = None

    def to_dict(self) -> dict[str, Any]:
        """As JSON data."""
        return dict(vars(self))

    def lines(self, a: str, b: str) -> list[str]:
        """The place in words, for traces called `a` and `b`."""
        lines = [
            f"run {self.run}: layer {self.layer!r} differs: {self.hashes[0]} in {a}, "
            f"{self.hashes[1]} in {b}",
            *(f"  {list(index)}: {left} != {right}" for index, left, right in self.elements),
        ]
        if self.differing is not None:
            lines.append(f"{self.differing} elements of this layer differ")
        return lines


def layer_records(model: Model, runs: Sequence[Sequence[TracedValue]]) -> list[dict[str, Any]]:
    """Name, operator, type and shape of every traced value: of firmware, of its first run."""
    if model.firmware is not None:
        values = [(value.name, value.codes) for value in (runs[0] if runs else ())]
        return [
            {"name": name, "op": "chain", "dtype": codes.dtype.name, "shape": list(codes.shape)}
            for name, codes in values
            if codes is not None
        ]
    graph = model.integer
    operators = {output: node.op for node in graph.nodes for output in node.outputs}
    return [
        {
            "name": name,
            "op": operators[name],
            "dtype": graph.values[name].dtype,
            "shape": list(graph.values[name].shape),
        }
        for name in layers(graph)
    ]


def to_record(
    model: Model, source: str, backend: str, runs: Sequence[Sequence[TracedValue]]
) -> dict[str, Any]:
    """A trace as JSON data: the hash of every value in every run, and its codes where known."""
    record: dict[str, Any] = {
        "format": FORMAT,
        "model": source,
        "backend": backend,
        "layers": layer_records(model, runs),
        "runs": [[f"{value.hash:016x}" for value in run] for run in runs],
    }
    if all(value.codes is not None for run in runs for value in run):
        record["codes"] = [[_packed(value.codes) for value in run] for run in runs]
    return record


def _packed(codes: Array | None) -> str:
    assert codes is not None
    little = codes.astype(codes.dtype.newbyteorder("<"))
    return base64.b64encode(zlib.compress(little.tobytes(), 6)).decode()


def read_trace(path: Path) -> dict[str, Any]:
    """The trace in an untrusted file, checked. Raises InputError."""
    data = read(path, LARGEST_FILE, "trace fewer samples")
    try:
        record = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: expected a trace in JSON, found: {error}") from None
    problem = _problem(record)
    if problem:
        raise InputError(
            f"{path}: {problem}; make a trace with: samebits trace MODEL --data X.npz --out FILE"
        )
    assert isinstance(record, dict)
    return record


def _problem(record: object) -> str | None:
    """The first way in which JSON data is no trace, None if it is one."""
    expected = f"expected a trace of format {FORMAT!r} of samebits, found"
    if not isinstance(record, Mapping):
        return f"{expected} {type(record).__name__}"
    if record.get("format") != FORMAT:
        return f"{expected} {record.get('format')!r:.60}"
    entries, runs, codes = (record.get(key) for key in ("layers", "runs", "codes"))
    if not isinstance(entries, list) or not all(_is_layer(entry) for entry in entries):
        return "expected a list of layers with name, dtype and shape"
    for key, table, known in (("runs", runs, _is_hash), ("codes", codes, _is_text)):
        if key == "codes" and key not in record:
            continue
        good = isinstance(table, list) and all(
            isinstance(run, list) and len(run) == len(entries) and all(map(known, run))
            for run in table
        )
        if not good:
            return f"expected in {key!r} one text per layer and run"
    if codes is not None and len(codes) != len(runs or []):
        return "expected as many runs in 'codes' as in 'runs'"
    return None


def _is_hash(text: object) -> bool:
    return isinstance(text, str) and re.fullmatch("[0-9a-f]{16}", text) is not None


def _is_text(text: object) -> bool:
    return isinstance(text, str)


def _is_layer(entry: object) -> bool:
    if not isinstance(entry, Mapping):
        return False
    shape, dtype = entry.get("shape"), entry.get("dtype")
    return (
        type(entry.get("name")) is str
        and dtype in ("int8", "uint8", "int16", "uint16", "int32", "int64")
        and isinstance(shape, list)
        and len(shape) <= AXES_MAX
        and all(type(size) is int and 0 <= size <= ELEMENTS_MAX for size in shape)
        and math.prod(shape) <= ELEMENTS_MAX
    )


def first_parting(a: Mapping[str, Any], b: Mapping[str, Any]) -> Parting | None:
    """The first run and layer whose hashes differ; None if the traces are equal.

    Raises InputError for traces of different models or numbers of runs.
    """
    names = [[entry["name"] for entry in record["layers"]] for record in (a, b)]
    if names[0] != names[1]:
        index = next(
            (i for i, pair in enumerate(zip(*names, strict=False)) if pair[0] != pair[1]),
            min(map(len, names)),
        )
        found = [repr(n[index]) if index < len(n) else "nothing" for n in names]
        raise InputError(
            f"expected two traces of one model, found {found[0]} and {found[1]} as layer {index}"
        )
    if len(a["runs"]) != len(b["runs"]):
        raise InputError(
            f"expected two traces of the same inputs, found {len(a['runs'])} and {len(b['runs'])} "
            "runs"
        )
    for run, pair in enumerate(zip(a["runs"], b["runs"], strict=True)):
        for index, hashes in enumerate(zip(*pair, strict=True)):
            if hashes[0] != hashes[1]:
                return _parting(a, b, run, index, hashes)
    return None


def _parting(
    a: Mapping[str, Any], b: Mapping[str, Any], run: int, index: int, hashes: tuple[str, str]
) -> Parting:
    entry = a["layers"][index]
    if "codes" not in a or "codes" not in b:
        return Parting(run, entry["name"], hashes)
    left, right = (_unpacked(entry, record["codes"][run][index]) for record in (a, b))
    places = np.argwhere(left != right)
    elements = tuple(
        (tuple(int(i) for i in place), int(left[tuple(place)]), int(right[tuple(place)]))
        for place in places[:SHOWN]
    )
    return Parting(run, entry["name"], hashes, elements, len(places))


def _unpacked(entry: Mapping[str, Any], text: str) -> Array:
    dtype = np.dtype(entry["dtype"]).newbyteorder("<")
    size = math.prod(entry["shape"]) * dtype.itemsize
    try:
        reader = zlib.decompressobj()
        data = reader.decompress(base64.b64decode(text, validate=True), size + 1)
    except (ValueError, zlib.error) as error:
        raise InputError(f"layer {entry['name']!r}: damaged codes in the trace: {error}") from None
    if len(data) != size:
        raise InputError(
            f"layer {entry['name']!r}: expected {size} bytes of codes in the trace, found another "
            "number"
        )
    return np.frombuffer(data, dtype).reshape(entry["shape"])
