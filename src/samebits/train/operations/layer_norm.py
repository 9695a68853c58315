"""Normalisation of vectors: LayerNorm, RMSNorm, GroupNorm, InstanceNorm (training.md 5, 7, 14.6).

Exact integer sums, binary64 scalars of every vector, integer multiply-shift.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from samebits import kernels
from samebits.errors import UnsupportedError
from samebits.kernels import rows
from samebits.kernels.geometry import MAX_GROUP
from samebits.kernels.protocol import Part, State
from samebits.kernels.rows import Exponent
from samebits.kernels.vectors import affine, normalized
from samebits.spec import formats
from samebits.train.operation import OperationCall, TrainingOperation
from samebits.train.operations.indexing import transpose
from samebits.train.operations.multiplication import scale
from samebits.train.operations.narrow import as_bfp8
from samebits.train.operations.pointwise import over_lines, reshape
from samebits.train.operations.products import bias_gradient
from samebits.train.shifts import ChannelPeaks, rounded
from samebits.train.tensor import BFPParameter, BFPTensor, offer
from samebits.train.value import BFPValue, Weight, bfp32

MAX_ROW_ELEMENTS = 1 << 12
MAX_SHIFTED_ELEMENTS = 1 << 18  # of codes of 19 bits: d * z - S1 below 2**38, K 24 bits
DEFAULT_EPS = torch.finfo(torch.float32).eps  # of an RMSNorm without one, as torch has it


@dataclass(frozen=True)
class VectorLayout:
    """Which elements of a shape are normalised together: groups of channels, or the last axis."""

    shape: torch.Size
    groups: int | None = None

    @property
    def channels(self) -> int:
        """The number of channels, or of elements of a vector."""
        return self.shape[-1 if self.groups is None else 1]

    def split(self, v: Tensor) -> Tensor:
        """[n, groups, d], or as it is: vectors along the last axis."""
        return v if self.groups is None else v.reshape(self.shape[0], self.groups, -1)

    def exponents(self, exponent: Exponent) -> Exponent:
        """Exponents of the tensor's rows, to meet vectors."""
        return (
            exponent
            if self.groups is None
            else rows.placed(exponent, lambda e: e.reshape(-1, 1, 1))
        )

    @property
    def rows(self) -> tuple[int, ...]:
        """The shape of exponents of the tensor's rows, to meet vectors."""
        return rows.row_size(self.shape) if self.groups is None else (self.shape[0], 1, 1)

    def join(self, v: Tensor) -> Tensor:
        """The inverse of `split`."""
        return v.reshape(self.shape)

    def of_rows(self, exponent: Exponent) -> Exponent:
        """Exponents of vectors, to meet the tensor."""
        if self.groups is None:
            return exponent
        size = (*self.shape[:2], *[1] * (len(self.shape) - 2))
        return rows.placed(exponent, lambda e: self._of_channels(e).reshape(size))

    def _of_channels(self, exponent: Tensor) -> Tensor:
        """Exponents of groups as those of their channels, [n, c, 1]."""
        assert self.groups is not None
        own = exponent.expand(self.shape[0], self.groups, 1)
        return own.repeat_interleave(self.channels // self.groups, 1)

    def along(self, v: Tensor) -> Tensor:
        """A vector of the channels, to meet vectors of elements."""
        if self.groups is None:
            return v
        inner = math.prod(self.shape[2:])
        return v.view(-1, 1).expand(-1, inner).reshape(1, self.groups, -1)

    def channels_last(self, v: Tensor, exponent: Exponent) -> tuple[Tensor, Exponent]:
        """Values of vectors and their exponents with the channels last."""
        if self.groups is None:
            return v, exponent
        n, c = self.shape[:2]
        values = v.reshape(n, c, -1).transpose(1, 2)
        return values, rows.placed(exponent, lambda e: self._of_channels(e).transpose(1, 2))


def _normalized(
    x: BFPValue,
    gamma: Weight | None,
    beta: Weight | None,
    eps: float,
    centred: bool,
    groups: int | None,
    peaks: ChannelPeaks | None,
) -> tuple[BFPValue, tuple[Any, ...]]:
    """(z - mean) / deviation of every row in integers, then times gamma plus beta.

    Rows lie along the last dimension, or are groups of channels; without gamma or beta they are
    left out. 8 bits of the normalised rows, and their factors, are saved for the backward pass.
    """
    z, e_z, shifts = x.shifted()
    layout, k = VectorLayout(z.shape, groups), kernels.of(z)
    bits = x.bits if gamma is None else gamma.widths.values
    if shifts is None and peaks is None:
        states, own = (_state(gamma, layout), _state(beta, layout)), layout.exponents(e_z)
        found = k.vector_norm(layout.split(z), own, *states, eps, centred, bits)
        (codes, exponent), (saved, e_saved), (factor, e_factor) = found
        if isinstance(e_z, Tensor) and isinstance(exponent, Tensor):
            exponent = exponent.view(e_z.shape)
        y = BFPValue(layout.join(codes), exponent, bits)
        return y, (saved, factor, (e_saved, e_factor))
    if shifts is not None:
        z = z.long() << (shifts if groups is None else rows.along_channels(shifts, z.dim()))
    vectors, own = layout.split(z), layout.exponents(e_z)
    wide, (saved, e_saved), (factor, e_factor) = normalized(k, vectors, own, eps, centred)
    acc, exponent = affine(k, wide, _joint(gamma, layout), _joint(beta, layout))
    y = rounded(layout.join(acc), layout.of_rows(exponent), bits, peaks)
    return y, (saved, factor, (e_saved, e_factor))


def _normalized_gradient(call: OperationCall, grad: BFPValue) -> tuple[BFPValue | None, ...]:
    """The gradient of the rows, and of gamma and beta where there are any."""
    x, gamma, beta, _, centred, groups, _ = call.arguments
    saved, multiplier, (e_saved, e_factor) = call.saved
    g, e_g = grad.resolved()
    layout, k = VectorLayout(x.shape, groups), kernels.of(g)
    g, e_g = layout.split(g), layout.exponents(e_g)
    xhat, factor = (saved, e_saved), (multiplier, e_factor)
    wanted = (gamma is not None, beta is not None)
    parameters = _parameter_gradients((g, e_g), xhat, layout, *wanted)
    by_rows = isinstance(e_g, Tensor) or isinstance(e_factor, Tensor)
    operands = (xhat, factor, _state(gamma, layout), centred, layout.rows if by_rows else None)
    codes, own = k.vector_norm_gradient(g, e_g, *operands)
    own = own.view(rows.row_size(x.shape)) if isinstance(own, Tensor) else own
    return BFPValue(layout.join(codes), own), *parameters


LAYER_NORM = TrainingOperation(
    "LayerNorm", _normalized, _normalized_gradient, reads=(1,), saves=True
)


def _state(parameter: Weight | None, layout: VectorLayout) -> State | None:
    """W, A and the exponent of J of a parameter, to meet vectors of elements."""
    if parameter is None:
        return None
    exponent = parameter.whole()[1] - formats.DELAYED_BITS
    return layout.along(parameter.codes), layout.along(parameter.delayed), exponent


def _joint(parameter: Weight | None, layout: VectorLayout) -> Part | None:
    """The joint values of a parameter, to meet vectors of elements, and their exponent."""
    if parameter is None:
        return None
    value, exponent = parameter.joint()
    return layout.along(value), exponent


def _parameter_gradients(
    g: Part, xhat: Part, layout: VectorLayout, gamma: bool, beta: bool
) -> tuple[BFPValue | None, BFPValue | None]:
    """The gradients of gamma and beta, where there are any: sums of g * xhat, and of g."""
    (codes, e_g), (saved, e_x), last = g, xhat, layout.channels_last
    if isinstance(e_g, int) and isinstance(e_x, int):
        if not gamma:
            return None, bias_gradient(last(codes, e_g)[0], e_g) if beta else None
        rows_of = (last(v, 0)[0].reshape(-1, layout.channels) for v in (codes, saved))
        sums, dots = (v.to(codes.device) for v in kernels.of(codes).channel_grad_sums(*rows_of))
        return bfp32(dots, e_g + e_x), bfp32(sums, e_g) if beta else None
    x = last(saved, 0)[0]
    return (
        _over_vectors(*last(codes, e_g + e_x), x) if gamma else None,
        _over_vectors(*last(codes, e_g)) if beta else None,
    )


def _over_vectors(g: Tensor, exponent: Exponent, x: Tensor | None = None) -> BFPValue:
    """The sum of g, or g * x, over all but the last axis, the channels: that of gamma or beta."""
    k, columns = kernels.of(g), exponent.shape[-1] if isinstance(exponent, Tensor) else 1
    own = rows.spread(exponent, (*g.shape[:-1], columns), g).flatten(0, -2)
    g, x = g.flatten(0, -2), None if x is None else x.flatten(0, -2)
    if columns == 1:
        return BFPValue(*k.shorten(*k.channel_sum(g, own, x)))
    acc, bits = (g.long(), 55) if x is None else (g.long() * x, 62)  # groups have exponents each
    return bfp32(*rows.gathered(k, acc, own, bits))


def layer_norm(
    x: BFPTensor,
    gamma: BFPParameter | None,
    beta: BFPParameter | None,
    size: int,
    eps: float = 1e-5,
    centred: bool = True,
    peaks: ChannelPeaks | None = None,
) -> BFPTensor:
    """Normalise the last dimension, of `size` (at most 4096), as bfp8; gamma, beta [size] or None.

    centred: subtract the mean; without it this is RMSNorm (Zhang and Sennrich 2019). peaks: of the
    output's channels, which have shifts by them (training.md 12.4). Four axes are no image here:
    every vector is a row (12.2). Raises UnsupportedError for other shapes.
    """
    if any(p is not None and tuple(p.shape) != (size,) for p in (gamma, beta)):
        raise UnsupportedError(f"layer norm: expected parameters of {size} elements, found others")
    if x.shape[-1:] != (size,) or x.numel() == 0:
        raise UnsupportedError(
            f"layer norm: expected rows of {size} elements, found shape {tuple(x.shape)}"
        )
    if size > MAX_ROW_ELEMENTS:
        raise UnsupportedError(
            f"layer norm: expected at most {MAX_ROW_ELEMENTS} elements, found {size}"
        )
    if x.dim() == 4:
        vectors = layer_norm(reshape(x, (-1, size)), gamma, beta, size, eps, centred, peaks)
        return reshape(vectors, tuple(x.shape))
    return LAYER_NORM(x, gamma, beta, eps, centred, None, peaks)


def group_norm(
    x: BFPTensor,
    groups: int,
    gamma: BFPParameter | None,
    beta: BFPParameter | None,
    eps: float = 1e-5,
    peaks: ChannelPeaks | None = None,
) -> BFPTensor:
    """Normalise groups of channels of [n, c, ...] sample by sample, as bfp8; gamma, beta [c].

    As many groups as channels are InstanceNorm. Wu and He 2018; peaks as of `layer_norm`. Raises
    UnsupportedError for groups that do not divide the channels, and above 2**20 elements, or 2**18
    where channels have shifts.
    """
    if x.dim() == 3:
        return over_lines(x, lambda image: group_norm(image, groups, gamma, beta, eps, peaks))
    if x.dim() not in (2, 4) or x.numel() == 0 or groups < 1 or x.shape[1] % groups:
        raise UnsupportedError(
            f"group norm: expected [n, c, ...], up to 4 axes, whose channels {groups} groups "
            f"divide, found shape {tuple(x.shape)}"
        )
    if gamma is not None and gamma.numel() != x.shape[1]:
        raise UnsupportedError(
            f"group norm: expected {gamma.numel()} channels, found shape {tuple(x.shape)}"
        )
    size = x.numel() // x.shape[0] // groups
    most = MAX_GROUP if x.shifts is None else MAX_SHIFTED_ELEMENTS
    if size > most:
        raise UnsupportedError(
            f"group norm: expected at most {most} elements of a group, found {size}"
        )
    return LAYER_NORM(x, gamma, beta, eps, True, groups, peaks)


def _layer_norm(
    x: BFPTensor,
    normalized_shape: Sequence[int],
    weight: BFPParameter | None = None,
    bias: BFPParameter | None = None,
    eps: float = 1e-5,
) -> BFPTensor:
    """torch.nn.functional.layer_norm over the last axis. Raises UnsupportedError for more."""
    return _functional(x, normalized_shape, weight, bias, eps, True)


def _rms_norm(
    x: BFPTensor,
    normalized_shape: Sequence[int],
    weight: BFPParameter | None = None,
    eps: float | None = None,
) -> BFPTensor:
    """torch.nn.functional.rms_norm over the last axis. Raises UnsupportedError for more."""
    own = DEFAULT_EPS if eps is None else eps
    return _functional(x, normalized_shape, weight, None, own, False)


def _functional(
    x: BFPTensor,
    shape: Sequence[int],
    weight: BFPParameter | None,
    bias: BFPParameter | None,
    eps: float,
    centred: bool,
) -> BFPTensor:
    """A norm over the last axis, by a module's parameters. Raises UnsupportedError for others."""
    if len(shape) != 1 or any(not isinstance(p, BFPParameter | None) for p in (weight, bias)):
        raise UnsupportedError(
            "layer norm: expected one normalised axis, and parameters of a module, found "
            f"{tuple(shape)}"
        )
    if not eps > 0:
        raise UnsupportedError(f"layer norm: expected eps > 0, found {eps}")
    return layer_norm(as_bfp8(x, "layer norm"), weight, bias, shape[0], eps, centred)


def _group_norm(
    x: BFPTensor,
    num_groups: int,
    weight: BFPParameter | None = None,
    bias: BFPParameter | None = None,
    eps: float = 1e-5,
) -> BFPTensor:
    """torch.nn.functional.group_norm."""
    return group_norm(as_bfp8(x, "group norm"), num_groups, weight, bias, eps)


def _instance_norm(
    x: BFPTensor,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: BFPParameter | None = None,
    bias: BFPParameter | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> BFPTensor:
    """torch.nn.functional.instance_norm. Raises UnsupportedError for running statistics."""
    if running_mean is not None or running_var is not None or not use_input_stats:
        raise UnsupportedError(
            "instance norm: expected use_input_stats=True and no running_mean or running_var, "
            "found running statistics; leave them out"
        )
    return _group_norm(x, x.shape[1] if x.dim() > 1 else 1, weight, bias, eps)


def _normalize(
    x: BFPTensor, p: float = 2.0, dim: int = 1, eps: float = 1e-12, out: None = None
) -> BFPTensor:
    """torch.nn.functional.normalize: by the root mean square of d elements, times 1 / sqrt(d).

    eps**2 is added to the sum of squares. Raises UnsupportedError for p other than 2.
    """
    if p != 2 or not -x.dim() <= dim < x.dim():
        raise UnsupportedError(
            f"normalize: expected p=2 and an axis of shape {tuple(x.shape)}, found {p} and {dim}"
        )
    rows = transpose(x, dim, -1)
    size = rows.shape[-1]
    y = _functional(rows, (size,), None, None, eps * eps / size, False)
    return transpose(scale(y, size**-0.5), dim, -1)


def _beside_cudnn(norm: Callable[..., BFPTensor]) -> Callable[..., BFPTensor]:
    """The function of torch itself, which has one option more, that changes no value."""

    def normed(
        x: BFPTensor,
        size: Any,
        weight: BFPParameter | None = None,
        bias: BFPParameter | None = None,
        eps: float = 1e-5,
        cudnn_enable: bool = True,
    ) -> BFPTensor:
        return norm(x, size, weight, bias, eps)

    return normed


offer(_layer_norm, "functional.layer_norm")
offer(_group_norm, "functional.group_norm")
offer(_instance_norm, "functional.instance_norm")
offer(_normalize, "functional.normalize")
offer(_rms_norm, "rms_norm")
offer(_beside_cudnn(_layer_norm), "torch.layer_norm")
offer(_beside_cudnn(_group_norm), "torch.group_norm")
