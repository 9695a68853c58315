"""PyTorch's loss functions and modules on BFP tensors: `torch.nn.functional` calls ours.

So do the modules of torch.nn (`nn.CrossEntropyLoss()`, `nn.L1Loss()` ...), which call those
functions. An argument that is not computed here is an error that names it.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
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


def _nll(
    input: BFPTensor,
    target: Tensor,
    weight: Tensor | None = None,
    *,
    ignore_index: int = IGNORED,
    reduction: str = "mean",
) -> Tensor:
    """`cross_entropy` of the logits in log-probabilities. UnsupportedError for another input."""
    if not isinstance(input, BFPTensor) or input.along is None or target.is_floating_point():
        raise UnsupportedError(
            "nll_loss: expected what log_softmax gives, and class indices, found "
            f"{type(input).__name__} and {target.dtype}; give the logits to cross_entropy"
        )
    return cross_entropy(input, target, weight, ignore_index=ignore_index, reduction=reduction)


def _of_torch(
    function: Callable[..., Tensor], ours: Callable[..., Tensor], what: str
) -> Callable[..., Tensor]:
    """A loss of ours with the arguments of PyTorch's, in its order.

    UnsupportedError for one that is given and that ours has not.
    """
    signature, taken = inspect.signature(function), inspect.signature(ours).parameters

    @functools.wraps(function)
    def compute(*args: Any, **options: Any) -> Tensor:
        given = signature.bind(*args, **options).arguments
        sides = given.pop("input"), given.pop("target")
        for name in [name for name in given if name not in taken]:
            if (value := given.pop(name)) is not None:
                advice = "use reduction" if name in ("size_average", "reduce") else "leave it out"
                raise UnsupportedError(
                    f"{what}: expected no {name} for a BFP tensor, found {type(value).__name__}; "
                    f"{advice}"
                )
        return ours(*sides, **given)

    return compute


for _function, _ours, _what in (
    (F.cross_entropy, cross_entropy, "cross-entropy"),
    (F.nll_loss, _nll, "nll_loss"),
    (F.binary_cross_entropy_with_logits, binary_cross_entropy_with_logits, "binary cross-entropy"),
    (F.mse_loss, mse_loss, "mse"),
    (F.l1_loss, l1_loss, "l1"),
    (F.smooth_l1_loss, smooth_l1_loss, "smooth l1"),
    (F.huber_loss, huber_loss, "huber"),
):
    FUNCTIONS[_function] = _of_torch(_function, _ours, _what)
