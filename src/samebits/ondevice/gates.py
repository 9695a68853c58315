"""Sigmoid and tanh of recurrent cells in a few bytes of C, exactly as their tables have them."""

from __future__ import annotations

import functools

from samebits.codegen.names import wrapped_list
from samebits.train.operations.recurrent import tables

LINE = 32  # arguments from one end of a line to the next, SAMEBITS_TRAIN_LINE
MOST = 32767  # the largest argument, and the largest value


@functools.cache
def curves() -> tuple[tuple[list[int], list[int]], ...]:
    """The ends of all lines of sigmoid and of tanh, and by how much values are off them.

    Arguments are those from 0 on; the other half follows from them: f(-x) is 1 - f(x) of a sigmoid,
    -f(x) of tanh. A value is 2 bits off its line at most, and always exact.
    """
    return tuple(_curve(table[MOST:].tolist()) for table in tables("cpu"))


def _curve(values: list[int]) -> tuple[list[int], list[int]]:
    ends = [*values[::LINE], values[-1]]
    off = []
    for at, value in enumerate(values):
        low, high = ends[at // LINE], ends[at // LINE + 1]
        off.append(value - low - ((high - low) * (at % LINE) + LINE // 2) // LINE + 1)
    assert all(0 <= own < 4 for own in off)
    return ends, [sum(v << 2 * k for k, v in enumerate(off[i : i + 4])) for i in range(0, MOST, 4)]


def curves_text() -> str:
    """The curves as C."""
    lines, names = [], []
    for name, (ends, off) in zip(("SIGMOID", "TANH"), curves(), strict=True):
        for kind, what, numbers in (("int16_t", "ENDS", ends), ("uint8_t", "OFF", off)):
            listed = wrapped_list([str(v) for v in numbers], 4)
            lines.append(f"static const {kind} {name}_{what}[] = {{\n    {listed}}};\n")
        names.append(f"{{{name}_ENDS, {name}_OFF}}")
    return "".join(lines) + f"static const samebits_curve CURVES[] = {{{', '.join(names)}}};\n"
