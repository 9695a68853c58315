"""LSTM layers (docs/spec/training.md 5 and 7): the cell; the rest is in `recurrence`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from samebits import kernels
from samebits.kernels.protocol import GATE_EXPONENT, HIDDEN_EXPONENT, Part
from samebits.kernels.rows import Exponent
from samebits.spec import formats
from samebits.train.operations.recurrence import (
    Arriving,
    Handed,
    Two,
    Values,
    of_cells,
    side_by_side,
)
from samebits.train.operations.recurrent import ONE, ONE_SQUARED, looked_up
from samebits.train.sums import requantized
from samebits.train.value import Term, combined


@dataclass(frozen=True)
class LstmCell:
    """Gates i, f, g, o; the state c, of 16 bits, and h apart."""

    kind = "lstm"
    bits = 16
    is_apart = True

    def after(self, values: Values, before: Part) -> Two:
        """c = f * c + i * g; h = o * tanh(c)."""
        i, f, g, o = _gates(values)
        kept: Term = (f * before[0], before[1] + GATE_EXPONENT, 30)
        c = requantized(*combined(kept, (i * g, 2 * GATE_EXPONENT, 30)), 16)
        product, exponent = o * looked_up(values.lookup[1], *c), 2 * GATE_EXPONENT - HIDDEN_EXPONENT
        h = kernels.of(product).saturated(product, exponent, formats.Q8).to(torch.int8)
        return c, (h, HIDDEN_EXPONENT + 0 * c[1])  # by rows where c is

    def gradients(self, values: Values, states: Two, arriving: Arriving) -> Handed:
        """D of both products is the same.

        Derivatives are those of the gates themselves: s * (1 - s) of a sigmoid, 1 - t * t of tanh.
        """
        ((c, e_c), after), (to_h, to_state) = states, arriving
        i, f, g, o = _gates(values)
        u = looked_up(values.lookup[1], *after)
        zero = (torch.zeros_like(c), formats.EXPONENT_MIN + 0 * after[1])
        g_h, e_h = requantized(*combined(*to_h), 16) if to_h else zero
        through: Term = (g_h * o * (ONE_SQUARED - u * u), e_h + 3 * GATE_EXPONENT, 60)
        g_c, e_g = requantized(*combined(through, *to_state), 16)
        e_i, e_o = e_g + 3 * GATE_EXPONENT, e_h + 3 * GATE_EXPONENT
        products: tuple[Term, ...] = (
            (g_c * g * (i * (ONE - i)), e_i, 60),
            (g_c * c.long() * (f * (ONE - f)), e_g + e_c + 2 * GATE_EXPONENT, 60),
            (g_c * i * (ONE_SQUARED - g * g), e_i, 60),
            (g_h * u * (o * (ONE - o)), e_o, 60),
        )
        d = side_by_side([[term] for term in products])
        return d, d, [(g_c * f, e_g + GATE_EXPONENT, 30)]


def _gates(values: Values) -> list[Tensor]:
    """i, f, g and o, int64 [N, H]."""
    total, e = values.sum()
    own: Sequence[Exponent] = [e] * 4
    if isinstance(e, Tensor):
        own = e.expand(total.shape).chunk(4, 1)
    sigmoid, tanh = values.lookup
    each = zip((sigmoid, sigmoid, tanh, sigmoid), total.chunk(4, 1), own, strict=True)
    return [looked_up(table, v, e) for table, v, e in each]


LSTM = of_cells("Lstm", "y")
