"""Reductions and data movement."""

from __future__ import annotations

import math
from fractions import Fraction

from samebits.ir.foreign import Result
from samebits.pytorch.call import AtenCall, aten, binary32

# --- reductions -------------------------------------------------------------------------------

_REDUCTIONS = {
    "mean": "ReduceMean", "sum": "ReduceSum", "amax": "ReduceMax", "amin": "ReduceMin",
    "prod": "ReduceProd", "logsumexp": "ReduceLogSumExp",
}  # fmt: skip


@aten(*_REDUCTIONS)
def _reduce(call: AtenCall) -> Result:
    op = _REDUCTIONS[call.op]
    x = call.cast(call.tensor("self"), call.out_dtype)
    axes = call.axes("dim", call.rank_of(x))
    return call.emit(op, x, axes=axes, keepdims=int(bool(call.get("keepdim"))))


@aten("all", "any")
def _all(call: AtenCall) -> Result:
    x = call.tensor("self")
    op = "ReduceMin" if call.op == "all" else "ReduceMax"
    truth = call.cast(x, "bool")
    axes = call.axes("dim", call.rank_of(x))
    return call.emit(op, truth, axes=axes, keepdims=int(bool(call.get("keepdim"))))


@aten("var", "std")
def _variance(call: AtenCall) -> Result:
    """The sum of squared deviations from the mean, over the count less `correction` (or 1)."""
    x = call.tensor("self")
    shape, dtype = call.shape_of(x), call.dtype_of(x)
    axes = call.axes("dim", len(shape))
    keep = int(bool(call.get("keepdim")))
    correction = call.get("correction", int(bool(call.get("unbiased", True))))
    count = math.prod(shape[axis] for axis in axes) - (1 if correction is None else correction)
    if count <= 0:
        raise call.unsupported("more elements than the correction", count)
    centred = call.emit("Sub", x, call.emit("ReduceMean", x, axes=axes, keepdims=1))
    squares = call.emit("ReduceSumSquare", centred, axes=axes, keepdims=keep)
    y = call.emit("Div", squares, call.number(count, dtype))
    return call.emit("Sqrt", y) if call.op == "std" else y


@aten("linalg_vector_norm")
def _norm(call: AtenCall) -> Result:
    op = {1: "ReduceL1", 2: "ReduceL2"}.get(call["ord"])
    if op is None:
        raise call.unsupported("a norm of order 1 or 2", call["ord"])
    x = call.cast(call.tensor("self"), call.out_dtype)
    return call.emit(op, x, axes=call.axes("dim", call.rank_of(x)), keepdims=int(call["keepdim"]))


@aten("max", "min")
def _extreme(call: AtenCall) -> Result:
    kind = "Max" if call.op == "max" else "Min"
    if "other" in call.arguments:
        return call.emit(kind, call.tensor("self"), call.tensor("other"))
    x = call.tensor("self")
    rank = call.rank_of(x)
    keep = int(bool(call.get("keepdim")))
    y = call.emit(f"Reduce{kind}", x, axes=call.axes("dim", rank), keepdims=keep)
    if "dim" not in call.arguments:
        return y
    return y, call.emit(f"Arg{kind}", x, axis=call.axis("dim", rank), keepdims=keep)


@aten("argmax", "argmin")
def _arg(call: AtenCall) -> Result:
    x = call.tensor("self")
    op = "ArgMax" if "argmax" in call.op else "ArgMin"
    if call["dim"] is None:
        x = call.reshape(x, (math.prod(call.shape_of(x)),))
        return call.reshape(call.emit(op, x, axis=0, keepdims=0), call.out_shape)
    axis = call.axis("dim", call.rank_of(x))
    return call.emit(op, x, axis=axis, keepdims=int(call["keepdim"]))


# --- data movement ----------------------------------------------------------------------------


@aten("reshape", "view", "_unsafe_view", "flatten", "unflatten", "squeeze", "view_copy")
def _reshape(call: AtenCall) -> Result:
    if call.get("dtype") is not None:
        raise call.unsupported("a view of the same type", call["dtype"])
    return call.reshape(call.tensor("self"), call.out_shape)


