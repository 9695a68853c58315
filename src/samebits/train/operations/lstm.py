"""LSTM layers (docs/spec/training.md 5 and 7): the cell; the rest is in `recurrence`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from samebits import kernels
from samebits.kernels.protocol import GATE_EXPONENT, HIDDEN_EXPONENT, Part
from samebits.kernels.rows import Exponent, maximum
from samebits.spec import formats
from samebits.train.operations.recurrence import Values, of_cells
from samebits.train.operations.recurrent import (
    ONE,
    ONE_SQUARED,
    check_sequence,
    check_state,
    looked_up,
)
from samebits.train.tensor import BFPParameter, BFPTensor
from samebits.train.value import Term, combined, requantized


@dataclass(frozen=True)
class LstmCell:
    """Gates i, f, g, o; the state c, of 16 bits, and h apart."""

    kind = "lstm"
    bits = 16
    is_apart = True

    def after(self, values: Values, before: Part, lookup: Tensor) -> tuple[Part, Part]:
        """c = f * c + i * g; h = o * tanh(c)."""
        i, f, g, o = _gates(values, lookup)
        kept: Term = (f * before[0], before[1] + GATE_EXPONENT, 30)
        c = requantized(*combined(kept, (i * g, 2 * GATE_EXPONENT, 30)), 16)
        product, exponent = o * looked_up(lookup[1], *c), 2 * GATE_EXPONENT - HIDDEN_EXPONENT
        h = kernels.of(product).saturated(product, exponent, formats.Q8).to(torch.int8)
        return c, (h, HIDDEN_EXPONENT + 0 * c[1])  # by rows where c is

    def gradients(
        self,
        values: Values,
        states: tuple[Part, Part],
        to_h: list[Term],
        to_state: list[Term],
        lookup: Tensor,
    ) -> tuple[Part, Part, list[Term]]:
        """D of both products is the same.

        Derivatives are those of the gates themselves: s * (1 - s) of a sigmoid, 1 - t * t of tanh.
        """
        (c, e_c), after = states
        i, f, g, o = _gates(values, lookup)
        u = looked_up(lookup[1], *after)
        zero = (torch.zeros_like(c), formats.EXPONENT_MIN + 0 * after[1])
        g_h, e_h = requantized(*combined(*to_h), 16) if to_h else zero
        through: Term = (g_h * o * (ONE_SQUARED - u * u), e_h + 3 * GATE_EXPONENT, 60)
        g_c, e_g = requantized(*combined(through, *to_state), 16)
        products = (
            (g_c * g * (i * (ONE - i)), e_g + 3 * GATE_EXPONENT),
            (g_c * c.long() * (f * (ONE - f)), e_g + e_c + 2 * GATE_EXPONENT),
            (g_c * i * (ONE_SQUARED - g * g), e_g + 3 * GATE_EXPONENT),
            (g_h * u * (o * (ONE - o)), e_h + 3 * GATE_EXPONENT),
        )
        e, k = maximum(*(own for _, own in products)), kernels.of(c)
        acc = torch.cat([k.scale(v, own - e) for v, own in products], 1)
        d = k.shorten(acc, k.largest_of(acc) if isinstance(e, int) else 0, e)
        return d, d, [(g_c * f, e_g + GATE_EXPONENT, 30)]


def _gates(values: Values, lookup: Tensor) -> list[Tensor]:
    """i, f, g and o, int64 [N, H]."""
    total, e = values.sum()
    own: Sequence[Exponent] = [e] * 4
    if isinstance(e, Tensor):
        own = e.expand(total.shape).chunk(4, 1)
    sigmoid, tanh = lookup
    each = zip((sigmoid, sigmoid, tanh, sigmoid), total.chunk(4, 1), own, strict=True)
    return [looked_up(table, v, e) for table, v, e in each]


LSTM = of_cells("Lstm", "y")


def lstm(
    x: BFPTensor,
    weight_ih: BFPParameter,
    weight_hh: BFPParameter,
    bias_ih: BFPParameter | None = None,
    bias_hh: BFPParameter | None = None,
    reverse: bool = False,
    state: tuple[BFPTensor, BFPTensor] | None = None,
) -> Any:
    """Hidden states [T, N, H] of a sequence [T, N, I], and c after it, [N, H] of 16 bits.

    Parameters as in torch.nn.LSTM: weights [4H, I] and [4H, H], biases [4H], gates i, f, g, o.
    `reverse` takes the last step first; state: h of 8 bits and c, [N, H], before it. In deployed
    arithmetic c stays inside: the hidden states alone. Raises UnsupportedError for an empty
    sequence, other shapes, or more than 2**14 units.
    """
    check_sequence("LSTM", x, weight_ih, weight_hh.shape[1])
    for part in state or ():
        check_state("LSTM", part, x)
    return LSTM(LstmCell(), x, weight_ih, weight_hh, bias_ih, bias_hh, reverse, *(state or ()))
