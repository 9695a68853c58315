"""Lowering of data movement, maxima and selections: the codes move, their meaning stays."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction

import numpy as np

from samebits.errors import UnsupportedError
from samebits.ir.graph import Array, Node
from samebits.ir.integer.define import limits
from samebits.ir.lowering.pointwise import with_one_scale
from samebits.ir.lowering.products import (
    NCHW_TO_NHWC,
    activation,
    image_of,
    pool_attributes,
    remaining,
)
from samebits.ir.lowering.states import (
    Affine,
    Codes,
    ConstantCodes,
    ConstantReals,
    LoweringBuilder,
    Order,
    State,
    States,
    Sum,
    quantization_of,
    weights,
    with_offset,
)
from samebits.ir.masks import FLAG_TYPES
from samebits.ir.ops import op_named, ops_with
from samebits.ir.real.indexing import check_starts
from samebits.ir.traits import Trait


def _codes(x: State | None) -> Codes:
    """The codes that move: codes, or a dequantized tensor with one meaning for all elements."""
    if isinstance(x, Codes):
        return x
    if isinstance(x, Affine) and isinstance(x.source, Codes) and x.axis is None:
        return x.source
    raise UnsupportedError(
        "expected quantized codes with one scale (a QuantizeLinear and a DequantizeLinear before "
        "this node)"
    )


def _movable(e: LoweringBuilder, node: Node, x: State | None) -> State | None:
    """A state whose codes move: of a sum that nothing has rounded, those of the accumulator."""
    if not isinstance(x, Affine) or not isinstance(x.source, Sum):
        return x
    total = with_one_scale(e, node, with_offset(x, node))
    return replace(total, source=e.stored(total))


def _with(x: State | None, codes: Codes) -> State:
    return replace(x, source=codes) if isinstance(x, Affine) else codes


def _identity_order(rank: int) -> Order:
    return tuple(range(rank))


def _reshape(e: LoweringBuilder, node: Node, states: States) -> list[State]:
    shape = e.graph.values[node.output].shape
    x = _movable(e, node, states[0])
    if isinstance(x, ConstantCodes) and x.axis is None:
        return [replace(x, codes=x.codes.reshape(shape))]
    codes = _codes(x)
    flat = e.arranged(codes, _identity_order(len(codes.order)))
    if e.shape(flat) != shape:
        flat = e.moved("reshape", [flat], {"shape": shape}, node.name)
    return [_with(x, Codes(flat, _identity_order(len(shape))))]


def _transpose(e: LoweringBuilder, node: Node, states: States) -> list[State]:
    perm = tuple(node.attributes["perm"])
    x = _movable(e, node, states[0])
    if isinstance(x, ConstantCodes):
        axis = None if x.axis is None else perm.index(x.axis)
        return [replace(x, codes=x.codes.transpose(perm), axis=axis)]
    if isinstance(x, Affine) and isinstance(x.source, Codes):
        codes, axis = x.source, None if x.axis is None else perm.index(x.axis)
        order = tuple(perm.index(old) for old in codes.order)
        return [replace(x, source=Codes(codes.name, order), axis=axis)]
    codes = _codes(x)
    return [Codes(codes.name, tuple(perm.index(old) for old in codes.order))]


def _concat(e: LoweringBuilder, node: Node, states: States) -> list[State]:
    """Codes side by side."""
    first, codes = _alike(e, node, states)
    order = codes[0].order
    axis = order.index(node.attributes["axis"] % len(order))
    names = [e.arranged(c, order) for c in codes]
    same = len({e.values[name].quantization for name in names}) == 1
    name = (e.moved if same else e.add)("concat", names, {"axis": axis}, node.name)
    return [_with(first, Codes(name, order))]


def _alike(e: LoweringBuilder, node: Node, states: States) -> tuple[State | None, list[Codes]]:
    """The first of the operands that one tensor will hold, and the codes of all, which must have
    one scale, zero point and type; constants among them are stored as such codes."""
    like = next((x for x in states if isinstance(x, (Affine, Codes))), None)
    states = [_constant_like(e, node, x, like) for x in states]
    codes = [_codes(x) for x in states]
    meanings = {
        (x.unit, x.zero, x.gain, x.offset, x.low, x.high) if isinstance(x, Affine) else None
        for x in states
    }
    if len(meanings) != 1 or len({e.dtype(c.name) for c in codes}) != 1:
        raise UnsupportedError(
            "expected inputs of one scale, zero point and type; put a QuantizeLinear after this "
            "node"
        )
    return states[0], codes


def _constant_like(
    e: LoweringBuilder, node: Node, x: State | None, like: Affine | Codes | None
) -> State | None:
    """Constants stored as what they are joined to: codes with its zero point and type, whole
    numbers, and beside a flag the 0 or 1 of the input for which it is that number."""
    if isinstance(x, ConstantReals) and not isinstance(like, Affine):
        flag = e.flags.get(node.output)
        if flag is not None and like is not None:
            reached = x.values != flag.numbers[0]
            x = ConstantReals(reached.astype(e.dtype(like.name)))
        return _whole_numbers(e, node, x) if x.values.dtype.name in FLAG_TYPES else x
    if not (isinstance(x, ConstantCodes) and isinstance(like, Affine)):
        return x
    if not isinstance(like.source, Codes):
        return x
    dtype = e.dtype(like.source.name)
    low, high = limits(dtype)
    stored = x.codes + like.zero
    if x.scale != (like.unit,) or not like.plain or stored.min() < low or stored.max() > high:
        return x
    name = e.constant("joined", stored.astype(dtype))
    return Affine(Codes(name, _identity_order(stored.ndim)), like.unit, like.zero)


def _whole_numbers(e: LoweringBuilder, node: Node, x: ConstantReals) -> Codes:
    """A constant of indices, or of zeros and ones, as codes of the integer graph."""
    name = e.constant(f"{node.name}.numbers", x.values)
    return Codes(name, _identity_order(x.values.ndim))


def _sliced(e: LoweringBuilder, node: Node, codes: Codes, ranges: dict[int, range]) -> Codes:
    """Real axis -> the indices to keep, in order."""
    name = codes.name
    shape = e.shape(name)
    forward = {axis: r for axis, r in ranges.items() if r.step > 0}
    whole = [range(size) for size in shape]
    for axis, r in forward.items():
        whole[codes.order.index(axis)] = r
    if any(len(r) == 0 for r in ranges.values()):
        raise UnsupportedError("expected a slice that is not empty")
    if whole != [range(size) for size in shape]:
        attributes = {
            "starts": tuple(r.start for r in whole),
            "stops": tuple(min(r.stop, size) for r, size in zip(whole, shape, strict=True)),
            "steps": tuple(r.step for r in whole),
        }
        name = e.moved("slice", [name], attributes, node.name)
    for axis, r in ranges.items():
        if r.step < 0:
            name = _gathered(e, node, codes, name, axis, np.array(r, np.int64))
    return Codes(name, codes.order)


def _gathered(
    e: LoweringBuilder, node: Node, codes: Codes, name: str, axis: int, indices: Array
) -> str:
    """Select `indices` along a real axis, unless they are all of it in order."""
    stored = codes.order.index(axis)
    if np.array_equal(indices, np.arange(e.shape(name)[stored])):
        return name
    constant = e.constant(f"{node.name}.indices", indices.astype(np.int64))
    return e.moved("gather", [name, constant], {"axis": stored}, node.name)


def _slice(e: LoweringBuilder, node: Node, states: States) -> list[State]:
    x = _movable(e, node, states[0])
    a, codes = node.attributes, _codes(x)
    shape = e.graph.values[node.inputs[0]].shape
    ranges = {}
    for start, end, step, axis in zip(a["starts"], a["ends"], a["steps"], a["axes"], strict=True):
        size = shape[axis % len(shape)]
        ranges[axis % len(shape)] = range(*slice(start, end, step).indices(size))
        if step < 0 and end < -size:
            ranges[axis % len(shape)] = range(*slice(start, None, step).indices(size))
    return [_with(x, _sliced(e, node, codes, ranges))]


def _split(e: LoweringBuilder, node: Node, states: States) -> list[State]:
    codes = _codes(states[0])
    axis = node.attributes["axis"] % len(codes.order)
    out: list[State] = []
    start = 0
    for name in node.outputs:
        size = e.graph.values[name].shape[axis]
        part = _sliced(e, node, codes, {axis: range(start, start + size)})
        out.append(_with(states[0], part))
        start += size
    return out


def _pad(e: LoweringBuilder, node: Node, states: States) -> list[State]:
    """Padding with a value that is a code of the input, or with elements of the input (other modes,
    by index). Negative pads cut first."""
    a, x = node.attributes, states[0]
    codes = _codes(x)
    rank = len(codes.order)
    before, after = a["pads"][:rank], a["pads"][rank:]
    if a["mode"] != "constant":
        return [_with(x, _indexed(e, node, codes))]
    shape = e.graph.values[node.inputs[0]].shape
    kept = {
        axis: range(max(-before[axis], 0), shape[axis] + min(after[axis], 0))
        for axis in range(rank)
    }
    codes = _sliced(e, node, codes, kept)  # negative pads cut
    before, after = ([max(pad, 0) for pad in side] for side in (before, after))
    if not any((*before, *after)):
        return [_with(x, codes)]
    code = a["value"]
    if isinstance(x, Affine):
        exact = Fraction(a["value"]) / (x.gain[0] * x.unit) + x.zero
        low, high = limits(e.dtype(codes.name))
        if not x.plain or exact.denominator != 1 or not low <= exact <= high:
            raise UnsupportedError(
                f"expected a padding value that is a code of the input, found {a['value']}; put a "
                "QuantizeLinear after the padding"
            )
        code = int(exact)
    attributes = {
        "before": tuple(before[axis] for axis in codes.order),
        "after": tuple(after[axis] for axis in codes.order),
        "code": int(code),
    }
    return [_with(x, Codes(e.moved("pad", [codes.name], attributes, node.name), codes.order))]


def _indexed(e: LoweringBuilder, node: Node, codes: Codes) -> Codes:
    """Any movement that is a selection along each axis by itself: its own meaning, run on the
    index numbers of each axis, says which."""
    shape = e.graph.values[node.inputs[0]].shape
    name = codes.name
    for axis, size in enumerate(shape):
        line = np.arange(size, dtype=np.int64).reshape(
            [size if i == axis else 1 for i in range(len(shape))]
        )
        everywhere = np.broadcast_to(line, shape).astype(np.float64)
        moved = op_named(node.op).meaning([everywhere], node.attributes)[0]
        first = tuple(slice(None) if i == axis else 0 for i in range(len(shape)))
        indices = np.asarray(moved[first], np.float64).astype(np.int64)
        name = _gathered(e, node, Codes(name, codes.order), name, axis, indices)
    return Codes(name, codes.order)


def _selection(e: LoweringBuilder, node: Node, states: States) -> list[State]:
    return [_with(states[0], _indexed(e, node, _codes(states[0])))]


def _expand(e: LoweringBuilder, node: Node, states: States) -> list[State]:
    return [_with(states[0], expanded(e, node, _codes(states[0])))]


def expanded(e: LoweringBuilder, node: Node, codes: Codes) -> Codes:
    """Codes broadcast to the shape of a node's output."""
    shape = e.graph.values[node.output].shape
    name = e.arranged(codes, _identity_order(len(codes.order)))
    missing = len(shape) - len(codes.order)
    if missing:
        wide = (1,) * missing + e.shape(name)
        name = e.moved("reshape", [name], {"shape": wide}, node.name)
    if e.shape(name) != shape:
        name = e.moved("expand", [name], {"shape": shape}, node.name)
    return Codes(name, _identity_order(len(shape)))


