"""Layers as ordinary `nn.Module`s over BFP tensors. `convert` builds them from torch.nn layers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from samebits.errors import CheckpointError, RangeError, UnsupportedError
from samebits.kernels.geometry import Pair
from samebits.train.operations import (
    activations,
    multiplication,  # noqa: F401 - what torch.mul does
    normalization,
    pointwise,
)
from samebits.train.operations.indexing import indexed, transpose
from samebits.train.operations.linear import conv2d, linear
from samebits.train.operations.lstm import lstm
from samebits.train.operations.narrow import as_bfp, as_bfp8
from samebits.train.shifts import ChannelPeaks
from samebits.train.state import PEAKS, entries, find, parameters_of, refuse
from samebits.train.tensor import BFPParameter, BFPTensor


class Layer(nn.Module):
    """Base: parameters in `state_dict()` are integers, and range errors name the layer."""

    name = ""  # path in the converted model, for messages

    def shift_channels(self, count: int) -> None:
        """Give the output's channels shifts, which follow their largest magnitudes (12.4)."""
        self.register_buffer(PEAKS, torch.zeros(count, dtype=torch.float64))

    @property
    def peaks(self) -> ChannelPeaks | None:
        """The magnitudes of the output's channels, where they have shifts."""
        peaks = self._buffers.get(PEAKS)  # float64 [channels]
        return None if peaks is None else ChannelPeaks(peaks, self.training)

    def forward(self, x: Tensor) -> BFPTensor:
        """Compute on the input as bfp8; errors say which layer it was."""
        with self.named() as where:
            y = self.compute(as_bfp8(x, where))
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
        try:
            yield where
        except (RangeError, UnsupportedError) as error:
            text = str(error)
            raise type(error)(text if text.startswith("layer") else f"{where}: {text}") from None

    def compute(self, x: BFPTensor) -> BFPTensor:
        """The layer's output for a bfp8 input; every layer defines it."""
        raise TypeError(f"{type(self).__name__} defines no compute()")

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

        torch.nn.Module calls this for every module, and raises RuntimeError with all messages.
        """
        own = parameters_of(self, prefix)
        found = find(self, state_dict, prefix, any(key in state_dict for key in own))
        if not found.wrong:
            for key, tensor in entries(self, prefix):
                if key in found.values:
                    tensor.copy_(found.values[key])
            for parameter in own.values():
                parameter.set_exponent(parameter.exponent_cell)
        missing_keys.extend(found.missing)
        error_msgs.extend(found.wrong)
        unexpected_keys.extend(
            key
            for key in state_dict
            if key.startswith(prefix)
            and key not in found.claimed
            and key[len(prefix) :].split(".")[0] not in self._modules
        )

    def _apply(self, fn: Any, recurse: bool = True) -> Layer:
        """Move to another device, and do nothing else that torch.nn.Module does here.

        The integer types of codes never change, nor does a parameter that is there already (an
        optimizer holds it).
        """
        device = fn(torch.empty(0)).device
        for name, parameter in self._parameters.items():
            if isinstance(parameter, BFPParameter) and parameter.codes.device != device:
                self._parameters[name] = parameter.to_device(device)
        for name, buffer in self._buffers.items():
            if buffer is not None:
                self._buffers[name] = buffer.to(device)
        for child in self.children():
            child._apply(fn)
        return self


class Linear(Layer):
    """[..., k] -> [..., m]."""

    weight: BFPParameter
    bias: BFPParameter | None

    def __init__(self, weight: BFPParameter, bias: BFPParameter | None) -> None:
        super().__init__()
        self.hold(weight=weight, bias=bias)

    def compute(self, x: BFPTensor) -> BFPTensor:
        rows = x if x.dim() == 2 else pointwise.reshape(x, (-1, x.shape[-1]))
        out = linear(rows, self.weight, self.bias, self.peaks)
        return out if x.dim() == 2 else pointwise.reshape(out, (*x.shape[:-1], -1))


class Conv2d(Layer):
    """[n, ci, h, w] -> [n, co, oh, ow] with stride, zero padding, dilation and groups."""

    weight: BFPParameter
    bias: BFPParameter | None

    def __init__(
        self,
        weight: BFPParameter,
        bias: BFPParameter | None,
        stride: Pair = (1, 1),
        padding: Pair = (0, 0),
        dilation: Pair = (1, 1),
        groups: int = 1,
    ) -> None:
        super().__init__()
        self.hold(weight=weight, bias=bias)
        self.stride, self.padding, self.dilation = stride, padding, dilation
        self.groups = groups

    def compute(self, x: BFPTensor) -> BFPTensor:
        geometry = (self.stride, self.padding, self.dilation, self.groups)
        return conv2d(x, self.weight, self.bias, *geometry, self.peaks)


class BatchNorm(Layer):
    """BatchNorm2d and (on [n, c]) BatchNorm1d; float64 running statistics."""

    weight: BFPParameter
    bias: BFPParameter
    running_mean: Tensor
    running_var: Tensor

    def __init__(
        self,
        weight: BFPParameter,
        bias: BFPParameter,
        running_mean: Tensor,
        running_var: Tensor,
        momentum: float,
        eps: float,
    ) -> None:
        super().__init__()
        self.hold(weight=weight, bias=bias)
        self.register_buffer("running_mean", running_mean.double().clone())
        self.register_buffer("running_var", running_var.double().clone())
        self.momentum, self.eps = momentum, eps

    def compute(self, x: BFPTensor) -> BFPTensor:
        tensors = (self.weight, self.bias, self.running_mean, self.running_var)
        options = (self.training, self.momentum, self.eps, self.peaks)
        return normalization.batch_norm(x, *tensors, *options)


class LayerNorm(Layer):
    """Normalisation over the last dimension."""

    weight: BFPParameter
    bias: BFPParameter

    def __init__(self, weight: BFPParameter, bias: BFPParameter, eps: float) -> None:
        super().__init__()
        self.hold(weight=weight, bias=bias)
        self.eps = eps

    def compute(self, x: BFPTensor) -> BFPTensor:
        return normalization.layer_norm(x, self.weight, self.bias, self.eps, self.peaks)


class ReLU(Layer):
    """max(x, 0)."""

    def compute(self, x: BFPTensor) -> BFPTensor:
        return activations.relu(x)


class ReLU6(Layer):
    """min(max(x, 0), 6)."""

    def compute(self, x: BFPTensor) -> BFPTensor:
        return activations.relu6(x)


class Activation(Layer):
    """One of `samebits.tables.ACTIVATIONS`, with its parameter where it has one."""

    def __init__(self, function: str, parameter: float | None = None) -> None:
        super().__init__()
        self.function, self.parameter = function, parameter

    def compute(self, x: BFPTensor) -> BFPTensor:
        return activations.activation(x, self.function, self.parameter)

    def extra_repr(self) -> str:
        """The function, as torch prints it."""
        return self.function


class _Pool(Layer):
    def __init__(self, kernel: Pair, stride: Pair, padding: Pair) -> None:
        super().__init__()
        self.window = (kernel, stride, padding)


class MaxPool2d(_Pool):
    """Window maxima; positions of padding never win."""

    def compute(self, x: BFPTensor) -> BFPTensor:
        return pointwise.max_pool2d(x, *self.window)


class AvgPool2d(_Pool):
    """Window means; positions of padding count as zeros."""

    def compute(self, x: BFPTensor) -> BFPTensor:
        return pointwise.avg_pool2d(x, *self.window)


class AdaptiveAvgPool2d(Layer):
    """[n, c, h, w] -> [n, c, *size], whose sides divide those of the input; None keeps a side."""

    def __init__(self, size: int | tuple[int | None, int | None]) -> None:
        super().__init__()
        self.size = size

    def compute(self, x: BFPTensor) -> BFPTensor:
        return pointwise.adaptive_avg_pool2d(x, self.size)


class Flatten(Layer):
    """[n, ...] -> [n, everything else]."""

    def __init__(self, start_dim: int = 1, end_dim: int = -1) -> None:
        super().__init__()
        self.start_dim, self.end_dim = start_dim, end_dim

    def forward(self, x: Tensor) -> BFPTensor:
        """As torch.flatten: what is moved only keeps its width, or goes on having none."""
        with self.named() as where:
            return pointwise.flatten(as_bfp(x, where), self.start_dim, self.end_dim)


class Dropout(Layer):
    """Counter-based: the mask is a function of (seed, site, step, shard, element) alone.

    `set_step` names step and shard; until it is called, every training pass counts as a step.
    """

    POSITION = ("seed", "step", "shard", "counting")
    """The attributes that say which mask comes next."""

    def __init__(self, p: float, site: int) -> None:
        super().__init__()
        self.p, self.site = p, site
        self.seed = self.step = self.shard = 0
        self.counting = True

    def compute(self, x: BFPTensor) -> BFPTensor:
        if not self.training:
            return x
        if self.counting:
            self.step += 1
        return pointwise.dropout(x, self.p, (self.seed, self.site), self.step, self.shard)


class Embedding(Layer):
    """Integer indices [...] -> rows [..., d]."""

    weight: BFPParameter

    def __init__(self, weight: BFPParameter) -> None:
        super().__init__()
        self.hold(weight=weight)

    def forward(self, x: Tensor) -> BFPTensor:
        return pointwise.embedding(x, self.weight)


class LSTM(Layer):
    """A stack of LSTM layers with the parameters, arguments and results of torch.nn.LSTM.

    Except: the state starts at zero, and the cell state stays inside (None in the result).
    """

    def __init__(
        self,
        parameters: dict[str, BFPParameter],
        num_layers: int = 1,
        bidirectional: bool = False,
        batch_first: bool = False,
    ) -> None:
        super().__init__()
        self.hold(**parameters)
        self.num_layers, self.bidirectional = num_layers, bidirectional
        self.batch_first = batch_first

    def forward(  # type: ignore[override]
        self, x: Tensor, state: None = None
    ) -> tuple[BFPTensor, tuple[BFPTensor, None]]:
        """[T, N, I] ([N, T, I] with batch_first) -> (output, (h_n, None)).

        output [T, N, H] or [N, T, H] holds the hidden states of the last layer, 2H with both
        directions; h_n [layers * directions, N, H] the last one of each.
        """
        with self.named() as where:
            if state is not None:
                raise UnsupportedError(
                    f"{where}: expected no initial state (it starts at zero), found one"
                )
            x = as_bfp8(x, where)
            if x.dim() != 3:
                raise UnsupportedError(
                    f"{where}: expected a batch of sequences [3 axes], found shape {tuple(x.shape)}"
                )
            y, last = self._run(transpose(x, 0, 1) if self.batch_first else x)
            return (transpose(y, 0, 1) if self.batch_first else y), (last, None)

    def _run(self, x: BFPTensor) -> tuple[BFPTensor, BFPTensor]:
        """(output, h_n) of all layers in turn; x [T, N, I]."""
        last = []
        for layer in range(self.num_layers):
            outputs = []
            for end in ("", "_reverse") if self.bidirectional else ("",):
                parts = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
                ih, hh, *biases = (self._parameters.get(f"{part}_l{layer}{end}") for part in parts)
                outputs.append(lstm(x, ih, hh, *biases, reverse=bool(end)))  # type: ignore[arg-type, misc]
                last.append(indexed(outputs[-1], slice(0, 1) if end else slice(-1, None)))
            x = pointwise.concat(outputs, 2) if self.bidirectional else outputs[0]
        return x, (pointwise.concat(last, 0) if len(last) > 1 else last[0])

    def extra_repr(self) -> str:
        """The options, as torch prints them."""
        return (
            f"num_layers={self.num_layers}, bidirectional={self.bidirectional}, "
            f"batch_first={self.batch_first}"
        )


def set_step(model: nn.Module, seed: int, step: int, shard: int) -> None:
    """Tell every dropout layer which step and shard comes next."""
    for module in model.modules():
        if isinstance(module, Dropout):
            module.seed, module.step, module.shard = seed, step, shard
            module.counting = False


def load_state(model: nn.Module, state: dict[str, Tensor], source: object = "state") -> None:
    """`load_state_dict` that takes a whole state or changes nothing.

    Raises CheckpointError, which names the `source` and every key that is wrong, missing or
    unexpected.
    """
    try:
        if any(isinstance(module, Layer) for module in model.modules()):
            refuse(model, state)
        model.load_state_dict(state)
    except RuntimeError as error:
        raise CheckpointError(f"{source}: not the state of this model: {error}") from None
