"""Layers: convolutions, products, normalisation, softmax, pools."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch

from samebits.ir.foreign import Result
from samebits.pytorch.aten.shape import nearest
from samebits.pytorch.call import AtenCall, aten, binary32

# --- products ---------------------------------------------------------------------------------


@aten("conv1d", "conv2d", "conv3d", "convolution")
def _conv(call: AtenCall) -> Result:
    """Convolution over one to three spatial axes, which some operators call transposed."""
    x, w = call.tensor("input"), call.tensor("weight")
    rank = call.rank_of(w) - 2
    if call.rank_of(x) != rank + 2:
        raise call.unsupported(f"an input of rank {rank + 2}", list(call.shape_of(x)))
    if call.get("transposed"):
        return _conv_transpose(call)
    strides, dilations = (call.integers(name, rank) for name in ("stride", "dilation"))
    inputs = [x, w] + [b for b in (call.tensor("bias"),) if b]
    return call.emit(
        "Conv",
        *inputs,
        strides=strides,
        pads=_padding(call, call.shape_of(w)[2:], dilations),
        dilations=dilations,
        group=call["groups"],
    )


def _padding(call: AtenCall, kernel: Sequence[int], dilations: Sequence[int]) -> tuple[int, ...]:
    if call["padding"] == "valid":
        return (0,) * (2 * len(kernel))
    if call["padding"] == "same":  # the odd one goes to the end
        totals = [d * (k - 1) for d, k in zip(dilations, kernel, strict=True)]
        return (*(total // 2 for total in totals), *(total - total // 2 for total in totals))
    return call.integers("padding", len(kernel)) * 2


@aten("conv_transpose1d", "conv_transpose2d", "conv_transpose3d")
def _conv_transpose(call: AtenCall) -> Result:
    w = call.tensor("weight")
    rank = call.rank_of(w) - 2
    inputs = [call.tensor("input"), w] + [b for b in (call.tensor("bias"),) if b]
    return call.emit(
        "ConvTranspose",
        *inputs,
        strides=call.integers("stride", rank),
        pads=call.integers("padding", rank) * 2,
        dilations=call.integers("dilation", rank),
        output_padding=call.integers("output_padding", rank),
        group=call["groups"],
    )


def _transposed(call: AtenCall, name: str) -> str:
    array = call.builder.constants.get(name)
    if array is not None:
        return call.builder.constant(f"{name}.transposed", array.T)
    return call.emit("Transpose", name, perm=(1, 0))


@aten("linear")
def _linear(call: AtenCall) -> Result:
    x, w, b = call.tensor("input"), call.tensor("weight"), call.tensor("bias")
    if call.rank_of(x) == 2 and call.rank_of(w) == 2:
        return call.emit("Gemm", *([x, w, b] if b else [x, w]), transB=1)
    product = call.emit("MatMul", x, _transposed(call, w) if call.rank_of(w) == 2 else w)
    return call.emit("Add", product, b) if b else product


@aten("addmm")
def _addmm(call: AtenCall) -> Result:
    factors = {"alpha": float(call["alpha"]), "beta": float(call["beta"])}
    names = [call.tensor(name) for name in ("mat1", "mat2", "self")]
    return call.emit("Gemm", *names, **factors)


@aten("mm", "bmm")
def _mm(call: AtenCall) -> Result:
    return call.emit("MatMul", call.tensor("self"), call.tensor("mat2"))


@aten("matmul")
def _matmul(call: AtenCall) -> Result:
    return call.emit("MatMul", call.tensor("self"), call.tensor("other"))


# --- normalisation and softmax ----------------------------------------------------------------


def _ones(call: AtenCall, name: str, like: str, count: int, value: float = 1.0) -> str:
    given = call.tensor(name)
    return given or call.constant(np.full(count, value, call.dtype_of(like)))


@aten("batch_norm", "_native_batch_norm_legit_no_training")
def _batch_norm(call: AtenCall) -> Result:
    x = call.tensor("input")
    mean, variance = call.tensor("running_mean"), call.tensor("running_var")
    if call.get("training") or not mean or not variance:
        raise call.unsupported("running statistics", "statistics of the batch")
    channels = call.shape_of(x)[1]
    scale, bias = _ones(call, "weight", x, channels), _ones(call, "bias", x, channels, 0.0)
    y = call.emit(
        "BatchNormalization", x, scale, bias, mean, variance, epsilon=binary32(call["eps"])
    )
    return y if isinstance(call.meta, torch.Tensor) else (y, "", "")


@aten("instance_norm")
def _instance_norm(call: AtenCall) -> Result:
    if not call["use_input_stats"]:
        raise call.unsupported("statistics of the input", "running statistics")
    x = call.tensor("input")
    channels = call.shape_of(x)[1]
    scale, bias = _ones(call, "weight", x, channels), _ones(call, "bias", x, channels, 0.0)
    return call.emit("InstanceNormalization", x, scale, bias, epsilon=binary32(call["eps"]))


@aten("layer_norm", "native_layer_norm")
def _layer_norm(call: AtenCall) -> Result:
    x, shape = call.tensor("input"), tuple(call["normalized_shape"])
    scale = call.tensor("weight") or call.constant(np.ones(shape, call.dtype_of(x)))
    inputs = [x, scale] + [b for b in (call.tensor("bias"),) if b]
    axis = call.rank_of(x) - len(shape)
    y = call.emit("LayerNormalization", *inputs, axis=axis, epsilon=binary32(call["eps"]))
    return y if isinstance(call.meta, torch.Tensor) else (y, "", "")


@aten("rms_norm", "_fused_rms_norm")
def _rms_norm(call: AtenCall) -> Result:
    """Without an epsilon, that of the type."""
    x, shape = call.tensor("input"), tuple(call["normalized_shape"])
    scale = call.tensor("weight") or call.constant(np.ones(shape, call.dtype_of(x)))
    given = call.get("eps")
    epsilon = float(np.finfo(call.dtype_of(x)).eps) if given is None else given
    axis = call.rank_of(x) - len(shape)
    y = call.emit("RMSNormalization", x, scale, axis=axis, epsilon=binary32(epsilon))
    return y if isinstance(call.meta, torch.Tensor) else (y, "")


@aten("native_group_norm")
def _group_norm(call: AtenCall) -> Result:
    x = call.tensor("input")
    channels = call.shape_of(x)[1]
    scale, bias = _ones(call, "weight", x, channels), _ones(call, "bias", x, channels, 0.0)
    how = {"num_groups": call["group"], "epsilon": binary32(call["eps"])}
    return call.emit("GroupNormalization", x, scale, bias, **how), "", ""


@aten("softmax", "_softmax", "_safe_softmax", "log_softmax", "_log_softmax")
def _softmax(call: AtenCall) -> Result:
    """_safe_softmax gives 0 for a row of -inf alone, of which graphs, as softmax, have NaN."""
    x = call.cast(call.tensor("self"), call.out_dtype)
    op = "LogSoftmax" if "log_softmax" in call.op else "Softmax"
    return call.emit(op, x, axis=call.axis("dim", call.rank_of(x)))


# --- pools ------------------------------------------------------------------------------------


def _window(call: AtenCall, rank: int) -> dict[str, tuple[int, ...]]:
    kernel = call.integers("kernel_size", rank)
    strides = call.integers("stride", rank) if call["stride"] else kernel
    return {
        "kernel_shape": kernel,
        "strides": strides,
        "pads": call.integers("padding", rank) * 2,
        "dilations": call.integers("dilation", rank)
        if "dilation" in call.arguments
        else (1,) * rank,
    }


def _spatial(call: AtenCall, name: str) -> int:
    """The spatial rank of a pool, from the operator's name; the input has a batch axis."""
    rank = int(call.op.split("pool")[1][0])
    if call.rank_of(name) != rank + 2:
        raise call.unsupported(f"an input of rank {rank + 2}", list(call.shape_of(name)))
    return rank


