"""The hash of a network of a user's own: whether code that a name stands for is still the same.

A run records it, so that it is not resumed, and its checkpoints are not evaluated, with other code
of the same name whose tensors happen to fit. It is made of what is computed, not of the text that
says so: names and classes of the modules, and the operations of one forward pass over zeros.
"""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from samebits.errors import CheckpointError
from samebits.train.architectures import ARCHITECTURES, Shape
from samebits.train.operation import TrainingOperation, interpreting
from samebits.train.run.config import TrainConfig
from samebits.train.run.engine import Engine
from samebits.train.value import BFPValue

SAMPLES = 2  # of the forward pass
KEY = "network_sha256"  # of a run's record
DIGITS = 16  # of the hash that are kept


def network_sha256(config: TrainConfig, engine: Engine, shape: Shape, rows: bool) -> str | None:
    """The hash of the network of an engine, before its weights are another's; None of an
    architecture of samebits, whose name says what it is.

    shape, rows: as `Dataset.input_shape` and `Dataset.rows`
    """
    if config.arch in ARCHITECTURES:
        return None
    modules = [(name, type(module).__name__) for name, module in engine.model.named_modules()]
    dtype = torch.int64 if len(shape) == 1 and not rows else torch.float32
    x = torch.zeros((SAMPLES, *shape), dtype=dtype, device="cpu")
    text = json.dumps([modules, _operations(engine, x, config.numerics)])
    return hashlib.sha256(text.encode()).hexdigest()[:DIGITS]


def check_network(path: Path, config: TrainConfig, recorded: object, found: str | None) -> None:
    """CheckpointError where a checkpoint is of another network than the one of its name now."""
    if recorded is not None and recorded != found:
        raise CheckpointError(
            f"{path}: it was trained as another network than {config.arch!r} is now: expected "
            f"modules and operations of hash {recorded}, found {found}; bring the code back that "
            "it was trained with, or train again with another --out"
        )


def _operations(engine: Engine, x: Tensor, numerics: str) -> list[Any] | None:
    """The operations of a forward pass in evaluation mode, with their constants and sizes.

    It is that of a copy, and leaves generators of random numbers as they were. None of a network
    that cannot be copied or computed so.
    """
    heard: list[Any] = []

    def compute(operation: TrainingOperation, *arguments: Any) -> Any:
        heard.append((operation.name, _plain(arguments)))
        return operation.output(*arguments)

    states = random.getstate(), np.random.get_state()  # noqa: NPY002
    try:
        model = copy.deepcopy(engine.model).eval()
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            taken = engine.real_input(x)
            with interpreting(compute) if numerics == "bfp" else _Functions(heard):
                model(taken)
    except Exception:  # the network's own code: the modules alone tell what it is
        return None
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])  # noqa: NPY002
    return heard


class _Functions(TorchFunctionMode):
    """Notes torch's functions that a network in float32 calls, not what these call."""

    def __init__(self, heard: list[Any]) -> None:
        super().__init__()
        self.heard = heard

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if isinstance(result, Tensor):
            given = (*args, *(kwargs or {}).items())
            self.heard.append((getattr(func, "__name__", ""), _plain(given)))
        return result


def _plain(value: Any) -> Any:
    """Constants as they are, tensors by their sizes, other objects by their class."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Tensor | BFPValue):
        return list(value.shape)
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    if dataclasses.is_dataclass(value):
        own = (getattr(value, field.name) for field in dataclasses.fields(value))
        return [type(value).__name__, *map(_plain, own)]
    return type(value).__name__
