"""The LSTM cell: every realisation against the formulas of training.md 5 and 7, for equality."""

from __future__ import annotations

import random

import pytest
import torch

import compare
import drawn
from samebits.kernels.eager import Eager
from samebits.kernels.protocol import CellStep
from samebits.spec.formats import Q16, Q32, scaled
from samebits.train.operations.recurrent import tables

ROWS, UNITS = 3, 19
STATES = ROWS * UNITS
SIGMOID, TANH = tables("cpu").tolist()
Q = 32767


@drawn.once
def integers(count: int, low: int, high: int, seed: object) -> list[int]:
    """Ends, zeros and integers of every magnitude in [low, high]."""
    rng = random.Random(str(seed))
    values = [low, high, high, low, 0, max(low, -1), 1]
    while len(values) < count:
        value = rng.getrandbits(rng.randint(1, high.bit_length()))
        values.append(max(low, min(high, rng.choice((-1, 1)) * value)))
    rng.shuffle(values)
    return values[:count]


def rows(values: list[int], dtype: torch.dtype) -> torch.Tensor:
    return torch.tensor(values, dtype=dtype).view(ROWS, -1)


@drawn.once
def gate_values(seed: object) -> list[int]:
    """[N, 4H]: i, f and o in [0, 32767], g in both signs."""
    columns = []
    for r in range(ROWS):
        for gate in range(4):
            low = -Q if gate == 2 else 0
            columns += integers(UNITS, low, Q, (seed, r, gate))
    return columns


def cell(gates: list[int], c: list[int], shift: int) -> CellStep:
    return CellStep(rows(gates, torch.int16), rows(c, torch.int16), shift, tables("cpu"))


def sat(value: int, limit: int) -> int:
    return min(max(value, -limit), limit)


def split(values: list[int]) -> list[list[int]]:
    """The four gates, each flat [N, H]."""
    return [
        [values[(4 * r + gate) * UNITS + k] for r in range(ROWS) for k in range(UNITS)]
        for gate in range(4)
    ]


def join(parts: list[list[int]]) -> list[int]:
    """The inverse of `split`."""
    return [
        parts[gate][r * UNITS + k] for r in range(ROWS) for gate in range(4) for k in range(UNITS)
    ]


def same(actual: torch.Tensor, expected: list[int]) -> None:
    compare.assert_same(actual.reshape(-1).tolist(), expected, range(len(expected)))


def same_acc(acc, expected: list[int]) -> None:
    same(acc[0], expected)
    assert acc[1] == max(map(abs, expected))


@pytest.mark.parametrize("shifts", [
    (30, 30, -50), (0, -3, 0), (4, -40, -22), (-90, 3, -20), (30, 0, 12), (0, 0, 40), (1, 1, -70),
])  # fmt: skip
@pytest.mark.parametrize("parts", ["x", "x h", "x bias", "x h bias"])
def test_gates(k, shifts, parts) -> None:
    x = integers(4 * STATES, -(2**30), 2**30, "x")
    h = integers(4 * STATES, -(2**30), 2**30, "h") if "h" in parts.split() else None
    bias = integers(4 * UNITS, -(2**60), 2**60, "b") if "bias" in parts else None
    expected = []
    for index, value in enumerate(x):
        total = scaled(value, shifts[0])
        total += 0 if h is None else scaled(h[index], shifts[1])
        total += 0 if bias is None else bias[index % (4 * UNITS)]
        table = TANH if index % (4 * UNITS) // UNITS == 2 else SIGMOID
        expected.append(table[sat(scaled(total, shifts[2]), Q) + Q])
    found = k.lstm_gates(
        rows(x, torch.int32),
        None if h is None else rows(h, torch.int32),
        None if bias is None else torch.tensor(bias),
        shifts,
        tables("cpu"),
    )
    assert found.dtype == torch.int16
    same(found, expected)


def test_gates_of_many_units_on_threads(k, threads) -> None:
    """Enough elements for several threads, and rows longer than a block of the C kernel."""
    n, units = 40, 300
    generator = torch.Generator().manual_seed(1)
    x, h = (
        torch.randint(-(2**30), 2**30, (n, 4 * units), generator=generator).int() for _ in range(2)
    )
    bias = torch.randint(-(2**58), 2**58, (4 * units,), generator=generator)
    arguments = (x, h, bias, (28, 29, -46), tables("cpu"))
    found, expected = k.lstm_gates(*arguments), Eager().lstm_gates(*arguments)
    assert torch.equal(found, expected)
    assert len(expected.unique()) > 10_000


