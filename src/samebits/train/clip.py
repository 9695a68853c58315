"""Gradient clipping in integers (training.md 4), by the names that it has in torch.nn.utils.

Call them between the last `backward()` of a step and the optimizer's `step()`. Where several
workers share a step, clip the gradient that they have exchanged, as `samebits train` does.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from fractions import Fraction
from typing import Any, NoReturn

import torch
from torch import Tensor

from samebits import kernels
from samebits.errors import InputError, UnsupportedError
from samebits.kernels.protocol import WholePart
from samebits.spec import formats
from samebits.spec.training.clipping import root
from samebits.train.tensor import FUNCTIONS, BFPTensor
from samebits.train.value import BFPValue


def check_limit(limit: float, what: str) -> float:
    """A limit of clipping. Raises InputError, which says `what` it is, unless finite and > 0."""
    if isinstance(limit, bool) or not isinstance(limit, int | float) or not 0 < limit < math.inf:
        raise InputError(f"{what}: expected a finite number > 0, found {limit!r}")
    return float(limit)


@torch.no_grad()
def clip_grad_norm_(parameters: Tensor | Iterable[Tensor], max_norm: float) -> float:
    """Scale the gradients of BFP parameters down so that their common norm is at most `max_norm`.

    Gives the Euclidean norm before, binary64: squares of codes add up exactly, in any order. Above
    the limit every gradient is multiplied by the 16-bit coefficient of limit / norm, one rounding
    to 32-bit codes; its relative error, 2**-16 at most, is what the new norm may be above the
    limit. Otherwise nothing changes.

    Raises InputError for a limit that is not positive and finite or a gradient that is not BFP, and
    RangeError for a norm that binary64 does not hold; no gradient has changed then.
    """
    limit = check_limit(max_norm, "max_norm")
    gradients = _gradients(parameters)
    parts = [_resolved(gradient) for gradient in gradients]
    norm = root([(kernels.of(codes).square_sum(codes), e) for codes, e in parts])
    if norm > limit:
        factor = limit / norm
        m, x = formats.coefficient(factor) if factor else (0, 0)
        for gradient, (codes, exponent) in zip(gradients, parts, strict=True):
            k = kernels.of(codes)
            largest = k.largest_of(codes)
            scaled, e = k.shorten(codes.long() * m, largest * m, exponent + x)
            bound = formats.scaled(largest * m, exponent + x - int(e))
            _replace(gradient, (scaled, int(e)), bound)
    return norm


@torch.no_grad()
def limit_grad_norm_(parameters: Iterable[Tensor], max_norm: float) -> None:
    """`clip_grad_norm_`, but that nobody is told the norm, and so nobody waits for a device."""
    parameters = list(parameters)
    gradients = _gradients(parameters)
    if not gradients or not kernels.keeps_numbers(gradients[0].device):
        clip_grad_norm_(parameters, max_norm)
        return
    limit = check_limit(max_norm, "max_norm")
    clipped = kernels.clipped_by_norm([g.resolved() for g in gradients], limit)
    for gradient, part in zip(gradients, clipped, strict=True):
        _replace(gradient, part, None)


@torch.no_grad()
def clip_grad_value_(parameters: Tensor | Iterable[Tensor], clip_value: float) -> None:
    """Bring every element of the gradients of BFP parameters to within +-`clip_value`.

    Codes stop at the largest one that is within the limit on the gradient's own grid; exponents
    stay. Raises InputError for a limit that is not positive and finite or a gradient that is not
    BFP; no gradient has changed then.
    """
    limit = Fraction(check_limit(clip_value, "clip_value"))
    for gradient in _gradients(parameters):
        if kernels.keeps_numbers(gradient.device):
            part = kernels.clipped_by_value(gradient.resolved(), float(limit))
            _replace(gradient, part, None)
            continue
        codes, exponent = _resolved(gradient)
        most = math.floor(limit / formats.power(exponent))
        if kernels.of(codes).largest_of(codes) > most:
            clipped = codes.clamp(-most, most)
            _replace(gradient, (clipped, exponent if most else formats.EXPONENT_MIN), most)


def _gradients(parameters: Tensor | Iterable[Tensor]) -> list[BFPTensor]:
    """The gradients that there are. Raises InputError for one of another kind."""
    given = [parameters] if isinstance(parameters, Tensor) else list(parameters)
    found: list[BFPTensor] = []
    for index, parameter in enumerate(given):
        gradient = parameter.grad
        if isinstance(gradient, BFPTensor):
            found.append(gradient)
        elif gradient is not None:
            raise InputError(
                f"parameter {index}: expected a BFP gradient, found {type(gradient).__name__}; "
                "clip float gradients with torch.nn.utils"
            )
    return found


def _resolved(gradient: BFPTensor) -> WholePart:
    """The sum of a parameter's gradient, which has one exponent."""
    codes, exponent = gradient.resolved()
    return codes, int(exponent)


def _replace(gradient: BFPTensor, part: WholePart, bound: int | None) -> None:
    """Give a gradient other codes, of magnitudes up to `bound`, or of which none is known."""
    gradient.value = BFPValue(*part, bound=bound)


def _refused(*args: Any, **kwargs: Any) -> NoReturn:
    raise UnsupportedError(
        "BFP tensors are integers, which torch.nn.utils cannot clip: use clip_grad_norm_ and "
        "clip_grad_value_ of samebits.train; read values with .dequantize()"
    )


FUNCTIONS.update(
    dict.fromkeys(
        (  # what torch.nn.utils calls for gradients
            torch.linalg.vector_norm,
            torch._foreach_norm,
            torch.Tensor.clamp_,
            torch._foreach_clamp_min_,
            torch._foreach_mul_,
        ),
        _refused,
    )
)
