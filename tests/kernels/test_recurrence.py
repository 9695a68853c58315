"""Recurrent layers: every pass over all steps against the same step by step, for equality.

The latter is compared with plain integers in tests/train/operations/test_recurrent.py.
"""

from __future__ import annotations

import itertools

import pytest
import torch

from kernel_arrays import codes
from samebits.errors import RangeError
from samebits.kernels.protocol import GATES, CellLayer, Part
from samebits.kernels.rows import Exponent
from samebits.spec.formats import Q8, Q16, Q32
from samebits.train.operations.gru import GruCell
from samebits.train.operations.lstm import LstmCell
from samebits.train.operations.recurrence import _through_time, walked
from samebits.train.operations.recurrent import tables
from samebits.train.operations.rnn import RnnCell

CELLS = {"lstm": LstmCell(), "gru": GruCell(), "tanh": RnnCell(False), "relu": RnnCell(True)}


def layer(
    kind: str,
    sizes: tuple[int, int, int],
    seed: int,
    biases: str = "xh",
    given: str = "",
    reverse: bool = False,
    exponents: tuple[int, ...] = (-14, -7, -20, -24, -6, -15),
) -> CellLayer:
    """Operands of any size: products of 30 bits, and states of the first step that are `given`.

    biases: of x, of h; given: h ("0": all zero) and the state
    """
    steps, n, units = sizes
    e_x, e_w, *e_b, e_h, e_s = exponents
    width, bits = GATES[kind] * units, CELLS[kind].bits
    both: list = [
        (codes((width,), Q8, 8, e), codes((width,), 1 << 14, 16, e), e) if side in biases else None
        for side, e in zip("xh", e_b, strict=True)
    ]
    state = codes((n, units), Q8 if bits == 8 else Q16, bits, seed + 3)
    h = codes((n, units), Q8, 8, seed + 2) * ("0" not in given)
    return CellLayer(
        kind,
        (codes((steps, n, width), 1 << 30, 32, seed) >> seed % 17, e_x),
        (codes((width, units), Q8, 8, seed + 1), e_w),
        (both[0], both[1]),
        (h, e_h) if "h" in given and kind == "lstm" else None,
        (state, e_s) if "s" in given else None,
        reverse,
        tables("cpu"),
    )


def around(exponent: int, *shape: int, seed: int) -> torch.Tensor:
    """Exponents of rows, up to 9 binades from one."""
    return exponent + codes(shape, 9, 64, seed)


def by_rows(given: CellLayer, seed: int, columns: bool) -> CellLayer:
    """The same codes whose samples have exponents; columns: and the outputs of the weights."""
    (acc, e_x), (w, e_w) = given.products, given.weight
    steps, n, width = acc.shape

    def of_rows(part: Part | None, *shape: int) -> Part | None:
        return None if part is None else (part[0], around(part[1], *shape, seed=seed))

    own: Exponent = around(e_x, steps, n, 1, seed=seed + 5)
    if columns:
        own = own + around(0, 1, 1, width, seed=seed + 6)
    return given._replace(
        products=(acc, own),
        weight=(w, around(e_w, width, 1, seed=seed + 7) if columns else e_w),
        h=of_rows(given.h, n, 1),
        state=of_rows(given.state, n, 1),
    )


def outcome(compute) -> tuple:
    """What a pass gives, or the error that it ends with."""
    try:
        return (compute(), "")
    except RangeError as error:
        return (None, str(error))


def same(k, given: CellLayer, seed: int, kinds: str, exponents: tuple[int, int], bits: int) -> None:
    """Both passes. kinds: of the gradients of h and of the last state; exponents: theirs, or where
    samples have their own those around which they are."""
    cell = CELLS[given.kind]
    (states, error), (wanted, expected) = (
        outcome(lambda: k.recurrence(given)),
        outcome(lambda: walked(cell, given)),
    )
    if states is None and not error:  # a realisation without such a pass
        return
    assert error == expected
    if error:
        return
    assert alike(states.h, wanted.h)
    assert states.states.dtype == wanted.states.dtype
    assert torch.equal(states.states, wanted.states)
    assert torch.equal(states.exponents, wanted.exponents)
    assert torch.equal(torch.as_tensor(states.last), torch.as_tensor(wanted.last))
    shapes = wanted.states.shape, wanted.states.shape[1:]
    arriving = [
        None
        if kind == "-"
        else (codes(shape, Q16 if kind == "s" else Q32, 16 if kind == "s" else 32, seed), e)
        for kind, shape, e in zip(kinds, shapes, exponents, strict=True)
    ]
    if given.by_rows:
        arriving = [
            None if g is None else (g[0], around(g[1], *g[0].shape[:-1], 1, seed=seed))
            for g in arriving
        ]
    known = wanted if cell.is_apart else wanted._replace(h=None)
    rest = known, *arriving, bits, (cell.is_apart, True)
    found, error = outcome(lambda: k.recurrence_gradient(given, *rest))
    wanted, expected = outcome(lambda: _through_time(cell, given, *rest))
    assert error == expected
    if error:
        return
    assert (found.d_x is found.d_h) == (given.kind != "gru")
    assert all(map(alike, (*found[:3], *found.first), (*wanted[:3], *wanted.first)))


