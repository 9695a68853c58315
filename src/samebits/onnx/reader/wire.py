"""A check of the bytes of an ONNX file before protobuf builds objects from them.

The parser turns two bytes of file into an object of a hundred bytes, and a varint of one byte into
eight. The scan walks the same fields without storing anything, and refuses a file whose parsed form
would be out of proportion, cut short, or nested without end.
"""

from __future__ import annotations

from typing import Any

import onnx
from google.protobuf.descriptor import FieldDescriptor  # type: ignore[import-untyped]

from samebits.errors import InputError

MAX_OBJECTS = 2**20  # messages and strings
MAX_FIELDS = 2**22
MAX_VARINT_BYTES = 2**26  # of packed integers: eight times as much in memory
MAX_DEPTH = 64  # protobuf's own limit is 100

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_WIRE_VARINT, _WIRE_MESSAGE, _WIRE_TEXT, _WIRE_BYTES, _WIRE_FIXED = range(5)
_KINDS = {
    FieldDescriptor.TYPE_MESSAGE: _WIRE_MESSAGE,
    FieldDescriptor.TYPE_STRING: _WIRE_TEXT,
    FieldDescriptor.TYPE_BYTES: _WIRE_BYTES,
    FieldDescriptor.TYPE_FLOAT: _WIRE_FIXED,
    FieldDescriptor.TYPE_DOUBLE: _WIRE_FIXED,
}


def scan(data: bytes, source: str) -> None:
    """Walk the fields of a serialized ModelProto.

    Raises InputError where the bytes end inside a field, are no protobuf, or exceed a limit.
    """
    _Scan(data, source).run()


class _Scan:
    def __init__(self, data: bytes, source: str) -> None:
        self.data = data
        self.source = source
        self.objects = self.fields = self.varint_bytes = 0
        self.plans: dict[str, dict[int, tuple[int, Any]]] = {}

    def run(self) -> None:
        """Walk all fields of the outermost message and of the messages in it; see `scan`.

        A stack instead of recursion: a message is entered at once, and the rest of the message
        around it waits below.
        """
        # (position, end, message descriptor or None for a message without further messages)
        stack: list[tuple[int, int, Any]] = [(0, len(self.data), onnx.ModelProto.DESCRIPTOR)]
        while stack:
            position, end, message = stack.pop()
            if position == end:
                continue
            position, number, wire = self.tag(position, end)
            kind, inner = self.plan(message).get(number, (_WIRE_VARINT, None))
            if wire == _BYTES:
                length, start = self.varint(position, end)
                if length > end - start:
                    self.fail(
                        f"{length} bytes of field {number} of {message.name}",
                        f"{end - start} bytes",
                        position,
                    )
                stack.append((start + length, end, message))
                self.count(kind, length)
                if kind == _WIRE_TEXT:
                    self.text(start, length)
                if kind == _WIRE_MESSAGE:
                    if len(stack) > MAX_DEPTH:
                        self.fail(f"at most {MAX_DEPTH} nested messages", "more", position)
                    stack.append((start, start + length, inner))
                continue
            if wire == _VARINT:
                _, position = self.varint(position, end)
            elif wire in (_FIXED32, _FIXED64):
                position += 4 if wire == _FIXED32 else 8
                if position > end:
                    self.fail("a number", "the end of the data", end)
            else:
                self.fail("a field of a known wire type", f"wire type {wire}", position)
            stack.append((position, end, message))

    def tag(self, position: int, end: int) -> tuple[int, int, int]:
        self.fields += 1
        if self.fields > MAX_FIELDS:
            self.fail(f"at most {MAX_FIELDS} fields", "more", position)
        key, position = self.varint(position, end)
        if not 0 < key >> 3 < 2**29:
            self.fail("a field number from 1 to 2**29 - 1", str(key >> 3), position)
        return position, key >> 3, key & 7

    def varint(self, position: int, end: int) -> tuple[int, int]:
        value = shift = 0
        while position < end and shift < 70:
            byte = self.data[position]
            position += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value, position
            shift += 7
        self.fail("a number of at most ten bytes", "no end of it", position)
        raise AssertionError  # unreachable: fail raises

    def count(self, kind: int, length: int) -> None:
        if kind in (_WIRE_MESSAGE, _WIRE_TEXT, _WIRE_BYTES):
            self.objects += 1
            if self.objects > MAX_OBJECTS:
                self.fail(f"at most {MAX_OBJECTS} messages and strings", "more", 0)
        elif kind == _WIRE_VARINT:
            self.varint_bytes += length
            if self.varint_bytes > MAX_VARINT_BYTES:
                self.fail(
                    f"at most {MAX_VARINT_BYTES} bytes of packed integers outside raw data",
                    "more",
                    0,
                )

    def text(self, start: int, length: int) -> None:
        # The parser lets other bytes through, as bytes instead of text.
        try:
            self.data[start : start + length].decode("utf-8")
        except UnicodeDecodeError:
            self.fail("text in UTF-8", "other bytes", start)

    def plan(self, message: Any) -> dict[int, tuple[int, Any]]:
        """Kind of each field of a message type, and the type of the messages in it."""
        name = message.full_name
        if name not in self.plans:
            self.plans[name] = {
                field.number: (_KINDS.get(field.type, _WIRE_VARINT), field.message_type)
                for field in message.fields
            }
        return self.plans[name]

    def fail(self, expected: str, found: str, position: int) -> None:
        """Raise the InputError of this scan."""
        raise InputError(
            f"{self.source}: not a readable ONNX file: expected {expected}, found {found}, "
            f"at byte {position} of {len(self.data)}; export the model again or copy it whole"
        )
