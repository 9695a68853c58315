"""Layers as ordinary `nn.Module`s over BFP tensors. `convert` builds them from torch.nn layers."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from samebits.errors import CheckpointError, RangeError, UnsupportedError
from samebits.kernels.geometry import Pair, Window
from samebits.train.operations import (
    activations,
    attention,
    normalization,
    pointwise,
    pooling,
    reduction,  # noqa: F401 - what torch.mean and torch.sum do
    selection,  # noqa: F401 - what torch.where does
)
from samebits.train.operations.indexing import indexed, transpose
from samebits.train.operations.linear import conv2d, linear
from samebits.train.operations.lstm import lstm
from samebits.train.operations.narrow import as_bfp, as_bfp8, as_decided
from samebits.train.operations.softmax import softmax
from samebits.train.shifts import ChannelPeaks
from samebits.train.state import PEAKS, entries, find, parameters_of, refuse
from samebits.train.tensor import BFPParameter, BFPTensor


class Holder(nn.Module):
    """A module with BFP parameters of its own, which are integers in `state_dict()`."""

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

    def _apply(self, fn: Any, recurse: bool = True) -> Holder:
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


def holding(kind: type[nn.Module]) -> type[nn.Module]:
    """A class of modules like `kind`, of the same name, whose own parameters are BFP parameters."""
    return type(kind.__name__, (Holder, kind), {"__module__": kind.__module__})


class Layer(Holder):
    """Base: parameters are integers, and errors name the layer."""

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


class Linear(Layer):
    """[..., k] -> [..., m]."""

    weight: BFPParameter
    bias: BFPParameter | None

    def __init__(self, weight: BFPParameter, bias: BFPParameter | None) -> None:
        super().__init__()
        self.hold(weight=weight, bias=bias)

    @property
    def channels(self) -> int:
        """Number of channels of the output."""
        return self.weight.shape[0]

    def compute(self, x: BFPTensor) -> BFPTensor:
        return linear(x, self.weight, self.bias, self.peaks)


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

    @property
    def channels(self) -> int:
        """Number of channels of the output."""
        return self.weight.shape[0]

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

    @property
    def channels(self) -> int:
        """Number of channels of the output."""
        return self.weight.shape[0]

    def compute(self, x: BFPTensor) -> BFPTensor:
        tensors = (self.weight, self.bias, self.running_mean, self.running_var)
        options = (self.training, self.momentum, self.eps, self.peaks)
        return normalization.batch_norm(x, *tensors, *options)


class LayerNorm(Layer):
    """Normalisation over the last dimension; not centred: by the root mean square alone."""

    weight: BFPParameter | None
    bias: BFPParameter | None

    def __init__(
        self,
        weight: BFPParameter | None,
        bias: BFPParameter | None,
        size: int,
        eps: float,
        centred: bool = True,
    ) -> None:
        super().__init__()
        self.hold(weight=weight, bias=bias)
        self.channels, self.eps, self.centred = size, eps, centred

    def compute(self, x: BFPTensor) -> BFPTensor:
        options = (self.channels, self.eps, self.centred, self.peaks)
        return normalization.layer_norm(x, self.weight, self.bias, *options)


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


class MaxPool2d(Layer):
    """Window maxima; positions of padding never win."""

    def __init__(self, window: Window) -> None:
        super().__init__()
        self.window = window

    def compute(self, x: BFPTensor) -> BFPTensor:
        return pooling.max_pool2d(x, self.window)


class AvgPool2d(Layer):
    """Window means; positions of padding count as zeros, or not, or sums have a divisor."""

    def __init__(
        self, window: Window, include_pad: bool = True, divisor: int | None = None
    ) -> None:
        super().__init__()
        self.window, self.include_pad, self.divisor = window, include_pad, divisor

    def compute(self, x: BFPTensor) -> BFPTensor:
        return pooling.avg_pool2d(x, self.window, self.include_pad, self.divisor)


class AdaptiveAvgPool2d(Layer):
    """[n, c, h, w] -> [n, c, *size], means of parts that cover the input; None keeps a side."""

    def __init__(self, size: int | tuple[int | None, int | None]) -> None:
        super().__init__()
        self.size = size

    def compute(self, x: BFPTensor) -> BFPTensor:
        return pooling.adaptive_avg_pool2d(x, self.size)


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

    def forward(self, x: Tensor) -> BFPTensor:
        """The input keeps its 32 bits where it has them."""
        with self.named() as where:
            return self.compute(as_decided(x, where))

    def compute(self, x: BFPTensor) -> BFPTensor:
        if not self.training:
            return x
        if self.counting:
            self.step += 1
        place = ((self.seed, self.site), self.step, self.shard)
        return pointwise.dropout(x, self.p, *place, self.draws(x))

    def draws(self, x: BFPTensor) -> int | None:
        """Number of draws; None: one for each element."""
        return None


class StochasticDepth(Dropout):
    """Dropout of whole samples of [n, ...], or, in mode "batch", of all of a shard together."""

    def __init__(self, p: float, site: int, mode: str = "row") -> None:
        super().__init__(p, site)
        self.mode = mode

    def draws(self, x: BFPTensor) -> int | None:
        return x.shape[0] if self.mode == "row" else 1


class SoftmaxLayer(Layer):
    """Along an axis; the input keeps its 32 bits where it has them (training.md 14.3)."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dim = dim

    def forward(self, x: Tensor) -> BFPTensor:
        """As torch.nn.Softmax; what was masked by -inf gives 0."""
        with self.named():
            return softmax(x, self.dim)  # type: ignore[arg-type]


