"""A proof that literal binary32 gives the exact result of a quantized real graph.

Every real value is followed as a set of multiples of one power of two. Where all multiples up to
the largest sum of magnitudes are numbers of the format, no operation rounds, in whatever order a
runtime takes it, fused or not. One rounded division is allowed where it cannot carry a quotient
over the middle between two codes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from samebits.errors import UnsupportedError
from samebits.ir import Graph, Node, Trait, ops_with
from samebits.ir.integer.define import CODES
from samebits.ir.ops import Array, op_named
from samebits.ir.real.define import code_range
from samebits.ir.real.trees import WEIGHTS, ensemble_of
from samebits.onnx.writer.exact import is_power_of_two
from samebits.spec.formats import floor_log2, power

SIGNIFICAND = {"float16": 11, "bfloat16": 8, "float32": 24, "float64": 53}  # bits
# Exponents of the smallest number and of the largest.
LEAST = {"float16": -24, "bfloat16": -133, "float32": -149, "float64": -1074}
GREATEST = {"float16": 15, "bfloat16": 127, "float32": 127, "float64": 1023}


@dataclass(frozen=True)
class Grid:
    """Multiples of 2**exponent up to `largest` in magnitude, which the format all holds.

    divisor: the numbers are those multiples / an integer up to it, rounded once. free: any number
    of the format (a graph input).
    """

    exponent: int
    largest: Fraction
    divisor: int = 1
    free: bool = False


class _Inexact(Exception):
    """Why a node rounds."""


State = Grid | None  # None: integers and booleans, or after a node that was reported


def binary32_exact(graph: Graph) -> list[str]:
    """The reasons why literal binary32 may differ from the graph's exact meaning; none where it
    cannot.

    Each line names a node of the real graph and says why. A value after a reported node is not
    examined until it is quantized again. Raises UnsupportedError for an integer graph.

    Example: codes in [-128, 127] of scale 2**-4 are multiples of 2**-4 up to 8. A dot product of
    1,032 of them with weights of scale 2**-9 up to 127 codes has multiples of 2**-13, whose
    magnitudes add up to 8 * 127 * 2**-9 * 1032 < 2**24 * 2**-13: every partial sum, in any order,
    is a number of binary32. With 1,033 terms that is no longer proved, and the node is named.
    """
    if any(op_named(node.op).integer for node in graph.nodes):
        raise UnsupportedError(f"graph {graph.name!r}: expected a real graph, found integer nodes")
    return _Proof(graph).run()


class _Proof:
    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.states: dict[str, State] = {}
        self.numbers: dict[str, Array] = {}  # constants as exact float64
        self.reported: set[str] = set()

    def run(self) -> list[str]:
        """A line for every node whose result may be rounded; what depends on it is not examined
        again."""
        for name in self.graph.inputs:
            dtype = self.graph.values[name].dtype
            free = Grid(0, Fraction(0), free=True)
            self.states[name] = free if dtype in SIGNIFICAND else None
        for name, array in self.graph.constants.items():
            if self.graph.values[name].dtype in SIGNIFICAND:
                self._constant(name, array.astype(np.float64))
        reasons = []
        for node in self.graph.nodes:
            try:
                self._node(node)
            except _Inexact as reason:
                reasons.append(f"node {node.name!r} ({node.op}): {reason}")
                self.reported.update(node.outputs)
        return reasons

    def dtype(self, name: str) -> str:
        return self.graph.values[name].dtype

    def _constant(self, name: str, numbers: Array) -> None:
        self.numbers[name] = numbers
        if np.isfinite(numbers).all():
            self.states[name] = _grid_of(numbers)
        else:
            self.reported.add(name)

    def _node(self, node: Node) -> None:
        """The grids of a node's outputs. Nodes on integers and booleans are exact; real ones need a
        rule. Raises _Inexact with the reason."""
        if any(name in self.reported for name in node.inputs):
            real = self.dtype(node.output) in SIGNIFICAND
            self.reported.update(node.outputs if real else ())
            if node.op != "QuantizeLinear":
                return
        elif node.op == "DequantizeLinear" and node.inputs[0] in self.graph.constants:
            self._constant_codes(node)
            return
        else:
            rule = _RULES.get(node.op)
            real = any(
                self.dtype(name) in SIGNIFICAND for name in (*node.inputs, *node.outputs) if name
            )
            if rule is None and real:
                raise _Inexact("its result is rounded in binary32")
            if rule is not None and real:
                state = rule(self, node)
                for name in filter(None, node.outputs):
                    self.states[name] = state if self.dtype(name) in SIGNIFICAND else None
                return
        self.states.update(dict.fromkeys(node.outputs))

    def _constant_codes(self, node: Node) -> None:
        """Constants: each number by itself, so that scales per channel do not add up."""
        arrays = [self.graph.constants.get(name) if name else None for name in node.inputs]
        scale = arrays[1]
        if scale is None or any(a is None for a, n in zip(arrays, node.inputs, strict=True) if n):
            raise _Inexact("its scale or zero point is computed")
        # 32-bit codes times scales of 24 bits (or products of two) may round in binary64 too.
        if self.dtype(node.inputs[0]) == "int32" or scale.dtype == np.float64:
            mantissas = np.frexp(scale.astype(np.float64))[0]
            if (mantissas != 0.5).any():
                raise _Inexact(f"scale {_shown(scale)} is no power of two: code * scale is rounded")
        wide = [None if a is None else a.astype(np.float64) for a in arrays]
        wide[0] = arrays[0].astype(np.int64) if arrays[0] is not None else None
        numbers = op_named(node.op).meaning(wide, node.attributes)[0]
        dtype = self.dtype(node.output)
        if (numbers.astype(dtype).astype(np.float64) != numbers).any():
            raise _Inexact(f"scale {_shown(scale)} is no power of two: code * scale is rounded")
        self._constant(node.output, numbers)

    # --- what rules read ----------------------------------------------------------------------

    def grid(self, name: str, divided: bool = False) -> Grid:
        """The multiples of a real input; a graph input or a rounded quotient only if allowed."""
        state = self.states[name]
        assert state is not None
        if not divided and state.free:
            raise _Inexact("it computes on a graph input that is not quantized")
        if not divided and state.divisor != 1:
            raise _Inexact("it computes on a quotient that was rounded")
        return state

    def held(self, node: Node, exponent: int, sums: Fraction) -> Grid:
        """Multiples of 2**exponent whose magnitudes add up to `sums`, if the format holds them."""
        dtype = self.dtype(node.output)
        if sums * power(-exponent) > 1 << SIGNIFICAND[dtype]:
            bits = floor_log2(sums) + 1 - exponent
            raise _Inexact(f"its sums need up to {bits} bits, {dtype} has {SIGNIFICAND[dtype]}")
        if sums and (exponent < LEAST[dtype] or floor_log2(sums) > GREATEST[dtype]):
            raise _Inexact(f"its numbers leave the exponents of {dtype}")
        return Grid(exponent, sums)


Rule = Callable[[_Proof, Node], State]


def _shown(scale: Array) -> str:
    return f"{float(scale.reshape(-1)[0])!r}" + (" (and others)" if scale.size > 1 else "")


def _grid_of(numbers: Array) -> Grid:
    """The coarsest grid of finite float64 numbers."""
    values = np.abs(numbers[numbers != 0]).reshape(-1)
    if not values.size:
        return Grid(0, Fraction(0))
    return Grid(int(_lowest_bits(values).min()), Fraction(float(values.max())))


def _lowest_bits(values: Array) -> Array:
    """Exponent of the lowest set bit of each positive float64."""
    mantissas, exponents = np.frexp(values)
    whole = (mantissas * 2.0**53).astype(np.int64)  # exact: 53 bits
    low = np.frexp((whole & -whole).astype(np.float64))[1] - 1  # its place among the 53 bits
    return np.asarray(exponents - 53 + low)


def _join(grids: Sequence[Grid]) -> Grid:
    """The union."""
    if any(grid.free for grid in grids):
        return Grid(0, Fraction(0), free=True)
    if len({grid.divisor for grid in grids}) > 1:
        raise _Inexact("it mixes rounded quotients with other numbers")
    live = [grid for grid in grids if grid.largest] or list(grids)
    return Grid(
        min(grid.exponent for grid in live),
        max(grid.largest for grid in live),
        live[0].divisor,
    )


# --- quantization -----------------------------------------------------------------------------


def _dequantize(proof: _Proof, node: Node) -> State:
    """Multiples of the scales' common power of two, as far as codes minus zero points reach."""
    scale = proof.graph.constants.get(node.inputs[1])
    if scale is None:
        raise _Inexact("its scale is computed")
    dtype = proof.dtype(node.inputs[0])
    low, high = code_range(dtype)
    zero = proof.graph.constants.get(node.inputs[2]) if len(node.inputs) > 2 else None
    least, most = (0, 0) if zero is None else (int(zero.min()), int(zero.max()))
    reach = max(abs(low - most), abs(high - least))
    unit = _grid_of(scale.astype(np.float64))
    try:
        return proof.held(node, unit.exponent, unit.largest * reach)
    except _Inexact as reason:
        powers = all(is_power_of_two(Fraction(float(s))) for s in scale.reshape(-1))
        if scale.size == 1 and not powers:
            raise _Inexact(
                f"scale {_shown(scale)} is no power of two: code * scale is rounded"
            ) from None
        raise reason


