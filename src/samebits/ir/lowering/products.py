"""Lowering of sums of products, pools and reductions to accumulators."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from math import prod
from typing import Any

import numpy as np

from samebits.errors import UnsupportedError
from samebits.ir.graph import Array, Node
from samebits.ir.integer.define import limits
from samebits.ir.integer.windows import balance_factors
from samebits.ir.lowering.states import (
    NONE,
    Affine,
    Codes,
    ConstantCodes,
    ConstantReals,
    LoweringBuilder,
    MaskedScores,
    Softmax,
    State,
    States,
    Sum,
    weights,
)
from samebits.spec.formats import round_binary32, round_real

NCHW_TO_NHWC = (0, 2, 3, 1)
CODE_TYPES = ("int8", "uint8", "int16", "uint16")


def activation(x: State | None, e: LoweringBuilder, what: str = "input") -> Affine:
    """Plain codes of 8 or 16 bits. A clip whose ends are codes is carried out on the codes."""
    if isinstance(x, Affine) and isinstance(x.source, Codes):
        x = _clipped(x, e)
    if not isinstance(x, Affine) or not x.plain or not isinstance(x.source, Codes):
        raise UnsupportedError(
            f"expected quantized codes as {what} (a QuantizeLinear and a DequantizeLinear before "
            "this node)"
        )
    if e.dtype(x.codes.name) not in CODE_TYPES:
        raise UnsupportedError(f"expected 8- or 16-bit codes, found {e.dtype(x.codes.name)}")
    return x


def _clipped(x: Affine, e: LoweringBuilder) -> Affine:
    """One positive gain as part of the scale, and the clip as a node, where both are exact."""
    if len(x.gain) > 1 or x.gain[0] <= 0 or x.offset != NONE:
        return x
    unit = x.unit * x.gain[0]
    least, most = limits(e.dtype(x.codes.name))
    ends = [None if end is None else end / unit + x.zero for end in (x.low, x.high)]
    if any(end is not None and end.denominator != 1 for end in ends):
        return x
    low, high = (
        default if end is None else int(end)
        for end, default in zip(ends, (least, most), strict=True)
    )
    if low > most or high < least:  # every value would be an end that is no code
        return x
    low, high = max(low, least), min(high, most)
    source = x.source
    if (low, high) != (least, most):
        name = e.add("clip", [source.name], {"low": low, "high": high}, "clip")
        source = Codes(name, source.order)
    return Affine(source, unit, x.zero)


def constant_weights(x: State | None, axis: int) -> ConstantCodes:
    """Quantized constants with one scale, or one per index of `axis`."""
    if isinstance(x, ConstantReals):
        raise UnsupportedError(
            "expected quantized weights (DequantizeLinear of integer constants), found float ones; "
            "quantize the model first"
        )
    if not isinstance(x, ConstantCodes):
        raise UnsupportedError("expected constant weights")
    if x.axis is not None and x.axis != axis:
        raise UnsupportedError(f"expected one scale per index of axis {axis}, found axis {x.axis}")
    return x


def bias_codes(
    x: State | None, unit: Fraction, scales: tuple[Fraction, ...], outputs: int
) -> tuple[int, ...]:
    """The bias in units of the accumulator: given integers as they are, reals rounded once.

    A stored bias scale may be the binary32 rounding of scale_x * scale_w: it stands for the
    product.
    """
    if x is None:
        return (0,)
    products = [unit * scale for scale in scales]
    products = products if len(products) == outputs else products * outputs
    if isinstance(x, ConstantCodes):
        codes = x.codes.reshape(-1)
        own = x.scale if len(x.scale) == outputs else x.scale * outputs
        if codes.size != outputs:
            codes = np.broadcast_to(codes, (outputs,))
        if all(s in (p, round_binary32(p)) for s, p in zip(own, products, strict=True)):
            return tuple(int(c) for c in codes)
        reals = [int(c) * s for c, s in zip(codes, own, strict=True)]
    elif isinstance(x, ConstantReals):
        reals = [Fraction(float(v)) for v in np.broadcast_to(x.values.reshape(-1), (outputs,))]
    else:
        raise UnsupportedError("expected a constant bias")
    return tuple(round_real(r / p) for r, p in zip(reals, products, strict=True))


# --- convolution ------------------------------------------------------------------------------


def _conv(e: LoweringBuilder, node: Node, states: States) -> list[State]:
    x = activation(states[0], e)
    w = constant_weights(states[1], 0)
    return [_convolution(e, node, x, w, states[2] if len(states) > 2 else None)]


def _convolution(
    e: LoweringBuilder, node: Node, x: Affine, w: ConstantCodes, bias: State | None
) -> Affine:
    """x * w + bias as an accumulator `conv` of codes, whose padding reads the code of 0.

    sum (x - zero) * w = sum x * w - zero * sum w, and the latter joins the bias.
    """
    a = node.attributes
    kernel, attributes = _two_dimensional(w.codes, a)
    rows = weights(kernel.transpose(0, 2, 3, 1))
    outputs = rows.shape[0]
    image = image_of(e, x.codes)
    total = np.asarray(bias_codes(bias, x.unit, w.scale, outputs), object)
    total = total - x.zero * rows.astype(np.int64).sum((1, 2, 3)).astype(object)
    total_sum = Sum(
        "conv",
        (image, e.constant(f"{node.name}.weight", rows)),
        {**attributes, "groups": a["group"], "pad_code": x.zero},
        NCHW_TO_NHWC,
        node.name,
        tuple(int(v) for v in np.broadcast_to(total, (outputs,))),
    )
    return image_result(e, node, total_sum, tuple(x.unit * s for s in w.scale))


def _two_dimensional(kernel: Array, a: Any) -> tuple[Array, dict[str, Any]]:
    """Weights [O, C, KH, KW] and 2-d attributes of a 1-d or 2-d convolution."""
    rank = kernel.ndim - 2
    strides, pads, dilations = (tuple(a[k]) for k in ("strides", "pads", "dilations"))
    if rank == 1:
        kernel = kernel[:, :, None, :]
        strides, dilations = (1, *strides), (1, *dilations)
        pads = (0, pads[0], 0, pads[1])
    elif rank != 2:
        raise UnsupportedError(f"expected a 1- or 2-dimensional convolution, found {rank}")
    if min(pads) < 0:
        raise UnsupportedError(f"expected pads >= 0, found {pads}")
    return kernel, {"strides": strides, "pads": pads, "dilations": dilations}


def image_of(e: LoweringBuilder, codes: Codes) -> str:
    """The tensor as [N, H, W, C]; a signal [N, C, L] has H = 1."""
    if len(codes.order) == 4:
        return e.arranged(codes, NCHW_TO_NHWC)
    signal = e.arranged(codes, (0, 2, 1))
    n, length, c = e.shape(signal)
    return e.add("reshape", [signal], {"shape": (n, 1, length, c)}, f"{signal}.image")


def image_result(e: LoweringBuilder, node: Node, total: Sum, gain: tuple[Fraction, ...]) -> Affine:
    """The accumulator as a state of the real shape."""
    axis = 1 if len(gain) > 1 else None
    if len(e.graph.values[node.output].shape) == 4:
        return Affine(total, gain=gain, axis=axis)
    codes = e.accumulate(total)
    n, _, length, c = e.shape(codes.name)
    flat = Sum(
        "add",
        (e.add("reshape", [codes.name], {"shape": (n, length, c)}, f"{node.name}.signal"),),
        {"factors": (1,), "offset": 0},
        (0, 2, 1),
        f"{node.name}.sum",
    )
    return Affine(flat, gain=gain, axis=axis)


def _conv_transpose(e: LoweringBuilder, node: Node, states: States) -> list[State]:
    """ConvTranspose [C, O/group, k...] as `conv_transpose` with weights [O, KH, KW, C/group]; the
    zero point stays an attribute, since not every output is reached by all taps."""
    x = activation(states[0], e)
    a = node.attributes
    w = states[1]
    if isinstance(w, ConstantCodes) and w.axis is not None and a["group"] > 1:
        raise UnsupportedError("expected one weight scale for a grouped transposed convolution")
    w = constant_weights(w, 1)
    groups = a["group"]
    kernel, attributes = _two_dimensional(w.codes, a)
    inputs, per_group, kh, kw = kernel.shape
    grouped = kernel.reshape(groups, inputs // groups, per_group, kh, kw)
    rows = weights(grouped.transpose(0, 2, 3, 4, 1).reshape(-1, kh, kw, inputs // groups))
    shape = e.graph.values[node.output].shape
    size = (1, shape[2]) if len(shape) == 3 else shape[2:]
    total = Sum(
        "conv_transpose",
        (image_of(e, x.codes), e.constant(f"{node.name}.weight", rows)),
        {**attributes, "groups": groups, "zero": x.zero, "size": tuple(size)},
        NCHW_TO_NHWC,
        node.name,
        bias_codes(states[2] if len(states) > 2 else None, x.unit, w.scale, rows.shape[0]),
    )
    return [image_result(e, node, total, tuple(x.unit * s for s in w.scale))]


def _conv_integer(e: LoweringBuilder, node: Node, states: States) -> list[State]:
    x, w = _integer_inputs(e, node, states)
    if not isinstance(x, Affine) or not isinstance(w, ConstantCodes):
        raise UnsupportedError("expected codes and constant weights")
    return [_convolution(e, node, activation(x, e), w, None)]


def _integer_inputs(e: LoweringBuilder, node: Node, states: States) -> tuple[State, State]:
    """The two inputs of ConvInteger and MatMulInteger with their zero points, scale 1."""
    out: list[State] = []
    for index, state in enumerate(states[:2]):
        name = node.inputs[index + 2] if index + 2 < len(node.inputs) else ""
        zeros = np.zeros(1, np.int64)
        if name:
            if name not in e.graph.constants:
                raise UnsupportedError("expected constant zero points")
            zeros = e.graph.constants[name].astype(np.int64)
        if isinstance(state, ConstantReals):
            codes = state.values.astype(np.int64)
            if zeros.size > 1:  # one per output: axis 0 of a kernel, last of a matrix
                axis = 0 if node.op == "ConvInteger" else codes.ndim - 1
                zeros = zeros.reshape([-1 if i == axis else 1 for i in range(codes.ndim)])
            out.append(ConstantCodes(codes - zeros, (Fraction(1),), None))
        elif isinstance(state, Codes) and zeros.size == 1:
            out.append(Affine(state, Fraction(1), int(zeros.reshape(-1)[0])))
        else:
            raise UnsupportedError("expected integer codes with one zero point")
    return out[0], out[1]


# --- matrix products --------------------------------------------------------------------------


def _gemm(e: LoweringBuilder, node: Node, states: States) -> list[State]:
    """alpha * A * B + C with B constant: `linear`, alpha joining the scale of the accumulator."""
    a = node.attributes
    if a["transA"]:
        raise UnsupportedError("expected transA = 0")
    alpha = Fraction(float(a["alpha"]))
    added = len(states) > 2 and states[2] is not None
    if alpha <= 0 or (added and a["beta"] != 1):
        raise UnsupportedError(f"expected alpha > 0 and beta = 1, found {a['alpha']}, {a['beta']}")
    x = activation(states[0], e)
    w = constant_weights(states[1], 0 if a["transB"] else 1)
    rows = w.codes if a["transB"] else w.codes.T
    scales = tuple(alpha * s for s in w.scale)
    bias = states[2] if added else None
    if bias is not None:
        shape = e.graph.values[node.inputs[2]].shape
        if prod(shape[:-1]) != 1:
            raise UnsupportedError(f"expected one bias per column, found C of shape {shape}")
    return [_linear(e, node, x, rows, scales, bias, (0, 1))]


def _linear(
    e: LoweringBuilder,
    node: Node,
    x: Affine,
    rows: Array,
    scales: tuple[Fraction, ...],
    bias: State | None,
    order: tuple[int, ...],
) -> Affine:
    """x[..., K] times rows[O, K]; `order` is the identity of the result's rank."""
    stored = weights(rows)
    outputs = stored.shape[0]
    total = np.asarray(bias_codes(bias, x.unit, scales, outputs), object)
    total = total - x.zero * stored.astype(np.int64).sum(1).astype(object)
    result = Sum(
        "linear",
        (
            e.arranged(x.codes, tuple(sorted(x.codes.order))),
            e.constant(f"{node.name}.weight", stored),
        ),
        {},
        order,
        node.name,
        tuple(int(v) for v in np.broadcast_to(total, (outputs,))),
    )
    gain = tuple(x.unit * s for s in scales)
    return Affine(result, gain=gain, axis=order[-1] if len(gain) > 1 else None)


