"""One operator of a file on its way to integer operators with the runtime's own numbers."""

from __future__ import annotations

from collections.abc import Callable, MutableMapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from samebits import ledger
from samebits.errors import InputError, UnsupportedError
from samebits.ir import GraphBuilder, Quantization
from samebits.ir.foreign import enter_rule
from samebits.ir.integer.define import limits
from samebits.ir.lowering.states import integers
from samebits.ir.ops import Attribute
from samebits.spec.rounding import Rounding
from samebits.tflite.file import Array, LiteOperator, Scaling, Subgraph, Tensor
from samebits.tflite.same.multiplier import ends
from samebits.tflite.same.versions import Runtime

KINDS = ("int8", "int16")  # of activations
CHANNEL_BYTES = 160  # that a bias, its sums and their bounds take for one of them
ENDS = (*KINDS, "uint8")  # of what QUANTIZE takes and gives


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
        """The codes of an input, constant ones too."""
        tensor, number = self.tensor(index), self.operator.inputs[index]
        if number not in self.values and tensor.array is not None:
            found = quantization_of(tensor)
            name = tensor.name or f"{self.hint}.constant"
            self.values[number] = self.builder.constant(name, tensor.array, found)
        if number not in self.values:
            raise InputError(f"expected {tensor} to be computed, found nothing that writes it")
        return self.values[number]

    @property
    def kind(self) -> str:
        """The type of the codes of input 0."""
        return self.tensor(0).dtype

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

    def weights(
        self, index: int, kinds: Sequence[str] = ("int8", "int4")
    ) -> tuple[Array, tuple[float, ...]]:
        """Codes and scales of constant weights, whose zero points are 0."""
        tensor, array = self.tensor(index), self.array(index, "weights")
        found = tensor.quantization
        if tensor.dtype not in kinds or found is None or any(found.zero_points):
            named = " or ".join(kinds)
            raise UnsupportedError(f"expected weights of {named} with zero point 0, {tensor}")
        return array, found.scales

    def bias(self, index: int | None, rows: Array, zero: int) -> str:
        """The constant that is added to sums of codes: the bias, less zero times the weights.

        index: of the input that may hold it. rows: the weights [outputs, ...].
        """
        ledger.keep(CHANNEL_BYTES * len(rows), self.hint)  # of turns, the weights may be the same
        codes = np.zeros(len(rows), np.int64)
        if index is not None and self.has(index):
            given, dtype = self.array(index, "bias"), self.tensor(index).dtype
            if dtype not in ("int32", "int64") or given.shape != codes.shape:
                raise InputError(f"expected a bias of int32 [{len(rows)}], {self.tensor(index)}")
            codes = given.astype(np.int64)
        total = codes - zero * rows.reshape(len(rows), -1).astype(np.int64).sum(1)
        return self.builder.constant(f"{self.hint}.bias", integers(total))

    def whole(self, index: int, what: str, count: int | None = None) -> list[int]:
        """Whole numbers that must be constant, as many as `count`. what: their role."""
        array = self.array(index, what).reshape(-1)
        if array.dtype.kind not in "iu" or array.size != (array.size if count is None else count):
            raise InputError(f"expected {count} {what}, found {array.dtype}[{array.size}]")
        return [int(v) for v in array]

    def becomes(self, index: int, value: str) -> None:
        """Give a variable input the value that it holds after this operator."""
        self.values[self.operator.inputs[index]] = value

    def option(self, name: str) -> Any:
        """An option of the operator."""
        return self.operator.options[name]

    def alike(self, *others: int) -> None:
        """UnsupportedError unless input 0, these inputs and the results have one type, scale and
        zero point."""
        x = self.tensor(0)
        tensors = [x, *map(self.tensor, others), *map(self.graph.tensors.__getitem__, self.outputs)]
        quantization_of(x, KINDS)
        if any((t.dtype, t.quantization) != (x.dtype, x.quantization) for t in tensors):
            raise UnsupportedError("expected tensors of one type and scale, found others")

    @property
    def outputs(self) -> tuple[int, ...]:
        """The numbers of the tensors that the operator writes."""
        return self.operator.outputs

    # --- results ------------------------------------------------------------------------------

    def emit(self, op: str, inputs: Sequence[str], **attributes: Attribute) -> str:
        """Append an integer operator; the name of its output."""
        return self.builder.add(op, inputs, attributes, f"{self.hint}.{op}")

    def moved(self, op: str, inputs: Sequence[str], place: int = 0, **attributes: Attribute) -> str:
        """Append an operator whose codes are the node's result; place: among several."""
        return self._named(op, inputs, attributes, place)

    def rounded(self, total: str, *by: Rounding, dtype: str = "int16", **ends: int) -> str:
        """Sums rounded to codes that stand in no tensor of the file."""
        low, high = limits(dtype)
        given: dict[str, Any] = {
            "ratios": by,
            "zero": 0,
            "low": low,
            "high": high,
            "dtype": dtype,
            **ends,
        }
        return self.emit("requantize", [total], **given)

    def less(self, value: str, zero: int) -> str:
        """Codes less their zero point, as sums."""
        return self.emit("add", [value], factors=(1,), offset=-zero, dtype="int64")

    def tabulated(self, entries: Array) -> str:
        """The node's result by a table of all codes."""
        return self.moved("table", [self.input(0), self.table("table", entries)])

    def table(self, name: str, entries: Array) -> str:
        """A constant table, charged: files are small beside what their operators become."""
        ledger.keep(entries.nbytes, self.hint)
        return self.builder.constant(f"{self.hint}.{name}", entries)

    def requantized(
        self, total: str, *by: Rounding, zero: int | None = None, low: int | None = None
    ) -> str:
        """The node's result: sums rounded to codes, within the fused activation's ends; from `low`
        on, if that is given, in their place."""
        to = scale_of(self.result, ENDS)
        dtype = self.result.dtype
        least, high = ends(self.operator.options.get("activation", 0), to, dtype)
        if low is not None:
            least, high = low, limits(dtype)[1]
        offset = to.zero_points[0] if zero is None else zero
        attributes = {"ratios": by, "zero": offset, "low": least, "high": high, "dtype": dtype}
        return self._named("requantize", [total], attributes)

    def settled(self, total: str) -> str:
        """The node's result: sums that are its codes but for the zero point, saturated."""
        return self.requantized(total, Fraction(1))

    def _named(self, op: str, inputs: Sequence[str], attributes: Any, place: int = 0) -> str:
        tensor = self.graph.tensors[self.outputs[place]]
        found = quantization_of(tensor) if tensor.quantization is not None else None
        return self.builder.add(
            *(op, inputs, attributes, self.hint, [tensor.name or f"{self.hint}.{place}"]),
            quantization=found,
        )


