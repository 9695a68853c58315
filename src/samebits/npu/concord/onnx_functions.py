"""The arithmetic of the neural processor as ONNX functions of standard operators (opset 18).

Tensors that vectors travel in are binary32 [batch, positions, lanes] and hold binary16 numbers:
ONNX has neither all binary16 operators on every runtime nor the bits of a number.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import onnx
from onnx import parser

from samebits.npu.concord.graph import Array

DOMAIN = "samebits"
OPSET = 18
HEADER = f'<domain: "{DOMAIN}", opset_import: ["" : {OPSET}, "{DOMAIN}" : 1]>\n'

TEXTS = {
    # binary32 rounded to binary16, to nearest, ties to even
    "Round16": """
    Round16 (x) => (y) {
        short = Cast <to = 10> (x)
        y = Cast <to = 1> (short)
    }
    """,
    "Relu16": """
    Relu16 (x) => (y) {
        zero = Constant <value = float {0.0}> ()
        above = Greater (x, zero)
        y = Where (above, x, zero)
    }
    """,
    "Larger": """
    Larger (a, b) => (y) {
        y = Choose (a, b, a, b)
    }
    """,
    # x where p > q, else y.
    "Choose": """
    Choose (p, q, x, y) => (chosen) {
        zero = Constant <value = float {0.0}> ()
        above = Greater (p, q)
        either = Where (above, x, y)
        inverse_x = Reciprocal (x)
        inverse_y = Reciprocal (y)
        inverse = Where (above, inverse_x, inverse_y)
        negative = Less (inverse, zero)
        chosen = Signed (either, negative)
    }
    """,
    # x, but of a zero -0 where `negative`, else +0. (Where of onnxruntime 1.31 can make +0 of -0.)
    "Signed": """
    Signed (x, negative) => (y) {
        zero = Constant <value = float {0.0}> ()
        one = Constant <value = float {1.0}> ()
        minus_one = Constant <value = float {-1.0}> ()
        is_zero = Equal (x, zero)
        both = And (is_zero, negative)
        factor = Where (both, minus_one, one)
        plain = Where (is_zero, zero, x)
        y = Mul (plain, factor)
    }
    """,
    # Block floating point: x [batch, positions, blocks * lanes]. An element of `bounds` that the
    # largest of a block reaches makes its exponent one higher. magics: 1.5 * 2**(23 + E - mantissa)
    # of each exponent E; adding and subtracting it rounds to multiples of 2**(E - mantissa).
    "Quantize": """
    Quantize (x, blocked, flat, bounds, magics, limit) => (y) {
        zero = Constant <value = float {0.0}> ()
        infinity = Constant <value = float {131072.0}> ()
        minus_infinity = Neg (infinity)
        last = Constant <value_ints = [-1]> ()
        blocks = Reshape (x, blocked)
        nan = IsNaN (blocks)
        numbers = Where (nan, zero, blocks)
        finite = Clip (numbers, minus_infinity, infinity)
        sizes = Abs (finite)
        largest = ReduceMax <keepdims = 1> (sizes, last)
        reached = GreaterOrEqual (largest, bounds)
        ones = Cast <to = 7> (reached)
        exponent = ReduceSum <keepdims = 1> (ones, last)
        magic = Gather (magics, exponent)
        shifted = Add (finite, magic)
        rounded = Sub (shifted, magic)
        minus_limit = Neg (limit)
        codes = Clip (rounded, minus_limit, limit)
        y = Reshape (codes, flat)
    }
    """,
    # binary64 (0, or at least 2**-40 in magnitude) to binary16 with one rounding. Through binary32
    # it would be rounded twice: that is wrong where the binary32 number is half-way between two
    # binary16 numbers and the binary64 number is not. Then it is the one on its side.
    "ToBinary16": """
    ToBinary16 (x) => (y) {
        zero = Constant <value = double {0.0}> ()
        overflow = Constant <value = float {65520.0}> ()
        largest = Constant <value = float {65504.0}> ()
        smallest = Constant <value = float {-65504.0}> ()
        single = Cast <to = 1> (x)
        same = Cast <to = 11> (single)
        left = Sub (x, same)
        size = Abs (single)
        top = Equal (size, overflow)
        across = Mul (same, left)
        inside = Less (across, zero)
        below = And (top, inside)
        clipped = Clip (single, smallest, largest)
        f = Where (below, clipped, single)
        near = Round16 (f)
        rest = Sub (f, near)
        other = Add (f, rest)
        held = Round16 (other)
        is_held = Equal (held, other)
        infinite = IsInf (near)
        finite = Not (infinite)
        half_way = And (is_held, finite)
        rest64 = Cast <to = 11> (rest)
        sides = Mul (rest64, left)
        beyond = Greater (sides, zero)
        wrong = And (half_way, beyond)
        value = Where (wrong, other, near)
        negative = Less (x, zero)
        y = Signed (value, negative)
    }
    """,
    # Units (integers times 2**-40, binary64 [tiles, ...]), and infinities of `signs` beside them,
    # summed exactly in two limbs of int64: high * 2**40 + low, an infinity is 2**74 - 1.
    # (Clip, Min and Max of onnxruntime 1.31 are wrong for some int64 beyond 2**31.)
    "SumUnits": """
    SumUnits (units, signs) => (y) {
        first = Constant <value_ints = [0]> ()
        scale = Constant <value = double {1099511627776.0}> ()
        unit = Constant <value = double {9.094947017729282379150390625e-13}> ()
        scale64 = Constant <value = int64 {1099511627776}> ()
        mask = Constant <value = int64 {1099511627775}> ()
        top = Constant <value = int64 {17179869184}> ()
        most = Constant <value = int64 {262144}> ()
        least = Constant <value = int64 {-262144}> ()
        byte = Constant <value = int64 {255}> ()
        zero = Constant <value = int64 {0}> ()
        half = Constant <value = int64 {128}> ()
        scaled = Mul (units, unit)
        high = Floor (scaled)
        whole = Mul (high, scale)
        low = Sub (units, whole)
        high64 = Cast <to = 7> (high)
        low64 = Cast <to = 7> (low)
        tops = Mul (signs, top)
        high_all = Add (high64, tops)
        low_all = Sub (low64, signs)
        high_sum = ReduceSum <keepdims = 0> (high_all, first)
        low_sum = ReduceSum <keepdims = 0> (low_all, first)
        rest = BitwiseAnd (low_sum, mask)
        over = Sub (low_sum, rest)
        carry = Div (over, scale64)
        carried = Add (high_sum, carry)
        is_more = Greater (carried, most)
        capped = Where (is_more, most, carried)
        is_less = Less (capped, least)
        bounded = Where (is_less, least, capped)
        shifted = Mul (bounded, scale64)
        total = Add (shifted, rest)
        bits = BitwiseAnd (total, byte)
        some = Greater (bits, zero)
        one = Cast <to = 7> (some)
        sticky = Mul (one, half)
        cut = Sub (total, bits)
        marked = Add (cut, sticky)
        wide = Cast <to = 11> (marked)
        value = Mul (wide, unit)
        y = ToBinary16 (value)
    }
    """,
    # Exact dot products, each rounded to a multiple of 2**-40, summed and rounded once.
    "SumTiles": """
    SumTiles (dots) => (y) {
        scale = Constant <value = double {1099511627776.0}> ()
        none = Constant <value = int64 {0}> ()
        scaled = Mul (dots, scale)
        units = Round (scaled)
        y = SumUnits (units, none)
    }
    """,
    # The same with every rounded dot product in binary16 before the sum.
    "SumShortTiles": """
    SumShortTiles (dots) => (y) {
        scale = Constant <value = double {1099511627776.0}> ()
        unit = Constant <value = double {9.094947017729282379150390625e-13}> ()
        zero = Constant <value = float {0.0}> ()
        scaled = Mul (dots, scale)
        units = Round (scaled)
        values = Mul (units, unit)
        short = ToBinary16 (values)
        infinite = IsInf (short)
        sign = Sign (short)
        all_signs = Cast <to = 7> (sign)
        ones = Cast <to = 7> (infinite)
        signs = Mul (all_signs, ones)
        finite = Where (infinite, zero, short)
        wide = Cast <to = 11> (finite)
        again = Mul (wide, scale)
        y = SumUnits (again, signs)
    }
    """,
    # x: quantized [batch, any, lanes]; values: binary64 [tiles, lanes, outputs]. A dot product
    # within a tile is exact in binary64: 2 * mantissa + log2(native) <= 39 bits hold it.
    "Dots": """
    Dots (x, values, rows) => (y) {
        tiled = Reshape (x, rows)
        left = Transpose <perm = [1, 0, 2]> (tiled)
        wide = Cast <to = 11> (left)
        y = MatMul (wide, values)
    }
    """,
    # One product of all tiles, rounded; what rounds differently within its error is redone (Ziv's
    # rounding test, ACM TOMS 17(3), 1991). x: [rows, lanes of all tiles]; flat: binary64 [lanes,
    # outputs]; turned: its transpose; values, rows: of Dots; tiled: [0, tiles, lanes]. The error of
    # a sum is at most rounding, plus spread times the largest of its row if that is above `exact`.
    # A row of zeros has none.
    "Product": """
    Product (x, flat, turned, values, rows, tiled, rounding, spread, exact) => (y) {
        zero = Constant <value = double {0.0}> ()
        last = Constant <value_ints = [-1]> ()
        few = Constant <value = int64 {64}> ()
        wide = Cast <to = 11> (x)
        total = MatMul (wide, flat)
        sizes = Abs (wide)
        largest = ReduceMax <keepdims = 1> (sizes, last)
        is_large = Greater (largest, exact)
        inexact = Where (is_large, largest, zero)
        relative = Mul (inexact, spread)
        bound = Add (relative, rounding)
        blank = Equal (largest, zero)
        error = Where (blank, zero, bound)
        low = Sub (total, error)
        high = Add (total, error)
        low_value = ToBinary16 (low)
        value = ToBinary16 (high)
        same = Equal (low_value, value)
        differs = Not (same)
        low_below = Less (low, zero)
        high_below = Less (high, zero)
        astride = Xor (low_below, high_below)
        unsure = Or (differs, astride)
        index = NonZero (unsure)
        places = Transpose <perm = [1, 0]> (index)
        count = Size (places)
        weighed = Mul (count, few)
        all_places = Size (unsure)
        many = Greater (weighed, all_places)
        y = If (many) <
            then_branch = tile_by_tile () => (exact_y) {
                dots = Dots (x, values, rows)
                exact_y = SumTiles (dots)
            },
            else_branch = repaired () => (repaired_y) {
                row_axis = Constant <value = int64 {0}> ()
                output_axis = Constant <value = int64 {1}> ()
                lanes = Constant <value_ints = [2]> ()
                row = Gather (index, row_axis)
                output = Gather (index, output_axis)
                left = Gather (wide, row)
                right = Gather (turned, output)
                terms = Mul (left, right)
                parts = Reshape (terms, tiled)
                sums = ReduceSum <keepdims = 0> (parts, lanes)
                few_dots = Transpose <perm = [1, 0]> (sums)
                fixed = SumTiles (few_dots)
                repaired_y = ScatterND (value, places, fixed)
            }
        >
    }
    """,
    # The same with tiles that are no constants: right [batch, outputs * tiles, lanes].
    "DotsOfTiles": """
    DotsOfTiles (x, right, rows) => (y) {
        tiled = Reshape (x, rows)
        left = Transpose <perm = [2, 0, 1, 3]> (tiled)
        wide = Cast <to = 11> (left)
        columns = Reshape (right, rows)
        turned = Transpose <perm = [2, 0, 3, 1]> (columns)
        values = Cast <to = 11> (turned)
        y = MatMul (wide, values)
    }
    """,
    # Across lanes: binary64 holds the sum of 8192 numbers or fewer; a zero is +0.
    "Total": """
    Total (x, rows, shape) => (y) {
        last = Constant <value_ints = [-1]> ()
        zero = Constant <value = double {0.0}> ()
        grouped = Reshape (x, rows)
        wide = Cast <to = 11> (grouped)
        sum = ReduceSum <keepdims = 1> (wide, last)
        plain = Add (sum, zero)
        number = ToBinary16 (plain)
        spread = Shape (grouped)
        every = Expand (number, spread)
        y = Reshape (every, shape)
    }
    """,
    "Largest": """
    Largest (x, rows, shape) => (y) {
        last = Constant <value_ints = [-1]> ()
        zero = Constant <value = float {0.0}> ()
        one = Constant <value = float {1.0}> ()
        infinity = Div (one, zero)
        none = Neg (infinity)
        grouped = Reshape (x, rows)
        nan = IsNaN (grouped)
        numbers = Where (nan, none, grouped)
        most = ReduceMax <keepdims = 1> (numbers, last)
        is_zero = Equal (most, zero)
        plain = Where (is_zero, zero, most)
        flags = Cast <to = 1> (nan)
        any = ReduceMax <keepdims = 1> (flags, last)
        nothing = Div (zero, zero)
        has = Greater (any, zero)
        number = Where (has, nothing, plain)
        spread = Shape (grouped)
        every = Expand (number, spread)
        y = Reshape (every, shape)
    }
    """,
    # table [65536] at the bits of x: the exponent by halving, as powers of two divide exactly.
    "LookUp": """
    LookUp (x, table) => (y) {
        zero = Constant <value = float {0.0}> ()
        one = Constant <value = float {1.0}> ()
        none = Constant <value = int64 {0}> ()
        negative_index = Constant <value = int64 {32768}> ()
        largest = Constant <value = float {65504.0}> ()
        nan_index = Constant <value = int64 {32256}> ()
        infinity_index = Constant <value = int64 {31744}> ()
        steps = Constant <value = float {16777216.0}> ()
        normal = Constant <value = float {0.00006103515625}> ()
        normal_scale = Constant <value = float {16384.0}> ()
        thousand = Constant <value = float {1024.0}> ()
        size = Abs (x)
        nan = IsNaN (x)
        numbers = Where (nan, zero, size)
        finite = Min (numbers, largest)
        at_least = Max (finite, normal)
        y0 = Mul (at_least, normal_scale)
        HALVINGS
        fraction = Sub (y5, one)
        places = Add (e5, one)
        start = Mul (places, thousand)
        within = Mul (fraction, thousand)
        normal_index = Add (start, within)
        small_index = Mul (finite, steps)
        is_small = Less (finite, normal)
        index = Where (is_small, small_index, normal_index)
        index64 = Cast <to = 7> (index)
        infinite = IsInf (x)
        finite_bits = Where (infinite, infinity_index, index64)
        bits = Where (nan, nan_index, finite_bits)
        inverse = Div (one, x)
        below = Less (x, zero)
        below_inverse = Less (inverse, zero)
        negative = Or (below, below_inverse)
        sign = Where (negative, negative_index, none)
        all_bits = Add (bits, sign)
        y = Gather (table, all_bits)
    }
    """,
}


def functions() -> list[onnx.FunctionProto]:
    """All functions."""
    lines = ["e0 = Constant <value = float {0.0}> ()"]
    for step, power in enumerate((16, 8, 4, 2, 1)):
        lines += [
            f"bound{step} = Constant <value = float {{{2.0**power}}}> ()",
            f"divisor{step} = Constant <value = float {{{2.0**-power}}}> ()",
            f"more{step} = Constant <value = float {{{float(power)}}}> ()",
            f"above{step} = GreaterOrEqual (y{step}, bound{step})",
            f"less{step} = Mul (y{step}, divisor{step})",
            f"y{step + 1} = Where (above{step}, less{step}, y{step})",
            f"next{step} = Add (e{step}, more{step})",
            f"e{step + 1} = Where (above{step}, next{step}, e{step})",
        ]
    texts = dict(TEXTS, LookUp=TEXTS["LookUp"].replace("HALVINGS", "\n".join(lines)))
    made = []
    for text in texts.values():
        function = parser.parse_function(HEADER + text)
        _name_domains(function.node)
        made.append(function)
    return made


def _name_domains(nodes: Iterable[onnx.NodeProto]) -> None:
    for node in nodes:
        if node.op_type in TEXTS:
            node.domain = DOMAIN
        for attribute in node.attribute:
            _name_domains(attribute.g.node)


def block_constants(mantissa: int) -> dict[str, Array]:
    """The constants of Quantize."""
    exponents = np.arange(-15, 17)
    bounds = np.ldexp(1 - 2.0 ** (-mantissa - 1), exponents[:-1])
    magics = np.ldexp(1.5, 23 + exponents - mantissa)
    limit = np.ldexp(2.0**mantissa - 1, 16 - mantissa)
    return {
        "bounds": bounds.astype(np.float32),
        "magics": magics.astype(np.float32),
        "limit": np.array(limit, np.float32),
    }
