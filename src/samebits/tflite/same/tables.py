"""Functions of one code, as tables of all codes, and the softmax."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from samebits.errors import UnsupportedError
from samebits.ir.integer.define import limits
from samebits.spec.fixed import LEAST, ONE, Shares, exponential, half_away, high_product, logistic
from samebits.spec.fixed import tanh as hyperbolic
from samebits.spec.rounding import Doubled
from samebits.tflite.file import Scaling
from samebits.tflite.same.curves import straight
from samebits.tflite.same.multiplier import away, split
from samebits.tflite.same.node import SameNode, same_op, scale_of
from samebits.tflite.same.softmax import softmax_of_words

LARGEST = 2.0**20  # of a slope and of a beta
_SWISH_UNIT = float(np.float32(3) / np.float32(32768))  # of the input of a hard sigmoid


def _tabulated(node: SameNode, function: Callable[[int], int]) -> str:
    """The function of every code, saturated to int8."""
    entries = [min(max(int(function(code)), -128), 127) for code in range(-128, 128)]
    return node.tabulated(np.array(entries, np.int8))


@same_op("RELU6")
def _relu6(node: SameNode) -> str:
    """Codes of the input between those of 0 and 6."""
    node.alike()
    x = node.scale(0)
    low, six = x.zero_points[0], away(float(np.float32(6) / np.float32(x.scales[0])))
    most = limits(node.kind)[1]
    return node.moved("clip", [node.input(0)], low=low, high=min(low + six, most))


def _radius(integer_bits: int, left: int) -> int:
    """The distance from which on a function of a number of so many integer bits is its limit."""
    return (((1 << integer_bits) - 1) << (31 - integer_bits)) >> left


@same_op("LOGISTIC", "TANH")
def _logistic(node: SameNode) -> str:
    """In fixed point of 4 integer bits."""
    tanh, x = node.operator.op == "TANH", node.scale(0)
    if node.kind == "int16":
        return straight(node, tanh)
    _unit(node, 128 if tanh else 256, 0 if tanh else -128)
    m, left = split(x.scales[0] * (1 << 27))
    if left < 0:
        raise UnsupportedError(f"expected a scale from 2**-28 on, found {x.scales[0]}")
    by, reach = Doubled(m, min(left, 31)), _radius(4, left)

    def code(c: int) -> int:
        v = c - x.zero_points[0]
        if not -reach < v < reach:
            return 127 if v > 0 else -128
        a = by.code(v)
        if tanh:
            return half_away(hyperbolic(a, 4), 24)
        return half_away(logistic(a, 4), 23) - 128

    return _tabulated(node, code)


def _unit(node: SameNode, steps: int, zero: int) -> None:
    """UnsupportedError for a result whose scale is not 1 / steps: the kernels ignore it."""
    if scale_of(node.result) != Scaling((1 / steps,), (zero,)):
        raise UnsupportedError(
            f"expected a result with the scale 1 / {steps} and zero point {zero}, found another"
        )


@same_op("HARD_SWISH")
def _hard_swish(node: SameNode) -> str:
    """In 16 bits, 7 of them below the unit of a code."""
    x, y, of = node.scale(0), scale_of(node.result), node.runtime
    if node.kind != "int8":
        raise UnsupportedError(f"expected codes of int8, found {node.kind}")
    fine = float(np.float32(1 / 128) * np.float32(x.scales[0]))
    m, shift = split(of.quotient("HARD_SWISH", fine, y.scales[0]))
    n, gate_shift = split(of.quotient("HARD_SWISH", fine, _SWISH_UNIT))
    by, gate = (min((v + (1 << 15)) >> 16, 32767) for v in (m, n))
    if not -31 <= shift <= 0:
        raise UnsupportedError(f"expected a ratio of scales below 128, found {m} * 2**{shift - 31}")

    def product(a: int, b: int) -> int:
        return (a * b + (1 << 14)) >> 15

    def raised(v: int, left: int) -> int:
        return min(max(v << left, -32768), 32767)

    def code(c: int) -> int:
        v = (c - x.zero_points[0]) << 7
        part = product(raised(v, gate_shift - 1) if gate_shift > 0 else v, gate)
        part = raised(part, 1) if gate_shift > 0 else half_away(part, -gate_shift)
        whole = ((part + (1 << 15)) >> 1) * product(v, by)
        whole = whole >> 15 if whole >= 0 else -(-whole >> 15)
        return half_away(whole, -shift) + y.zero_points[0]

    return _tabulated(node, code)


@same_op("ELU")
def _elu(node: SameNode) -> str:
    """In binary32, by the exponential of the C library, which is taken as correctly rounded."""
    x, y = node.scale(0), scale_of(node.result)
    if node.kind != "int8":
        raise UnsupportedError(f"expected codes of int8, found {node.kind}")
    inverse = np.float32(1) / np.float32(y.scales[0])
    if not np.isfinite(inverse):
        raise UnsupportedError(f"expected a scale from 2**-127 on, found {y.scales[0]}")

    def code(c: int) -> int:
        value = np.float32(x.scales[0]) * np.float32(c - x.zero_points[0])
        if value < 0:
            value = np.float32(math.exp(float(value))) - np.float32(1)
        return away(float(value * inverse)) + y.zero_points[0]

    return _tabulated(node, code)


@same_op("SOFTMAX")
def _softmax(node: SameNode) -> str:
    """Exponentials of distances in fixed point, a reciprocal of their sum by Newton's method."""
    to, x = node.result, node.scale(0)
    beta = float(np.float32(node.option("beta")))
    if not 0 < beta <= LARGEST:
        raise UnsupportedError(f"expected a beta above 0, to {LARGEST}, found {beta}")
    if node.kind == "int16":
        return softmax_of_words(node, beta)
    by, given = Shares(16 if to.dtype == "int16" else 8), to.quantization
    least = -(1 << by.bits - 1)
    if given != Scaling((2.0**-by.bits,), (least,)) or to.dtype not in ("int8", "int16"):
        raise UnsupportedError(
            f"expected a result of int8 or int16 with the scale 2**-{by.bits} and zero point "
            f"{least}, found {to}, {to.dtype}"
        )
    columns = node.tensor(0).shape[-1:]
    if not columns or not 1 <= columns[0] <= by.columns:
        raise UnsupportedError(f"expected rows of 1 to {by.columns} codes, found {columns}")
    m, left = split(min(beta * x.scales[0] * (1 << 26), ONE + 0.0))
    if not 0 <= left <= 31:
        found = f"{x.scales[0]} * {beta}"
        raise UnsupportedError(f"expected scale * beta from 2**-27 on, found {found}")
    reach = _radius(5, left)
    powers = [
        exponential(high_product(-d << left, m), 5) if d <= reach and d << left <= -LEAST else 0
        for d in range(256)
    ]
    table = node.builder.constant(f"{node.hint}.powers", np.array(powers, np.int32))
    most = -least - 1
    return node.moved(
        "softmax",
        [node.input(0), table],
        ratio=by,
        zero=least,
        low=least,
        high=most,
        dtype=to.dtype,
    )
