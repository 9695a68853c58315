"""Plain RNN layers (docs/spec/training.md 5 and 7): the cells; the rest is in `recurrence`."""

from __future__ import annotations

from dataclasses import dataclass

from samebits.kernels.protocol import GATE_EXPONENT, Part
from samebits.train.operations.recurrence import Arriving, Handed, Two, Values, of_cells
from samebits.train.operations.recurrent import ONE_SQUARED, looked_up
from samebits.train.sums import requantized
from samebits.train.value import bfp32, combined


@dataclass(frozen=True)
class RnnCell:
    """tanh or relu of one sum; the state is h, of 8 bits."""

    relu: bool
    bits = 8
    is_apart = False

    @property
    def kind(self) -> str:
        """The name by which kernels know it."""
        return "relu" if self.relu else "tanh"

    def after(self, values: Values, before: Part) -> Two:
        """h from the pre-activations."""
        acc, e = values.sum()
        if self.relu:
            h = requantized(acc.clamp(min=0), e, 8)
        else:
            exponent = GATE_EXPONENT + 0 * before[1]  # by rows where the state is
            h = requantized(looked_up(values.lookup[1], acc, e), exponent, 8)
        return h, h

    def gradients(self, values: Values, states: Two, arriving: Arriving) -> Handed:
        """D of both products is the same."""
        g, e_g = requantized(*combined(*arriving[0], *arriving[1]), 16)
        acc, e = values.sum()
        if self.relu:
            slope, e_slope = acc > 0, 0
        else:
            u = looked_up(values.lookup[1], acc, e)
            slope, e_slope = ONE_SQUARED - u * u, 2 * GATE_EXPONENT
        d = bfp32(g.long() * slope, e_g + e_slope).resolved()
        return d, d, []


RNN = of_cells("Rnn")
