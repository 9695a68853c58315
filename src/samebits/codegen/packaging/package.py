"""Writes an integer graph as a folder of C that drops into other projects.

<prefix>.h .c, <prefix>_constants.h .c     the model; every name begins with the prefix
<prefix>.weights, <prefix>_image.c         in place of the constants: weights as an image (image.py)
samebits/                                  kernels, shared by any number of models
test/                                      harness, test vectors
Makefile README.md report.json             and files beside, such as model.onnx
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from samebits.codegen import emit, sound, stream
from samebits.codegen.blocks import step_blocks
from samebits.codegen.call_text import Constants, byte_count
from samebits.codegen.header import LICENCE, About, header, ports
from samebits.codegen.image import HEADER as IMAGE_HEADER
from samebits.codegen.image import STRUCTURE, SUFFIX, WeightImage
from samebits.codegen.image import sealed as sealed_code
from samebits.codegen.lowering.cpu import PORTABLE, Cpu, find_cpu
from samebits.codegen.memory import layout
from samebits.codegen.names import c_comment, checked_prefix
from samebits.codegen.packaging.harness import main_source, makefile
from samebits.codegen.packaging.projects import Manifest, arranged
from samebits.codegen.packaging.readme import buffers, raw_functions, readme, stream_functions
from samebits.codegen.packaging.seal import sealed
from samebits.codegen.packaging.signature import sign, signature_of
from samebits.codegen.predict import HEADER as RAW_HEADER
from samebits.codegen.predict import declarations
from samebits.codegen.predict import source as raw_source
from samebits.codegen.raw import Raw, raw_of
from samebits.codegen.rolling import calls_for
from samebits.codegen.run.interface import FORMAT, LARGEST_REPORT, REPORT
from samebits.contract import UNKNOWN, Contract
from samebits.csrc import flat, source
from samebits.entrance import read
from samebits.errors import InputError, UnsupportedError
from samebits.files import write_folder
from samebits.ir.graph import Array, Graph
from samebits.ir.integer.define import limits
from samebits.ir.integer.layers import fnv1a
from samebits.ir.interpreter import run, run_steps
from samebits.ir.value import Value
from samebits.spec.philox import philox4x32

GENERATOR = "samebits"
# Of csrc/inference, in the order in which they become one file: what is static in one may be used
# in those after it.
KERNELS = (
    *("rescale64.c", "rescale.c"),
    *("codes_x86.c", "codes16.c", "codes_avx2.c", "codes_neon.c", "conv_band.c"),
    *("conv_x86.c", "panel_vnni.c", "panel16.c", "panel_avx2.c", "panel_neon.c"),
    *("conv_panels.c", "lanes_x86.c", "lanes_neon.c", "depthwise_rows.c", "conv_arm.c", "conv.c"),
    *("packed_mve.c", "packed_mve_depth.c", "packed_thumb.c"),
    *("packed_dsp.c", "packed_dsp_runs.c"),
    *("packed16_mve.c", "packed16_dsp.c", "packed16.c", "packed.c"),
    *("add.c", "sums_x86.c", "linear_sums.c", "gates.c", "rows8.c"),
    *("elementwise.c", "products.c"),
    *("normalize.c", "scores.c", "resample.c", "trees.c", "turn.c", "move.c", "rolling.c"),
    *("selftest.c", "sample.c", "reals.c"),
)
HEADERS = (
    *("inference/samebits.h", "inference/samebits_kernels.h", "inference/samebits_debug.h"),
    *("samebits_integer.h", "samebits_vector.h", "samebits_io.h"),
)
LIBRARY = "samebits"  # the folder of the kernels
MODEL_FILES = ("model.onnx", "model.tflite")  # of which one stands beside the sources
PAGE = "report.html"  # for people, in a package that `ship` wrote; nothing is generated from it
DEFAULT_SAMPLES, DEFAULT_CODES = 4, 1 << 16


@dataclass(frozen=True)
class PackagedLayer:
    """One traced value: `index` in C, its name in the graph, type and shape; bytes of the arena
    that are live while it is computed."""

    index: int
    name: str
    op: str
    dtype: str
    shape: tuple[int, ...]
    live: int


@dataclass(frozen=True)
class PackageReport:
    """Memory that the package needs, in bytes, and the names that C text does not hold.

    version: of samebits; it, the model file, prefix, cpu and package give the same files again
    package: whose layout the folder has. format: the version of its files, names and report
    weights, tables: constants in flash: what was learned, and transfer functions as tables; code is
    not counted. arena: activations and scratch memory of one instance, arena_bound: no plan needs
    less. block: the arena where model_steps computes blocks of steps (not on Cortex-M), 0 where it
    does not. state: the struct of a step graph's states. stack_cortex_m: an upper bound of
    model_run and all it calls there. structure: of code with weights as an image, which that states
    too, "" of others; weights are then all of the image but its tables
    """

    generator: str
    version: str
    format: str
    package: str
    prefix: str
    target: str
    cpu: str
    weights: int
    tables: int
    arena: int
    arena_bound: int
    block: int
    state: int
    stack_cortex_m: int
    structure: str
    inputs: tuple[Mapping[str, Any], ...]
    outputs: tuple[Mapping[str, Any], ...]
    layers: tuple[PackagedLayer, ...]

    @property
    def constants(self) -> int:
        """Bytes of weights and tables."""
        return self.weights + self.tables

    def to_json(self) -> str:
        """As report.json holds it."""
        return json.dumps(asdict(self), indent=2) + "\n"


@dataclass(frozen=True, eq=False)
class Package:
    """A package in memory.

    files:   by path, as its folder holds them once sealed. report: what report.json says unsealed
    sources: of the layout "make", whatever that of the folder is: the same C, with its harness
    """

    files: Mapping[str, bytes]
    report: PackageReport
    sources: Mapping[str, bytes]


def write_package(
    graph: Graph,
    folder: Path,
    *,
    prefix: str = "model",
    vectors: Sequence[Array] | None = None,
    target: str = "c",
    cpu: str = "portable",
    project: str = "make",
    beside: Mapping[str, str | bytes] = MappingProxyType({}),
    weights_file: bool = False,
) -> PackageReport:
    """Write the C of an integer graph to `folder`, replacing an earlier package there as a whole.

    As `package`, and InputError for a folder that holds other files, SamebitsError for one that
    cannot be written.
    """
    made = package(
        graph,
        prefix=prefix,
        vectors=vectors,
        target=target,
        cpu=cpu,
        project=project,
        beside=beside,
        weights_file=weights_file,
    )
    replace_folder(Path(folder), made.files)
    return made.report


def package(
    graph: Graph,
    *,
    prefix: str = "model",
    vectors: Sequence[Array] | None = None,
    target: str = "c",
    cpu: str = "portable",
    project: str = "make",
    beside: Mapping[str, str | bytes] = MappingProxyType({}),
    contract: Contract = UNKNOWN,
    rate: int | None = None,
    weights_file: bool = False,
) -> Package:
    """The C of an integer graph as a package; `replace_folder` seals it.

    vectors: one array per graph input, k samples along axis 0 (k times the input's own size); the
    outputs they must give are computed by the interpreter. None: a few pseudo-random samples.
    cpu: the processor whose kernels are taken (lowering/cpu.py); the codes are the same for all.
    project: whose layout the folder has, one of `projects.PROJECTS`. beside: further files of the
    folder, by name. contract: what inputs and outputs mean, for the header and README.md; rate:
    of the recordings that it takes. weights_file: what training decides is an image beside the code

    Raises InputError for a bad prefix or project, and vectors that do not fit; UnsupportedError for
    a target or an operator that has no C.
    """
    if target != "c":
        raise UnsupportedError(f"expected the target 'c', found {target!r}")
    model = next((name for name in MODEL_FILES if name in beside), "")
    sha256 = hashlib.sha256(as_bytes(beside[model])).hexdigest() if model else ""
    files, report = texts(
        graph,
        prefix=prefix,
        vectors=vectors,
        cpu=cpu,
        model=(model, sha256),
        project=project,
        contract=contract,
        rate=rate,
        weights_file=weights_file,
    )
    sources = _bytes(files)
    others = {name: beside[name] for name in beside if project == "make" or not own(name)}
    placed = arranged(project, {**sources, **others}, _manifest(graph, prefix, find_cpu(cpu)))
    return Package(_bytes(placed), report, sources)


def own(name: str) -> bool:
    """Whether a file beside the model is of a harness, which only the layout "make" builds."""
    return "/test/" in name or name.endswith("/Makefile")


def _manifest(graph: Graph, prefix: str, cpu: Cpu) -> Manifest:
    """The package as build systems name it."""
    number = version(GENERATOR)
    return Manifest(
        prefix,
        number,
        f"{c_comment(graph.name)}: an integer network in C99.",
        LICENCE,
        f"{number}+{kernel_symbol(cpu).rpartition('_')[2]}",
        buffers=tuple(buffers(graph, prefix)),
        ports=tuple(port for port, _ in ports(graph)),
    )


def texts(
    graph: Graph,
    *,
    prefix: str = "model",
    vectors: Sequence[Array] | None = None,
    cpu: str = "portable",
    model: tuple[str, str] = ("", ""),
    project: str = "make",
    contract: Contract = UNKNOWN,
    rate: int | None = None,
    weights_file: bool = False,
) -> tuple[dict[str, str | bytes], PackageReport]:
    """The files of a package by name, and its report. model: the file beside them, its SHA-256.
    project: whose layout they will have, for the report; else as for `package`."""
    prefix = checked_prefix(prefix)
    processor = find_cpu(cpu)
    calls = calls_for(graph, processor)
    memory = layout(calls)
    blocked = step_blocks(calls)
    image = WeightImage(prefix) if weights_file else None
    constants = Constants(prefix) if image is None else image
    inputs = _samples(graph, vectors)
    outputs = _expected(graph, inputs)
    about = About(version(GENERATOR), kernel_symbol(processor), *model, contract, image)
    raw = raw_of(graph, contract, rate)
    code = {
        f"{prefix}.h": header(
            calls,
            memory,
            blocked,
            prefix,
            about,
            declarations(raw, prefix, image) if isinstance(raw, Raw) else (),
        ),
        f"{prefix}.c": emit.source(
            calls, memory, blocked, prefix, about, constants, _answer(graph)
        ),
    }
    if isinstance(raw, Raw):
        code[f"{prefix}_predict.c"] = raw_source(raw, prefix, image)
    structure = ""
    constant: dict[str, str | bytes] = {}
    if image is None:
        constant[f"{prefix}_constants.h"] = emit.constants_header(constants, prefix)
        constant[f"{prefix}_constants.c"] = emit.constants_source(constants, prefix)
    else:
        code, hashed = sealed_code(code)
        structure = f"{hashed:016x}"
        data = image.encoded(hashed, contract.name, contract.version)
        source_text = emit.image_source(data, prefix).replace(STRUCTURE, structure)
        constant[f"{prefix}_image.c"] = source_text
        constant[f"{prefix}{SUFFIX}"] = data
        constant |= {f"{LIBRARY}/{name}": text for name, text in flat([IMAGE_HEADER]).items()}
    files: dict[str, str | bytes] = {
        **code,
        **constant,
        f"test/{prefix}_main.c": main_source(
            graph, prefix, raw=isinstance(raw, Raw), image=image is not None
        ),
        f"test/{prefix}_vectors.h": emit.vectors_header(
            [(graph.values[n], v) for n, v in zip(graph.inputs, inputs, strict=True)],
            [(graph.values[n], v) for n, v in zip(graph.outputs, outputs, strict=True)],
            _sequence(graph) if graph.states else [],
            prefix,
        ),
        "Makefile": makefile(prefix),
        **library(processor),
    }
    if isinstance(raw, Raw):
        files |= {
            f"{LIBRARY}/{name}": text
            for name, text in flat(sound.HEADERS if raw.rate else [RAW_HEADER]).items()
        }
    producers, tables = graph.producers(), byte_count(constants.tables)
    report = PackageReport(
        GENERATOR,
        about.version,
        FORMAT,
        project,
        prefix,
        "c",
        processor.name,
        byte_count(constants.weights) if image is None else len(data) - tables,
        tables,
        memory.bytes,
        memory.plan.bound + memory.bytes - memory.plan.peak,
        0 if blocked is None else blocked.bytes,
        stream.state_bytes(graph),
        memory.stack + (0 if image is None else image.stack),
        structure,
        tuple(_described(graph.values[name]) for name in graph.inputs),
        tuple(_described(graph.values[name]) for name in graph.outputs),
        tuple(
            PackagedLayer(
                index,
                entry.value,
                producers[entry.value].op,
                graph.values[entry.value].dtype,
                graph.values[entry.value].shape,
                memory.live(index),
            )
            for index, entry in enumerate(calls.entries)
        ),
    )
    sizes = {
        "weights and parameters, flash": report.weights,
        "tables of transfer functions, flash": report.tables,
        "arena of an instance, RAM": report.arena,
        **({"arena with blocks of steps, RAM": report.block} if report.block else {}),
        **({"state of a sequence, RAM": report.state} if report.state else {}),
        "stack on Cortex-M, at most": report.stack_cortex_m,
    }
    files["README.md"] = readme(
        graph,
        prefix,
        about.version,
        sizes,
        stream_functions(graph, prefix, image is not None)
        + (raw_functions(prefix) if isinstance(raw, Raw) else ""),
        project,
        contract,
        structure,
    )
    files[REPORT] = report.to_json()
    return files, report


@functools.cache
def _kernels(cpu: Cpu) -> tuple[dict[str, str], str]:
    """The files of the library, and the symbol that its C defines."""
    code = cpu.defines + "".join(source(f"inference/{name}") for name in KERNELS)
    files = flat(HEADERS)
    digest = hashlib.sha256("".join((code, *files.values())).encode()).hexdigest()
    symbol = f"samebits_kernels_{digest[:8]}"
    files["samebits_kernels.c"] = (
        f"{code}\n/* What tells these kernels from those of another version. */\n"
        f"extern const uint32_t {symbol};\nconst uint32_t {symbol} = 1;\n"
    )
    return {f"{LIBRARY}/{name}": text for name, text in files.items()}, symbol


def library(cpu: Cpu = PORTABLE) -> dict[str, str]:
    """The kernels, which all models made for processors of one layout share: files by path."""
    return dict(_kernels(cpu)[0])


def kernel_symbol(cpu: Cpu = PORTABLE) -> str:
    """A C name that only this version of the kernels, with this layout of weights, defines."""
    return _kernels(cpu)[1]


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


def _answer(graph: Graph) -> int:
    """The hash of the outputs that model_selftest expects: FNV-1a over their codes in order."""
    inputs = [_random(graph.values[name], 1, index) for index, name in enumerate(graph.inputs)]
    shaped = [
        codes.reshape(graph.values[name].shape)
        for name, codes in zip(graph.inputs, inputs, strict=True)
    ]
    outputs = run(graph, shaped)
    data = [
        np.ascontiguousarray(codes, np.dtype(graph.values[name].dtype).newbyteorder("<"))
        for name, codes in zip(graph.outputs, outputs, strict=True)
    ]
    return fnv1a(np.frombuffer(b"".join(codes.tobytes() for codes in data), np.uint8))


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


def replace_folder(folder: Path, files: Mapping[str, str | bytes], key: Path | None = None) -> str:
    """Write files by name, texts as UTF-8, sealed, the report signed by a user's key if there is
    one; the folder appears complete or not at all.

    An earlier package there is replaced as a whole (`write_folder`). Gives the SHA-256 of the
    report, "" without one. InputError: the folder holds other files. SamebitsError: it cannot be
    written.
    """
    check_folder(folder)
    written = sealed(_bytes(files))
    if key is not None:
        written[signature_of(REPORT)] = sign(written[REPORT], key)
    write_folder(folder, written)
    return hashlib.sha256(written[REPORT]).hexdigest() if REPORT in written else ""


def _bytes(files: Mapping[str, str | bytes]) -> dict[str, bytes]:
    return {name: as_bytes(data) for name, data in files.items()}


def check_folder(folder: Path) -> None:
    """InputError where a folder holds other files than an earlier package."""
    if folder.exists() and not (folder.is_dir() and _replaceable(folder)):
        raise InputError(
            f"{folder}: expected a new or empty folder or an earlier package, found other files; "
            "choose another folder"
        )


def as_bytes(data: str | bytes) -> bytes:
    """A file's content, texts as UTF-8."""
    return data.encode() if isinstance(data, str) else data


def _replaceable(folder: Path) -> bool:
    """Empty, or written by `write_package`."""
    if not any(folder.iterdir()):
        return True
    try:
        found = json.loads(read(folder / REPORT, LARGEST_REPORT, within=folder))
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(found, dict) and found.get("generator") == GENERATOR
