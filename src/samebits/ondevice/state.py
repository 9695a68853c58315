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
from samebits.ondevice.optimizer import POWERS
from samebits.ondevice.places import HEADER, Places
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
    scales, arrays, powers = [], [], [1.0, 1.0]
    for held in places.parameters:
        name, moments = held.parameter.name, state.moments.get(held.parameter.index, {})
        steps = moments.get("steps", 0)
        if steps != state.step:
            raise InputError(
                f"{name}: expected {state.step} steps, as the run has, found {steps}; compile a "
                "run whose parameters were all trained from its first step on"
            )
        codes, delayed = state.model[f"{name}.codes"], state.model[f"{name}.delayed"]
        scales.append(int(state.model[f"{name}.exponent"]))
        arrays += [channels_last(codes, "<i1"), channels_last(delayed, "<i2")]
        for kind in places.moments:
            moment = moments.get(kind, torch.zeros_like(delayed))
            scales.append(int(moments.get(f"{kind}_exponent", formats.EXPONENT_MIN)))
            arrays.append(channels_last(moment, "<i2"))
        powers = [moments.get(name, 1.0) for name in POWERS]
    for statistics, _ in places.statistics:
        arrays.append(state.model[statistics.name].numpy().astype("<f8"))
    if places.powers is not None:
        arrays.append(np.array(powers, "<f8"))
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
    each = 1 + len(places.moments)
    scales = np.frombuffer(body, "<i4", each * len(places.parameters))
    at = scales.nbytes
    model: dict[str, Tensor] = {}
    moments: dict[int, dict[str, Any]] = {}
    for i, held in enumerate(places.parameters):
        name, shape, n = held.parameter.name, held.parameter.shape, held.parameter.size
        own, exponents = [], scales[each * i : each * (i + 1)].tolist()
        for kind in ("<i1", *["<i2"] * each):
            array = np.frombuffer(body, kind, n, at)
            at += array.nbytes
            own.append(_channels_first(array, shape))
        model[f"{name}.codes"], model[f"{name}.delayed"] = own[:2]
        model[f"{name}.exponent"] = torch.tensor(exponents[0], dtype=torch.int64)
        kept: dict[str, Any] = {"steps": step}
        for kind, moment, e in zip(places.moments, own[2:], exponents[1:], strict=True):
            kept |= {kind: moment, f"{kind}_exponent": e}
        moments[held.parameter.index] = kept
    for statistics, _ in places.statistics:
        array = np.frombuffer(body, "<f8", statistics.channels, at)
        at += array.nbytes
        model[statistics.name] = torch.from_numpy(array.astype(np.float64))
    if places.powers is not None:
        powers = np.frombuffer(body, "<f8", len(POWERS), at).tolist()
        for kept in moments.values():
            kept |= dict(zip(POWERS, powers, strict=True))
    return TrainingState(model, moments if step else {}, step)


def channels_last(codes: Tensor, kind: str) -> Array:
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
