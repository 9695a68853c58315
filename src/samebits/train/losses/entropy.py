"""Cross-entropies: integer exponentials by table, integer row sums, exact gradients (training.md
6.1 to 6.4)."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from samebits import kernels
from samebits.errors import InputError, UnsupportedError
from samebits.kernels import rows, softmax
from samebits.numerics.realise import times_power
from samebits.spec import formats
from samebits.spec.training.loss import GRID, IGNORED, LN_2, MANY, POINT, real
from samebits.train.losses.reduction import (
    check_values,
    gradient_of,
    is_mean,
    real_target,
    reported,
)
from samebits.train.operation import OperationCall, TrainingOperation
from samebits.train.quantize import largest_magnitude
from samebits.train.scores import class_vectors
from samebits.train.tensor import BFPTensor
from samebits.train.value import BFPValue

MAX_CLASSES = 1 << 14
MOST_PROBABILITY = (1 << POINT) + (1 << POINT - 10)  # of a row, fixed point
Weights = tuple[Tensor, int]  # w, int64, in units of 2**(x - 24), and x


def _class_entropy(
    logits: BFPValue, target: Tensor, count: int | None
) -> tuple[Tensor, tuple[Tensor]]:
    """Cross-entropy of class indices, on a grid of 2**-24 (6.2).

    target: int64 [n], -1 in rows that do not count; count: what divides, None for a sum.
    """
    z, e_z = logits.resolved()
    found = kernels.of(z).cross_entropy(z, e_z, target, count or 1)
    total = softmax.loss_units(found.logs, None, found.distances, e_z)
    return reported(loss_value(total, CLASS_UNIT, count)), (found.codes,)


CLASS_UNIT, WEIGHED_UNIT = -24, -POINT - GRID  # of losses, and with weights of 1 and amounts


def loss_value(units: int, unit: int, divisor: float | None) -> float:
    """The loss of a sum over rows (6.1), in units of 2**unit; divisor: None for a sum."""
    loss = LN_2 * real(units, unit)
    return loss if divisor is None else loss / float(divisor)


def is_weighed(target: Tensor) -> bool:
    """Whether the mean over class indices, which all count, is one with amounts (6.2, 6.3)."""
    return target.dim() > 1 or target.numel() >= MANY


def _class_entropy_gradient(call: OperationCall, grad: Tensor) -> BFPValue:
    return gradient_of(call.saved[0], -24, float(grad))


CROSS_ENTROPY = TrainingOperation(
    "CrossEntropy", _class_entropy, _class_entropy_gradient, saves=True
)


def _weighed_entropy(
    logits: BFPValue, amounts: Tensor, x: int, divisor: float | None
) -> tuple[Tensor, tuple[Tensor]]:
    """Cross-entropy of rows with an amount for every class (6.3), in units of 2**(x - 28).

    amounts: int64 [rows, classes]; divisor: None for a sum.
    """
    q, loss = _weighed(*class_vectors(logits, 1), amounts, x, divisor)
    n, classes, *inner = logits.shape
    return reported(loss), (q.view(n, *inner, classes).movedim(-1, 1),)


def _binary_entropy(
    logits: BFPValue, amounts: Tensor, x: int, divisor: float | None
) -> tuple[Tensor, tuple[Tensor]]:
    """Cross-entropy of elements as rows (0, z) with two amounts (6.4).

    amounts: int64 [*shape, 2]; divisor: None for a sum.
    """
    z, e_z = logits.resolved()
    pairs = torch.stack((torch.zeros_like(z), z), -1).view(-1, 2)
    own = rows.placed(e_z, lambda e: e.expand(z.shape).reshape(-1, 1))
    q, loss = _weighed(pairs, own, amounts.view(-1, 2), x, divisor)
    return reported(loss), (q[:, 1].reshape(z.shape),)


def _weighed_gradient(call: OperationCall, grad: Tensor) -> BFPValue:
    _, _, x, divisor = call.arguments
    own = None if divisor is None else 1.0 / divisor
    return gradient_of(call.saved[0], x - GRID, float(grad), own)


WEIGHED_ENTROPY = TrainingOperation(
    "WeighedEntropy", _weighed_entropy, _weighed_gradient, saves=True
)
BINARY_ENTROPY = TrainingOperation("BinaryEntropy", _binary_entropy, _weighed_gradient, saves=True)


def _weighed(
    z: Tensor, exponent: int | Tensor, amounts: Tensor, x: int, divisor: float | None
) -> tuple[Tensor, float]:
    """Gradient codes of rows with amounts, and the loss."""
    codes, logs, distances = kernels.of(z).weighed_entropy(z, exponent, amounts)
    total = softmax.loss_units(logs, amounts.sum(1).cpu(), distances, exponent)
    return codes, loss_value(total, x + WEIGHED_UNIT, divisor)


def cross_entropy(
    logits: BFPTensor,
    target: Tensor,
    weight: Tensor | None = None,
    *,
    ignore_index: int = IGNORED,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:
    """Cross-entropy of logits [n, classes] or [n, classes, d1, ...]; a float64 scalar.

    target: class indices [n] or [n, d1, ...], or probabilities of the shape of the logits, each in
    [0, 1], a row's sum at most 1. weight [classes], `ignore_index` (of indices alone) and `mean`
    as in PyTorch; `mean` or `sum`. Raises UnsupportedError for logits or targets of other types,
    shapes or values and a mean over nothing, InputError for a smoothing or weights out of range.
    """
    shape = _check_logits(logits)
    mean = is_mean("cross-entropy", reduction)
    if not 0 <= label_smoothing <= 1:
        raise InputError(
            f"cross-entropy: expected label_smoothing in [0, 1], found {label_smoothing}"
        )
    n, classes, *inner = shape
    w = None if weight is None else _weights(weight.to(target.device), classes)
    if target.is_floating_point():
        return _of_probabilities(logits, target, w, ignore_index, mean, label_smoothing)
    target, count = _indices(target, (n, *inner), classes, ignore_index)
    if mean and not count:
        raise UnsupportedError(
            f"cross-entropy: expected at least one target that is not ignore_index, found "
            f"{ignore_index} alone; skip such a batch, or use reduction='sum'"
        )
    if w is None and not inner and label_smoothing == 0 and not (mean and count >= MANY):
        return CROSS_ENTROPY(logits, target, count if mean else None)
    target = target.reshape(-1)
    counted = (target >= 0).view(-1, 1)
    hits = kernels.of(target).hits(target, classes, 1 << POINT)
    amounts = torch.where(counted, _amounts(hits, w, label_smoothing), 0)
    divisor, x = float(count), 0
    if w is not None:
        chosen, x = w[0][target[target >= 0]], w[1]
        divisor = math.ldexp(float(int(chosen.sum())), x - POINT)
        if mean and divisor == 0:
            raise UnsupportedError(
                "cross-entropy: expected a target whose class has a weight above 0 (2**-25 of the "
                "largest), found none; skip such a batch, or use reduction='sum'"
            )
    return WEIGHED_ENTROPY(logits, amounts, x, divisor if mean else None)


def _check_logits(logits: Any) -> torch.Size:
    """The shape of logits that cross-entropy takes."""
    shape: torch.Size = logits.shape
    if not isinstance(logits, BFPTensor) or len(shape) < 2:
        raise UnsupportedError(
            f"cross-entropy: expected BFP logits [n, classes, ...], found {type(logits).__name__} "
            f"of shape {tuple(shape)}"
        )
    check_values("cross-entropy", logits, along=1)
    if 0 in shape:
        raise UnsupportedError(
            f"cross-entropy: expected at least one row, found an empty batch {tuple(shape)}"
        )
    if shape[1] > MAX_CLASSES:
        raise UnsupportedError(
            f"cross-entropy: expected at most {MAX_CLASSES} classes, found {shape[1]}"
        )
    return shape


def _indices(
    target: Tensor, shape: tuple[int, ...], classes: int, ignored: int
) -> tuple[Tensor, int]:
    """Class indices as int64, -1 where they are ignored, and the number of the others."""
    if tuple(target.shape) != shape or target.dtype not in (torch.int64, torch.int32):
        size = " x ".join(map(str, shape))
        raise UnsupportedError(
            f"cross-entropy: expected {size} integer targets, found {tuple(target.shape)} "
            f"of {target.dtype}"
        )
    target = target.long()
    low, high = (int(v) for v in torch.aminmax(target))
    if low >= 0 and high < classes and not low <= ignored <= high:
        return target, target.numel()
    counted = target != ignored
    chosen = target[counted]
    if len(chosen):
        low, high = (int(v) for v in torch.aminmax(chosen))
        if low < 0 or high >= classes:
            raise UnsupportedError(
                f"cross-entropy: expected targets in [0, {classes - 1}], found {low} to {high}"
            )
    return torch.where(counted, target, -1), len(chosen)


def _of_probabilities(
    logits: BFPTensor,
    target: Tensor,
    w: Weights | None,
    ignored: int,
    mean: bool,
    smoothing: float,
) -> Tensor:
    """Cross-entropy against probabilities of the shape of the logits."""
    n, classes, *inner = logits.shape
    if target.shape != logits.shape:
        size = " x ".join(map(str, (n, *inner)))
        raise UnsupportedError(
            f"cross-entropy: expected {size} integer targets, or probabilities of shape "
            f"{tuple(logits.shape)}, found {tuple(target.shape)} of {target.dtype}"
        )
    if ignored >= 0:
        raise UnsupportedError(
            f"cross-entropy: expected class indices for ignore_index {ignored}, found "
            "probabilities; a row of zeros counts for nothing but in the mean's divisor"
        )
    t = _probabilities("cross-entropy", target, logits.shape)
    t = t.movedim(1, -1).reshape(-1, classes)
    largest = int(t.sum(1).max())
    if largest > MOST_PROBABILITY:
        raise UnsupportedError(
            "cross-entropy: expected probabilities that add up to at most 1, found a row of sum "
            f"{math.ldexp(largest, -POINT)}"
        )
    x = 0 if w is None else w[1]
    divisor = float(t.shape[0]) if mean else None
    return WEIGHED_ENTROPY(logits, _amounts(t, w, smoothing), x, divisor)


def _probabilities(what: str, target: Tensor, shape: torch.Size) -> Tensor:
    """T = rne(t * 2**24), int64, of reals in [0, 1]. Raises UnsupportedError for others."""
    values = real_target(what, target, shape).double()
    largest_magnitude(values, "target")  # finite
    low, high = float(values.min()), float(values.max())
    if low < 0 or high > 1:
        raise UnsupportedError(
            f"{what}: expected probabilities in [0, 1] as targets, found {low} to {high}"
        )
    return torch.round(times_power(values, POINT)).long()


def _fixed_weights(what: str, weight: Tensor, least: float) -> Weights:
    """w and x of real weights, 2**x being at least `least`: 24 bits below the largest (6.3).

    Raises NonFiniteError or InputError for weights that are not finite or not >= 0.
    """
    values = weight.detach().double()
    found = float(values.min())
    if found < 0:
        raise InputError(f"{what}: expected weights >= 0, found {found}")
    largest = max(least, largest_magnitude(values, what))
    if not 2.0**-127 < largest <= 2.0**127:
        raise InputError(
            f"{what}: expected the largest weight above 2**-127 and at most 2**127, found {largest}"
        )
    x = formats.fits(largest, 0)
    return torch.round(times_power(values, POINT - x)).long(), x


def _weights(weight: Tensor, classes: int) -> Weights:
    """Class weights in units of 2**(x - 24)."""
    if weight.shape != (classes,):
        raise UnsupportedError(
            f"cross-entropy: expected weights of shape ({classes},), found {tuple(weight.shape)}"
        )
    return _fixed_weights("class weights", weight, 0.0)


def smoothed(smoothing: float, classes: int) -> tuple[int, int]:
    """The part of a target that is left, in units of 2**-24, and what every class gets (6.3)."""
    e = round(math.ldexp(smoothing, POINT))
    return (1 << POINT) - e, formats.round_ratio(16 * e, classes)


def _amounts(t: Tensor, w: Weights | None, smoothing: float) -> Tensor:
    """a of fixed-point targets [rows, classes] (6.3), int64."""
    k = kernels.of(t)
    left, spread = smoothed(smoothing, t.shape[1])
    s = k.scale(t * left, GRID - 2 * POINT) + spread
    return s if w is None else k.scale(s * w[0], -POINT)


def binary_cross_entropy_with_logits(
    logits: BFPTensor,
    target: Tensor,
    *,
    pos_weight: Tensor | None = None,
    reduction: str = "mean",
) -> Tensor:
    """Binary cross-entropy of logits of any shape against targets in [0, 1]; a float64 scalar.

    pos_weight, of a shape that broadcasts to that of the logits, multiplies the positive part;
    `mean` or `sum` over all elements. Raises UnsupportedError for other types, shapes or targets,
    InputError for weights that are negative or not finite.
    """
    what = "binary cross-entropy"
    if not isinstance(logits, BFPTensor) or logits.numel() == 0:
        raise UnsupportedError(
            f"{what}: expected non-empty BFP logits, found {type(logits).__name__} "
            f"{tuple(logits.shape)}"
        )
    check_values(what, logits)
    mean = is_mean(what, reduction)
    on = _probabilities(what, target, logits.shape)
    x, one = 0, torch.tensor(1 << POINT, device="cpu")
    positive = one
    if pos_weight is not None:
        try:
            fits = torch.broadcast_shapes(pos_weight.shape, logits.shape) == logits.shape
        except RuntimeError:
            fits = False
        if not fits or pos_weight.numel() == 0:
            raise UnsupportedError(
                f"{what}: expected a pos_weight that broadcasts to {tuple(logits.shape)}, found "
                f"shape {tuple(pos_weight.shape)}"
            )
        positive, x = _fixed_weights("pos_weight", pos_weight, 1.0)
        one = torch.tensor(formats.scaled(1 << POINT, -x), device="cpu")
    k = kernels.of(on)
    off = (1 << POINT) - on
    pairs = [k.scale(t * w.to(t.device), -20) for w, t in ((one, off), (positive, on))]
    amounts = torch.stack(pairs, -1)
    return BINARY_ENTROPY(logits, amounts, x, float(logits.numel()) if mean else None)
