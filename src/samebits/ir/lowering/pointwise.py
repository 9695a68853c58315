"""Lowering of element-by-element operators: functions of one tensor, sums and products of two."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from math import ceil, floor
from typing import Any

import numpy as np

from samebits.errors import UnsupportedError
from samebits.ir.graph import Node
from samebits.ir.integer.define import limits
from samebits.ir.lowering.products import activation
from samebits.ir.lowering.root import root_of, square_of
from samebits.ir.lowering.states import (
    NONE,
    Affine,
    Bounded,
    Codes,
    ConstantCodes,
    ConstantReals,
    LoweringBuilder,
    MaskedScores,
    Order,
    Pointwise,
    Root,
    State,
    States,
    Sum,
    common_unit,
    integers,
    point_of,
    with_offset,
)
from samebits.ir.ops import Attributes, broadcast, op_named, ops_with
from samebits.ir.real.define import FLOATS
from samebits.ir.traits import Trait
from samebits.spec.formats import round_binary32
from samebits.tables.expression import Expression, apply

LARGEST_SPREAD = 1 << 16  # elements of a constant that may turn out to be equal


def _real(x: State | None) -> Affine | Pointwise:
    if isinstance(x, (Affine, Pointwise)):
        return x
    if isinstance(x, Root):
        raise UnsupportedError("expected a QuantizeLinear after the square root of a sum")
    raise UnsupportedError(
        f"expected a dequantized tensor, found {'nothing' if x is None else type(x).__name__}"
    )


def _mapped(x: Pointwise, function: Callable[[Expression], Expression]) -> Pointwise:
    return replace(x, expressions=tuple(function(e) for e in x.expressions))


def _identity(e: LoweringBuilder, node: Node, states: States) -> list[State]:
    assert states[0] is not None
    return [states[0]]


def _cast(e: LoweringBuilder, node: Node, states: States) -> list[State]:
    if node.attributes["to"] not in FLOATS:
        raise UnsupportedError(f"expected a cast to a float type, found {node.attributes['to']}")
    if isinstance(states[0], Codes):
        return [Affine(states[0])]
    return _identity(e, node, states)


def _clip(e: LoweringBuilder, node: Node, states: States) -> list[State]:
    ends = (0.0, None) if node.op == "Relu" else (node.attributes["min"], node.attributes["max"])
    low, high = (None if end is None or np.isinf(end) else Fraction(end) for end in ends)
    if isinstance(states[0], Codes):
        return [_clipped_codes(e, node, states[0], (low, high))]
    if isinstance(states[0], Bounded):
        return [states[0].clip(low, high)]
    x = point_of(_real(states[0]))
    if low is not None:
        x = _mapped(x, lambda f: apply("Max", f, low))
    if high is not None:
        x = _mapped(x, lambda f: apply("Min", f, high))
    return [x]


def _clipped_codes(
    e: LoweringBuilder, node: Node, x: Codes, ends: tuple[Fraction | None, Fraction | None]
) -> Codes:
    """A clip of codes; its ends are integers, as far as the type goes."""
    least, most = limits(e.dtype(x.name))
    low, high = ends
    upper = most if high is None else min(max(floor(high), least), most)
    lower = least if low is None else min(max(ceil(low), least), upper)
    clip = {"low": lower, "high": upper}
    return Codes(e.moved("clip", [x.name], clip, node.name), x.order)


def _unary(e: LoweringBuilder, node: Node, states: States) -> list[State]:
    if node.op == "Sqrt" and isinstance(states[0], Affine):
        root = root_of(e, node, states[0])
        if root is not None:
            return [root]
    x = point_of(_real(states[0]))
    return [_mapped(x, lambda f: apply(node.op, f, **node.attributes))]


def _neg(e: LoweringBuilder, node: Node, states: States) -> list[State]:
    x = _real(states[0])
    return [_with_constant("Mul", x, (Fraction(-1),), None, False)]


# --- with a constant --------------------------------------------------------------------------


def _channels(
    constant: ConstantReals | ConstantCodes, shape: tuple[int, ...]
) -> tuple[tuple[Fraction, ...], int | None] | None:
    """A constant as one number, or one per index of one axis of `shape`; None if neither."""
    stored = constant.values if isinstance(constant, ConstantReals) else constant.codes
    if sum(size != 1 for size in stored.shape) > 1 and stored.size > LARGEST_SPREAD:
        return None
    values = constant.exact()
    exact = values.reshape(-1)
    if len(set(exact)) == 1:
        fits = np.broadcast_shapes(values.shape, shape) == shape
        return ((exact[0],), None) if fits else None
    axes = [i + len(shape) - values.ndim for i, size in enumerate(values.shape) if size != 1]
    if len(axes) != 1 or axes[0] < 0 or shape[axes[0]] != len(exact):
        return None
    return tuple(exact), axes[0]


def _with_constant(
    op: str, x: Affine | Pointwise, values: tuple[Fraction, ...], axis: int | None, swapped: bool
) -> State:
    """x op constant, or constant op x where `swapped`."""
    if isinstance(x, Affine):
        moved = _linear_constant(op, x, values, axis, swapped)
        if moved is not None:
            return moved
        x = point_of(x)
    if x.axis is not None and axis is not None and x.axis != axis:
        raise UnsupportedError("constants along two different axes in one point-wise function")
    count = max(len(x.expressions), len(values))
    functions = x.expressions if len(x.expressions) == count else x.expressions * count
    constants = values if len(values) == count else values * count
    out = []
    for f, c in zip(functions, constants, strict=True):
        out.append(apply(op, c, f) if swapped else apply(op, f, c))
    return replace(x, expressions=tuple(out), axis=axis if x.axis is None else x.axis)


_LINEAR: Mapping[str, Callable[[Fraction, Fraction, Fraction, bool], tuple[Fraction, ...]]] = {
    "Add": lambda gain, offset, c, swapped: (gain, offset + c),
    "Sub": lambda gain, offset, c, swapped: (-gain, c - offset) if swapped else (gain, offset - c),
    "Mul": lambda gain, offset, c, swapped: (gain * c, offset * c),
    "Div": lambda gain, offset, c, swapped: (gain / c, offset / c),
}
"""Gain and offset of gain * x + offset after an operator with a constant c, or of c with it."""


def _linear_constant(
    op: str, x: Affine, values: tuple[Fraction, ...], axis: int | None, swapped: bool
) -> Affine | None:
    """The cases that stay linear."""
    if op in ("Max", "Min") and len(values) == 1:
        return x.clip(values[0], None) if op == "Max" else x.clip(None, values[0])
    rule = _LINEAR.get(op)
    if x.clipped or rule is None:
        return None
    if op == "Div" and (swapped or 0 in values):
        return None
    if x.axis is not None and axis is not None and x.axis != axis:
        return None
    count = max(len(values), len(x.gain), len(x.offset))
    constants = values if len(values) == count else values * count
    pairs = zip(x.over(count), constants, strict=True)
    out = [rule(gain, offset, c, swapped) for (gain, offset), c in pairs]
    gains, offsets = (tuple(column) for column in zip(*out, strict=True))
    if any(g == 0 for g in gains) and isinstance(x.source, Sum):
        raise UnsupportedError(
            "expected factors other than 0 on an accumulator; fold the product into the weights"
        )
    gains = gains[:1] if len(set(gains)) == 1 else gains
    offsets = offsets[:1] if len(set(offsets)) == 1 else offsets
    many = max(len(gains), len(offsets)) > 1
    return replace(
        x, gain=gains, offset=offsets, axis=(axis if x.axis is None else x.axis) if many else None
    )


# --- of two tensors ---------------------------------------------------------------------------


def _where(e: LoweringBuilder, node: Node, states: States) -> list[State]:
    """A mask of scores, or a choice of numbers: each side times the 1 or 0 of its places, added."""
    masked = _masked(e, node, states)
    if masked is not None:
        return [masked]
    sides = zip(states[1:], _places(e, node, states[0]), strict=True)
    terms = [_chosen(e, node, x, kept, i) for i, (x, kept) in enumerate(sides)]
    found = [term for term in terms if term is not None]
    if len(found) == 2:
        return [_sum(e, node, [(term, 1) for term in found])]
    if not found:
        raise UnsupportedError("expected a choice of which one side varies, found zeros")
    return [found[0]]


def _places(e: LoweringBuilder, node: Node, condition: State | None) -> tuple[Codes, Codes]:
    """1 where the first side of a choice is taken and 0 elsewhere, in int8 codes, and the other way
    round, of the rank of the result: constant, or by an integer input of zeros and ones."""
    rank = len(e.graph.values[node.output].shape)
    order = tuple(range(rank))
    flag = e.flags.get(node.inputs[0])
    if isinstance(condition, ConstantReals):
        kept = condition.values.astype(bool).reshape(_widened(condition.values.shape, rank))
        names = [e.constant(f"{node.name}.places", k.astype(np.int8)) for k in (kept, ~kept)]
        return Codes(names[0], order), Codes(names[1], order)
    if flag is None or sorted(flag.numbers) != [0, 1] or not isinstance(condition, Codes):
        raise UnsupportedError(
            "expected a condition that is constant or made of one integer input of zeros and ones, "
            "found one that is computed of numbers; compute it outside the network"
        )
    source = e.arranged(condition, tuple(range(len(condition.order))))
    if e.shape(source) != _widened(e.shape(source), rank):
        shape = {"shape": _widened(e.shape(source), rank)}
        source = e.add("reshape", [source], shape, f"{node.name}.flag")
    source = e.add("clip", [source], {"low": 0, "high": 1}, f"{node.name}.clip")
    ends: Attributes = {"ratios": (Fraction(1),), "low": 0, "high": 1, "dtype": "int8"}
    first = e.add("requantize", [source], ends, f"{node.name}.places")
    inverted: Attributes = {"factors": (-1,), "offset": 1, "dtype": "int32"}
    other = e.add("add", [first], inverted, f"{node.name}.inverted")
    other = e.add("requantize", [other], ends, f"{node.name}.others")
    codes = Codes(first, order), Codes(other, order)
    return codes if flag.numbers.index(1) == 1 else codes[::-1]


def _chosen(
    e: LoweringBuilder, node: Node, x: State | None, kept: Codes, index: int
) -> Affine | None:
    """One side of a choice where it is taken and 0 elsewhere; None for the constant 0."""
    if isinstance(x, (ConstantReals, ConstantCodes)):
        shape = e.graph.values[node.output].shape
        found = _channels(x, shape)
        if found is not None and found[1] is None:
            (number,) = found[0]
            return Affine(kept, gain=(number,)) if number else None
    side = activation(_operand(e, x), e, "a side of a choice")
    names, order = _aligned(e, [side.codes, kept])
    zeros = {"a_zero": side.zero, "b_zero": 0}
    return Affine(Sum("multiply", names, zeros, order, f"{node.name}.{index}"), gain=(side.unit,))


def _masked(e: LoweringBuilder, node: Node, states: States) -> MaskedScores | None:
    """Scores and the places that a Softmax takes of them; None for a node that is no mask."""
    mask = e.masks.get(node.output)
    if mask is None:
        return None
    rank = len(e.graph.values[node.output].shape)
    scores = activation(states[node.inputs.index(mask.scores)], e)
    if mask.kept is not None:
        return MaskedScores(scores, mask.kept.reshape(_widened(mask.kept.shape, rank)))
    flag = states[node.inputs.index(mask.flag)]
    assert isinstance(flag, Codes)
    name = e.arranged(flag, tuple(range(len(flag.order))))
    name = e.add("clip", [name], {"low": 0, "high": 1}, f"{node.name}.flag")
    if mask.where == 0:
        inverted: Attributes = {"factors": (-1,), "offset": 1, "dtype": "int32"}
        name = e.add("add", [name], inverted, f"{node.name}.kept")
    shape = _widened(e.shape(name), rank)
    if shape != e.shape(name):
        name = e.add("reshape", [name], {"shape": shape}, f"{node.name}.mask")
    return MaskedScores(scores, Codes(name, tuple(range(rank))))


def _widened(shape: tuple[int, ...], rank: int) -> tuple[int, ...]:
    return (1,) * (rank - len(shape)) + shape


def _binary(e: LoweringBuilder, node: Node, states: States) -> list[State]:
    """Operands one after the other; accumulators that are summed, all at once."""
    masked = _masked(e, node, states)
    if masked is not None:
        return [masked]
    if len(states) == 1:
        return _identity(e, node, states)
    accumulators = [x for x in states if isinstance(x, Affine) and isinstance(x.source, Sum)]
    if node.op == "Sum" and len(accumulators) == len(states):
        return [_sum(e, node, [(x, 1) for x in accumulators])]
    state, shape = states[0], e.graph.values[node.inputs[0]].shape
    for other, name in zip(states[1:], node.inputs[1:], strict=True):
        own = e.graph.values[name].shape
        state = _pair(e, node, state, other, (shape, own))
        shape = broadcast(shape, own)
    if node.op == "Mean":
        state = _with_constant("Mul", _real(state), (Fraction(1, len(states)),), None, False)
    assert state is not None
    return [state]


def _pair(
    e: LoweringBuilder,
    node: Node,
    a: State | None,
    b: State | None,
    shapes: tuple[tuple[int, ...], tuple[int, ...]],
) -> State:
    """An operator of two operands, by what they are.

    * One is a constant, one number or one per channel: the other stays affine, or becomes a
      function of codes.
    * Both are functions of the same codes: so is the result, and a table will hold it.
    * Otherwise both must be affine: sums and products become accumulators, maxima compare codes
      of one scale.

    UnsupportedError where none of these holds.
    """
    op = {"Sum": "Add", "Mean": "Add"}.get(node.op, node.op)
    shape = broadcast(*shapes)
    constants = (ConstantReals, ConstantCodes)
    for x, c, own, swapped in ((a, b, shapes[0], False), (b, a, shapes[1], True)):
        if not (isinstance(c, constants) and isinstance(x, (Affine, Pointwise))):
            continue
        found = _channels(_meant(op, c, x, shape), shape) if own == shape else None
        if found is not None:
            return _with_constant(op, x, *found, swapped)
    x, y = _operand(e, a), _operand(e, b)
    if _base(x) is not None and _base(x) == _base(y):
        p, q = point_of(x), point_of(y)
        count = max(len(p.expressions), len(q.expressions))
        pairs = zip(
            p.expressions if len(p.expressions) == count else p.expressions * count,
            q.expressions if len(q.expressions) == count else q.expressions * count,
            strict=True,
        )
        axis = p.axis if p.axis is not None else q.axis
        if q.axis not in (None, axis):
            raise UnsupportedError(
                "expected constants along one axis in a point-wise function, found two"
            )
        return replace(p, expressions=tuple(apply(op, *pair) for pair in pairs), axis=axis)
    if op in ("Add", "Sub"):
        x, y = square_of(node, x), square_of(node, y)
    if not (isinstance(x, Affine) and isinstance(y, Affine)):
        raise UnsupportedError(
            "expected quantized tensors: put a QuantizeLinear after each point-wise function whose "
            "result meets another tensor"
        )
    if op in ("Add", "Sub"):
        return _sum(e, node, [(x, 1), (y, -1 if op == "Sub" else 1)])
    if op == "Mul":
        return _product(e, node, x, y)
    if op in ("Max", "Min"):
        return _extreme(e, node, x, y)
    raise UnsupportedError(
        f"expected Add, Sub, Mul, Max or Min of two tensors, found {op}; make one of them "
        "constant, or compute it outside the network"
    )


def _meant(
    op: str, c: ConstantReals | ConstantCodes, x: Affine | Pointwise, shape: tuple[int, ...]
) -> ConstantReals | ConstantCodes:
    """A bias in the units of the sum it is added to: its scale may be the binary32 rounding of the
    sum's, and then stands for that (as in Conv and Gemm)."""
    if op not in ("Add", "Sub") or not isinstance(c, ConstantCodes):
        return c
    if not (isinstance(x, Affine) and isinstance(x.source, Sum)):
        return c
    count = max(len(c.scale), len(x.gain))
    own, gains = (v if len(v) == count else v * count for v in (c.scale, x.gain))
    if any(s != round_binary32(g) for s, g in zip(own, gains, strict=True)):
        return c
    axis = None
    if len(x.gain) > 1:
        assert x.axis is not None
        axis = x.axis - len(shape) + c.codes.ndim
        if axis < 0 or c.codes.shape[axis] != len(x.gain):
            return c
    return replace(c, scale=x.gain, axis=axis)


