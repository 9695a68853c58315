"""Operators into which onnxruntime's optimizer joins the layers of transformers.

Most are of com.microsoft; ONNX Runtime's ContribOperators.md lists their inputs and attributes.
"""

from __future__ import annotations

import math

import numpy as np

from samebits.errors import InputError, UnsupportedError
from samebits.onnx.reader.node import MICROSOFT, OnnxNode, Result, onnx_op

LEFT_OUT = -1e9  # added to a score, leaves no share of binary32 beside scores below 1e8

# --- normalisation ----------------------------------------------------------------------------


@onnx_op("SimplifiedLayerNormalization")
@onnx_op("SimplifiedLayerNormalization", domain=MICROSOFT)
def _rms_norm(node: OnnxNode) -> Result:
    """x, scale: an RMSNormalization under an older name."""
    node.ignore("stash_type")
    if any(node.wanted[1:]):
        raise UnsupportedError("expected no use of its statistics, found one; read x instead")
    axis = node.axis(node.int_("axis", -1), node.rank())
    epsilon = node.float_("epsilon", 1e-5)
    y = node.emit("RMSNormalization", *node.inputs[:2], axis=axis, epsilon=epsilon)
    return _first(node, y)


@onnx_op("SkipLayerNormalization", "SkipSimplifiedLayerNormalization", domain=MICROSOFT)
def _skip_norm(node: OnnxNode) -> Result:
    """x, skip, gamma, beta (not of the simplified one), bias: a norm of x + skip + bias, which is
    output 3."""
    simplified = node.op == "SkipSimplifiedLayerNormalization"
    if any(node.wanted[1:3]):
        raise UnsupportedError("expected no use of its statistics, found one; read x instead")
    total = node.emit("Add", node.input(0), node.input(1))
    bias = node.optional(3 if simplified else 4)
    if bias:
        total = node.emit("Add", total, bias)
    op = "RMSNormalization" if simplified else "LayerNormalization"
    beta = node.optional(3) if not simplified else ""
    inputs = [total, node.input(2), *([beta] if beta else [])]
    y = node.emit(op, *inputs, axis=node.rank() - 1, epsilon=node.float_("epsilon", 1e-12))
    return (y, "", "", total)[: len(node.outputs)]


def _first(node: OnnxNode, y: str) -> tuple[str, ...]:
    return (y, *[""] * (len(node.outputs) - 1))


# --- activations ------------------------------------------------------------------------------


@onnx_op("Gelu", "BiasGelu", "FastGelu", domain=MICROSOFT)
def _gelu(node: OnnxNode) -> Result:
    """The Gelu of x, or of x plus a bias; FastGelu is the one by a tanh."""
    x = node.input(0)
    if node.optional(1):
        x = node.emit("Add", x, node.input(1))
    return node.out("Gelu", x, approximate="tanh" if node.op == "FastGelu" else "none")


@onnx_op("QuickGelu", domain=MICROSOFT)
def _quick_gelu(node: OnnxNode) -> Result:
    """x times the sigmoid of alpha * x."""
    return node.out("Swish", node.input(0), alpha=node.float_("alpha", 1.702))


# --- products ---------------------------------------------------------------------------------


@onnx_op("FusedMatMul", domain=MICROSOFT)
def _matmul(node: OnnxNode) -> Result:
    """alpha times the product of matrices, either of which may be transposed."""
    if node.flag("transBatchA", False) or node.flag("transBatchB", False):
        raise UnsupportedError("expected batches as first axes, found transBatchA or transBatchB")
    sides = []
    for index, name in enumerate(("transA", "transB")):
        side, rank = node.input(index), node.rank(index)
        if node.flag(name, False):
            if rank < 2:
                raise InputError(f"expected a matrix to transpose, found {list(node.shape(index))}")
            perm = (*range(rank - 2), rank - 1, rank - 2)
            side = node.emit("Transpose", side, perm=perm)
        sides.append(side)
    alpha = node.float_("alpha", 1.0)
    product = node.emit("MatMul", *sides)
    return (_scaled(node, product, alpha),)


def _scaled(node: OnnxNode, x: str, factor: float) -> str:
    return x if factor == 1 else node.emit("Mul", x, node.number(factor, node.dtype_of(x)))