@aten("unsqueeze")
def _unsqueeze(call: AtenCall) -> Result:
    x = call.tensor("self")
    return call.emit("Unsqueeze", x, axes=(call.axis("dim", call.rank_of(x) + 1),))


@aten("permute")
def _permute(call: AtenCall) -> Result:
    x = call.tensor("self")
    rank = call.rank_of(x)
    return call.emit("Transpose", x, perm=tuple(int(d) % rank for d in call["dims"]))


@aten("transpose", "t")
def _transpose(call: AtenCall) -> Result:
    x = call.tensor("self")
    rank = call.rank_of(x)
    perm = list(range(rank))
    if rank >= 2:
        named = "dim0" in call.arguments
        a, b = (call.axis(k, rank) for k in ("dim0", "dim1")) if named else (0, 1)
        perm[a], perm[b] = perm[b], perm[a]
    return call.emit("Transpose", x, perm=tuple(perm))


@aten("cat", "concat")
def _cat(call: AtenCall) -> Result:
    names = [call.cast(name, call.out_dtype) for name in call.tensors("tensors")]
    kept = [name for name in names if call.shape_of(name) != (0,)]  # torch skips empty vectors
    return call.emit("Concat", *kept, axis=call.axis("dim", len(call.out_shape)))


@aten("stack")
def _stack(call: AtenCall) -> Result:
    axis = call.axis("dim", len(call.out_shape))
    names = [call.emit("Unsqueeze", name, axes=(axis,)) for name in call.tensors("tensors")]
    return call.emit("Concat", *names, axis=axis)


@aten("split", "split_with_sizes", "chunk")
def _split(call: AtenCall) -> Result:
    x = call.tensor("self")
    axis = call.axis("dim", call.rank_of(x))
    sizes = tuple(int(part.shape[axis]) for part in call.meta)
    return call.emit_all("Split", x, axis=axis, sizes=sizes)


@aten("unbind")
def _unbind(call: AtenCall) -> Result:
    x = call.tensor("self")
    axis = call.axis("dim", call.rank_of(x))
    parts = call.emit_all("Split", x, axis=axis, sizes=(1,) * call.shape_of(x)[axis])
    return tuple(call.emit("Squeeze", part, axes=(axis,)) for part in parts)


@aten("slice")
def _slice(call: AtenCall) -> Result:
    x = call.tensor("self")
    axis = call.axis("dim", call.rank_of(x))
    span = slice(call["start"], call["end"], call["step"]).indices(call.shape_of(x)[axis])
    start, stop, step = span
    return call.emit(
        "Slice", x, starts=(start,), ends=(max(start, stop),), steps=(step,), axes=(axis,)
    )


@aten("narrow")
def _narrow(call: AtenCall) -> Result:
    x, start = call.tensor("self"), call["start"]
    axis = call.axis("dim", call.rank_of(x))
    start = start % call.shape_of(x)[axis] if start < 0 else start
    ends = (start + call["length"],)
    return call.emit("Slice", x, starts=(start,), ends=ends, steps=(1,), axes=(axis,))


@aten("select")
def _select(call: AtenCall) -> Result:
    x = call.tensor("self")
    axis = call.axis("dim", call.rank_of(x))
    index = call["index"] % call.shape_of(x)[axis]
    part = call.emit("Slice", x, starts=(index,), ends=(index + 1,), steps=(1,), axes=(axis,))
    return call.emit("Squeeze", part, axes=(axis,))


@aten("flip")
def _flip(call: AtenCall) -> Result:
    x = call.tensor("self")
    axes = tuple(int(d) % call.rank_of(x) for d in call["dims"])
    starts, ends = ((end,) * len(axes) for end in (-1, -(2**31)))
    return call.emit("Slice", x, starts=starts, ends=ends, steps=starts, axes=axes)


@aten("expand", "broadcast_to", "expand_as")
def _expand(call: AtenCall) -> Result:
    x = call.tensor("self")
    return x if call.shape_of(x) == call.out_shape else call.emit("Expand", x, shape=call.out_shape)