class MultiheadAttention(Layer):
    """The parameters and arguments of torch.nn.MultiheadAttention, whose heads are matrices.

    Except: the weights stay inside (None in the result).
    """

    in_proj_weight: BFPParameter
    in_proj_bias: BFPParameter | None
    _qkv_same_embed_dim = True  # what torch.nn.TransformerEncoderLayer asks of it

    def __init__(
        self,
        in_proj_weight: BFPParameter,
        in_proj_bias: BFPParameter | None,
        out_proj: Linear,
        num_heads: int,
        batch_first: bool,
        dropout: Dropout | None = None,
    ) -> None:
        super().__init__()
        self.hold(in_proj_weight=in_proj_weight, in_proj_bias=in_proj_bias)
        self.out_proj, self.dropout = out_proj, dropout
        self.num_heads, self.batch_first = num_heads, batch_first

    def forward(  # type: ignore[override]
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[BFPTensor, None]:
        """[T, N, E] ([N, T, E] with batch_first), or [T, E] -> (output of query's shape, None).

        Masks as torch has them: bool ones are true where a key does not count. is_causal is a hint
        about attn_mask, which has to be there. need_weights and average_attn_weights change
        nothing: the weights are no result.
        """
        with self.named() as where:
            if is_causal and attn_mask is None:
                raise UnsupportedError(f"{where}: expected attn_mask with is_causal, found none")
            given = [as_bfp8(x, where) for x in (query, key, value)]
            if any(x.dim() not in (2, 3) for x in given):
                raise UnsupportedError(
                    f"{where}: expected [sequence, batch, features], found shape "
                    f"{tuple(query.shape)}"
                )
            flat = query.dim() == 2
            if flat:
                given = [pointwise.reshape(x, (1, *x.shape)) for x in given]
            elif not self.batch_first:
                given = [transpose(x, 0, 1) for x in given]
            same = query is key is value
            q, k, v = self._projected(*([given[0]] * 3 if same else given))
            masks = self._masks(attn_mask, key_padding_mask, given[0].shape[0])
            y = attention.attention(q, k, v, masks, drop=self.dropout)
            y = self.out_proj(attention.join_heads(y, self.num_heads))
            if flat:
                return pointwise.reshape(y, tuple(query.shape)), None
            return (y if self.batch_first else transpose(y, 0, 1)), None

    def _projected(self, *given: BFPTensor) -> list[BFPTensor]:
        """Queries, keys and values, [N * heads, T, d]; one product for each tensor given."""
        found: dict[int, BFPTensor] = {}
        parts = []
        for place, x in enumerate(given):
            if id(x) not in found:
                found[id(x)] = linear(x, self.in_proj_weight, self.in_proj_bias)
            size = x.shape[-1]
            own = indexed(found[id(x)], (..., slice(place * size, (place + 1) * size)))
            parts.append(attention.split_heads(own, self.num_heads))
        return parts

    def _masks(
        self, attn_mask: Tensor | None, padding: Tensor | None, samples: int
    ) -> tuple[Tensor, ...]:
        """Masks of [samples * heads, n, m], bool ones true where a key counts."""
        masks = []
        if padding is not None:
            whole = padding.reshape(samples, 1, 1, -1).expand(-1, self.num_heads, -1, -1)
            masks.append(whole.reshape(-1, 1, whole.shape[-1]))
        if attn_mask is not None:
            masks.append(attn_mask)
        boolean = [~m for m in masks if m.dtype == torch.bool]
        real = [m for m in masks if m.dtype != torch.bool]
        return (*boolean, *([functools.reduce(torch.add, real)] if real else []))

    def extra_repr(self) -> str:
        """The options, as torch prints them."""
        return f"num_heads={self.num_heads}, batch_first={self.batch_first}"


class Embedding(Layer):
    """Integer indices [...] -> rows [..., d]."""

    weight: BFPParameter

    def __init__(self, weight: BFPParameter, padding: int | None = None) -> None:
        super().__init__()
        self.hold(weight=weight)
        self.padding_idx = padding

    def forward(self, x: Tensor) -> BFPTensor:
        return pointwise.embedding(x, self.weight, self.padding_idx)


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
        if any(isinstance(module, Holder) for module in model.modules()):
            refuse(model, state)
        model.load_state_dict(state)
    except RuntimeError as error:
        raise CheckpointError(f"{source}: not the state of this model: {error}") from None
