"""Files and folders of other tools that hold no network samebits takes, and the way from each."""

from __future__ import annotations

import ast
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import TypeGuard

from samebits.entrance import opened, read
from samebits.errors import InputError


@dataclass(frozen=True)
class Foreign:
    """A kind of file that is not taken.

    what: what such a file is. way: what gives a network of it that is taken; {path} stands for it,
    {made} for the callables of Python source that may give one
    """

    what: str
    way: str


LARGEST_SOURCE, MOST_NAMED = 1 << 20, 5  # bytes of Python source; callables in a message
CALLABLE = "a callable of yours that gives the torch.nn.Module, as file.py:callable"

_KERAS = (
    'write model.onnx from Keras (model.export("model.onnx", format="onnx")), or convert it: '
    "python -m tf2onnx.convert --keras {path} --output model.onnx; or "
)
KERAS = Foreign(
    "a Keras model",
    f"{_KERAS}pip install tensorflow, by which samebits converts it, or name a Python that has it "
    "by $SAMEBITS_TFLITE_PYTHON",
)
HDF = Foreign(
    "a Keras model, which could run code",
    f"{_KERAS}write model.tflite where tensorflow is installed: "
    "tf.lite.TFLiteConverter.from_keras_model(model).convert()",
)
SAVED_MODEL = Foreign(
    "a TensorFlow SavedModel",
    "convert it: python -m tf2onnx.convert --saved-model {path} --output model.onnx",
)
FROZEN = Foreign(
    "a TensorFlow graph",
    "convert it: python -m tf2onnx.convert --graphdef {path} --data NAME:0 --outputs NAME:0 "
    "--output model.onnx, or of a SavedModel its folder by --saved-model",
)
SCRIPT = Foreign(
    "a TorchScript module, compiled code without the class that it was made from",
    f"give {CALLABLE}: it builds the module from its class and loads "
    "torch.jit.load({path!r}).state_dict() into it; or export that module to ONNX",
)
WEIGHTS = Foreign(
    "weights without their network",
    f"give {CALLABLE}: it builds the module and loads these weights into it (torch.load with "
    "weights_only=True, then load_state_dict)",
)
ARRAYS = Foreign(
    "arrays without a network",
    "samples are given by --data, beside the network",
)
HUGGING_FACE = Foreign(
    "a folder of Hugging Face",
    f"give {CALLABLE}: it returns a module around AutoModel.from_pretrained({{path!r}}); or write "
    "ONNX: optimum-cli export onnx --model {path} OUT",
)
CORE_ML = Foreign(
    "a Core ML model",
    "nothing converts it back: export the model that it was made from to ONNX",
)
TENSORRT = Foreign(
    "a TensorRT engine, compiled for one GPU",
    "nothing converts it back: give the ONNX file that it was built from",
)
PICKLED = Foreign(
    "a pickled Python object, which could run code and is never loaded",
    "of scikit-learn convert it in Python: skl2onnx.to_onnx(model, samples[:1])",
)
PADDLE = Foreign(
    "a PaddlePaddle model",
    "convert it: paddle2onnx --model_dir FOLDER --model_filename {path} --save_file model.onnx",
)
PYTHON = Foreign("Python source", "name the callable in it that gives the module: {made}")
UNMADE = "{path}:make, once a function make() in it gives it: def make(): return net"

FILES: dict[str, Foreign] = {  # by the ending of the name
    ".h5": HDF,
    ".hdf5": HDF,
    ".keras": KERAS,
    ".pb": FROZEN,
    ".jit": SCRIPT,
    ".torchscript": SCRIPT,
    ".pt": WEIGHTS,
    ".pth": WEIGHTS,
    ".bin": WEIGHTS,
    ".ckpt": WEIGHTS,
    ".npy": ARRAYS,
    ".npz": ARRAYS,
    ".mlmodel": CORE_ML,
    ".mlpackage": CORE_ML,
    ".engine": TENSORRT,
    ".trt": TENSORRT,
    ".pkl": PICKLED,
    ".joblib": PICKLED,
    ".pdmodel": PADDLE,
    ".py": PYTHON,
}
FOLDERS: dict[str, Foreign] = {  # by the name of a file in it
    "saved_model.pb": SAVED_MODEL,
    "model.safetensors": HUGGING_FACE,
    "model.safetensors.index.json": HUGGING_FACE,
    "pytorch_model.bin": HUGGING_FACE,
    "pytorch_model.bin.index.json": HUGGING_FACE,
}


def check_foreign(path: Path, expected: str) -> None:
    """Raise InputError for a file or folder of another tool, with the way to one that is expected;
    nothing for what is not known here, or is not there."""
    if not path.exists():
        return
    found = FILES.get(path.suffix.lower())
    if path.is_dir() and path.suffix != ".mlpackage":
        found = next((kind for name, kind in FOLDERS.items() if (path / name).is_file()), None)
    elif found is WEIGHTS and _is_script(path):
        found = SCRIPT
    if found is not None:
        made = _named(path) if found is PYTHON else ""
        way = found.way.format(path=str(path), made=made)
        raise InputError(f"{path}: expected {expected}, found {found.what}; {way}")


def check_script(made: object, name: str) -> None:
    """Raise InputError for a module that torch.jit has compiled or loaded."""
    if not callable(getattr(made, "forward", None)):
        return
    from torch.jit import ScriptModule

    if isinstance(made, ScriptModule):
        raise InputError(
            f"{name}: expected a torch.nn.Module, found {SCRIPT.what}; give the module itself: "
            "build it from its class and load the state_dict() of this one into it, or export it "
            "to ONNX"
        )


def _named(path: Path) -> str:
    """The names of what can be called without arguments in Python source, which is read and not
    run: path:name, ...; of none the one to add."""
    try:
        tree = ast.parse(read(path, LARGEST_SOURCE))
    except (InputError, OSError, ValueError, SyntaxError, RecursionError, MemoryError):
        return UNMADE.format(path=path)
    names = [node.name for node in tree.body if _is_callable(node)]
    return " or ".join(f"{path}:{name}" for name in names[:MOST_NAMED]) or UNMADE.format(path=path)


def _is_callable(node: ast.stmt) -> TypeGuard[ast.FunctionDef | ast.ClassDef]:
    """Whether a statement defines what can be called so: a function whose parameters all have
    defaults, or a class with a base whose own initialiser is such a function."""
    if isinstance(node, ast.FunctionDef):
        return _required(node) == 0
    made = [n for n in getattr(node, "body", []) if isinstance(n, ast.FunctionDef)]
    starts = [_required(n) for n in made if n.name == "__init__"]
    return isinstance(node, ast.ClassDef) and bool(node.bases) and starts in ([], [1])


def _required(function: ast.FunctionDef) -> int:
    """The number of arguments that a call must have."""
    given = function.args
    own = len(given.posonlyargs) + len(given.args) - len(given.defaults)
    return own + sum(default is None for default in given.kw_defaults)


def _is_script(path: Path) -> bool:
    """Whether a file is an archive with code, as torch.jit.save writes it."""
    try:
        with opened(path) as file, zipfile.ZipFile(file) as archive:
            return any(name.partition("/")[2].startswith("code/") for name in archive.namelist())
    except (OSError, zipfile.BadZipFile, ValueError, NotImplementedError):
        return False
