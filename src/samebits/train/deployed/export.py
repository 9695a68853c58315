"""Trained BFP models as real graphs in QDQ form, whose exact meaning is the deployed arithmetic.

The model runs once in deployed arithmetic while its operations are written down, so any forward()
that training accepts can be exported (docs/spec/training.md 11, docs/spec/graph.md 2).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import torch
from torch import nn

from samebits.errors import UnsupportedError
from samebits.ir import Graph, GraphBuilder
from samebits.ir.ops import Attributes
from samebits.kernels import Window
from samebits.kernels.averages import Averages
from samebits.spec import formats
from samebits.tables.activation import ACTIVATIONS
from samebits.train.deployed.deploy import INPUT, DeployedOperation, Exponents, deployed, run
from samebits.train.deployed.export_lstm import Nodes, cell, is_recurrent, one_step
from samebits.train.deployed.weights import (
    frozen_sums,
    frozen_weights,
    transposed_inputs,
    transposed_outputs,
)
from samebits.train.operations import activations, addition, normalization, pointwise, pooling
from samebits.train.operations.indexing import Indexed, Permute
from samebits.train.operations.linear import Products, as_kernel
from samebits.train.operations.lstm import Lstm
from samebits.train.operations.multiplication import Multiply, Scale
from samebits.train.operations.narrow import Narrow
from samebits.train.operations.resampling import Copies, Pad, Selection
from samebits.train.operations.softmax import LogSoftmax
from samebits.train.operations.transposed import TransposedProducts
from samebits.train.tensor import BFPParameter, BFPTensor, TensorOperation

Array = np.ndarray[Any, Any]
NORMAL = (-126, 127)  # exponents of binary32 numbers that no runtime flushes to zero
CODE_BITS = 24  # of a binary32 significand


def to_graph(
    model: nn.Module, exponents: Exponents, input_shape: tuple[int, ...], batch: int = 1
) -> Graph:
    """The graph of a model for images [batch, *input_shape]; float32 in, float32 logits out.

    Of a model with LSTM layers it is one time step, of one sequence: [1, *input_shape] with one
    step along its axis of time, and the states. Its exact output is codes * 2**exponent of
    `deployed(model, exponents).codes`, there after the last step. Raises UnsupportedError where a
    constant is no binary32 number or a model is not time-wise, and as `deploy.run` does.
    """
    steps: list[DeployedOperation] = []
    shape = (batch, *input_shape)
    made = deployed(model, exponents)
    x, output = run(made, torch.zeros(shape), steps.append)
    if is_recurrent(steps):
        if batch != 1:
            raise UnsupportedError(f"expected a batch of 1 of a model with LSTMs, found {batch}")
        steps, x, output = one_step(made, steps, input_shape)
    return _Writer(steps, output).write(x)


class _Writer:
    """A graph in the making. A BFP tensor is known by its codes: shape changes make new ones."""

    def __init__(self, steps: Sequence[DeployedOperation], output: BFPTensor) -> None:
        self.steps, self.output = _needed(steps, output), output
        self.following: list[str] = []  # the states after a step
        self.builder = GraphBuilder("model")
        self.values: dict[int, str] = {}  # id of the codes -> float32 value
        self.readers = Counter(id(t.codes) for step in steps for t in inputs_of(step))
        self.readers[id(output.codes)] += 1
        self.only_reader = {id(t.codes): step for step in steps for t in inputs_of(step)}

    def write(self, x: BFPTensor) -> Graph:
        """The graph of all operations from the input x on; rounding is QuantizeLinear."""
        images = self.builder.input(INPUT, "float32", tuple(x.shape))
        self.values[id(x.codes)] = self.rounded(INPUT, images, x.whole()[1])
        for step in self.steps:
            inputs = [self.value_of(t) for t in inputs_of(step)]
            path = step.path
            if not step.layer:
                path = f"{path}.{step.operation.word().lower()}".lstrip(".")
            if step.operation is Lstm:
                value = self.lstm(path, inputs[0], step)
            elif step.operation in (Products, TransposedProducts):
                value = self.products(path, inputs, step)
            else:
                value = _RULES[step.operation](self, path, inputs, *step.arguments)
            if step.output.bits <= 8 and not self.waits_for_relu(step):
                value = self.rounded(path, value, step.output.whole()[1])
            self.values[id(step.output.codes)] = value
        return self.builder.build([self.value_of(self.output), *self.following])

    def value_of(self, tensor: BFPTensor) -> str:
        """The float32 value of a BFP tensor."""
        try:
            return self.values[id(tensor.codes)]
        except KeyError:
            raise UnsupportedError(
                f"expected tensors computed from the network input, found one of shape "
                f"{tuple(tensor.shape)} that forward() makes by itself; it cannot be exported"
            ) from None

    def waits_for_relu(self, step: DeployedOperation) -> bool:
        """Whether ReLU alone reads the codes of an operation.

        It commutes with their rounding, as 0 and the clip bound are codes, and so comes first.
        Runtimes join it with the accumulator.
        """
        key = id(step.output.codes)
        return (
            step.operation in _BEFORE_RELU
            and self.readers[key] == 1
            and key != id(self.output.codes)
            and self.only_reader[key].operation is activations.Relu
        )

    # --- constants and rounding ---------------------------------------------------------------

    def parameters(self, path: str, exponents: Sequence[int], dtype: str) -> list[str]:
        """Scales and zero points: one, or one an index of the first axis where these differ."""
        one = len(set(exponents)) == 1
        scales = [binary32(path, [1], e).reshape(()) for e in (exponents[:1] if one else exponents)]
        name = f"scale.{exponents[0]}" if one else f"{path}.scales"
        values = scales[0] if one else np.stack(scales)
        zeros = np.zeros(values.shape, dtype)
        kind = "zero" if one else f"{path}.zeros"
        return [
            self.builder.constant(name, values),
            self.builder.constant(f"{kind}.{dtype}", zeros),
        ]

    def rounded(self, path: str, value: str, exponent: int, dtype: str = "int8") -> str:
        """QuantizeLinear to codes of an exponent, and DequantizeLinear of them."""
        parameters = self.parameters(path, [exponent], dtype)
        codes = self.builder.add(
            "QuantizeLinear",
            [value, *parameters],
            name=f"{path}.quantize",
            outputs=[f"{path}.codes"],
        )
        return self.builder.add("DequantizeLinear", [codes, *parameters], name=f"{path}.dequantize")

    def constant(self, path: str, codes: Array, exponents: Sequence[int], axis: int = 0) -> str:
        """Codes of the exponents along an axis as DequantizeLinear of int8 or int32 constants."""
        parameters = self.parameters(path, exponents, codes.dtype.name)
        attributes = {"axis": axis} if self.builder.values[parameters[0]].shape else {}
        stored = self.builder.constant(f"{path}.codes", codes)
        inputs = [stored, *parameters]
        return self.builder.add("DequantizeLinear", inputs, attributes, path)

    # --- operations ---------------------------------------------------------------------------

    def products(self, path: str, inputs: Sequence[str], step: DeployedOperation) -> str:
        """Gemm, Conv or ConvTranspose of constants, with the bias on the grid of the sums."""
        x, weight, bias, shape, _ = step.arguments
        swapped = step.operation is TransposedProducts
        outputs = transposed_outputs(weight, shape.groups) if swapped else weight
        own = (frozen_sums if step.site is None else frozen_weights)(x, outputs, bias)
        kernel = transposed_inputs(own.codes, shape.groups) if swapped else own.codes
        of_weight = [e - x.whole()[1] for e in own.exponents]
        codes = (kernel if kernel.dim() == 2 else as_kernel(kernel)).cpu().contiguous().numpy()
        names = [*inputs, self.constant(f"{path}.weight", codes, of_weight, int(swapped))]
        if bias is not None:
            offsets = np.array(own.offsets, np.int32)
            names.append(self.constant(f"{path}.bias", offsets, own.exponents))
        if codes.ndim == 2:
            return self.builder.add("Gemm", names, {"transB": 1}, path)
        attributes: Attributes = {
            "strides": shape.stride,
            "pads": shape.padding * 2,
            "dilations": shape.dilation,
            "group": shape.groups,
        }
        if not swapped:
            return self.builder.add("Conv", names, attributes, path)
        extra = tuple(
            (size + 2 * pad - dilated * (k - 1) - 1) % stride
            for size, k, stride, pad, dilated in zip(
                (shape.h, shape.w),
                (shape.kh, shape.kw),
                *(shape.stride, shape.padding, shape.dilation),
                strict=True,
            )
        )
        attributes = {**attributes, "output_padding": extra}
        return self.builder.add("ConvTranspose", names, attributes, path)

    def batch_norm(self, path: str, inputs: Sequence[str], x: BFPTensor, *arguments: Any) -> str:
        gamma, beta, running_mean, running_var, _, _, eps, _ = arguments
        m, b, exponent = normalization.frozen_affine(
            gamma, beta, running_mean, running_var, eps, x.whole()[1]
        )
        shape = (1, -1, *([1] * (x.dim() - 2)))
        factor = binary32(path, m.tolist(), exponent - x.whole()[1]).reshape(shape)
        shift = binary32(path, b.tolist(), exponent).reshape(shape)
        factor_name = self.builder.constant(f"{path}.factor", factor)
        product = self.builder.add("Mul", [*inputs, factor_name], name=f"{path}.mul")
        shift_name = self.builder.constant(f"{path}.shift", shift)
        return self.builder.add("Add", [product, shift_name], name=path)

    def relu(self, path: str, inputs: Sequence[str], x: BFPTensor, clip: int | None) -> str:
        if clip is None:
            return self.builder.add("Relu", inputs, name=path)
        code = min(activations.clip_code(clip, x.whole()[1]), 127)
        bounds = {"min": 0.0, "max": math.ldexp(code, x.whole()[1])}
        return self.builder.add("Clip", inputs, bounds, path)

    def activation(
        self, path: str, inputs: Sequence[str], x: BFPTensor, name: str, parameter: float | None
    ) -> str:
        function = ACTIVATIONS[name]
        if function.operator == "Swish":  # newer than the opsets that others read
            sigmoid = self.builder.add("Sigmoid", inputs, name=f"{path}.sigmoid")
            return self.builder.add("Mul", [*inputs, sigmoid], name=path)
        given = function.parameters(None if parameter is None else Fraction(parameter))
        attributes: Attributes = {
            key: float(np.float32(float(value))) if isinstance(value, Fraction) else value
            for key, value in given.items()  # as ONNX stores numbers
        }
        return self.builder.add(function.operator, inputs, attributes, path)

    def max_pool(self, path: str, inputs: Sequence[str], x: BFPTensor, window: Window) -> str:
        return self.builder.add("MaxPool", inputs, _pool(window, x), path)

    def average_pool(self, path: str, inputs: Sequence[str], x: BFPTensor, means: Averages) -> str:
        """The mean over all of a window, or over what lies in the image, and what makes it that by
        another divisor. Windows of several sizes that count padding get it as part of the image."""
        window = means.window
        if window is None:
            raise UnsupportedError(
                f"{path}: expected an adaptive pool whose windows have one size and one step, "
                f"found {len(means.rows)}x{len(means.columns)} of an image "
                f"{tuple(x.shape[2:])}: ONNX has no such pool; use an output size that divides the "
                "image's"
            )
        whole = means.factors is None and means.common == window.size
        if whole and window.kernel == tuple(x.shape[2:]) and window.padding == (0, 0):
            return self.builder.add("GlobalAveragePool", inputs, name=path)
        attributes = {**_pool(window, x), "count_include_pad": 1}
        if not whole and means.counts_image:
            attributes["count_include_pad"] = 0
        elif means.factors is not None:
            top, left = window.padding
            pads = {"pads": (0, 0, top, left) * 2}
            inputs = [self.builder.add("Pad", inputs, pads, f"{path}.pad")]
            bottom, right = window.ends(*x.shape[2:])
            attributes["pads"] = (0, 0, bottom - top, right - left)
            attributes["count_include_pad"] = 0
        elif not whole:
            value = self.builder.add("AveragePool", inputs, attributes, f"{path}.mean")
            factor = self.builder.constant(f"{path}.factor", _quotient(path, window, means))
            return self.builder.add("Mul", [value, factor], name=path)
        return self.builder.add("AveragePool", inputs, attributes, path)

    def add(self, path: str, inputs: Sequence[str], *operands: BFPTensor) -> str:
        return self.builder.add("Add", inputs, name=path)

    def multiply(self, path: str, inputs: Sequence[str], *operands: BFPTensor) -> str:
        return self.builder.add("Mul", inputs, name=path)

    def scale(self, path: str, inputs: Sequence[str], x: BFPTensor, factor: float) -> str:
        m, by = formats.signed_coefficient(factor)
        name = self.builder.constant(f"{path}.factor", binary32(path, [m], by).reshape(()))
        return self.builder.add("Mul", [*inputs, name], name=path)

    def concat(self, path: str, inputs: Sequence[str], dim: int, *tensors: BFPTensor) -> str:
        return self.builder.add("Concat", inputs, {"axis": dim % tensors[0].dim()}, path)

    def narrow(self, path: str, inputs: Sequence[str], x: BFPTensor) -> str:
        return inputs[0]  # the QuantizeLinear that follows is all there is to do

    def copies(
        self, path: str, inputs: Sequence[str], x: BFPTensor, selections: tuple[Selection, ...]
    ) -> str:
        (value,) = inputs
        for axis, index in selections:
            chosen = self.builder.constant(f"{path}.index", index.cpu().numpy())
            value = self.builder.add("Gather", [value, chosen], {"axis": axis}, path)
        return value

    def pad(self, path: str, inputs: Sequence[str], x: BFPTensor, sizes: tuple[int, ...]) -> str:
        whole = (*sizes, *[0] * (2 * x.dim() - len(sizes)))  # of the last axis first
        pads = (*whole[::2][::-1], *whole[1::2][::-1])
        return self.builder.add("Pad", inputs, {"pads": pads}, path)

    def log_softmax(self, path: str, inputs: Sequence[str], x: BFPTensor, along: int) -> str:
        return inputs[0]  # the logits

    def reshape(
        self, path: str, inputs: Sequence[str], x: BFPTensor, shape: tuple[int, ...]
    ) -> str:
        sizes = tuple(x.codes.reshape(shape).shape)
        if sizes == (x.shape[0], math.prod(x.shape[1:])):
            return self.builder.add("Flatten", inputs, {"axis": 1}, path)
        return self.builder.add("Reshape", inputs, {"shape": sizes}, path)

    def permute(
        self, path: str, inputs: Sequence[str], x: BFPTensor, order: tuple[int, ...]
    ) -> str:
        perm = tuple(axis % x.dim() for axis in order)
        return self.builder.add("Transpose", inputs, {"perm": perm}, path)

    def indexed(
        self, path: str, inputs: Sequence[str], x: BFPTensor, index: tuple[Any, ...]
    ) -> str:
        found = x.codes[index]
        if found.numel() != x.codes.numel():
            raise UnsupportedError(
                f"{path}: expected an index that keeps everything, or that of a time step of a "
                f"model with LSTMs, found a part, {tuple(found.shape)} of {tuple(x.shape)}: split, "
                "chunk and their like are trained, not exported"
            )
        return self.builder.add("Reshape", inputs, {"shape": tuple(found.shape)}, path)

    def lstm(self, path: str, value: str, step: DeployedOperation) -> str:
        builder = self.builder
        nodes = Nodes(
            lambda op, names, attributes, name: builder.add(op, names, attributes, name),
            lambda name, shape: builder.state(builder.unique(name), "float32", shape),
            self.constant,
            self.rounded,
        )
        assert step.site is not None
        where = f"{path}.{len(self.following) // 2}"
        output, states = cell(nodes, where, value, step.site, step.arguments)
        self.following += states
        return output


_RULES: dict[type[TensorOperation], Callable[..., str]] = {
    normalization.BatchNormFunction: _Writer.batch_norm,
    activations.Relu: _Writer.relu,
    activations.TableActivation: _Writer.activation,
    pooling.MaxPool: _Writer.max_pool,
    pooling.AveragePool: _Writer.average_pool,
    addition.Add: _Writer.add,
    pointwise.Concat: _Writer.concat,
    Multiply: _Writer.multiply,
    Scale: _Writer.scale,
    Narrow: _Writer.narrow,
    pointwise.Reshape: _Writer.reshape,
    Permute: _Writer.permute,
    Indexed: _Writer.indexed,
    Copies: _Writer.copies,
    Pad: _Writer.pad,
    LogSoftmax: _Writer.log_softmax,
}
_BEFORE_RELU = (
    Products,
    TransposedProducts,
    normalization.BatchNormFunction,
    activations.TableActivation,
    pooling.AveragePool,
    addition.Add,
    Multiply,
    Scale,
    Narrow,
)


def _needed(steps: Sequence[DeployedOperation], output: BFPTensor) -> list[DeployedOperation]:
    """The steps that the output depends on; of LSTM layers all, for their states."""
    wanted, found = {id(output.codes)}, []
    for step in reversed(steps):
        if id(step.output.codes) in wanted or step.operation is Lstm:
            wanted.update(id(t.codes) for t in inputs_of(step))
            found.append(step)
    return found[::-1]


def inputs_of(step: DeployedOperation) -> list[BFPTensor]:
    """The activations that a step reads, in order; parameters are none."""
    return [
        argument
        for argument in step.arguments
        if isinstance(argument, BFPTensor) and not isinstance(argument, BFPParameter)
    ]


def binary32(path: str, codes: Sequence[int], exponent: int) -> Array:
    """codes * 2**exponent as float32, exactly.

    Raises UnsupportedError, which names `path`, where a value has more than 24 bits or is no normal
    number.
    """
    for code in codes:
        top = abs(code).bit_length() - 1 + exponent
        if code and not (NORMAL[0] <= top <= NORMAL[1] and top - exponent < CODE_BITS):
            raise UnsupportedError(
                f"{path}: expected constants that float32 holds, found {code} * 2**{exponent}; its "
                "values are too large or too small to be exported: add a normalisation"
            )
    return np.ldexp(np.array(codes, np.float64), exponent).astype(np.float32)


def _pool(window: Window, x: BFPTensor) -> dict[str, Any]:
    """The attributes of a pool of x, with the pads that its last windows need."""
    pads = (*window.padding, *window.ends(*x.shape[2:]))
    sizes = {"kernel_shape": window.kernel, "strides": window.stride, "pads": pads}
    return {**sizes, "dilations": (1, 1)}


def _quotient(path: str, window: Window, means: Averages) -> Array:
    """The factor that makes a mean over all of a window one by a divisor of its own."""
    ratio = Fraction(window.size, means.common)
    by = ratio.denominator.bit_length() - 1
    if ratio.denominator != 1 << by:
        raise UnsupportedError(
            f"{path}: expected a divisor_override whose quotient with the {window.size} positions "
            f"of the window float32 holds, found {means.common}; use a power of two times as many "
            "or one of their divisors"
        )
    return binary32(path, [ratio.numerator], -by).reshape(())
