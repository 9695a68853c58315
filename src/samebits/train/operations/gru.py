"""GRU layers (docs/spec/training.md 5 and 7): the cell; the rest is in `recurrence`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from samebits import kernels
from samebits.kernels.protocol import GATE_EXPONENT, Part
from samebits.train.operations.recurrence import Values, narrow, of_cells
from samebits.train.operations.recurrent import (
    ONE,
    ONE_SQUARED,
    check_sequence,
    check_state,
    looked_up,
)
from samebits.train.tensor import BFPParameter, BFPTensor
from samebits.train.value import Term, combined, common_exponent, requantized


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

    def after(self, values: Values, before: Part, lookup: Tensor) -> tuple[Part, Part]:
        """s = z * s + (1 - z) * n."""
        (s, e_s), v = before, gates_of(values, lookup)
        kept: Term = (v.z * s, e_s + GATE_EXPONENT, 30)
        own = requantized(*combined(kept, ((ONE - v.z) * v.n, 2 * GATE_EXPONENT, 30)), 16)
        return own, narrow(own)

    def gradients(
        self,
        values: Values,
        states: tuple[Part, Part],
        to_h: list[Term],
        to_state: list[Term],
        lookup: Tensor,
    ) -> tuple[Part, Part, list[Term]]:
        """At the product of h, D of n has the factor r."""
        (s, e_s), v = states[0], gates_of(values, lookup)
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
        d_x, d_h = (_shortened([[dr], [kept, lost], [of_n]]) for of_n in (at_x, at_h))
        return d_x, d_h, [(g * v.z, e_g + GATE_EXPONENT, 30)]


def gates_of(values: Values, lookup: Tensor) -> Gates:
    """The gates of a step. lookup: `recurrent.tables`."""
    sigmoid, tanh = lookup
    size = values.of_x[0][0].shape[1] // 3
    r, z = looked_up(sigmoid, *values.columns(0, 2 * size).sum()).chunk(2, 1)
    of_n = values.columns(2 * size, 3 * size)
    m, e_m = requantized(*combined(*of_n.of_h), 16)
    n = looked_up(tanh, *combined(*of_n.of_x, (r * m, e_m + GATE_EXPONENT, 30)))
    return Gates(r, z, n, (m, e_m))


def _shortened(gates: list[list[Term]]) -> Part:
    """The sums of every gate's terms side by side, as 32 bits of one exponent, or one a sample."""
    k = kernels.of(gates[0][0][0])
    e = common_exponent(*((exponent, bits) for gate in gates for _, exponent, bits in gate))
    sums = []
    for first, *others in gates:
        total = k.scale(first[0], first[1] - e)
        for v, own, _ in others:
            total = total + k.scale(v, own - e)
        sums.append(total)
    acc = torch.cat(sums, 1)
    return k.shorten(acc, k.largest_of(acc) if isinstance(e, int) else 0, e)


GRU = of_cells("Gru")


def gru(
    x: BFPTensor,
    weight_ih: BFPParameter,
    weight_hh: BFPParameter,
    bias_ih: BFPParameter | None = None,
    bias_hh: BFPParameter | None = None,
    reverse: bool = False,
    state: BFPTensor | None = None,
) -> Any:
    """Hidden states [T, N, H] of a sequence [T, N, I], and the state after it, [N, H] of 16 bits.

    Parameters as in torch.nn.GRU, gates r, z, n; `reverse` takes the last step first; state [N, H]:
    before the first. Raises UnsupportedError as `lstm` does.
    """
    check_sequence("GRU", x, weight_ih, weight_hh.shape[1])
    check_state("GRU", state, x)
    given = () if state is None else (state,)
    return GRU(GruCell(), x, weight_ih, weight_hh, bias_ih, bias_hh, reverse, *given)
