"""Plain RNN layers (docs/spec/training.md 5 and 7): the cells; the rest is in `recurrence`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from samebits.kernels.protocol import GATE_EXPONENT, Part
from samebits.train.operations.recurrence import Values, of_cells
from samebits.train.operations.recurrent import (
    ONE_SQUARED,
    check_sequence,
    check_state,
    looked_up,
)
from samebits.train.tensor import BFPParameter, BFPTensor
from samebits.train.value import Term, bfp32, combined, requantized


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

    def after(self, values: Values, before: Part, lookup: Tensor) -> tuple[Part, Part]:
        """h from the pre-activations."""
        acc, e = values.sum()
        if self.relu:
            h = requantized(acc.clamp(min=0), e, 8)
        else:
            exponent = GATE_EXPONENT + 0 * before[1]  # by rows where the state is
            h = requantized(looked_up(lookup[1], acc, e), exponent, 8)
        return h, h

    def gradients(
        self,
        values: Values,
        states: tuple[Part, Part],
        to_h: list[Term],
        to_state: list[Term],
        lookup: Tensor,
    ) -> tuple[Part, Part, list[Term]]:
        """D of both products is the same."""
        g, e_g = requantized(*combined(*to_h, *to_state), 16)
        acc, e = values.sum()
        if self.relu:
            slope, e_slope = acc > 0, 0
        else:
            u = looked_up(lookup[1], acc, e)
            slope, e_slope = ONE_SQUARED - u * u, 2 * GATE_EXPONENT
        d = bfp32(g.long() * slope, e_g + e_slope).resolved()
        return d, d, []


RNN = of_cells("Rnn")


def rnn(
    x: BFPTensor,
    weight_ih: BFPParameter,
    weight_hh: BFPParameter,
    bias_ih: BFPParameter | None = None,
    bias_hh: BFPParameter | None = None,
    reverse: bool = False,
    state: BFPTensor | None = None,
    relu: bool = False,
) -> Any:
    """Hidden states [T, N, H] of a sequence [T, N, I], and the one after it, [N, H].

    Parameters as in torch.nn.RNN; relu: in the place of tanh; `reverse` takes the last step first;
    state [N, H]: before the first. Raises UnsupportedError as `lstm` does.
    """
    check_sequence("RNN", x, weight_ih, weight_hh.shape[1])
    check_state("RNN", state, x)
    given = () if state is None else (state,)
    return RNN(RnnCell(relu), x, weight_ih, weight_hh, bias_ih, bias_hh, reverse, *given)
