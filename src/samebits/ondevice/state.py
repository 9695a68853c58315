"""States of PyTorch as bytes that C saves and loads (csrc/ondevice/train_state.c), and back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from samebits.errors import InputError
from samebits.ir.integer.layers import fnv1a
from samebits.ondevice.places import HEADER, SAVED_SCALE, Places
from samebits.spec import formats

MAGIC = b"sbtrain1"
Array = np.ndarray[Any, Any]


@dataclass(frozen=True, eq=False)
class TrainingState:
    """The state of a run after some steps.

    model:   its `state_dict`. moments: the `state` of its optimizer's `state_dict`, by parameter
    step:    how many steps were made
    """

    model: dict[str, Tensor]
    moments: Mapping[int, Mapping[str, Any]]
    step: int


def to_bytes(state: TrainingState, places: Places) -> bytes:
    """The bytes of a state. Raises InputError where parameters have made other numbers of steps."""
    scales, arrays = [], []
    for held in places.parameters:
        name, moments = held.parameter.name, state.moments.get(held.parameter.index, {})
        steps = moments.get("steps", 0)
        if steps != state.step:
            raise InputError(
                f"{name}: expected {state.step} steps, as the run has, found {steps}; compile a "
                "run whose parameters were all trained from its first step on"
            )
        codes, delayed = state.model[f"{name}.codes"], state.model[f"{name}.delayed"]
        momentum = moments.get("momentum")
        moment = torch.zeros_like(delayed) if momentum is None else momentum
        e_v = moments.get("momentum_exponent", formats.EXPONENT_MIN)
        scales += [int(state.model[f"{name}.exponent"]), int(e_v)]
        arrays += [
            _channels_last(codes, "<i1"),
            _channels_last(delayed, "<i2"),
            _channels_last(moment, "<i2"),
        ]
    for statistics, _ in places.statistics:
        arrays.append(state.model[statistics.name].numpy().astype("<f8"))
    body = np.array(scales, "<i4").tobytes() + b"".join(a.tobytes() for a in arrays)
    start = MAGIC + places.network.to_bytes(4, "little") + state.step.to_bytes(4, "little")
    return sealed(start, body)


def sealed(start: bytes, body: bytes) -> bytes:
    """A state by what comes before its checksum, and after it."""
    return start + _checksum(start + body) + body


def from_bytes(data: bytes, places: Places) -> TrainingState:
    """The state of some bytes. Raises InputError for those of another network, and damaged ones."""
    if len(data) != places.saved or data[:8] != MAGIC:
        raise InputError(
            f"expected a saved state of {places.saved} bytes, found {len(data)} bytes that begin "
            f"with {data[:8]!r}; give what NAME_state_save wrote"
        )
    start, body = data[: HEADER - 8], data[HEADER:]
    network = int.from_bytes(data[8:12], "little")
    if network != places.network:
        raise InputError(
            f"expected a state of the network {places.network:#010x}, found one of "
            f"{network:#010x}; give the run that its C was compiled from"
        )
    if data[HEADER - 8 : HEADER] != _checksum(start + body):
        raise InputError("expected the state as it was saved, found a damaged one; save it again")
    step = int.from_bytes(data[12:16], "little")
    count = len(places.parameters)
    scales = np.frombuffer(body, "<i4", 2 * count)
    at = SAVED_SCALE * count
    model: dict[str, Tensor] = {}
    moments: dict[int, dict[str, Any]] = {}
    for i, held in enumerate(places.parameters):
        name, shape, n = held.parameter.name, held.parameter.shape, held.parameter.size
        own = []
        for kind in ("<i1", "<i2", "<i2"):
            array = np.frombuffer(body, kind, n, at)
            at += array.nbytes
            own.append(_channels_first(array, shape))
        model[f"{name}.codes"], model[f"{name}.delayed"], moment = own
        model[f"{name}.exponent"] = torch.tensor(int(scales[2 * i]), dtype=torch.int64)
        moments[held.parameter.index] = {
            "momentum": moment,
            "momentum_exponent": int(scales[2 * i + 1]),
            "steps": step,
        }
    for statistics, _ in places.statistics:
        array = np.frombuffer(body, "<f8", statistics.channels, at)
        at += array.nbytes
        model[statistics.name] = torch.from_numpy(array.astype(np.float64))
    return TrainingState(model, moments if step else {}, step)


def _channels_last(codes: Tensor, kind: str) -> Array:
    """Codes in the order of the device: [o, kh, kw, i]."""
    own = codes.permute(0, 2, 3, 1) if codes.dim() == 4 else codes
    return own.contiguous().numpy().astype(kind)


def _channels_first(codes: Array, shape: tuple[int, ...]) -> Tensor:
    """The inverse of `_channels_last`."""
    native = codes.astype(codes.dtype.newbyteorder("="))
    if len(shape) != 4:
        return torch.from_numpy(native.reshape(shape))
    o, i, h, w = shape
    return torch.from_numpy(native.reshape(o, h, w, i)).permute(0, 3, 1, 2).contiguous()


def _checksum(data: bytes) -> bytes:
    return fnv1a(np.frombuffer(data, np.uint8)).to_bytes(8, "little")
