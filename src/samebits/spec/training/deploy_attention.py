"""Deployed norms of vectors, products of activations and softmax, in plain Python integers.

A restatement of docs/spec/training.md, section 11.1, like `deploy`. Exact values are arrays of 32
bits, however long their integers are; shares and scores have 16.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction

from samebits.spec import formats
from samebits.spec.formats import power
from samebits.spec.training import attention, pointwise
from samebits.spec.training.layers import Array, Parameter
from samebits.spec.training.norm import Vectors
from samebits.spec.training.rows import each
from samebits.spec.vectors import factors, normalized, shares

SHARE_EXPONENT = -16


def saturated(value: Fraction, bits: int) -> int:
    """rne, then saturate to signed codes of so many bits."""
    limit = 1 << (bits - 1)
    return min(max(formats.round_real(value), -limit), limit - 1)


def narrow(x: Array, site: int, bits: int = 8) -> Array:
    """Values as codes of a frozen exponent, one rounding."""
    codes = [saturated(c * power(x.one_exponent - site), bits) for c in x.codes]
    return Array(codes, x.shape, site, bits)


def real_values(parameter: Parameter) -> list[Fraction]:
    """The joint values of a parameter."""
    joint, exponent = parameter.joint
    return [j * power(exponent) for j in joint]


def layer_norm(
    x: Array,
    gamma: Parameter | None,
    beta: Parameter | None,
    eps: float,
    site: int,
    centred: bool = True,
    groups: int | None = None,
) -> Array:
    """LayerNorm; not centred: RMSNorm; groups: of channels, GroupNorm."""
    of = Vectors(x.shape, groups)
    size, channels = of.view[-1], max(of.channels) + 1
    real_eps = formats.round_binary32(Fraction(eps))
    epsilon = formats.round_real(size * size * real_eps / power(2 * x.one_exponent))
    if epsilon >= 2**61:
        raise OverflowError("expected an eps that fits the exponent of the input")
    factor = [Fraction(1)] * channels if gamma is None else real_values(gamma)
    term = [Fraction(0)] * channels if beta is None else real_values(beta)
    m, b, shift = factors(factor, term, power(site))
    normal: list[int] = []
    for start in range(0, len(x.codes), size):
        normal += normalized(x.codes[start : start + size], centred, epsilon)
    values = [
        Fraction(n * m[c] + b[c], 1 << shift) for n, c in zip(normal, of.channels, strict=True)
    ]
    return Array([saturated(v, 8) for v in values], x.shape, site, 8)


def matmul(a: Array, b: Array, transposed: bool = False) -> Array:
    """Sums of products of codes, or of shares and codes, exactly."""
    of = attention.Operands(a, b, transposed, (False, False), False, 8)
    _, n, m, _ = of.sizes
    shape = (*a.shape[:-2], n, m)
    acc = [0] * (len(a.codes) // a.shape[-1] * m)
    for y, i, j in of.taps():
        acc[y] += a.codes[i] * b.codes[j]
    return Array(acc, shape, a.one_exponent + b.one_exponent, 32)


def scaled(x: Array, factor: float) -> Array:
    """An exact value times the coefficient of a number."""
    m, by = formats.signed_coefficient(factor)
    return replace(x, codes=[c * m for c in x.codes], exponent=x.one_exponent + by)


def multiplied(a: Array, b: Array) -> Array:
    """Products of codes of at most 16 bits, exactly; an axis of size 1 repeats."""
    whole = tuple(map(max, zip(a.shape, b.shape, strict=True)))
    both = ([t.codes[i] for i in pointwise.repeated(t.shape, whole)] for t in (a, b))
    codes = [u * v for u, v in zip(*both, strict=True)]
    return Array(codes, whole, a.one_exponent + b.one_exponent, 32)


def added(*terms: Array) -> Array:
    """The sum of exact values, or of one and codes."""
    lowest = min(t.one_exponent for t in terms)
    columns = zip(*([c << t.one_exponent - lowest for c in t.codes] for t in terms), strict=True)
    return Array([sum(column) for column in columns], terms[0].shape, lowest, 32)


def where(chosen: Sequence[bool], a: Array, b: Array) -> Array:
    """a where it is chosen, else b, of tensors of at most 16 bits: the sum of both with zeros."""
    first = [c if at else 0 for c, at in zip(a.codes, chosen, strict=True)]
    second = [0 if at else c for c, at in zip(b.codes, chosen, strict=True)]
    return added(replace(a, codes=first), replace(b, codes=second))


def constant16(x: Array) -> Array:
    """A constant beside an exact value."""
    codes, exponent = formats.requantize(x.codes, x.one_exponent, 16)
    return Array(codes, x.shape, exponent, 16)


Powers = Callable[[int, int], Sequence[int]]
"""(exponent, entries) -> rne(2**24 * exp(-d * 2**exponent)) of every distance d."""


def softmax(x: Array, powers: Powers, allowed: Sequence[bool] | None = None) -> Array:
    """Shares of 16 bits over the last axis, of the places that are allowed."""
    size = x.shape[-1]
    table = powers(x.one_exponent, 1 << min(x.bits, 16))
    found: list[int] = []
    for start in range(0, len(x.codes), size):
        row = {j: x.codes[start + j] for j in range(size) if allowed is None or allowed[start + j]}
        found += [min(y, 65535) for y in shares(row, table, 1 << 16, range(size))]
    return Array(found, x.shape, SHARE_EXPONENT, 16)


def entered(parameter: Parameter) -> Array:
    """A parameter's codes at one exponent, the largest of rows that are not all zero."""
    codes, count = parameter.codes, parameter.shape[0]
    own = each(parameter.exponent, count)
    size = len(codes) // count
    live = [own[i // size] for i, code in enumerate(codes) if code]
    e = max(live or own)
    return Array(
        [formats.scaled(c, own[i // size] - e) if c else 0 for i, c in enumerate(codes)],
        parameter.shape,
        e,
        8,
    )
