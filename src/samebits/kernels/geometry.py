"""Shapes and bounds shared by every realisation, and the integer choice of a shift."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import NamedTuple

from samebits.errors import RangeError, UnsupportedError
from samebits.spec.formats import CODE_MAX, EXPONENT_MAX, EXPONENT_MIN, Q32, round_ratio, scaled

Pair = tuple[int, int]  # (height, width)
MAX_PRODUCTS = 1 << 16  # of one forward sum: 2**16 * 127**2 < 2**30, leaves room for a bias
MAX_GROUP = 1 << 20  # codes normalised together
MAX_SUMMED = 1 << 24  # gradients summed into one weight: 2**31 * 2**7 * 2**24 = 2**62


def pair(value: int | tuple[int, ...]) -> Pair:
    """A size argument of PyTorch as (height, width)."""
    if isinstance(value, int):
        return value, value
    if len(value) == 1:
        return value[0], value[0]
    return value[0], value[1]


@dataclass(frozen=True)
class ConvShape:
    """Geometry of a convolution: x [n, ci, h, w] * weight [co, ci/groups, kh, kw]."""

    n: int
    h: int
    w: int
    ci: int
    oh: int
    ow: int
    co: int
    kh: int
    kw: int
    stride: Pair
    padding: Pair
    dilation: Pair
    groups: int

    @property
    def products(self) -> int:
        """Number of products summed for one output."""
        return self.ci // self.groups * self.kh * self.kw

    @property
    def counts(self) -> tuple[int, int, int]:
        """Elements of the input, of the weights and of the output."""
        positions, outputs = self.n * self.h * self.w, self.n * self.oh * self.ow
        return positions * self.ci, self.co * self.products, outputs * self.co

    @property
    def depthwise(self) -> bool:
        """Whether every channel is convolved with a kernel of its own, and several are."""
        return self.groups > 1 and self.groups == self.ci == self.co


class Window(NamedTuple):
    """Geometry of a pooling: kernel, stride and padding, each (height, width).

    ceil: whether the last window may end behind the padding, if it begins before that (5)
    """

    kernel: Pair
    stride: Pair
    padding: Pair
    ceil: bool = False

    @property
    def size(self) -> int:
        """Number of positions of a window."""
        return self.kernel[0] * self.kernel[1]

    def counts(self, h: int, w: int) -> Pair:
        """Number of windows along the height and along the width of an image [h, w]."""
        return self._count(0, h), self._count(1, w)

    def _count(self, axis: int, size: int) -> int:
        kernel, stride, padding = self.kernel[axis], self.stride[axis], self.padding[axis]
        if not self.ceil:
            return window_count(size, kernel, stride, padding)
        count = window_count(size + stride - 1, kernel, stride, padding)
        return count - ((count - 1) * stride >= size + padding)

    def ends(self, h: int, w: int) -> Pair:
        """Padding behind the height and the width that all windows need, at least `padding`."""
        needed = [
            max(pad, (count - 1) * stride + kernel - pad - size)
            for size, count, kernel, stride, pad in zip(
                (h, w), self.counts(h, w), self.kernel, self.stride, self.padding, strict=True
            )
        ]
        return needed[0], needed[1]


def window_count(size: int, kernel: int, stride: int, padding: int, dilation: int = 1) -> int:
    """Number of windows along one dimension."""
    return (size + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1


@functools.lru_cache(maxsize=4096)
def conv_shape(
    x: tuple[int, ...],
    weight: tuple[int, ...],
    stride: Pair = (1, 1),
    padding: Pair = (0, 0),
    dilation: Pair = (1, 1),
    groups: int = 1,
) -> ConvShape:
    """The geometry of a convolution of an image [n, ci, h, w] with [co, ci/groups, kh, kw].

    Raises UnsupportedError where the shapes do not fit each other, or where a sum would have more
    terms than it is exact for.
    """
    if len(x) != 4:
        raise UnsupportedError(f"convolution: expected [n, c, h, w], found shape {x}")
    n, ci, h, w = x
    if n < 1:
        raise UnsupportedError(f"expected at least one sample, found an empty batch (shape {x})")
    co, per_group, kh, kw = weight
    if ci != per_group * groups:
        raise UnsupportedError(
            f"convolution: expected {per_group * groups} input channels, found {ci} (input {x})"
        )
    oh = window_count(h, kh, stride[0], padding[0], dilation[0])
    ow = window_count(w, kw, stride[1], padding[1], dilation[1])
    if oh < 1 or ow < 1:
        raise UnsupportedError(
            f"convolution: the {kh}x{kw} kernel does not fit into the padded {h}x{w} input"
        )
    shape = ConvShape(n, h, w, ci, oh, ow, co, kh, kw, stride, padding, dilation, groups)
    if shape.products > MAX_PRODUCTS:
        raise UnsupportedError(
            f"sum of {shape.products} products: expected at most {MAX_PRODUCTS}, the length for "
            "which 32-bit accumulation is exact; split the layer"
        )
    if n * oh * ow > MAX_SUMMED:
        raise UnsupportedError(
            f"weight gradient over {n * oh * ow} positions: expected at most {MAX_SUMMED}; "
            "use smaller shards"
        )
    return shape


def requantize_shift(largest: int, exponent: int, bits: int, divisor: int = 1) -> int:
    """The shift s of `requantize` (training.md 1.1) for max|acc| = largest > 0.

    The smallest s with rne(largest / (divisor * 2**s)) <= Q8 or Q16 and exponent + s >= -128. Bit
    lengths bound it from below: with divisor <= 2**d, largest / (divisor * 2**s) is at least
    2**(bits - 1) one step before the first s tried, and below 2**(bits - 1) at most one step on.
    Raises RangeError where exponent + s > 127.
    """
    limit = CODE_MAX[bits]
    shift = largest.bit_length() - (divisor - 1).bit_length() - bits + 1
    shift = max(shift, EXPONENT_MIN - exponent)
    while _rounded(largest, divisor, shift) > limit:
        shift += 1
    if exponent + shift > EXPONENT_MAX:
        raise out_of_range(exponent + shift)
    return shift


def out_of_range(exponent: int) -> RangeError:
    """The error of an exponent above 127."""
    return RangeError(
        f"expected an exponent of at most {EXPONENT_MAX}, found {exponent}: the values have "
        "outgrown their format (training diverged); lower the learning rate"
    )


def not_finite(value: float) -> RangeError:
    """The error of a real number that is infinite or none."""
    return RangeError(f"expected a finite value, found {value}: lower the learning rate")


def smallest_exponent(largest: float, bits: int) -> int:
    """The smallest exponent in [-128, 127] at which codes of `bits` hold a binary64 magnitude.

    0 has -128. Raises RangeError where it would be above 127, or the magnitude is not finite.
    """
    if largest == 0:
        return EXPONENT_MIN
    mantissa, exponent = _integer(largest)
    return exponent + requantize_shift(mantissa, exponent, bits)


def unlimited_exponent(largest: float, bits: int) -> int:
    """The smallest exponent at which codes of `bits` hold a binary64 magnitude > 0, unlimited."""
    mantissa, exponent = _integer(largest)
    shift = mantissa.bit_length() - 1 - bits
    while scaled(mantissa, -shift) > CODE_MAX[bits]:
        shift += 1
    return exponent + shift


def _integer(value: float) -> tuple[int, int]:
    """(m, e) with value = m * 2**e exactly; a value that is not finite is a RangeError."""
    if not math.isfinite(value):
        raise not_finite(value)
    fraction, exponent = math.frexp(value)
    return int(fraction * (1 << 53)), exponent - 53


def _rounded(value: int, divisor: int, shift: int) -> int:
    if shift < 0:
        return round_ratio(value << -shift, divisor)
    return round_ratio(value, divisor << shift)


def shorten_shift(largest: int) -> int:
    """The shift of `shorten` (training.md 1.2) for max|acc| = largest: the smallest that fits."""
    if largest <= Q32:
        return 0
    shift = max(0, largest.bit_length() - 32)
    while scaled(largest, -shift) > Q32:
        shift += 1
    return shift
