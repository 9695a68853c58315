"""Deployed operations as operators of ONNX, but for products with parameters and recurrent layers.

Every function appends the operators of one step of a run: (`StepOperators`, *its arguments) ->
float32 value, which the caller rounds where the step did.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import torch
from torch import Tensor

from samebits.errors import UnsupportedError
from samebits.ir.ops import Attributes
from samebits.kernels import Window
from samebits.kernels.averages import Averages
from samebits.kernels.clamps import limit_of
from samebits.spec import formats
from samebits.tables.activation import ACTIVATIONS
from samebits.train.deployed.attention import NARROW16, binary32_eps, constant16, entry
from samebits.train.deployed.nodes import Array, StepOperators, binary32
from samebits.train.operation import TrainingOperation
from samebits.train.operations.activations import RELU, TABLE
from samebits.train.operations.addition import ADD
from samebits.train.operations.attention import JOIN_HEADS, SPLIT_HEADS
from samebits.train.operations.broadcast import EXPAND
from samebits.train.operations.copies import COPIES, Selection
from samebits.train.operations.indexing import GATHER, INDEXED, PERMUTE, ROLL
from samebits.train.operations.layer_norm import LAYER_NORM
from samebits.train.operations.matmul import MAT_MUL
from samebits.train.operations.multiplication import MULTIPLY, SCALE
from samebits.train.operations.narrow import NARROW
from samebits.train.operations.normalization import BATCH_NORM, frozen_affine
from samebits.train.operations.pointwise import CONCAT, EMBEDDING, RESHAPE
from samebits.train.operations.pooling import AVERAGE_POOL, MAX_POOL
from samebits.train.operations.resampling import INTERPOLATE, PAD, Line
from samebits.train.operations.selection import CHOSEN
from samebits.train.operations.softmax import LOG_SOFTMAX, MASKED, SOFTMAX
from samebits.train.value import BFPValue, Weight


def _norm(
    at: StepOperators,
    x: BFPValue,
    gamma: Weight | None,
    beta: Weight | None,
    eps: float,
    centred: bool,
    groups: int | None,
    peaks: object,
) -> str:
    """The operator of a norm, with gamma and beta as binary32 numbers."""
    size = x.shape[-1 if groups is None else 1]
    sides = [("scale", gamma, 1), ("shift", beta, 0)][: 1 + centred]
    names = [at.real(n, _joint(f"{at.path}.{n}", p, size, one)) for n, p, one in sides]
    names, epsilon = [*at.inputs, *names], {"epsilon": binary32_eps(eps)}
    if groups is None:
        operator = "LayerNormalization" if centred else "RMSNormalization"
        return at.add(operator, {"axis": x.dim() - 1, **epsilon}, names)
    if groups == size and x.dim() > 2:
        return at.add("InstanceNormalization", epsilon, names)
    return at.add("GroupNormalization", {"num_groups": groups, **epsilon}, names)


def _joint(path: str, parameter: Weight | None, size: int, default: int) -> Array:
    """Joint values as binary32 numbers."""
    if parameter is None:
        return np.full(size, default, np.float32)
    exponent = parameter.whole()[1] - formats.DELAYED_BITS
    return binary32(path, parameter.joint()[0].tolist(), exponent)


def _product(at: StepOperators, a: BFPValue, b: BFPValue, transposed: bool) -> str:
    left, right = at.inputs
    if transposed:
        rank = b.dim()
        perm = (*range(rank - 2), rank - 1, rank - 2)
        right = at.add("Transpose", {"perm": perm}, [right], "transposed")
    return at.add("MatMul", {}, [left, right])


def _added(at: StepOperators, *terms: BFPValue) -> str:
    """The sum of two terms; a constant of zeros beside an exact value adds nothing."""
    live = [n for n, t in zip(at.inputs, terms, strict=True) if constant16(t) is not None]
    return at.add("Add", {}, live) if len(live) > 1 else live[0]


def _softmax(at: StepOperators, x: BFPValue) -> str:
    scores = at.inputs[0]
    if x.allowed is not None and not bool(x.allowed.all()):
        kept = _compressed(x.allowed).cpu().numpy()
        mask = np.where(kept, np.float32(0), np.float32(-np.inf))
        scores = at.add("Add", {}, [scores, at.real("mask", mask)], "masked")
    return at.add("Softmax", {"axis": x.dim() - 1}, [scores])


def _compressed(v: Tensor) -> Tensor:
    """A mask with a size of 1 for every axis along which it is the same."""
    for axis in range(v.dim()):
        first = v.narrow(axis, 0, 1)
        v = first if torch.equal(first.expand_as(v), v) else v
    return v


def _embedding(
    at: StepOperators,
    index: Tensor,
    weight: Weight,
    *options: object,
) -> str:
    table, exponent = BFPValue(*entry(None, weight)).whole()
    codes = table.cpu().contiguous().numpy()
    name = at.nodes.constant(f"{at.path}.weight", codes, [exponent])
    return at.add("Gather", {"axis": 0}, [name, *at.inputs])


# --- moves of elements ------------------------------------------------------------------------


def _same(at: StepOperators, *arguments: Any) -> str:
    """The value itself: a rounding that follows, or a mask that the softmax adds, or the logits."""
    return at.inputs[0]


def _reshaped(at: StepOperators, x: BFPValue, shape: tuple[int, ...]) -> str:
    sizes = tuple(x.codes.reshape(shape).shape)
    if sizes == (x.shape[0], math.prod(x.shape[1:])):
        return at.add("Flatten", {"axis": 1})
    return at.add("Reshape", {"shape": sizes})


def _permuted(at: StepOperators, x: BFPValue, order: tuple[int, ...]) -> str:
    return at.add("Transpose", {"perm": tuple(axis % x.dim() for axis in order)})


def _indexed(at: StepOperators, x: BFPValue, index: tuple[Any, ...]) -> str:
    """A Slice, and a RESHAPE where axes are left out; the latter alone where everything is kept."""
    shape = tuple(x.codes[index].shape)
    if math.prod(shape) == x.codes.numel():
        return at.add("Reshape", {"shape": shape})
    cut = index.index(Ellipsis) if Ellipsis in index else len(index)
    given = (*index[:cut], *index[cut + 1 :])
    whole = (slice(None),) * (x.dim() - len(given))
    ranges: dict[int, tuple[int, int, int]] = {}
    kept = []
    for axis, part in enumerate((*given[:cut], *whole, *given[cut:])):
        size = x.shape[axis]
        if isinstance(part, int):
            part = slice(part % size, part % size + 1)
        else:
            kept.append(axis)
        if (own := part.indices(size)) != (0, size, 1):
            ranges[axis] = own
    starts, ends, steps = zip(*ranges.values(), strict=True)
    attributes = {"starts": starts, "ends": ends, "steps": steps, "axes": tuple(ranges)}
    if len(kept) == x.dim():
        return at.add("Slice", attributes)
    value = at.add("Slice", attributes, part="slice")
    return at.add("Reshape", {"shape": shape}, [value])


def _gathered(at: StepOperators, x: BFPValue, index: Tensor) -> str:
    numbers = at.real("indices", index.cpu().numpy())
    return at.add("Gather", {"axis": 0}, [*at.inputs, numbers])


def _expanded(at: StepOperators, x: BFPValue, shape: tuple[int, ...]) -> str:
    return at.add("Expand", {"shape": tuple(shape)})


def _rolled(
    at: StepOperators,
    x: BFPValue,
    by: tuple[int, ...],
    axes: tuple[int, ...],
) -> str:
    """Two parts of an axis exchanged, axis by axis."""
    value = at.inputs[0]
    for shift, axis in zip(by, axes, strict=True):
        size = x.shape[axis]
        cut = -shift % size
        if cut:
            parts = []
            for place, ends in (("last", (cut, size)), ("first", (0, cut))):
                one = {"starts": ends[:1], "ends": ends[1:], "steps": (1,), "axes": (axis,)}
                parts.append(at.add("Slice", one, [value], place))
            value = at.add("Concat", {"axis": axis}, parts)
    return value


def _padded(at: StepOperators, x: BFPValue, sizes: tuple[int, ...]) -> str:
    pairs = [sizes[i : i + 2] for i in range(0, len(sizes), 2)][::-1]
    pairs = [(0, 0)] * (x.dim() - len(pairs)) + pairs
    before, after = zip(*pairs, strict=True)
    return at.add("Pad", {"pads": (*before, *after)})


def _copied(at: StepOperators, x: BFPValue, selections: tuple[Selection, ...]) -> str:
    (value,) = at.inputs
    for axis, index in selections:
        chosen = at.real("index", index.cpu().numpy())
        value = at.add("Gather", {"axis": axis}, [value, chosen])
    return value


def _interpolated(at: StepOperators, x: BFPValue, down: Line, across: Line) -> str:
    sizes = (*x.shape[:2], *(len(line.first) for line in (down, across)))
    kind = "align_corners" if down.corners else "half_pixel"
    attributes = {"sizes": sizes, "coordinate_transformation_mode": kind}
    return at.add("Interpolate", attributes)


def _chosen(at: StepOperators, x: BFPValue, chosen: Tensor) -> str:
    """The value where a mask is true, 0 elsewhere."""
    mask = at.real("mask", _compressed(chosen).cpu().numpy())
    zero = at.real("zero", np.zeros((), np.float32))
    return at.add("Where", {}, [mask, *at.inputs, zero])


def _split_heads(at: StepOperators, x: BFPValue, heads: int) -> str:
    n, t, width = x.shape
    d = width // heads
    return _heads(at, (n, t, heads, d), (n * heads, t, d))


def _join_heads(at: StepOperators, x: BFPValue, heads: int) -> str:
    count, t, d = x.shape
    n = count // heads
    return _heads(at, (n, heads, t, d), (n, t, heads * d))


def _heads(at: StepOperators, between: tuple[int, ...], shape: tuple[int, ...]) -> str:
    """Tokens and heads exchanged."""
    value = at.add("Reshape", {"shape": between}, part="heads")
    value = at.add("Transpose", {"perm": (0, 2, 1, 3)}, [value], "exchanged")
    return at.add("Reshape", {"shape": shape}, [value])


# --- channels, elements and windows ------------------------------------------------------------


def _batch_norm(at: StepOperators, x: BFPValue, *arguments: Any) -> str:
    gamma, beta, running_mean, running_var, _, _, eps, _ = arguments
    e_x = x.whole()[1]
    m, b, exponent = frozen_affine(gamma, beta, running_mean, running_var, eps, e_x)
    shape = (1, -1, *([1] * (x.dim() - 2)))
    factor = binary32(at.path, m.tolist(), exponent - e_x).reshape(shape)
    shift = binary32(at.path, b.tolist(), exponent).reshape(shape)
    product = at.add("Mul", {}, [*at.inputs, at.real("factor", factor)], "mul")
    return at.add("Add", {}, [product, at.real("shift", shift)])


def _relu(at: StepOperators, x: BFPValue, clip: int) -> str:
    if not clip:
        return at.add("Relu")
    exponent = x.whole()[1]
    code = min(limit_of(clip, exponent), 127)
    return at.add("Clip", {"min": 0.0, "max": math.ldexp(code, exponent)})


def _activation(at: StepOperators, x: BFPValue, name: str, parameter: float | None) -> str:
    function = ACTIVATIONS[name]
    if function.operator == "Swish":  # newer than the opsets that others read
        return at.add("Mul", {}, [*at.inputs, at.add("Sigmoid", part="sigmoid")])
    given = function.parameters(None if parameter is None else Fraction(parameter))
    attributes: Attributes = {
        key: float(np.float32(float(value))) if isinstance(value, Fraction) else value
        for key, value in given.items()  # as ONNX stores numbers
    }
    return at.add(function.operator, attributes)


def _max_pool(at: StepOperators, x: BFPValue, window: Window) -> str:
    return at.add("MaxPool", _pool(window, x))


def _average_pool(at: StepOperators, x: BFPValue, means: Averages) -> str:
    """The mean over all of a window, or over what lies in the image, and what makes it that by
    another divisor. Windows of several sizes that count padding get it as part of the image."""
    window = means.window
    if window is None:
        raise UnsupportedError(
            f"{at.path}: expected an adaptive pool whose windows have one size and one step, "
            f"found {len(means.rows)}x{len(means.columns)} of an image "
            f"{tuple(x.shape[2:])}: ONNX has no such pool; use an output size that divides the "
            "image's"
        )
    whole = means.factors is None and means.common == window.size
    if whole and window.kernel == tuple(x.shape[2:]) and window.padding == (0, 0):
        return at.add("GlobalAveragePool")
    attributes, inputs = {**_pool(window, x), "count_include_pad": 1}, at.inputs
    if not whole and means.counts_image:
        attributes["count_include_pad"] = 0
    elif means.factors is not None:
        top, left = window.padding
        inputs = [at.add("Pad", {"pads": (0, 0, top, left) * 2}, part="pad")]
        bottom, right = window.ends(*x.shape[2:])
        attributes["pads"] = (0, 0, bottom - top, right - left)
        attributes["count_include_pad"] = 0
    elif not whole:
        value = at.add("AveragePool", attributes, part="mean")
        return at.add("Mul", {}, [value, at.real("factor", _quotient(at.path, window, means))])
    return at.add("AveragePool", attributes, inputs)


def _multiplied(at: StepOperators, *operands: BFPValue) -> str:
    return at.add("Mul")


def _scaled(at: StepOperators, x: BFPValue, factor: float) -> str:
    m, by = formats.signed_coefficient(factor)
    name = at.real("factor", binary32(at.path, [m], by).reshape(()))
    return at.add("Mul", {}, [*at.inputs, name])


def _side_by_side(at: StepOperators, dim: int, *tensors: BFPValue) -> str:
    return at.add("Concat", {"axis": dim % tensors[0].dim()})


def _pool(window: Window, x: BFPValue) -> dict[str, Any]:
    """The attributes of a pool of x, with the pads that its last windows need."""
    pads = (*window.padding, *window.ends(*x.shape[2:]))
    sizes = {"kernel_shape": window.kernel, "strides": window.stride, "pads": pads}
    return {**sizes, "dilations": (1, 1)}


def _quotient(path: str, window: Window, means: Averages) -> Array:
    """The factor that makes a mean over all of a window one by a divisor of its own."""
    ratio = Fraction(window.size, means.common)
    by = ratio.denominator.bit_length() - 1
    if ratio.denominator != 1 << by:
        raise UnsupportedError(
            f"{path}: expected a divisor_override whose quotient with the {window.size} positions "
            f"of the window float32 holds, found {means.common}; use a power of two times as many "
            "or one of their divisors"
        )
    return binary32(path, [ratio.numerator], -by).reshape(())


RULES: dict[TrainingOperation, Callable[..., str]] = {
    BATCH_NORM: _batch_norm,
    RELU: _relu,
    TABLE: _activation,
    MAX_POOL: _max_pool,
    AVERAGE_POOL: _average_pool,
    CONCAT: _side_by_side,
    MULTIPLY: _multiplied,
    SCALE: _scaled,
    LAYER_NORM: _norm,
    MAT_MUL: _product,
    ADD: _added,
    SOFTMAX: _softmax,
    EMBEDDING: _embedding,
    **dict.fromkeys((NARROW, NARROW16, MASKED, LOG_SOFTMAX), _same),
    RESHAPE: _reshaped,
    PERMUTE: _permuted,
    INDEXED: _indexed,
    GATHER: _gathered,
    EXPAND: _expanded,
    ROLL: _rolled,
    PAD: _padded,
    COPIES: _copied,
    INTERPOLATE: _interpolated,
    CHOSEN: _chosen,
    SPLIT_HEADS: _split_heads,
    JOIN_HEADS: _join_heads,
}
