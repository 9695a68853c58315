"""SGD, Adam and AdamW in plain Python integers (docs/spec/training.md, sections 2.1 and 4)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from samebits.errors import RangeError
from samebits.spec import formats
from samebits.spec.formats import CODE_MAX, DELAYED_BITS, EXPONENT_MAX, EXPONENT_MIN, Tensor, Weight
from samebits.spec.training.layers import Parameter
from samebits.spec.training.moments import (
    FRACTION,
    TOP_FIELD,
    Draw,
    encode,
    encode_reals,
    rounded,
    significand,
    value,
)
from samebits.spec.training.rows import Exponent

SUM_BITS = 50
UPDATE_BITS = 46


def positions(shape: Sequence[int]) -> list[int]:
    """The index by which random bits know each element of a tensor in row-major order. Section 1.5.

    Weights of a convolution [O, I, kh, kw] count in the order O, kh, kw, I.
    """
    if len(shape) != 4:
        return list(range(math.prod(shape)))
    o, i, h, w = shape
    return [
        ((a * h + y) * w + x) * i + b
        for a in range(o)
        for b in range(i)
        for y in range(h)
        for x in range(w)
    ]


def draw_of(seed: int | None, parameter: int, step: int) -> Draw | None:
    """The random bits of a parameter in a step; without a seed everything is rounded to nearest."""
    return None if seed is None else Draw(seed, parameter, step)


@dataclass(frozen=True)
class SGDState:
    """Steps done, and the momentum V (e6m9) once there is one."""

    steps: int = 0
    momentum: Tensor | None = None


@dataclass(frozen=True)
class SGD:
    """State of a parameter: `SGDState`, or None before its first step.

    seed: of the random bits; None: everything is rounded to nearest
    """

    lr: float
    momentum: float = 0.0
    weight_decay: float = 0.0
    nesterov: bool = False
    seed: int | None = 0

    def update(
        self, name: str, index: int, p: Parameter, g: Tensor, state: Any
    ) -> tuple[Parameter, SGDState]:
        """The new parameter, the index-th of the optimizer, and its state."""
        old = SGDState() if state is None else state
        draw, order = draw_of(self.seed, index, old.steps), positions(p.shape)
        base = [one_exponent(*g, 31)]
        if self.weight_decay > 0:
            base.append(decay_term(joint_of(p), self.weight_decay))
        terms = list(base)
        if self.momentum > 0 and old.momentum is not None:
            terms.append(moment_term(old.momentum, self.momentum))
        d = combine(terms)
        if self.momentum == 0:
            return descend(name, p, encode_sum(d, None), self.lr, draw), SGDState(old.steps + 1)
        v = encode_sum(d, None if draw is None else [draw.moment(i) for i in order])
        direction = v
        if self.nesterov:
            direction = encode_sum(combine([*base, moment_term(v, self.momentum)]), None)
        return descend(name, p, direction, self.lr, draw), SGDState(old.steps + 1, v)


Term = tuple[list[tuple[int, int]], int | None]
"""Numbers (a, e), and the exponent of a power of two that bounds them all; None of zeros."""


def one_exponent(codes: Sequence[int], exponent: int, bits: int) -> Term:
    """Codes below 2**bits that share an exponent, as a term."""
    return [(c, exponent) for c in codes], exponent + bits


def joint_of(p: Parameter) -> list[tuple[int, int]]:
    """J of every element with its exponent e_A, that of its row. Section 2."""
    pairs: list[tuple[int, int]] = []
    for row in rows_of(p.weight):
        joint, e_a = formats.join(row)
        pairs += [(j, e_a) for j in joint]
    return pairs


def decay_term(joint: Sequence[tuple[int, int]], decay: float) -> Term:
    """coef(decay) * J as a term; of exponents by rows the largest counts."""
    m, x = formats.coefficient(decay)
    return [(m * j, e + x) for j, e in joint], max(e for _, e in joint) + x + 39


def moment_term(moment: Tensor, factor: float) -> Term:
    """coef(factor) times an e6m9 tensor, exactly, as a term."""
    m, x = formats.coefficient(factor)
    codes, exponent = moment
    numbers = []
    for code in codes:
        q, field = significand(code) if code else (0, 0)
        numbers.append((-m * q if code < 0 else m * q, exponent - TOP_FIELD + field + x))
    return numbers, max(e for _, e in numbers) + 26 if any(codes) else None


def combine(terms: Sequence[Term]) -> list[tuple[int, int]]:
    """`combine50`: the sum of terms, each rounded to one exponent; below 2**52. Section 3."""
    e = max(top for _, top in terms if top is not None) - SUM_BITS
    columns = zip(
        *([formats.scaled(a, at - e) for a, at in numbers] for numbers, _ in terms), strict=True
    )
    return [(sum(column), e) for column in columns]


def encode_sum(d: Sequence[tuple[int, int]], words: Sequence[int] | None) -> Tensor:
    """`encode` of what `combine` gives, at an exponent that holds any of it. Section 4."""
    return encode(d, words, exponent=d[0][1] + SUM_BITS + 2 - FRACTION)


@dataclass(frozen=True)
class AdamState:
    """Steps done, first moment and root of the second (e6m9), and the powers of the betas."""

    first: Tensor
    root: Tensor
    steps: int = 0
    power1: float = 1.0
    power2: float = 1.0


@dataclass(frozen=True)
class Adam:
    """Adam, or with `decoupled` AdamW. State of a parameter: `AdamState` or None.

    seed: of the random bits; None: everything is rounded to nearest
    """

    lr: float
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    weight_decay: float = 0.0
    decoupled: bool = False
    seed: int | None = 0

    def update(
        self, name: str, index: int, p: Parameter, g: Tensor, state: Any
    ) -> tuple[Parameter, AdamState]:
        """The new parameter, the index-th of the optimizer, and its state."""
        size = len(p.codes)
        zero = ([0] * size, EXPONENT_MIN)
        old = AdamState(zero, zero) if state is None else state
        draw, order = draw_of(self.seed, index, old.steps), positions(p.shape)
        beta1, beta2, decay = self.beta1, self.beta2, self.weight_decay
        weights = [math.ldexp(float(j), e) for j, e in joint_of(p)]
        first, root = [], []
        for i in range(size):
            gradient = math.ldexp(float(g[0][i]), g[1])
            if decay > 0 and not self.decoupled:
                gradient = gradient + decay * weights[i]
            m = value(old.first[0][i], old.first[1])
            s = value(old.root[0][i], old.root[1])
            m = beta1 * m + (1.0 - beta1) * gradient
            v = beta2 * (s * s) + (1.0 - beta2) * (gradient * gradient)
            first.append(m)
            root.append(math.sqrt(v))
        new = AdamState(
            encode_reals(first, None if draw is None else [draw.moment(i) for i in order]),
            encode_reals(root, None if draw is None else [draw.root(i) for i in order]),
            old.steps + 1,
            old.power1 * beta1,
            old.power2 * beta2,
        )
        c1, c2 = 1.0 - new.power1, 1.0 - new.power2
        direction = []
        for i in range(size):
            m = value(new.first[0][i], new.first[1])
            s = value(new.root[0][i], new.root[1])
            step = (m / c1) / (s / math.sqrt(c2) + self.eps)
            if decay > 0 and self.decoupled:
                step = step + decay * weights[i]
            direction.append(step)
        return descend(name, p, encode_reals(direction, None), self.lr, draw), new


def descend(name: str, p: Parameter, direction: Tensor, lr: float, draw: Draw | None) -> Parameter:
    """SGD step 4: p - lr * direction."""
    if lr == 0:
        return p
    words = None if draw is None else [draw.update(i) for i in positions(p.shape)]
    new = lazy_update(p.weight, direction, formats.coefficient(lr), words, name, p.widths[0])
    return replace(p, weight=cast(Weight, new))


RowWeight = tuple[list[int], list[int], Exponent]
"""A weight with one exponent, or one for each row of its first axis."""


def rows_of(weight: RowWeight) -> list[Weight]:
    """The rows of a weight, each with its one exponent; one row where the weight has one."""
    codes, delayed, exponent = weight
    exponents = (exponent,) if isinstance(exponent, int) else exponent
    size = len(codes) // len(exponents)
    cuts = [slice(i * size, (i + 1) * size) for i in range(len(exponents))]
    return [(codes[at], delayed[at], e) for at, e in zip(cuts, exponents, strict=True)]


def lazy_update(
    weight: RowWeight,
    direction: Tensor,
    lr: tuple[int, int],
    words: Sequence[int] | None,
    name: str = "weight",
    bits: int = 8,
) -> RowWeight:
    """Subtract lr * direction (e6m9) from a weight, row by row. Section 2.1.

    lr: a coefficient (m, x); words: 16 random bits for every element, None: to nearest. Raises
    RangeError, with the name, where an exponent would pass 127.
    """
    (p, e_p), new, done = direction, [], 0
    for row in rows_of(weight):
        at = slice(done, done + len(row[0]))
        own = None if words is None else words[at]
        new.append(row_update(row, (p[at], e_p), lr, own, name, bits))
        done = at.stop
    if isinstance(weight[2], int):
        return new[0]
    codes = [w for row, _, _ in new for w in row]
    delayed = [a for _, row, _ in new for a in row]
    return codes, delayed, tuple(e for _, _, e in new)


def row_update(
    weight: Weight,
    direction: Tensor,
    lr: tuple[int, int],
    words: Sequence[int] | None,
    name: str,
    bits: int,
) -> Weight:
    """`lazy_update` of a row, which has one exponent."""
    codes, delayed, weight_exponent = weight
    p, e_p = direction
    if not any(p):
        return weight
    m, x = lr
    top = max(map(abs, p)) >> FRACTION
    above = e_p - TOP_FIELD + top + x + 26 - (weight_exponent - DELAYED_BITS) - UPDATE_BITS
    if above > 0:
        joint, _ = formats.join(weight)
        codes, delayed = formats.split([formats.scaled(j, -above) for j in joint])
        weight_exponent += above
    total = []
    for i, (a, code) in enumerate(zip(delayed, p, strict=True)):
        u = 0
        if code:
            q, field = significand(code)
            shift = weight_exponent - DELAYED_BITS - (e_p - TOP_FIELD + field + x)
            u = rounded(m * q, shift, None if words is None else words[i])
        total.append(a - u if code < 0 else a + u)
    carry = [formats.scaled(t, -DELAYED_BITS) for t in total]
    codes = [w - r for w, r in zip(codes, carry, strict=True)]
    delayed = [t - (r << DELAYED_BITS) for t, r in zip(total, carry, strict=True)]
    return fitted((codes, delayed, weight_exponent), name, bits)


def fitted(weight: Weight, name: str, bits: int) -> Weight:
    """A weight at the exponent of its largest code: steps 4 to 6 of section 2.1."""
    limit = CODE_MAX[bits]
    codes, delayed, exponent = weight
    if max(abs(w) for w in codes) > limit:
        joint, _ = formats.join(weight)
        by = 1
        while max(abs(_code(formats.scaled(j, -by))) for j in joint) > limit:
            by += 1
        codes, delayed = formats.split([formats.scaled(j, -by) for j in joint])
        exponent += by
    joint, _ = formats.join((codes, delayed, exponent))
    while any(joint) and max(abs(w) for w in codes) <= limit // 2 and exponent > EXPONENT_MIN:
        joint = [2 * j for j in joint]
        codes, delayed = formats.split(joint)
        exponent -= 1
    if exponent > EXPONENT_MAX:
        raise RangeError(
            f"parameter {name!r}: the update overflows (exponent {exponent}, at most "
            f"{EXPONENT_MAX}); lower the learning rate"
        )
    return codes, delayed, exponent


def _code(joint: int) -> int:
    return formats.scaled(joint, -DELAYED_BITS)