def _operand(e: LoweringBuilder, x: State | None) -> Affine | Pointwise:
    """Constants that are tensors of codes are operands like any other."""
    if isinstance(x, ConstantCodes) and len(x.scale) == 1:
        codes = x.codes
        if codes.min(initial=0) >= -(1 << 15) and codes.max(initial=0) < 1 << 15:
            wide = codes.min(initial=0) < -128 or codes.max(initial=0) > 127
            stored = e.constant("operand", codes.astype(np.int16 if wide else np.int8))
            return Affine(Codes(stored, tuple(range(codes.ndim))), x.scale[0], 0)
    if isinstance(x, (ConstantReals, ConstantCodes)):
        raise UnsupportedError(
            "expected a constant with one value, or one per channel, or quantized; quantize it"
        )
    return _real(x)


def _base(x: Affine | Pointwise) -> tuple[Any, ...] | None:
    return (x.source, x.unit, x.zero) if isinstance(x.source, Codes) else None


def _aligned(e: LoweringBuilder, codes: Sequence[Codes]) -> tuple[tuple[str, ...], Order]:
    """Stored tensors that broadcast as their real ones do, and the order of the result."""
    ranks = {len(c.order) for c in codes}
    order = codes[0].order if len(ranks) == 1 else tuple(range(max(ranks)))
    names = [e.arranged(c, order if len(ranks) == 1 else tuple(sorted(c.order))) for c in codes]
    return tuple(names), order


