"""One `Model`, whatever the file was that holds it, and the function that reads the file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from samebits import ledger, progress
from samebits.codegen.lowering.cpu import CPUS, PORTABLE
from samebits.codegen.packaging.seal import check_file
from samebits.codegen.run.interface import read_report
from samebits.contract import UNKNOWN, Contract, given_contract, of_data
from samebits.data.earlier import Earlier
from samebits.elsewhere import CALLABLE, check_foreign
from samebits.errors import InputError
from samebits.excerpt import CUTS, MEANING, WHOLE, Excerpt
from samebits.ir import Graph, Trait, Value, has
from samebits.ir.canonical import without_guards
from samebits.ir.cut import cut
from samebits.ir.fidelity import Fidelity, restored
from samebits.ir.lowering.channels import fold_channels
from samebits.ir.lowering.lower import lower_graph
from samebits.ir.real.quantize import is_stored
from samebits.ir.rewrite import simplify
from samebits.ir.verify import verify
from samebits.npu.machine.image import SUFFIX, read_program
from samebits.npu.machine.program import Image, Program
from samebits.onnx.metadata import FileFacts

if TYPE_CHECKING:
    from torch import nn

    from samebits.tflite import Lite
    from samebits.train.run.restore import TrainedModel

CHECKPOINT = ".safetensors"
# In a folder that `samebits compile` wrote, one of them:
ONNX_FILE, LITE_FILE = "model.onnx", "model.tflite"

EXPORTED = ".pt2"
LITE, KERAS = ".tflite", ".keras"
IN_HAND = 24  # bytes for each element of a value: it, in binary64, and what is counted of it
EXPECTED = (
    f"an .onnx, {EXPORTED} or {LITE} file, a training output folder, a checkpoint or a compiled "
    "folder"
)

# The options of an excerpt that apply to kinds but ONNX files, which take all but --meaning.
OPTIONS_OF = {"exported": CUTS, "tflite": (*CUTS, MEANING), "graph": (*CUTS, "--shape", "--set")}
Kind = Literal["graph", "exported", "tflite", "firmware", "training"]


@dataclass(frozen=True, eq=False)
class Model:
    """A model as data: either a graph or firmware of the neural processor.

    The two payloads are fields of one class, not two classes: a source, an interface and the
    functions that take any model are common to them, and the properties below give each payload
    its type, or say to a user that this model is of the other kind. `real`, `integer` and
    `interface` follow from the fields; each is computed once, when it is first read, so that a
    model may be inspected or compiled for the neural processor although it has no integer form.

    source:   where it came from, for messages
    graph:    the real graph as it was read, float or quantized (QDQ form); an integer graph stands
              for itself
    firmware: the program and its memory image
    deployed: the samebits.train model in deployed arithmetic, if it is one
    rate:     samples per second of the recordings it was trained on, if it was and says so
    earlier:  how the data of its training was read, of a training folder
    fidelity: what quantization kept of the float network, as far as the file says
    package:  the folder that it was read from as a whole: of C, of firmware or of a training run
    sources:  prefix and files of that C, once it is proved to be what samebits writes for the graph
              (`verification.package.checked`): what backends of generated C build
    contract: what its inputs and outputs mean, as far as the file or its data says; `meaning` is
              what is left of it where the graph was cut
    task:     of its training, of a training folder
    lite:     the TensorFlow Lite file that it was read from, with the meaning of its integers
    """

    source: str
    graph: Graph | None = None
    firmware: tuple[Program, Image] | None = None
    deployed: Any = None
    rate: int | None = None
    earlier: Earlier | None = None
    fidelity: Fidelity | None = None
    package: Path | None = None
    sources: tuple[str, Mapping[str, bytes]] | None = None
    contract: Contract = UNKNOWN
    task: str = ""
    lite: Lite | None = None

    @cached_property
    def facts(self) -> FileFacts:
        """The metadata of a file of it."""
        verdict = "" if self.fidelity is None else self.fidelity.stored()
        return FileFacts(self.rate, verdict, self.meaning)

    @cached_property
    def meaning(self) -> Contract:
        """The contract, without what is of other inputs and outputs than the graph has."""
        return UNKNOWN if self.graph is None else self.contract.fitting(shapes_of(self.graph))

    @cached_property
    def cpu(self) -> str:
        """The processor whose kernels the C of its package has, as the folder's report says; those
        of any where it was read from no package of C."""
        if self.package is None or model_file(self.package) is None:
            return PORTABLE.name
        try:
            stated = read_report(self.package).get("cpu")
        except InputError:
            return PORTABLE.name
        return stated if isinstance(stated, str) and stated in CPUS else PORTABLE.name

    @cached_property
    def known(self) -> Earlier | None:
        """How data is read for it: as its run read its own, or as its contract says; None where
        neither is known."""
        said = self.meaning.reading()
        if self.earlier is None or said is None:
            return self.earlier or said
        return replace(self.earlier, missing=said.missing)

    @cached_property
    def real(self) -> Graph:
        """The real graph, simplified. Raises InputError for firmware."""
        if self.graph is None:
            raise InputError(
                f"{self.source}: expected a network, found firmware; give the model it was "
                "compiled from"
            )
        return self.graph if self.graph.integer else simplify(self.graph)

    @cached_property
    def integer(self) -> Graph:
        """The same function on codes: what every backend must compute.

        Raises InputError for firmware and for a float model, UnsupportedError where a quantized
        graph cannot be lowered.
        """
        real = self.real
        if real.integer and real.nodes:
            return real
        if not is_quantized(real):
            raise InputError(
                f"{self.source}: expected a quantized model (QuantizeLinear and DequantizeLinear "
                "nodes), found a float one; quantize it first: samebits quantize MODEL.onnx "
                "--data X.npz --out Q.onnx"
            )
        integer = fold_channels(lower_graph(without_guards(real)))
        verify(integer)
        return integer

    @property
    def program(self) -> Program:
        """The program of the firmware. Raises InputError for a graph."""
        return self._firmware[0]

    @property
    def image(self) -> Image:
        """The memory image of the firmware. Raises InputError for a graph."""
        return self._firmware[1]

    @property
    def _firmware(self) -> tuple[Program, Image]:
        if self.firmware is None:
            raise InputError(
                f"{self.source}: expected firmware, found a network; compile it first (samebits "
                "compile --target npu)"
            )
        return self.firmware

    @cached_property
    def interface(self) -> Graph:
        """The graph whose inputs and outputs backends take and give.

        Of a graph, its integer form; of firmware, the ports of the program as a graph without
        nodes: binary16, of shape [1, *shape] by hint.
        """
        if self.firmware is None:
            return self.integer
        hints = [hint for hint in self.program.hints if hint.kind != "tensor"]
        inputs, outputs = (
            tuple(hint.name for hint in hints if hint.kind == kind) for kind in ("input", "output")
        )
        ports = {hint.name: Value(hint.name, "float16", (1, *hint.shape)) for hint in hints}
        return Graph(self.program.name, inputs, outputs, (), {}, ports)


def is_quantized(graph: Graph) -> bool:
    """Whether anything in a real graph is quantized but constants, as weight-only files have it."""
    return any(
        has(node.op, Trait.QUANTIZES) and not is_stored(node, graph.constants)
        for node in graph.nodes
    )


def model_file(folder: Path) -> str | None:
    """The name of the model in a folder of C; None where there is none."""
    return next((name for name in (ONNX_FILE, LITE_FILE) if (folder / name).is_file()), None)


def kind_of(path: Path) -> Kind | None:
    """The kind of model at a path, by its name and the names in a folder; None for anything else.

    A graph is an ONNX file or a folder compiled with one; an exported program a file of
    torch.export; tflite a file of TensorFlow Lite, or a folder compiled with one, or a Keras model
    where tensorflow is there to convert it; firmware a program, or a folder that holds programs and
    no graph; training any other folder, or a checkpoint.
    """
    if path.suffix == EXPORTED:
        return "exported"
    if path.suffix == ".onnx" or model_file(path) == ONNX_FILE:
        return "graph"
    if path.suffix.lower() == LITE or model_file(path) == LITE_FILE:
        return "tflite"
    if is_keras(path):
        return "tflite"
    if path.suffix == SUFFIX or any(path.glob("*" + SUFFIX)):
        return "firmware"
    return "training" if path.is_dir() or path.suffix == CHECKPOINT else None


def is_keras(path: Path) -> bool:
    """Whether a path is a Keras model, and can be converted."""
    if path.suffix.lower() != KERAS or not path.is_file():
        return False
    from samebits.tflite.peers.keras import is_convertible

    return is_convertible()


@ledger.load()
def load(
    path: Path,
    arch: str | nn.Module | None = None,
    *,
    part: Excerpt = WHOLE,
) -> Model:
    """The model that a path holds (`kind_of`).

    arch: repeats the name of a module:callable architecture that may be run, or is a module of the
          class that was trained
    part: what is taken of an ONNX file, or of an exported program or a TensorFlow Lite file, which
          have ends alone

    Raises SamebitsError, also for an option that does not apply. Whether a graph has an integer
    form, or a program is legal, is found when that is asked for.
    """
    kind = kind_of(path)
    if kind in ("training", None):
        check_foreign(path, EXPECTED)
    if arch is not None and kind != "training":
        named = repr(arch) if isinstance(arch, str) else type(arch).__name__
        raise InputError(
            f"{path}: --arch applies to training folders and checkpoints, found {named} "
            "for another model; leave it out"
        )
    check_part(part, kind, path)
    if kind == "graph":
        from samebits.onnx import facts
        from samebits.onnx import load as read_graph

        within = path if path.is_dir() else None
        if within:
            check_file(path, ONNX_FILE)
        file = path / ONNX_FILE if within else path
        graph, known = read_graph(file, part=part, within=within), facts(file, within)
        if part == WHOLE:
            _note_misfits(known.contract, graph, path)
        return Model(
            str(path),
            _held(graph, path),
            rate=known.rate,
            fidelity=restored(known.fidelity),
            package=within if part == WHOLE else None,
            contract=known.contract,
        )
    if kind == "exported":
        return Model(str(path), _held(cut(_read_exported(path), part), path))
    if kind == "tflite":
        return _load_lite(path, part)
    if kind == "firmware":
        return load_firmware(path)
    if kind == "training":
        return _load_trained(path, arch)
    if not path.exists():
        raise InputError(
            f"{path}: no such file or folder; expected an .onnx, {EXPORTED} or {LITE} file, a "
            f"training output folder, a checkpoint, or a compiled folder (with {ONNX_FILE})"
        )
    found = f"a file ending in {path.suffix or 'nothing'}"
    raise InputError(
        f"{path}: expected {EXPECTED}, found {found}; write ONNX with the tool that it is from, or "
        f"give {CALLABLE}"
    )


def _held(graph: Graph, path: Path) -> Graph:
    """The graph. Raises InputError where one of its values alone is more than a load may take: a
    few bytes of a file may ask for it (Expand, Resize, Tile)."""
    sizes = {name: value.size for name, value in graph.values.items()}
    largest = max(sizes, key=sizes.__getitem__, default="")
    with ledger.hold(IN_HAND * sizes.get(largest, 0), f"{path}: value {largest!r}"):
        return graph


def check_part(part: Excerpt, kind: Kind | None, path: Path) -> None:
    """Raise InputError for what is to be taken of a kind of model that is taken whole."""
    part.check_applies(OPTIONS_OF.get(kind or "", ()), str(path), "ONNX files")


def _load_lite(path: Path, part: Excerpt) -> Model:
    """The network of a TensorFlow Lite file, of a folder compiled with one, or of a Keras model."""
    from samebits.tflite import from_bytes
    from samebits.tflite import load as read_lite
    from samebits.tflite.peers.keras import converted

    within = path if path.is_dir() else None
    if within:
        check_file(path, LITE_FILE)
        part.check_applies(CUTS, str(path), "")
    if is_keras(path):
        found = from_bytes(converted(path), str(path), part)
    else:
        found = read_lite(path / LITE_FILE if within else path, part, within)
    if not part.is_cut:
        _note_misfits(found.contract, found.graph, path)
    return Model(
        str(path),
        _held(found.graph, path),
        package=within if part == WHOLE else None,
        contract=found.contract,
        lite=found,
    )


def _note_misfits(contract: Contract, graph: Graph, path: Path) -> None:
    """Say what of a file's contract is of other inputs and outputs."""
    for text in contract.misfits(shapes_of(graph)):
        progress.note(f"{path}: a contract in its metadata is left out in part: {text}")


