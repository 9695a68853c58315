"""Convolutions, matrix products and pools."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from samebits.errors import InputError, UnsupportedError
from samebits.onnx.reader.step import Result, Step, onnx_op
from samebits.onnx.reader.tensors import MAX_ELEMENTS

MAX_KERNEL = 2**24  # taps of one window
Window = dict[str, tuple[int, ...]]
_AUTO_PADS = ("NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID")


def _spatial(step: Step, name: str, count: int, default: int) -> tuple[int, ...]:
    values = step.ints(name) or (default,) * count
    if len(values) != count or any(not 1 <= value < 2**31 for value in values):
        raise InputError(f"expected {count} positive numbers as {name}, found {list(values)}")
    return values


def window(step: Step, kernel: Sequence[int], size: Sequence[int], dilated: bool = True) -> Window:
    """Strides, dilations and explicit pads; `size` is that of the image."""
    count = len(size)
    if len(kernel) != count or any(k < 1 for k in kernel) or math.prod(kernel) > MAX_KERNEL:
        raise InputError(f"expected a kernel of {count} sizes from 1, found {list(kernel)}")
    strides = _spatial(step, "strides", count, 1)
    dilations = _spatial(step, "dilations", count, 1) if dilated else (1,) * count
    pads = step.ints("pads") or (0,) * (2 * count)
    auto = step.string("auto_pad", "NOTSET", _AUTO_PADS)
    if auto == "VALID":
        pads = (0,) * (2 * count)
    elif auto != "NOTSET":
        totals = [
            max((-(-n // s) - 1) * s + d * (k - 1) + 1 - n, 0)
            for n, s, d, k in zip(size, strides, dilations, kernel, strict=True)
        ]
        pads = _halves(totals, auto)
    if len(pads) != 2 * count or any(not 0 <= pad < 2**31 for pad in pads):
        raise InputError(f"expected {2 * count} pads from 0, found {list(pads)}")
    padded = math.prod(n + pads[i] + pads[i + count] for i, n in enumerate(size))
    if padded > MAX_ELEMENTS:
        raise InputError(f"expected a padded image of at most 2**28 positions, found {padded}")
    return {"strides": strides, "pads": pads, "dilations": dilations}


def _halves(totals: Sequence[int], auto: str) -> tuple[int, ...]:
    """Both pads of each axis; SAME_LOWER puts the odd one before."""
    before = tuple((t + (auto == "SAME_LOWER")) // 2 for t in totals)
    return before + tuple(t - b for t, b in zip(totals, before, strict=True))


def kernel_of(step: Step, weights: Sequence[int], count: int) -> tuple[int, ...]:
    """The kernel's sizes: those of the weights, which the attribute repeats."""
    kernel = tuple(weights[2:])
    if len(weights) != count + 2:
        raise InputError(f"expected weights of rank {count + 2}, found shape {list(weights)}")
    stated = step.ints("kernel_shape", kernel)
    if stated != kernel:
        raise InputError(f"expected kernel_shape {list(kernel)} as the weights, found {stated}")
    return kernel


def image(step: Step, index: int = 0) -> tuple[int, ...]:
    """Sizes of the image of [N, C, ...]."""
    if step.rank(index) < 3:
        raise InputError(f"expected images [N, C, ...], found shape {list(step.shape(index))}")
    return step.shape(index)[2:]


def conv_attributes(step: Step, weight: int) -> dict[str, tuple[int, ...] | int]:
    """All attributes of Conv, with explicit pads; `weight` is the index of that input."""
    size = image(step)
    kernel = kernel_of(step, step.shape(weight), len(size))
    group = step.int_("group", 1)
    if not 1 <= group < 2**31:
        raise InputError(f"expected a positive group, found {group}")
    return {**window(step, kernel, size), "group": group}


@onnx_op("Conv")
def conv(step: Step) -> Result:
    """Convolution over any number of spatial axes."""
    return step.out("Conv", list(step.inputs), **conv_attributes(step, 1))


