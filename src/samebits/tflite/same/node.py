"""One operator of a file on its way to integer operators with the runtime's own numbers."""

from __future__ import annotations

from collections.abc import Callable, MutableMapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from samebits.errors import InputError, UnsupportedError
from samebits.ir import GraphBuilder, Quantization
from samebits.ir.foreign import enter_rule
from samebits.ir.lowering.states import integers
from samebits.ir.ops import Attribute
from samebits.spec.rounding import Rounding
from samebits.tflite.file import Array, LiteOperator, Scaling, Subgraph, Tensor
from samebits.tflite.same.multiplier import ends
from samebits.tflite.same.versions import Runtime

CODES = "int8"  # of activations


@dataclass
class SameNode:
    """An operator to translate.

    graph, operator: what the file says. values: the graph value of every tensor so far, by number.
    hint: from which names are made.
    """

    builder: GraphBuilder
    graph: Subgraph
    operator: LiteOperator
    values: MutableMapping[int, str]
    runtime: Runtime
    hint: str

    def tensor(self, index: int) -> Tensor:
        """The tensor of an input."""
        inputs = self.operator.inputs
        if index >= len(inputs) or inputs[index] < 0:
            raise InputError(f"expected input {index}, found none")
        return self.graph.tensors[inputs[index]]

    def has(self, index: int) -> bool:
        """Whether the input is given."""
        return index < len(self.operator.inputs) and self.operator.inputs[index] >= 0

    def input(self, index: int) -> str:
        """The codes of an input that is computed."""
        tensor, number = self.tensor(index), self.operator.inputs[index]
        if number not in self.values:
            raise UnsupportedError(
                f"expected {tensor} to be computed, found a constant or variable"
            )
        return self.values[number]

    def scale(self, index: int) -> Scaling:
        """The one scale of an input of codes."""
        return scale_of(self.tensor(index))

    @property
    def result(self) -> Tensor:
        """The tensor of the only output."""
        if len(self.operator.outputs) != 1:
            raise InputError(f"expected 1 output, found {len(self.operator.outputs)}")
        return self.graph.tensors[self.operator.outputs[0]]

    def array(self, index: int, what: str) -> Array:
        """The numbers of an input that must be constant. what: its role."""
        array = self.tensor(index).array
        if array is None:
            raise UnsupportedError(f"expected a constant as {what}, found {self.tensor(index)}")
        return array

    def weights(self, index: int) -> tuple[Array, tuple[float, ...]]:
        """Codes and scales of constant weights, whose zero points are 0."""
        tensor, array = self.tensor(index), self.array(index, "weights")
        found = tensor.quantization
        if tensor.dtype not in ("int8", "int4") or found is None or any(found.zero_points):
            raise UnsupportedError(f"expected weights of int8 or int4 with zero point 0, {tensor}")
        return array, found.scales

    def bias(self, index: int, rows: Array, zero: int) -> str:
        """The constant that is added to sums of codes: the bias, less zero times the weights.

        rows: the weights [outputs, ...].
        """
        codes = np.zeros(len(rows), np.int64)
        if self.has(index):
            given = self.array(index, "bias")
            if self.tensor(index).dtype != "int32" or given.shape != codes.shape:
                raise InputError(f"expected a bias of int32 [{len(rows)}], {self.tensor(index)}")
            codes = given.astype(np.int64)
        total = codes - zero * rows.reshape(len(rows), -1).astype(np.int64).sum(1)
        return self.builder.constant(f"{self.hint}.bias", integers(total))

    def option(self, name: str) -> Any:
        """An option of the operator."""
        return self.operator.options[name]

    def alike(self) -> None:
        """UnsupportedError unless input and result have one scale and zero point."""
        if self.scale(0) != scale_of(self.result):
            raise UnsupportedError("expected a result with the scale of the input, found another")

    # --- results ------------------------------------------------------------------------------

    def emit(self, op: str, inputs: Sequence[str], **attributes: Attribute) -> str:
        """Append an integer operator; the name of its output."""
        return self.builder.add(op, inputs, attributes, f"{self.hint}.{op}")

    def moved(self, op: str, inputs: Sequence[str], **attributes: Attribute) -> str:
        """Append an operator whose codes are the node's result."""
        return self._named(op, inputs, attributes)

    def requantized(self, total: str, *by: Rounding, zero: int | None = None) -> str:
        """The node's result: sums rounded to codes, within the fused activation's ends."""
        to = scale_of(self.result)
        low, high = ends(self.operator.options.get("activation", 0), to, CODES)
        offset = to.zero_points[0] if zero is None else zero
        attributes = {"ratios": by, "zero": offset, "low": low, "high": high, "dtype": CODES}
        return self._named("requantize", [total], attributes)

    def _named(self, op: str, inputs: Sequence[str], attributes: Any) -> str:
        tensor = self.result
        return self.builder.add(
            *(op, inputs, attributes, self.hint, [tensor.name or self.hint]),
            quantization=quantization_of(tensor),
        )


def scale_of(tensor: Tensor) -> Scaling:
    """The one scale of a tensor of int8 codes; UnsupportedError for any other tensor."""
    found = tensor.quantization
    if tensor.dtype != CODES or found is None or len(found.scales) > 1:
        raise UnsupportedError(
            f"expected codes of int8 with one scale, found {tensor}, {tensor.dtype}"
        )
    return found


def quantization_of(tensor: Tensor) -> Quantization:
    """The scale and zero point of a tensor's codes, exactly; of int8, or int16 of a softmax."""
    found = tensor.quantization if tensor.dtype == "int16" else None
    found = found or scale_of(tensor)
    return Quantization(Fraction(found.scales[0]), found.zero_points[0])


Rule = Callable[[SameNode], str]
RULES: dict[str, Rule] = {}


def same_op(*names: str) -> Callable[[Rule], Rule]:
    """Enter the rule of the operators of these names."""
    return enter_rule(RULES, names)