@aten(
    *("max_pool1d", "max_pool2d", "max_pool3d"),
    *("max_pool2d_with_indices", "max_pool3d_with_indices"),
)
def _max_pool(call: AtenCall) -> Result:
    x = call.tensor("self")
    window = _window(call, _spatial(call, x))
    y = call.emit("MaxPool", x, **window, ceil_mode=int(call["ceil_mode"]))
    return (y, "") if "indices" in call.op else y


@aten("avg_pool1d", "avg_pool2d", "avg_pool3d")
def _avg_pool(call: AtenCall) -> Result:
    x = call.tensor("self")
    window = _window(call, _spatial(call, x))
    if call.get("divisor_override") is not None:
        raise call.unsupported("no divisor_override", call["divisor_override"])
    return call.emit(
        "AveragePool",
        x,
        **window,
        ceil_mode=int(call["ceil_mode"]),
        count_include_pad=int(call["count_include_pad"]),
    )


@aten(
    *("adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d"),
    *("_adaptive_avg_pool2d", "_adaptive_avg_pool3d"),
    *("adaptive_max_pool1d", "adaptive_max_pool2d", "adaptive_max_pool3d"),
)
def _adaptive_pool(call: AtenCall) -> Result:
    """A pool where all windows are equal, copies of pixels where each holds one, else a mean or
    maximum for every window."""
    x = call.tensor("self")
    rank = _spatial(call, x)
    size, out = call.shape_of(x)[2:], call.integers("output_size", rank)
    kind = "Max" if "max_pool" in call.op else "Average"
    if min(out) < 1:
        raise call.unsupported("sizes of at least 1", out)
    if out == (1,) * rank:
        y = call.emit(f"Global{kind}Pool", x)
    elif not any(n % m for n, m in zip(size, out, strict=True)):
        kernel = tuple(n // m for n, m in zip(size, out, strict=True))
        pads, dilations = (0,) * (2 * rank), (1,) * rank
        y = call.emit(
            f"{kind}Pool", x, kernel_shape=kernel, strides=kernel, pads=pads, dilations=dilations
        )
    elif not any(m % n for n, m in zip(size, out, strict=True)):
        y = nearest(call, x, (*call.shape_of(x)[:2], *out))
    else:
        y = _windows(call, x, out, "ReduceMax" if kind == "Max" else "ReduceMean")
    return y if isinstance(call.meta, torch.Tensor) else (y, "")


MOST_WINDOWS = 4096


def _windows(call: AtenCall, x: str, out: tuple[int, ...], op: str) -> str:
    """Window i of m along an axis of n goes from floor(i * n / m) to ceil((i + 1) * n / m)."""
    if math.prod(out) > MOST_WINDOWS:
        raise call.unsupported(f"at most {MOST_WINDOWS} windows of several sizes", math.prod(out))
    axes = tuple(range(2, 2 + len(out)))
    size = call.shape_of(x)[2:]
    made = []
    for place in np.ndindex(*out):
        bounds = list(zip(place, size, out, strict=True))
        starts = tuple(i * n // m for i, n, m in bounds)
        ends = tuple(-(-(i + 1) * n // m) for i, n, m in bounds)
        steps = (1,) * len(out)
        part = call.emit("Slice", x, starts=starts, ends=ends, steps=steps, axes=axes)
        made.append(call.emit(op, part, axes=axes, keepdims=1))
    return call.reshape(call.emit("Concat", *made, axis=-1), (*call.shape_of(x)[:2], *out))
