"""The reference's LSTM layer against float64 PyTorch, and where it can be told by hand.

The float LSTM gets the very weights, biases and inputs, so what differs is the arithmetic of the
cell: 8-bit hidden states, 16-bit gates and 16-bit gradients.
"""

from __future__ import annotations

import functools
import math
import random
from fractions import Fraction

import pytest
import torch
from torch import nn

from samebits.spec import formats
from samebits.spec.training import lstm
from samebits.spec.training.layers import Array, Parameter, initial_parameter, quantize_input
from samebits.tables.expression import Variable, apply
from samebits.tables.transfer import transfer_table


@functools.cache
def tables() -> lstm.Tables:
    source = (formats.power(-12), 0, -lstm.Q_GATE, lstm.Q_GATE)
    target = (formats.power(-15), 0, -lstm.Q_GATE, lstm.Q_GATE)
    sigmoid, tanh = (
        transfer_table(apply(name, Variable()), source, target).codes
        for name in ("Sigmoid", "Tanh")
    )
    return lstm.Tables(sigmoid, tanh)


def normals(seed: object, count: int, scale: float) -> list[float]:
    rng = random.Random(str(seed))
    return [rng.gauss(0.0, scale) for _ in range(count)]


def parameters_of(module: nn.LSTM, seed: int, scale: float) -> dict[str, Parameter]:
    return {
        name: initial_parameter(normals((seed, name), p.numel(), scale), tuple(p.shape))
        for name, p in module.named_parameters()
    }


def real(array: Array) -> torch.Tensor:
    return torch.tensor(array.values, dtype=torch.float64).view(array.shape)


def twin(module: nn.LSTM, parameters: dict[str, Parameter]) -> nn.LSTM:
    """The float64 LSTM with the values that the products read: W of matrices, J of vectors."""
    module = module.double()
    with torch.no_grad():
        for name, p in module.named_parameters():
            own = parameters[name]
            if p.dim() == 2:
                values = [math.ldexp(code, own.exponent) for code in own.codes]
            else:
                values = own.values
            p.copy_(torch.tensor(values, dtype=torch.float64).view(p.shape))
    return module


def cosine(a: torch.Tensor, b: torch.Tensor) -> float:
    a, b = a.flatten(), b.flatten()
    return float(a @ b / (a.norm() * b.norm()))


SETTINGS = {
    "plain": ({"hidden_size": 5}, (6, 3, 4)),
    "stack, batch first": ({"hidden_size": 6, "num_layers": 2, "batch_first": True}, (3, 5, 4)),
    "both directions": ({"hidden_size": 4, "num_layers": 2, "bidirectional": True}, (5, 2, 3)),
    "no bias, one step": ({"hidden_size": 3, "bias": False}, (1, 2, 3)),
    "long": ({"hidden_size": 6}, (60, 2, 3)),
}


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("name", list(SETTINGS))
def test_the_layer_follows_float_autograd(name: str, seed: int) -> None:
    settings, shape = SETTINGS[name]
    module = nn.LSTM(shape[2], **settings)
    parameters = parameters_of(module, seed, 0.6)
    x = quantize_input(normals((seed, "x"), math.prod(shape), 1.0), shape)
    y, saved = lstm.stack(x, settings, parameters.get, tables())
    g = quantize_input(normals((seed, "g"), len(y.codes), 1.0), y.shape)
    parts, own = lstm.stack_backward(g, settings, saved)
    down = lstm.resolve(parts)

    expected_x = real(x).requires_grad_()
    expected = twin(module, parameters)
    out, _ = expected(expected_x)
    assert y.exponent == -7
    assert float((real(y) - out.detach()).abs().max()) < 0.04
    assert float((real(y) - out.detach()).norm() / out.detach().norm()) < 0.03
    out.backward(real(g))
    assert down.bits == (32 if len(parts) > 1 else 16)
    assert down.shape == shape
    assert cosine(real(down), expected_x.grad) > 0.998
    assert set(own) == {n for n, _ in expected.named_parameters()}
    for key, p in expected.named_parameters():
        if name.startswith("no bias") and "_hh" in key:  # one step from a state of zeros
            assert not any(own[key].codes)
            continue
        assert cosine(real(own[key]), p.grad) > 0.998, key
        ratio = float(real(own[key]).norm() / p.grad.norm())
        assert abs(ratio - 1) < 0.03, key


def test_one_step_by_hand() -> None:
    """Zero weights: i = f = o = 1/2 and g = 0; a bias of g alone gives c = tanh(1) / 2."""
    zero = initial_parameter([0.0] * 4, (4, 1))
    bias = initial_parameter([0.0, 0.0, 1.0, 0.0], (4,))
    p = lstm.Direction(zero, zero, bias, None)
    x = quantize_input([0.3, -2.0], (2, 1, 1))
    y, (first, second) = lstm.lstm(x, p, tables())
    tanh1 = formats.round_real(Fraction(math.tanh(1.0)) * 2**15)
    assert (first.i, first.f, first.g, first.o) == ([16384], [16384], [tanh1], [16384])
    assert first.c == formats.requantize([tanh1], -16, 16)
    assert second.c == formats.requantize([3 * tanh1], -17, 16)
    c = [math.tanh(1.0) / 2, math.tanh(1.0) * 0.75]
    assert y.codes == [round(128 * 0.5 * math.tanh(value)) for value in c]


def test_saturation_of_pre_activations_and_hidden_states() -> None:
    """Biases far beyond 8: open gates hold +-1 and the cell state counts the steps."""
    zero = initial_parameter([0.0] * 4, (4, 1))
    bias = initial_parameter([500.0, 500.0, -500.0, 500.0], (4,))
    p = lstm.Direction(zero, zero, bias, initial_parameter([1e30] * 2 + [-1e30, 1e30], (4,)))
    y, done = lstm.lstm(quantize_input([1.0] * 9, (9, 1, 1)), p, tables())
    top = tables().sigmoid[-1]
    assert top == 32757
    assert [(s.i[0], s.g[0]) for s in done] == [(top, -32767)] * 9
    values = [math.ldexp(s.c[0][0], s.c[1]) for s in done]
    assert all(abs(v + t) < 0.02 * t for t, v in enumerate(values, 1))
    assert [s.c[1] for s in done] == sorted(s.c[1] for s in done)
    assert y.codes[-1] == -127


def test_a_zero_gradient_is_zero_everywhere() -> None:
    module = nn.LSTM(2, 3)
    parameters = parameters_of(module, 0, 0.5)
    x = quantize_input(normals("x", 8, 1.0), (2, 2, 2))
    y, saved = lstm.stack(x, {}, parameters.get, tables())
    parts, own = lstm.stack_backward(Array([0] * 12, y.shape, 5, 16), {}, saved)
    for array in (*parts, *own.values()):
        assert not any(array.codes)
        assert array.exponent == -128
