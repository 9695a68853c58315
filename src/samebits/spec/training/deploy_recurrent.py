"""Deployed LSTM, GRU and RNN layers in plain Python integers (docs/spec/training.md section 11)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction

from samebits.spec.formats import power
from samebits.spec.training.cell import Direction, matrix_product
from samebits.spec.training.deploy import Grids, offsets_of, own_grids, sat8
from samebits.spec.training.deploy_attention import real_values, saturated
from samebits.spec.training.layers import Array, Parameter
from samebits.spec.training.lstm import HIDDEN_EXPONENT
from samebits.spec.training.rows import each

Function = Callable[[str, int, int], int]
"""sat16(rne(f(code * 2**exponent) * 2**15)) of (f: "sigmoid" or "tanh", code, exponent)."""
Sums = tuple[list[Fraction], list[Fraction]]  # of x and of h
States = list[list[int]]
"""Codes [H] of one sample: h and c of an LSTM, s of a GRU, h of an RNN."""


def sat16(value: Fraction) -> int:
    """rne, then saturate to [-32768, 32767]."""
    return saturated(value, 16)


def layer(kind: str, x: Array, p: Direction, site: int, function: Function) -> tuple[Array, States]:
    """h [T, N, H], and the states [N, H] after the last step.

    kind: "lstm", "gru", "tanh" or "relu", the last two of an RNN; site: the frozen exponent.
    """
    steps, samples, features = x.shape
    e_h = site if kind in ("tanh", "relu") else HIDDEN_EXPONENT
    gates = len(p.weight_hh.codes) // p.hidden**2
    joined = (gates - (kind == "gru")) * p.hidden  # rows that add both biases to the product of x
    of_x, of_h = (_biases(b, gates * p.hidden) for b in (p.bias_ih, p.bias_hh))
    at_x = [a + b if row < joined else a for row, (a, b) in enumerate(zip(of_x, of_h, strict=True))]
    at_h = [b if row >= joined else Fraction(0) for row, b in enumerate(of_h)]
    own_x = _Side.of(p.weight_ih, x.one_exponent, at_x)
    own_h = _Side.of(p.weight_hh, e_h, at_h)
    states = [[[0] * p.hidden for _ in range(2 if kind == "lstm" else 1)] for _ in range(samples)]
    done: dict[int, list[int]] = {}
    for t in reversed(range(steps)) if p.backwards else range(steps):
        done[t] = []
        for n in range(samples):
            row = x.codes[(t * samples + n) * features :][:features]
            h = _hidden(kind, states[n])
            sums = own_x.of_row(row), own_h.of_row(h)
            states[n] = _CELLS[kind](sums, states[n], site, function)
            done[t] += _hidden(kind, states[n])
    codes = [code for t in range(steps) for code in done[t]]
    last = [[code for own in states for code in own[i]] for i in range(len(states[0]))]
    return Array(codes, (steps, samples, p.hidden), e_h, 8), last


def _biases(bias: Parameter | None, rows: int) -> list[Fraction]:
    return [Fraction(0)] * rows if bias is None else real_values(bias)


class _Side:
    """The sums of x or of h: weights, and biases on their grids."""

    def __init__(self, weight: Parameter, grids: Grids, offsets: list[int]) -> None:
        self.weight, self.grids, self.offsets = weight, grids, offsets

    @staticmethod
    def of(weight: Parameter, exponent: int, biases: list[Fraction]) -> _Side:
        """Channels whose sums do not fit 32 bits raised."""
        own = tuple(exponent + e for e in each(weight.exponent, len(biases)))
        codes, own = own_grids(weight.codes, own, biases)
        return _Side(
            replace(weight, weight=(codes, *weight.weight[1:])), own, offsets_of(biases, own)
        )

    def of_row(self, codes: list[int]) -> list[Fraction]:
        """The real sums of one row of codes."""
        products = matrix_product(codes, len(codes), self.weight)
        both = zip(products, self.offsets, self.grids, strict=True)
        return [(a + b) * power(grid) for a, b, grid in both]


def _hidden(kind: str, states: States) -> list[int]:
    """h of the states: that of a GRU is s in 8 bits."""
    if kind != "gru":
        return states[0]
    return [sat8(s * power(-15 - HIDDEN_EXPONENT)) for s in states[0]]


def _argument(value: Fraction) -> int:
    return sat16(value / power(-12))


def _lstm(sums: Sums, states: States, site: int, function: Function) -> States:
    (of_x, of_h), size = sums, len(states[0])
    h, c = [], []
    for unit in range(size):
        i, f, g, o = (
            function("tanh" if gate == 2 else "sigmoid", _argument(of_x[row] + of_h[row]), -12)
            for gate in range(4)
            for row in [gate * size + unit]
        )
        kept = f * states[1][unit] * power(site - 15)
        c.append(sat16((kept + i * g * power(-30)) / power(site)))
        h.append(sat8(o * function("tanh", c[-1], site) * power(-30 - HIDDEN_EXPONENT)))
    return [h, c]


def _gru(sums: Sums, states: States, site: int, function: Function) -> States:
    (of_x, of_h), size, after = sums, len(states[0]), []
    for unit, s in enumerate(states[0]):
        r, z = (
            function("sigmoid", _argument(of_x[row] + of_h[row]), -12)
            for row in (unit, size + unit)
        )
        row = 2 * size + unit
        m = sat16(of_h[row] / power(site))
        n = function("tanh", _argument(of_x[row] + r * m * power(site - 15)), -12)
        after.append(sat16((z * s + ((1 << 15) - z) * n) * power(-15)))
    return [after]


def _tanh(sums: Sums, states: States, site: int, function: Function) -> States:
    found = (function("tanh", _argument(a + b), -12) for a, b in zip(*sums, strict=True))
    return [[sat8(u * power(-15 - site)) for u in found]]


def _relu(sums: Sums, states: States, site: int, function: Function) -> States:
    found = (max(a + b, Fraction(0)) for a, b in zip(*sums, strict=True))
    return [[sat8(total / power(site)) for total in found]]


_CELLS = {"lstm": _lstm, "gru": _gru, "tanh": _tanh, "relu": _relu}