def load_firmware(path: Path) -> Model:
    """The program of a .nnp file, or of a folder with one in it, and the image beside it.

    Raises InputError. Whether the program is legal is checked when it runs.
    """
    within = None
    if path.is_dir():
        found = sorted(path.glob("*" + SUFFIX))
        if len(found) != 1:
            names = ", ".join(repr(file.name) for file in found[:5]) or "none"
            raise InputError(
                f"{path}: expected one {SUFFIX} program in the folder, found {names}; name the "
                "program"
            )
        path, within = found[0], path
    return Model(str(path), firmware=read_program(path, within), package=within)


def _load_trained(path: Path, arch: str | nn.Module | None) -> Model:
    """The network of a training folder or checkpoint: exported with its frozen exponents, or the
    float network of a float32 run."""
    from samebits.train.deployed.deploy import deployed
    from samebits.train.deployed.export import to_graph
    from samebits.train.run.restore import open_trained, zero_input

    opened = open_trained(path, arch, progress.note)
    folder = path if path.is_dir() else None
    if opened.exponents is None:
        from samebits.pytorch import import_module

        graph = import_module(opened.model, (zero_input(opened.input_shape, opened.rows),))
        return Model(
            str(path),
            graph,
            rate=opened.rate,
            earlier=opened.earlier,
            package=folder,
            contract=_trained_contract(graph, opened),
            task=opened.task,
        )
    graph = to_graph(opened.model, opened.exponents, opened.input_shape)
    frozen = deployed(opened.model, opened.exponents)
    return Model(
        str(path),
        graph,
        deployed=frozen,
        rate=opened.rate,
        earlier=opened.earlier,
        package=folder,
        contract=_trained_contract(graph, opened),
        task=opened.task,
    )


