"""LSTM layers: every pass over all steps against the same step by step, for equality.

The latter is compared with plain integers in tests/train/operations/test_recurrent.py.
"""

from __future__ import annotations

import itertools

import pytest
import torch

from kernel_arrays import codes
from samebits.errors import RangeError
from samebits.kernels.protocol import LSTMLayer, LSTMStates
from samebits.spec.formats import Q8, Q16, Q32
from samebits.train.operations.lstm import _stepped, _through_time
from samebits.train.operations.recurrent import tables


def layer(
    sizes: tuple[int, int, int],
    seed: int,
    biases: int = 2,
    given: str = "",
    reverse: bool = False,
    exponents: tuple[int, ...] = (-14, -7, -20, -24, -6, -15),
) -> LSTMLayer:
    """Operands of any size: products of 30 bits, and states of the first step that are `given`."""
    steps, n, units = sizes
    e_x, e_w, *e_b, e_h, e_c = exponents
    return LSTMLayer(
        (codes((steps, n, 4 * units), 1 << 30, 32, seed) >> seed % 17, e_x),
        (codes((4 * units, units), Q8, 8, seed + 1), e_w),
        tuple(
            (codes((4 * units,), Q8, 8, e), codes((4 * units,), 1 << 14, 16, e), e)
            for e in e_b[:biases]
        ),
        (codes((n, units), Q8, 8, seed + 2) * ("0" not in given), e_h) if "h" in given else None,
        (codes((n, units), Q16, 16, seed + 3), e_c) if "c" in given else None,
        reverse,
        tables("cpu"),
    )


def outcome(compute) -> tuple:
    """What a pass gives, or the error that it ends with."""
    try:
        return (compute(), "")
    except RangeError as error:
        return (None, str(error))


def same(k, given: LSTMLayer, seed: int, kinds: str, exponents: tuple[int, int], bits: int) -> None:
    """Both passes. kinds: of the gradients of h and of the last c; exponents: theirs."""
    (states, error), (wanted, expected) = (
        outcome(lambda: k.lstm(given)),
        outcome(lambda: _stepped(given)),
    )
    if states is None and not error:  # a realisation without such a pass
        return
    assert error == expected
    if error:
        return
    assert torch.equal(states.h, wanted.h)
    assert torch.equal(states.c, wanted.c)
    assert torch.equal(states.exponents, wanted.e_c)
    assert states.last == wanted.last.exponent
    shapes = wanted.h.shape, wanted.h.shape[1:]
    arriving = [
        None
        if kind == "-"
        else (codes(shape, Q16 if kind == "s" else Q32, 16 if kind == "s" else 32, seed), e)
        for kind, shape, e in zip(kinds, shapes, exponents, strict=True)
    ]
    rest = bits, (True, True)
    found, error = outcome(lambda: k.lstm_gradient(given, states, *arriving, *rest))
    wanted, expected = outcome(lambda: _through_time(given, states, arriving, *rest))
    assert error == expected
    if error:
        return
    pairs = zip((found.d, found.past, *found.first), (*wanted[:2], *wanted[2]), strict=True)
    for (v, e), (w, f) in pairs:
        assert e == f
        assert v.dtype == w.dtype
        assert torch.equal(v, w)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("given", ["", "h", "c", "hc", "h0"])
@pytest.mark.parametrize("sizes", [(1, 1, 1), (4, 3, 5), (2, 5, 19)])
def test_every_step(k, sizes, given, reverse) -> None:
    for seed, kinds in enumerate(("l-", "s-", "ll", "-l", "-s", "ss", "--")):
        operands = layer(sizes, seed, seed % 3, given, reverse)
        same(k, operands, seed, kinds, (-30 + seed, -33), 16 if seed % 2 else 8)


@pytest.mark.parametrize("exponents", [
    (-60, 10, 0, -30, 20, 3), (20, -30, -40, 5, -60, -100), (-14, -90, -38, -38, -7, -128),
    (-20, -20, -100, -90, 100, 90), (-150, -120, -140, -110, -120, -120), (60, 60, 60, 60, 60, 60),
])  # fmt: skip
def test_exponents_far_apart(k, exponents) -> None:
    of_gradients = itertools.cycle([(-128, -128), (0, -60), (-70, 10), (30, 30)])
    for seed, g in zip(range(6), of_gradients, strict=False):
        same(k, layer((3, 2, 6), seed, 2, "hc", False, exponents), seed, "ll", g, 16)


def test_all_zeros(k) -> None:
    given = layer((3, 2, 4), 1, 0)
    zero = given._replace(products=(0 * given.products[0], -14), weight=(given.weight[0], -7))
    same(k, zero, 1, "--", (0, 0), 16)


def test_many_units_on_threads(k, threads) -> None:
    """Enough elements for several threads, and rows longer than a block of the C kernel."""
    same(k, layer((2, 64, 300), 1, 2, "hc"), 1, "ll", (-40, -40), 16)


def test_an_exponent_above_the_range_is_refused(k) -> None:
    """That of dh: 31 bits at 2**120 are 16 at 2**135."""
    for kinds in ("l-", "-l"):
        same(k, layer((2, 3, 4), 3), 1, kinds, (120, 127), 16)
    given = layer((2, 3, 4), 3)
    run, g = _stepped(given), (codes((2, 3, 4), Q32, 32, 1), 120)
    states, rest = LSTMStates(run.h, run.c, run.e_c, 0), (16, (False, False))
    with pytest.raises(RangeError, match="at most 127, found 13"):
        _ = k.lstm_gradient(given, states, g, None, *rest) or _through_time(
            given, states, (g, None), *rest
        )
