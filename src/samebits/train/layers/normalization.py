"""Batch and layer normalisation."""

from __future__ import annotations

from torch import Tensor, nn

from samebits.train.layers.affine import AffineLayer
from samebits.train.layers.base import Layer
from samebits.train.operations import normalization
from samebits.train.operations.layer_norm import group_norm, layer_norm
from samebits.train.operations.narrow import as_short
from samebits.train.operations.pointwise import over_lines
from samebits.train.tensor import BFPParameter, BFPTensor


class BatchNorm(AffineLayer):
    """BatchNorm2d and, on [n, c] or [n, c, l], BatchNorm1d; float64 running statistics."""

    taken = staticmethod(as_short)
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
        super().__init__(weight, bias)
        self.register_buffer("running_mean", running_mean.double().clone())
        self.register_buffer("running_var", running_var.double().clone())
        self.momentum, self.eps = momentum, eps

    def compute(self, x: BFPTensor) -> BFPTensor:
        tensors = (self.weight, self.bias, self.running_mean, self.running_var)
        options = (self.training, self.momentum, self.eps, self.peaks)
        if x.dim() == 3:
            return over_lines(x, lambda image: normalization.batch_norm(image, *tensors, *options))
        return normalization.batch_norm(x, *tensors, *options)


def wide_buffers(module: nn.Module) -> dict[str, Tensor | None]:
    """Copies of a module's own buffers, real ones in binary64."""
    return {
        key: b if b is None else (b.double() if b.is_floating_point() else b).clone()
        for key, b in module._buffers.items()
    }


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
        return layer_norm(x, self.weight, self.bias, *options)


class GroupNorm(Layer):
    """Normalisation of groups of channels, sample by sample; InstanceNorm is one a channel."""

    weight: BFPParameter | None
    bias: BFPParameter | None

    def __init__(
        self,
        weight: BFPParameter | None,
        bias: BFPParameter | None,
        groups: int,
        channels: int,
        eps: float,
    ) -> None:
        super().__init__()
        self.hold(weight=weight, bias=bias)
        self.groups, self.channels, self.eps = groups, channels, eps

    def compute(self, x: BFPTensor) -> BFPTensor:
        return group_norm(x, self.groups, self.weight, self.bias, self.eps, self.peaks)
