"""Deployed norms of vectors, products of activations and softmax (docs/spec/training.md 11.1).

What a product of activations gives, and what is multiplied with a number or added to it, is an
*exact* value: integers that nothing has rounded yet, whose number of bits the tensor says (`bits`,
above 16). Rounded it is where a layer takes it (8 bits), a softmax, or the caller (16 bits).
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import torch
from torch import Tensor

from samebits import kernels
from samebits.errors import UnsupportedError
from samebits.ir.lowering.normalize import rounded_factors
from samebits.ir.ops import op_named
from samebits.kernels import rows
from samebits.kernels.protocol import Part
from samebits.spec import formats
from samebits.tables.transfer import exp_table
from samebits.train.deployed.rounding import saturated
from samebits.train.deployed.weights import real_values
from samebits.train.operation import TrainingOperation
from samebits.train.shifts import ChannelPeaks
from samebits.train.sums import requantized
from samebits.train.value import BFPValue, Weight

EXACT_BITS = 53  # of exact values: binary64 holds them
SCORE_BITS = 16
SHARE_EXPONENT = -16  # of what a softmax gives
_LEAST_EXACT = SCORE_BITS + 1


def _no_form(x: BFPValue) -> BFPValue:
    raise AssertionError("training has no values of 16 bits that are rounded once more")


NARROW16 = TrainingOperation("Narrow16", _no_form)
"""An exact value, or the sums of a Linear or Conv2d, as 16 bits. Deployed models alone do it: in
training such values have 32."""


def is_exact(x: BFPValue) -> bool:
    """Whether a deployed value has yet to be rounded."""
    return x.is_open or x.bits > SCORE_BITS


# --- norms ------------------------------------------------------------------------------------


def layer_norm(
    site: int,
    x: BFPValue,
    gamma: Weight | None,
    beta: Weight | None,
    eps: float,
    centred: bool,
    groups: int | None,
    peaks: ChannelPeaks | None,
) -> Part:
    """`normalize` of graph.md 3.1: exact sums of every vector, one rounding; peaks: unused.

    Raises UnsupportedError where gamma, beta or eps are too large for the exponents.
    """
    codes, exponent = x.whole()
    if groups is not None:
        codes = codes.movedim(1, -1)
    size = codes.shape[-1]
    factor, term = real_values(size, gamma, 1), real_values(size, beta)
    n = codes.shape[-1] if groups is None else codes[0].numel() // groups
    epsilon = Fraction(binary32_eps(eps)) / formats.power(2 * exponent)
    scale = formats.power(site)
    m, b, shift, whole = rounded_factors(n, epsilon, factor, term, scale)
    attributes = {
        "batch": codes.dim() - 1 if groups is None else 1,
        "groups": 1 if groups is None else groups,
        "centered": centred,
        "epsilon": whole,
        "shift": shift,
        "low": -128,
        "high": 127,
        "dtype": "int8",
    }
    operator = op_named("normalize")
    stored = np.ascontiguousarray(codes.cpu().numpy())
    (found,) = operator.meaning([stored, m, b], operator.complete(attributes, "layer norm"))
    y = torch.from_numpy(found).to(codes.device)
    return (y if groups is None else y.movedim(-1, 1).contiguous()), site


def binary32_eps(eps: float) -> float:
    """The binary32 number next to eps, which is what ONNX stores."""
    return float(np.float32(eps))


# --- exact values -----------------------------------------------------------------------------


def exact(codes: Tensor, exponent: int, bits: int) -> BFPValue:
    """Integers of at most so many bits. Raises UnsupportedError above 53."""
    _check_bits(bits)
    return BFPValue(codes.long(), exponent, bits=max(bits, _LEAST_EXACT))


def _check_bits(bits: int) -> None:
    if bits > EXACT_BITS:
        raise UnsupportedError(
            f"expected sums of at most {EXACT_BITS} bits, found {bits}: the exponents of their "
            "terms are too far apart; add a normalisation, or scale the terms"
        )


def product(site: None, a: BFPValue, b: BFPValue, transposed: bool) -> BFPValue:
    """Sums over products of codes: of 8 bits, or the 16 without a sign that a softmax gives.

    |sums| < 2**40, which binary64 holds, in any order.
    """
    (u, e_u), (v, e_v) = a.whole(), b.whole()
    w = v.transpose(-2, -1) if transposed else v
    acc = torch.matmul(u.double(), w.double())
    bits = _magnitude_bits(a) + _magnitude_bits(b) + (u.shape[-1] - 1).bit_length() + 1
    return exact(acc, e_u + e_v, bits)


def _magnitude_bits(x: BFPValue) -> int:
    """k of |codes| <= 2**k: -128 is one, as is the share 2**16 - 1."""
    return 7 if x.bits <= 8 else 16


def scaled(site: None, x: BFPValue, factor: float) -> BFPValue:
    """x times the coefficient of a number, exactly."""
    codes, exponent = x.whole()
    m, by = formats.signed_coefficient(factor)
    return exact(codes.long() * m, exponent + by, x.bits + abs(m).bit_length())


def multiplied(site: None, a: BFPValue, b: BFPValue) -> BFPValue:
    """Products of codes, of which exact values have 16 bits, exactly; axes of size 1 go along."""
    (u, e_u), (v, e_v) = a.whole(), b.whole()
    return exact(u.long() * v, e_u + e_v, _magnitude_bits(a) + _magnitude_bits(b) + 1)


def added(site: None, *terms: BFPValue) -> BFPValue:
    """a + b, exactly; a constant that came with 32 bits has 16."""
    own = [t for t in map(constant16, terms) if t is not None]
    lowest = min(t.whole()[1] for t in own)
    bits = max(t.bits + t.whole()[1] - lowest for t in own) + 1
    _check_bits(bits)
    total = torch.zeros(terms[0].shape, dtype=torch.int64, device=terms[0].device)
    for codes, exponent in (t.whole() for t in own):
        total = total + (codes.long() << exponent - lowest)
    return exact(total, lowest, bits)


def constant16(x: BFPValue) -> BFPValue | None:
    """A constant beside an exact value, which training gives 32 bits, with 16; None for zeros."""
    if x.bits <= SCORE_BITS or x.codes.dtype != torch.int32:
        return x
    part = requantized(*x.whole(), SCORE_BITS)
    return BFPValue(*part) if bool(part[0].any()) else None


def narrow16(site: int, x: BFPValue) -> BFPValue:
    """Exact integers as 16 bits, one rounding."""
    codes, exponent = x.whole()
    y = BFPValue(saturated(codes, exponent - site, SCORE_BITS), site)
    return y if x.allowed is None else y.masked(x.allowed)


def chosen16(x: BFPValue) -> int | None:
    """The exponent that 16 bits of a value in training would have; None: all zeros.

    What a mask excludes does not count. With exponents by rows: the largest.
    """
    codes, exponent = x.resolved()
    counted = codes if x.allowed is None else torch.where(x.allowed, codes, 0)
    return rows.largest_exponent(*requantized(counted, exponent, SCORE_BITS))


def chosen8(x: BFPValue) -> int | None:
    """The same of 8 bits, for an operand of a product."""
    return rows.largest_exponent(*requantized(*x.resolved(), 8))


def softmax(site: None, x: BFPValue) -> BFPValue:
    """`softmax` of graph.md 3 and 4 over the last axis: shares of 2**16, as uint16 has them."""
    codes, exponent = x.whole()
    codes = codes.long()
    allowed = torch.ones_like(codes, dtype=torch.bool) if x.allowed is None else x.allowed
    entries = 1 << (8 if x.bits <= 8 else SCORE_BITS)
    powers = torch.tensor(exp_table(formats.power(exponent), entries), device=codes.device)
    least = int(codes.min())
    top = torch.where(allowed, codes, least).amax(-1, keepdim=True)
    p = torch.where(allowed, powers[(top - codes).clamp(min=0)], 0)
    total = p.sum(-1, keepdim=True).clamp(min=1)  # P of the largest is 2**24 where there is one
    shares = kernels.of(codes).divide(p << -SHARE_EXPONENT, total)
    largest = (1 << SCORE_BITS) - 1
    return BFPValue(shares.clamp(max=largest).to(torch.int32), SHARE_EXPONENT, bits=SCORE_BITS)


# --- constants --------------------------------------------------------------------------------


def entry(site: None, parameter: Weight) -> Part:
    """A parameter as an activation: codes W of one exponent, the largest of rows not all zero."""
    codes, exponent = parameter.parts[0]
    if isinstance(exponent, int):
        return codes, exponent
    largest = rows.largest_exponent(codes, exponent)
    one = int(exponent.max()) if largest is None else largest
    return rows.scale(codes, (exponent - one).clamp(max=0)).to(torch.int8), one


def embedding(site: None, index: Tensor, weight: Weight, *options: object) -> Part:
    """Rows of the codes of a parameter."""
    codes, exponent = entry(None, weight)
    return codes[index], exponent
