"""Convolutions, matrix products and pools."""

from __future__ import annotations

import math
from collections.abc import Sequence

from samebits.errors import InputError, UnsupportedError
from samebits.onnx.reader.node import OnnxNode, Result, onnx_op
from samebits.onnx.reader.tensors import MAX_ELEMENTS

MAX_KERNEL = 2**24  # taps of one window
Window = dict[str, tuple[int, ...]]
_AUTO_PADS = ("NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID")


def _spatial(node: OnnxNode, name: str, count: int) -> tuple[int, ...]:
    values = node.ints(name) or (1,) * count
    if len(values) != count or any(not 1 <= value < 2**31 for value in values):
        raise InputError(f"expected {count} positive numbers as {name}, found {list(values)}")
    return values


def _window(node: OnnxNode, kernel: Sequence[int], size: Sequence[int]) -> Window:
    """Strides, dilations and explicit pads of windows of `kernel` on an image of `size`.

    auto_pad SAME_* pads so that there are ceil(n / stride) windows along an axis of n positions.
    Raises InputError for numbers out of range: what is computed from them must stay bounded.
    """
    count = len(size)
    if len(kernel) != count or any(k < 1 for k in kernel) or math.prod(kernel) > MAX_KERNEL:
        raise InputError(f"expected a kernel of {count} sizes from 1, found {list(kernel)}")
    strides = _spatial(node, "strides", count)
    dilations = _spatial(node, "dilations", count)
    pads = node.ints("pads") or (0,) * (2 * count)
    auto = node.string("auto_pad", "NOTSET", _AUTO_PADS)
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


def _kernel(node: OnnxNode, weights: Sequence[int], count: int) -> tuple[int, ...]:
    """Sizes of the kernel: those of the weights behind two axes of channels, which an attribute may
    repeat."""
    kernel = tuple(weights[2:])
    if len(weights) != count + 2:
        raise InputError(f"expected weights of rank {count + 2}, found shape {list(weights)}")
    stated = node.ints("kernel_shape", kernel)
    if stated != kernel:
        raise InputError(f"expected kernel_shape {list(kernel)} as the weights, found {stated}")
    return kernel


def _image(node: OnnxNode) -> tuple[int, ...]:
    """Sizes of the image of input 0 [N, C, ...]."""
    if node.rank() < 3:
        raise InputError(f"expected images [N, C, ...], found shape {list(node.shape())}")
    return node.shape()[2:]


def _group(node: OnnxNode) -> int:
    group = node.int_("group", 1)
    if not 1 <= group < 2**31:
        raise InputError(f"expected a positive group, found {group}")
    return group


def conv_attributes(node: OnnxNode, weight: int) -> dict[str, tuple[int, ...] | int]:
    """All attributes of Conv, with explicit pads; `weight` is the index of that input."""
    size = _image(node)
    kernel = _kernel(node, node.shape(weight), len(size))
    return {**_window(node, kernel, size), "group": _group(node)}


@onnx_op("Conv")
def _conv(node: OnnxNode) -> Result:
    """Convolution over any number of spatial axes."""
    return node.out("Conv", *node.inputs, **conv_attributes(node, 1))


@onnx_op("ConvTranspose")
def _conv_transpose(node: OnnxNode) -> Result:
    """Transposed convolution; its pads may follow from auto_pad or output_shape.

    Along an axis of n positions the full result has (n - 1) * stride + dilation * (kernel - 1) + 1
    + output_padding positions, of which the pads cut off some at both ends.
    """
    size = _image(node)
    count = len(size)
    kernel = _kernel(node, node.shape(1), count)
    window = _window(node, kernel, size)
    strides, dilations = window["strides"], window["dilations"]
    extra = node.ints("output_padding") or (0,) * count
    wished = node.ints("output_shape")
    auto = node.string("auto_pad", "NOTSET", _AUTO_PADS)
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
        window["pads"] = _halves(
            [max(t, 0) for t in totals], "SAME_UPPER" if upper else "SAME_LOWER"
        )
    return node.out(
        "ConvTranspose", *node.inputs, group=_group(node), output_padding=extra, **window
    )


@onnx_op("Gemm")
def _gemm(node: OnnxNode) -> Result:
    """alpha * A' * B' + beta * C."""
    if node.opset < 7:
        node.ignore("broadcast")
    return node.out(
        "Gemm",
        *node.inputs,
        alpha=node.float_("alpha", 1.0),
        beta=node.float_("beta", 1.0),
        transA=int(node.flag("transA", False)),
        transB=int(node.flag("transB", False)),
    )


@onnx_op("MatMul")
def _matmul(node: OnnxNode) -> Result:
    """Matrix product, leading axes broadcast."""
    return node.out("MatMul", *node.given())


def _pool_attributes(node: OnnxNode) -> dict[str, tuple[int, ...] | int]:
    """Attributes of every pool: kernel, strides, explicit pads, dilations, ceil_mode."""
    size = _image(node)
    kernel = node.ints("kernel_shape")
    if not kernel:
        raise InputError("expected an attribute kernel_shape, found none")
    window = _window(node, kernel, size)
    return {**window, "kernel_shape": kernel, "ceil_mode": int(node.flag("ceil_mode", False))}


def average_attributes(node: OnnxNode) -> dict[str, tuple[int, ...] | int]:
    """All attributes of AveragePool, with explicit pads."""
    include = int(node.flag("count_include_pad", False))
    return {**_pool_attributes(node), "count_include_pad": include}


@onnx_op("MaxPool")
def _max_pool(node: OnnxNode) -> Result:
    """Maxima over windows; their indices are not supported."""
    node.ignore("storage_order")  # the order of the indices
    return node.out("MaxPool", node.input(0), **_pool_attributes(node))


@onnx_op("AveragePool")
def _average_pool(node: OnnxNode) -> Result:
    """Means over windows."""
    return node.out("AveragePool", node.input(0), **average_attributes(node))


@onnx_op("LpPool")
def _lp_pool(node: OnnxNode) -> Result:
    """The norm of order p: (mean of |x| ** p over the window * number of taps) ** (1 / p)."""
    p = node.int_("p", 2)
    attributes = _pool_attributes(node)
    if attributes["ceil_mode"]:
        raise UnsupportedError("expected ceil_mode 0 of LpPool, found 1")
    if not 1 <= p <= 64:
        raise UnsupportedError(f"expected p from 1 to 64, found {p}")
    kernel = attributes["kernel_shape"]
    assert isinstance(kernel, tuple)
    dtype = node.dtype()
    x = node.emit("Abs", node.input(0))
    x = node.emit("Pow", x, node.number(p, dtype))
    x = node.emit("AveragePool", x, count_include_pad=1, **attributes)
    x = node.emit("Mul", x, node.number(math.prod(kernel), dtype))
    return node.out("Pow", x, node.number(1 / p, dtype))


@onnx_op("GlobalAveragePool", "GlobalMaxPool")
def _global_pool(node: OnnxNode) -> Result:
    """The mean or maximum over the whole image."""
    return node.out(node.op, node.input(0))
