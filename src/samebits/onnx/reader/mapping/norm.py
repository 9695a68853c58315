"""Normalizations in inference."""

from __future__ import annotations

import math

from samebits.errors import InputError, UnsupportedError
from samebits.onnx.reader.node import OnnxNode, Result, onnx_op


@onnx_op("BatchNormalization")
def _batch_normalization(node: OnnxNode) -> Result:
    """Normalization with a stored mean and variance."""
    node.ignore("momentum", "is_test")  # is_test: opset 6
    if node.opset < 9 and not node.flag("spatial", True):
        raise UnsupportedError("expected statistics per channel, found spatial 0")
    if node.opset >= 14 and node.flag("training_mode", False):
        raise UnsupportedError("expected BatchNormalization in inference, found training_mode 1")
    return node.out("BatchNormalization", *node.given(), epsilon=node.float_("epsilon", 1e-5))


@onnx_op("InstanceNormalization")
def _instance_normalization(node: OnnxNode) -> Result:
    """Normalization with the statistics of each sample and channel."""
    return node.out("InstanceNormalization", *node.given(), epsilon=node.float_("epsilon", 1e-5))


@onnx_op("LayerNormalization")
def _layer_normalization(node: OnnxNode) -> Result:
    """Normalization over the axes from `axis` on; outputs 1 and 2 are the mean and the reciprocal
    of the standard deviation."""
    node.ignore("stash_type")
    axis = node.axis(node.int_("axis", -1), node.rank())
    epsilon = node.float_("epsilon", 1e-5)
    results = list(node.out("LayerNormalization", *node.inputs, axis=axis, epsilon=epsilon))
    if any(node.wanted[1:]):
        axes = tuple(range(axis, node.rank()))
        dtype = node.dtype()
        mean = node.emit("ReduceMean", node.input(0), axes=axes, keepdims=1)
        centred = node.emit("Sub", node.input(0), mean)
        square = node.emit("Mul", centred, centred)
        variance = node.emit("ReduceMean", square, axes=axes, keepdims=1)
        shifted = node.emit("Add", variance, node.number(epsilon, dtype))
        results += [mean, node.emit("Reciprocal", node.emit("Sqrt", shifted))]
    return results


@onnx_op("RMSNormalization")
def _rms_normalization(node: OnnxNode) -> Result:
    """Division by the root mean square over the axes from `axis` on."""
    node.ignore("stash_type")
    axis = node.axis(node.int_("axis", -1), node.rank())
    epsilon = node.float_("epsilon", 1e-5)
    return node.out("RMSNormalization", *node.given(), axis=axis, epsilon=epsilon)


@onnx_op("GroupNormalization")
def _group_normalization(node: OnnxNode) -> Result:
    """Normalization of groups of channels; before opset 21 scale and bias are those of groups."""
    node.ignore("stash_type")
    x, scale, bias = (node.input(index) for index in range(3))
    groups = node.int_("num_groups")
    channels = node.shape()[1] if node.rank() > 1 else 0
    if node.opset < 21 and groups > 0 and channels % groups == 0:
        scale, bias = (_repeated(node, name, groups, channels) for name in (scale, bias))
    epsilon = node.float_("epsilon", 1e-5)
    return node.out("GroupNormalization", x, scale, bias, num_groups=groups, epsilon=epsilon)


def _repeated(node: OnnxNode, name: str, groups: int, channels: int) -> str:
    """A number for each group as one for each of its channels."""
    column = node.emit("Reshape", name, shape=(groups, 1))
    spread = node.emit("Expand", column, shape=(groups, channels // groups))
    return node.emit("Reshape", spread, shape=(channels,))


@onnx_op("LRN")
def _local_response(node: OnnxNode) -> Result:
    """Local response normalization across channels, by means of an AveragePool:

    y[c] = x[c] / (bias + alpha / size * sum of x[i]**2 over the `size` channels i around c) ** beta
    """
    size, rank = node.int_("size"), node.rank()
    alpha, beta, bias = (
        node.float_("alpha", 1e-4),
        node.float_("beta", 0.75),
        node.float_("bias", 1.0),
    )
    if rank < 3 or size < 1:
        raise InputError(f"expected images and a size from 1, found {list(node.shape())}, {size}")
    n, c, *rest = node.shape()
    if size > 2 * c + 1:
        raise UnsupportedError(f"expected a size of at most {2 * c + 1}, found {size}")
    dtype = node.dtype()
    before = (size - 1) // 2
    x = node.input(0)
    square = node.emit("Mul", x, x)
    square = node.emit("Reshape", square, shape=(n, 1, c, math.prod(rest)))
    # The mean with the pads counted is the sum over the channels divided by size.
    mean = node.emit(
        "AveragePool",
        square,
        kernel_shape=(size, 1),
        strides=(1, 1),
        pads=(before, 0, size - 1 - before, 0),
        dilations=(1, 1),
        ceil_mode=0,
        count_include_pad=1,
    )
    mean = node.emit("Reshape", mean, shape=node.shape())
    scaled = node.emit("Mul", mean, node.number(alpha, dtype))
    shifted = node.emit("Add", scaled, node.number(bias, dtype))
    power = node.emit("Pow", shifted, node.number(beta, dtype))
    return node.out("Div", x, power)