def _term(e: LoweringBuilder, node: Node, x: Affine) -> Affine:
    """One scale, no clip."""
    if isinstance(x.source, Sum):
        x = with_offset(x, node)
    elif x.clipped:
        x = activation(x, e)
    if x.clipped:
        raise UnsupportedError(
            "expected terms without bounds; put a QuantizeLinear after each of them"
        )
    return x


def _sum(e: LoweringBuilder, node: Node, signed: Sequence[tuple[Affine, int]]) -> Affine:
    """All terms in the largest unit of which their scales and offsets are multiples."""
    terms = [(_term(e, node, x), sign) for x, sign in signed]
    pairs = [term.over(max(len(term.gain), len(term.offset))) for term, _ in terms]
    unit = common_unit(
        [
            number
            for (term, _), channels in zip(terms, pairs, strict=True)
            for gain, offset in channels
            for number in (gain * term.unit, offset)
        ]
    )
    parts, factors, offset = [], [], 0
    for (term, own), channels in zip(terms, pairs, strict=True):
        m = [int(own * gain * term.unit / unit) for gain, _ in channels]
        b = [int(own * c / unit) - k * term.zero for k, (_, c) in zip(m, channels, strict=True)]
        if len(channels) > 1:
            parts.append(e.accumulate(_scaled(e, node, term, m, b)))
            factors.append(1)
        else:
            parts.append(e.stored(term))
            factors.append(m[0])
            offset += b[0]
    names, order = _aligned(e, parts)
    attributes = {"factors": tuple(factors), "offset": offset}
    return Affine(Sum("add", names, attributes, order, node.name), gain=(unit,))