def _quantize(proof: _Proof, node: Node) -> State:
    """Codes, provided that no rounding before this node can move a quotient over the middle between
    two codes: the scale is a power of two, and so x / scale is exact unless x was a rounded
    quotient."""
    scale = proof.graph.constants.get(node.inputs[1])
    if scale is None:
        raise _Inexact("its scale is computed")
    if not all(is_power_of_two(Fraction(float(s))) for s in scale.reshape(-1)):
        raise _Inexact(f"scale {_shown(scale)} is no power of two: the quotient is rounded")
    if proof.dtype(node.inputs[0]) not in SIGNIFICAND:
        return None
    x = proof.grid(node.inputs[0], divided=True)
    if x.divisor == 1:
        return None
    # x / scale = k * 2**t / n, n <= divisor, was rounded once, by at most 2**-24 of itself. Unless
    # it is a middle between two codes, which no rounding moves, it is 1 / (2 * n * 2**-t) or more
    # away from it; beyond the codes it saturates either way.
    exact = floor_log2(Fraction(float(scale.max())))
    steps = 2 * x.divisor * max(Fraction(1), power(exact - x.exponent))
    low, high = code_range(proof.dtype(node.output))
    dtype = proof.dtype(node.inputs[0])
    fine = steps * (high - low + 2) < 1 << SIGNIFICAND[dtype]
    if not fine or exact < LEAST[dtype] + SIGNIFICAND[dtype]:
        raise _Inexact(f"a rounded quotient by up to {x.divisor} may reach the wrong code")
    return None


