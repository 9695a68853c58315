"""The reference's LSTM cell where it can be told by hand; `test_recurrent` has the rest."""

from __future__ import annotations

import math
from fractions import Fraction

from reference_nets import lstm_tables as tables
from samebits.spec import formats
from samebits.spec.training import lstm
from samebits.spec.training.cell import Direction
from samebits.spec.training.layers import initial_parameter, quantize_input


def test_one_step_by_hand() -> None:
    """Zero weights: i = f = o = 1/2 and g = 0; a bias of g alone gives c = tanh(1) / 2."""
    zero = initial_parameter([0.0] * 4, (4, 1))
    bias = initial_parameter([0.0, 0.0, 1.0, 0.0], (4,))
    p = Direction(zero, zero, bias, None)
    x = quantize_input([0.3, -2.0], (2, 1, 1))
    y, run = lstm.lstm(x, p, tables())
    first, second = run.steps
    tanh1 = formats.round_real(Fraction(math.tanh(1.0)) * 2**15)
    assert (first.i, first.f, first.g, first.o) == ([16384], [16384], [tanh1], [16384])
    assert first.state == formats.requantize([tanh1], -16, 16)
    assert second.state == formats.requantize([3 * tanh1], -17, 16)
    c = [math.tanh(1.0) / 2, math.tanh(1.0) * 0.75]
    assert y.codes == [round(128 * 0.5 * math.tanh(value)) for value in c]


def test_saturation_of_pre_activations_and_hidden_states() -> None:
    """Biases far beyond 8: open gates hold +-1 and the cell state counts the steps."""
    zero = initial_parameter([0.0] * 4, (4, 1))
    bias = initial_parameter([500.0, 500.0, -500.0, 500.0], (4,))
    p = Direction(zero, zero, bias, initial_parameter([1e30] * 2 + [-1e30, 1e30], (4,)))
    y, run = lstm.lstm(quantize_input([1.0] * 9, (9, 1, 1)), p, tables())
    done = run.steps
    top = tables().sigmoid[-1]
    assert top == 32757
    assert [(s.i[0], s.g[0]) for s in done] == [(top, -32767)] * 9
    values = [math.ldexp(s.state[0][0], s.state[1]) for s in done]
    assert all(abs(v + t) < 0.02 * t for t, v in enumerate(values, 1))
    assert [s.state[1] for s in done] == sorted(s.state[1] for s in done)
    assert y.codes[-1] == -127