def _gather(e: LoweringBuilder, node: Node, states: States) -> list[State]:
    """Elements at indices along one axis; they may have any shape, hence the reshapes."""
    state = _table(e, node, states[0])
    codes = _codes(state)
    axis = node.attributes["axis"] % len(codes.order)
    size = e.graph.values[node.inputs[0]].shape[axis]
    order = _identity_order(len(codes.order))
    plain = Codes(e.arranged(codes, order), order)
    name = _selected(e, node, plain, axis, size, states[1])
    shape = e.graph.values[node.output].shape
    if e.shape(name) != shape:
        name = e.moved("reshape", [name], {"shape": shape}, node.name)
    return [_with(state, Codes(name, _identity_order(len(shape))))]


def _table(e: LoweringBuilder, node: Node, state: State | None) -> State | None:
    """A constant table of codes, as that of an embedding, or of indices, stored; other states as
    they are."""
    if isinstance(state, ConstantReals) and state.values.dtype.name in FLAG_TYPES:
        return _whole_numbers(e, node, state)
    if not isinstance(state, ConstantCodes) or len(state.scale) > 1:
        return state
    stored = e.constant(f"{node.name}.table", weights(state.codes))
    return Affine(Codes(stored, _identity_order(state.codes.ndim)), state.scale[0], 0)