def _cast(proof: _Proof, node: Node) -> State:
    """The same numbers where the target holds them: wider floats always, integers by their whole
    range."""
    source, to = proof.dtype(node.inputs[0]), proof.dtype(node.output)
    if to not in SIGNIFICAND:
        return None
    if source in SIGNIFICAND:
        x = proof.grid(node.inputs[0], divided=True)
        if SIGNIFICAND[to] >= SIGNIFICAND[source] and LEAST[to] <= LEAST[source]:
            return x
        x = proof.grid(node.inputs[0])
        return proof.held(node, x.exponent, x.largest)
    if source == "bool":
        return Grid(0, Fraction(1))
    if source not in (*CODES, "int32", "int64", "uint32", "uint64"):
        raise _Inexact(f"it reads {source}")
    info = np.iinfo(source)
    return proof.held(node, 0, Fraction(max(-int(info.min), int(info.max))))


# --- sums of products -------------------------------------------------------------------------


def _products(proof: _Proof, node: Node, outputs: Callable[[Array], Array]) -> Grid:
    """A sum over the rows outputs(w) [O, K] of constant weights, plus the bias."""
    x = proof.grid(node.inputs[0])
    w = proof.numbers.get(node.inputs[1])
    bias = None
    if len(node.inputs) > 2 and node.inputs[2]:
        bias = proof.grid(node.inputs[2])
    if w is None:
        raise _Inexact("its weights are computed")
    b = None if bias is None else proof.numbers.get(node.inputs[2])
    rows = outputs(w)
    found = []
    for index, row in enumerate(rows):
        own = _grid_of(row)
        total = _magnitude(row, own.exponent) * x.largest
        exponent = own.exponent + x.exponent
        if bias is not None:
            one = b is not None and b.ndim == 1 and len(b) == len(rows)
            part = _grid_of(b[index : index + 1]) if b is not None and one else bias
            if part.largest:
                exponent = min(exponent, part.exponent)
                total += part.largest
        found.append(proof.held(node, exponent, total))
    return _join(found)


