"""Normalizations in inference."""

from __future__ import annotations

import math

import numpy as np

from samebits.errors import InputError, UnsupportedError
from samebits.onnx.reader.step import Result, Step, onnx_op


@onnx_op("BatchNormalization")
def batch_normalization(step: Step) -> Result:
    """With stored mean and variance."""
    step.ignore("momentum", "is_test")  # is_test: opset 6
    if step.opset < 9 and not step.flag("spatial", True):
        raise UnsupportedError("expected statistics per channel, found spatial 0")
    if step.opset >= 14 and step.flag("training_mode", False):
        raise UnsupportedError("expected BatchNormalization in inference, found training_mode 1")
    return step.out("BatchNormalization", step.given(), epsilon=step.float_("epsilon", 1e-5))


@onnx_op("InstanceNormalization")
def instance_normalization(step: Step) -> Result:
    """Statistics of each sample and channel."""
    return step.out("InstanceNormalization", step.given(), epsilon=step.float_("epsilon", 1e-5))


@onnx_op("LayerNormalization")
def layer_normalization(step: Step) -> Result:
    """Statistics over the axes from `axis` on; the second and third output are those."""
    step.ignore("stash_type")
    axis = step.axis(step.int_("axis", -1), step.rank())
    epsilon = step.float_("epsilon", 1e-5)
    results = list(step.out("LayerNormalization", list(step.inputs), axis=axis, epsilon=epsilon))
    if any(step.wanted[1:]):
        axes = tuple(range(axis, step.rank()))
        dtype = np.dtype(step.value(0).dtype)
        mean = step.emit("ReduceMean", [step.input(0)], axes=axes, keepdims=1)
        centred = step.emit("Sub", [step.input(0), mean])
        square = step.emit("Mul", [centred, centred])
        variance = step.emit("ReduceMean", [square], axes=axes, keepdims=1)
        shifted = step.emit("Add", [variance, step.array(np.array(epsilon, dtype))])
        results += [mean, step.emit("Reciprocal", [step.emit("Sqrt", [shifted])])]
    return results


@onnx_op("LRN")
def local_response(step: Step) -> Result:
    """x / (bias + alpha / size * sum of squares of near channels) ** beta."""
    size, rank = step.int_("size"), step.rank()
    alpha, beta, bias = (
        step.float_("alpha", 1e-4),
        step.float_("beta", 0.75),
        step.float_("bias", 1.0),
    )
    if rank < 3 or size < 1:
        raise InputError(f"expected images and a size from 1, found {list(step.shape())}, {size}")
    n, c, *rest = step.shape()
    if size > 2 * c + 1:
        raise UnsupportedError(f"expected a size of at most {2 * c + 1}, found {size}")
    dtype = np.dtype(step.value(0).dtype)
    before = (size - 1) // 2
    x = step.input(0)
    square = step.emit("Mul", [x, x])
    square = step.emit("Reshape", [square], shape=(n, 1, c, math.prod(rest)))
    # The mean with the pads counted is the sum over the channels divided by size.
    mean = step.emit(
        "AveragePool",
        [square],
        kernel_shape=(size, 1),
        strides=(1, 1),
        pads=(before, 0, size - 1 - before, 0),
        dilations=(1, 1),
        ceil_mode=0,
        count_include_pad=1,
    )
    mean = step.emit("Reshape", [mean], shape=step.shape())
    scaled = step.emit("Mul", [mean, step.array(np.array(alpha, dtype))])
    shifted = step.emit("Add", [scaled, step.array(np.array(bias, dtype))])
    power = step.emit("Pow", [shifted, step.array(np.array(beta, dtype))])
    return step.out("Div", [x, power])
