"""Trained BFP models as real graphs in QDQ form, whose exact meaning is the deployed arithmetic.

The model runs once in deployed arithmetic while its operations are written down, so any forward()
that training accepts can be exported (docs/spec/training.md 11, docs/spec/graph.md 2).
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from samebits.errors import UnsupportedError
from samebits.ir import Graph, GraphBuilder
from samebits.ir.ops import Attributes
from samebits.train.deployed.attention import NARROW16, SCORE_BITS, constant16
from samebits.train.deployed.deploy import (
    INPUT,
    Deployed,
    DeployedOperation,
    Exponents,
    deployed,
    run,
)
from samebits.train.deployed.export_operators import RULES as OPERATORS
from samebits.train.deployed.export_recurrent import (
    cell,
    has_states,
    is_recurrent,
    one_step,
)
from samebits.train.deployed.nodes import Array, Nodes, StepOperators, binary32
from samebits.train.deployed.operations import RULES
from samebits.train.deployed.weights import (
    Factor,
    frozen_product,
)
from samebits.train.operation import TrainingOperation
from samebits.train.operations import activations, addition, normalization, pointwise, pooling
from samebits.train.operations.linear import PRODUCTS, as_kernel
from samebits.train.operations.matmul import MAT_MUL
from samebits.train.operations.multiplication import MULTIPLY, SCALE
from samebits.train.operations.narrow import NARROW
from samebits.train.operations.resampling import INTERPOLATE
from samebits.train.operations.softmax import SOFTMAX
from samebits.train.operations.transposed import TRANSPOSED_PRODUCTS
from samebits.train.value import BFPValue, Weight, is_activation


def to_graph(
    model: nn.Module, exponents: Exponents, input_shape: tuple[int, ...], batch: int = 1
) -> Graph:
    """The graph of a model for images [batch, *input_shape]; float32 in, float32 logits out.

    Of a recurrent model it is one time step, of one sequence: [1, *input_shape] with one step along
    its axis of time, and the states. Its exact output is codes * 2**exponent of
    `deployed(model, exponents).codes`, there after the last step. Raises UnsupportedError where a
    constant is no binary32 number or a model is not time-wise, and as `deploy.run` does.
    """
    made = deployed(model, exponents)
    steps, x, output = _run(made, (batch, *input_shape), False)
    recurrent = is_recurrent(steps)
    if recurrent:
        if batch != 1:
            raise UnsupportedError(f"expected a batch of 1 of a recurrent model, found {batch}")
        steps, x, output = one_step(made, steps, input_shape)
    elif given := _given(steps, x):
        others, y, _ = _run(made, (batch, *input_shape), True)
        _check_same(given, _given(others, y))
    return _Writer(steps, output, not recurrent).write(x)


Run = tuple[list[DeployedOperation], Tensor | BFPValue, BFPValue]


def _run(model: Deployed, shape: tuple[int, ...], other: bool) -> Run:
    """The operations of a run on zeros or on something else, its input and its output."""
    steps: list[DeployedOperation] = []
    first = next(iter(model.exponents.sites), None)
    count = torch.arange(math.prod(shape), device="cpu")
    if first is not None and first.name == INPUT:
        images = torch.zeros(shape, dtype=torch.float32, device="cpu")
        if other:
            images = (count % 7 - 3).float().view(shape) * 2.0 ** (first.exponent + 4)
    else:
        images = torch.zeros(shape, dtype=torch.int64, device="cpu")
        if other:
            images = (count % 2).view(shape)
    return steps, *run(model, images, steps.append)


def _given(steps: Sequence[DeployedOperation], x: Tensor | BFPValue) -> list[tuple[str, Tensor]]:
    """Everything a run took that is neither its input nor computed from it: the codes of
    constants with their exponents, masks, indices; with the place that took it."""
    known = {id(x.codes)} if isinstance(x, BFPValue) else set()
    found = []
    for step in steps:
        for argument in step.arguments:
            if isinstance(argument, Weight):
                continue
            if isinstance(argument, BFPValue):
                codes, exponent = argument.whole()
                if id(codes) not in known:
                    found += [(step.path, codes), (step.path, torch.tensor(exponent, device="cpu"))]
                if argument.allowed is not None:
                    found.append((step.path, argument.allowed))
            elif _is_index(argument) and not is_tensor(argument, x):
                found.append((step.path, argument))
        known.add(id(step.output.codes))
    return found


def _check_same(one: list[tuple[str, Tensor]], other: list[tuple[str, Tensor]]) -> None:
    """Refuse what follows from the values of the input in another way than by operations."""
    for (path, a), (_, b) in zip(one, other, strict=True):
        if not torch.equal(a, b):
            raise UnsupportedError(
                f"{path or 'the model'}: expected constants, masks and indices that are the same "
                f"for every input, found one of shape {tuple(a.shape)} that forward() computes "
                "from the values of its input; it cannot be exported"
            )


class _Writer:
    """A graph in the making. A BFP tensor is known by its codes: shape changes make new ones.

    What does not depend on the input is a constant, also where operations have computed it.
    """

    def __init__(
        self, steps: Sequence[DeployedOperation], output: BFPValue, holds_constants: bool
    ) -> None:
        self.steps, self.output = _needed(steps, output), output
        self.holds_constants = holds_constants
        self.following: list[str] = []  # the states after a step
        self.layers = 0  # recurrent ones so far
        builder = self.builder = GraphBuilder("model")
        self.values: dict[int, str] = {}  # id of the codes -> float32 value
        self.constants: dict[int, str] = {}  # the same of constants
        self.readers = Counter(id(t.codes) for step in steps for t in inputs_of(step))
        self.readers[id(output.codes)] += 1
        self.makers = {id(step.output.codes): step for step in steps}
        self.only_reader = {id(t.codes): step for step in steps for t in inputs_of(step)}
        self.nodes = Nodes(
            lambda op, names, attributes, name: builder.add(op, names, attributes, name),
            lambda name, shape: builder.state(builder.unique(name), "float32", shape),
            builder.constant,
            self.constant,
            self.rounded,
        )

    def write(self, x: Tensor | BFPValue) -> Graph:
        """The graph of all operations from the input x on; rounding is QuantizeLinear."""
        if isinstance(x, BFPValue):
            images = self.builder.input(INPUT, "float32", tuple(x.shape))
            self.values[id(x.codes)] = self.rounded(INPUT, images, x.whole()[1])
        else:
            self.builder.input(INPUT, "int64", tuple(x.shape))
        for step in self.steps:
            rows = step.operation is pointwise.EMBEDDING and is_tensor(step.arguments[0], x)
            if rows or has_states(step.operation) or self.is_computed(step):
                self.values[id(step.output.codes)] = self.step(step, [INPUT] if rows else [])
        return self.builder.build([self.value_of(self.output), *self.following])

    def is_computed(self, step: DeployedOperation) -> bool:
        """Whether a step depends on the input; without constants in the graph, every one does."""
        known = any(id(t.codes) in self.values for t in inputs_of(step))
        return known or not self.holds_constants

    def step(self, step: DeployedOperation, inputs: list[str]) -> str:
        """The float32 value of a step's output, rounded where the step did. inputs: before those
        that it reads."""
        inputs = inputs + [self.value_of(t) for t in inputs_of(step)]
        path = step.path
        if not step.layer:
            path = f"{path}.{step.operation.name.lower()}".lstrip(".")
        if has_states(step.operation):
            value = self.recurrent(path, inputs[0], step)
        elif step.operation in _OF_PRODUCTS:
            value = self.products(path, inputs, step)
        else:
            at = StepOperators(self.nodes, path, inputs)
            value = OPERATORS[step.operation](at, *step.arguments)
        if step.operation is addition.ADD and step.output.bits > SCORE_BITS:
            self.check_terms(path, step)
        dtype = _ROUNDED.get(step.operation, "int8" if step.output.bits <= 8 else "")
        if dtype and not self.waits_for_relu(step):
            return self.rounded(path, value, step.output.whole()[1], dtype)
        return value

    def check_terms(self, path: str, step: DeployedOperation) -> None:
        """Refuse a constant that is read as the bias of a product, and rounded to its grid."""
        for term, other in itertools.permutations(inputs_of(step)):
            own = None if id(term.codes) in self.values else constant16(term)
            axes = 0 if own is None else sum(size > 1 for size in own.shape)
            if own is None or (axes > 1 and own.codes.unique().numel() > 1):
                continue
            factors, source = self.product_of(other)
            if source is not None and (factors or not _is_multiple(own, source)):
                raise UnsupportedError(
                    f"{path}: expected a constant beside a product of activations that differs "
                    "along two axes, or a multiple of the product's grid, found one of exponent "
                    f"{own.whole()[1]} beside {source.whole()[1]}{' and a factor' * factors}; add "
                    "it after a layer, or before the factor"
                )

    def product_of(self, x: BFPValue) -> tuple[bool, BFPValue | None]:
        """Whether numbers were multiplied to a product of activations, and that product; None
        for another value."""
        factors, step = False, self.makers.get(id(x.codes))
        while step is not None and step.operation is not MAT_MUL:
            if step.operation is not SCALE and RULES[step.operation].frozen is not None:
                return factors, None
            factors |= step.operation is SCALE
            step = self.makers.get(id(inputs_of(step)[0].codes))
        return factors, None if step is None else step.output

    def value_of(self, tensor: BFPValue) -> str:
        """The float32 value of a BFP tensor."""
        key = id(tensor.codes)
        if key in self.values:
            return self.values[key]
        if not self.holds_constants:
            raise UnsupportedError(
                f"expected tensors computed from the network input, found one of shape "
                f"{tuple(tensor.shape)} that forward() makes by itself; it cannot be exported "
                "beside a recurrent layer"
            )
        if key not in self.constants:
            self.constants[key] = self.constant("constant", *_stored(tensor))
        return self.constants[key]

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
            and self.only_reader[key].operation is activations.RELU
        )

    # --- constants and rounding ---------------------------------------------------------------

    def parameters(
        self,
        path: str,
        exponents: Sequence[int],
        dtype: str,
        factors: Sequence[Factor] | None = None,
    ) -> list[str]:
        """Scales and zero points: one, or one an index of the first axis where these differ.

        Scales are powers of two, times factors where these are given.
        """
        one = factors is None and len(set(exponents)) == 1
        given = exponents[:1] if one else exponents
        by = [(1, 0)] * len(given) if factors is None else factors
        scales = [
            binary32(path, [m], e + own).reshape(()) for (m, own), e in zip(by, given, strict=True)
        ]
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

    def constant(
        self,
        path: str,
        codes: Array,
        exponents: Sequence[int],
        axis: int = 0,
        factors: Sequence[Factor] | None = None,
    ) -> str:
        """Codes of the exponents, and factors, along an axis as DequantizeLinear of int8 or int32
        constants."""
        parameters = self.parameters(path, exponents, codes.dtype.name, factors)
        attributes = {"axis": axis} if self.builder.values[parameters[0]].shape else {}
        stored = self.builder.constant(f"{path}.codes", codes)
        inputs = [stored, *parameters]
        return self.builder.add("DequantizeLinear", inputs, attributes, path)

    # --- operations ---------------------------------------------------------------------------

    def products(self, path: str, inputs: Sequence[str], step: DeployedOperation) -> str:
        """Gemm, Conv or ConvTranspose of constants, with the bias on the grid of the sums."""
        x, weight, bias, shape, _ = step.arguments
        swapped = step.operation is TRANSPOSED_PRODUCTS
        groups = shape.groups if swapped else None
        own = frozen_product(step.site, x, weight, bias, step.norm, groups)
        of_weight = [e - x.whole()[1] for e in own.exponents]
        kernel = own.codes if own.codes.dim() == 2 else as_kernel(own.codes)
        codes = kernel.cpu().contiguous().numpy()
        weights = self.constant(f"{path}.weight", codes, of_weight, int(swapped), own.factors)
        names = [*inputs, weights]
        if bias is not None or step.norm is not None:
            offsets = np.array(own.offsets, np.int32)
            names.append(self.constant(f"{path}.bias", offsets, own.exponents, factors=own.factors))
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

    def recurrent(self, path: str, value: str, step: DeployedOperation) -> str:
        where = f"{path}.{self.layers}"
        self.layers += 1
        output, states = cell(self.nodes, where, value, step)
        self.following += states
        return output


_OF_PRODUCTS = (PRODUCTS, TRANSPOSED_PRODUCTS)
_BEFORE_RELU = (
    PRODUCTS,
    TRANSPOSED_PRODUCTS,
    normalization.BATCH_NORM,
    activations.TABLE,
    pooling.AVERAGE_POOL,
    INTERPOLATE,
    addition.ADD,
    MULTIPLY,
    SCALE,
    NARROW,
)
_ROUNDED = {NARROW16: "int16", SOFTMAX: "uint16"}
"""Operations that make codes of more than 8 bits, and their type."""


def has_operators(operation: TrainingOperation) -> bool:
    """Whether an operation has a form in graphs."""
    return operation in _OF_PRODUCTS or operation in OPERATORS or has_states(operation)


def _needed(steps: Sequence[DeployedOperation], output: BFPValue) -> list[DeployedOperation]:
    """The steps that the output depends on; of recurrent layers all, for their states."""
    wanted, found = {id(output.codes)}, []
    for step in reversed(steps):
        if id(step.output.codes) in wanted or has_states(step.operation):
            wanted.update(id(t.codes) for t in inputs_of(step))
            found.append(step)
    return found[::-1]


def inputs_of(step: DeployedOperation) -> list[BFPValue]:
    """The activations that a step reads, in order; parameters are none."""
    return [argument for argument in step.arguments if is_activation(argument)]


def _is_index(argument: object) -> bool:
    """Whether an argument is indices, which are no running statistics."""
    return isinstance(argument, Tensor) and not argument.is_floating_point()


def is_tensor(a: Tensor, b: Tensor | BFPValue) -> bool:
    """Whether two tensors are the same memory, seen in the same way."""
    return a is b or (
        not isinstance(b, BFPValue)
        and (a.data_ptr(), a.shape, a.stride(), a.dtype)
        == (b.data_ptr(), b.shape, b.stride(), b.dtype)
    )


def _is_multiple(x: BFPValue, of: BFPValue) -> bool:
    """Whether the values of a tensor lie on the grid of another."""
    (codes, exponent), grid = x.whole(), of.whole()[1]
    return not bool((codes.long() % (1 << min(max(grid - exponent, 0), 62))).any())


def _stored(tensor: BFPValue) -> tuple[Array, list[int]]:
    """The codes of a constant in the smallest type that they have, and its exponent."""
    own = constant16(tensor)
    if own is None or not bool(own.codes.any()):
        return np.zeros(tuple(tensor.shape), np.int8), [0]
    codes, exponent = own.whole()
    dtype = np.int8 if own.bits <= 8 else np.int16 if codes.dtype == torch.int16 else np.int32
    if own.bits > 32:
        raise UnsupportedError(
            f"expected constants of at most 32 bits, found {own.bits} in one of shape "
            f"{tuple(tensor.shape)} that forward() computes; narrow it by a layer"
        )
    return codes.cpu().contiguous().numpy().astype(dtype), [exponent]
