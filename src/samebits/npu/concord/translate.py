"""Concordant software: a program of the neural processor as PyTorch, ONNX or TensorFlow code with
the simulator's results, bit for bit."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from samebits.errors import InputError
from samebits.npu.concord.dataflow import data_flow
from samebits.npu.machine.program import Image, Program

Array = np.ndarray[Any, Any]
Concordant = Callable[[Mapping[str, Array]], dict[str, Array]]
"""Inputs [batch, *shape] by name, floating point, rounded to binary16 -> outputs in binary16."""

SUFFIXES = {"torch": ".py", "onnx": ".onnx", "tensorflow": ".py"}
DATA = {".safetensors": "torch", ".npz": "tensorflow"}


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
    if kind == "torch":
        from samebits.npu.concord.torch import write_torch

        return write_torch(flow, path)
    from samebits.npu.concord.tensorflow import write_tensorflow

    return write_tensorflow(flow, path)


def load_concordant(path: Path) -> Concordant:
    """The function that a file written by `translate` computes. It runs the file: load only your
    own. Raises InputError if the file or its data is missing."""
    kind = "onnx" if path.suffix == ".onnx" else None
    for suffix, found in DATA.items():
        if kind is None and path.with_suffix(suffix).exists():
            kind = found
    if kind is None or not path.exists():
        raise InputError(
            f"{path}: expected a file written by `samebits concord` with its data beside it "
            f"({path.stem}.safetensors or {path.stem}.npz, none for .onnx), found none; translate "
            "the program again"
        )
    if kind == "onnx":
        from samebits.npu.concord.onnx import load_onnx

        return load_onnx(path)
    if kind == "torch":
        from samebits.npu.concord.torch import load_torch

        return load_torch(path)
    from samebits.npu.concord.tensorflow import load_tensorflow

    return load_tensorflow(path)
