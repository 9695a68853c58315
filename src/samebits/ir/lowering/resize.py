"""Lowering of interpolated images: integer weights for rows and columns, one rounding."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from math import lcm

from samebits.errors import UnsupportedError
from samebits.ir.graph import Array, Node
from samebits.ir.lowering.products import NCHW_TO_NHWC, activation, image_of, image_result
from samebits.ir.lowering.states import LoweringBuilder, State, States, Sum, integers
from samebits.ir.real.resize import Taps, tables, weights_of

FINE_WEIGHTS = (
    "the interpolation weights have too large a common denominator; choose sizes with a ratio of "
    "smaller numbers"
)


def _interpolate(e: LoweringBuilder, node: Node, states: States) -> list[State]:
    """Weighted sums of rows and columns, in the common denominators of the weights."""
    x = activation(states[0], e)
    shape = e.graph.values[node.inputs[0]].shape
    found = weights_of(shape, node.attributes)
    if len(shape) not in (3, 4) or min(found, default=2) < 2:
        raise UnsupportedError(
            "expected images [N, C, H, W] or signals [N, C, L] whose axes from 2 on alone change, "
            f"found {list(shape)} with changes along {sorted(found)}"
        )
    sides = (2, 3) if len(shape) == 4 else (0, 2)  # a signal has one row
    names, divisor = [image_of(e, x.codes)], 1
    for axis in sides:
        size = shape[axis] if axis else 1
        taps = found.get(axis, tuple({i: Fraction(1)} for i in range(size)))
        places, weights, common = _whole(taps)
        names.append(e.constant(f"{node.name}.places", places))
        names.append(e.constant(f"{node.name}.weights", weights))
        divisor *= common
    total = Sum("resample", tuple(names), {"zero": x.zero}, NCHW_TO_NHWC, node.name)
    return [image_result(e, node, total, (x.unit / divisor,))]


def _whole(taps: Sequence[Taps]) -> tuple[Array, Array, int]:
    """Places and integer weights [outputs, taps], and what the weights are divided by."""
    common = lcm(*(w.denominator for row in taps for w in row.values()))
    places, weights = tables(taps)
    return places, integers(weights * common, FINE_WEIGHTS), common


RULES: dict[str, Callable[..., list[State]]] = {"Interpolate": _interpolate}
