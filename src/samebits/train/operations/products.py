"""The products of a backward pass: what of a gradient enters each sum (training.md 7 and 12.3).

The exponents of the index that is summed over go into the gradient first, by one rounding; where
both factors have one exponent there is nothing to do.
"""

from __future__ import annotations

from torch import Tensor

from samebits import kernels
from samebits.errors import UnsupportedError
from samebits.kernels import ConvShape, rows
from samebits.kernels.protocol import Part
from samebits.kernels.rows import Exponent
from samebits.train.sums import requantized
from samebits.train.value import BFPValue, Weight, as_gradient, gradient_in


def check_kind(x: BFPValue, weight: Weight) -> None:
    """Refuse an input with one exponent for a weight whose rows have their own.

    Else a row's result would depend on the others of its batch without a word. The reverse is how
    a model with one exponent a weight is evaluated (training.md 12.6). Raises UnsupportedError.
    """
    if weight.by_rows and not x.by_rows:
        raise UnsupportedError(
            "expected an input with exponents by rows, as the weight has, found one exponent: "
            "quantize the model's input with samebits.train.model_input(model, x)"
        )


def by_output(exponent: Exponent, rank: int) -> Exponent:
    """Exponents of a weight [o, 1, ...] as they meet its outputs, axis 1 of 4 axes or the last."""
    return rows.placed(exponent, lambda e: rows.along_channels(e, rank))


def arriving(gradient: Part, weight: Weight) -> Part:
    """The gradient as a product takes it: in 16 bits where intermediates have 16 (13)."""
    return gradient_in(16, *gradient) if weight.widths.sums == 16 else gradient


def for_input(g: Tensor, e_g: Exponent, e_w: Exponent, bits: int = 16) -> Part:
    """Codes whose products with W are summed over outputs, and the exponent of those sums.

    g: [n, o, h, w], or [..., o]. bits: of the codes.
    """
    if isinstance(e_g, int) and isinstance(e_w, int):
        codes, exponent = gradient_in(bits, g, e_g)
        return codes, exponent + e_w
    own = e_g + by_output(e_w, g.dim())
    assert isinstance(own, Tensor)
    return as_gradient(requantized(g, own, bits))


def for_weight(g: Tensor, e_g: Exponent, e_x: Exponent) -> Part:
    """Codes whose products with x are summed over samples, and the exponents of the outputs.

    g: [n, o, h, w], or [..., o]. With exponents by rows the codes have 32 bits, and the exponents
    the shape [o, 1].
    """
    own = e_g + e_x
    if isinstance(own, int):
        return g, own
    size = [1] * g.dim()
    outputs = 1 if g.dim() == 4 else g.dim() - 1
    size[outputs] = g.shape[outputs]
    codes, exponent = kernels.of(g).requantize_blocks(g, own, 0, size, 32, limited=False)
    assert isinstance(exponent, Tensor)
    return codes, exponent.view(-1, 1)


def weight_gradient(
    g: Tensor, x: Tensor, shape: ConvShape, weight: Tensor, exponent: Exponent
) -> BFPValue:
    """The gradient of a weight, bfp32 with one exponent, of images g and x, with its bound.

    exponent: of the sums; an int, [o, 1], or that of every weight, flat: [o, weights].
    """
    sums = kernels.of(g).conv_weight_grad(g, x, shape)
    return of_weight(*sums, weight, exponent)


def of_weight(acc: Tensor, largest: int, weight: Tensor, exponent: Exponent) -> BFPValue:
    """The gradient of a weight from its sums, whose exponent is as `weight_gradient` has it."""
    k = kernels.of(acc)
    if isinstance(exponent, Tensor):
        size = acc.shape[1:] if exponent.shape[1] > 1 else [1] * (acc.dim() - 1)
        codes, own = k.shorten_blocks(acc, exponent.reshape(-1, *size), 0, None)
        bound = None
    else:
        codes, own = k.shorten(acc, largest, exponent)
        bound = largest
    codes = codes if weight.dim() == 4 else codes.reshape(weight.shape)
    return BFPValue(codes, own, bound=bound)


def bias_gradient(g: Tensor, e_g: Exponent) -> BFPValue:
    """The sum of g [n, o, h, w] or [..., o] over all but the outputs: bfp32 with one exponent."""
    if g.dim() != 4:
        e_g = rows.of_vectors(e_g, g.shape)
        g = g.reshape(-1, g.shape[-1])
    k = kernels.of(g)
    return BFPValue(*k.shorten(*k.channel_sum(g, e_g)))