@aten("repeat", "tile")
def _repeat(call: AtenCall) -> Result:
    x = call.tensor("self")
    repeats = tuple(call["repeats" if "repeats" in call.arguments else "dims"])
    rank = max(call.rank_of(x), len(repeats))
    x = call.reshape(x, (*[1] * (rank - call.rank_of(x)), *call.shape_of(x)))
    return call.emit("Tile", x, repeats=(*[1] * (rank - len(repeats)), *repeats))


_MODES = {"constant": "constant", "reflect": "reflect", "replicate": "edge", "circular": "wrap"}


@aten(
    *("pad", "constant_pad_nd", "reflection_pad1d", "reflection_pad2d", "reflection_pad3d"),
    *("replication_pad1d", "replication_pad2d", "replication_pad3d"),
)
def _pad(call: AtenCall) -> Result:
    x, name = call.tensor("self"), call.op
    given = list(call["pad" if "pad" in call.arguments else "padding"])
    rank = call.rank_of(x)
    before, after = [0] * rank, [0] * rank
    for index in range(len(given) // 2):  # pairs, from the last axis on
        before[rank - 1 - index], after[rank - 1 - index] = given[2 * index : 2 * index + 2]
    kind = (
        "reflect" if "reflection" in name else "replicate" if "replication" in name else "constant"
    )
    mode = _MODES[call.get("mode", kind)]
    value = binary32(float(call.get("value") or 0.0))
    return call.emit("Pad", x, pads=(*before, *after), mode=mode, value=value)


@aten("upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d")
def _upsample(call: AtenCall) -> Result:
    """Output i reads floor(i / scale); torch takes the scale it is given, else out / in."""
    x = call.tensor("input" if "input" in call.arguments else "self")
    return nearest(call, x, call.out_shape, _scales(call, call.shape_of(x)))


@aten("upsample_linear1d", "upsample_bilinear2d", "upsample_bicubic2d", "_upsample_bilinear2d_aa")
@aten("_upsample_bicubic2d_aa")
def _interpolate(call: AtenCall) -> Result:
    """Linear or cubic interpolation, between the middles of pixels or from corner to corner."""
    x = call.tensor("input" if "input" in call.arguments else "self")
    corners = bool(call.get("align_corners"))
    return call.emit(
        "Interpolate",
        x,
        sizes=call.out_shape,
        scales=None if corners else _scales(call, call.shape_of(x)),
        mode="cubic" if "cubic" in call.op else "linear",
        coordinate_transformation_mode="align_corners" if corners else "half_pixel",
        cubic_coeff_a=-0.5 if "_aa" in call.op else -0.75,
        antialias=int("_aa" in call.op),
        exclude_outside=int("_aa" in call.op),
    )


def _scales(call: AtenCall, size: tuple[int, ...]) -> tuple[Fraction, ...] | None:
    """The scales that torch is given, None where they are those of the sizes."""
    out = call.out_shape
    given = call.get("scale_factors") or [call.get(f"scales_{k}") for k in "dhw"[5 - len(size) :]]
    if call.get("scales") is not None:
        given = [call["scales"]]
    if any(scale is None for scale in given):
        return None
    scales = (Fraction(1), Fraction(1), *(Fraction(float(scale)) for scale in given))
    ratios = [Fraction(a, b) for a, b in zip(out, size, strict=True)]
    return None if list(scales) == ratios else scales


def nearest(
    call: AtenCall, x: str, sizes: tuple[int, ...], scales: tuple[Fraction, ...] | None = None
) -> str:
    """Output i reads floor(i / scale), the scale being that of the sizes unless one is given."""
    return call.emit(
        "Resize",
        x,
        sizes=sizes,
        scales=scales,
        mode="nearest",
        coordinate_transformation_mode="asymmetric",
        nearest_mode="floor",
    )


@aten("pixel_shuffle")
def _pixel_shuffle(call: AtenCall) -> Result:
    return call.emit(
        "DepthToSpace", call.tensor("self"), blocksize=call["upscale_factor"], mode="CRD"
    )
