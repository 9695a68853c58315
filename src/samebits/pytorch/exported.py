"""Exported programs from untrusted .pt2 files.

torch's own reader runs what a file says in several places: pickled tensors, objects and example
inputs, shapes as expressions of sympy, structures of arguments that name modules, libraries beside
the model, and calls of any function that can be reached from the module torch. So torch never sees
the file: what a program needs (JSON and plain tensors) is checked, and written to an archive of our
own in memory, which torch then reads with unpickling restricted to tensors.
"""

from __future__ import annotations

import importlib
import io
import json
import logging
import math
import os
import re
import warnings
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.export import ExportedProgram

from samebits import ledger
from samebits.entrance import opened
from samebits.errors import InputError, UnsupportedError
from samebits.files import check_packing
from samebits.ir import Graph
from samebits.pytorch.importer import import_program
from samebits.settled import tracing

LARGEST = 1 << 32  # bytes of all members together
LARGEST_JSON = 1 << 28
COPIES = 4  # of the members, while torch reads them
LARGEST_TENSORS = 1 << 30  # elements of all tensors together
ADVICE = "save it again with torch.export.save"
MODEL = "models/model.json"
CONFIGS = {
    "data/weights": "data/weights/model_weights_config.json",
    "data/constants": "data/constants/model_constants_config.json",
}
PLAIN = ("archive_format", "archive_version", "byteorder", ".data/version")
EXAMPLES = "data/sample_inputs/model.pt"
TENSOR = re.compile(r"(weight|tensor)_[0-9]{1,9}")
OPERATORS = re.compile(
    r"torch\.ops\.(aten|quantized_decomposed)(\.[a-zA-Z0-9_]+){1,2}|_operator\.getitem|"
    r"torch\.ops\.torchao\.(choose_qparams|quantize|dequantize)_affine(\.default)?"
)
DEFINING = {
    "torch.ops.quantized_decomposed.": "torch.ao.quantization.fx._decomposed",
    "torch.ops.torchao.": "torchao.quantization.quant_primitives",
}
"""The modules that define the operators whose names begin so, outside of ATen."""
STRUCTURES = ("builtins.tuple", "builtins.list", "builtins.dict", None)
SAFE_READING = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"  # of torch.load: tensors and plain data alone

Members = dict[str, bytes]


def read_exported(path: Path) -> Graph:
    """The real graph of a file that torch.export.save wrote.

    Raises InputError for a file that is none, is damaged, or asks torch to run anything but
    operators; UnsupportedError for open dimensions and operators without a counterpart.
    """
    members = _members(path)
    program = _json(path, members, MODEL)
    _check_program(path, program)
    with _silent():
        _define_operators(path, program)
    kept = {name: members[name] for name in PLAIN if name in members}
    kept[MODEL] = members[MODEL]
    total = 0
    for folder, config in CONFIGS.items():
        entries = _json(path, members, config)
        for name, elements in _tensors(path, entries):
            kept[f"{folder}/{name}"] = _member(path, members, f"{folder}/{name}")
            total += elements
        kept[config] = members[config]
        if total > LARGEST_TENSORS:
            raise InputError(
                f"{path}: expected at most {LARGEST_TENSORS} elements of tensors, found {total}"
            )
    with _silent():
        return import_program(_loaded(path, kept), str(path), trusted=False)


def _members(path: Path) -> Members:
    """The members of the archive by their names below its one folder; of two with one name the
    last."""
    try:
        with opened(path) as file, zipfile.ZipFile(file) as archive:
            size = sum(member.file_size for member in archive.infolist())
            if size > LARGEST:
                raise InputError(f"{path}: expected at most {LARGEST} bytes, found {size}")
            check_packing(path, archive.infolist())
            ledger.keep(COPIES * size, str(path))
            for member in archive.infolist():
                if member.filename.endswith(".json") and member.file_size > LARGEST_JSON:
                    raise InputError(
                        f"{path}: expected at most {LARGEST_JSON} bytes of {member.filename!r}"
                    )
            members = {
                member.filename.partition("/")[2]: archive.read(member)
                for member in archive.infolist()
            }
    except FileNotFoundError:
        raise InputError(
            f"{path}: expected an exported program (.pt2), found no such file; give the path of one"
        ) from None
    except InputError:
        raise
    except Exception as error:  # a damaged archive may raise anything
        raise InputError(
            f"{path}: expected an exported program (.pt2), found a file that is no archive "
            f"({error}); {ADVICE}"
        ) from None
    if MODEL not in members:
        raise InputError(f"{path}: expected an exported program, found no model in it; {ADVICE}")
    _member(path, members, "archive_version")
    return members


def _member(path: Path, members: Mapping[str, bytes], name: str) -> bytes:
    if name not in members:
        raise InputError(f"{path}: expected {name!r} in the archive, found none; {ADVICE}")
    return members[name]


def _json(path: Path, members: Mapping[str, bytes], name: str) -> Any:
    """The data of a JSON member. Raises InputError."""
    try:
        return json.loads(_member(path, members, name))
    except (ValueError, RecursionError) as error:
        raise InputError(
            f"{path}: expected JSON in {name!r}, found none ({error}); {ADVICE}"
        ) from None