def _matmul(e: LoweringBuilder, node: Node, states: States) -> list[State]:
    return [_product(e, node, states[0], states[1])]


def _matmul_integer(e: LoweringBuilder, node: Node, states: States) -> list[State]:
    return [_product(e, node, *_integer_inputs(e, node, states))]


def _product(e: LoweringBuilder, node: Node, a: State | None, b: State | None) -> Affine:
    """MatMul: `linear` where the second factor is a constant matrix, else `matmul` of two tensors
    of codes, either of which may be constant, with their zero points as attributes."""
    shapes = [e.graph.values[name].shape for name in node.inputs[:2]]
    if min(map(len, shapes)) < 2:
        raise UnsupportedError(f"expected matrices, found shapes {shapes[0]} and {shapes[1]}")
    order = tuple(range(len(e.graph.values[node.output].shape)))
    if isinstance(a, Affine) and isinstance(b, ConstantCodes) and b.codes.ndim == 2:
        x, w = activation(a, e), constant_weights(b, 1)
        return _linear(e, node, x, w.codes.T, w.scale, None, order)
    names, zeros, units = [], [], []
    for index, state in enumerate((a, b)):
        if isinstance(state, ConstantCodes):
            if len(state.scale) > 1:
                raise UnsupportedError("expected one scale for this constant matrix")
            names.append(e.constant(f"{node.name}.matrix", weights(state.codes)))
            zeros.append(0)
            units.append(state.scale[0])
            continue
        x = activation(state, e, f"input {index}")
        names.append(e.arranged(x.codes, tuple(sorted(x.codes.order))))
        zeros.append(x.zero)
        units.append(x.unit)
    total = Sum(
        "matmul",
        (names[0], names[1]),
        {"a_zero": zeros[0], "b_zero": zeros[1]},
        order,
        node.name,
    )
    return Affine(total, gain=(units[0] * units[1],))


