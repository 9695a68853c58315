"""Networks and firmware from whatever holds them: modules, files, folders, names of callables."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from samebits.elsewhere import check_script
from samebits.errors import InputError
from samebits.excerpt import Part, excerpt_of
from samebits.ir import Graph
from samebits.ir.cut import cut
from samebits.model import Model
from samebits.model import load as load_model
from samebits.network import Network
from samebits.settled import settled

if TYPE_CHECKING:
    from torch import nn

SOURCES = (
    "a torch.nn.Module, an exported program, a graph, or the path of an .onnx, .pt2 or .tflite "
    "file, a training folder or checkpoint, a compiled folder or an .nnp program"
)


@settled
def load(
    source: Any,
    *,
    example: Any = None,
    arch: str | nn.Module | None = None,
    **part: Unpack[Part],
) -> Network:
    """A network or firmware from whatever holds it.

    source:   one of SOURCES, or file.py:callable, whose callable gives a torch.nn.Module
    example:  a tensor, or a tuple of them, that a torch.nn.Module takes; it fixes the shapes
    arch:     repeats the name of the module:callable that a training folder was made with, whose
              code runs only then; or a torch.nn.Module of the class that the folder was trained
              from, whose layers the folder does not hold
    shapes:   of inputs whose dimensions an ONNX file leaves open, and of tensors at which it is
              cut, by name
    set:      inputs of an ONNX file that become constants, by name: {"sr": 16000}; a number fills
              its tensor. A condition (If) that depends on them alone is decided
    start_at: the tensors, by name, that are to be the inputs: what is before them is not read
    end_at:   the tensors that are to be the outputs: what is behind them is not read
    meaning:  of a quantized .tflite file: "exact", every result rounded once, which is the default;
              "tflite", the bits of TensorFlow Lite Micro; "tflite:VERSION", those of a version
              (docs/spec/tflite.md)

    Raises InputError for anything else, and for options that do not apply to the source.
    """
    excerpt = excerpt_of(**part)
    only_files = {name: part.get(name) for name in ("shapes", "set", "meaning")}
    if isinstance(source, Network | Model | Graph):
        refuse(example=example, arch=arch, **only_files)
        if isinstance(source, Graph):
            return Network(Model(source.name, cut(source, excerpt)))
        refuse(**part)
        return source if isinstance(source, Network) else Network(source)
    made = called(source)
    if isinstance(made, str | Path):
        refuse(example=example)
        return Network(load_model(Path(made), arch, part=excerpt))
    refuse(arch=arch, **only_files)
    name = type(source).__name__ if made is source else str(source)
    return Network(Model(name, cut(_of_torch(made, name, example), excerpt)))


def called(source: Any) -> Any:
    """The result of the callable that a text names, other sources as they are.

    Raises InputError for a callable that fails or gives no module, and for a module that torch.jit
    has compiled.
    """
    from samebits.callables import is_callable_name, named_callable

    if not isinstance(source, str) or not is_callable_name(source) or Path(source).exists():
        check_script(source, type(source).__name__)
        return source
    make = named_callable(source, "model")
    try:
        made = make()
    except Exception as error:  # a user's code: whatever it raises is an input error
        raise InputError(
            f"{source}: calling it failed ({type(error).__name__}: {error}); expected a "
            "function without arguments that gives a torch.nn.Module"
        ) from error
    if not callable(getattr(made, "forward", None)):
        raise InputError(
            f"{source}: expected a torch.nn.Module from calling it, found {type(made).__name__}"
        )
    check_script(made, source)
    return made


def _of_torch(source: Any, name: str, example: Any) -> Graph:
    """A torch module or exported program as a graph."""
    from torch import Tensor, nn
    from torch.export import ExportedProgram

    from samebits.pytorch import import_module
    from samebits.pytorch.importer import import_program

    if isinstance(source, ExportedProgram):
        refuse(example=example)
        return import_program(source, name, trusted=True)
    if not isinstance(source, nn.Module):
        raise InputError(f"expected {SOURCES}, found {type(source).__name__}")
    if example is None:
        raise InputError(
            f"{name}: expected an example input of a torch.nn.Module, found none; give "
            "example=tensor (a tuple of several)"
        )
    if not isinstance(example, Tensor | tuple | list):
        raise InputError(
            f"{name}: expected example=tensor (a tuple of several), found {type(example).__name__}"
        )
    examples = (example,) if isinstance(example, Tensor) else tuple(example)
    return import_module(source, examples)


def refuse(**options: Any) -> None:
    """Raise InputError for the first option that was given although it does not apply."""
    for name, value in options.items():
        if value is not None:
            found = (
                value
                if isinstance(value, str | int | float | list | Path)
                else type(value).__name__
            )
            raise InputError(f"{name} does not apply to such a source, found {found}; leave it out")
