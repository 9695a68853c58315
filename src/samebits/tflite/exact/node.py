"""One operator of a file as the mapping rules see it, and the table that they fill."""

from __future__ import annotations

from collections.abc import Callable, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from samebits import ledger
from samebits.errors import InputError, UnsupportedError
from samebits.ir.foreign import ForeignNode, Result, enter_rule
from samebits.ir.ops import Attribute
from samebits.ir.real.define import code_range
from samebits.ir.real.quantize import CODES
from samebits.tflite.exact.builder import ImageBuilder
from samebits.tflite.file import Array, LiteOperator, Scaling, Subgraph, Tensor
from samebits.tflite.schema import ACTIVATIONS

Rule = Callable[["LiteNode"], Result]

RULES: dict[str, Rule] = {}
MOVEMENTS: set[str] = set()  # operators that make no new numbers

_BOUNDS: dict[str, tuple[float | None, float | None]] = {
    "RELU": (0.0, None),
    "RELU_N1_TO_1": (-1.0, 1.0),
    "RELU6": (0.0, 6.0),
}
WIDER = {"int4": "int8"}


def lite_op(*names: str, moves: bool = False) -> Callable[[Rule], Rule]:
    """Register how the operators of these names become real ones.

    A rule returns the values of the outputs, real numbers where the file has codes of them; it
    raises InputError for an operator that contradicts itself, UnsupportedError for one without a
    real counterpart. moves: its results are numbers of its first input, so that they need no other
    codes.
    """
    if moves:
        MOVEMENTS.update(names)
    return enter_rule(RULES, names)


