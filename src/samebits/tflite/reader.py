"""The bytes of a TensorFlow Lite file as data; an untrusted file.

A file is a tree of tables: each begins with the distance to its layout, which says at which
distance each of its fields lies; vectors, texts and tables lie elsewhere, at distances too. Every
distance is followed inside the file alone. The tables nest as `schema.TABLES` does, a few levels
deep, so no distance can lead around in a circle; what many distances share is charged to the
ledger as often as it is read.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

import numpy as np

from samebits import ledger
from samebits.errors import InputError, UnsupportedError
from samebits.tflite.file import Array, File, LiteOperator, Scaling, Subgraph, Tensor
from samebits.tflite.schema import (
    CUSTOM,
    IDENTIFIER,
    OPAQUE,
    OPERATORS,
    OPTIONS,
    OPTIONS_OF,
    OWN,
    TABLES,
    TYPES,
    UNKNOWN,
    VERSION,
    Fields,
)

MAX_ELEMENTS = 2**28  # of one tensor
MAX_RANK = 32
MAX_NAME = 2**16  # bytes of a text
MAX_METADATA = 2**20
MAX_INPUTS = 2**12  # of one operator
TABLE_BYTES = 2048  # that a table takes in memory
INDEX_BYTES = 64  # that a number takes as an object of Python
ADVICE = "copy the file whole or convert the model again"

Found = dict[str, Any]  # the fields of a table
_PLAIN: Mapping[str, Callable[[int], Any]] = {"?": bool, "f": float}  # defaults of kinds


def parse(data: bytes, source: str) -> File:
    """Read the bytes of a file. source: what messages call it.

    Raises InputError for bytes that are no such file, that end inside of one, or that contradict
    themselves; UnsupportedError for tensors stored in a form that is not read.
    """
    return _Reader(data, source).file()


class _Reader:
    def __init__(self, data: bytes, source: str) -> None:
        self.data = data
        self.source = source
        self.place: list[str] = []  # the fields on the way to the one that is read

    def file(self) -> File:
        """Read the whole file, from its identifier on."""
        data = self.data
        if len(data) < 8 or data[4:8] != IDENTIFIER:
            found = repr(data[4:8])[1:] if len(data) >= 8 else f"{len(data)} bytes"
            raise InputError(
                f"{self.source}: expected a TensorFlow Lite file, which has 'TFL3' at byte 4, "
                f"found {found}; {ADVICE}"
            )
        model = self.table(self.follow(0), TABLES["Model"])
        if model["version"] != VERSION:
            self.fail(f"version {VERSION} of the format", str(model["version"]))
        if not model["subgraphs"]:
            self.fail("a subgraph", "none")
        graphs = []
        for index, graph in enumerate(model["subgraphs"]):
            self.place = [f"subgraph {index}"]
            graphs.append(self.subgraph(graph, model))
        self.place = ["metadata"]
        return File(tuple(graphs), model["description"], self.metadata(model))

    # --- tables -------------------------------------------------------------------------------

    def number(self, at: int, letter: str) -> Any:
        size = struct.calcsize("<" + letter)
        if not 0 <= at <= len(self.data) - size:
            self.fail(f"{size} bytes at byte {at}", f"a file of {len(self.data)} bytes")
        return struct.unpack_from("<" + letter, self.data, at)[0]

    def follow(self, at: int) -> int:
        """The place that the distance at `at` leads to."""
        return at + int(self.number(at, "I"))

    def vector(self, at: int, letter: str) -> Array:
        """A view of the numbers of a vector."""
        start = self.follow(at)
        count, size = self.number(start, "I"), struct.calcsize("<" + letter)
        left = len(self.data) - start - 4
        if count * size > left:
            self.fail(f"a vector of {count} x {size} bytes", f"{left} bytes to the file's end")
        return np.frombuffer(self.data, f"<{letter}", count, start + 4)

    def text(self, at: int) -> str:
        raw = self.vector(at, "B")
        if len(raw) > MAX_NAME:
            self.fail(f"a text of at most {MAX_NAME} bytes", f"one of {len(raw)}")
        self.charge(len(raw))
        return raw.tobytes().decode("utf-8", "backslashreplace")

    def table(self, at: int, fields: Fields) -> Found:
        """The fields of the table at `at`, those that it leaves out with their defaults."""
        self.charge(TABLE_BYTES)
        layout = at - self.number(at, "i")
        length = self.number(layout, "H") if layout >= 0 else 0
        if length < 4 or length % 2 or layout + length > len(self.data):
            self.fail(f"the layout of the table at byte {at}", f"none at byte {layout}")
        found: Found = {}
        for name, field in fields.items():
            slot = 4 + 2 * field.number
            offset = self.number(layout + slot, "H") if slot + 2 <= length else 0
            self.place.append(name)
            found[name] = self.value(at + offset if offset else 0, field.kind, field.default)
            self.place.pop()
        return found

    def value(self, at: int, kind: str, default: int) -> Any:
        """Read what lies at `at`; 0, where no table begins, stands for the default of the kind."""
        if kind == "s":
            return self.text(at) if at else ""
        if kind == "U":
            return self.follow(at) if at else 0
        if kind.startswith("T:"):
            return self.table(self.follow(at), TABLES[kind[2:]]) if at else None
        if kind.startswith("[T:"):
            return self.tables(at, TABLES[kind[3:]]) if at else []
        if kind[0] == "[":
            return self.vector(at, kind[1]) if at else np.empty(0, f"<{kind[1]}")
        return self.number(at, kind) if at else _PLAIN.get(kind, int)(default)

    def tables(self, at: int, fields: Fields) -> list[Found]:
        start = self.follow(at)
        found = []
        for index in range(len(self.vector(at, "I"))):
            self.place.append(str(index))
            found.append(self.table(self.follow(start + 4 + 4 * index), fields))
            self.place.pop()
        return found

    def charge(self, size: int) -> None:
        ledger.keep(size, self.source)

    # --- meaning ------------------------------------------------------------------------------

    def metadata(self, model: Found) -> dict[str, str]:
        """The texts of this project, by name."""
        found, buffers = {}, model["buffers"]
        for entry in model["metadata"]:
            if entry["name"].startswith(OWN):
                if entry["buffer"] >= len(buffers):
                    self.fail(f"a buffer below {len(buffers)}", str(entry["buffer"]))
                raw = bytes(self.buffer(buffers[entry["buffer"]])[: MAX_METADATA + 1])
                if len(raw) > MAX_METADATA:
                    self.fail(f"a text of at most {MAX_METADATA} bytes", "a longer one")
                self.charge(len(raw))
                found[entry["name"]] = raw.decode("utf-8", "backslashreplace")
        return found

    def subgraph(self, graph: Found, model: Found) -> Subgraph:
        tensors = []
        for index, tensor in enumerate(graph["tensors"]):
            self.place[1:] = [f"tensor {index}"]
            tensors.append(self.tensor(tensor, model["buffers"]))
        operators = []
        for index, operator in enumerate(graph["operators"]):
            self.place[1:] = [f"operator {index}"]
            operators.append(self.operator(operator, model["operator_codes"], len(tensors)))
        del self.place[1:]
        inputs, outputs = (
            self.indices(graph[key], key, 0, len(tensors)) for key in ("inputs", "outputs")
        )
        return Subgraph(tuple(tensors), tuple(operators), inputs, outputs, graph["name"])

    def indices(self, values: Array, what: str, least: int, count: int) -> tuple[int, ...]:
        """Numbers of tensors, from `least` and below `count`."""
        if len(values) > max(count, MAX_INPUTS):
            self.fail(f"at most {max(count, MAX_INPUTS)} {what}", f"{len(values)}")
        self.charge(INDEX_BYTES * len(values))
        numbers = tuple(values.tolist())
        for number in numbers:
            if not least <= number < count:
                self.fail(f"numbers of tensors below {count} as {what}", str(number))
        return numbers

    def tensor(self, found: Found, buffers: Sequence[Found]) -> Tensor:
        """Check a tensor, and view the bytes of its buffer as its array."""
        name, dtype = found["name"], TYPES.get(found["type"])
        if dtype is None:
            self.refuse(f"a type from 0 to {max(TYPES)}", f"type {found['type']} of {name!r}")
        if found["sparsity"] is not None:
            self.refuse("dense tensors", f"the sparse tensor {name!r}")
        shape = self.shape(found["shape"])
        number = found["buffer"]
        if number >= max(len(buffers), 1):
            self.fail(f"a buffer below {len(buffers)}", str(number))
        array = None
        if dtype not in OPAQUE:
            raw = self.buffer(buffers[number]) if buffers else b""
            if len(raw) or (0 in shape and not found["is_variable"]):
                array = self.array(raw, dtype, shape)
        quantization = self.quantization(found["quantization"], name, dtype, shape)
        return Tensor(name, dtype, shape, array, quantization, found["is_variable"])

    def shape(self, sizes: Array) -> tuple[int, ...]:
        if len(sizes) > MAX_RANK:
            self.fail(f"at most {MAX_RANK} dimensions", str(len(sizes)))
        shape = tuple(sizes.tolist())
        count = math.prod(n or 1 for n in shape)  # a size of 0 hides no others
        if min(shape, default=0) < 0 or count > MAX_ELEMENTS:
            self.fail(f"a shape of at most {MAX_ELEMENTS} elements", str(list(shape)))
        return shape

    def buffer(self, found: Found) -> bytes | Array:
        """The bytes of a buffer; an offset from 2 says where in the file they lie."""
        start, size = found["offset"], found["size"]
        if start <= 1:
            data: Array = found["data"]
            return data
        if start + size > len(self.data):
            self.fail(f"a buffer of {size} bytes at byte {start}", f"{len(self.data)} bytes in all")
        return np.frombuffer(self.data, np.uint8, size, start)

    def array(self, raw: bytes | Array, dtype: str, shape: tuple[int, ...]) -> Array:
        count = math.prod(shape)
        kind = np.dtype("<u1" if dtype == "int4" else dtype).newbyteorder("<")
        size = -(-count // 2) if dtype == "int4" else count * kind.itemsize
        if len(raw) != size:
            self.fail(f"{size} bytes for {dtype} {list(shape)}", f"a buffer of {len(raw)}")
        if dtype != "int4":
            return np.frombuffer(raw, kind).reshape(shape)
        self.charge(4 * size)
        packed = np.frombuffer(raw, np.uint8)
        codes = np.stack([packed << 4, packed], -1).reshape(-1)[:count].view(np.int8) >> 4
        return codes.reshape(shape)

    def quantization(
        self, found: Found | None, name: str, dtype: str, shape: tuple[int, ...]
    ) -> Scaling | None:
        """Check the scales and zero points of a tensor; None where it has no scale."""
        if found is None:
            return None
        if found["details_type"]:
            self.refuse("one scale a tensor or a channel", f"another quantization of {name!r}")
        scales, zeros, axis = found["scale"], found["zero_point"], found["axis"]
        if not len(scales):
            return None
        along = shape[axis] if 0 <= axis < len(shape) else 1
        if len(scales) not in (1, along):
            self.fail(f"1 scale, or {along} along axis {axis}", str(len(scales)))
        if len(zeros) not in (0, 1, len(scales)):
            self.fail(f"1 zero point, or {len(scales)}", str(len(zeros)))
        if not bool(np.all(np.isfinite(scales) & (scales > 0))):
            self.fail("positive finite scales", f"others of {name!r}")
        self.charge(INDEX_BYTES * (len(scales) + len(zeros)))
        numbers = tuple(scales.tolist()), tuple(zeros.tolist()) or (0,)
        return Scaling(*numbers, axis if len(scales) > 1 else 0)

    def operator(self, found: Found, codes: Sequence[Found], tensors: int) -> LiteOperator:
        number = found["opcode"]
        if number >= len(codes):
            self.fail(f"an operator code below {len(codes)}", str(number))
        code = codes[number]
        value = max(code["short_code"], code["code"])
        op = OPERATORS.get(value, f"{UNKNOWN} {value}")
        if op == CUSTOM:
            op = f"{CUSTOM} {code['custom_code']}"
        inputs = self.indices(found["inputs"], "inputs", -1, tensors)
        outputs = self.indices(found["outputs"], "outputs", 0, tensors)
        options, place = self.options(op, found), self.place[1]
        return LiteOperator(op, inputs, outputs, options, code["version"], place)

    def options(self, op: str, found: Found) -> Mapping[str, Any]:
        if op not in OPTIONS_OF:
            return {}
        name = OPTIONS_OF[op]
        number, fields = OPTIONS[name]
        if not found["options_type"] or not found["options"]:
            return {key: self.value(0, field.kind, field.default) for key, field in fields.items()}
        if found["options_type"] != number:
            self.fail(f"the options {number} of {op}", str(found["options_type"]))
        return self.table(found["options"], fields)

    # --- errors -------------------------------------------------------------------------------

    def fail(self, expected: str, found: str) -> NoReturn:
        """Raise the InputError of a damaged file."""
        raise InputError(f"{self._where()}expected {expected}, found {found}; {ADVICE}")

    def refuse(self, expected: str, found: str) -> NoReturn:
        """Raise the UnsupportedError of a sound file that is not read."""
        raise UnsupportedError(f"{self._where()}expected {expected}, found {found}; convert it so")

    def _where(self) -> str:
        place = ", ".join(self.place)
        return f"{self.source}: {place}: " if place else f"{self.source}: "
