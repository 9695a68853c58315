"""Straight lines in place of 16-bit tables: the codes of the table, for every input."""

import numpy as np
import pytest

from compare import assert_same
from samebits.spec.tflite import sigmoid_steps
from samebits.tables.cubic import ENTRIES, fit_cubic
from samebits.tables.lines import Lines, fit_lines
from samebits.tflite.same.curves import entries_of
from samebits.tflite.same.softmax import exponentials, reciprocals

U = np.arange(ENTRIES)


def by_hand(lines: Lines) -> list[int]:
    """The arithmetic of the module's docstring in plain integers."""
    heights, out = [int(h) for h in lines.heights], []
    half = 1 << lines.left >> 1
    for code in range(-ENTRIES // 2, ENTRIES // 2):
        below, w = code < 0, code + ENTRIES // 2
        if lines.mirror is not None:
            w = (abs(code) * lines.factor + half - (1 if below and half else 0)) >> lines.left
        at, rest = w >> lines.bits, w & (2**lines.bits - 1)
        y = heights[min(at, len(heights) - 1)] << lines.bits
        if at < len(heights) - 1:
            y += rest * (heights[at + 1] - heights[at])
        assert 0 <= y + 2 ** (lines.shift - 1) < 2**31
        v = min(((y + 2 ** (lines.shift - 1)) >> lines.shift) - lines.offset, lines.top)
        out.append(lines.mirror - v if below and lines.mirror is not None else v)
    return out


@pytest.mark.parametrize("tanh", [False, True])
@pytest.mark.parametrize(
    ("m", "left"), [(0, 0), (0, 1), (20001, 3), (16384, 30), (32767, 0), (3, 15)]
)
def test_the_functions_of_a_runtime(tanh, m, left):
    """Those of docs/spec/tflite.md, from their definition in plain integers."""
    codes = np.array([sigmoid_steps(x, m, left, tanh) for x in range(-32768, 32768)])
    np.testing.assert_array_equal(entries_of(m, left, tanh), codes)
    lines = fit_lines(codes)
    assert lines is not None
    assert lines.bytes <= 512
    assert_same(lines.expand(), codes, U)
    assert_same(by_hand(lines), codes, U)


def test_all_of_them_have_the_same_heights():
    found = [fit_lines(entries_of(0, 0, tanh)) for tanh in (False, True)]
    assert found[0] is not None
    assert found[1] is not None
    assert (found[0].heights == found[1].heights).all()


@pytest.mark.parametrize("codes", [exponentials(), reciprocals(), np.full(ENTRIES, 7)])
def test_lines_between_even_places(codes):
    lines = fit_lines(codes)
    assert lines is not None
    assert lines.mirror is None
    assert lines.bytes <= 1026
    assert_same(lines.expand(), codes, U)
    assert_same(by_hand(lines), codes, U)


def test_one_code_of_another_function():
    for at in (0, 40_000, ENTRIES - 1):
        codes = exponentials().astype(np.int64)
        codes[at] += 1
        lines = fit_lines(codes)
        assert lines is None or (lines.expand() == codes).all()


def test_functions_that_are_no_lines():
    x = (U - 32768) * 2.0**-12
    for real in (32768 / (1 + np.exp(-x)), 32767 * np.tanh(x), 9999 * np.sin(x)):
        codes = np.clip(np.rint(real), -32768, 32767).astype(np.int64)
        assert fit_lines(codes) is None
        assert fit_cubic(codes) is not None
    with pytest.raises(ValueError, match="expected 65536 codes"):
        fit_lines(codes[:-1])
