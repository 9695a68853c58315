"""The greatest or least codes along an axis, and where they lie. docs/spec/graph.md section 3."""

from __future__ import annotations

import numpy as np

from samebits.ir.integer.define import Arrays, Values, expect, expect_codes, register_integer
from samebits.ir.ops import REQUIRED, Array, Attributes, Type
from samebits.ir.traits import Trait


def _infer(values: Values, a: Attributes) -> tuple[str, tuple[int, ...]]:
    (x,) = values
    expect_codes(x)
    axis = a["axis"]
    expect(0 <= axis < len(x.shape), f"an axis in [0, {len(x.shape)})", axis)
    expect(1 <= a["k"] <= x.shape[axis], f"k from 1 to {x.shape[axis]}", a["k"])
    return x.dtype, (*x.shape[:axis], a["k"], *x.shape[axis + 1 :])


def _order(x: Array, a: Attributes) -> Array:
    """The places of the first k: a stable order of codes, or of their negations."""
    keys = x.astype(np.int64)
    order = np.argsort(-keys if a["largest"] else keys, axis=a["axis"], kind="stable")
    return np.take(order, np.arange(a["k"]), axis=a["axis"])


def _infer_index(values: Values, a: Attributes) -> list[Type]:
    return [("int64", _infer(values, a)[1])]


def _index(arrays: Arrays, a: Attributes) -> list[Array]:
    return [_order(arrays[0], a).astype(np.int64)]


def _codes(arrays: Arrays, a: Attributes) -> list[Array]:
    return [np.take_along_axis(arrays[0], _order(arrays[0], a), axis=a["axis"])]


_RANK = {"axis": REQUIRED, "k": REQUIRED, "largest": True}
register_integer("top_k", (1, 1), _RANK, lambda v, a: [_infer(v, a)], _codes, Trait.SELECTION)
register_integer("top_k_index", (1, 1), _RANK, _infer_index, _index, Trait.DECISION)
