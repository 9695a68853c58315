"""Memory measured from real tensor storages, not from formulas."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from samebits.train.run.engine import Batch, Engine
from samebits.train.tensor import BFPParameter, BFPTensor
from samebits.train.value import BFPValue

_STATE_KEYS = ("codes", "delayed", "exponent")


def storages(value: Any) -> Iterator[torch.Tensor]:
    """The plain tensors inside containers, BFP tensors and their values."""
    if isinstance(value, BFPTensor):
        yield from storages(value.value)
    elif isinstance(value, BFPValue):
        yield from value.held()
    elif isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from storages(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from storages(item)


def distinct_storages(tensors: Iterator[torch.Tensor]) -> dict[int, tuple[int, int]]:
    """Bytes and elements of every distinct storage, by address."""
    found: dict[int, tuple[int, int]] = {}
    for tensor in tensors:
        storage = tensor.untyped_storage()
        if storage.nbytes():
            found[storage.data_ptr()] = (
                storage.nbytes(),
                storage.nbytes() // tensor.element_size(),
            )
    return found


def bytes_per_parameter(engine: Engine, parameters: int, average: Any = None) -> float:
    """Persistent bytes of weights, delayed updates and optimizer state, per parameter.

    average: of the weights, where a run keeps one
    """
    names = {name for name, _ in engine.model.named_parameters()}
    state = engine.model.state_dict()
    weights = [
        tensor
        for name, tensor in state.items()
        if name in names or name.rpartition(".")[2] in _STATE_KEYS
    ]
    found = distinct_storages(storages([weights, engine.optimizer.state_dict()["state"], average]))
    return sum(size for size, _ in found.values()) / parameters


def saved_activations(engine: Engine, batch: Batch) -> tuple[int, int]:
    """Bytes and elements that one forward pass keeps for its backward pass, without weights.

    Each storage counts once however often it is saved. The model's state is left as it was.
    """
    engine.model.train()
    before = {name: tensor.clone() for name, tensor in engine.model.state_dict().items()}
    kept: list[torch.Tensor] = []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        kept.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = engine.loss(batch)
        own = distinct_storages(
            storages([list(engine.model.parameters()), dict(engine.model.state_dict())])
        )
        found = distinct_storages(storages(kept))
    del loss
    kept.clear()
    engine.model.load_state_dict(before)
    counted = [entry for address, entry in found.items() if address not in own]
    return sum(size for size, _ in counted), sum(count for _, count in counted)


def weight_codes(model: torch.nn.Module) -> dict[str, list[float]]:
    """Three figures of every weight in BFP, by its path: its exponent (the mean where rows have
    their own), the shares of codes that are zero, and that are as large as its layer allows."""
    found = {}
    for name, parameter in model.named_parameters():
        if isinstance(parameter, BFPParameter):
            size = parameter.codes.abs()
            found[name] = [
                float(parameter.exponent_cell.double().mean()),
                float((size == 0).double().mean()),
                float((size >= parameter.largest_allowed).double().mean()),
            ]
    return found
