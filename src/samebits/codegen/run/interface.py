"""The interface of a generated package: the bytes of its inputs and outputs, and the C that ties a
harness to it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from samebits.entrance import read
from samebits.errors import InputError, SamebitsError, UnsupportedError
from samebits.ir.graph import Graph
from samebits.ir.value import Value

Array = np.ndarray[Any, Any]
DTYPES = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")
REPORT = "report.json"
FORMAT = "samebits-package-2"  # of a folder of generated C: its files, names and report
MAX_BYTES = 1 << 31  # of one tensor
LARGEST_REPORT = 1 << 26  # bytes
_PREFIX = re.compile(r"[A-Za-z][A-Za-z0-9_]*")


@dataclass(frozen=True)
class Interface:
    """The prefix of a package's C names, and its inputs and outputs in order.

    UnsupportedError: a tensor that holds no integers, or no elements.
    """

    prefix: str
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]

    def __post_init__(self) -> None:
        if not _PREFIX.fullmatch(self.prefix):
            raise InputError(f"expected a C identifier as prefix, found {self.prefix!r}")
        if not self.inputs or not self.outputs:
            raise UnsupportedError("expected a graph with an input and an output")
        for value in (*self.inputs, *self.outputs):
            if value.dtype not in DTYPES or value.size < 1:
                raise UnsupportedError(f"expected integers at inputs and outputs, found {value}")
            if _bytes(value) > MAX_BYTES:
                raise UnsupportedError(f"expected at most {MAX_BYTES} bytes, found {value}")

    @staticmethod
    def of(graph: Graph, prefix: str = "model") -> Interface:
        """The interface of the package generated from an integer graph."""
        return Interface(
            prefix,
            tuple(graph.values[name] for name in graph.inputs),
            tuple(graph.values[name] for name in graph.outputs),
        )

    @staticmethod
    def read(folder: Path) -> Interface:
        """The interface that the report of a generated package states; InputError without one."""
        report = read_report(folder)
        try:
            inputs = tuple(_described(item) for item in report["inputs"])
            outputs = tuple(_described(item) for item in report["outputs"])
            prefix = str(report["prefix"])
        except (ValueError, KeyError, TypeError) as error:
            raise _unreadable(folder, error) from error
        try:
            return Interface(prefix, inputs, outputs)
        except (InputError, UnsupportedError) as error:
            raise type(error)(f"{folder / REPORT}: {error}; generate the C again") from None

    def pack(self, inputs: Sequence[Array]) -> tuple[bytes, int]:
        """The bytes of all runs and their number. Axis 0 of each array is a multiple of the
        graph's (for a scalar input, the runs); InputError where arrays do not fit."""
        if len(inputs) != len(self.inputs):
            raise InputError(f"expected {len(self.inputs)} input arrays, found {len(inputs)}")
        parts = []
        for value, array in zip(self.inputs, inputs, strict=True):
            step = value.shape[0] if value.shape else 1
            if (
                array.dtype.name != value.dtype
                or array.ndim != max(len(value.shape), 1)
                or array.shape[1:] != value.shape[1:]
                or array.shape[0] % step
            ):
                shape = ", ".join(map(str, (f"a multiple of {step}", *value.shape[1:])))
                raise InputError(
                    f"input {value.name}: expected {value.dtype}[{shape}], found "
                    f"{array.dtype.name}{list(array.shape)}"
                )
            little = np.dtype(value.dtype).newbyteorder("<")
            codes = np.ascontiguousarray(array, dtype=little)
            parts.append(codes.view(np.uint8).reshape(array.shape[0] // step, _bytes(value)))
        runs = {len(part) for part in parts}
        if len(runs) > 1:
            raise InputError(f"expected inputs of one number of samples, found {sorted(runs)}")
        return np.concatenate(parts, axis=1).tobytes(), runs.pop()

    def unpack(self, data: bytes, runs: int, where: str) -> list[Array]:
        """The output arrays from the bytes of all runs; SamebitsError for another number of
        bytes, with `where` in the message."""
        sizes = [_bytes(value) for value in self.outputs]
        if len(data) != runs * sum(sizes):
            raise SamebitsError(
                f"{where}: expected {runs * sum(sizes)} bytes of output from {runs} runs, found "
                f"{len(data)}"
            )
        table = np.frombuffer(data, np.uint8).reshape(runs, sum(sizes))
        arrays = []
        for value, part in zip(self.outputs, _split(table, sizes), strict=True):
            little = np.ascontiguousarray(part).view(np.dtype(value.dtype).newbyteorder("<"))
            step = value.shape[:1] or (1,)
            shape = (runs * step[0], *value.shape[1:])
            arrays.append(little.astype(value.dtype).reshape(shape))
        return arrays

    def glue(self) -> str:
        """A C header with buffers for every input and output, LAYER_COUNT, and `run_model`, which
        runs the model on them. It does not compile where the package's types have other widths
        than these."""
        lines = [f'#include "{self.prefix}.h"', f"#define samebits_trace {self.prefix}_trace", ""]
        groups = (("input", self.inputs), ("output", self.outputs))
        names = []
        for kind, values in groups:
            for index, value in enumerate(values):
                name, width = f"{kind}{index}", np.dtype(value.dtype).itemsize
                names.append(name)
                ctype = f"{self.prefix}_{name}_t"
                lines.append(f"typedef char check_{name}[sizeof({ctype}) == {width} ? 1 : -1];")
                lines.append(f"static {ctype} {name}[{value.size}];")
        lines += ["", "typedef struct {", "    void *data;", "    uint32_t bytes;", "} buffer;", ""]
        for kind, values in groups:
            lines.append(f"#define {kind.upper()}_COUNT {len(values)}u")
            items = ", ".join(f"{{{kind}{i}, sizeof {kind}{i}}}" for i in range(len(values)))
            lines.append(f"static const buffer {kind}s[] = {{{items}}};")
        lines += ["", f"#define LAYER_COUNT {self.prefix.upper()}_LAYERS"]
        lines += [f"{self.prefix.upper()}_INSTANCE(net);", "static void run_model(void)", "{"]
        lines += [f"    {self.prefix}_run({', '.join(('&net', *names))});", "}", ""]
        return "\n".join(lines)


def read_report(folder: Path) -> dict[str, Any]:
    """The report of a generated package, an untrusted file, as JSON data.

    Raises InputError where there is none, or one of another format.
    """
    try:
        advice = "generate the C again"
        data = read(folder / REPORT, LARGEST_REPORT, advice, within=folder)
    except OSError as error:
        raise _unreadable(folder, error) from error
    return parse_report(data, folder)


def parse_report(data: bytes, folder: Path) -> dict[str, Any]:
    """The same of the bytes of a report."""
    try:
        if len(data) > LARGEST_REPORT:
            raise ValueError(f"more than {LARGEST_REPORT} bytes")
        report = json.loads(data.decode(), object_pairs_hook=_distinct)
        if not isinstance(report, dict):
            raise ValueError(f"{type(report).__name__} instead of an object")
    except (ValueError, RecursionError) as error:
        raise _unreadable(folder, error) from error
    found = report.get("format")
    if found != FORMAT:
        raise InputError(
            f"{folder / REPORT}: expected format {FORMAT!r} of samebits, found {found!r:.60}; "
            "generate the C again: samebits compile MODEL --target c --out DIR"
        )
    return report


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of JSON; ValueError where two of its fields have one name."""
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the field {twice!a:.60} twice")
    return found


def _unreadable(folder: Path, error: Exception) -> InputError:
    return InputError(
        f"{folder / REPORT}: expected the report of a package of generated C, found none that can "
        f"be read ({error}); make one with: samebits compile MODEL --target c --out DIR"
    )


def _described(item: Mapping[str, Any]) -> Value:
    """A tensor of the report; ValueError, KeyError or TypeError if it is none."""
    name, dtype, shape = item["name"], item["dtype"], item["shape"]
    if not all(isinstance(size, int) and size >= 0 for size in shape):
        raise ValueError(f"expected a shape, found {shape!r}")
    return Value(str(name), str(dtype), tuple(shape))


def _bytes(value: Value) -> int:
    return value.size * np.dtype(value.dtype).itemsize


def _split(table: Array, sizes: Sequence[int]) -> list[Array]:
    return np.split(table, np.cumsum(sizes)[:-1], axis=1)
