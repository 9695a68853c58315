"""Normalisations by statistics of the input: one integer operator. docs/spec/graph.md 3.1, 4."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from math import prod
from typing import Any

import numpy as np

from samebits.errors import UnsupportedError
from samebits.ir.graph import Array, Node
from samebits.ir.integer.normalize import (
    FRACTION_BITS,
    LARGEST_EPSILON,
    LARGEST_FACTOR,
    LARGEST_SHIFT,
    LARGEST_TERM,
    vector_length,
)
from samebits.ir.lowering.products import activation
from samebits.ir.lowering.states import (
    Affine,
    Codes,
    ConstantCodes,
    ConstantReals,
    LoweringBuilder,
    Normalized,
    State,
    States,
)
from samebits.ir.ops import ops_with
from samebits.ir.traits import Trait
from samebits.spec.formats import round_real


def factors(e: LoweringBuilder, x: Normalized, scale: Fraction) -> tuple[Array, Array, int, int]:
    """(m, b, shift, epsilon) of the integer operator that makes codes of this scale.

    Raises UnsupportedError as `rounded_factors`.
    """
    n = vector_length(e.shape(x.source.name), x.vectors)
    return rounded_factors(n, x.epsilon, x.gamma, x.beta, scale)


def rounded_factors(
    n: int,
    epsilon: Fraction,
    gamma: Sequence[Fraction],
    beta: Sequence[Fraction],
    scale: Fraction,
) -> tuple[Array, Array, int, int]:
    """(m, b, shift, epsilon) of vectors of n elements, for codes of this scale.

    epsilon: of the square of the input's scale. Raises UnsupportedError where gamma, beta or
    epsilon are too large for the scales.
    """
    whole = round_real(n * n * epsilon)
    if whole > LARGEST_EPSILON:
        raise UnsupportedError(
            f"expected an epsilon below 2**61 / n**2 of the square of the input's scale, n = {n}, "
            f"found {float(epsilon):.3g} of it; quantize the input with a larger scale"
        )
    factors, terms = ([v / scale for v in values] for values in (gamma, beta))
    ends = [max(map(abs, values)) for values in (factors, terms)]  # rounding keeps their order
    for shift in range(LARGEST_SHIFT, 0, -1):
        m, b = (_rounded([ends[0]], shift - FRACTION_BITS), _rounded([ends[1]], shift))
        if m[0] <= LARGEST_FACTOR and b[0] < LARGEST_TERM >> 1:
            m, b = _rounded(factors, shift - FRACTION_BITS), _rounded(terms, shift)
            return np.array(m, np.int32), np.array(b, np.int64), shift, whole
    raise UnsupportedError(
        f"expected gamma and beta below 2**47 and 2**59 of the output's scale {float(scale):.3g}, "
        f"found up to {float(max(map(abs, gamma))):.3g} and {float(max(map(abs, beta))):.3g}; "
        "quantize the output with a larger scale"
    )


def _rounded(values: list[Fraction], bits: int) -> list[int]:
    return [round_real(v * Fraction(2) ** bits) for v in values]


def _layer_norm(e: LoweringBuilder, node: Node, states: States) -> list[State]:
    """LayerNormalization and RMSNormalization: every vector of the axes from `axis` on."""
    shape = e.graph.values[node.inputs[0]].shape
    axis = node.attributes["axis"] % len(shape)
    x = activation(states[0], e)
    order = (*(i for i in x.codes.order if i < axis), *range(axis, len(shape)))
    source = e.arranged(x.codes, order)
    stored = e.shape(source)
    if len(shape) - axis > 1:
        flat = (*stored[:axis], prod(stored[axis:]))
        source = e.add("reshape", [source], {"shape": flat}, f"{node.name}.vectors")
    vectors = {"batch": axis, "groups": 1, "centered": node.op == "LayerNormalization"}
    return [_normalized(node, states, x, Codes(source, order), vectors, shape[axis:], stored)]


def _group_norm(e: LoweringBuilder, node: Node, states: States) -> list[State]:
    """GroupNormalization and InstanceNormalization: every group of channels of a sample."""
    shape = e.graph.values[node.inputs[0]].shape
    x = activation(states[0], e)
    order = (0, *range(2, len(shape)), 1)
    source = e.arranged(x.codes, order)
    vectors = {"batch": 1, "groups": node.attributes.get("num_groups", shape[1])}
    channels = shape[1:2]
    return [_normalized(node, states, x, Codes(source, order), vectors, channels, e.shape(source))]


def _normalized(
    node: Node,
    states: States,
    x: Affine,
    source: Codes,
    vectors: dict[str, Any],
    parameters: tuple[int, ...],
    shape: tuple[int, ...],
) -> Normalized:
    """parameters: the shape that gamma and beta broadcast to. shape: of the result, as stored."""
    given = [*states[1:], None][:2]
    gamma, beta = (_numbers(state, parameters) for state in given)
    return Normalized(
        source,
        {**vectors, "x_zero": x.zero},
        Fraction(node.attributes["epsilon"]) / x.unit**2,
        gamma,
        beta,
        shape,
    )


def _numbers(state: State | None, shape: tuple[int, ...]) -> tuple[Fraction, ...]:
    """Constants, row by row; zeros where they are left out."""
    if state is None:
        return (Fraction(0),) * prod(shape)
    if not isinstance(state, (ConstantReals, ConstantCodes)):
        raise UnsupportedError("expected constant factors and terms, found computed ones")
    exact = state.exact()
    inner = exact.shape[max(exact.ndim - len(shape), 0) :]
    rows = exact.reshape(-1, *inner)
    if (rows != rows[:1]).any():
        raise UnsupportedError(
            f"expected factors and terms of {list(shape)}, found {list(exact.shape)}: one for each "
            "vector has no integer form"
        )
    return tuple(np.broadcast_to(rows[0], shape).flat)


RULES: dict[str, Callable[..., list[State]]] = {
    **dict.fromkeys(ops_with(Trait.TRAILING), _layer_norm),
    "GroupNormalization": _group_norm,
    "InstanceNormalization": _group_norm,
}