def _tensor_scatter(e: LoweringBuilder, node: Node, states: States) -> list[State]:
    """Codes written into others, from places that are constant or computed."""
    past, codes = _alike(e, node, states[:2])
    order = _identity_order(len(codes[0].order))
    axis, starts = node.attributes["axis"] % len(order), states[2]
    if isinstance(starts, ConstantReals):
        if node.attributes["mode"] == "linear":
            sizes = [e.graph.values[name].shape[axis] for name in node.inputs[:2]]
            check_starts(starts.values, sizes[0] - sizes[1])
        starts = _whole_numbers(e, node, starts)
    if not isinstance(starts, Codes):
        raise UnsupportedError("expected write indices that are constant or an input")
    names = [*(e.arranged(c, order) for c in codes), e.arranged(starts, (0,))]
    return [_with(past, Codes(e.moved("scatter", names, {"axis": axis}, node.name), order))]


def _selected(
    e: LoweringBuilder, node: Node, x: Codes, axis: int, size: int, indices: State | None
) -> str:
    """x at indices along an axis of this size: constant ones, or codes of the integer graph."""
    if isinstance(indices, ConstantReals):
        flat = indices.values.astype(np.int64).reshape(-1)
        if flat.size == 0 or flat.min() < -size or flat.max() >= size:
            raise UnsupportedError(f"expected indices in [-{size}, {size}), at least one")
        return _gathered(e, node, x, x.name, axis, flat % size)
    if not isinstance(indices, Codes):
        raise UnsupportedError("expected indices that are constant or an input")
    name = e.arranged(indices, _identity_order(len(indices.order)))
    if len(indices.order) != 1:
        count = e.graph.values[node.inputs[1]].size
        name = e.add("reshape", [name], {"shape": (count,)}, f"{node.name}.indices")
    return e.moved("gather", [x.name, name], {"axis": axis}, node.name)


