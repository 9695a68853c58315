"""Plain RNN layers (docs/spec/training.md 5 and 7): the cells; the rest is in `recurrent`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from samebits.kernels.protocol import GATE_EXPONENT, Part
from samebits.train.operations.recurrent import (
    ONE_SQUARED,
    Values,
    check_sequence,
    check_state,
    looked_up,
    of_cell,
)
from samebits.train.tensor import BFPParameter, BFPTensor
from samebits.train.value import Term, bfp32, combined, requantized


@dataclass(frozen=True)
class RnnCell:
    """tanh or relu of one sum; the state is h, of 8 bits."""

    relu: bool
    bits = 8

    def after(self, values: Values, before: Part, lookup: Tensor) -> Part:
        """h from the pre-activations."""
        acc, e = combined(*values.of_x, *values.of_h)
        if self.relu:
            return requantized(acc.clamp(min=0), e, 8)
        exponent = GATE_EXPONENT + 0 * before[1]  # by rows where the state is
        return requantized(looked_up(lookup[1], acc, e), exponent, 8)

    def gradients(
        self, values: Values, states: tuple[Part, Part], ds: Part, lookup: Tensor
    ) -> tuple[Part, Part, list[Term]]:
        """D of both products is the same."""
        acc, e = combined(*values.of_x, *values.of_h)
        if self.relu:
            slope, e_slope = acc > 0, 0
        else:
            u = looked_up(lookup[1], acc, e)
            slope, e_slope = ONE_SQUARED - u * u, 2 * GATE_EXPONENT
        d = bfp32(ds[0].long() * slope, ds[1] + e_slope).resolved()
        return d, d, []


RNN = of_cell("Rnn")


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
    return RNN(RnnCell(relu), x, weight_ih, weight_hh, bias_ih, bias_hh, reverse, state)
