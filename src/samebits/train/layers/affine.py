"""Layers of products with a weight: Linear, Conv2d, and Embedding, which picks rows of one."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from samebits.errors import UnsupportedError
from samebits.kernels.geometry import Pair
from samebits.train.layers.base import Layer
from samebits.train.operations.linear import conv2d, linear
from samebits.train.operations.pointwise import embedding, over_lines
from samebits.train.operations.reduction import embedding_bag
from samebits.train.operations.resampling import pad
from samebits.train.operations.transposed import conv_transpose2d
from samebits.train.tensor import BFPParameter, BFPTensor


class AffineLayer(Layer):
    """Base of layers with a weight and a bias."""

    weight: BFPParameter
    bias: BFPParameter | None

    def __init__(self, weight: BFPParameter, bias: BFPParameter | None) -> None:
        super().__init__()
        self.hold(weight=weight, bias=bias)

    @property
    def channels(self) -> int:
        """Number of channels of the output."""
        return self.weight.shape[0]


class Linear(AffineLayer):
    """[..., k] -> [..., m]."""

    def compute(self, x: BFPTensor) -> BFPTensor:
        return linear(x, self.weight, self.bias, self.peaks)


class Conv2d(AffineLayer):
    """[n, ci, h, w] -> [n, co, oh, ow] with stride, zero padding, dilation and groups.

    around: what `pad` puts around the input before, sizes of the last axis first, and a mode
    """

    def __init__(
        self,
        weight: BFPParameter,
        bias: BFPParameter | None,
        stride: Pair = (1, 1),
        padding: Pair = (0, 0),
        dilation: Pair = (1, 1),
        groups: int = 1,
        around: tuple[tuple[int, ...], str] | None = None,
    ) -> None:
        super().__init__(weight, bias)
        self.stride, self.padding, self.dilation = stride, padding, dilation
        self.groups, self.around = groups, around

    def compute(self, x: BFPTensor) -> BFPTensor:
        geometry = (self.stride, self.padding, self.dilation, self.groups)
        if self.around is not None:
            x = pad(x, *self.around)
        return conv2d(x, self.weight, self.bias, *geometry, self.peaks)


class Conv1d(Conv2d):
    """[n, ci, l] -> [n, co, ol]: the convolution of images of height 1, by a weight [co, ci, k]."""

    def compute(self, x: BFPTensor) -> BFPTensor:
        return over_lines(x, super().compute)


class ConvTranspose2d(AffineLayer):
    """[n, ci, h, w] -> [n, co, oh, ow]: a Conv2d with its roles swapped (training.md 14.7)."""

    def __init__(
        self,
        weight: BFPParameter,
        bias: BFPParameter | None,
        stride: Pair,
        padding: Pair,
        output_padding: Pair,
        dilation: Pair,
        groups: int,
    ) -> None:
        super().__init__(weight, bias)
        self.stride, self.padding, self.output_padding = stride, padding, output_padding
        self.dilation, self.groups = dilation, groups

    @property
    def channels(self) -> int:
        """Number of channels of the output."""
        return self.weight.shape[1] * self.groups

    def forward(self, x: Tensor, output_size: Any = None) -> BFPTensor:
        """As its base. Raises UnsupportedError for an output_size of a call."""
        if output_size is None:
            return super().forward(x)
        with self.named():
            raise UnsupportedError(
                f"expected no output_size, found {output_size!r:.80}: give the module that is "
                "converted an output_padding, of less than its stride, that makes this size"
            )

    def compute(self, x: BFPTensor) -> BFPTensor:
        sizes = (self.stride, self.padding, self.output_padding, self.groups, self.dilation)
        return conv_transpose2d(x, self.weight, self.bias, *sizes, self.peaks)


class ConvTranspose1d(ConvTranspose2d):
    """[n, ci, l] -> [n, co, ol], of images of height 1, by a weight [ci, co / groups, k]."""

    def compute(self, x: BFPTensor) -> BFPTensor:
        return over_lines(x, super().compute)


class Embedding(Layer):
    """Integer indices [...] -> rows [..., d]."""

    weight: BFPParameter

    def __init__(self, weight: BFPParameter, padding: int | None = None) -> None:
        super().__init__()
        self.hold(weight=weight)
        self.padding_idx = padding

    def forward(self, x: Tensor) -> BFPTensor:
        return embedding(x, self.weight, self.padding_idx, not self.training)


class EmbeddingBag(Layer):
    """Bags of integer indices -> the sum, mean or maximum of their rows [bags, d]."""

    weight: BFPParameter

    def __init__(self, weight: BFPParameter, mode: str) -> None:
        super().__init__()
        self.hold(weight=weight)
        self.mode = mode

    def forward(
        self, input: Tensor, offsets: Tensor | None = None, per_sample_weights: Any = None
    ) -> BFPTensor:
        """[bags, length], or [n] with the offsets of bags of one length.

        Raises UnsupportedError for bags of other lengths, and for weights of samples.
        """
        with self.named():
            if per_sample_weights is not None:
                raise UnsupportedError(
                    "expected no per_sample_weights, found some; multiply the rows of an Embedding "
                    "by them, and sum the products"
                )
            return embedding_bag(input, self.weight, self.mode, offsets, not self.training)