@onnx_op("ConvTranspose")
def conv_transpose(step: Step) -> Result:
    """Pads may follow from auto_pad or output_shape."""
    size = image(step)
    count = len(size)
    kernel = kernel_of(step, step.shape(1), count)
    shape = window(step, kernel, size)
    strides, dilations, pads = shape["strides"], shape["dilations"], shape["pads"]
    extra = step.ints("output_padding") or (0,) * count
    wished = step.ints("output_shape")
    auto = step.string("auto_pad", "NOTSET", _AUTO_PADS)
    if len(extra) != count or any(not 0 <= e < 2**31 for e in extra):
        raise InputError(f"expected {count} numbers from 0 as output_padding, found {extra}")
    full = [
        (n - 1) * s + d * (k - 1) + 1 + e
        for n, s, d, k, e in zip(size, strides, dilations, kernel, extra, strict=True)
    ]
    if wished:
        wished = wished[2:] if len(wished) == count + 2 else wished
    elif auto.startswith("SAME"):
        wished = tuple(n * s for n, s in zip(size, strides, strict=True))
    if wished:
        if len(wished) != count:
            raise InputError(f"expected {count} sizes as output_shape, found {list(wished)}")
        totals = [f - w for f, w in zip(full, wished, strict=True)]
        # More than the full result is asked for: zeros behind it.
        extra = tuple(e + max(-t, 0) for e, t in zip(extra, totals, strict=True))
        # The standard puts the odd pad behind for SAME_UPPER only.
        upper = auto == "SAME_UPPER"
        pads = _halves([max(t, 0) for t in totals], "SAME_UPPER" if upper else "SAME_LOWER")
    group = step.int_("group", 1)
    if not 1 <= group < 2**31:
        raise InputError(f"expected a positive group, found {group}")
    return step.out(
        "ConvTranspose",
        list(step.inputs),
        strides=strides,
        pads=pads,
        dilations=dilations,
        group=group,
        output_padding=extra,
    )


@onnx_op("Gemm")
def gemm(step: Step) -> Result:
    """alpha * A' * B' + beta * C."""
    if step.opset < 7:
        step.ignore("broadcast")
    return step.out(
        "Gemm",
        list(step.inputs),
        alpha=step.float_("alpha", 1.0),
        beta=step.float_("beta", 1.0),
        transA=int(step.flag("transA", False)),
        transB=int(step.flag("transB", False)),
    )


@onnx_op("MatMul")
def matmul(step: Step) -> Result:
    """Matrix product, leading axes broadcast."""
    return step.out("MatMul", step.given())


def pool_attributes(step: Step, dilated: bool = True) -> dict[str, tuple[int, ...] | int]:
    """What every pool has: kernel, strides, pads, dilations, ceil_mode."""
    size = image(step)
    kernel = step.ints("kernel_shape")
    if not kernel:
        raise InputError("expected an attribute kernel_shape, found none")
    shape = window(step, kernel, size, dilated)
    return {**shape, "kernel_shape": tuple(kernel), "ceil_mode": int(step.flag("ceil_mode", False))}


@onnx_op("MaxPool")
def max_pool(step: Step) -> Result:
    """Maxima; their indices are not supported."""
    step.ignore("storage_order")  # of the indices
    return step.out("MaxPool", [step.input(0)], **pool_attributes(step))


@onnx_op("AveragePool")
def average_pool(step: Step) -> Result:
    """Means, over the image alone or with the pads."""
    attributes = pool_attributes(step)
    include = int(step.flag("count_include_pad", False))
    return step.out("AveragePool", [step.input(0)], count_include_pad=include, **attributes)


@onnx_op("LpPool")
def lp_pool(step: Step) -> Result:
    """The norm of order p: a power of the mean of powers times the number of taps."""
    p = step.int_("p", 2)
    attributes = pool_attributes(step)
    if attributes["ceil_mode"]:
        raise UnsupportedError("expected ceil_mode 0 of LpPool, found 1")
    if not 1 <= p <= 64:
        raise UnsupportedError(f"expected p from 1 to 64, found {p}")
    kernel = attributes["kernel_shape"]
    assert isinstance(kernel, tuple)
    dtype = np.dtype(step.value(0).dtype)
    x = step.emit("Abs", [step.input(0)])
    x = step.emit("Pow", [x, step.array(np.array(p, dtype))])
    x = step.emit("AveragePool", [x], count_include_pad=1, **attributes)
    x = step.emit("Mul", [x, step.array(np.array(math.prod(kernel), dtype))])
    return step.out("Pow", [x, step.array(np.array(1 / p, dtype))])


@onnx_op("GlobalAveragePool", "GlobalMaxPool")
def global_pool(step: Step) -> Result:
    """Over the whole image."""
    return step.out(step.node.op_type, [step.input(0)])
