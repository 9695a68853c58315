"""Data as the bytes of a TensorFlow Lite file: the same bytes for the same data, on any machine.

A file is laid out front to back: a table's layout, the table, then what it refers to. Equal arrays
are stored once.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any

import numpy as np

from samebits.tflite.file import Array, File, LiteOperator, Subgraph, Tensor
from samebits.tflite.schema import (
    CUSTOM,
    IDENTIFIER,
    OPERATORS,
    OPTIONS,
    OPTIONS_OF,
    SHORT_MOST,
    TABLES,
    TYPES,
    UNKNOWN,
    VERSION,
    Fields,
)

_NUMBERS = {name: number for number, name in OPERATORS.items()}
_TYPES = {name: number for number, name in TYPES.items()}
ALIGNMENT = 16  # of data, by which a runtime may read it in place

Codes = dict[tuple[str, int], int]  # (operator, version) -> number of its code
Buffers = dict[bytes, int]  # data -> number of its buffer


def to_bytes(file: File) -> bytes:
    """The bytes of a file that `reader.parse` reads as this data.

    Raises KeyError for an operator or a type that the format has not.
    """
    codes: Codes = {}
    buffers: Buffers = {b"": 0}
    graphs = [_subgraph(graph, codes, buffers) for graph in file.subgraphs]
    texts = [
        {"name": name, "buffer": buffers.setdefault(text.encode(), len(buffers))}
        for name, text in sorted(file.metadata.items())
    ]
    model = {
        "version": VERSION,
        "operator_codes": [_code(*code) for code in codes],
        "subgraphs": graphs,
        "description": file.description or None,
        "buffers": [{"data": data or None} for data in buffers],
        "metadata": texts or None,
    }
    writer = _Writer()
    root = writer.table(TABLES["Model"], model)
    struct.pack_into("<I4s", writer.out, 0, root, IDENTIFIER)
    return bytes(writer.out)


def _code(op: str, version: int) -> Mapping[str, Any]:
    name, _, custom = op.partition(" ")
    number = int(custom) if name == UNKNOWN else _NUMBERS[name]
    found: dict[str, Any] = {"short_code": min(number, SHORT_MOST), "version": version}
    if number >= SHORT_MOST:
        found["code"] = number
    return {**found, "custom_code": custom} if name == CUSTOM else found


def _subgraph(graph: Subgraph, codes: Codes, buffers: Buffers) -> Mapping[str, Any]:
    return {
        "tensors": [_tensor(tensor, buffers) for tensor in graph.tensors],
        "inputs": graph.inputs,
        "outputs": graph.outputs,
        "operators": [_operator(operator, codes) for operator in graph.operators],
        "name": graph.name or None,
    }


def _tensor(tensor: Tensor, buffers: Buffers) -> Mapping[str, Any]:
    """The fields of a tensor; its data becomes a buffer, where no other holds it already."""
    data = b"" if tensor.array is None else _stored(tensor.array, tensor.dtype)
    found: dict[str, Any] = {
        "shape": tensor.shape,
        "type": _TYPES[tensor.dtype],
        "buffer": buffers.setdefault(data, len(buffers)),
        "name": tensor.name,
        "is_variable": tensor.variable or None,
    }
    quantization = tensor.quantization
    if quantization is not None:
        found["quantization"] = {
            "scale": quantization.scales,
            "zero_point": quantization.zero_points,
            "axis": quantization.axis or None,
        }
    return found


def _stored(array: Array, dtype: str) -> bytes:
    if dtype != "int4":
        return np.ascontiguousarray(array, np.dtype(dtype).newbyteorder("<")).tobytes()
    codes = np.append(array.reshape(-1), np.zeros(array.size % 2, np.int8)).astype(np.uint8) & 15
    return (codes[::2] | codes[1::2] << 4).tobytes()


def _operator(operator: LiteOperator, codes: Codes) -> Mapping[str, Any]:
    code = codes.setdefault((operator.op, operator.version), len(codes))
    found: dict[str, Any] = {
        "opcode": code,
        "inputs": operator.inputs,
        "outputs": operator.outputs,
    }
    if operator.op in OPTIONS_OF:
        number, fields = OPTIONS[OPTIONS_OF[operator.op]]
        found |= {"options_type": number, "options": (fields, operator.options)}
    return found


class _Writer:
    def __init__(self) -> None:
        self.out = bytearray(8)  # the distance to the first table, and the format's identifier

    def align(self, size: int, after: int = 0) -> None:
        """Zeros, until what follows `after` bytes more lies at a multiple of `size`."""
        self.out += bytes(-(len(self.out) + after) % size)

    def table(self, fields: Fields, values: Mapping[str, Any]) -> int:
        """Write a table without its fields that are None; its place."""
        stored = [
            (field.number, field.kind, values[name])
            for name, field in fields.items()
            if values.get(name) is not None
        ]
        layout = 4 + 2 * (1 + max((number for number, _, _ in stored), default=-1))
        self.align(2)
        start = len(self.out)
        self.out += bytes(layout)
        self.align(8, 4)  # the first field may be one of 8 bytes
        place = len(self.out)
        self.out += struct.pack("<i", place - start)
        later = []
        for number, kind, value in sorted(stored, key=lambda field: -_size(field[1])):
            struct.pack_into("<H", self.out, start + 4 + 2 * number, len(self.out) - place)
            if _elsewhere(kind):
                later.append((len(self.out), kind, value))
                self.out += bytes(4)
            else:
                self.out += struct.pack("<" + kind, value)
        struct.pack_into("<HH", self.out, start, layout, len(self.out) - place)
        for slot, kind, value in later:
            self.point(slot, self.reference(kind, value))
        return place

    def point(self, slot: int, place: int) -> None:
        """Store the distance from `slot` to a place behind it."""
        struct.pack_into("<I", self.out, slot, place - slot)

    def reference(self, kind: str, value: Any) -> int:
        """Write what a field refers to; its place."""
        if kind == "U":
            return self.table(*value)
        if kind.startswith("T:"):
            return self.table(TABLES[kind[2:]], value)
        if kind.startswith("[T:"):
            place = self.vector("I", [0] * len(value))
            for index, item in enumerate(value):
                self.point(place + 4 + 4 * index, self.table(TABLES[kind[3:]], item))
            return place
        if kind == "s":
            place = self.vector("B", value.encode())
            self.out += b"\0"
            return place
        return self.vector(kind[1], value)

    def vector(self, letter: str, values: Any) -> int:
        """Write a count and numbers; its place."""
        size = ALIGNMENT if isinstance(values, bytes) else struct.calcsize("<" + letter)
        self.align(max(4, size), 4)
        place = len(self.out)
        self.out += struct.pack("<I", len(values))
        if isinstance(values, bytes):
            self.out += values
        else:
            self.out += struct.pack(f"<{len(values)}{letter}", *values)
        return place


def _elsewhere(kind: str) -> bool:
    """Whether a field of this kind holds a distance."""
    return kind[0] in "T[sU"


def _size(kind: str) -> int:
    return 4 if _elsewhere(kind) else struct.calcsize("<" + kind)
