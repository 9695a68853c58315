"""Descriptions of real values while a graph is lowered: codes, sums of codes, functions of codes.

Every state is exact: nothing is rounded until a QuantizeLinear asks for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import gcd, lcm
from typing import Any, Self

import numpy as np

from samebits.errors import RangeError, UnsupportedError
from samebits.ir.graph import Array, Graph, GraphBuilder, Node
from samebits.ir.integer.define import ACCUMULATORS
from samebits.ir.integer.shape import keeps_channels
from samebits.ir.masks import flags_of, masks_of
from samebits.ir.ops import has
from samebits.ir.traits import Trait
from samebits.ir.value import Quantization
from samebits.spec.formats import round_real
from samebits.tables.expression import Expression, Variable, apply

Order = tuple[int, ...]
ONE = (Fraction(1),)
NONE = (Fraction(0),)


@dataclass(frozen=True)
class Codes:
    """Integers of the graph being built: axis i of the stored tensor is real axis order[i]."""

    name: str
    order: Order

    def last(self, axis: int) -> Order:
        """The order with real axis `axis` behind the others."""
        return (*(other for other in self.order if other != axis), axis)


@dataclass(frozen=True)
class Sum:
    """An accumulator that is not emitted yet, so that constants added to it join its bias.

    bias:   one integer per channel (last stored axis), or one for all.
    factor: of the sum, before the bias is added.
    scaled: it is a sum of products times a span, to whose unit constants are rounded.
    """

    op: str
    inputs: tuple[str, ...]
    attributes: Mapping[str, Any]
    order: Order
    name: str
    bias: tuple[int, ...] = (0,)
    factor: int = 1
    scaled: bool = False


@dataclass(frozen=True, kw_only=True)
class Bounded:
    """Values between two numbers, None for no bound."""

    low: Fraction | None = None
    high: Fraction | None = None

    @property
    def clipped(self) -> bool:
        """Whether a bound is set."""
        return self.low is not None or self.high is not None

    def clip(self, low: Fraction | None, high: Fraction | None) -> Self:
        """Clipped once more: min(max(value, low), high)."""

        def bounded(end: Fraction | None) -> Fraction | None:
            if end is None:
                return None
            end = end if low is None else max(end, low)
            return end if high is None else min(end, high)

        new_low = low if self.low is None else bounded(self.low)
        new_high = high if self.high is None else bounded(self.high)
        if new_low is not None and new_high is not None and new_low > new_high:
            new_low = new_high
        return replace(self, low=new_low, high=new_high)


@dataclass(frozen=True)
class Affine(Bounded):
    """min(max(gain[c] * unit * (code - zero) + offset[c], low), high), c along real axis `axis`.

    `unit` and `zero` are the stored quantization of codes; a Sum has unit 1 and zero 0.
    """

    source: Codes | Sum
    unit: Fraction = Fraction(1)
    zero: int = 0
    gain: tuple[Fraction, ...] = ONE
    offset: tuple[Fraction, ...] = NONE
    axis: int | None = None

    @property
    def codes(self) -> Codes:
        """The source, which is no sum."""
        assert isinstance(self.source, Codes)
        return self.source

    @property
    def plain(self) -> bool:
        """Only unit * (code - zero)."""
        return self.gain == ONE and self.offset == NONE and self.low is self.high is None

    def over(self, channels: int) -> list[tuple[Fraction, Fraction]]:
        """(gain, offset) of each channel."""
        gain = self.gain if len(self.gain) == channels else self.gain * channels
        offset = self.offset if len(self.offset) == channels else self.offset * channels
        return list(zip(gain, offset, strict=True))


@dataclass(frozen=True)
class Pointwise:
    """A function of one tensor of codes, element by element; one per channel, or one for all.

    The variable of the expressions is unit * (code - zero).
    """

    source: Codes
    unit: Fraction
    zero: int
    expressions: tuple[Expression, ...]
    axis: int | None = None


@dataclass(frozen=True)
class Softmax(Bounded):
    """The softmax of plain codes over real axis `axis`, over the places that `kept` holds, or its
    logarithm."""

    source: Codes
    unit: Fraction
    axis: int
    kept: Array | Codes | None = None
    logarithm: bool = False


@dataclass(frozen=True)
class MaskedScores:
    """Scores of which a softmax takes some places: those that are true (bool), or codes of 1, in a
    tensor of their rank."""

    scores: Affine
    kept: Array | Codes


@dataclass(frozen=True)
class Normalized(Bounded):
    """Plain codes normalised by statistics of their own, times gamma + beta for each channel.

    source:  channels last; the axes of vectors of several may be stored as one
    vectors: batch, groups, centered and x_zero of the integer operator
    epsilon: the real one, over the square of the scale of the codes
    shape:   of the result as stored
    """

    source: Codes
    vectors: Mapping[str, Any]
    epsilon: Fraction
    gamma: tuple[Fraction, ...]
    beta: tuple[Fraction, ...]
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Root(Bounded):
    """The square root of a sum with one unit and no offset, of 0 where that is less.

    square: the sum, bounds of which hold before the root is taken
    """

    square: Affine


@dataclass(frozen=True)
class ConstantCodes:
    """Constant integers with scales and zero points, one or one per index of `axis`."""

    codes: Array  # integers, zero points already subtracted (int64)
    scale: tuple[Fraction, ...]
    axis: int | None

    def exact(self) -> Array:
        """The real numbers as an object array of rationals (a scalar may become [1])."""
        scales = np.array(self.scale, object)
        if self.axis is not None:
            scales = scales.reshape([-1 if i == self.axis else 1 for i in range(self.codes.ndim)])
        return np.asarray(self.codes.astype(object) * scales, object)


@dataclass(frozen=True)
class ConstantReals:
    """Constant real numbers, exactly, as float64."""

    values: Array

    def exact(self) -> Array:
        """The same as an object array of rationals."""
        if self.values.dtype.kind == "f" and not np.isfinite(self.values).all():
            raise UnsupportedError("expected finite constants, found NaN or infinity")
        reals = np.array([Fraction(float(v)) for v in self.values.flat], object)
        return reals.reshape(self.values.shape)


@dataclass(frozen=True)
class CodeTarget:
    """The codes that a QuantizeLinear asks for: value = scale * (code - zero), in a tensor of this
    name. range: the least and the greatest."""

    scale: Fraction
    zero: int
    dtype: str
    name: str
    range: tuple[int, int]

    @property
    def quantization(self) -> Quantization:
        """Their scale and zero point."""
        return Quantization(self.scale, self.zero)

    def code(self, real: Fraction) -> int:
        """The code of a number: to nearest, ties to even, saturated."""
        low, high = self.range
        return min(max(round_real(real / self.scale) + self.zero, low), high)

    def ends(self, x: Bounded) -> dict[str, int]:
        """The clip as codes; rounding is monotone, so clip and rounding change places."""
        ends = zip(("low", "high"), self.range, (x.low, x.high), strict=True)
        return {key: end if real is None else self.code(real) for key, end, real in ends}


State = (
    Codes
    | Affine
    | Pointwise
    | Softmax
    | MaskedScores
    | Normalized
    | Root
    | ConstantCodes
    | ConstantReals
)
States = Sequence[State | None]  # of the inputs of a node, None where one is left out


def point_of(x: Affine | Pointwise) -> Pointwise:
    """A linear function of codes as an expression. Sums have none: UnsupportedError."""
    if isinstance(x, Pointwise):
        return x
    if isinstance(x.source, Sum):
        raise UnsupportedError(
            "expected a QuantizeLinear between the accumulator and this point-wise function; "
            "quantize the model with 8- or 16-bit outputs of Conv, Gemm and MatMul"
        )
    channels = max(len(x.gain), len(x.offset))
    expressions = []
    for gain, offset in x.over(channels):
        e: Expression = Variable()
        if gain != 1:
            e = apply("Mul", e, gain)
        if offset != 0:
            e = apply("Add", e, offset)
        if x.low is not None:
            e = apply("Max", e, x.low)
        if x.high is not None:
            e = apply("Min", e, x.high)
        expressions.append(e)
    return Pointwise(x.source, x.unit, x.zero, tuple(expressions), x.axis if channels > 1 else None)


class LoweringBuilder(GraphBuilder):
    """The integer graph under construction, with the bookkeeping of axis orders.

    graph: the real graph that is lowered
    """

    def __init__(self, graph: Graph) -> None:
        super().__init__(graph.name)
        self.graph = graph
        self.flags = flags_of(graph)
        self.masks = masks_of(graph, self.flags)
        self._arranged: dict[tuple[str, Order], str] = {}
        self._emitted: dict[tuple[Any, ...], str] = {}

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a value of the integer graph, its axes as stored."""
        return self.values[name].shape

    def dtype(self, name: str) -> str:
        """The type of a value of the integer graph."""
        return self.values[name].dtype

    def arranged(self, codes: Codes, order: Order) -> str:
        """The stored tensor with its axes in another order."""
        if codes.order == order:
            return codes.name
        perm = tuple(codes.order.index(axis) for axis in order)
        key = (codes.name, perm)
        if key not in self._arranged:
            shape = self.shape(codes.name)
            moved = [axis for axis in perm if shape[axis] != 1]
            if moved == sorted(moved):  # only axes of size 1 change place
                op, attributes = "reshape", {"shape": tuple(shape[axis] for axis in perm)}
            else:
                op, attributes = "transpose", {"perm": perm}
            self._arranged[key] = self.moved(op, [codes.name], attributes, f"{codes.name}.{op}")
        return self._arranged[key]

    def moved(
        self, op: str, inputs: Sequence[str], attributes: Mapping[str, Any], name: str
    ) -> str:
        """Append a movement of the first input. Its codes stand for what they did, unless they
        have scales for each index of the last axis, and the movement changes these indices."""
        before = self.values[inputs[0]]
        made = self.add(op, inputs, attributes, name)
        known = before.quantization
        if known is not None:
            shapes = before.shape, self.shape(made)
            along_last = known.axis == -1 and not known.offsets
            if known.plain or (along_last and keeps_channels(op, attributes, *shapes)):
                self.values[made] = replace(self.values[made], quantization=known)
        return made

    def accumulate(self, total: Sum) -> Codes:
        """Emit a sum; one that is read twice is emitted once."""
        attributes = {**total.attributes, "dtype": "int64"}
        inputs = list(total.inputs)
        late = any(total.bias) or total.factor != 1
        key = (
            *(total.op, total.inputs, repr(sorted(attributes.items()))),
            *(total.bias, total.order, total.factor),
        )
        if key not in self._emitted:
            if has(total.op, Trait.WEIGHTED):
                outputs = self.shape(inputs[1])[0]
                bias = total.bias if len(total.bias) == outputs else total.bias * outputs
                inputs.append(self.constant(f"{total.name}.bias", integers(bias)))
                late = False
            elif total.op == "add" and len(total.bias) == 1:
                k = total.factor
                attributes["factors"] = tuple(k * f for f in attributes["factors"])
                attributes["offset"] = k * attributes["offset"] + total.bias[0]
                late = False
            name = self.add(total.op, inputs, attributes, name=total.name)
            if late:
                inputs, factors = [name], [total.factor]
                if len(total.bias) > 1:
                    inputs.append(self.constant(f"{total.name}.bias", integers(total.bias)))
                    factors.append(1)
                offset = total.bias[0] if len(total.bias) == 1 else 0
                more: dict[str, Any] = {
                    "factors": tuple(factors),
                    "offset": offset,
                    "dtype": "int64",
                }
                name = self.add("add", inputs, more, name=f"{total.name}.add_bias")
            self._emitted[key] = name
        return Codes(self._emitted[key], total.order)

    def is_sum(self, x: Affine) -> bool:
        """Whether a linear state is one of an accumulator, which may have moved."""
        if isinstance(x.source, Sum):
            return True
        plain = x.unit == 1 and x.zero == 0
        return plain and self.dtype(x.source.name) in ACCUMULATORS

    def stored(self, x: Affine) -> Codes:
        """The codes behind a linear state."""
        return self.accumulate(x.source) if isinstance(x.source, Sum) else x.source