# --- pools and reductions ---------------------------------------------------------------------


def _average_pool(e: LoweringBuilder, node: Node, states: States) -> list[State]:
    a = node.attributes
    shape, out = (e.graph.values[n].shape for n in (node.inputs[0], node.output))
    attributes, grown = pool_attributes(shape, out, a)
    if a["count_include_pad"] and grown:
        raise UnsupportedError("ceil_mode windows beyond the padding with count_include_pad")
    return [_sum_pool(e, node, states[0], attributes, bool(a["count_include_pad"]))]


def pool_attributes(
    shape: tuple[int, ...], out: tuple[int, ...], a: Any
) -> tuple[dict[str, Any], bool]:
    """2-d attributes of a pool; True when ceil mode makes windows reach beyond the padding."""
    rank = len(shape) - 2
    if rank not in (1, 2):
        raise UnsupportedError(f"expected a 1- or 2-dimensional pool, found {rank} dimensions")
    one = (1,) * (2 - rank)
    zero = (0,) * (2 - rank)
    kernel, strides, dilations = (
        one + tuple(a[k]) for k in ("kernel_shape", "strides", "dilations")
    )
    before, after = zero + tuple(a["pads"][:rank]), zero + tuple(a["pads"][rank:])
    sizes, counts = one + shape[2:], one + out[2:]
    needed = tuple(
        (count - 1) * s + d * (k - 1) + 1 - size - b
        for count, s, d, k, size, b in zip(
            counts, strides, dilations, kernel, sizes, before, strict=True
        )
    )
    grown = any(n > b for n, b in zip(needed, after, strict=True))
    after = tuple(max(n, b) for n, b in zip(needed, after, strict=True))
    attributes = {"kernel": kernel, "strides": strides, "dilations": dilations}
    return {**attributes, "pads": (*before, *after)}, grown


