"""State dicts of BFP layers: their integers, or the real values of their float twins."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from samebits.errors import SamebitsError
from samebits.spec import formats
from samebits.train.tensor import BFPParameter

PARTS = ("codes", "exponent", "delayed")
PEAKS = "channel_peak"
"""A buffer of layers whose channels have shifts (training.md 12.4); a float twin has none."""
STATISTICS = ("running_mean", "running_var")
IGNORED = "num_batches_tracked"
"""A counter of float batch-norms, on which nothing here depends."""


class Found(NamedTuple):
    """A layer's part of a state dict.

    values:  of its own entries, by their keys, of the right type and shape
    claimed: the keys that are its own, whether they are there or not
    missing: those of them that are not
    wrong:   messages that begin with the key
    """

    values: dict[str, Tensor]
    claimed: set[str]
    missing: list[str]
    wrong: list[str]


def entries(layer: nn.Module, prefix: str) -> Iterator[tuple[str, Tensor]]:
    """The integers of a layer's own parameters, and its buffers, by their keys."""
    for name, parameter in layer._parameters.items():
        if isinstance(parameter, BFPParameter):
            tensors = (parameter.codes, parameter.exponent_cell, parameter.delayed)
            for part, tensor in zip(PARTS, tensors, strict=True):
                yield f"{prefix}{name}.{part}", tensor
        elif parameter is not None:  # of a module that stays in float32
            yield prefix + name, parameter
    for name, buffer in layer._buffers.items():
        if buffer is not None and name not in layer._non_persistent_buffers_set:
            yield prefix + name, buffer


def parameters_of(layer: nn.Module, prefix: str) -> dict[str, BFPParameter]:
    """A layer's own parameters, by the keys that its float twin has for them."""
    own: dict[str, Any] = layer._parameters
    return {prefix + name: p for name, p in own.items() if isinstance(p, BFPParameter)}


def find(layer: nn.Module, state: Mapping[str, Any], prefix: str, real: bool) -> Found:
    """Look up a layer's part of a state dict, which is not trusted; nothing is changed.

    real: whether it is that of the float twin, whose values are rounded as `convert` rounds them
          (training.md 2); statistics become float64
    """
    parameters = parameters_of(layer, prefix)
    found = Found({}, {prefix + IGNORED} if real else set(), [], [])
    for key, own in entries(layer, prefix):
        if real and key.rpartition(".")[0] in parameters:
            continue
        if real and key == prefix + PEAKS and key not in state:
            found.claimed.add(key)
            continue
        value = _value(state, key, str(own.dtype), own.shape, found)
        if value is None:
            continue
        if value.is_floating_point() and own.is_floating_point() and real:
            value = value.to(own.dtype)
        if value.dtype != own.dtype:
            found.wrong.append(_misfit(key, str(own.dtype), own.shape, value))
        elif wrong := _out_of_range(key, value, parameters.get(key.rpartition(".")[0])):
            found.wrong.append(f"{key}: {wrong}")
        else:
            found.values[key] = value
    if real:
        for key, parameter in parameters.items():
            found.values.update(_rounded(state, key, parameter, found))
    return found


def _value(
    state: Mapping[str, Any], key: str, kind: str, shape: torch.Size, found: Found
) -> Tensor | None:
    """An entry of a shape; None, which `found` says, where there is no such one."""
    found.claimed.add(key)
    value = state.get(key)
    if value is None:
        found.missing.append(key)
    elif not isinstance(value, Tensor):
        found.wrong.append(f"{key}: expected a tensor, found {type(value).__name__}")
    elif value.shape != shape:
        found.wrong.append(_misfit(key, kind, shape, value))
    else:
        return value
    return None


def _misfit(key: str, kind: str, shape: torch.Size, value: Tensor) -> str:
    return f"{key}: expected {kind} {tuple(shape)}, found {value.dtype} {tuple(value.shape)}"


