"""Base of all layers: integers in `state_dict()`, errors that name the layer."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor, nn

from samebits.errors import CheckpointError, RangeError, UnsupportedError
from samebits.train.eager import WORDS, require_eager
from samebits.train.operations.narrow import as_bfp8
from samebits.train.shifts import ChannelPeaks
from samebits.train.state import PEAKS, entries, find, parameters_of, refuse
from samebits.train.tensor import BFPParameter, BFPTensor

WHERE: ContextVar[str] = ContextVar("where", default="")
"""The layer that computes at this moment, in words."""


def named_by(error: RangeError | UnsupportedError, where: str) -> RangeError | UnsupportedError:
    """The error with the layer before its words, unless they name one already."""
    text = str(error)
    return type(error)(text if not where or text.startswith("layer '") else f"{where}: {text}")


def layer_in(where: str) -> tuple[str, str]:
    """The path and the class of the layer of some words of `WHERE`; two empty texts for none."""
    found = re.fullmatch(r"layer '(.*)' \((\w+)\)", where)
    return ("", "") if found is None else (found[1], found[2])


class Holder(nn.Module):
    """A module with BFP parameters of its own, which are integers in `state_dict()`."""

    def __prepare_scriptable__(self) -> nn.Module:
        """Refuse torch.jit.script, which asks this of every module first. UnsupportedError."""
        raise UnsupportedError(WORDS.format("torch.jit.script"))

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        destination.update(entries(self, prefix))

    def _load_from_state_dict(
        self,
        state_dict: Any,
        prefix: str,
        local_metadata: Any,
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        """Copy the integers that are there, or those of real values (`state.find`), if none is
        wrong; what is missing or wrong goes into the lists.

        torch.nn.Module calls this for every module, and raises RuntimeError with all messages. As
        its own does, this begins with the hooks for it.
        """
        lists = (missing_keys, unexpected_keys, error_msgs)
        for hook in self._load_state_dict_pre_hooks.values():
            hook(state_dict, prefix, local_metadata, strict, *lists)
        own = parameters_of(self, prefix)
        found = find(self, state_dict, prefix, any(key in state_dict for key in own))
        if not found.wrong:
            for key, tensor in entries(self, prefix):
                if key in found.values:
                    tensor.copy_(found.values[key])
        missing_keys.extend(found.missing)
        error_msgs.extend(found.wrong)
        unexpected_keys.extend(
            key
            for key in state_dict
            if key.startswith(prefix)
            and key not in found.claimed
            and key[len(prefix) :].split(".")[0] not in self._modules
        )

    def _apply(self, fn: Any, recurse: bool = True) -> Holder:
        """Move to another device, and do nothing else that torch.nn.Module does here.

        The integer types of codes never change, nor does a parameter that is there already (an
        optimizer holds it).
        """

        def moved(v: Tensor) -> torch.device:
            found: torch.device = fn(v.new_empty(0, dtype=torch.float32)).device
            return found

        for name, parameter in self._parameters.items():
            if isinstance(parameter, BFPParameter):
                device = moved(parameter.codes)
                if parameter.codes.device != device:
                    self._parameters[name] = parameter.to_device(device)
        for name, buffer in self._buffers.items():
            if buffer is not None:
                self._buffers[name] = buffer.to(moved(buffer))
        for child in self.children():
            child._apply(fn)
        return self


Kind = type[nn.Module]
_JOINED: dict[tuple[Kind, Kind], Kind] = {}


def joined(base: Kind, kind: Kind) -> Kind:
    """A class of modules like `kind`, of the same name, that are of `base` first.

    Always the same one. Raises TypeError for a class that allows no such one.
    """
    if (base, kind) in _JOINED:
        return _JOINED[base, kind]

    def reduced(self: nn.Module, protocol: Any) -> Any:
        """The parts that copy and pickle make a module from: no file names this class."""
        return _empty, (base, kind), self.__getstate__()

    inside = {"__module__": kind.__module__, "__reduce_ex__": reduced}
    _JOINED[base, kind] = type(kind.__name__, (base, kind), inside)
    return _JOINED[base, kind]


def _empty(base: Kind, kind: Kind) -> nn.Module:
    """A module of a joined class without any state."""
    made = joined(base, kind)
    return made.__new__(made)


class Layer(Holder):
    """Base: parameters are integers, and errors name the layer."""

    name = ""  # path in the converted model, for messages
    taken = staticmethod(as_bfp8)  # what it makes of its input before it computes

    def shift_channels(self, count: int) -> None:
        """Give the output's channels shifts, which follow their largest magnitudes (12.4)."""
        self.register_buffer(PEAKS, torch.zeros(count, dtype=torch.float64, device="cpu"))

    @property
    def peaks(self) -> ChannelPeaks | None:
        """The magnitudes of the output's channels, where they have shifts."""
        peaks = self._buffers.get(PEAKS)  # float64 [channels]
        return None if peaks is None else ChannelPeaks(peaks, self.training)

    def forward(self, x: Tensor) -> BFPTensor:
        """Compute on the input as it takes it; errors say which layer it was."""
        with self.named() as where:
            y = self.compute(self.taken(x, where))
            if y.sums is not None:  # errors of their use say who computed them
                y.sums.where = where
            return y

    def hold(self, **parameters: BFPParameter | None) -> None:
        """Register parameters by name; None where a layer has no such parameter."""
        for name, parameter in parameters.items():
            self.register_parameter(name, parameter)  # type: ignore[arg-type]

    @contextmanager
    def named(self) -> Iterator[str]:
        """Let RangeError and UnsupportedError raised inside name the layer; gives the words."""
        where = f"layer {self.name!r} ({type(self).__name__})"
        require_eager()
        token = WHERE.set(where)
        try:
            yield where
        except (RangeError, UnsupportedError) as error:
            raise named_by(error, where) from None
        finally:
            WHERE.reset(token)

    def compute(self, x: BFPTensor) -> BFPTensor:
        """The layer's output for an input that it has `taken`; every layer defines it."""
        raise TypeError(f"{type(self).__name__} defines no compute()")


def load_state(model: nn.Module, state: dict[str, Tensor], source: object = "state") -> None:
    """`load_state_dict` that takes a whole state or changes nothing.

    Raises CheckpointError, which names the `source` and every key that is wrong, missing or
    unexpected.
    """
    try:
        if any(isinstance(module, Holder) for module in model.modules()):
            refuse(model, state)
        model.load_state_dict(state)
    except RuntimeError as error:
        raise CheckpointError(f"{source}: not the state of this model: {error}") from None