FINE_SCALES = "the scales have too fine a common unit; quantize with scales nearer to one another"


def integers(values: Sequence[int] | Array, why: str = FINE_SCALES) -> Array:
    """int32 where all fit, else int64; RangeError for what does not fit there, and why."""
    try:
        array = np.asarray(values, np.int64)
    except OverflowError as error:
        largest = max(abs(int(v)) for v in np.asarray(values, object).flat)
        raise RangeError(f"expected constants below 2**63, found up to {largest}: {why}") from error
    fits = not array.size or (array.min() >= -(1 << 31) and array.max() < 1 << 31)
    return array.astype(np.int32 if fits else np.int64)


def weights(values: Array) -> Array:
    """Codes minus their zero points in the narrowest signed type."""
    if not values.size or (values.min() >= -128 and values.max() <= 127):
        return values.astype(np.int8)
    if values.min() >= -(1 << 15) and values.max() < 1 << 15:
        return values.astype(np.int16)
    raise UnsupportedError(
        f"expected weights of at most 16 bits after their zero point, found {int(values.min())} "
        f"to {int(values.max())}"
    )


def as_sum(x: Affine, node: Node) -> Affine:
    """An accumulator that has moved as a sum of one term."""
    if isinstance(x.source, Sum):
        return x
    one = {"factors": (1,), "offset": 0}
    return replace(x, source=Sum("add", (x.source.name,), one, x.source.order, node.name))