def _trained_contract(graph: Graph, opened: TrainedModel) -> Contract:
    """The contract by the record of the run that made a network."""
    names, earlier = (graph.own_inputs[0], graph.own_outputs[0]), opened.earlier
    pixels = (earlier.options.mean, earlier.options.std) if earlier.pixels else None
    return of_data(names, earlier.preparation, opened.task, opened.names, pixels)


def described(
    model: Model,
    given: Contract | Mapping[str, Any] | str | Path | None,
    fed: Contract = UNKNOWN,
) -> Model:
    """The model with the contract that its author gives, over its own, over what data says that it
    is fed with. Raises InputError for what is no contract, or of other inputs and outputs."""
    own = model.meaning.over(fed)
    if given is None:
        return replace(model, contract=own)
    found = given_contract(given)
    if wrong := found.misfits(shapes_of(model.real)):
        raise InputError(
            f"{model.source}: expected a contract of its inputs and outputs, found another: "
            f"{wrong[0]}"
        )
    return replace(model, contract=found.over(own), package=None)


def shapes_of(graph: Graph) -> dict[str, tuple[int, ...]]:
    """Shapes of the inputs and outputs of a graph."""
    return {name: graph.values[name].shape for name in (*graph.inputs, *graph.outputs)}


def _read_exported(path: Path) -> Graph:
    """The graph of a file that torch.export.save wrote: an untrusted file."""
    from samebits.pytorch.exported import read_exported

    return read_exported(path)
