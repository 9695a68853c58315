"""Lowering of numbers rounded by their own range, and of the products that read them."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import numpy as np

from samebits.errors import UnsupportedError
from samebits.ir.graph import Node
from samebits.ir.lowering import products
from samebits.ir.lowering.products import CODE_TYPES, activation
from samebits.ir.lowering.states import (
    Affine,
    Codes,
    LoweringBuilder,
    Order,
    State,
    States,
    Sum,
    quantization_of,
)
from samebits.ir.ops import Attributes

LEVELS = 255  # steps of the 8-bit codes of a range
Rule = Callable[[LoweringBuilder, Node, States], list[State]]


def _round_dynamic(e: LoweringBuilder, node: Node, states: States) -> list[State]:
    """Codes from -255 to 255 in units of span / 255, span the greatest less the least code of the
    tensor, that of 0 among them (docs/spec/graph.md section 4)."""
    x = activation(states[0], e)
    name, source = node.name, x.codes.name
    every: Attributes = {"axes": tuple(range(len(e.shape(source)))), "keepdims": True}
    zero = e.constant(f"{name}.zero", np.full((1,) * len(e.shape(source)), x.zero, e.dtype(source)))
    ends = [
        e.add(
            op,
            [e.add(f"reduce_{which}", [source], every, f"{name}.{which}"), zero],
            {},
            f"{name}.{op}",
        )
        for op, which in (("maximum", "max"), ("minimum", "min"))
    ]
    wide = {"dtype": "int64"}
    span = e.add("add", ends, {"factors": (1, -1), **wide}, f"{name}.span")
    shifted: Attributes = {"factors": (1,), "offset": -x.zero, **wide}
    levels: Attributes = {
        "ratio": Fraction(LEVELS),
        "low": -LEVELS,
        "high": LEVELS,
        "dtype": "int16",
    }
    least, codes = (
        e.add(
            "divide", [e.add("add", [v], shifted, f"{name}.centred"), span], levels, f"{name}.codes"
        )
        for v in (ends[1], source)
    )
    most = e.add("add", [least], {"factors": (1,), "offset": LEVELS, **wide}, f"{name}.most")
    held: Attributes = {"ratios": (Fraction(1),), "low": 0, "high": LEVELS, "dtype": "int16"}
    most = e.add("requantize", [most], held, f"{name}.greatest")
    codes = e.add("minimum", [codes, most], {}, f"{name}.saturated")
    return [Affine(_scaled(codes, span, x.codes.order, name), gain=(x.unit / LEVELS,))]


def _scaled(codes: str, span: str, order: Order, name: str) -> Sum:
    zeros = {"a_zero": 0, "b_zero": 0}
    return Sum("multiply", (codes, span), zeros, order, f"{name}.scaled", scaled=True)


def _range_of(e: LoweringBuilder, x: State | None) -> tuple[Affine, str] | None:
    """The codes of a RoundDynamic, with one scale, and their span; None for any other state, as
    what an operator has made of it."""
    if not isinstance(x, Affine) or not isinstance(x.source, Sum) or quantization_of(x) is None:
        return None
    codes, *span = x.source.inputs
    plain = x.source.scaled and x.source.bias == (0,) and x.source.factor == 1
    if not plain or e.dtype(codes) not in CODE_TYPES:  # a product is of sums
        return None
    return Affine(Codes(codes, x.source.order), x.gain[0]), span[0]


def _product(rule: Rule) -> Rule:
    """A product's rule for a first operand of a dynamic range: its sums times the span."""

    def lowered(e: LoweringBuilder, node: Node, states: States) -> list[State]:
        found = _range_of(e, states[0])
        if found is None:
            return rule(e, node, states)
        x, span = found
        if any(bias is not None for bias in states[2:]):
            raise UnsupportedError("expected a bias behind a product of a dynamic range, found one")
        (total,) = rule(e, node, [x, *states[1:]])
        assert isinstance(total, Affine)
        sums = e.stored(total)
        ones = (1,) * len(sums.order)
        span = e.add("reshape", [span], {"shape": ones}, f"{node.name}.span")
        scaled = _scaled(sums.name, span, sums.order, node.name)
        return [Affine(scaled, gain=total.gain, axis=total.axis)]

    return lowered


RULES: dict[str, Rule] = {
    "RoundDynamic": _round_dynamic,
    **{op: _product(products.RULES[op]) for op in ("Conv", "MatMul")},
}
