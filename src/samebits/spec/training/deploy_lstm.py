"""The deployed LSTM layer in plain Python integers (docs/spec/training.md section 11)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction

from samebits.spec import formats
from samebits.spec.formats import power
from samebits.spec.training.cell import Direction, matrix_product
from samebits.spec.training.deploy import offsets_of, own_grids
from samebits.spec.training.deploy_attention import real_values, saturated
from samebits.spec.training.layers import Array
from samebits.spec.training.lstm import HIDDEN_EXPONENT
from samebits.spec.training.rows import each

Function = Callable[[str, int, int], int]
"""sat16(rne(f(code * 2**exponent) * 2**15)) of (f: "sigmoid" or "tanh", code, exponent)."""


def sat16(value: Fraction) -> int:
    """rne, then saturate to [-32768, 32767]."""
    return saturated(value, 16)


def layer(x: Array, p: Direction, site: int, function: Function) -> tuple[Array, list[int]]:
    """h [T, N, H], and c after the last step; `site`: the frozen exponent of c."""
    steps, samples, features = x.shape
    rows = 4 * p.hidden
    grids_h = [HIDDEN_EXPONENT + e for e in each(p.weight_hh.exponent, rows)] * samples
    bias = [Fraction(0)] * rows
    for parameter in (p.bias_ih, p.bias_hh):
        if parameter is not None:
            bias = [a + b for a, b in zip(bias, real_values(parameter), strict=True)]
    own = tuple(x.one_exponent + e for e in each(p.weight_ih.exponent, rows))
    codes, own = own_grids(p.weight_ih.codes, own, bias)
    weight_ih = replace(p.weight_ih, weight=(codes, *p.weight_ih.weight[1:]))
    offsets = offsets_of(bias, own) * samples
    grids = own * samples
    h, c = [0] * (samples * p.hidden), [0] * (samples * p.hidden)
    done: dict[int, list[int]] = {}
    for t in reversed(range(steps)) if p.backwards else range(steps):
        row = x.codes[t * samples * features : (t + 1) * samples * features]
        from_x = matrix_product(row, features, weight_ih)
        from_h = matrix_product(h, p.hidden, p.weight_hh)
        sums = [
            (a + b) * power(grid) + r * power(grid_h)
            for a, b, r, grid, grid_h in zip(from_x, offsets, from_h, grids, grids_h, strict=True)
        ]
        z = [sat16(s / power(-12)) for s in sums]
        for k in range(samples * p.hidden):
            n, unit = divmod(k, p.hidden)
            i, f, g, o = (
                function("tanh" if gate == 2 else "sigmoid", code, -12)
                for gate, code in enumerate(z[4 * n * p.hidden + unit :: p.hidden][:4])
            )
            c[k] = sat16((f * c[k] * power(site - 15) + i * g * power(-30)) / power(site))
            out = o * function("tanh", c[k], site) * power(-30 - HIDDEN_EXPONENT)
            h[k] = min(max(formats.round_real(out), -128), 127)
        done[t] = list(h)
    codes = [code for t in range(steps) for code in done[t]]
    return Array(codes, (steps, samples, p.hidden), HIDDEN_EXPONENT, 8), c
