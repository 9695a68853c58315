"""Transfer tables: one code per input code, correctly rounded. docs/spec/graph.md section 5.

    table[j] = saturate(rne(f(source.scale * (j - source.zero_point)) / scale) + zero_point)

Most entries are decided in binary64 intervals (`screen`), the rest by enclosures of growing
precision (`interval`, Ziv's strategy). At the last precision (4096 bits) an enclosure that still
holds a tie, a jump or the end of a domain is taken for that point exactly.
"""

from __future__ import annotations

from enum import Enum
from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from samebits.errors import InputError, UnsupportedError
from samebits.spec.formats import floor_log2, round_real
from samebits.tables import interval
from samebits.tables.expression import OPERATORS, Expression, Step, Variable, apply, steps
from samebits.tables.interval import PRECISIONS, Enclosure
from samebits.tables.precise import Precise, Real, UndecidedError, UndefinedError
from samebits.tables.screen import screen

MAX_ENTRIES = 1 << 16
LEAST_SCALE = Fraction(1, 1 << 800)
LARGE = 1 << 12  # entries; fewer tables above it are kept
# Distances (powers of two) at which a limit is sought: beside 0, where any fits, and elsewhere.
BESIDE_ZERO = (-200, -(1 << 12), -(1 << 40), -(1 << 200))
BESIDE = tuple(-precision // 2 for precision in PRECISIONS)


class CodeRange(NamedTuple):
    """The codes of a tensor: value = scale * (code - zero_point), low <= code <= high."""

    scale: Fraction
    zero_point: int
    low: int
    high: int


class Transfer(NamedTuple):
    """codes: entry i is for the input code source.low + i. undefined: entries where f has no
    value; they hold the limit, else the code of 0."""

    codes: tuple[int, ...]
    undefined: int


class Missing(Enum):
    """Why there is no value."""

    UNDEFINED = "f has no value here"
    UNDECIDED = "the precision is too low to tell"


Range = CodeRange | tuple[Fraction, int, int, int]


def evaluate(
    expression: Expression, x: Fraction, precision: int, final: bool = False
) -> Real | Missing:
    """f(x), exactly or enclosed at a precision (bits). `final`: see the module's first lines."""
    return _Point(steps(expression), x, (x, x)).value(precision, final)


def transfer_table(expression: Expression, source: Range, target: Range) -> Transfer:
    """The table of an expression between two code ranges, correctly rounded. Cached by content.

    Where f is undefined the entry is the code its values tend to, from the sides on which f has
    values and within the range of the source: the limit (log at 0 and 1/x at 0 of unsigned codes
    saturate); the code of 0 where there is none (log below 0, 1/x between both signs).

    Raises InputError for a range that makes no sense, UnsupportedError for an entry that 4096 bits
    do not decide (cancellation of astronomic values).
    """
    source, target = (_checked(CodeRange(*given)) for given in (source, target))
    table = _large_table if source.high - source.low >= LARGE else _small_table
    return table(expression, source, target)


def exp_table(scale: Fraction, entries: int, one: int = 1 << 24) -> tuple[int, ...]:
    """rne(one * exp(-scale * d)) for d = 0 .. entries - 1, correctly rounded (softmax)."""
    decay = apply("Exp", apply("Neg", Variable()))
    source = CodeRange(scale, 0, 0, entries - 1)
    return transfer_table(decay, source, CodeRange(Fraction(1, one), 0, 0, one)).codes


def _checked(given: CodeRange) -> CodeRange:
    scale, zero, low, high = given
    large = max(abs(zero), abs(low), abs(high)) >= 1 << 40
    if large or low > high or not LEAST_SCALE <= scale <= 1 / LEAST_SCALE:
        raise InputError(
            "expected a scale from 2**-800 to 2**800, low <= high and codes below 2**40, found "
            f"scale {scale}, zero_point {zero}, low {low}, high {high}"
        )
    return CodeRange(Fraction(scale), int(zero), int(low), int(high))


def _table(expression: Expression, source: CodeRange, target: CodeRange) -> Transfer:
    entries = source.high - source.low + 1
    if entries > MAX_ENTRIES:
        raise InputError(f"expected a table of at most {MAX_ENTRIES} entries, found {entries}")
    order = steps(expression)
    numbers = np.arange(source.low, source.high + 1, dtype=np.int64) - source.zero_point
    codes, decided = screen(order, numbers, source.scale, target)
    ends = source.scale * int(numbers[0]), source.scale * int(numbers[-1])
    undefined = 0
    for entry in np.flatnonzero(~decided).tolist():
        point = _Point(order, source.scale * int(numbers[entry]), ends)
        codes[entry] = point.code(len(order) - 1, target)
        undefined += point.undefined
    return Transfer(tuple(codes.tolist()), undefined)


_small_table = lru_cache(maxsize=1024)(_table)
_large_table = lru_cache(maxsize=32)(_table)


# --- one point --------------------------------------------------------------------------------


class _Point:
    """An expression at x, a value in the range `ends` of the source.

    Each Requantize inside is rounded correctly once and for all, whatever the precision outside.
    """

    def __init__(
        self, order: tuple[Step, ...], x: Fraction, ends: tuple[Fraction, Fraction]
    ) -> None:
        self.order = order
        self.x = x
        self.ends = ends
        self.requantized: dict[int, Fraction] = {}
        self.undefined = False  # f, or what a Requantize inside rounds, has no value at x

    def value(self, precision: int, final: bool = False) -> Real | Missing:
        """The value of the whole expression."""
        return self._run(len(self.order) - 1, self.x, Precise(precision, final))

    def _run(self, last: int, x: Real, arithmetic: Precise) -> Real | Missing:
        values: list[Real | Missing] = []
        for at, step in enumerate(self.order[: last + 1]):
            if step.op is None:
                values.append(x if step.value is None else step.value)
            elif step.op == "Requantize" and isinstance(x, Fraction):
                values.append(self._requantized(at))
            else:
                values.append(_apply(step, [values[i] for i in step.arguments], arithmetic))
        return values[last]

    def _requantized(self, at: int) -> Fraction:
        if at not in self.requantized:
            step = self.order[at]
            zero, low, high = (int(step.parameters[k]) for k in ("zero_point", "low", "high"))
            target = CodeRange(step.parameters["scale"], zero, low, high)
            code = self.code(step.arguments[0], target)
            self.requantized[at] = target.scale * (code - zero)
        return self.requantized[at]

    def code(self, at: int, target: CodeRange) -> int:
        """The code of a step's value, correctly rounded."""
        for precision in PRECISIONS:
            final = precision == PRECISIONS[-1]
            value = self._run(at, self.x, Precise(precision, final))
            if value is Missing.UNDEFINED:
                self.undefined = True
                return self._limit(at, target)
            if isinstance(value, Missing):
                continue
            code = _code(value, target, final)
            if code is not None:
                return code
        raise UnsupportedError(
            f"expected an entry that {PRECISIONS[-1]} bits decide, found one that they do not at "
            f"x = {float(self.x)!r}; the expression subtracts nearly equal huge values there"
        )

    # --- limits -------------------------------------------------------------------------------

    def _limit(self, at: int, target: CodeRange) -> int:
        low, high = self.ends
        sides = [side for side, end in ((-1, low), (1, high)) if low == high or end != self.x]
        found = [self._limit_from(side, at, target) for side in sides]
        limits = {code for code in found if code is not Missing.UNDEFINED}
        code = limits.pop() if len(limits) == 1 else None
        return code if isinstance(code, int) else _saturated(Fraction(0), target)

    def _limit_from(self, side: int, at: int, target: CodeRange) -> int | Missing:
        """The code that the values tend to; UNDEFINED where there are none on this side."""
        distances = BESIDE_ZERO if self.x == 0 else BESIDE
        for distance, precision in zip(distances, PRECISIONS, strict=False):
            near = interval.beside(self.x, side, distance, precision)
            value = self._run(at, near, Precise(precision))
            if value is Missing.UNDEFINED:
                return value
            if isinstance(value, Missing):
                continue
            closed = value if isinstance(value, Fraction) else _closed(value)
            final = precision == PRECISIONS[min(len(distances), len(PRECISIONS)) - 1]
            code = _code(closed, target, final)
            if code is not None:
                return code
        return Missing.UNDECIDED


def _closed(value: Enclosure) -> Enclosure:
    """With its ends: a limit may be one of them. Infinite ends stay open."""
    return Enclosure(*(interval.End(end.value, not interval.is_finite(end.value)) for end in value))


def _apply(step: Step, arguments: list[Real | Missing], arithmetic: Precise) -> Real | Missing:
    for missing in (Missing.UNDECIDED, Missing.UNDEFINED):
        if missing in arguments:
            return missing
    assert step.op is not None
    try:
        found: Real = OPERATORS[step.op].meaning(arithmetic, arguments, step.parameters)
    except UndefinedError:
        return Missing.UNDEFINED
    except UndecidedError:
        return Missing.UNDECIDED
    return found


def _saturated(value: Fraction, target: CodeRange) -> int:
    code = round_real(value / target.scale) + target.zero_point
    return min(max(code, target.low), target.high)


def _code(value: Real, target: CodeRange, final: bool) -> int | None:
    """The one code of all that a value may be; `final` takes a tie inside for the value."""
    if isinstance(value, Fraction):
        return _saturated(value, target)
    low, high = interval.codes(value, *target)
    if low == high:
        return low
    if final and high == low + 1:
        tie = target.scale * Fraction(2 * (low - target.zero_point) + 1, 2)
        if interval.is_narrow(value, floor_log2(target.scale) - 64):
            return _saturated(tie, target)
    return None