def with_one_scale(e: LoweringBuilder, node: Node, x: Affine) -> Affine:
    """A sum with a scale a channel as one with the largest of which all of these are multiples.

    Others, and one with bounds or an offset, stay as they are.
    """
    if len(x.gain) == 1 or x.clipped or x.offset != NONE:
        return x
    unit = common_unit(x.gain)
    m = [int(gain / unit) for gain in x.gain]
    return Affine(_scaled(e, node, x, m, [0] * len(m)), gain=(unit,))


def _scaled(e: LoweringBuilder, node: Node, x: Affine, m: list[int], b: list[int]) -> Sum:
    """m[c] * x + b[c], channels along the last axis as stored."""
    stored = e.stored(x)
    if x.axis is None or stored.order[-1] != x.axis:
        raise UnsupportedError(
            f"expected terms with one scale each, or one per channel, found scales along axis "
            f"{x.axis}; put a QuantizeLinear after each of them"
        )
    inputs = (
        stored.name,
        e.constant(f"{node.name}.m", integers(m)),
        e.constant(f"{node.name}.b", integers(b)),
    )
    return Sum("affine", inputs, {}, stored.order, f"{node.name}.affine")


def _product(e: LoweringBuilder, node: Node, x: Affine, y: Affine) -> Affine:
    x, y = activation(x, e, "first factor"), activation(y, e, "second factor")
    names, order = _aligned(e, [e.stored(x), e.stored(y)])
    attributes = {"a_zero": x.zero, "b_zero": y.zero}
    total = Sum("multiply", names, attributes, order, node.name)
    return Affine(total, gain=(x.unit * y.unit,))


def _extreme(e: LoweringBuilder, node: Node, x: Affine, y: Affine) -> Affine:
    x, y = activation(x, e), activation(y, e)
    same = (x.unit, x.zero) == (y.unit, y.zero)
    if not same or e.dtype(e.stored(x).name) != e.dtype(e.stored(y).name):
        raise UnsupportedError("expected both tensors with one scale, zero point and type")
    names, order = _aligned(e, [e.stored(x), e.stored(y)])
    op = "maximum" if node.op == "Max" else "minimum"
    return replace(x, source=Codes(e.add(op, names, {}, node.name), order))


RULES: dict[str, Callable[..., list[State]]] = {
    **{op: _unary if op_named(op).inputs == (1, 1) else _binary for op in ops_with(Trait.FUNCTION)},
    "Identity": _identity,
    "Cast": _cast,
    "Where": _where,
    "Relu": _clip,
    "Clip": _clip,
    "Neg": _neg,
}