def _magnitude(row: Array, exponent: int) -> Fraction:
    """The sum of magnitudes of multiples of 2**exponent; 2**60 of them for all above 2**52."""
    count = float(np.ldexp(np.abs(row), -exponent).sum())  # exact below 2**53
    return (Fraction(count) if count < 2**52 else Fraction(2**60)) * power(exponent)


def _conv(proof: _Proof, node: Node) -> State:
    return _products(proof, node, lambda w: w.reshape(w.shape[0], -1))


def _conv_transpose(proof: _Proof, node: Node) -> State:
    groups = node.attributes["group"]

    def by_output(w: Array) -> Array:
        parts = w.reshape(groups, w.shape[0] // groups, w.shape[1], -1)
        return parts.swapaxes(1, 2).reshape(groups * w.shape[1], -1)

    return _products(proof, node, by_output)


def _matmul(proof: _Proof, node: Node) -> State:
    w = proof.numbers.get(node.inputs[1])
    if w is not None:
        return _products(proof, node, lambda w: _columns(w))
    a, b = (proof.grid(name) for name in node.inputs)
    terms = proof.graph.values[node.inputs[0]].shape[-1]
    return proof.held(node, a.exponent + b.exponent, a.largest * b.largest * terms)


def _columns(w: Array) -> Array:
    return w.reshape(1, -1) if w.ndim == 1 else w.swapaxes(-1, -2).reshape(-1, w.shape[-2])


def _gemm(proof: _Proof, node: Node) -> State:
    a = node.attributes
    if a["alpha"] != 1 or a["beta"] != 1:
        raise _Inexact("its alpha or beta is not 1")
    return _products(proof, node, lambda w: w if a["transB"] else w.T)


# --- element by element -----------------------------------------------------------------------


def _add(proof: _Proof, node: Node) -> State:
    grids = [proof.grid(name) for name in node.inputs]
    live = [grid for grid in grids if grid.largest] or grids
    exponent = min(grid.exponent for grid in live)
    return proof.held(node, exponent, sum((grid.largest for grid in grids), Fraction(0)))


def _mul(proof: _Proof, node: Node) -> State:
    a, b = (proof.grid(name) for name in node.inputs)
    return proof.held(node, a.exponent + b.exponent, a.largest * b.largest)


def _div(proof: _Proof, node: Node) -> State:
    numbers = proof.numbers.get(node.inputs[1])
    x = proof.grid(node.inputs[0])
    if numbers is None:
        raise _Inexact("it divides by data")
    divisors = [Fraction(float(v)) for v in set(numbers.reshape(-1).tolist())]
    if all(is_power_of_two(v) for v in divisors):
        grids = [Grid(x.exponent - floor_log2(v), x.largest / v) for v in divisors]
        return proof.held(node, *_pair(_join(grids)))
    if all(v.denominator == 1 and v > 0 for v in divisors):
        return Grid(x.exponent, x.largest, int(max(divisors)))
    raise _Inexact("it divides by numbers that are no positive integers")


def _pair(grid: Grid) -> tuple[int, Fraction]:
    return grid.exponent, grid.largest


def _clip(proof: _Proof, node: Node) -> State:
    """Monotone, and the bounds are numbers of the format: rounding before or after is the same."""
    x = proof.grid(node.inputs[0], divided=True)
    ends = [node.attributes.get(key) for key in ("min", "max")]
    bounds = [Fraction(v) for v in ends if v is not None and math.isfinite(v)]
    if x.free or not bounds:
        return x
    grid = _grid_of(np.array([float(v) for v in bounds]))
    if x.divisor != 1:
        # A bound is a multiple of its own grid, whatever x is divided by.
        return Grid(min(x.exponent, grid.exponent), max(x.largest, grid.largest), x.divisor)
    return _join([x, grid])


def _same(proof: _Proof, node: Node) -> State:
    return proof.grid(node.inputs[0], divided=True)


def _union(proof: _Proof, node: Node) -> State:
    names = [name for name in node.inputs if name and proof.dtype(name) in SIGNIFICAND]
    return _join([proof.grid(name, divided=True) for name in names]) if names else None


def _pad(proof: _Proof, node: Node) -> State:
    x = proof.grid(node.inputs[0], divided=True)
    value = node.attributes["value"]
    if node.attributes["mode"] != "constant" or value == 0 or x.free:
        return x
    return _join([x, _grid_of(np.array([float(value)]))])


# --- sums and means ---------------------------------------------------------------------------


def _reduce_sum(proof: _Proof, node: Node) -> State:
    x = proof.grid(node.inputs[0])
    return proof.held(node, x.exponent, x.largest * _count(proof, node))


def _count(proof: _Proof, node: Node) -> int:
    shape = proof.graph.values[node.inputs[0]].shape
    if "kernel_shape" in node.attributes:
        return math.prod(node.attributes["kernel_shape"])
    axes = node.attributes.get("axes", range(2, len(shape)))
    return math.prod(shape[axis] for axis in axes)


def _mean(proof: _Proof, node: Node) -> State:
    """Sums, and products with or quotients by a power of two, which are exact either way."""
    x = proof.grid(node.inputs[0])
    count = _count(proof, node)
    partial = node.op == "AveragePool" and (
        any(node.attributes["pads"]) or node.attributes["ceil_mode"]
    )
    if partial or not is_power_of_two(Fraction(count)):
        raise _Inexact("its mean is over a number of elements that is no power of two")
    proof.held(node, x.exponent, x.largest * count)
    return proof.held(node, x.exponent - floor_log2(Fraction(count)), x.largest)


def _tallies(proof: _Proof, node: Node) -> State:
    """Comparisons of numbers that are exact, and sums of weights: at most the largest of each
    tree."""
    if proof.grid(node.inputs[0], divided=True).divisor != 1:
        raise _Inexact("it compares quotients that were rounded")
    weights = proof.numbers.get(node.inputs[WEIGHTS])
    if weights is None:
        raise _Inexact("its weights are computed")
    own = _grid_of(weights)
    trees = ensemble_of([proof.graph.constants.get(name) for name in node.inputs])
    sums = [
        trees.extreme(np.abs(dense).astype(np.float64)).sum(0).max()
        for dense in trees.blocks(node.attributes["targets"])
    ]
    return proof.held(node, own.exponent, Fraction(float(max(sums))))


def _decision(proof: _Proof, node: Node) -> State:
    for name in node.inputs:
        if proof.dtype(name) in SIGNIFICAND and proof.grid(name, divided=True).divisor != 1:
            raise _Inexact("it compares quotients that were rounded")
    return None


_RULES: dict[str, Rule] = {
    # A runtime computes the positions of a Resize in binary32: `exact_form` has none.
    **dict.fromkeys(ops_with(Trait.UNROUNDED) - {"Resize"}, _same),
    **dict.fromkeys(ops_with(Trait.AVERAGE), _mean),
    **dict.fromkeys(ops_with(Trait.DECISION), _decision),
    **dict.fromkeys(ops_with(Trait.TALLIES), _tallies),
    "DequantizeLinear": _dequantize,
    "QuantizeLinear": _quantize,
    "Cast": _cast,
    "Conv": _conv,
    "ConvTranspose": _conv_transpose,
    "MatMul": _matmul,
    "Gemm": _gemm,
    "Add": _add,
    "Sub": _add,
    "Sum": _add,
    "Mul": _mul,
    "Div": _div,
    "Clip": _clip,
    "Concat": _union,
    "Min": _union,
    "Max": _union,
    "Where": _union,
    "TensorScatter": _union,
    "Pad": _pad,
    "ReduceSum": _reduce_sum,
}
