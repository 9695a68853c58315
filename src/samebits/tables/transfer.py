"""Transfer tables: one code per input code, correctly rounded. docs/spec/graph.md section 5.

    table[j] = saturate(rne(f(source.scale * (j - source.zero_point)) / scale) + zero_point)

Most entries are decided in binary64 intervals (`screen`), the rest by enclosures of growing
precision (`precise`, Ziv's loop). At the last precision (4096 bits) an enclosure that still holds a
tie, a jump or the end of a domain is taken for that point exactly.

Where f has no value the entry holds its limit. It is found without any analysis of f: f is
enclosed over a whole open interval beside the point, (x, x + d), with d shrinking. If all that this
enclosure holds has one code, so do all values near x, and so does the limit. For log at 0, say,
(0, 2**-200) has the image (-infinity, -138): below any code of a usual range, hence the least code.
"""

from __future__ import annotations

from enum import Enum
from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from samebits.errors import InputError, UnsupportedError
from samebits.tables import interval
from samebits.tables.expression import (
    OPERATORS,
    Apply,
    Expression,
    Variable,
    apply,
    code_range,
    fold,
)
from samebits.tables.interval import PRECISIONS, CodeRange, Enclosure
from samebits.tables.precise import (
    Precise,
    Real,
    UndecidedError,
    UndefinedError,
    one_code,
    rounded,
)
from samebits.tables.screen import screen

MAX_ENTRIES = 1 << 16
LEAST_SCALE = Fraction(1, 1 << 800)
LARGE = 1 << 12  # entries; fewer tables above it are kept
# Distances (powers of two) at which a limit is sought: beside 0, where any fits, and elsewhere.
BESIDE_ZERO = (-200, -(1 << 12), -(1 << 40), -(1 << 200))
BESIDE = tuple(-precision // 2 for precision in PRECISIONS)


class Transfer(NamedTuple):
    """A table.

    codes:     entry i is for the input code source.low + i
    undefined: number of entries where f has no value; they hold the limit, else the code of 0
    """

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
    """f(x), exactly or enclosed at a precision in bits. `final`: whether an enclosure that still
    holds the point where a function jumps or ends is taken for that point (`precise`)."""
    return _Point(x, (x, x)).value(expression, x, Precise(precision, final))


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
    numbers = np.arange(source.low, source.high + 1, dtype=np.int64) - source.zero_point
    codes, decided = screen(expression, numbers, source.scale, target)
    ends = source.scale * int(numbers[0]), source.scale * int(numbers[-1])
    undefined = 0
    for entry in np.flatnonzero(~decided).tolist():
        point = _Point(source.scale * int(numbers[entry]), ends)
        codes[entry] = point.code(expression, target)
        undefined += point.undefined
    return Transfer(tuple(codes.tolist()), undefined)


_small_table = lru_cache(maxsize=1024)(_table)
_large_table = lru_cache(maxsize=32)(_table)


# --- one point --------------------------------------------------------------------------------


class _Point:
    """Expressions at x, a value in the range `ends` of the source.

    Each Requantize inside is rounded correctly once and for all, whatever the precision outside.
    """

    def __init__(self, x: Fraction, ends: tuple[Fraction, Fraction]) -> None:
        self.x = x
        self.ends = ends
        self.requantized: dict[Apply, Fraction] = {}
        self.undefined = False  # f, or what a Requantize inside rounds, has no value at x

    def value(self, expression: Expression, x: Real, arithmetic: Precise) -> Real | Missing:
        """The value at x, which may be an enclosure of points beside the one."""

        def operate(term: Apply, operands: list[Real | Missing]) -> Real | Missing:
            """One operator; what is undecided or undefined in an operand is so in the result."""
            if term.op == "Requantize" and isinstance(x, Fraction):
                return self._requantized(term)
            for missing in (Missing.UNDECIDED, Missing.UNDEFINED):
                if missing in operands:
                    return missing
            try:
                return OPERATORS[term.op].meaning(arithmetic, operands, term.parameters)
            except UndefinedError:
                return Missing.UNDEFINED
            except UndecidedError:
                return Missing.UNDECIDED

        return fold(expression, x, operate)

    def _requantized(self, term: Apply) -> Fraction:
        if term not in self.requantized:
            target = code_range(term.parameters)
            self.requantized[term] = target.value(self.code(term.arguments[0], target))
        return self.requantized[term]

    def code(self, expression: Expression, target: CodeRange) -> int:
        """The code of an expression's value, correctly rounded; of its limit where it has none."""

        def decide(value: Real | Missing, final: bool) -> int | None:
            if value is Missing.UNDEFINED:
                self.undefined = True
                return self._limit(expression, target)
            return None if isinstance(value, Missing) else one_code(value, target, final)

        code = rounded(lambda arithmetic: self.value(expression, self.x, arithmetic), decide)
        if code is None:
            raise UnsupportedError(
                f"expected an entry that {PRECISIONS[-1]} bits decide, found one that they do not "
                f"at x = {float(self.x)!r}; the expression subtracts nearly equal huge values there"
            )
        return code

    # --- limits -------------------------------------------------------------------------------

    def _limit(self, expression: Expression, target: CodeRange) -> int:
        """The code of the limit at x: the one that both sides on which there are values agree on,
        else that of 0."""
        low, high = self.ends
        sides = [side for side, end in ((-1, low), (1, high)) if low == high or end != self.x]
        found = [self._limit_from(side, expression, target) for side in sides]
        limits = {code for code in found if code is not Missing.UNDEFINED}
        code = limits.pop() if len(limits) == 1 else None
        return code if isinstance(code, int) else target.code(Fraction(0))

    def _limit_from(self, side: int, expression: Expression, target: CodeRange) -> int | Missing:
        """The code that the values tend to; UNDEFINED where there are none on this side.

        The open interval beside x shrinks until all that f may be over it has one code. The ends
        of the enclosure of f count too, for a limit may lie there.
        """
        distances = BESIDE_ZERO if self.x == 0 else BESIDE
        for distance, precision in zip(distances, PRECISIONS, strict=False):
            near = interval.beside(self.x, side, distance, precision)
            value = self.value(expression, near, Precise(precision))
            if value is Missing.UNDEFINED:
                return value
            if isinstance(value, Missing):
                continue
            closed = value if isinstance(value, Fraction) else _closed(value)
            code = one_code(closed, target, final=distance == distances[-1])
            if code is not None:
                return code
        return Missing.UNDECIDED


def _closed(value: Enclosure) -> Enclosure:
    """An enclosure with its ends: a limit may be one of them. Infinite ends stay open."""
    return Enclosure(*(interval.End(end.value, not interval.is_finite(end.value)) for end in value))
