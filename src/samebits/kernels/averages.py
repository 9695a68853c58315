"""The windows of average pools, and what the sum of each is divided by (training.md 5 and 7)."""

from __future__ import annotations

import functools
import itertools
import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace

from samebits.errors import UnsupportedError
from samebits.kernels.geometry import Pair, Window

Factors = tuple[int, ...]
Spans = tuple[Pair, ...]
"""Windows along one axis of an image: the first position of each, and the one after its last. Both
never fall from one window to the next."""

MAX_COMMON = 1 << 46  # 127 * L, which two roundings multiply by up to 2**8, stays below 2**62
MAX_HELD = 1 << 31  # gradients of 31 bits: 2**31 * 2**31 = 2**62


@dataclass(frozen=True)
class Averages:
    """The windows of an average pool of images of one size.

    rows, columns:   the positions inside the image
    heights, widths: window (i, j) is divided by heights[i] * widths[j]
    window:          the geometry of which these windows are; None where they have no common one
    """

    rows: Spans
    columns: Spans
    heights: tuple[int, ...]
    widths: tuple[int, ...]
    window: Window | None

    @functools.cached_property
    def common(self) -> int:
        """L, the least common multiple of all divisors."""
        return math.lcm(*self.heights) * math.lcm(*self.widths)

    @property
    def largest(self) -> int:
        """The largest divisor."""
        return max(self.heights) * max(self.widths)

    @property
    def positions(self) -> int:
        """Positions of the largest window that lie in the image."""
        return max(lengths(self.rows)) * max(lengths(self.columns))

    @property
    def counts_image(self) -> bool:
        """Whether every sum is divided by the number of its positions in the image."""
        return (self.heights, self.widths) == (lengths(self.rows), lengths(self.columns))

    @functools.cached_property
    def factors(self) -> tuple[Factors, Factors] | None:
        """Factors of rows and of columns of windows, whose products are L / d; None: all are 1."""
        if self.common == min(self.heights) * min(self.widths):
            return None
        down, across = math.lcm(*self.heights), math.lcm(*self.widths)
        return tuple(down // d for d in self.heights), tuple(across // d for d in self.widths)

    def undivided(self) -> Averages:
        """The same windows, whose sums are divided by nothing."""
        return replace(self, heights=(1,) * len(self.rows), widths=(1,) * len(self.columns))

    def holders(self, h: int, w: int) -> tuple[Spans, Spans]:
        """For every row and column of the image the windows that hold it: those, too, are spans."""
        return holders(self.rows, h), holders(self.columns, w)

    def checked(self) -> Averages:
        """Itself. Raises UnsupportedError where its sums would leave 62 bits."""
        held = _held(self.rows, self.heights) * _held(self.columns, self.widths)
        if self.common > MAX_COMMON or held > MAX_HELD:
            raise UnsupportedError(
                "average pool: expected windows whose numbers of positions have a least common "
                f"multiple of at most 2**46, and factors of one position's windows that add up to "
                f"at most 2**31, found {self.common} and {held}; use padding that counts "
                "(count_include_pad=True), or smaller windows"
            )
        return self


def lengths(spans: Spans) -> tuple[int, ...]:
    """Positions of every window along its axis."""
    return tuple(last - first for first, last in spans)


def holders(spans: Spans, size: int) -> Spans:
    """For every position of an axis the windows [first, last) that hold it."""
    begins, ends = zip(*spans, strict=True)
    return tuple((bisect_right(ends, at), bisect_right(begins, at)) for at in range(size))


def _held(spans: Spans, divisors: Sequence[int]) -> int:
    """The largest sum of L / d over the windows that hold one position of an axis."""
    common = math.lcm(*divisors)
    upto = list(itertools.accumulate((common // d for d in divisors), initial=0))
    return max(upto[last] - upto[first] for first, last in holders(spans, spans[-1][1]))


@functools.lru_cache(maxsize=1024)
def window_averages(
    window: Window, h: int, w: int, include_pad: bool = True, divisor: int | None = None
) -> Averages:
    """The means over a window's places in images [h, w].

    include_pad: whether positions of padding count. divisor: the number to divide by, whatever
    counts. Raises UnsupportedError where the sums would leave 62 bits.
    """
    along: list[Spans] = []
    counted: list[tuple[int, ...]] = []
    for axis, (size, count) in enumerate(zip((h, w), window.counts(h, w), strict=True)):
        kernel, stride, pad = window.kernel[axis], window.stride[axis], window.padding[axis]
        begins = [i * stride - pad for i in range(count)]
        inside = tuple((max(b, 0), min(b + kernel, size)) for b in begins)
        padded = tuple(min(b + kernel, size + pad) - b for b in begins)
        along.append(inside)
        counted.append(padded if include_pad else lengths(inside))
    if divisor is not None:
        counted = [(divisor,) * len(along[0]), (1,) * len(along[1])]
    (rows, columns), (heights, widths) = along, counted
    return Averages(rows, columns, heights, widths, window).checked()


@functools.lru_cache(maxsize=1024)
def adaptive_averages(h: int, w: int, oh: int, ow: int) -> Averages:
    """The means that AdaptiveAvgPool2d takes of images [h, w] to have [oh, ow].

    Raises UnsupportedError where the sums would leave 62 bits.
    """
    rows, columns = (
        tuple((i * size // count, -(-(i + 1) * size // count)) for i in range(count))
        for size, count in ((h, oh), (w, ow))
    )
    heights, widths = lengths(rows), lengths(columns)
    window = None
    if (strides := (_step(rows), _step(columns))) and all(strides):
        window = Window((heights[0], widths[0]), strides, (0, 0))
    return Averages(rows, columns, heights, widths, window).checked()


def _step(spans: Spans) -> int:
    """The distance of windows of one size from one to the next; 0 where they have no such one."""
    sizes = set(lengths(spans))
    steps = {b[0] - a[0] for a, b in itertools.pairwise(spans)} or sizes
    return steps.pop() if len(sizes) == len(steps) == 1 else 0