def _sum_pool(
    e: LoweringBuilder,
    node: Node,
    state: State | None,
    attributes: dict[str, Any],
    include_pad: bool,
) -> Affine:
    """The sum over each window as an accumulator whose scale carries the division.

    include_pad: the divisor is the size of the window. Otherwise windows that reach into the
    padding divide by fewer elements: each sum is multiplied by divisor / count, a whole number
    (`balance`).
    """
    x = activation(state, e)
    image = image_of(e, x.codes)
    size = e.shape(image)[1:3]
    divisor = prod(attributes["kernel"])
    balance = False
    if not include_pad:
        factors, divisor = balance_factors((size[0], size[1]), attributes)
        balance = bool((factors != 1).any())
    total = Sum(
        "sum_pool",
        (image,),
        {**attributes, "zero": x.zero, "balance": balance},
        NCHW_TO_NHWC,
        node.name,
    )
    return image_result(e, node, total, (x.unit / divisor,))


def _global_average(e: LoweringBuilder, node: Node, states: States) -> list[State]:
    rank = len(e.graph.values[node.inputs[0]].shape)
    return [_reduced_sum(e, node, states[0], tuple(range(2, rank)), True, mean=True)]


def _reduced_sum(
    e: LoweringBuilder,
    node: Node,
    state: State | None,
    axes: tuple[int, ...],
    keepdims: bool,
    mean: bool,
) -> Affine:
    """The sum, or with `mean` the mean, over axes of x (counted as in the real graph) as an
    accumulator; the division joins its scale."""
    x = activation(state, e)
    shape = e.graph.values[node.inputs[0]].shape
    stored = x.codes.order
    total = Sum(
        "reduce_sum",
        (x.codes.name,),
        {
            "axes": tuple(sorted(stored.index(axis) for axis in axes)),
            "keepdims": keepdims,
            "zero": x.zero,
        },
        remaining(stored, axes, keepdims),
        node.name,
    )
    divisor = prod(shape[axis] for axis in axes) if mean else 1
    return Affine(total, gain=(x.unit / divisor,))