def _rounded(
    state: Mapping[str, Any], key: str, parameter: BFPParameter, found: Found
) -> dict[str, Tensor]:
    """The integers of a parameter from its real values, by their keys."""
    both = [f"{key}.{part}" for part in PARTS if f"{key}.{part}" in state]
    if both:
        found.claimed.update(both)
        found.wrong.append(f"{key}: expected real values or integers, found {both[0]} beside them")
        return {}
    value = _value(state, key, "real values", parameter.shape, found)
    if value is None:
        return {}
    if not value.is_floating_point():
        found.wrong.append(_misfit(key, "real values", parameter.shape, value))
        return {}
    try:
        by_rows = isinstance(parameter.exponent, Tensor)
        new = BFPParameter.from_real(value, key, by_rows, parameter.widths)
    except SamebitsError as error:
        found.wrong.append(f"{key}: {error}")
        return {}
    tensors = (new.codes, new.exponent_cell, new.delayed)
    return {f"{key}.{part}": t for part, t in zip(PARTS, tensors, strict=True)}


def _out_of_range(key: str, value: Tensor, parameter: BFPParameter | None) -> str | None:
    """Why a stored tensor cannot be a parameter's state, None if it can: files are untrusted."""
    most = formats.CODE_MAX[parameter.widths.values] if parameter is not None else formats.Q8
    limits = {
        "codes": (-most, most),
        "delayed": (-(1 << 14), 1 << 14),
        "exponent": (formats.EXPONENT_MIN, formats.EXPONENT_MAX),
    }
    bounds = None if parameter is None else limits[key.rsplit(".", 1)[-1]]
    if value.numel() == 0:
        return None
    if bounds is None and not key.endswith((*STATISTICS, PEAKS)):
        return None  # a constant of a user's module
    if bounds is None:
        signed = not key.endswith(("_var", PEAKS))
        if torch.isfinite(value).all() and (signed or not bool((value < 0).any())):
            return None
        what = "magnitudes" if key.endswith(PEAKS) else "statistics and variances"
        return f"expected finite {what} >= 0"
    low, high = int(value.min()), int(value.max())
    if bounds[0] <= low and high <= bounds[1]:
        return None
    return f"expected integers in [{bounds[0]}, {bounds[1]}], found {low} to {high}"


def refuse_wrong(
    model: nn.Module, state: Mapping[str, Any], prefix: str, *of_torch: object
) -> None:
    """Refuse a state with wrong entries before any layer has taken its own.

    A hook of `load_state_dict`, which says nothing about strictness: keys that are missing or
    unexpected are left to torch. Raises RuntimeError with every wrong key, as torch does.
    """
    _raise(model, examine(model, state, prefix).wrong)


def refuse(model: nn.Module, state: Mapping[str, Any]) -> None:
    """Refuse a state that is not the whole one of a model, and of nothing else.

    Raises RuntimeError with every key that is wrong, missing or unexpected, as torch does.
    """
    found = examine(model, state, "")
    lines = list(found.wrong)
    unexpected = [key for key in state if key not in found.claimed]
    for what, keys in (("Unexpected", unexpected), ("Missing", found.missing)):
        if keys:
            listed = ", ".join(f'"{key}"' for key in keys)
            lines.insert(0, f"{what} key(s) in state_dict: {listed}. ")
    _raise(model, lines)


def examine(model: nn.Module, state: Mapping[str, Any], prefix: str) -> Found:
    """Look up the parts of all layers of a model. Integers beside real values are wrong."""
    layers = {
        f"{prefix}{name}." if name else prefix: module
        for name, module in model.named_modules(remove_duplicate=False)
    }
    keys = [key for at, layer in layers.items() for key in parameters_of(layer, at)]
    real = [key for key in keys if key in state]
    integers = [f"{key}.codes" for key in keys if f"{key}.codes" in state]
    if real and integers:
        text = f"{integers[0]}: expected real values, as {real[0]} has, found integers"
        return Found({}, set(state), [], [text])
    whole = Found({}, set(), [], [])
    for at, layer in layers.items():
        found = find(layer, state, at, bool(real))
        whole.claimed.update(found.claimed)
        whole.missing.extend(found.missing)
        whole.wrong.extend(found.wrong)
    return whole


def _raise(model: nn.Module, lines: list[str]) -> None:
    if lines:
        text = "\n\t".join(lines)
        raise RuntimeError(f"Error(s) in loading state_dict for {type(model).__name__}:\n\t{text}")
