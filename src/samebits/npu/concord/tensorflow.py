"""A data flow as a TensorFlow module: one .py file with one .npz file beside it."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from samebits.errors import UnsupportedError
from samebits.files import write_atomically
from samebits.npu.concord.graph import Array, DataFlow
from samebits.npu.concord.source import arrays, load_module, module_text


def write_tensorflow(flow: DataFlow, path: Path) -> tuple[Path, ...]:
    """The files written: `path` and its data."""
    data = path.with_suffix(".npz")
    text = module_text(flow, "tensorflow", data.name)
    stored: dict[str, Any] = arrays(flow)
    archive = io.BytesIO()
    np.savez(archive, **stored)
    write_atomically(data, archive.getvalue())
    write_atomically(path, text.encode())
    return path, data


def load_tensorflow(path: Path) -> Callable[[Mapping[str, Array]], dict[str, Array]]:
    """A function of inputs [batch, *shape] by name, from a module that `write_tensorflow` wrote.

    Raises UnsupportedError without TensorFlow.
    """
    try:
        import tensorflow as tf
    except ImportError as error:
        raise UnsupportedError(
            f"{path}: expected TensorFlow to run it, found none installed; pip install tensorflow, "
            "or translate to torch or onnx"
        ) from error
    model = load_module(path).load()

    def run(inputs: Mapping[str, Array]) -> dict[str, Array]:
        out = model({name: tf.constant(array) for name, array in inputs.items()})
        return {name: tensor.numpy() for name, tensor in out.items()}

    return run
