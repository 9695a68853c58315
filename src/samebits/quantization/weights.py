"""Codes of constants: weights per output channel or per tensor, and int32 biases.

A bias has the scale scale_x * scale_w[c], so that its codes join the accumulator as they are. It
is stored as the binary32 next to that product; `samebits.ir.lowering` reads it as the product.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np

from samebits.errors import InputError, NonFiniteError
from samebits.ir import Graph
from samebits.ir.real.functions import total
from samebits.ir.rewrite import Edit
from samebits.numerics import Format, ScaleRule
from samebits.quantization.calibrate import (
    LARGEST_BINARY32,
    Calibrated,
    from_range,
    rescaled,
    shortened,
)
from samebits.quantization.settings import code_type
from samebits.spec import formats

Array = np.ndarray[Any, Any]

BIAS = Format("bias-s32", 32, -(1 << 31), (1 << 31) - 1, ScaleRule.SYMMETRIC)
LARGEST_BIAS = 1 << 30  # of a code, so that products have as much room again in int32
SMALLEST_NORMAL = Fraction(2) ** -126
CLIPS = [Fraction(part, 32) for part in range(32, 11, -1)]  # parts of a range
ZERO_CHANNEL_BITS = 16  # of the code of a bias whose channel has no weights


@dataclass(frozen=True, eq=False)
class WeightCodes:
    """A quantized constant. axis: along which `scales` run, None if there is one."""

    codes: Array
    format: Format
    scales: tuple[Fraction, ...]
    zero_points: tuple[int, ...]
    axis: int | None

    def reals(self) -> Array:
        """The numbers that the codes stand for, in float64 (exact for 8-bit codes)."""
        scales = self.spread([float(s) for s in self.scales])
        return np.asarray((self.codes.astype(np.int64) - self.spread(self.zero_points)) * scales)

    def spread(self, values: Sequence[Any]) -> Array:
        """Numbers, one for each scale, in a shape that broadcasts to that of the codes."""
        shape = [1] * self.codes.ndim
        if self.axis is not None:
            shape[self.axis] = -1
        return np.array(values).reshape(shape)


def recoded(graph: Graph, codes: Mapping[str, Array]) -> Graph:
    """A graph with other codes behind some values that DequantizeLinear makes."""
    edit, nodes = Edit(graph), []
    for node in graph.nodes:
        if node.output in codes:
            name = edit.constant(node.inputs[0], codes[node.output])
            node = replace(node, inputs=(name, *node.inputs[1:]))
        nodes.append(node)
    return edit.finish(nodes)


def encode(values: Array, numbers: Sequence[Calibrated], axis: int | None) -> WeightCodes:
    """exact.encode of every element; values: float32, numbers: one, or one per index of `axis`.

    The quotient of two binary32 numbers is a tie or at least 2**-25 away from one, so its binary64
    rounding falls on the same side, and rint of that is the rounding of the exact quotient, as
    far as the codes reach.
    """
    fmt = numbers[0].format
    shape = [1] * values.ndim
    if axis is not None:
        shape[axis] = -1
    scales = np.array([float(n.scale) for n in numbers]).reshape(shape)
    zero_points = np.array([float(n.zero_point) for n in numbers]).reshape(shape)
    with np.errstate(over="ignore"):  # beyond binary64 saturates
        rounded = np.rint(values.astype(np.float64) / scales) + zero_points
    codes = np.clip(rounded, fmt.code_min, fmt.code_max).astype(code_type(fmt))
    return WeightCodes(
        codes,
        fmt,
        tuple(n.scale for n in numbers),
        tuple(n.zero_point for n in numbers),
        axis,
    )


def check_constant(values: Array, name: str) -> None:
    """NonFiniteError that names the constant and its first element that is not finite."""
    finite = np.isfinite(values).reshape(-1)
    if not finite.all():
        first = int(np.argmin(finite))
        raise NonFiniteError(
            f"constant {name!r}: expected finite values, found {values.reshape(-1)[first]} at flat "
            f"index {first}; repair the model before quantizing"
        )


def weight_codes(
    values: Array,
    axis: int | None,
    fmt: Format,
    name: str,
    scale_x: Fraction,
    bias: Array | None = None,
    scale_bits: int = 24,
    finest: Fraction = Fraction(0),
) -> WeightCodes:
    """Weights, one scale per index of `axis` or one for all: of their whole range, with fewer than
    8 bits of the least squared error.

    bias: float32, one number, or one per output. Where its codes in units of scale_x * scale would
    leave int32 or that product is no normal binary32, the scale is enlarged until they do not.
    finest: the smallest scale_x * scale.
    Raises NonFiniteError for NaN or infinity.
    """
    check_constant(values, name)
    if values.size == 0:
        raise InputError(f"weight {name!r}: expected at least one element, found none")
    others = tuple(i for i in range(values.ndim) if i != axis)
    lows = np.atleast_1d(values.min(axis=others))
    highs = np.atleast_1d(values.max(axis=others))
    biases: list[Fraction | None] = [None] * len(lows)
    if bias is not None:
        largest = np.abs(bias.reshape(-1))
        if axis is None or largest.size != len(lows):
            largest = largest.max(initial=0)  # of an empty one: as of zeros
        biases = [Fraction(float(b)) for b in np.broadcast_to(largest, lows.shape)]
    kept = _kept(values, axis, fmt, name) if fmt.bits < 8 else [Fraction(1)] * len(lows)
    numbers = [
        _suited(
            shortened(from_range(*_part(low, high, part), fmt, name), scale_bits),
            *(scale_x, b, finest),
        )
        for low, high, part, b in zip(lows, highs, kept, biases, strict=True)
    ]
    if any(n.scale * scale_x > LARGEST_BINARY32 for n in numbers):
        raise InputError(
            f"weight {name!r}: expected products that binary32 holds, found weights up to "
            f"{float(np.abs(values).max()):g}; scale the data or the weights down"
        )
    return encode(values, numbers, axis)


def fits(
    found: WeightCodes, scale_x: Fraction, bias: Array | None, finest: Fraction = Fraction(0)
) -> bool:
    """Whether codes that weights have already suit a bias as `weight_codes` would make them."""
    products = [scale_x * scale for scale in found.scales]
    largest = Fraction(0) if bias is None else Fraction(float(np.abs(bias).max(initial=0)))
    least = max(SMALLEST_NORMAL, finest, largest / LARGEST_BIAS)
    return min(products) >= least and max(products) <= LARGEST_BINARY32


def _part(low: float, high: float, part: Fraction) -> tuple[Fraction, Fraction]:
    return Fraction(float(low)) * part, Fraction(float(high)) * part


def _kept(values: Array, axis: int | None, fmt: Format, name: str) -> list[Fraction]:
    """The part of its range that each channel keeps: of CLIPS the one whose squared error is least,
    of equals the greatest. Sums in one order: the same part on every machine."""
    rows = np.moveaxis(values, axis, 0) if axis is not None else values[None]
    rows = rows.reshape(len(rows), -1)
    ends = list(zip(rows.min(1), rows.max(1), strict=True))
    errors = []
    for part in CLIPS:
        numbers = [from_range(*_part(low, high, part), fmt, name) for low, high in ends]
        away = encode(rows, numbers, 0).reals() - rows
        errors.append(total(away * away, (1,))[:, 0])
    return [CLIPS[index] for index in np.argmin(errors, axis=0)]


def _suited(
    found: Calibrated, scale_x: Fraction, bias: Fraction | None, finest: Fraction
) -> Calibrated:
    """The numbers of one channel, with a scale that suits its bias and is not too fine."""
    scale, least = found.scale, finest / scale_x
    if bias is not None:
        if found.low == found.high and bias:  # no weights: any scale does, so take a fine one
            scale = formats.power(formats.floor_log2(bias / scale_x) - ZERO_CHANNEL_BITS)
        least = max(
            least, SMALLEST_NORMAL, SMALLEST_NORMAL / scale_x, bias / scale_x / LARGEST_BIAS
        )
    if scale < least:
        scale = _power_above(least)
    return found if scale == found.scale else rescaled(found, scale)


def _power_above(value: Fraction) -> Fraction:
    """The least power of two that is not below a positive number."""
    below = formats.power(formats.floor_log2(value))
    return below if below == value else 2 * below


def bias_codes(
    values: Array, scale_x: Fraction, scales: Sequence[Fraction], name: str = "bias"
) -> WeightCodes:
    """rne(values / (scale_x * scale)) as int32; values: float32, scales along the last axis.

    A single number with several scales becomes one number for each. Raises InputError for codes
    beyond int32 and scales below binary32, which `weight_codes` avoids where weights are constant.
    """
    check_constant(values, name)
    if len(scales) > 1 and (values.ndim == 0 or values.shape[-1] == 1):
        values = np.broadcast_to(values, (*values.shape[:-1], len(scales)))
    products = [scale_x * s for s in scales]
    flat = values.reshape(-1).tolist()
    width = len(products)
    codes = [formats.round_real(Fraction(v) / products[i % width]) for i, v in enumerate(flat)]
    stored = tuple(formats.round_binary32(p) for p in products)
    largest = max(map(abs, codes), default=0)
    if largest > BIAS.code_max or not all(stored):
        raise InputError(
            f"bias {name!r}: expected int32 codes in units of the product of the scales (about "
            f"{float(min(products)):g}), found {largest}; scale the data or the weights up"
        )
    return WeightCodes(
        np.array(codes, dtype=np.int32).reshape(values.shape),
        BIAS,
        stored,
        (0,) * width,
        values.ndim - 1 if width > 1 else None,
    )