@onnx_op("Attention", domain=MICROSOFT)
def _attention(node: OnnxNode) -> Result:
    """x [B, S, D], weights [D, E], bias [E], mask [B, S] or [B, S, S] of ones and zeros: of
    queries, keys and values side by side, each the heads side by side. `unidirectional`: no place
    sees a later one."""
    node.ignore("mask_filter_value")
    for index, what in ((4, "past"), (5, "attention bias"), (6, "past length")):
        if node.has(index):
            raise UnsupportedError(
                f"expected attention without a {what} as input {index}, found one; export the "
                "model without it, for sequences of one length"
            )
    if node.flag("do_rotary", False) or any(node.wanted[1:]):
        raise UnsupportedError("expected attention without rotary embedding and present states")
    heads = node.int_("num_heads")
    if (node.rank(), node.rank(1)) != (3, 2):
        found = f"{list(node.shape())} and {list(node.shape(1))}"
        raise InputError(f"expected x [B, S, D] and weights [D, E], found {found}")
    (batch, length, _), (_, width) = node.shape(), node.shape(1)
    sizes = node.ints("qkv_hidden_sizes") or (width // 3,) * 3
    positive = heads > 0 and len(sizes) == 3 and min(sizes) > 0
    if not positive or sum(sizes) != width or any(size % heads for size in sizes):
        raise InputError(f"expected {width} columns of {heads} heads, found {list(sizes)}")
    joined = node.emit("MatMul", node.input(0), node.input(1))
    if node.has(2):
        joined = node.emit("Add", joined, node.input(2))
    parts = node.emit_all("Split", joined, axis=2, sizes=tuple(sizes))
    q, k, v = (
        node.emit(
            "Transpose",
            node.emit("Reshape", part, shape=(batch, length, heads, size // heads)),
            perm=perm,
        )
        for part, size, perm in zip(
            parts, sizes, ((0, 2, 1, 3), (0, 2, 3, 1), (0, 2, 1, 3)), strict=True
        )
    )
    scale = node.float_("scale", 0.0) or 1 / math.sqrt(sizes[0] // heads)
    scores = _scaled(node, node.emit("MatMul", q, k), float(np.float32(scale)))
    if node.flag("unidirectional", False):
        node.builder.charge(length * length)
        later = np.triu(np.full((length, length), -np.inf, node.dtype()), 1)
        scores = node.emit("Add", scores, node.constant(later))
    if node.has(3):
        scores = node.emit("Add", scores, _left_out(node, batch, length))
    weights = node.emit("Softmax", scores, axis=3)
    made = node.emit("Transpose", node.emit("MatMul", weights, v), perm=(0, 2, 1, 3))
    return _first(node, node.emit("Reshape", made, shape=(batch, length, sizes[2])))


def _left_out(node: OnnxNode, batch: int, length: int) -> str:
    """A term of scores [B, N, S, S]: 0 where the mask is 1, else a number beside which no share of
    binary32 is left, as beside `mask_filter_value`."""
    shape = node.shape(3)
    if shape not in ((batch, length), (batch, length, length)):
        raise UnsupportedError(
            f"expected a mask {[batch, length]} or {[batch, length, length]} of ones and zeros, "
            f"found {list(shape)}; quantize the model as it was before onnxruntime's optimizer"
        )
    wide = (batch, 1, 1, length) if len(shape) == 2 else (batch, 1, length, length)
    kept = node.emit("Cast", node.emit("Reshape", node.input(3), shape=wide), to=node.dtype())
    one, left = (node.constant(np.array(v, node.dtype())) for v in (1.0, LEFT_OUT))
    return node.emit("Mul", node.emit("Sub", one, kept), left)


@onnx_op("RotaryEmbedding", domain=MICROSOFT)
def _rotary(node: OnnxNode) -> Result:
    """x [B, N, S, H] or [B, S, N * H], positions, tables of cosines and sines [P, H / 2]: halves,
    or with `interleaved` neighbours, turned by the angle of their place."""
    node.ignore("is_packed_batching")
    if node.float_("scale", 1.0) != 1:
        raise UnsupportedError(f"expected scale 1, found {node.float_('scale', 1.0)}")
    shape = node.shape()
    cosines, sines = (node.array(index, "table of angles") for index in (2, 3))
    positions = node.array(1, "positions")
    tables = cosines.ndim == 2 and cosines.shape == sines.shape and cosines.size > 0
    if not tables or len(shape) not in (3, 4) or shape[-1] % (2 * cosines.shape[1]):
        raise InputError(
            f"expected x of whole heads of H elements and two tables [P, H / 2], found "
            f"{list(shape)}, {list(cosines.shape)} and {list(sines.shape)}"
        )
    half = cosines.shape[1]
    if node.int_("rotary_embedding_dim", 0) not in (0, 2 * half):
        raise UnsupportedError("expected a rotation of all of a head, found one of a part")
    batch, length = (shape[0], shape[-2])
    heads = shape[1] if len(shape) == 4 else shape[2] // (2 * half)
    if node.int_("num_heads", 0) not in (0, heads):
        raise InputError(f"expected {heads} heads, found num_heads {node.int_('num_heads', 0)}")
    x = node.input(0)
    if len(shape) == 3:
        x = node.emit("Reshape", x, shape=(batch, length, heads, 2 * half))
        x = node.emit("Transpose", x, perm=(0, 2, 1, 3))
    if positions.dtype.kind not in "iu":
        raise InputError(f"expected integers as positions, found {positions.dtype}")
    if positions.size == 1:
        positions = int(positions.reshape(-1)[0]) + np.arange(length)[None]
    if positions.shape not in ((1, length), (batch, length)):
        raise InputError(f"expected positions of {batch} x {length}, found {positions.shape}")
    if positions.min() < 0 or positions.max() >= len(cosines):
        raise InputError(f"expected positions below {len(cosines)}, found {positions.max()}")
    node.builder.charge(2 * positions.size * half)
    cosine, sine = (node.constant(table[positions][:, None]) for table in (cosines, sines))
    interleaved = node.flag("interleaved", False)
    if interleaved:  # elements 2 * i and 2 * i + 1 turn together, else i and half + i
        pairs = node.emit("Reshape", x, shape=(batch, heads, length, half, 2))
        first, second = (
            node.emit(
                "Squeeze",
                node.emit("Slice", pairs, starts=(i,), ends=(i + 1,), steps=(1,), axes=(4,)),
                axes=(4,),
            )
            for i in (0, 1)
        )
    else:
        first, second = node.emit_all("Split", x, axis=3, sizes=(half, half))
    turned = (
        node.emit("Sub", node.emit("Mul", first, cosine), node.emit("Mul", second, sine)),
        node.emit("Add", node.emit("Mul", first, sine), node.emit("Mul", second, cosine)),
    )
    if interleaved:
        stacked = (node.emit("Unsqueeze", part, axes=(4,)) for part in turned)
        y = node.emit("Concat", *stacked, axis=4)
    else:
        y = node.emit("Concat", *turned, axis=3)
    if len(shape) == 3:
        y = node.emit("Reshape", y, shape=(batch, heads, length, 2 * half))
        y = node.emit("Transpose", y, perm=(0, 2, 1, 3))
    return (node.emit("Reshape", y, shape=shape),)
