"""Integer operators that move codes and change none. docs/spec/graph.md section 3."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from samebits.ir.integer.define import (
    ACCUMULATORS,
    Arrays,
    Values,
    expect,
    limits,
    register_integer,
)
from samebits.ir.ops import (
    REQUIRED,
    Array,
    Attributes,
    Type,
    broadcast,
    check_written,
    written,
)
from samebits.ir.traits import Trait


def keeps_channels(op: str, a: Attributes, shape: tuple[int, ...], out: tuple[int, ...]) -> bool:
    """Whether what a movement or a maximum of this shape gives at an index of the last axis comes
    from that index of it. out: the shape of the result."""
    last = len(shape) - 1
    if op == "transpose":
        return bool(a["perm"][-1:] == (last,))
    if "axis" in a:  # of a gather, of what is put side by side
        return bool(a["axis"] != last)
    if "axes" in a:  # of maxima
        return last not in a["axes"]
    if op == "pad":
        return not any((*a["before"][last:], *a["after"][last:]))
    return out[-1:] == shape[-1:]


def _infer_reshape(values: Values, a: Attributes) -> list[Type]:
    (x,) = values
    fits = min(a["shape"], default=0) >= 0 and math.prod(a["shape"]) == x.size
    expect(fits, f"a shape of {x.size} elements", a["shape"])
    return [(x.dtype, tuple(a["shape"]))]


def _infer_transpose(values: Values, a: Attributes) -> list[Type]:
    (x,) = values
    expect(sorted(a["perm"]) == list(range(len(x.shape))), "a permutation of axes", a["perm"])
    return [(x.dtype, tuple(x.shape[axis] for axis in a["perm"]))]


def _infer_expand(values: Values, a: Attributes) -> list[Type]:
    (x,) = values
    shape = tuple(a["shape"])
    expect(broadcast(x.shape, shape) == shape, f"a shape that {list(x.shape)} expands to", shape)
    return [(x.dtype, shape)]


def _infer_slice(values: Values, a: Attributes) -> list[Type]:
    (x,) = values
    lengths = [len(a[key]) for key in ("starts", "stops", "steps")]
    expect(lengths == [len(x.shape)] * 3, f"{len(x.shape)} starts, stops and steps", lengths)
    parts = list(zip(a["starts"], a["stops"], a["steps"], x.shape, strict=True))
    expect(
        all(0 <= start < stop <= size and step > 0 for start, stop, step, size in parts),
        "0 <= start < stop <= size and step > 0",
        parts,
    )
    return [(x.dtype, tuple(-(-(stop - start) // step) for start, stop, step, _ in parts))]


def _slice(arrays: Arrays, a: Attributes) -> list[Array]:
    return [arrays[0][tuple(map(slice, a["starts"], a["stops"], a["steps"]))]]


def _infer_concat(values: Values, a: Attributes) -> list[Type]:
    first, axis = values[0], a["axis"]
    expect(0 <= axis < len(first.shape), f"an axis in [0, {len(first.shape)})", axis)
    for value in values[1:]:
        same = value.dtype == first.dtype and len(value.shape) == len(first.shape)
        rest = [s for i, s in enumerate(value.shape) if i != axis]
        expect(
            same and rest == [s for i, s in enumerate(first.shape) if i != axis],
            f"tensors like {first} but for axis {axis}",
            value,
        )
    total = sum(value.shape[axis] for value in values)
    return [(first.dtype, (*first.shape[:axis], total, *first.shape[axis + 1 :]))]


def _infer_pad(values: Values, a: Attributes) -> list[Type]:
    (x,) = values
    lengths = [len(a["before"]), len(a["after"])]
    expect(lengths == [len(x.shape)] * 2, f"{len(x.shape)} pads on either side", lengths)
    parts = list(zip(a["before"], x.shape, a["after"], strict=True))
    expect(all(before >= 0 and after >= 0 for before, _, after in parts), "pads >= 0", parts)
    low, high = limits(x.dtype)
    expect(low <= a["code"] <= high, f"a code of {x.dtype}", a["code"])
    return [(x.dtype, tuple(map(sum, parts)))]


def _pad(arrays: Arrays, a: Attributes) -> list[Array]:
    widths = list(zip(a["before"], a["after"], strict=True))
    return [np.pad(arrays[0], widths, constant_values=a["code"])]


def _infer_gather(values: Values, a: Attributes) -> list[Type]:
    x, indices = values
    axis = a["axis"]
    expect(0 <= axis < len(x.shape), f"an axis in [0, {len(x.shape)})", axis)
    fits = len(indices.shape) == 1 and indices.dtype in ACCUMULATORS
    expect(fits, "int32 or int64 indices [K]", indices)
    expect(x.shape[axis] > 0, f"elements along axis {axis}", x)
    return [(x.dtype, (*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :]))]


def _gather(arrays: Arrays, a: Attributes) -> list[Array]:
    x, indices = arrays
    return [np.take(x, places(indices, x.shape[a["axis"]]), a["axis"])]


def places(indices: Array, n: int) -> Array:
    """Indices of an axis of n as positions from 0 to n - 1 (docs/spec/graph.md section 3)."""
    return np.clip(np.where(indices < 0, indices + n, indices), 0, n - 1)


def _infer_scatter(values: Values, a: Attributes) -> list[Type]:
    x, update, starts = values
    expect(0 < a["axis"] < len(x.shape), f"an axis in [1, {len(x.shape)})", a["axis"])
    expect(update.dtype == x.dtype, f"an update of {x.dtype}", update)
    fits = starts.dtype in ACCUMULATORS and x.shape[a["axis"]] > 0
    expect(fits, "int32 or int64 places, of at least one", starts)
    check_written(x.shape, update.shape, starts.shape, a["axis"])
    return [(x.dtype, x.shape)]


def _movement(*record: Any) -> None:
    register_integer(*record, Trait.MOVEMENT)


def _indexed(*record: Any) -> None:
    register_integer(*record, Trait.MOVEMENT, Trait.INDEXED)


_movement(
    "reshape", (1, 1), {"shape": REQUIRED}, _infer_reshape, lambda v, a: [v[0].reshape(a["shape"])]
)
_movement(
    "transpose",
    (1, 1),
    {"perm": REQUIRED},
    _infer_transpose,
    lambda v, a: [np.ascontiguousarray(v[0].transpose(a["perm"]))],
)
_movement(
    "expand",
    (1, 1),
    {"shape": REQUIRED},
    _infer_expand,
    lambda v, a: [np.broadcast_to(v[0], a["shape"]).copy()],
)
_movement(
    "slice",
    (1, 1),
    {"starts": REQUIRED, "stops": REQUIRED, "steps": REQUIRED},
    _infer_slice,
    _slice,
)
_movement(
    "concat",
    (1, None),
    {"axis": REQUIRED},
    _infer_concat,
    lambda v, a: [np.concatenate(list(v), a["axis"])],
)
_movement("pad", (1, 1), {"before": REQUIRED, "after": REQUIRED, "code": 0}, _infer_pad, _pad)
_indexed("gather", (2, 2), {"axis": 0}, _infer_gather, _gather)
_indexed(
    "scatter",
    (3, 3),
    {"axis": REQUIRED},
    _infer_scatter,
    lambda v, a: [written(v[0], v[1], v[2], a["axis"])],
)
