"""Weights that a run starts from instead of its seed's: `samebits train --init`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor

from samebits.errors import InputError
from samebits.train.run.checkpoint import HEADER_KEY, checked_entries
from samebits.train.run.restore import open_checkpoint


def initial_weights(
    source: str | Path | Mapping[str, Any], say: Callable[[str], None]
) -> dict[str, Tensor]:
    """The state dict that a run starts from.

    source: a training folder, a checkpoint, a .safetensors file of a state dict, or a state dict.
    Floating-point numbers of 16 bits become float32, which holds them. Raises InputError and
    CheckpointError for what is none of these.
    """
    if isinstance(source, Mapping):
        state, name = dict(source), "init"
    else:
        path = Path(source)
        name = str(path)
        header = {} if path.is_dir() or not path.exists() else _header(path)
        if HEADER_KEY in header or path.is_dir() or not path.exists():
            return open_checkpoint(path, say)[1].model
        state = _plain_file(path)
    for key, value in state.items():
        if not isinstance(value, Tensor):
            found = type(value).__name__
            raise InputError(f"{name}: {key!r}: expected a tensor, found {found}")
    narrow = (torch.float16, torch.bfloat16)
    plain = {key: value.detach().cpu() for key, value in state.items()}
    return {k: value.float() if value.dtype in narrow else value for k, value in plain.items()}


def _header(path: Path) -> dict[str, Any]:
    """The texts in the header of a file, which is to be a .safetensors one."""
    if path.suffix != ".safetensors":
        raise InputError(
            f"{path}: expected a training folder or a .safetensors file of weights, found a file "
            f"ending in {path.suffix or 'nothing'}; write the model's state dict with "
            "safetensors.torch.save_file"
        )
    found = checked_entries(path).get("__metadata__")
    return found if isinstance(found, dict) else {}


def _plain_file(path: Path) -> dict[str, Any]:
    """The tensors of a .safetensors file that no run wrote."""
    try:
        return load(path.read_bytes())
    except (SafetensorError, OSError, ValueError, KeyError, TypeError, RuntimeError) as error:
        raise InputError(
            f"{path}: expected a .safetensors file of a state dict, found a damaged one ({error})"
        ) from None
