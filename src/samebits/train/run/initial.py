"""Weights that a run starts from instead of its seed's: `samebits train --init`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor

from samebits.errors import CheckpointError, InputError
from samebits.train.run.checkpoint import (
    HEADER_KEY,
    checked_entries,
    read_checkpoint,
    read_weights,
)
from samebits.train.run.restore import open_checkpoint


def initial_weights(
    source: str | Path | Mapping[str, Any], numerics: str, say: Callable[[str], None]
) -> dict[str, Tensor]:
    """The state dict that a run starts from.

    source: a training folder, a checkpoint, a .safetensors file of a state dict, or a state dict.
    numerics: those of the run; a float32 run takes real values alone. Floating-point numbers of 16
    bits become float32, which holds them. Raises InputError and CheckpointError for what is none of
    these, and for NaN and infinity; -inf stays for the model to judge, whose masks may hold it.
    """
    state: Mapping[str, Any]
    if isinstance(source, Mapping):
        state, name = source, "init"
    else:
        state, name = _read(Path(source), say), str(source)
    found = {key: _checked(f"{name}: {key!r}", value) for key, value in state.items()}
    if numerics == "float32" and any(key.endswith(".codes") for key in found):
        raise InputError(
            f"{name}: expected real values for a float32 run, found the integers of a BFP run; "
            "start a run of numerics bfp from them, or give weights trained in float32"
        )
    return found


def _checked(where: str, value: Any) -> Tensor:
    """A tensor of a state dict, of a type that parameters and constants have, on the CPU."""
    if not isinstance(value, Tensor):
        raise InputError(f"{where}: expected a tensor, found {type(value).__name__}")
    if value.layout is not torch.strided or value.dtype not in KINDS:
        raise InputError(
            f"{where}: expected real numbers or integers, found {value.dtype} ({value.layout})"
        )
    plain = value.detach().cpu()
    if plain.is_floating_point() and not bool((plain < torch.inf).all()):  # -inf: a mask has it
        raise InputError(f"{where}: expected finite numbers, found NaN or infinity")
    return plain.float() if value.dtype in (torch.float16, torch.bfloat16) else plain


KINDS = (
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64),
    *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
)


def _read(path: Path, say: Callable[[str], None]) -> dict[str, Any]:
    """The tensors of a file or folder."""
    if not path.exists():
        raise InputError(
            f"{path}: no such file or folder; expected a .safetensors file of weights, a training "
            "folder or a checkpoint"
        )
    if path.is_dir():
        return open_checkpoint(path, say)[1].model
    if path.suffix != ".safetensors":
        raise InputError(
            f"{path}: expected a training folder or a .safetensors file of weights, found a file "
            f"ending in {path.suffix or 'nothing'}; write the model's state dict with "
            "safetensors.torch.save_file"
        )
    try:
        data = read_weights(path)
        header = checked_entries(path, data).get("__metadata__")
        if isinstance(header, dict) and HEADER_KEY in header:
            return read_checkpoint(path).model
        return load(data)
    except (
        *(CheckpointError, SafetensorError, OSError),
        *(ValueError, KeyError, TypeError, RuntimeError),
    ) as error:
        reason = str(error).removeprefix(f"{path}: ").split("; delete it")[0]
        raise InputError(
            f"{path}: expected a .safetensors file of weights, found a damaged one ({reason}); "
            "write or download it again"
        ) from None
