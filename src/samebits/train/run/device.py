"""Devices of a run: the CPU, or a GPU of its own for every worker.

Hashes, files and results are made on the CPU.
"""

from __future__ import annotations

import os

import torch
from torch import nn

from samebits.errors import InputError

DEVICES = ("cpu", "cuda")
CPU = torch.device("cpu")


def run_device(name: str) -> torch.device:
    """The device that `name` ("cpu" or "cuda") means in this process; under torchrun the GPU of its
    local rank, from now on this thread's current one.

    Raises InputError for another name, and where there is no such GPU.
    """
    if name not in DEVICES:
        raise InputError(f"expected --device among {', '.join(DEVICES)}, found {name!r}")
    if name == "cpu":
        return CPU
    if not torch.cuda.is_available():
        build = f"torch {torch.__version__}"
        why = "is built without CUDA" if torch.version.cuda is None else "sees no CUDA device"
        raise InputError(
            f"expected a GPU for --device cuda, found none ({build} {why}); give --device cpu "
            "(in BFP the result is the same to the bit), or install a torch for this machine's GPU"
        )
    rank = os.environ.get("LOCAL_RANK", "")
    local, count = int(rank) if rank.isdecimal() else 0, torch.cuda.device_count()
    if local >= count:
        raise InputError(
            f"expected a GPU for every worker of this machine, found {count} for worker "
            f"{local + 1}; start torchrun with --nproc-per-node {count}, or give --device cpu"
        )
    torch.cuda.set_device(local)
    return torch.device("cuda", local)


def device_of(model: nn.Module) -> torch.device:
    """Device of a model's parameters; the CPU if it has none."""
    return next((p.device for p in model.parameters()), CPU)