@pytest.mark.parametrize("shifts", [(30, 30), (30, 4), (2, 30), (-80, 30), (0, 0)])
def test_state_sum(k, shifts) -> None:
    gates = gate_values("gates")
    i, f, g, _ = split(gates)
    c = integers(STATES, -Q16, Q16, "c")
    first = [scaled(a * b, shifts[1]) for a, b in zip(i, g, strict=True)]
    same_acc(k.lstm_state_sum(rows(gates, torch.int16), None, shifts), first)
    both = [n + scaled(a * b, shifts[0]) for n, a, b in zip(first, f, c, strict=True)]
    same_acc(k.lstm_state_sum(rows(gates, torch.int16), rows(c, torch.int16), shifts), both)


SHIFTS_OF_C = [0, -3, -140, 1, 15, 16, 120]


def tanh_of(c: list[int], shift: int) -> list[int]:
    return [TANH[sat(scaled(v, shift), Q) + Q] for v in c]


@pytest.mark.parametrize("shift", SHIFTS_OF_C)
def test_hidden(k, shift) -> None:
    gates, c = gate_values("gates"), integers(STATES, -Q16, Q16, "c")
    pairs = zip(split(gates)[3], tanh_of(c, shift), strict=True)
    expected = [sat(scaled(o * u, -23), 127) for o, u in pairs]
    found = k.lstm_hidden(cell(gates, c, shift))
    assert found.dtype == torch.int8
    same(found, expected)


@pytest.mark.parametrize("shifts", [(29, 22), (29, -70), (-70, 22), (0, 0), (-5, -9)])
@pytest.mark.parametrize("width", [16, 32])
@pytest.mark.parametrize("back", [None, 32, 64])
def test_hidden_grad_sum(k, shifts, width, back) -> None:
    limit = Q16 if width == 16 else Q32
    g = integers(STATES, -limit, limit, "g")
    expected = [scaled(v, shifts[0]) for v in g]
    other = None
    if back is not None:
        high = 2**31 - 1 if back == 32 else 2**38
        other = integers(STATES, -high, high, "back")
        expected = [a + scaled(v, shifts[1]) for a, v in zip(expected, other, strict=True)]
        other = rows(other, torch.int32 if back == 32 else torch.int64)
    found = k.lstm_hidden_grad_sum(
        rows(g, torch.int16 if width == 16 else torch.int32), other, shifts
    )
    same_acc(found, expected)


@pytest.mark.parametrize("shift", SHIFTS_OF_C)
@pytest.mark.parametrize("shifts", [(0, 30), (0, -70), (-70, 30), (-12, 4)])
def test_state_grad_sum(k, shift, shifts) -> None:
    gates, after = gate_values("gates"), gate_values("after")
    c, dh, dc = (integers(STATES, -Q16, Q16, name) for name in ("c", "dh", "dc"))
    o, u = split(gates)[3], tanh_of(c, shift)
    expected = [
        scaled(a * b * (2**30 - t * t), shifts[0]) for a, b, t in zip(dh, o, u, strict=True)
    ]
    own = rows(dh, torch.int16), cell(gates, c, shift)
    same_acc(k.lstm_state_grad_sum(*own, None, shifts), expected)
    expected = [
        e + scaled(a * f, shifts[1]) for e, a, f in zip(expected, dc, split(after)[1], strict=True)
    ]
    later = (rows(dc, torch.int16), rows(after, torch.int16))
    same_acc(k.lstm_state_grad_sum(*own, later, shifts), expected)


@pytest.mark.parametrize("shift", SHIFTS_OF_C)
@pytest.mark.parametrize("shifts", [(0, 0, 0, 0), (0, -3, -30, -64), (-70, 0, -1, -2)])
@pytest.mark.parametrize("started", [False, True])
def test_gate_grads(k, shift, shifts, started) -> None:
    gates = gate_values("gates")
    c, before, dh, dc = (integers(STATES, -Q16, Q16, n) for n in ("c", "past", "dh", "dc"))
    past = before if started else [0] * STATES
    columns = (*split(gates), tanh_of(c, shift), past, dh, dc)
    parts: list[list[int]] = [[], [], [], []]
    for i, f, g, o, u, p, d_h, d_c in zip(*columns, strict=True):
        parts[0].append(scaled(d_c * g * (i * (2**15 - i)), shifts[0]))
        parts[1].append(scaled(d_c * p * (f * (2**15 - f)), shifts[1]))
        parts[2].append(scaled(d_c * i * (2**30 - g * g), shifts[2]))
        parts[3].append(scaled(d_h * u * (o * (2**15 - o)), shifts[3]))
    own = *(rows(v, torch.int16) for v in (dh, dc)), cell(gates, c, shift)
    last = rows(before, torch.int16) if started else None
    same_acc(k.lstm_gate_grads(*own, last, shifts), join(parts))
