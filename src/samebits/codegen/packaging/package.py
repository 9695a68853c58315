"""Writes an integer graph as a folder of C: sources, harness, test vectors, Makefile, report."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from samebits.codegen import emit, stream
from samebits.codegen.blocks import step_blocks
from samebits.codegen.call_text import Tables
from samebits.codegen.lowering.lower import lower_to_calls
from samebits.codegen.memory import layout
from samebits.codegen.names import checked_prefix
from samebits.codegen.packaging.harness import HEADERS, main_source, makefile
from samebits.codegen.run.interface import FORMAT
from samebits.csrc import flat, source
from samebits.errors import InputError, UnsupportedError
from samebits.files import write_folder
from samebits.ir.graph import Array, Graph
from samebits.ir.integer.define import limits
from samebits.ir.interpreter import run, run_steps
from samebits.ir.value import Value
from samebits.spec.philox import philox4x32

REPORT = "report.json"
GENERATOR = "samebits"
# Of csrc/inference, in the order in which they become one file: what is static in one may be used
# in those after it.
KERNELS = (
    *("rescale.c", "codes_x86.c", "codes_avx2.c", "conv_band.c", "conv_x86.c", "panel_vnni.c"),
    *("panel_avx2.c", "conv_panels.c", "lanes_x86.c", "depthwise_x86.c", "conv_arm.c", "conv.c"),
    *("sums_x86.c",),
    *("elementwise.c", "products.c", "normalize.c", "scores.c", "resample.c", "trees.c", "move.c"),
    "sample.c",
)
DEFAULT_SAMPLES, DEFAULT_CODES = 4, 1 << 16


@dataclass(frozen=True)
class PackagedLayer:
    """One traced value: `index` in C, its name in the graph, type and shape."""

    index: int
    name: str
    op: str
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class PackageReport:
    """Memory that the package needs, in bytes, and the names that C text does not hold.

    format: the version of the package's files, names and report
    constants: tables in flash, code not counted. arena_bound: no plan needs less. stack: an upper
    bound of model_run and all it calls on Cortex-M. state: the struct of a step graph's states, of
    which model_step keeps those once more that are not written in place. block: memory of
    model_steps (not on Cortex-M).
    """

    generator: str
    format: str
    prefix: str
    target: str
    constants: int
    arena: int
    arena_bound: int
    scratch: int
    stack: int
    state: int
    block: int
    inputs: tuple[Mapping[str, Any], ...]
    outputs: tuple[Mapping[str, Any], ...]
    layers: tuple[PackagedLayer, ...]

    def to_json(self) -> str:
        """As report.json holds it."""
        return json.dumps(asdict(self), indent=2) + "\n"


def write_package(
    graph: Graph,
    folder: Path,
    *,
    prefix: str = "model",
    vectors: Sequence[Array] | None = None,
    target: str = "c",
    beside: Mapping[str, str | bytes] = MappingProxyType({}),
) -> PackageReport:
    """Write the C of an integer graph to `folder`, replacing an earlier package there as a whole.

    vectors: one array per graph input, k samples along axis 0 (k times the input's own size); the
    outputs they must give are computed by the interpreter. None: a few pseudo-random samples.
    beside: further files of the folder, by name

    Raises InputError for a bad prefix, vectors that do not fit or a folder that holds other files;
    UnsupportedError for a target or an operator that has no C; SamebitsError for a folder that
    cannot be written.
    """
    if target != "c":
        raise UnsupportedError(f"expected the target 'c', found {target!r}")
    files, report = texts(graph, prefix=prefix, vectors=vectors)
    replace_folder(Path(folder), {**files, **beside})
    return report


def texts(
    graph: Graph, *, prefix: str = "model", vectors: Sequence[Array] | None = None
) -> tuple[dict[str, str], PackageReport]:
    """The files of a package by name, and its report."""
    prefix = checked_prefix(prefix)
    calls = lower_to_calls(graph)
    memory = layout(calls)
    blocked = step_blocks(calls)
    tables = Tables(prefix)
    inputs = _samples(graph, vectors)
    outputs = _expected(graph, inputs)
    files = {
        f"{prefix}.h": emit.header(calls, memory, prefix),
        f"{prefix}.c": emit.source(calls, memory, blocked, prefix, tables),
        "tables.h": emit.tables_header(tables, prefix),
        "tables.c": emit.tables_source(tables),
        "main.c": main_source(graph, prefix),
        "test_vectors.h": emit.vectors_header(
            [(graph.values[n], v) for n, v in zip(graph.inputs, inputs, strict=True)],
            [(graph.values[n], v) for n, v in zip(graph.outputs, outputs, strict=True)],
            _sequence(graph) if graph.states else [],
            prefix,
        ),
        "Makefile": makefile(prefix),
        "samebits_kernels.c": "".join(source(f"inference/{name}") for name in KERNELS),
        **flat(HEADERS),
    }
    producers = graph.producers()
    report = PackageReport(
        GENERATOR,
        FORMAT,
        prefix,
        "c",
        tables.bytes,
        memory.plan.peak,
        memory.plan.bound,
        memory.scratch,
        memory.stack,
        stream.state_bytes(graph),
        0 if blocked is None else blocked.bytes,
        tuple(_described(graph.values[name]) for name in graph.inputs),
        tuple(_described(graph.values[name]) for name in graph.outputs),
        tuple(
            PackagedLayer(
                index,
                entry.value,
                producers[entry.value].op,
                graph.values[entry.value].dtype,
                graph.values[entry.value].shape,
            )
            for index, entry in enumerate(calls.entries)
        ),
    )
    files[REPORT] = report.to_json()
    return files, report


def _described(value: Value) -> dict[str, Any]:
    found: dict[str, Any] = {
        "name": value.name,
        "dtype": value.dtype,
        "shape": list(value.shape),
    }
    if value.quantization is not None:
        found["scale"] = " ".join(map(str, value.quantization.scales))
        found["zero_point"] = value.quantization.zero_point
    return found


# --- test vectors ---------------------------------------------------------------------------


def _samples(graph: Graph, vectors: Sequence[Array] | None) -> list[Array]:
    """Checked input vectors [k * axis 0, ...] of the inputs' types; pseudo-random without any.

    Raises InputError for another number of arrays, shapes that are no whole samples, codes out of
    the type's range, and different numbers of samples.
    """
    if vectors is None:
        size = max((graph.values[name].size for name in graph.inputs), default=1)
        count = max(1, min(DEFAULT_SAMPLES, DEFAULT_CODES // size))
        return [
            _random(graph.values[name], count, index) for index, name in enumerate(graph.inputs)
        ]
    if len(vectors) != len(graph.inputs):
        raise InputError(
            f"test vectors: expected {len(graph.inputs)} arrays, one for each input of the "
            f"graph, found {len(vectors)}"
        )
    found, counts = [], set()
    for name, vector in zip(graph.inputs, vectors, strict=True):
        value, array = graph.values[name], np.asarray(vector)
        low, high = limits(value.dtype)
        samples, rest = divmod(array.size, value.size)
        if (
            array.dtype.kind not in "iu"
            or rest
            or samples < 1
            or (array.shape != value.shape and array.shape[1:] != value.shape[1:])
        ):
            raise InputError(
                f"test vectors of input {name!r}: expected integers in one or more pieces of "
                f"{list(value.shape)} along axis 0, found {array.dtype} {list(array.shape)}"
            )
        if int(array.min()) < low or int(array.max()) > high:
            raise InputError(
                f"test vectors of input {name!r}: expected codes of {value.dtype}, found "
                f"{int(array.min())} to {int(array.max())}"
            )
        counts.add(samples)
        found.append(array.astype(value.dtype))
    if len(counts) > 1:
        raise InputError(
            f"test vectors: expected as many samples for every input, found {sorted(counts)}"
        )
    return found


def _random(value: Value, count: int, index: int) -> Array:
    """Codes over the whole type, the same on every machine."""
    words = [
        word
        for block in range(-(-value.size * count // 4))
        for word in philox4x32((block, 0, 0, 0), (index, 0))
    ]
    low, high = limits(value.dtype)
    codes = [low + word % (high - low + 1) for word in words[: value.size * count]]
    shape = (count * value.shape[0], *value.shape[1:]) if value.shape else (count,)
    return np.array(codes, value.dtype).reshape(shape)


def _expected(graph: Graph, inputs: Sequence[Array]) -> list[Array]:
    """The outputs of every sample, one after the other."""
    shapes = [graph.values[name].shape for name in graph.inputs]
    pieces = [array.reshape(-1, *shape) for array, shape in zip(inputs, shapes, strict=True)]
    results = [run(graph, list(sample)) for sample in zip(*pieces, strict=True)]
    results = results or [run(graph, [])]
    return [
        np.concatenate([r.reshape(-1) for r in column]) for column in zip(*results, strict=True)
    ]


def _sequence(graph: Graph) -> list[tuple[str, Array]]:
    """A pseudo-random sequence of a step graph with what it must give, by names in C: inputs and
    outputs of all steps, the states after the last."""
    inputs = []
    for index, name in enumerate(graph.own_inputs):
        value = graph.values[name]
        flat = Value(name, value.dtype, (value.size,))
        codes = _random(flat, stream.STEPS, len(graph.inputs) + index)
        inputs.append(codes.reshape(stream.STEPS, *value.shape))
    outputs = run_steps(graph, inputs)
    own = len(graph.own_outputs)
    return [
        *((f"input{i}", codes) for i, codes in enumerate(inputs)),
        *((f"output{i}", codes) for i, codes in enumerate(outputs[:own])),
        *((f"state{i}", codes[-1]) for i, codes in enumerate(outputs[own:])),
    ]


# --- the folder -----------------------------------------------------------------------------


def replace_folder(folder: Path, files: Mapping[str, str | bytes]) -> None:
    """Write files by name, texts as UTF-8; the folder appears complete or not at all.

    An earlier package there is replaced as a whole (`write_folder`). InputError: the folder holds
    other files. SamebitsError: it cannot be written.
    """
    if folder.exists() and not (folder.is_dir() and _replaceable(folder)):
        raise InputError(
            f"{folder}: expected a new or empty folder or an earlier package, found other files; "
            "choose another folder"
        )
    contents = {
        name: data.encode() if isinstance(data, str) else data for name, data in files.items()
    }
    write_folder(folder, contents)


def _replaceable(folder: Path) -> bool:
    """Empty, or written by `write_package`."""
    if not any(folder.iterdir()):
        return True
    try:
        found = json.loads((folder / REPORT).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(found, dict) and found.get("generator") == GENERATOR
