"""Exponential averages of weights in integers (training.md 4)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from samebits import kernels
from samebits.errors import CheckpointError, InputError
from samebits.kernels import rows
from samebits.kernels.rows import Exponent
from samebits.numerics.realise import times_power
from samebits.spec import formats
from samebits.spec.training.average import AVERAGE_BITS, GUARD_BITS
from samebits.train import undo
from samebits.train.tensor import BFPParameter

EXPONENT_BITS = 9  # e_A - 8 and what lies above it


class EMA:
    """The exponential moving average of a model's BFP parameters, 4 bytes an element.

    Each `update()`, after the optimizer's step, moves the average S by (1 - decay) * (W - S), in
    integers of 8 bits more than the exact value of a weight has: with a decay of 0.9999 it comes
    within 1e-5 of the largest weight of one that stands still. Running statistics of batch-norm
    are not averaged: `apply_to` leaves the model its own.

    Polyak and Juditsky, "Acceleration of stochastic approximation by averaging", 1992.
    """

    def __init__(self, model: nn.Module, decay: float = 0.999) -> None:
        """Start at the model's weights.

        Raises InputError for a decay outside (0, 1) and parameters that are not BFP.
        """
        if not 0 < decay < 1:
            raise InputError(f"decay: expected a number in (0, 1), found {decay}")
        self.decay = decay
        self._parameters = _parameters_of(model)
        self._averages: dict[str, tuple[Tensor, Exponent]] = {}
        for name, parameter in self._parameters.items():
            joint, exponent = parameter.joint()
            self._averages[name] = (joint << GUARD_BITS).int(), exponent - GUARD_BITS

    @torch.no_grad()
    def update(self) -> None:
        """Take the model's weights, as they are now, into the average."""
        m, x = formats.coefficient(1.0 - self.decay)
        for name, parameter in self._parameters.items():
            old, e_s = self._averages[name]
            k, (joint, e_a) = kernels.of(old), parameter.joint()
            e = rows.maximum(e_a - GUARD_BITS, _least_exponent(old, e_s))
            average = k.scale(old, e_s - e)
            average += k.scale((k.scale(joint, e_a - e) - average) * m, x)
            self._averages[name] = average.int(), e

    @torch.no_grad()
    def apply_to(self, model: nn.Module) -> None:
        """Give a model of the same parameters the averaged weights.

        Raises InputError, and changes nothing, where its parameters have other names or shapes, or
        exponents by rows where the average has not, or the other way round.
        """
        parameters = _parameters_of(model)
        found = {(name, *_kind(*p.parts[0])) for name, p in parameters.items()}
        expected = {(name, *_kind(*average)) for name, average in self._averages.items()}
        if found != expected:
            name = min(found ^ expected)[0]
            raise InputError(
                f"expected a model with the parameters of the average; {name!r} is another"
            )
        self._give_to(parameters)

    def _give_to(self, parameters: dict[str, BFPParameter]) -> None:
        for name, (average, exponent) in self._averages.items():
            own, by_rows = parameters[name], isinstance(exponent, Tensor)
            # binary64 holds the values: the averaged weight is the initial state of them.
            values = times_power(average.double(), exponent)
            new = BFPParameter.from_real(values, name, by_rows, own.widths)
            own.codes.copy_(new.codes)
            own.delayed.copy_(new.delayed)
            own.set_exponent(new.parts[0][1])

    @contextlib.contextmanager
    def applied(self) -> Iterator[None]:
        """The model with averaged weights inside a with block, and with its own after it."""
        restore = undo.keep(self._parameters.values(), {})
        try:
            with torch.no_grad():
                self._give_to(self._parameters)
            yield
        finally:
            restore()

    def state_dict(self) -> dict[str, Tensor]:
        """Per parameter p: p.average (int32) and p.average_exponent (int64 scalar)."""
        state = {}
        for name, (average, exponent) in self._averages.items():
            state[f"{name}.average"] = average
            if isinstance(exponent, int):
                exponent = torch.tensor(exponent, device="cpu")
            state[f"{name}.average_exponent"] = exponent
        return state

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Take the averages that `state_dict` gave; the decay is that of this object.

        Raises CheckpointError, and changes nothing, for other names, types, shapes or ranges.
        """
        wrong = misfit(state, self.state_dict())
        for name, value in () if wrong else state.items():
            limit = 1 << (AVERAGE_BITS if name.endswith(".average") else EXPONENT_BITS)
            low, high = (int(v) for v in torch.aminmax(value)) if value.numel() else (0, 0)
            if max(-low, high) >= limit:
                wrong = f"{name}: expected magnitudes below {limit}, found {max(-low, high)}"
        if wrong:
            raise CheckpointError(f"averages: {wrong}")
        for name, (average, exponent) in self._averages.items():
            new = torch.empty_like(average).copy_(state[f"{name}.average"])
            held = state[f"{name}.average_exponent"]
            by_rows = isinstance(exponent, Tensor)
            own = held.to(average.device, copy=True) if by_rows else int(held)
            self._averages[name] = (new, own)


def misfit(state: dict[str, Tensor], own: dict[str, Tensor]) -> str | None:
    """Where a stored state of averages differs in names, types or shapes from a model's own."""
    if set(state) != set(own):
        name = min(set(state) ^ set(own))
        where = "missing" if name in own else "beside them"
        return f"expected those of this model's parameters, found {name!r} {where}"
    for name, value in state.items():
        if value.dtype != own[name].dtype or value.shape != own[name].shape:
            expected = f"{own[name].dtype} {tuple(own[name].shape)}"
            return f"{name}: expected {expected}, found {value.dtype} {tuple(value.shape)}"
    return None


def _kind(codes: Tensor, exponent: Exponent) -> tuple[tuple[int, ...], bool]:
    """The shape of a parameter, and whether its rows have exponents of their own."""
    return tuple(codes.shape), isinstance(exponent, Tensor)


def _least_exponent(average: Tensor, exponent: Exponent) -> Exponent:
    """The smallest exponent at which an average, or each row of one, has at most 30 bits."""
    if isinstance(exponent, Tensor):
        return exponent + rows.bit_length(rows.largest(average, exponent.shape)) - AVERAGE_BITS
    return exponent + kernels.of(average).largest_of(average).bit_length() - AVERAGE_BITS


def _parameters_of(model: nn.Module) -> dict[str, BFPParameter]:
    """A model's parameters by name. Raises InputError for one that is not BFP."""
    found: dict[str, BFPParameter] = {}
    for name, parameter in model.named_parameters():
        if not isinstance(parameter, BFPParameter):
            raise InputError(
                f"parameter {name!r}: expected a BFP parameter, found {type(parameter).__name__}; "
                "convert the model with samebits.train.convert"
            )
        found[name] = parameter
    return found