def remaining(order: tuple[int, ...], axes: tuple[int, ...], keepdims: bool) -> tuple[int, ...]:
    """The axis order of a reduction's result."""
    if keepdims:
        return order
    kept = [axis for axis in order if axis not in axes]
    return tuple(sorted(kept).index(axis) for axis in kept)


def _reduce_sum(e: LoweringBuilder, node: Node, states: States) -> list[State]:
    a = node.attributes
    rank = len(e.graph.values[node.inputs[0]].shape)
    axes = tuple(axis % rank for axis in a["axes"])
    mean = node.op == "ReduceMean"
    return [_reduced_sum(e, node, states[0], axes, bool(a["keepdims"]), mean)]


def _softmax(e: LoweringBuilder, node: Node, states: States) -> list[State]:
    scores, kept = states[0], None
    if isinstance(scores, MaskedScores):
        kept, scores = scores.kept, scores.scores
    x = activation(scores, e)
    rank = len(e.graph.values[node.inputs[0]].shape)
    return [Softmax(x.codes, x.unit, node.attributes["axis"] % rank, kept)]


def _log_softmax(e: LoweringBuilder, node: Node, states: States) -> list[State]:
    x = activation(states[0], e)
    rank = len(e.graph.values[node.inputs[0]].shape)
    return [Softmax(x.codes, x.unit, node.attributes["axis"] % rank, logarithm=True)]


RULES: dict[str, Callable[..., list[State]]] = {
    "Conv": _conv,
    "ConvTranspose": _conv_transpose,
    "ConvInteger": _conv_integer,
    "Gemm": _gemm,
    "MatMul": _matmul,
    "MatMulInteger": _matmul_integer,
    "AveragePool": _average_pool,
    "GlobalAveragePool": _global_average,
    "ReduceMean": _reduce_sum,
    "ReduceSum": _reduce_sum,
    "Softmax": _softmax,
    "LogSoftmax": _log_softmax,
}
