"""A TensorFlow Lite file under construction from an integer graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import numpy as np

from samebits.errors import UnsupportedError
from samebits.ir import Graph, Node
from samebits.ir.foreign import enter_rule
from samebits.ir.integer.define import limits
from samebits.tflite.file import Array, LiteOperator, Scaling, Subgraph, Tensor
from samebits.tflite.same.multiplier import ends
from samebits.tflite.same.node import KINDS
from samebits.tflite.schema import ACTIVATIONS, OPTIONS, OPTIONS_OF

NEAR = Fraction(1, 1 << 20)  # within which two ratios are one that binary32 scales round
NUMBERS = {name: number for number, name in ACTIVATIONS.items()}
_PLAIN: Mapping[str, Any] = {"?": False, "f": 0.0, "s": ""}


def close(a: Fraction, b: Fraction) -> bool:
    """Whether two ratios differ by no more than the roundings of scales to binary32."""
    return abs(a - b) <= NEAR * abs(b)


@dataclass
class FileBuilder:
    """Tensors and operators so far.

    numbers: the tensor of every value of the graph that has one
    """

    graph: Graph
    tensors: list[Tensor] = field(default_factory=list)
    operators: list[LiteOperator] = field(default_factory=list)
    numbers: dict[str, int] = field(default_factory=dict)

    def tensor(
        self,
        name: str,
        dtype: str,
        shape: Sequence[int],
        scaling: Scaling | None = None,
        array: Array | None = None,
    ) -> int:
        """Append a tensor; its number."""
        self.tensors.append(Tensor(name, dtype, tuple(shape), array, scaling))
        return len(self.tensors) - 1

    def integers(self, values: Any) -> int:
        """Constant numbers that stand for themselves."""
        array = np.asarray(values, np.int32)
        return self.tensor(f"constant{len(self.tensors)}", "int32", array.shape, array=array)

    def scaling(self, name: str) -> Scaling:
        """The scale and zero point of the codes of a value."""
        value = self.graph.values[name]
        known = value.quantization
        if value.dtype not in KINDS or known is None or not known.plain:
            raise UnsupportedError(
                f"expected codes of int8 or int16 with one scale, found {value}; quantize with "
                "such activations"
            )
        if value.dtype == "int16" and known.zero_point:
            raise UnsupportedError(f"expected int16 codes with zero point 0, found {value}")
        return Scaling((binary32(known.scale),), (known.zero_point,))

    def result(self, name: str) -> int:
        """The tensor of a value that the next operator writes."""
        value = self.graph.values[name]
        number = self.tensor(name, value.dtype, value.shape, self.scaling(name))
        self.numbers[name] = number
        return number

    def operand(self, name: str) -> int:
        """The tensor of a value that was computed, or of constant codes."""
        if name not in self.numbers:
            array = self.graph.constants.get(name)
            if array is None:
                raise UnsupportedError(f"expected {name!r} to have codes, found sums")
            self.numbers[name] = self.tensor(
                name, str(array.dtype), array.shape, self.scaling(name), array
            )
        return self.numbers[name]

    def add(self, op: str, inputs: Sequence[int], outputs: Sequence[int], **given: Any) -> None:
        """Append an operator, options that are not given by their defaults."""
        options: dict[str, Any] = {}
        if op in OPTIONS_OF:
            fields = OPTIONS[OPTIONS_OF[op]][1]
            options = {k: _PLAIN.get(f.kind, f.default) for k, f in fields.items()} | given
        self.operators.append(LiteOperator(op, tuple(inputs), tuple(outputs), options))

    def bounded(self, name: str, number: int, low: int, high: int) -> None:
        """The codes of a tensor between two ends, as the value of this name."""
        least, most = limits(self.graph.values[name].dtype)
        steps = [("MAXIMUM", low)] * (low > least) + [("MINIMUM", high)] * (high < most)
        of = self.tensors[number]
        for index, (op, end) in enumerate(steps):
            array = np.array([end], of.dtype)
            constant = self.tensor(f"{name}.{op.lower()}", of.dtype, (1,), of.quantization, array)
            last = index == len(steps) - 1
            label = name if last else f"{name}.bounded"
            made = self.tensor(label, of.dtype, of.shape, of.quantization)
            self.add(op, [number, constant], [made])
            number = made
        self.numbers[name] = number

    def file(self) -> Subgraph:
        """The network of all inputs and outputs of the graph."""
        graph = self.graph
        inputs = tuple(self.numbers[name] for name in graph.inputs)
        outputs = tuple(self.numbers[name] for name in graph.outputs)
        return Subgraph(tuple(self.tensors), tuple(self.operators), inputs, outputs, graph.name)


def binary32(scale: Fraction) -> float:
    """A scale as a file holds it."""
    found = float(np.float32(float(scale)))
    if not 0 < found < float("inf"):
        raise UnsupportedError(f"expected scales that binary32 holds, found {float(scale)}")
    return found


@dataclass
class Rounded:
    """A sum and the `requantize` that alone reads it, or an operator by itself."""

    builder: FileBuilder
    node: Node
    last: Node | None = None

    @property
    def name(self) -> str:
        """The value that is written."""
        return (self.last or self.node).output

    def exact(self, index: int) -> Fraction:
        """The scale of an input, as the file has it."""
        return Fraction(self.builder.scaling(self.node.inputs[index]).scales[0])

    @property
    def unit(self) -> Fraction:
        """The scale of the result, as the file has it."""
        return Fraction(self.builder.scaling(self.name).scales[0])

    @property
    def ratios(self) -> tuple[Fraction, ...]:
        """By which sums are rounded."""
        if self.last is None:
            raise UnsupportedError(f"expected a sum that is rounded to codes, found {self.name!r}")
        ratios = self.last.attributes["ratios"]
        if any(type(ratio) is not Fraction for ratio in ratios):
            raise UnsupportedError("expected exact ratios, found a runtime's own roundings")
        return tuple(ratios)

    def ratio(self, wanted: Fraction, what: str) -> None:
        """UnsupportedError unless the only ratio is this one."""
        if len(self.ratios) != 1 or not close(self.ratios[0], wanted):
            raise UnsupportedError(f"expected {what} in the scales of its tensors, found another")

    def write(self, op: str, inputs: Sequence[int], **options: Any) -> None:
        """Append the operator, within the ends of its codes: a fused activation where it has them,
        else operators behind it."""
        builder, name = self.builder, self.name
        value, to = builder.graph.values[name], builder.scaling(name)
        own = self.last.attributes if self.last is not None else {}
        low, high = limits(value.dtype)
        low, high = own.get("low", low), own.get("high", high)
        fused = "activation" in options or (
            op in OPTIONS_OF and "activation" in OPTIONS[OPTIONS_OF[op]][1]
        )
        for activation in ("NONE", "RELU", "RELU6", "RELU_N1_TO_1") if fused else ("NONE",):
            if ends(NUMBERS[activation], to, value.dtype) == (low, high):
                more = {"activation": NUMBERS[activation]} if fused else {}
                builder.add(op, inputs, [builder.result(name)], **options, **more)
                return
        free = builder.tensor(f"{name}.free", value.dtype, value.shape, to)
        builder.add(op, inputs, [free], **options)
        builder.bounded(name, free, low, high)


Rule = Callable[[Rounded], None]
RULES: dict[str, Rule] = {}


def export_op(*names: str) -> Callable[[Rule], Rule]:
    """Enter the rule of the integer operators of these names."""
    return enter_rule(RULES, names)
