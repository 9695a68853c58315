"""A data flow as a TensorFlow module: one .py file with one .npz file beside it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from samebits.errors import UnsupportedError
from samebits.npu.concord_graph import Array, DataFlow
from samebits.npu.concord_source import arrays, load_module, module_text


def write_tensorflow(flow: DataFlow, path: Path) -> tuple[Path, ...]:
    """The files written: `path` and its data."""
    data = path.with_suffix(".npz")
    text = module_text(flow, "tensorflow", data.name)
    stored: dict[str, Any] = arrays(flow)
    np.savez(data, **stored)
    path.write_text(text, encoding="utf-8")
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