def _depth_space(e: LoweringBuilder, node: Node, states: States) -> list[State]:
    """DepthToSpace and SpaceToDepth as reshape, transpose, reshape: the block sizes as axes of
    their own."""
    codes, b = _codes(states[0]), node.attributes["blocksize"]
    name = e.arranged(codes, _identity_order(4))
    n, c, h, w = e.shape(name)
    if node.op == "SpaceToDepth":
        split: tuple[int, ...] = (n, c, h // b, b, w // b, b)
        perm = (0, 3, 5, 1, 2, 4)
    elif node.attributes["mode"] == "DCR":
        split, perm = (n, b, b, c // (b * b), h, w), (0, 3, 4, 1, 5, 2)
    else:
        split, perm = (n, c // (b * b), b, b, h, w), (0, 1, 4, 2, 5, 3)
    name = e.moved("reshape", [name], {"shape": split}, node.name)
    name = e.moved("transpose", [name], {"perm": perm}, node.name)
    shape = e.graph.values[node.output].shape
    name = e.moved("reshape", [name], {"shape": shape}, node.name)
    return [_with(states[0], Codes(name, _identity_order(4)))]


# --- maxima -----------------------------------------------------------------------------------


def _ordered(e: LoweringBuilder, x: State | None) -> tuple[State, Codes]:
    """Codes whose order is that of their values."""
    if isinstance(x, Codes):
        return x, x
    linear = activation(x, e)
    return linear, linear.codes


def _max_pool(e: LoweringBuilder, node: Node, states: States) -> list[State]:
    x, codes = _ordered(e, states[0])
    shape, out = (e.graph.values[n].shape for n in (node.inputs[0], node.output))
    if node.op == "GlobalMaxPool":
        return [_maximum(e, node, x, codes, tuple(range(2, len(shape))), True)]
    attributes, _ = pool_attributes(shape, out, node.attributes)
    image = image_of(e, codes)
    name = e.moved("max_pool", [image], attributes, node.name)
    if len(out) == 4:
        return [_with(x, Codes(name, NCHW_TO_NHWC))]
    n, _, length, c = e.shape(name)
    name = e.moved("reshape", [name], {"shape": (n, length, c)}, node.name)
    return [_with(x, Codes(name, (0, 2, 1)))]


def _maximum(
    e: LoweringBuilder,
    node: Node,
    x: State,
    codes: Codes,
    axes: tuple[int, ...],
    keepdims: bool,
) -> State:
    op = "reduce_min" if node.op == "ReduceMin" else "reduce_max"
    stored = tuple(sorted(codes.order.index(axis) for axis in axes))
    name = e.moved(op, [codes.name], {"axes": stored, "keepdims": keepdims}, node.name)
    return _with(x, Codes(name, remaining(codes.order, axes, keepdims)))


def _reduce_max(e: LoweringBuilder, node: Node, states: States) -> list[State]:
    x, codes = _ordered(e, states[0])
    axes = tuple(axis % len(codes.order) for axis in node.attributes["axes"])
    return [_maximum(e, node, x, codes, axes, bool(node.attributes["keepdims"]))]


def _ranked(e: LoweringBuilder, x: State | None) -> Codes:
    """Codes, or a sum with one scale, whose order is that of their values."""
    if not (isinstance(x, Affine) and isinstance(x.source, Sum)):
        return _ordered(e, x)[1]
    if quantization_of(x) is None:
        raise UnsupportedError("expected sums with one positive scale; put a QuantizeLinear there")
    return e.stored(x)


def _argmax(e: LoweringBuilder, node: Node, states: States) -> list[State]:
    a = node.attributes
    if a["select_last_index"]:
        raise UnsupportedError("expected select_last_index = 0")
    codes = _ranked(e, states[0])
    axis = a["axis"] % len(codes.order)
    keepdims = bool(a["keepdims"])
    stored = codes.order.index(axis)
    attributes = {"axis": stored, "keepdims": keepdims}
    name = e.add("argmax", [codes.name], attributes, node.name)
    return [Codes(name, remaining(codes.order, (axis,), keepdims))]


def _argmin(e: LoweringBuilder, node: Node, states: States) -> list[State]:
    """The first place of the order from the least on."""
    a = node.attributes
    if a["select_last_index"]:
        raise UnsupportedError("expected select_last_index = 0")
    codes = _ordered(e, states[0])[1]
    axis = a["axis"] % len(codes.order)
    attributes = {"axis": codes.order.index(axis), "k": 1, "largest": False}
    name = e.add("top_k_index", [codes.name], attributes, node.name)
    order = remaining(codes.order, (axis,), bool(a["keepdims"]))
    if not a["keepdims"]:
        stored = tuple(n for i, n in enumerate(e.shape(name)) if i != codes.order.index(axis))
        name = e.add("reshape", [name], {"shape": stored}, f"{node.name}.places")
    return [Codes(name, order)]


def _top_k(e: LoweringBuilder, node: Node, states: States) -> list[State]:
    """The codes that rank first, and where they lie; what nothing reads is dropped later."""
    a, (x, codes) = node.attributes, _ordered(e, states[0])
    stored = codes.order.index(a["axis"] % len(codes.order))
    attributes = {"axis": stored, "k": a["k"], "largest": bool(a["largest"])}
    values = e.moved("top_k", [codes.name], attributes, node.name)
    places = e.add("top_k_index", [codes.name], attributes, f"{node.name}.places")
    return [_with(x, Codes(values, codes.order)), Codes(places, codes.order)]


RULES: dict[str, Callable[..., list[State]]] = {
    **dict.fromkeys(ops_with(Trait.RESHAPES), _reshape),
    "Transpose": _transpose,
    "Concat": _concat,
    "Slice": _slice,
    "Split": _split,
    "Pad": _pad,
    **dict.fromkeys(("Resize", "Tile"), _selection),
    "Expand": _expand,
    "Gather": _gather,
    "TensorScatter": _tensor_scatter,
    **dict.fromkeys(("DepthToSpace", "SpaceToDepth"), _depth_space),
    **dict.fromkeys(("MaxPool", "GlobalMaxPool"), _max_pool),
    **dict.fromkeys(("ReduceMax", "ReduceMin"), _reduce_max),
    "ArgMax": _argmax,
    "ArgMin": _argmin,
    "TopK": _top_k,
}
