"""Concordant software: a program of the neural processor as PyTorch, ONNX, TensorFlow or C code
with the simulator's results, bit for bit.

For PyTorch and TensorFlow it is a module of its own, one .py file with its arrays beside it
(.safetensors or .npz); for ONNX and C it is one file.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy

from samebits.errors import InputError, UnsupportedError
from samebits.files import write_atomically
from samebits.npu.concord.c import load_c, write_c
from samebits.npu.concord.dataflow import data_flow
from samebits.npu.concord.graph import Array, DataFlow
from samebits.npu.concord.source import arrays, load_module, module_text
from samebits.npu.machine.image import fitted
from samebits.npu.machine.program import Image, Program

Concordant = Callable[[Mapping[str, Array]], dict[str, Array]]
"""Inputs [batch, *shape] by name, floating point, rounded to binary16 -> outputs in binary16."""

SUFFIXES = {"torch": ".py", "onnx": ".onnx", "tensorflow": ".py", "c": ".c"}
DATA = {"torch": ".safetensors", "tensorflow": ".npz"}


def translate(program: Program, image: Image, kind: str, path: Path) -> tuple[Path, ...]:
    """Write concordant software to `path`; the files written (arrays of a .py lie beside it).

    Raises InputError for an illegal program, an unknown kind or a file name that does not fit it,
    UnsupportedError for a program that is too large.
    """
    if kind not in SUFFIXES:
        raise InputError(f"expected one of {', '.join(SUFFIXES)} to translate to, found {kind!r}")
    if path.suffix != SUFFIXES[kind]:
        raise InputError(
            f"{path}: expected a file name that ends in {SUFFIXES[kind]} for {kind}, found "
            f"{path.suffix or 'none'}; choose another name"
        )
    flow = data_flow(program, image)
    path.parent.mkdir(parents=True, exist_ok=True)
    if kind == "onnx":
        from samebits.npu.concord.onnx import write_onnx

        return write_onnx(flow, path)
    if kind == "c":
        return write_c(flow, path)
    return _write_source(flow, kind, path)


def _write_source(flow: DataFlow, kind: str, path: Path) -> tuple[Path, ...]:
    data, stored = path.with_suffix(DATA[kind]), dict[str, Any](arrays(flow))
    text = module_text(flow, kind, data.name)
    if kind == "torch":
        packed = safetensors.numpy.save({k: np.ascontiguousarray(a) for k, a in stored.items()})
    else:
        archive = io.BytesIO()
        np.savez(archive, **stored)
        packed = archive.getvalue()
    write_atomically(data, packed)
    write_atomically(path, text.encode())
    return path, data


def load_concordant(path: Path) -> Concordant:
    """The function that a file written by `translate` computes. It runs the file: load only your
    own.

    Raises InputError if the file or its data is missing, UnsupportedError if what it is written for
    is not installed.
    """
    kind = {".onnx": "onnx", ".c": "c"}.get(path.suffix)
    for found, suffix in DATA.items():
        if kind is None and path.with_suffix(suffix).exists():
            kind = found
    if kind is None or not path.exists():
        raise InputError(
            f"{path}: expected a file written by `samebits concord` with its data beside it "
            f"({path.stem}.safetensors or {path.stem}.npz, none for .onnx and .c), found none; "
            "translate the program again"
        )
    if kind == "onnx":
        from samebits.npu.concord.onnx import load_onnx

        return load_onnx(path)
    if kind == "c":
        return load_c(path)
    return _load_torch(path) if kind == "torch" else _load_tensorflow(path)


def _fitted(inputs: Mapping[str, Array], shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Array]:
    """Inputs in the shapes of a module, where they differ in axes of 1 alone."""
    return {name: fitted(a, shapes[name]) if name in shapes else a for name, a in inputs.items()}


def _load_torch(path: Path) -> Concordant:
    import torch

    model = load_module(path).load()

    def run(inputs: Mapping[str, Array]) -> dict[str, Array]:
        arrays = _fitted(inputs, model.inputs)
        tensors = {name: torch.from_numpy(np.ascontiguousarray(a)) for name, a in arrays.items()}
        with torch.inference_mode():
            return {name: out.numpy() for name, out in model(tensors).items()}

    return run


def _load_tensorflow(path: Path) -> Concordant:
    """Raises UnsupportedError without TensorFlow."""
    try:
        import tensorflow as tf
    except ImportError as error:
        raise UnsupportedError(
            f"{path}: expected TensorFlow to run it, found none installed; pip install tensorflow, "
            "or translate to torch or onnx"
        ) from error
    model = load_module(path).load()

    def run(inputs: Mapping[str, Array]) -> dict[str, Array]:
        arrays = _fitted(inputs, model.inputs)
        out = model({name: tf.constant(array) for name, array in arrays.items()})
        return {name: tensor.numpy() for name, tensor in out.items()}

    return run
