"""A data flow as a PyTorch module: one .py file with one .safetensors file beside it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save

from samebits.files import write_atomically
from samebits.npu.concord.graph import DataFlow
from samebits.npu.concord.source import arrays, load_module, module_text

Array = np.ndarray[Any, Any]


def write_torch(flow: DataFlow, path: Path) -> tuple[Path, ...]:
    """The files written: `path` and its data."""
    data = path.with_suffix(".safetensors")
    text = module_text(flow, "torch", data.name)
    write_atomically(data, save({k: np.ascontiguousarray(v) for k, v in arrays(flow).items()}))
    write_atomically(path, text.encode())
    return path, data


def load_torch(path: Path) -> Callable[[Mapping[str, Array]], dict[str, Array]]:
    """A function of inputs [batch, *shape] by name, from a module that `write_torch` wrote."""
    import torch

    model = load_module(path).load()

    def run(inputs: Mapping[str, Array]) -> dict[str, Array]:
        tensors = {name: torch.from_numpy(np.ascontiguousarray(a)) for name, a in inputs.items()}
        with torch.inference_mode():
            return {name: out.numpy() for name, out in model(tensors).items()}

    return run