def alike(a: Part | None, b: Part | None) -> bool:
    """Whether two parts have the same codes, of a type, and exponent."""
    if a is None or b is None:
        return a is b
    (v, e), (w, f) = a, b
    if isinstance(e, torch.Tensor):
        return isinstance(f, torch.Tensor) and torch.equal(e, f) and torch.equal(v, w)
    return isinstance(f, int) and e == f and v.dtype == w.dtype and torch.equal(v, w)


@pytest.mark.parametrize("sizes", [(1, 1, 1), (4, 3, 5), (2, 5, 19)])
@pytest.mark.parametrize(
    ("kind", "given"),
    [
        *(("lstm", given) for given in ("", "h", "s", "hs", "h0")),
        *itertools.product(("gru", "tanh", "relu"), ("", "s")),
    ],
)
def test_every_step(k, kind, given, sizes) -> None:
    """In both directions, with biases or without, and gradients of every type or none."""
    ways = ("l-", "s-", "ll", "-l", "-s", "ss", *(["--"] if kind == "lstm" else []))
    for seed, kinds in enumerate(ways):
        biases = ("", "x", "h", "xh")[seed % 4]
        operands = layer(kind, sizes, seed, biases, given, seed % 3 == 1)
        same(k, operands, seed, kinds, (-30 + seed, -33), 16 if seed % 2 else 8)


@pytest.mark.parametrize("columns", [False, True])
@pytest.mark.parametrize(
    ("kind", "given"), [("lstm", "hs"), ("lstm", "h0"), *((kind, "s") for kind in CELLS)]
)
def test_every_step_by_rows(k, kind, given, columns) -> None:
    """The same of samples with exponents of their own."""
    for seed, kinds in enumerate(("l-", "s-", "ll", "-s")):
        sizes = ((1, 1, 1), (4, 3, 5), (2, 5, 19), (3, 2, 300))[seed]
        biases, own = ("", "x", "h", "xh")[seed], given if seed else ""
        operands = layer(kind, sizes, seed, biases, own, seed % 3 == 1)
        operands = by_rows(operands, seed, columns)
        same(k, operands, seed, kinds, (-30 + seed, -33), 16 if seed % 2 else 8)


@pytest.mark.parametrize("exponents", [
    (-60, 10, 0, -30, 20, 3), (20, -30, -40, 5, -60, -100), (-14, -90, -38, -38, -7, -128),
    (-20, -20, -100, -90, 100, 90), (-150, -120, -140, -110, -120, -120), (60, 60, 60, 60, 60, 60),
])  # fmt: skip
@pytest.mark.parametrize("kind", CELLS)
def test_exponents_far_apart(k, kind, exponents) -> None:
    of_gradients = itertools.cycle([(-128, -128), (0, -60), (-70, 10), (30, 30)])
    for seed, g in zip(range(6), of_gradients, strict=False):
        same(k, layer(kind, (3, 2, 6), seed, "xh", "hs", False, exponents), seed, "ll", g, 16)


@pytest.mark.parametrize("kind", CELLS)
def test_all_zeros(k, kind) -> None:
    given = layer(kind, (3, 2, 4), 1, "")
    zero = given._replace(products=(0 * given.products[0], -14), weight=(given.weight[0], -7))
    same(k, zero, 1, "--" if kind == "lstm" else "l-", (0, 0), 16)
    if kind != "lstm":
        g = torch.zeros(3, 2, 4, dtype=torch.int32)
        rest = walked(CELLS[kind], zero)._replace(h=None), (g, 5), None, 16, (False, True)
        wanted = _through_time(CELLS[kind], zero, *rest)
        found = k.recurrence_gradient(zero, *rest) or wanted
        assert all(map(alike, (*found[:3], *found.first), (*wanted[:3], *wanted.first)))


@pytest.mark.parametrize("kind", CELLS)
def test_many_units_on_threads(k, kind, threads) -> None:
    """Enough elements for several threads, and rows longer than a block of the C kernel."""
    same(k, layer(kind, (2, 64, 300), 1, "xh", "hs"), 1, "ll", (-40, -40), 16)


@pytest.mark.parametrize("kind", CELLS)
def test_an_exponent_above_the_range_is_refused(k, kind) -> None:
    """That of dh: 31 bits at 2**120 are 16 at 2**135."""
    for kinds in ("l-", "-l"):
        same(k, layer(kind, (2, 3, 4), 3), 1, kinds, (120, 127), 16)
    given, cell = layer(kind, (2, 3, 4), 3), CELLS[kind]
    states, g = walked(cell, given), (codes((2, 3, 4), Q32, 32, 1), 120)
    known = states if cell.is_apart else states._replace(h=None)
    rest = known, g, None, 16, (False, False)
    with pytest.raises(RangeError, match="at most 127, found 13"):
        _ = k.recurrence_gradient(given, *rest) or _through_time(cell, given, *rest)