def with_offset(x: Affine, what: Node) -> Affine:
    """A sum whose constant offset has become its bias.

    Of products it is rounded to their unit, rne(offset / gain), as the bias of a convolution is;
    of other sums the unit is made fine enough to hold it exactly.
    """
    total = x.source
    assert isinstance(total, Sum)
    if x.offset == NONE:
        return x
    channels = max(len(x.gain), len(x.offset))
    if channels > 1 and x.axis != total.order[-1]:
        raise UnsupportedError(
            f"node {what.name!r} ({what.op}): expected a constant along the channels of the "
            f"accumulator, found one along axis {x.axis}"
        )
    if not (has(total.op, Trait.PRODUCT) or total.scaled):
        return _refined(x, total)
    added = [round_real(offset / gain) for gain, offset in x.over(channels)]
    width = max(len(total.bias), channels)
    old, new = (v if len(v) == width else v * width for v in (total.bias, tuple(added)))
    bias = tuple(int(a + b) for a, b in zip(old, new, strict=True))
    return replace(x, source=replace(total, bias=bias), offset=NONE)


def _refined(x: Affine, total: Sum) -> Affine:
    """gain * total + offset as unit * (k * total + b), exactly; one gain."""
    if len(x.gain) > 1:
        raise UnsupportedError("expected one scale for a sum to which constants are added")
    unit = common_unit([*x.gain, *x.offset])
    k = int(x.gain[0] / unit)
    bias = tuple(int(offset / unit) for offset in x.offset)
    old = total.bias if len(total.bias) == len(bias) else total.bias * len(bias)
    bias = tuple(k * a + b for a, b in zip(old, bias, strict=True))
    return replace(
        x, source=replace(total, factor=total.factor * k, bias=bias), gain=(unit,), offset=NONE
    )


def common_unit(values: Sequence[Fraction]) -> Fraction:
    """The greatest common divisor of rationals: the largest unit of which all are multiples."""
    live = [abs(v) for v in values if v]
    if not live:
        return Fraction(1)
    denominator = lcm(*(v.denominator for v in live))
    return Fraction(gcd(*(int(v * denominator) for v in live)), denominator)


def quantization_of(x: Affine) -> Quantization | None:
    """Scale and zero point of plain codes or of a sum with one scale."""
    if len(x.gain) != 1 or x.clipped or x.offset != NONE:
        return None
    scale = x.gain[0] * x.unit
    return Quantization(scale, x.zero) if scale > 0 else None
