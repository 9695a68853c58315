"""Quantized real graph -> integer graph. docs/spec/graph.md section 4.

Every real value is tracked as an exact function of codes (`states`); a QuantizeLinear turns it into
integer operators. The rules per operator are in `rules`.

Example: DequantizeLinear, Relu, QuantizeLinear. The first makes Affine(codes, scale, zero), nothing
is computed. Relu clips that description at 0. The last compares it with the codes that it wants:
with the scale and zero point of the first a `clip` at the code of 0 is the whole function, with
others it is a `table`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np

from samebits.errors import SamebitsError, UnsupportedError
from samebits.ir.graph import Array, Graph, Node
from samebits.ir.integer.bounds import bounds
from samebits.ir.integer.define import CODES, limits
from samebits.ir.levels import InputEntry, entry_of
from samebits.ir.lowering import normalize, pointwise, root, softmax
from samebits.ir.lowering import shape as lower_shape
from samebits.ir.lowering.blocks import split_blocks
from samebits.ir.lowering.check import check_inputs
from samebits.ir.lowering.rules import rule_of
from samebits.ir.lowering.sink import sink_quantize, sink_requantize
from samebits.ir.lowering.states import (
    NONE,
    ONE,
    Affine,
    Codes,
    CodeTarget,
    ConstantCodes,
    ConstantReals,
    LoweringBuilder,
    Normalized,
    Order,
    Pointwise,
    Root,
    Softmax,
    State,
    States,
    Sum,
    as_sum,
    common_unit,
    integers,
    point_of,
    quantization_of,
    with_offset,
)
from samebits.ir.lowering.sums import rebuilt, shorten_sums
from samebits.ir.ops import has
from samebits.ir.real.quantize import saturation
from samebits.ir.rewrite import remove_dead
from samebits.ir.traits import Trait
from samebits.ir.value import Quantization
from samebits.tables.interval import CodeRange
from samebits.tables.transfer import transfer_table

SOFTMAX_OUTPUT = Fraction(1, 1 << 16)  # of a Softmax that leaves the graph: uint16
LARGEST_SUM, LARGEST_WIDE_SUM = 1 << 31, 1 << 62
BYTE = 255  # the span of 8-bit codes
LARGEST_TABLE = 1 << 24  # entries of one per-channel table


def lower_graph(graph: Graph) -> Graph:
    """The integer graph of a quantized real graph: the same function, on codes.

    Inputs and outputs keep their names and order and carry their Quantization. Raises
    UnsupportedError naming the node where the graph is not quantized or has no integer form.
    """
    wide = _Lowering(sink_quantize(split_blocks(graph))).run()
    return narrow_accumulators(shorten_sums(sink_requantize(remove_dead(wide))), graph.outputs)


def narrow_accumulators(graph: Graph, outputs: Sequence[str]) -> Graph:
    """int32 for every accumulator that provably fits, int64 for the others; outputs renamed."""
    found = bounds(graph)
    low, high = limits("int32")
    changed: dict[str, dict[str, Any]] = {}
    for node in graph.nodes:
        hull = found[node.output].hull
        fits = low <= hull.low[0] and hull.high[0] <= high
        if node.attributes.get("dtype") == "int64" and fits:
            changed[node.output] = {"dtype": "int32"}
    inner = {name: f"{name}.inner" for name in outputs}
    return rebuilt(graph, changed, {**inner, **dict(zip(graph.outputs, outputs, strict=True))})


class _Lowering:
    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.builder = LoweringBuilder(graph)
        self.states: dict[str, State] = {}
        self.used: set[str] = set()  # values that are outputs
        self.entries: set[str] = set()  # values that the codes of inputs stand for
        self.entered: set[str] = set()  # nodes between inputs and those

    def run(self) -> Graph:
        """The integer graph, not yet optimised. Errors of a rule gain the node's name and operator;
        a ValueError (shapes that an integer operator does not take) becomes UnsupportedError."""
        check_inputs(self.graph, self.builder.flags, self.builder.masks)
        for name in self.graph.inputs:
            self._input(name)
        for name, array in self.graph.constants.items():
            self.states[name] = ConstantReals(array)
        for node in self.graph.nodes:
            if node.name in self.entered:
                continue
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
        """An input of the integer graph: the codes of the one QuantizeLinear that reads a real
        input, or the 8- or 16-bit codes that the input is already. UnsupportedError for any other.
        """
        value = self.graph.values[name]
        order = tuple(range(len(value.shape)))
        if not value.dtype.startswith("float"):
            self.states[name] = Codes(self.builder.input(name, value.dtype, value.shape), order)
            return
        own = name in self.graph.own_inputs
        entry = entry_of(self.graph, name) if own else InputEntry(name)
        readers = self.graph.consumers()[entry.value]
        self.entries.add(entry.value)
        self.entered.update(entry.nodes)
        wanted = {
            (self._input_quantization(node), self.graph.values[node.output].dtype)
            for node in readers
            if node.op == "QuantizeLinear" and node.inputs[0] == entry.value
        }
        if len(wanted) != 1 or any(node.op != "QuantizeLinear" for node in readers):
            raise UnsupportedError(
                f"input {name!r}: expected one QuantizeLinear that reads it, found "
                f"{', '.join(node.op for node in readers) or 'nothing'}; quantize the model first, "
                "its inputs too"
            )
        quantization, dtype = wanted.pop()
        given = entry.before(quantization, value.shape)
        codes = Codes(self.builder.input(name, dtype, value.shape, given), order)
        self.states[name] = Affine(codes, quantization.scale, quantization.zero_point)
        self.states[entry.value] = self.states[name]

    def _output(self, name: str) -> str:
        """An output of the integer graph: codes, or an accumulator in one unit, with the
        Quantization that says what they stand for. An input, a constant or another output is
        copied, so that each output is a value of its own. UnsupportedError for real values that no
        QuantizeLinear has made codes."""
        state = self.states[name]
        order = tuple(range(len(self.graph.values[name].shape)))
        builder = self.builder
        if isinstance(state, Softmax) and not state.logarithm:
            target = CodeTarget(SOFTMAX_OUTPUT, 0, "uint16", name, limits("uint16"))
            state = self._quantize_softmax(state, target)
        quantization = None
        if isinstance(state, Affine):
            if isinstance(state.source, Sum):
                node = Node("output", name, (), (name,))
                state = pointwise.with_one_scale(builder, node, with_offset(state, node))
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
                target = CodeTarget(*numbers, before.dtype, name, limits(before.dtype))
                name = self._constant_codes(reals, target).name
            builder.initial.append(name)

    # --- nodes ------------------------------------------------------------------------------

    def _node(self, node: Node, states: States) -> list[State]:
        if node.op == "QuantizeLinear":
            return [self._quantize(node, states[0])]
        if node.op == "DequantizeLinear":
            return [self._dequantize(node, states[0])]
        if node.output in self.builder.flags and not has(node.op, Trait.MOVEMENT):
            flag = next(state for state in states if isinstance(state, Codes))
            return [lower_shape.expanded(self.builder, node, flag)]
        return rule_of(node)(self.builder, node, states)

    def _constants(self, node: Node, index: int) -> Array:
        name = node.inputs[index] if index < len(node.inputs) else ""
        if not name:
            return np.zeros(1, np.int64)
        if name not in self.graph.constants:
            raise UnsupportedError("expected a constant scale and zero point")
        return self.graph.constants[name]

    def _scale_and_zero(self, node: Node) -> tuple[Fraction, int]:
        """Scale and zero point of a QuantizeLinear with one of each."""
        scale, zero = self._constants(node, 1), self._constants(node, 2)
        if scale.size != 1 or zero.size != 1:
            raise UnsupportedError(
                f"node {node.name!r} (QuantizeLinear): expected one scale for an activation, "
                f"found {scale.size}; per-channel scales are for weights"
            )
        return _scale(scale.reshape(-1)[0]), int(zero.reshape(-1)[0])

    def _input_quantization(self, node: Node) -> Quantization:
        """The zero point and the scale of an input, or the scales of the indices of its last
        axis."""
        scales = self._constants(node, 1)
        rank = len(self.graph.values[node.inputs[0]].shape)
        if scales.size == 1 or node.attributes["axis"] % max(rank, 1) != rank - 1:
            return Quantization(*self._scale_and_zero(node))
        _no_blocks(node)
        zeros = set(self._constants(node, 2).reshape(-1).tolist())
        if len(zeros) > 1:
            raise UnsupportedError(
                f"node {node.name!r} (QuantizeLinear): expected one zero point for an input, found "
                f"{len(zeros)}"
            )
        exact = [_scale(s) for s in scales.reshape(-1)]
        unit = common_unit(exact)
        return Quantization(unit, int(zeros.pop()), tuple(int(s / unit) for s in exact))

    def _dequantize(self, node: Node, x: State | None) -> State:
        """The numbers scale * (code - zero point): constants with their zero points subtracted, or
        codes with one zero point and one scale for all or for each index of an axis."""
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
        """The codes that a QuantizeLinear makes of its input, each rounded once from the exact
        number."""
        _no_blocks(node)
        dtype = self.graph.values[node.output].dtype
        ends = saturation(dtype, node.attributes)
        if node.inputs[0] in self.entries and isinstance(x, Affine):
            return self._within(x.codes, ends, node.output)  # `_input` has made these the input
        target = CodeTarget(*self._scale_and_zero(node), dtype, node.output, ends)
        if isinstance(x, (ConstantReals, ConstantCodes)):
            return self._constant_codes(x, target)
        if isinstance(x, Softmax):
            return self._quantize_softmax(x, target)
        if isinstance(x, Normalized):
            return self._quantize_normalized(x, target)
        if isinstance(x, Root):
            return self._quantize_root(x, target)
        if isinstance(x, Affine) and self.builder.is_sum(x):
            return self._requantize(with_offset(as_sum(x, node), node), target)
        if isinstance(x, Affine):
            return self._recode(x, target)
        if isinstance(x, Pointwise):
            return self._table(x, target)
        raise UnsupportedError("expected real numbers, found codes")

    def _within(self, x: Codes, ends: tuple[int, int], name: str) -> Codes:
        """Codes of an input, which may be any of their type, between two ends."""
        if ends == limits(self.builder.dtype(x.name)):
            return x
        clip = dict(zip(("low", "high"), ends, strict=True))
        return Codes(self.builder.moved("clip", [x.name], clip, f"{name}.clip"), x.order)

    def _coded(
        self,
        op: str,
        inputs: Sequence[str],
        order: Order,
        to: CodeTarget,
        name: str,
        attributes: Any,
    ) -> Codes:
        """A node that writes the codes of a target. order: of their axes as stored."""
        codes = self.builder.add(op, inputs, attributes, name, [to.name], to.quantization)
        return Codes(codes, order)

    def _constant_codes(self, x: ConstantReals | ConstantCodes, to: CodeTarget) -> Codes:
        """Codes of constants."""
        shape = (x.values if isinstance(x, ConstantReals) else x.codes).shape
        codes = [to.code(real) for real in np.broadcast_to(x.exact(), shape).flat]
        array = np.array(codes, to.dtype).reshape(shape)
        stored = self.builder.constant(to.name, array, to.quantization)
        return Codes(stored, tuple(range(len(shape))))

    def _requantize(self, x: Affine, to: CodeTarget) -> Codes:
        """A sum of codes: one product with the exact ratio, one rounding, saturate."""
        assert isinstance(x.source, Sum)
        if min(x.gain) <= 0:
            raise UnsupportedError(f"expected positive scales, found {float(min(x.gain))}")
        if len(x.gain) > 1 and x.axis != x.source.order[-1]:
            raise UnsupportedError(
                f"expected scales along the channels of the accumulator, found axis {x.axis}"
            )
        total = self.builder.accumulate(x.source)
        ratios = tuple(gain / to.scale for gain in x.gain)
        attributes = {"ratios": ratios, "zero": to.zero, "dtype": to.dtype, **to.ends(x)}
        name = f"{x.source.name}.requantize"
        return self._coded("requantize", [total.name], total.order, to, name, attributes)

    def _recode(self, x: Affine, to: CodeTarget) -> Codes:
        """Codes to other codes: nothing, a clip, a multiply-add per channel, or a table."""
        source, dtype = x.codes, self.builder.dtype(x.codes.name)
        same = (x.unit, x.zero, dtype) == (to.scale, to.zero, to.dtype) and x.gain == ONE
        if same and x.offset == NONE:
            if not x.clipped and to.range == limits(to.dtype):
                return source
            name = f"{to.name}.clip"
            return self._coded("clip", [source.name], source.order, to, name, to.ends(x))
        if max(len(x.gain), len(x.offset)) > 1:
            affine = self._affine(x, to.name)
            if affine is not None:
                return self._requantize(affine, to)
        return self._table(point_of(x), to)

    def _affine(self, x: Affine, name: str) -> Affine | None:
        """gain * unit * (code - zero) + offset as integers m * code + b in one common unit, of
        16-bit codes in one for each channel; None where those are too large."""
        source = x.codes
        assert x.axis is not None
        size = self.builder.shape(source.name)[source.order.index(x.axis)]
        pairs = [(gain * x.unit, offset - gain * x.unit * x.zero) for gain, offset in x.over(size)]
        low, high = limits(self.builder.dtype(source.name))

        def multiples(units: Sequence[Fraction], largest: int) -> list[tuple[int, int]] | None:
            found = [(int(a / u), int(c / u)) for (a, c), u in zip(pairs, units, strict=True)]
            reach = max(-low, high)
            return found if all(abs(m) * reach + abs(b) < largest for m, b in found) else None

        units = [common_unit([v for pair in pairs for v in pair])]
        found = multiples(units * size, LARGEST_SUM)
        if found is None and high - low > BYTE:  # tables of 16-bit codes are large
            units = [common_unit(pair) for pair in pairs]
            found = multiples(units, LARGEST_WIDE_SUM)
        if found is None:
            return None
        m, b = ([pair[i] for pair in found] for i in range(2))
        order = source.last(x.axis)
        inputs = (
            self.builder.arranged(source, order),
            self.builder.constant(f"{name}.m", integers(m)),
            self.builder.constant(f"{name}.b", integers(b)),
        )
        total = Sum("affine", inputs, {}, order, f"{name}.affine")
        axis = x.axis if len(units) > 1 else None
        return Affine(total, gain=tuple(units), axis=axis, low=x.low, high=x.high)

    def _table(self, x: Pointwise, to: CodeTarget) -> Codes:
        """A transfer table: every code of the input through the function, correctly rounded."""
        source = self.builder.dtype(x.source.name)
        if source not in CODES:
            raise UnsupportedError(f"expected codes of 8 or 16 bits, found {source}")
        if len(x.expressions) << (8 * np.dtype(source).itemsize) > LARGEST_TABLE:
            raise UnsupportedError(
                f"a table per channel of {len(x.expressions)} channels of {source} codes: expected "
                f"at most {LARGEST_TABLE} entries; use 8-bit codes there"
            )
        entries = CodeRange(x.unit, x.zero, *limits(source))
        target = CodeRange(to.scale, to.zero, *to.range)
        rows = [transfer_table(e, entries, target).codes for e in x.expressions]
        values = np.array(rows if len(rows) > 1 else rows[0]).astype(to.dtype)
        order = x.source.order if x.axis is None else x.source.last(x.axis)
        inputs = (
            self.builder.arranged(x.source, order),
            self.builder.constant(f"{to.name}.table", values),
        )
        return self._coded("table", inputs, order, to, f"{to.name}.transfer", {})

    def _quantize_softmax(self, x: Softmax, to: CodeTarget) -> Codes:
        op, inputs, attributes = softmax.operands(self.builder, x, to)
        order = x.source.last(x.axis)
        return self._coded(op, inputs, order, to, f"{to.name}.{op}", attributes)

    def _quantize_root(self, x: Root, to: CodeTarget) -> Codes:
        total, attributes = root.operand(self.builder, x, to)
        return self._coded("root", [total.name], total.order, to, f"{to.name}.root", attributes)

    def _quantize_normalized(self, x: Normalized, to: CodeTarget) -> Codes:
        """Statistics of every vector, one rounding of each element (docs/spec/graph.md 3.1)."""
        m, b, shift, epsilon = normalize.factors(self.builder, x, to.scale)
        inputs = (
            x.source.name,
            self.builder.constant(f"{to.name}.m", m),
            self.builder.constant(f"{to.name}.b", b),
        )
        numbers = {"epsilon": epsilon, "shift": shift, "zero": to.zero, "dtype": to.dtype}
        attributes = {**x.vectors, **numbers, **to.ends(x)}
        order, name = x.source.order, f"{to.name}.normalize"
        codes = self._coded("normalize", inputs, order, to, name, attributes)
        if self.builder.shape(codes.name) == x.shape:
            return codes
        shaped = {"shape": x.shape}
        return self._coded("reshape", [codes.name], order, to, f"{to.name}.reshape", shaped)


def _no_blocks(node: Node) -> None:
    if node.attributes["block_size"]:
        raise UnsupportedError(
            "expected one scale, one for each index of an axis, or blocks along the summed axis of "
            "a constant matrix, found other blocks; quantize with a scale for each output channel"
        )


def _scale(value: Any) -> Fraction:
    if not (np.isfinite(value) and value > 0):
        raise UnsupportedError(f"expected a positive finite scale, found {value}")
    return Fraction(float(value))
