"""PyTorch's loss functions and modules on BFP tensors: `torch.nn.functional` calls ours.

So do the modules of torch.nn (`nn.CrossEntropyLoss()`, `nn.L1Loss()` ...), which call those
functions. An argument that is not computed here is an error that names it.
"""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from samebits.errors import UnsupportedError
from samebits.spec.training.loss import IGNORED
from samebits.train.losses.difference import huber_loss, l1_loss, mse_loss, smooth_l1_loss
from samebits.train.losses.entropy import binary_cross_entropy_with_logits, cross_entropy
from samebits.train.tensor import FUNCTIONS, BFPTensor


class CrossEntropyLoss(nn.CrossEntropyLoss):
    """`cross_entropy` as a module, with the arguments of PyTorch's; BFP logits alone."""

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        return cross_entropy(
            input,  # type: ignore[arg-type]  # another tensor is an error that says so
            target,
            self.weight,
            ignore_index=self.ignore_index,
            reduction=self.reduction,
            label_smoothing=self.label_smoothing,
        )


class MSELoss(nn.MSELoss):
    """`mse_loss` as a module, with the arguments of PyTorch's; a BFP tensor alone."""

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        return mse_loss(input, target, reduction=self.reduction)  # type: ignore[arg-type]


class BCEWithLogitsLoss(nn.BCEWithLogitsLoss):
    """`binary_cross_entropy_with_logits` as a module, with the arguments of PyTorch's but `weight`;
    BFP logits alone."""

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        if self.weight is not None:
            raise UnsupportedError("binary cross-entropy: expected no weight; leave it out")
        return binary_cross_entropy_with_logits(
            input,  # type: ignore[arg-type]  # another tensor is an error that says so
            target,
            pos_weight=self.pos_weight,
            reduction=self.reduction,
        )


def _refuse(what: str, **arguments: Any) -> None:
    """UnsupportedError for an argument of PyTorch's that is given and has no meaning here."""
    for name, value in arguments.items():
        if value is not None:
            advice = "use reduction" if name in ("size_average", "reduce") else "leave it out"
            raise UnsupportedError(
                f"{what}: expected no {name} for a BFP tensor, found {type(value).__name__}; "
                f"{advice}"
            )


def _cross_entropy(
    input: BFPTensor,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    ignore_index: int = IGNORED,
    reduce: bool | None = None,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:
    """`cross_entropy` with the arguments of PyTorch's, in its order."""
    _refuse("cross-entropy", size_average=size_average, reduce=reduce)
    return cross_entropy(
        input,
        target,
        weight,
        ignore_index=ignore_index,
        reduction=reduction,
        label_smoothing=label_smoothing,
    )


def _nll(
    input: BFPTensor,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    ignore_index: int = IGNORED,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    """`cross_entropy` of the logits in log-probabilities. UnsupportedError for another input."""
    _refuse("nll_loss", size_average=size_average, reduce=reduce)
    if not isinstance(input, BFPTensor) or input.along is None or target.is_floating_point():
        raise UnsupportedError(
            "nll_loss: expected what log_softmax gives, and class indices, found "
            f"{type(input).__name__} and {target.dtype}; give the logits to cross_entropy"
        )
    return cross_entropy(input, target, weight, ignore_index=ignore_index, reduction=reduction)


def _binary_cross_entropy(
    input: BFPTensor,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
    pos_weight: Tensor | None = None,
) -> Tensor:
    _refuse("binary cross-entropy", weight=weight, size_average=size_average, reduce=reduce)
    return binary_cross_entropy_with_logits(
        input, target, pos_weight=pos_weight, reduction=reduction
    )


def _mse(
    input: BFPTensor,
    target: Tensor,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
    weight: Tensor | None = None,
) -> Tensor:
    _refuse("mse", size_average=size_average, reduce=reduce, weight=weight)
    return mse_loss(input, target, reduction=reduction)


def _l1(
    input: BFPTensor,
    target: Tensor,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
    weight: Tensor | None = None,
) -> Tensor:
    _refuse("l1", size_average=size_average, reduce=reduce, weight=weight)
    return l1_loss(input, target, reduction=reduction)


def _smooth_l1(
    input: BFPTensor,
    target: Tensor,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
    beta: float = 1.0,
) -> Tensor:
    _refuse("smooth l1", size_average=size_average, reduce=reduce)
    return smooth_l1_loss(input, target, reduction=reduction, beta=beta)


def _huber(
    input: BFPTensor,
    target: Tensor,
    reduction: str = "mean",
    delta: float = 1.0,
    weight: Tensor | None = None,
) -> Tensor:
    _refuse("huber", weight=weight)
    return huber_loss(input, target, reduction=reduction, delta=delta)


FUNCTIONS.update(
    {
        F.cross_entropy: _cross_entropy,
        F.nll_loss: _nll,
        F.binary_cross_entropy_with_logits: _binary_cross_entropy,
        F.mse_loss: _mse,
        F.l1_loss: _l1,
        F.smooth_l1_loss: _smooth_l1,
        F.huber_loss: _huber,
    }
)
