"""Deployed norms, products of activations, softmax and moves of elements as operators of ONNX.

Every function appends the operators of one step of a run: (nodes, path, float32 values of the
activations it reads, *its arguments) -> float32 value, which the caller rounds where the step did.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from samebits.spec import formats
from samebits.train.deployed.attention import NARROW16, binary32_eps, constant16, entry
from samebits.train.deployed.nodes import Array, Nodes, binary32
from samebits.train.operation import TrainingOperation
from samebits.train.operations.addition import ADD
from samebits.train.operations.attention import JOIN_HEADS, SPLIT_HEADS
from samebits.train.operations.broadcast import EXPAND
from samebits.train.operations.copies import COPIES, Selection
from samebits.train.operations.indexing import GATHER, INDEXED, PERMUTE, ROLL
from samebits.train.operations.layer_norm import LAYER_NORM
from samebits.train.operations.matmul import MAT_MUL
from samebits.train.operations.narrow import NARROW
from samebits.train.operations.pointwise import EMBEDDING, RESHAPE
from samebits.train.operations.resampling import INTERPOLATE, PAD, Line
from samebits.train.operations.selection import CHOSEN
from samebits.train.operations.softmax import LOG_SOFTMAX, MASKED, SOFTMAX
from samebits.train.value import BFPValue, Weight

Inputs = Sequence[str]


def _norm(
    nodes: Nodes,
    path: str,
    inputs: Inputs,
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
    names = [*inputs, nodes.real(f"{path}.scale", _joint(f"{path}.scale", gamma, size, 1))]
    if centred:
        names.append(nodes.real(f"{path}.shift", _joint(f"{path}.shift", beta, size, 0)))
    epsilon = {"epsilon": binary32_eps(eps)}
    if groups is None:
        operator = "LayerNormalization" if centred else "RMSNormalization"
        return nodes.add(operator, names, {"axis": x.dim() - 1, **epsilon}, path)
    if groups == size and x.dim() > 2:
        return nodes.add("InstanceNormalization", names, epsilon, path)
    return nodes.add("GroupNormalization", names, {"num_groups": groups, **epsilon}, path)


def _joint(path: str, parameter: Weight | None, size: int, default: int) -> Array:
    """Joint values as binary32 numbers."""
    if parameter is None:
        return np.full(size, default, np.float32)
    exponent = parameter.whole()[1] - formats.DELAYED_BITS
    return binary32(path, parameter.joint()[0].tolist(), exponent)


def _product(
    nodes: Nodes, path: str, inputs: Inputs, a: BFPValue, b: BFPValue, transposed: bool
) -> str:
    left, right = inputs
    if transposed:
        rank = b.dim()
        perm = (*range(rank - 2), rank - 1, rank - 2)
        right = nodes.add("Transpose", [right], {"perm": perm}, f"{path}.transposed")
    return nodes.add("MatMul", [left, right], {}, path)


def _added(nodes: Nodes, path: str, inputs: Inputs, *terms: BFPValue) -> str:
    """The sum of two terms; a constant of zeros beside an exact value adds nothing."""
    live = [n for n, t in zip(inputs, terms, strict=True) if constant16(t) is not None]
    return nodes.add("Add", live, {}, path) if len(live) > 1 else live[0]


def _softmax(nodes: Nodes, path: str, inputs: Inputs, x: BFPValue) -> str:
    scores = inputs[0]
    if x.allowed is not None and not bool(x.allowed.all()):
        kept = _compressed(x.allowed).cpu().numpy()
        mask = np.where(kept, np.float32(0), np.float32(-np.inf))
        scores = nodes.add("Add", [scores, nodes.real(f"{path}.mask", mask)], {}, f"{path}.masked")
    return nodes.add("Softmax", [scores], {"axis": x.dim() - 1}, path)


def _compressed(v: Tensor) -> Tensor:
    """A mask with a size of 1 for every axis along which it is the same."""
    for axis in range(v.dim()):
        first = v.narrow(axis, 0, 1)
        v = first if torch.equal(first.expand_as(v), v) else v
    return v


def _embedding(
    nodes: Nodes,
    path: str,
    inputs: Inputs,
    index: Tensor,
    weight: Weight,
    *options: object,
) -> str:
    table, exponent = BFPValue(*entry(None, weight)).whole()
    name = nodes.constant(f"{path}.weight", table.cpu().contiguous().numpy(), [exponent])
    return nodes.add("Gather", [name, *inputs], {"axis": 0}, path)


# --- moves of elements ------------------------------------------------------------------------


def _same(nodes: Nodes, path: str, inputs: Inputs, *arguments: Any) -> str:
    """The value itself: a rounding that follows, or a mask that the softmax adds."""
    return inputs[0]


def _reshaped(nodes: Nodes, path: str, inputs: Inputs, x: BFPValue, shape: tuple[int, ...]) -> str:
    sizes = tuple(x.codes.reshape(shape).shape)
    if sizes == (x.shape[0], math.prod(x.shape[1:])):
        return nodes.add("Flatten", inputs, {"axis": 1}, path)
    return nodes.add("Reshape", inputs, {"shape": sizes}, path)


def _permuted(nodes: Nodes, path: str, inputs: Inputs, x: BFPValue, order: tuple[int, ...]) -> str:
    return nodes.add("Transpose", inputs, {"perm": tuple(axis % x.dim() for axis in order)}, path)


def _indexed(nodes: Nodes, path: str, inputs: Inputs, x: BFPValue, index: tuple[Any, ...]) -> str:
    """A Slice, and a RESHAPE where axes are left out; the latter alone where everything is kept."""
    shape = tuple(x.codes[index].shape)
    if math.prod(shape) == x.codes.numel():
        return nodes.add("Reshape", inputs, {"shape": shape}, path)
    at = index.index(Ellipsis) if Ellipsis in index else len(index)
    given = (*index[:at], *index[at + 1 :])
    whole = (slice(None),) * (x.dim() - len(given))
    ranges: dict[int, tuple[int, int, int]] = {}
    kept = []
    for axis, part in enumerate((*given[:at], *whole, *given[at:])):
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
        return nodes.add("Slice", inputs, attributes, path)
    value = nodes.add("Slice", inputs, attributes, f"{path}.slice")
    return nodes.add("Reshape", [value], {"shape": shape}, path)


def _gathered(nodes: Nodes, path: str, inputs: Inputs, x: BFPValue, index: Tensor) -> str:
    numbers = nodes.real(f"{path}.indices", index.cpu().numpy())
    return nodes.add("Gather", [*inputs, numbers], {"axis": 0}, path)


def _expanded(nodes: Nodes, path: str, inputs: Inputs, x: BFPValue, shape: tuple[int, ...]) -> str:
    return nodes.add("Expand", inputs, {"shape": tuple(shape)}, path)


def _rolled(
    nodes: Nodes,
    path: str,
    inputs: Inputs,
    x: BFPValue,
    by: tuple[int, ...],
    axes: tuple[int, ...],
) -> str:
    """Two parts of an axis exchanged, axis by axis."""
    value = inputs[0]
    for shift, axis in zip(by, axes, strict=True):
        size = x.shape[axis]
        cut = -shift % size
        if cut:
            parts = []
            for place, ends in (("last", (cut, size)), ("first", (0, cut))):
                one = {"starts": ends[:1], "ends": ends[1:], "steps": (1,), "axes": (axis,)}
                parts.append(nodes.add("Slice", [value], one, f"{path}.{place}"))
            value = nodes.add("Concat", parts, {"axis": axis}, path)
    return value


def _padded(nodes: Nodes, path: str, inputs: Inputs, x: BFPValue, sizes: tuple[int, ...]) -> str:
    pairs = [sizes[i : i + 2] for i in range(0, len(sizes), 2)][::-1]
    pairs = [(0, 0)] * (x.dim() - len(pairs)) + pairs
    before, after = zip(*pairs, strict=True)
    return nodes.add("Pad", inputs, {"pads": (*before, *after)}, path)


def _copied(
    nodes: Nodes, path: str, inputs: Inputs, x: BFPValue, selections: tuple[Selection, ...]
) -> str:
    (value,) = inputs
    for axis, index in selections:
        chosen = nodes.real(f"{path}.index", index.cpu().numpy())
        value = nodes.add("Gather", [value, chosen], {"axis": axis}, path)
    return value


def _interpolated(
    nodes: Nodes, path: str, inputs: Inputs, x: BFPValue, down: Line, across: Line
) -> str:
    sizes = (*x.shape[:2], *(len(line.first) for line in (down, across)))
    kind = "align_corners" if down.corners else "half_pixel"
    attributes = {"sizes": sizes, "coordinate_transformation_mode": kind}
    return nodes.add("Interpolate", inputs, attributes, path)


def _chosen(nodes: Nodes, path: str, inputs: Inputs, x: BFPValue, chosen: Tensor) -> str:
    """The value where a mask is true, 0 elsewhere."""
    mask = nodes.real(f"{path}.mask", _compressed(chosen).cpu().numpy())
    zero = nodes.real(f"{path}.zero", np.zeros((), np.float32))
    return nodes.add("Where", [mask, *inputs, zero], {}, path)


def _logits(nodes: Nodes, path: str, inputs: Inputs, x: BFPValue, along: int) -> str:
    return inputs[0]


def _split_heads(nodes: Nodes, path: str, inputs: Inputs, x: BFPValue, heads: int) -> str:
    n, t, width = x.shape
    d = width // heads
    return _heads(nodes, path, inputs, (n, t, heads, d), (n * heads, t, d))


def _join_heads(nodes: Nodes, path: str, inputs: Inputs, x: BFPValue, heads: int) -> str:
    count, t, d = x.shape
    n = count // heads
    return _heads(nodes, path, inputs, (n, heads, t, d), (n, t, heads * d))


def _heads(
    nodes: Nodes, path: str, inputs: Inputs, between: tuple[int, ...], shape: tuple[int, ...]
) -> str:
    """Tokens and heads exchanged."""
    value = nodes.add("Reshape", inputs, {"shape": between}, f"{path}.heads")
    value = nodes.add("Transpose", [value], {"perm": (0, 2, 1, 3)}, f"{path}.exchanged")
    return nodes.add("Reshape", [value], {"shape": shape}, path)


RULES: dict[TrainingOperation, Callable[..., str]] = {
    LAYER_NORM: _norm,
    MAT_MUL: _product,
    ADD: _added,
    SOFTMAX: _softmax,
    EMBEDDING: _embedding,
    **dict.fromkeys((NARROW, NARROW16, MASKED), _same),
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
    LOG_SOFTMAX: _logits,
    SPLIT_HEADS: _split_heads,
    JOIN_HEADS: _join_heads,
}
