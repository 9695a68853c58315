"""GRU layers (docs/spec/training.md 5 and 7): the cell; the rest is in `recurrence`."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from samebits.kernels.protocol import GATE_EXPONENT, Part
from samebits.train.operations.recurrence import (
    Arriving,
    Handed,
    Two,
    Values,
    narrow,
    of_cells,
    side_by_side,
)
from samebits.train.operations.recurrent import ONE, ONE_SQUARED, looked_up
from samebits.train.sums import requantized
from samebits.train.value import Term, combined


@dataclass(frozen=True)
class Gates:
    """int64 [N, H]: r, z and n, of exponent -15, and the product of h that r lets in."""

    r: Tensor
    z: Tensor
    n: Tensor
    m: Part


@dataclass(frozen=True)
class GruCell:
    """Gates r, z, n; a state of 16 bits."""

    kind = "gru"
    bits = 16
    is_apart = False

    def after(self, values: Values, before: Part) -> Two:
        """s = z * s + (1 - z) * n."""
        (s, e_s), v = before, gates_of(values)
        kept: Term = (v.z * s, e_s + GATE_EXPONENT, 30)
        own = requantized(*combined(kept, ((ONE - v.z) * v.n, 2 * GATE_EXPONENT, 30)), 16)
        return own, narrow(own)

    def gradients(self, values: Values, states: Two, arriving: Arriving) -> Handed:
        """At the product of h, D of n has the factor r."""
        (s, e_s), v, (to_h, to_state) = states[0], gates_of(values), arriving
        (g, e_g), (m, e_m) = requantized(*combined(*to_h, *to_state), 16), v.m
        g = g.long()
        dn, e_n = requantized(
            g * (ONE - v.z) * (ONE_SQUARED - v.n * v.n), e_g + 3 * GATE_EXPONENT, 16
        )
        dr: Term = (dn * m.long() * (v.r * (ONE - v.r)), e_n + e_m + 2 * GATE_EXPONENT, 58)
        dz = g * (v.z * (ONE - v.z))
        kept: Term = (dz * s, e_g + e_s + 2 * GATE_EXPONENT, 58)
        lost: Term = (-dz * v.n, e_g + 3 * GATE_EXPONENT, 58)
        at_x: Term = (dn, e_n, 15)
        at_h: Term = (dn * v.r, e_n + GATE_EXPONENT, 30)
        d_x, d_h = (side_by_side([[dr], [kept, lost], [of_n]]) for of_n in (at_x, at_h))
        return d_x, d_h, [(g * v.z, e_g + GATE_EXPONENT, 30)]


def gates_of(values: Values) -> Gates:
    """The gates of a step."""
    sigmoid, tanh = values.lookup
    size = values.of_x[0][0].shape[1] // 3
    r, z = looked_up(sigmoid, *values.columns(0, 2 * size).sum()).chunk(2, 1)
    of_n = values.columns(2 * size, 3 * size)
    m, e_m = requantized(*combined(*of_n.of_h), 16)
    n = looked_up(tanh, *combined(*of_n.of_x, (r * m, e_m + GATE_EXPONENT, 30)))
    return Gates(r, z, n, (m, e_m))


GRU = of_cells("Gru")