@dataclass
class LiteNode(ForeignNode):
    """An operator to translate.

    graph, operator: what the file says. values: the graph value of every tensor so far, by number.
    """

    builder: ImageBuilder
    graph: Subgraph
    operator: LiteOperator
    values: MutableMapping[int, str]

    # --- inputs -------------------------------------------------------------------------------

    def has(self, index: int) -> bool:
        """Whether the input is given."""
        inputs = self.operator.inputs
        return index < len(inputs) and inputs[index] >= 0

    def tensor(self, index: int) -> Tensor:
        """The tensor of an input; InputError where it is left out."""
        if not self.has(index):
            raise InputError(f"expected input {index}, found none")
        return self.graph.tensors[self.operator.inputs[index]]

    def result(self, index: int = 0) -> Tensor:
        """The tensor of an output."""
        if index >= len(self.operator.outputs):
            raise InputError(f"expected output {index}, found none")
        return self.graph.tensors[self.operator.outputs[index]]

    def input(self, index: int) -> str:
        """The graph value of an input: real numbers where the file has codes."""
        tensor, number = self.tensor(index), self.operator.inputs[index]
        if number not in self.values:
            if tensor.array is None:
                raise UnsupportedError(
                    f"expected {tensor} to be an input, a constant or a result, found a "
                    f"{'variable' if tensor.variable else 'tensor that nothing writes'}"
                )
            self.values[number] = self.stored(tensor)
        return self.values[number]

    def inputs(self) -> list[str]:
        """The graph values of all inputs."""
        return [self.input(index) for index in range(len(self.operator.inputs))]

    def shape(self, index: int = 0) -> tuple[int, ...]:
        """Shape of an input, as the file has it."""
        return self.tensor(index).shape

    def array(self, index: int, what: str) -> Array:
        """The numbers of an input that must be constant. what: its role."""
        tensor = self.tensor(index)
        if tensor.array is None:
            raise UnsupportedError(f"expected a constant as {what}, found {tensor}, computed")
        return tensor.array

    def integers(self, index: int, what: str) -> tuple[int, ...]:
        """The numbers of a constant vector of integers, or of a scalar."""
        array = self.array(index, what)
        if array.dtype.kind not in "iu" or array.ndim > 1 or array.size > 64:
            raise InputError(
                f"expected at most 64 integers as {what}, found {array.dtype.name}"
                f"{list(array.shape)}"
            )
        return tuple(int(v) for v in array.reshape(-1))

    def axis(self, value: int, rank: int) -> int:
        """A non-negative axis; InputError outside [-rank, rank)."""
        if not -rank <= value < rank:
            raise InputError(f"expected an axis from {-rank} to {rank - 1}, found {value}")
        return value % rank

    def axes(self, index: int, rank: int) -> tuple[int, ...]:
        """Distinct non-negative axes of a constant input, in order."""
        return tuple(sorted({self.axis(v, rank) for v in self.integers(index, "axes")}))

    def option(self, name: str) -> Any:
        """An option of the operator."""
        return self.operator.options[name]

    # --- constants ----------------------------------------------------------------------------

    def stored(self, tensor: Tensor, perm: Sequence[int] | None = None) -> str:
        """A constant tensor, its axes permuted: real numbers where it holds codes."""
        array = tensor.array
        assert array is not None
        ledger.keep(2 * array.nbytes, str(tensor))
        if perm is not None:
            array = array.transpose(perm)
        array = np.asarray(array, array.dtype.newbyteorder("="), order="C")
        name = self.builder.constant(tensor.name or "constant", array)
        quantization = tensor.quantization
        if quantization is None or tensor.dtype.startswith(("float", "bool")):
            return name
        axis = quantization.axis if perm is None else tuple(perm).index(quantization.axis)
        return self.dequantized(name, quantization, axis)

    def weights(self, index: int, perm: Sequence[int]) -> str:
        """Constant weights, or ones that are computed, their axes permuted."""
        tensor = self.tensor(index)
        if len(tensor.shape) != len(perm):
            raise InputError(
                f"expected weights of {len(perm)} dimensions, found {list(tensor.shape)}"
            )
        if tensor.array is not None and self.operator.inputs[index] not in self.values:
            return self.stored(tensor, perm)
        value = self.input(index)
        if tuple(perm) == tuple(range(len(perm))):
            return value
        return self.emit("Transpose", value, perm=tuple(perm))

    def bias(self, index: int, x: int, w: int) -> tuple[str, ...]:
        """The bias as further inputs of a product: () where the operator has none.

        Codes of a bias count in units of the product of both scales, whatever scale the file
        gives them.
        """
        if not self.has(index):
            return ()
        tensor = self.tensor(index)
        scales = [self.tensor(i).quantization for i in (x, w)]
        if tensor.dtype.startswith("float") or None in scales:
            return (self.input(index),)
        codes = self.array(index, "bias")
        least, most = code_range("int32")
        if tensor.dtype not in ("int32", "int64") or codes.ndim != 1:
            raise InputError(f"expected a vector of int32 or int64 as bias, found {tensor}")
        if codes.size and not least <= int(codes.min()) <= int(codes.max()) <= most:
            raise UnsupportedError(f"expected codes of 32 bits as bias, found others in {tensor}")
        unit, factors = (np.array(s.scales) for s in scales if s is not None)
        if unit.size != 1:
            raise UnsupportedError(f"expected one scale of the input, found {unit.size}")
        # The product of two binary32 numbers is exact in binary64, and rounded once.
        with np.errstate(over="ignore", under="ignore"):
            product = (unit[0] * factors).astype(np.float32)
        if not (np.isfinite(product) & (product > 0)).all():
            raise UnsupportedError(
                f"expected scales whose product binary32 holds as unit of the bias, found {unit[0]}"
                f" times {factors.min()} to {factors.max()}"
            )
        name = self.builder.constant(tensor.name or "bias", codes.astype(np.int32))
        return (self.dequantized(name, Scaling(tuple(product.tolist())), 0),)

    # --- codes --------------------------------------------------------------------------------

    def dequantized(self, codes: str, quantization: Scaling, axis: int, name: str = "") -> str:
        """The real numbers of codes, by that name where it is given."""
        parameters = self._parameters(quantization, self.dtype_of(codes))
        attributes = {"axis": axis if len(quantization.scales) > 1 else 1}
        outputs = [name] if name else []
        return self.builder.add(
            "DequantizeLinear", [codes, *parameters], attributes, self.hint, outputs
        )

    def coded(self, value: str, tensor: Tensor, name: str = "") -> str:
        """The numbers that the codes of a tensor stand for, once a value is rounded to them."""
        quantization = tensor.quantization
        assert quantization is not None
        if tensor.dtype not in CODES or len(quantization.scales) > 1:
            raise UnsupportedError(
                f"expected {tensor} in codes of 8 or 16 bits with one scale, found {tensor.dtype} "
                f"with {len(quantization.scales)}"
            )
        dtype = WIDER.get(tensor.dtype, tensor.dtype)
        ends: dict[str, Attribute] = {}
        if dtype != tensor.dtype:
            ends = dict(zip(("low", "high"), code_range(tensor.dtype), strict=True))
        parameters = self._parameters(quantization, dtype)
        codes = self.emit("QuantizeLinear", value, *parameters, **ends)
        return self.dequantized(codes, quantization, 1, name)

    def _parameters(self, quantization: Scaling, dtype: str) -> tuple[str, str]:
        """Scales and zero points: scalars, or one for each index of an axis."""
        count, zeros = len(quantization.scales), quantization.zero_points
        low, high = code_range(dtype)
        if not all(low <= zero <= high for zero in zeros):
            raise InputError(f"expected zero points among the codes of {dtype}, found {zeros[:8]}")
        shape = (count,) if count > 1 else ()
        scale = np.array(quantization.scales, np.float32).reshape(shape)
        zero = np.broadcast_to(np.array(zeros, dtype), (count,)).reshape(shape)
        return (
            self.builder.constant(f"{self.hint}.scale", scale),
            self.builder.constant(f"{self.hint}.zero_point", zero),
        )

    # --- results ------------------------------------------------------------------------------

    def pointwise(self, op: str, *values: str, **attributes: Attribute) -> str:
        """An element-wise operator, on images with their channels in front where all are."""
        firsts = [self.builder.known_first(value) for value in values]
        shapes = {self.shape_of(value) for value in values}
        if len(shapes) > 1 or None in firsts:
            return self.emit(op, *values, **attributes)
        found = self.emit(op, *(first for first in firsts if first), **attributes)
        return self.builder.channels_last(found)

    def activated(self, value: str) -> str:
        """A result after the activation that the operator's options name."""
        number = self.option("activation")
        name = ACTIVATIONS.get(number, f"number {number}")
        if name == "NONE":
            return value
        if name == "TANH":
            return self.pointwise("Tanh", value)
        if name not in _BOUNDS:
            raise UnsupportedError(
                f"expected a fused activation NONE, {', '.join(_BOUNDS)} or TANH, found {name}"
            )
        return self.bounded(value, name)

    def bounded(self, value: str, name: str) -> str:
        """RELU and its like."""
        low, high = _BOUNDS[name]
        if high is None:
            return self.pointwise("Relu", value)
        return self.pointwise("Clip", value, min=low, max=high)