def _tensors(path: Path, config: Any) -> Iterator[tuple[str, int]]:
    """The members that a configuration names, and their numbers of elements."""
    entries = config.get("config") if isinstance(config, dict) else None
    if not isinstance(entries, dict) or not all(isinstance(e, dict) for e in entries.values()):
        raise InputError(f"{path}: expected a table of tensors, found none; {ADVICE}")
    for entry in entries.values():
        name, meta = entry.get("path_name"), entry.get("tensor_meta")
        plain = isinstance(name, str) and TENSOR.fullmatch(name) is not None
        if not plain or entry.get("use_pickle") is not False:
            raise InputError(
                f"{path}: expected plain tensors, found the pickled object {str(name)[:100]!r}, "
                "which could run code; export the module without it"
            )
        assert isinstance(name, str)
        sizes = meta.get("sizes") if isinstance(meta, dict) else None
        listed = sizes if isinstance(sizes, list) else [None]
        found: list[Any] = [s.get("as_int") if isinstance(s, dict) else None for s in listed]
        if not all(type(s) is int and s >= 0 for s in found):
            raise InputError(
                f"{path}: expected names and sizes of tensors, found others for {name!r}; {ADVICE}"
            )
        yield name, math.prod(found)


def _check_program(path: Path, program: Any) -> None:
    """InputError or UnsupportedError unless torch may be trusted with the program."""
    for entry in _dicts(program):
        if "expr_str" in entry:
            raise UnsupportedError(
                f"{path}: expected fixed shapes, found an open dimension; export without "
                "dynamic_shapes"
            )
        if {"target", "inputs", "outputs"} <= entry.keys():
            target = entry["target"]
            if not isinstance(target, str) or not OPERATORS.fullmatch(target):
                raise UnsupportedError(
                    f"{path}: expected calls of ATen operators, found {str(target)[:100]!r}; "
                    "save program.run_decompositions({}), or export the module without it"
                )
        for key in ("in_spec", "out_spec"):
            if key in entry:
                _check_structure(path, entry[key])


def _define_operators(path: Path, program: Any) -> None:
    """Import what defines the operators of a checked program, for torch knows ATen's alone."""
    calls = (entry for entry in _dicts(program) if {"target", "inputs", "outputs"} <= entry.keys())
    targets = {call["target"] for call in calls}
    for start, module in DEFINING.items():
        if not any(target.startswith(start) for target in targets):
            continue
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                importlib.import_module(module)
        except ImportError as error:
            package = module.partition(".")[0]
            raise UnsupportedError(
                f"{path}: expected {package}, whose operators the program calls, found none "
                f"({error}); pip install {package}"
            ) from None


def _check_structure(path: Path, text: Any) -> None:
    """UnsupportedError unless arguments or results are plain containers of tensors."""
    try:
        structure = json.loads(text)
    except (TypeError, ValueError, RecursionError):
        raise InputError(
            f"{path}: expected the structure of arguments and results, found none; {ADVICE}"
        ) from None
    for entry in _dicts(structure):
        kind, context = entry.get("type"), entry.get("context")
        if kind not in STRUCTURES or (isinstance(context, str) and "__enum__" in context):
            raise UnsupportedError(
                f"{path}: expected arguments and results in tuples, lists and dicts, found "
                f"{str(kind)[:100]!r}; export a module without it"
            )


def _dicts(data: Any) -> Iterator[dict[str, Any]]:
    """Every dict inside JSON data; iterative, for the depth is the file's choice."""
    rest = [data]
    while rest:
        item = rest.pop()
        if isinstance(item, dict):
            yield item
            rest.extend(item.values())
        elif isinstance(item, list):
            rest.extend(item)


def _loaded(path: Path, members: Members) -> ExportedProgram:
    """The program of checked members, read by torch from an archive of our own."""
    examples = io.BytesIO()
    torch.save(((), {}), examples)
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for name, data in {**members, EXAMPLES: examples.getvalue()}.items():
            archive.writestr(f"program/{name}", data)
    stream.seek(0)
    with tracing(), _tensors_only(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            program: ExportedProgram = torch.export.load(stream)
        except Exception as error:  # a damaged file may raise anything in torch's reader
            raise InputError(
                f"{path}: expected an exported program of torch {torch.__version__}, found one "
                f"that torch cannot read ({type(error).__name__}); {ADVICE}"
            ) from None
    program._example_inputs = None  # else decomposition would try the empty ones
    return program


@contextmanager
def _silent() -> Iterator[None]:
    """torch logs the traceback of what it cannot read; the error that is raised says it."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)


@contextmanager
def _tensors_only() -> Iterator[None]:
    """torch.load unpickles tensors and plain data alone, whatever its caller asks for."""
    before = os.environ.get(SAFE_READING)
    os.environ[SAFE_READING] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[SAFE_READING]
        else:
            os.environ[SAFE_READING] = before
