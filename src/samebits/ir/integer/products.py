"""Integer convolutions and matrix products. docs/spec/graph.md section 3."""

from __future__ import annotations

from typing import Any

import numpy as np

from samebits.ir.integer.define import (
    ACCUMULATORS,
    CODES,
    Arrays,
    Values,
    accumulator,
    expect,
    expect_codes,
    expect_zeros,
    limits,
    narrowed,
    plus,
    register_integer,
)
from samebits.ir.integer.windows import SPATIAL, image_shape, output_size, taps, window
from samebits.ir.ops import REQUIRED, Array, Attributes, Type, broadcast
from samebits.ir.traits import Trait


def _kernel(w: Any, b: Any, c: int, a: Attributes) -> tuple[int, int, int]:
    """(O, KH, KW) of the weights and bias of a convolution over `c` channels."""
    expect(len(w.shape) == 4 and w.dtype in CODES, "weights [O, KH, KW, C/groups]", w)
    o, kh, kw, per_group = w.shape
    groups = a["groups"]
    expect(groups >= 1 and per_group * groups == c, f"{c} = C/groups * groups channels", w.shape)
    expect(o % groups == 0, f"outputs in {groups} groups", o)
    expect(b.shape == (o,) and b.dtype in ACCUMULATORS, f"a bias of {o} int32 or int64", b)
    return o, kh, kw


def _infer_conv(values: Values, a: Attributes) -> list[Type]:
    x, w, b = values
    n, h, width, c = image_shape(x)
    expect_codes(x)
    o, kh, kw = _kernel(w, b, c, a)
    low, high = limits(x.dtype)
    expect(low <= a["pad_code"] <= high, f"a pad code of {x.dtype}", a["pad_code"])
    oh, ow = output_size((h, width), (kh, kw), a)
    return [(accumulator(a), (n, oh, ow, o))]


def _conv(arrays: Arrays, a: Attributes) -> list[Array]:
    x, w, b = (v.astype(np.int64) for v in arrays)
    o, kh, kw, per_group = w.shape
    windows = taps(x, (kh, kw), a, a["pad_code"])
    parts = []
    for group in range(a["groups"]):
        channels = slice(group * per_group, (group + 1) * per_group)
        outputs = slice(group * o // a["groups"], (group + 1) * o // a["groups"])
        rows = windows[..., channels].reshape(*windows.shape[:3], -1)
        parts.append(rows @ w[outputs].reshape(-1, kh * kw * per_group).T)
    return [narrowed(plus(np.concatenate(parts, -1), b), a["dtype"])]


def _infer_conv_transpose(values: Values, a: Attributes) -> list[Type]:
    x, w, b = values
    n, _, _, c = image_shape(x)
    expect_codes(x)
    o, kh, kw = _kernel(w, b, c, a)
    window(a, (kh, kw))
    expect_zeros(a, "zero")
    expect(len(a["size"]) == 2 and min(a["size"]) >= 1, "size=(OH, OW) >= 1", a["size"])
    return [(accumulator(a), (n, *a["size"], o))]


def _conv_transpose(arrays: Arrays, a: Attributes) -> list[Array]:
    """Scatter (x - zero) * w: tap p of input pixel i reaches output pixel i * stride + p * dilation
    - pad.

    x: [N, H, W, C]   w: [O, KH, KW, C/groups]   b: [O]   result: [N, OH, OW, O], from `size`
    """
    x, w, b = (v.astype(np.int64) for v in arrays)
    x = x - a["zero"]
    n, h, width, _ = x.shape
    o, kh, kw, per_group = w.shape
    (sh, sw), (dh, dw), (top, left, _, _) = a["strides"], a["dilations"], a["pads"]
    oh, ow = a["size"]
    out = np.zeros((n, oh, ow, o), np.int64)
    by_group = o // a["groups"]
    for group in range(a["groups"]):
        rows = x[..., group * per_group : (group + 1) * per_group]
        outputs = slice(group * by_group, (group + 1) * by_group)
        for i, j, p, q in np.ndindex(h, width, kh, kw):
            y, z = i * sh + p * dh - top, j * sw + q * dw - left
            if 0 <= y < oh and 0 <= z < ow:
                out[:, y, z, outputs] += rows[:, i, j] @ w[outputs, p, q].T
    return [narrowed(plus(out, b), a["dtype"])]


def _infer_linear(values: Values, a: Attributes) -> list[Type]:
    x, w, b = values
    expect_codes(x)
    expect(len(w.shape) == 2 and w.dtype in CODES, "weights [O, K]", w)
    expect(len(x.shape) >= 1 and x.shape[-1] == w.shape[1], f"rows of {w.shape[1]}", x)
    expect(b.shape == w.shape[:1] and b.dtype in ACCUMULATORS, "a bias [O] int32 or int64", b)
    return [(accumulator(a), (*x.shape[:-1], w.shape[0]))]


def _linear(arrays: Arrays, a: Attributes) -> list[Array]:
    x, w, b = (v.astype(np.int64) for v in arrays)
    return [narrowed(plus(x @ w.T, b), a["dtype"])]


def _infer_matmul(values: Values, a: Attributes) -> list[Type]:
    x, y = values
    expect_codes(x, "a")
    expect_codes(y, "b")
    expect(len(x.shape) >= 2 and len(y.shape) >= 2, "matrices", f"{x} and {y}")
    expect(x.shape[-1] == y.shape[-2], f"{x.shape[-1]} rows", y)
    expect_zeros(a, "a_zero", "b_zero")
    leading = broadcast(x.shape[:-2], y.shape[:-2])
    return [(accumulator(a), (*leading, x.shape[-2], y.shape[-1]))]


def _matmul(arrays: Arrays, a: Attributes) -> list[Array]:
    x, y = (v.astype(np.int64) for v in arrays)
    return [narrowed((x - a["a_zero"]) @ (y - a["b_zero"]), a["dtype"])]


_CONV = {**SPATIAL, "groups": 1, "dtype": "int32"}
_ZEROS = {"a_zero": 0, "b_zero": 0, "dtype": "int32"}
_IMAGE = (Trait.WEIGHTED, Trait.SPATIAL)
register_integer("conv", (3, 3), {**_CONV, "pad_code": 0}, _infer_conv, _conv, *_IMAGE)
register_integer(
    "conv_transpose",
    (3, 3),
    {**_CONV, "zero": 0, "size": REQUIRED},
    _infer_conv_transpose,
    _conv_transpose,
    *_IMAGE,
)
register_integer("linear", (3, 3), {"dtype": "int32"}, _infer_linear, _linear, Trait.WEIGHTED)
register_integer("matmul", (2, 2), _ZEROS, _infer_matmul, _matmul, Trait.PRODUCT)
