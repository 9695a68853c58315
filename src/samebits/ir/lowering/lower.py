"""Quantized real graph -> integer graph. docs/spec/graph.md section 4.

Every real value is tracked as an exact function of codes (`lowered`); a QuantizeLinear turns it
into integer operators. The rules per operator are in `lower_products`, `lower_pointwise` and
`lower_shape`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np

from samebits.errors import SamebitsError, UnsupportedError
from samebits.ir.graph import Array, Graph, GraphBuilder, Node
from samebits.ir.integer.bounds import bounds
from samebits.ir.integer.define import CODES, limits
from samebits.ir.lowering import pointwise, products
from samebits.ir.lowering import shape as lower_shape
from samebits.ir.lowering.sink import sink_quantize
from samebits.ir.lowering.states import (
    NONE,
    ONE,
    Affine,
    Codes,
    ConstantCodes,
    ConstantReals,
    LoweringBuilder,
    Pointwise,
    Softmax,
    State,
    States,
    Sum,
    common_unit,
    integers,
    point_of,
    quantization_of,
    with_offset,
)
from samebits.ir.lowering.sums import shorten_sums
from samebits.ir.rewrite import remove_dead
from samebits.ir.value import Quantization
from samebits.spec.formats import round_binary32, round_real
from samebits.tables.transfer import CodeRange, exp_table, transfer_table

SOFTMAX_OUTPUT = Quantization(Fraction(1, 1 << 16))  # of a Softmax that leaves the graph: uint16
LARGEST_SUM = 1 << 31
LARGEST_TABLE = 1 << 24  # entries of one per-channel table
Rule = Callable[[LoweringBuilder, Node, States], list[State]]


def lower_graph(graph: Graph) -> Graph:
    """The integer graph of a quantized real graph: the same function, on codes.

    Inputs and outputs keep their names and order and carry their Quantization. Raises
    UnsupportedError naming the node where the graph is not quantized or has no integer form.
    """
    wide = _Lowering(sink_quantize(graph)).run()
    return narrow_accumulators(shorten_sums(remove_dead(wide)), graph.outputs)


def narrow_accumulators(graph: Graph, outputs: Sequence[str]) -> Graph:
    """int32 for every accumulator that provably fits, int64 for the others; outputs renamed."""
    found = bounds(graph)
    wished = dict(zip(graph.outputs, outputs, strict=True))
    builder, renamed = GraphBuilder.like(graph)
    for node in graph.nodes:
        attributes = dict(node.attributes)
        if attributes.get("dtype") == "int64":
            hull = found[node.output].hull
            low, high = limits("int32")
            if low <= hull.low[0] and hull.high[0] <= high:
                attributes["dtype"] = "int32"
        renamed[node.output] = builder.add(
            node.op,
            [renamed[name] for name in node.inputs],
            attributes,
            node.name,
            [
                wished.get(
                    node.output, f"{node.output}.inner" if node.output in outputs else node.output
                )
            ],
            graph.values[node.output].quantization,
        )
    return builder.build(renamed[name] for name in graph.outputs)


class _Lowering:
    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.builder = LoweringBuilder(graph)
        self.states: dict[str, State] = {}
        self.used: set[str] = set()  # values that are outputs

    def run(self) -> Graph:
        for name in self.graph.inputs:
            self._input(name)
        for name, array in self.graph.constants.items():
            self.states[name] = _constant(array)
        for node in self.graph.nodes:
            states = [self.states[i] if i else None for i in node.inputs]
            try:
                for output, state in zip(node.outputs, self._node(node, states), strict=True):
                    self.states[output] = state
            except SamebitsError as error:
                text = str(error)
                if repr(node.name) in text:
                    raise
                raise type(error)(f"node {node.name!r} ({node.op}): {text}") from None
            except ValueError as error:
                raise UnsupportedError(f"node {node.name!r} ({node.op}): {error}") from None
        outputs = [self._output(name) for name in self.graph.outputs]
        self._states(outputs)
        return self.builder.build(outputs)

    # --- edges of the graph -----------------------------------------------------------------

    def _input(self, name: str) -> None:
        value = self.graph.values[name]
        order = tuple(range(len(value.shape)))
        if not value.dtype.startswith("float"):
            if value.dtype not in CODES:
                raise UnsupportedError(
                    f"input {name!r}: expected real numbers or codes of 8 or 16 bits, found "
                    f"{value.dtype}"
                )
            self.states[name] = Codes(self.builder.input(name, value.dtype, value.shape), order)
            return
        readers = self.graph.consumers()[name]
        wanted = {
            (*self._target(node), self.graph.values[node.output].dtype)
            for node in readers
            if node.op == "QuantizeLinear" and node.inputs[0] == name
        }
        if len(wanted) != 1 or any(node.op != "QuantizeLinear" for node in readers):
            raise UnsupportedError(
                f"input {name!r}: expected one QuantizeLinear that reads it, found "
                f"{', '.join(node.op for node in readers) or 'nothing'}; quantize the model first"
            )
        scale, zero, dtype = wanted.pop()
        codes = self.builder.input(name, dtype, value.shape, Quantization(scale, zero))
        self.states[name] = Affine(Codes(codes, order), scale, zero)

    def _output(self, name: str) -> str:
        state = self.states[name]
        order = tuple(range(len(self.graph.values[name].shape)))
        builder = self.builder
        if isinstance(state, Softmax):
            state = self._quantize_softmax(state, SOFTMAX_OUTPUT.scale, 0, "uint16", name)
        quantization = None
        if isinstance(state, Affine):
            if isinstance(state.source, Sum):
                state = with_offset(state, Node("output", name, (), (name,)))
            quantization = quantization_of(state)
            if quantization is None:
                raise UnsupportedError(
                    f"output {name!r}: expected quantized values or an accumulator with one scale; "
                    "add a QuantizeLinear at the output"
                )
            state = self.builder.stored(state)
        if not isinstance(state, Codes):
            raise UnsupportedError(
                f"output {name!r}: expected quantized values, found {type(state).__name__}; "
                "add a QuantizeLinear at the output"
            )
        stored = self.builder.arranged(state, order)
        if quantization is None:
            quantization = builder.values[stored].quantization
        taken = stored in builder.inputs or stored in builder.constants or stored in self.used
        if taken:  # an output is a value of its own
            shape = self.builder.shape(stored)
            stored = builder.add("reshape", [stored], {"shape": shape}, name=f"{name}.copy")
        builder.values[stored] = replace(builder.values[stored], quantization=quantization)
        self.used.add(stored)
        return stored

    def _states(self, outputs: Sequence[str]) -> None:
        """States must have the codes that they get; their first values are rounded to such."""
        builder, count = self.builder, len(self.graph.states)
        for index, state in enumerate(self.graph.states, -count):
            before, after = builder.values[builder.inputs[index]], builder.values[outputs[index]]
            if (before.dtype, before.quantization) != (after.dtype, after.quantization):
                raise UnsupportedError(
                    f"state {state.input!r}: expected the codes of its next value, {after} with "
                    f"{after.quantization}, found {before} with {before.quantization}; quantize "
                    "both alike"
                )
            name = f"{state.input}.initial"
            if not state.initial:
                name = ""
            elif before.quantization is None:
                name = builder.constant(name, self.graph.constants[state.initial])
            else:
                numbers = before.quantization.scale, before.quantization.zero_point
                reals = self.states[state.initial]
                assert isinstance(reals, ConstantReals)
                name = self._constant_codes(reals, *numbers, before.dtype, name).name
            builder.initial.append(name)

    # --- nodes ------------------------------------------------------------------------------

    def _node(self, node: Node, states: States) -> list[State]:
        if node.op == "QuantizeLinear":
            return [self._quantize(node, states[0])]
        if node.op == "DequantizeLinear":
            return [self._dequantize(node, states[0])]
        rule = RULES.get(node.op)
        if rule is None:
            raise UnsupportedError("this operator has no integer form")
        return rule(self.builder, node, states)

    def _constants(self, node: Node, index: int) -> Array:
        name = node.inputs[index] if index < len(node.inputs) else ""
        if not name:
            return np.zeros(1, np.int64)
        if name not in self.graph.constants:
            raise UnsupportedError("expected a constant scale and zero point")
        return self.graph.constants[name]

    def _target(self, node: Node) -> tuple[Fraction, int]:
        """Scale and zero point of a QuantizeLinear with one of each."""
        scale, zero = self._constants(node, 1), self._constants(node, 2)
        if scale.size != 1 or zero.size != 1:
            raise UnsupportedError(
                f"node {node.name!r} (QuantizeLinear): expected one scale for an activation, "
                f"found {scale.size}; per-channel scales are for weights"
            )
        return _scale(scale.reshape(-1)[0]), int(zero.reshape(-1)[0])

    def _dequantize(self, node: Node, x: State | None) -> State:
        _no_blocks(node)
        scales, zeros = self._constants(node, 1).reshape(-1), self._constants(node, 2).reshape(-1)
        exact = tuple(_scale(s) for s in scales)
        rank = len(self.graph.values[node.inputs[0]].shape)
        axis = node.attributes["axis"] % rank if len(exact) > 1 and rank else None
        if isinstance(x, ConstantReals):
            codes = x.values.astype(np.int64)
            shape = [1] * rank
            if zeros.size > 1 and axis is not None:
                shape[axis] = zeros.size
            zero = zeros.astype(np.int64).reshape(shape) if rank else int(zeros[0])
            return ConstantCodes(codes - zero, exact, axis)
        if not isinstance(x, Codes):
            raise UnsupportedError("expected codes")
        if len(set(zeros.tolist())) != 1:
            raise UnsupportedError("expected one zero point for an activation")
        zero_point = int(zeros[0])
        if axis is None:
            return Affine(x, exact[0], zero_point)
        return Affine(x, Fraction(1), zero_point, gain=exact, axis=axis)

    def _quantize(self, node: Node, x: State | None) -> State:
        _no_blocks(node)
        scale, zero = self._target(node)
        dtype = self.graph.values[node.output].dtype
        name = node.output
        if isinstance(x, (ConstantReals, ConstantCodes)):
            return self._constant_codes(x, scale, zero, dtype, name)
        if isinstance(x, Softmax):
            return self._quantize_softmax(x, scale, zero, dtype, name)
        if isinstance(x, Affine) and isinstance(x.source, Sum):
            return self._requantize(with_offset(x, node), scale, zero, dtype, name)
        if isinstance(x, Affine):
            return self._recode(x, scale, zero, dtype, name)
        if isinstance(x, Pointwise):
            return self._table(x, scale, zero, dtype, name)
        raise UnsupportedError("expected real numbers, found codes")

    def _constant_codes(
        self, x: ConstantReals | ConstantCodes, scale: Fraction, zero: int, dtype: str, name: str
    ) -> Codes:
        """Codes of constants."""
        shape = (x.values if isinstance(x, ConstantReals) else x.codes).shape
        reals = np.broadcast_to(x.exact(), shape).flat
        low, high = limits(dtype)
        codes = [min(max(round_real(r / scale) + zero, low), high) for r in reals]
        stored = self.builder.constant(
            name, np.array(codes, dtype).reshape(shape), Quantization(scale, zero)
        )
        return Codes(stored, tuple(range(len(shape))))

    def _requantize(self, x: Affine, scale: Fraction, zero: int, dtype: str, name: str) -> Codes:
        """A sum of codes: one product with the exact ratio, one rounding, saturate."""
        assert isinstance(x.source, Sum)
        if min(x.gain) <= 0:
            raise UnsupportedError(f"expected positive scales, found {float(min(x.gain))}")
        if len(x.gain) > 1 and x.axis != x.source.order[-1]:
            raise UnsupportedError(
                f"expected scales along the channels of the accumulator, found axis {x.axis}"
            )
        total = self.builder.accumulate(x.source)
        low, high = _code_range(x, scale, zero, dtype)
        codes = self.builder.add(
            "requantize",
            [total.name],
            {
                "ratios": tuple(gain / scale for gain in x.gain),
                "zero": zero,
                "low": low,
                "high": high,
                "dtype": dtype,
            },
            name=f"{x.source.name}.requantize",
            outputs=[name],
            quantization=Quantization(scale, zero),
        )
        return Codes(codes, total.order)

    def _recode(self, x: Affine, scale: Fraction, zero: int, dtype: str, name: str) -> Codes:
        """Codes to other codes: nothing, a clip, a multiply-add per channel, or a table."""
        assert isinstance(x.source, Codes)
        source = self.builder.dtype(x.source.name)
        same = (x.unit, x.zero, source) == (scale, zero, dtype) and x.gain == ONE
        if same and x.offset == NONE:
            if not x.clipped:
                return x.source
            low, high = _code_range(x, scale, zero, dtype)
            codes = self.builder.add(
                "clip",
                [x.source.name],
                {"low": low, "high": high},
                name=f"{name}.clip",
                outputs=[name],
                quantization=Quantization(scale, zero),
            )
            return Codes(codes, x.source.order)
        if max(len(x.gain), len(x.offset)) > 1:
            affine = self._affine(x, name)
            if affine is not None:
                return self._requantize(affine, scale, zero, dtype, name)
        return self._table(point_of(x), scale, zero, dtype, name)

    def _affine(self, x: Affine, name: str) -> Affine | None:
        """gain * unit * (code - zero) + offset as integers m * code + b in one common unit, or None
        where those are too large."""
        assert isinstance(x.source, Codes)
        assert x.axis is not None
        size = self.builder.shape(x.source.name)[x.source.order.index(x.axis)]
        pairs = [(gain * x.unit, offset - gain * x.unit * x.zero) for gain, offset in x.over(size)]
        unit = common_unit([v for pair in pairs for v in pair])
        m = [int(a / unit) for a, _ in pairs]
        b = [int(c / unit) for _, c in pairs]
        low, high = limits(self.builder.dtype(x.source.name))
        reach = max(abs(low), abs(high))
        if any(abs(mc) * reach + abs(bc) >= LARGEST_SUM for mc, bc in zip(m, b, strict=True)):
            return None
        order = (*(axis for axis in x.source.order if axis != x.axis), x.axis)
        inputs = (
            self.builder.arranged(x.source, order),
            self.builder.constant(f"{name}.m", integers(m)),
            self.builder.constant(f"{name}.b", integers(b)),
        )
        total = Sum("affine", inputs, {}, order, f"{name}.affine")
        return Affine(total, gain=(unit,), low=x.low, high=x.high)

    def _table(self, x: Pointwise, scale: Fraction, zero: int, dtype: str, name: str) -> Codes:
        """A transfer table: every code of the input through the function, correctly rounded."""
        source = self.builder.dtype(x.source.name)
        entries = CodeRange(x.unit, x.zero, *limits(source))
        target = CodeRange(scale, zero, *limits(dtype))
        if source not in CODES:
            raise UnsupportedError(f"expected codes of 8 or 16 bits, found {source}")
        if len(x.expressions) << (8 * np.dtype(source).itemsize) > LARGEST_TABLE:
            raise UnsupportedError(
                f"a table per channel of {len(x.expressions)} channels of {source} codes: expected "
                f"at most {LARGEST_TABLE} entries; use 8-bit codes there"
            )
        rows = [transfer_table(e, entries, target).codes for e in x.expressions]
        order = x.source.order
        if x.axis is not None:
            order = (*(axis for axis in order if axis != x.axis), x.axis)
        values = np.array(rows if len(rows) > 1 else rows[0]).astype(dtype)
        codes = self.builder.add(
            "table",
            [
                self.builder.arranged(x.source, order),
                self.builder.constant(f"{name}.table", values),
            ],
            {},
            name=f"{name}.transfer",
            outputs=[name],
            quantization=Quantization(scale, zero),
        )
        return Codes(codes, order)

    def _quantize_softmax(
        self, x: Softmax, scale: Fraction, zero: int, dtype: str, name: str
    ) -> Codes:
        low, high = limits(self.builder.dtype(x.source.name))
        order = (*(axis for axis in x.source.order if axis != x.axis), x.axis)
        powers = np.array(exp_table(x.unit, high - low + 1), np.int32)
        least, most = limits(dtype)
        codes = self.builder.add(
            "softmax",
            [
                self.builder.arranged(x.source, order),
                self.builder.constant(f"{name}.exp", powers),
            ],
            {
                "ratio": round_binary32(1 / scale),
                "zero": zero,
                "low": least,
                "high": most,
                "dtype": dtype,
            },
            name=f"{name}.softmax",
            outputs=[name],
            quantization=Quantization(scale, zero),
        )
        return Codes(codes, order)


def _no_blocks(node: Node) -> None:
    if node.attributes["block_size"]:
        raise UnsupportedError("expected scales per tensor or per axis, found blocks")


def _scale(value: Any) -> Fraction:
    if not (np.isfinite(value) and value > 0):
        raise UnsupportedError(f"expected a positive finite scale, found {value}")
    return Fraction(float(value))


def _constant(array: Array) -> State:
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise UnsupportedError("expected finite constants, found NaN or infinity")
    return ConstantReals(array)


def _code_range(x: Affine, scale: Fraction, zero: int, dtype: str) -> tuple[int, int]:
    """The clip as codes; rounding is monotone, so clip and rounding change places."""
    least, most = limits(dtype)

    def code(real: Fraction) -> int:
        return min(max(round_real(real / scale) + zero, least), most)

    low = least if x.low is None else code(x.low)
    high = most if x.high is None else code(x.high)
    return low, high


RULES: dict[str, Rule] = {
    **products.RULES,
    **pointwise.RULES,
    **lower_shape.RULES,
}
