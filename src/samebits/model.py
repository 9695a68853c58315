"""A model as every backend takes it: a quantized network as integer graph, or firmware of the
neural processor."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from samebits.errors import InputError
from samebits.ir import Graph, Trait, Value, has
from samebits.ir.lowering.lower import lower_graph
from samebits.ir.rewrite import simplify
from samebits.ir.verify import verify
from samebits.npu.machine.image import SUFFIX, read_program
from samebits.npu.machine.program import Hint, Image, Program

CHECKPOINT = ".safetensors"
ONNX_FILE = "model.onnx"  # in a folder that `samebits compile` wrote


@dataclass(frozen=True, eq=False)
class Model:
    """A model to verify.

    source:   where it came from, for messages
    real:     the quantized real graph (QDQ form)
    integer:  the same function on codes; what every backend must compute
    deployed: the samebits.train model in deployed arithmetic, if it is one
    rate:     samples per second of the recordings it was trained on, if it was and says so
    """

    source: str
    real: Graph
    integer: Graph
    deployed: Any = field(default=None)
    rate: int | None = None

    @property
    def interface(self) -> Graph:
        """The graph whose inputs and outputs backends take and give."""
        return self.integer


@dataclass(frozen=True, eq=False)
class Firmware:
    """A program of the neural processor to verify, with its memory image.

    source: where it came from, for messages
    """

    source: str
    program: Program
    image: Image

    @cached_property
    def interface(self) -> Graph:
        """The ports of the program as a graph without nodes: binary16 [1, *shape] by hint."""
        ports = {hint.name: _port(hint) for hint in self.program.hints if hint.kind != "tensor"}
        inputs, outputs = (
            tuple(hint.name for hint in self.program.hints if hint.kind == kind)
            for kind in ("input", "output")
        )
        return Graph(self.program.name, inputs, outputs, (), {}, ports)


def _port(hint: Hint) -> Value:
    return Value(hint.name, "float16", (1, *hint.shape))


Subject = Model | Firmware


def model_of(graph: Graph, source: str, deployed: Any = None) -> Model:
    """The model of a quantized real graph. Raises UnsupportedError where it cannot be lowered."""
    real = simplify(graph)
    if not is_quantized(real):
        raise InputError(
            f"{source}: expected a quantized model (QuantizeLinear and DequantizeLinear nodes), "
            "found a float one; quantize it first: samebits quantize MODEL.onnx --calibration "
            "X.npz --out Q.onnx"
        )
    integer = lower_graph(real)
    verify(integer)
    return Model(source, real, integer, deployed)


def is_quantized(graph: Graph) -> bool:
    """Whether anything in a real graph is quantized."""
    return any(has(node.op, Trait.QUANTIZES) for node in graph.nodes)


def is_graph(path: Path) -> bool:
    """Whether a path names an ONNX file or a compiled folder."""
    return path.suffix == ".onnx" or (path / ONNX_FILE).is_file()


def load_graph(path: Path) -> Graph:
    """The real graph of an ONNX file or of a compiled folder."""
    from samebits.onnx import load

    return load(path / ONNX_FILE if path.is_dir() else path)


def graph_rate(path: Path) -> int | None:
    """Samples per second of the recordings that an ONNX file or a compiled folder is for."""
    from samebits.onnx import sampling_rate

    return sampling_rate(path / ONNX_FILE if path.is_dir() else path)


def is_firmware(path: Path) -> bool:
    """Whether a path names a program, or a folder that holds programs and no graph."""
    return path.suffix == SUFFIX or (not is_graph(path) and any(path.glob("*" + SUFFIX)))


def load_firmware(path: Path) -> Firmware:
    """The program of a .nnp file, or of a folder with one in it, and the image beside it.

    Raises InputError. Whether the program is legal is checked when it runs.
    """
    if path.is_dir():
        found = sorted(path.glob("*" + SUFFIX))
        if len(found) != 1:
            names = ", ".join(repr(file.name) for file in found[:5]) or "none"
            raise InputError(
                f"{path}: expected one {SUFFIX} program in the folder, found {names}; name the "
                "program"
            )
        path = found[0]
    return Firmware(str(path), *read_program(path))


def load_subject(path: Path, arch: str | None = None) -> Subject:
    """The firmware or the model that a path names (`load_model`)."""
    return load_firmware(path) if is_firmware(path) else load_model(path, arch)


def load_model(path: Path, arch: str | None = None) -> Model:
    """The model of an ONNX file, a training output folder or checkpoint, or a compiled folder.

    `arch` repeats the name of a module:callable architecture that may be run. Raises SamebitsError.
    """
    if is_graph(path):
        return replace(model_of(load_graph(path), str(path)), rate=graph_rate(path))
    if path.is_dir() or path.suffix == CHECKPOINT:
        return _trained(path, arch)
    if not path.exists():
        raise InputError(
            f"{path}: no such file or folder; expected an .onnx file, a training output folder, a "
            f"checkpoint, or a compiled folder (with {ONNX_FILE})"
        )
    raise InputError(
        f"{path}: expected an .onnx file, a training output folder, a checkpoint or a compiled "
        f"folder, found a file ending in {path.suffix or 'nothing'}"
    )


def _trained(path: Path, arch: str | None) -> Model:
    from samebits.train.deployed.deploy import deployed
    from samebits.train.deployed.export import to_graph
    from samebits.train.run.restore import open_deployed

    opened = open_deployed(path, arch)
    graph = to_graph(opened.model, opened.exponents, opened.input_shape)
    model = model_of(graph, str(path), deployed(opened.model, opened.exponents))
    return replace(model, rate=opened.rate)
