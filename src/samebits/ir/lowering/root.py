"""Square roots of sums, magnitudes among them: one rounding. docs/spec/graph.md 3.3 and 4."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from samebits.errors import UnsupportedError
from samebits.ir.graph import Node
from samebits.ir.integer.root import LARGEST_DIVISOR, LARGEST_FACTOR, nearest_root
from samebits.ir.lowering.states import (
    Affine,
    Codes,
    CodeTarget,
    LoweringBuilder,
    Pointwise,
    Root,
    Sum,
    as_sum,
    point_of,
    with_offset,
)
from samebits.tables.expression import Variable, apply

_SQUARES = (apply("Mul", Variable(), Variable()), apply("Pow", Variable(), 2))


def square_of(node: Node, x: Affine | Pointwise) -> Affine | Pointwise:
    """The square of codes, a function of one tensor, as a sum that others may be added to; every
    other function as it is."""
    if not isinstance(x, Pointwise) or len(x.expressions) > 1 or x.expressions[0] not in _SQUARES:
        return x
    codes, zeros = (x.source.name,) * 2, {"a_zero": x.zero, "b_zero": x.zero}
    total = Sum("multiply", codes, zeros, x.source.order, f"{node.name}.square")
    return Affine(total, gain=(x.unit**2,))


def root_of(e: LoweringBuilder, node: Node, x: Affine) -> Root | None:
    """The square root of a sum; None for codes, of which a table holds it.

    Constants in the sum are rounded to its unit. UnsupportedError for a scale for each channel, or
    one that is not positive.
    """
    if not e.is_sum(x):
        return None
    if len(x.gain) > 1:
        point_of(x)  # refuses
    x = as_sum(x, node)
    assert isinstance(x.source, Sum)
    if x.gain[0] <= 0:
        raise UnsupportedError(f"expected positive scales, found {float(x.gain[0])}")
    return Root(square=with_offset(replace(x, source=replace(x.source, scaled=True)), node))


def operand(e: LoweringBuilder, x: Root, to: CodeTarget) -> tuple[Codes, dict[str, Any]]:
    """The sum and the attributes of the operator that makes the codes of a target.

    Raises UnsupportedError where the unit of the sum over the square of the scale is no ratio of
    small integers.
    """
    (gain,), inner, square = x.square.gain, x.square, to.scale**2
    p, q = (gain / square).as_integer_ratio()
    if q > LARGEST_DIVISOR or p >= LARGEST_FACTOR:
        raise UnsupportedError(
            "expected a square root with the scale of what is squared times m / 2**j, m of at most "
            f"8 bits, found scales whose squares have the ratio {p} / {q}; quantize all that is "
            "squared with one scale, and the root with such a multiple of it"
        )
    ends = to.ends(x)
    for key, real in (("low", inner.low), ("high", inner.high)):
        if real is not None:
            code = nearest_root(real / square) + to.zero
            ends[key] = min(max(code, ends["low"]), ends["high"])
    assert isinstance(inner.source, Sum)
    numbers = {"p": p, "q": q, "zero": to.zero, "dtype": to.dtype}
    return e.accumulate(inner.source), numbers | ends