def _one_scale(tensor: Tensor, kinds: Sequence[str]) -> Scaling:
    found = tensor.quantization
    if tensor.dtype not in kinds or found is None or len(found.scales) > 1:
        raise UnsupportedError(
            f"expected codes of {' or '.join(kinds)} with one scale, found {tensor}, {tensor.dtype}"
        )
    low, high = limits(tensor.dtype)
    if not low <= found.zero_points[0] <= high:
        raise InputError(f"expected a zero point among the codes of {tensor.dtype}, found {tensor}")
    return found


def scale_of(tensor: Tensor, kinds: Sequence[str] = KINDS) -> Scaling:
    """The one scale of a tensor of codes, of int16 with zero point 0; UnsupportedError for any
    other tensor."""
    found = _one_scale(tensor, kinds)
    if tensor.dtype == "int16" and found.zero_points[0]:
        raise UnsupportedError(f"expected codes of int16 with zero point 0, found {tensor}")
    return found


def quantization_of(tensor: Tensor, kinds: Sequence[str] = ENDS) -> Quantization:
    """The scale and zero point of a tensor's codes, exactly."""
    found = _one_scale(tensor, kinds)
    return Quantization(Fraction(found.scales[0]), found.zero_points[0])


Rule = Callable[[SameNode], str | tuple[str, ...]]
RULES: dict[str, Rule] = {}


def same_op(*names: str) -> Callable[[Rule], Rule]:
    """Enter the rule of the operators of these names."""
    return enter_rule(RULES, names)
