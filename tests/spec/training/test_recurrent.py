"""The reference's recurrent layers against float64 PyTorch.

The float layer gets the very weights, biases, inputs and states, so what differs is the arithmetic
of the cells: 8-bit hidden states, 16-bit gates and 16-bit gradients.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import nn

from reference_nets import lstm_tables
from samebits.spec.training import recurrent
from samebits.spec.training.layers import (
    Array,
    Parameter,
    initial_parameter,
    quantize_input,
    resolve,
)

KINDS: Mapping[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "lstm": ("LSTM", {}, {}),
    "gru": ("GRU", {}, {}),
    "rnn": ("RNN", {}, {}),
    "rnn, relu": ("RNN", {"nonlinearity": "relu"}, {"relu": True}),
}
SETTINGS = {
    "plain": ({"hidden_size": 5}, (6, 3, 4)),
    "stack, batch first": ({"hidden_size": 6, "num_layers": 2, "batch_first": True}, (3, 5, 4)),
    "both directions": ({"hidden_size": 4, "num_layers": 2, "bidirectional": True}, (5, 2, 3)),
    "no bias, one step": ({"hidden_size": 3, "bias": False}, (1, 2, 3)),
    "long": ({"hidden_size": 6}, (60, 2, 3)),
}


def normals(seed: object, count: int, scale: float) -> list[float]:
    rng = random.Random(str(seed))
    return [rng.gauss(0.0, scale) for _ in range(count)]


def drawn(seed: object, shape: tuple[int, ...], scale: float = 1.0) -> Array:
    return quantize_input(normals(seed, math.prod(shape), scale), shape)


def parameters_of(module: nn.Module, seed: int, scale: float) -> dict[str, Parameter]:
    return {
        name: initial_parameter(normals((seed, name), p.numel(), scale), tuple(p.shape))
        for name, p in module.named_parameters()
    }


def real(array: Array) -> torch.Tensor:
    return torch.tensor(array.values, dtype=torch.float64).view(array.shape)


def twin(module: nn.Module, parameters: dict[str, Parameter]) -> nn.Module:
    """The float64 layer with the values that the products read: W of matrices, J of vectors."""
    module = module.double()
    with torch.no_grad():
        for name, p in module.named_parameters():
            own = parameters[name]
            if p.dim() == 2:
                values = [math.ldexp(code, own.one_exponent) for code in own.codes]
            else:
                values = own.values
            p.copy_(torch.tensor(values, dtype=torch.float64).view(p.shape))
    return module


def cosine(a: torch.Tensor, b: torch.Tensor) -> float:
    a, b = a.flatten(), b.flatten()
    return float(a @ b / (a.norm() * b.norm()))


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("given", [False, True])
@pytest.mark.parametrize("name", list(SETTINGS))
@pytest.mark.parametrize("kind", list(KINDS))
def test_layers_follow_float_autograd(kind: str, name: str, given: bool, seed: int) -> None:
    """Outputs, last states and all gradients; with states from outside or without."""
    what, options, own_options = KINDS[kind]
    settings, shape = SETTINGS[name]
    op = kind.split(",")[0]
    module = getattr(nn, what)(shape[2], **settings, **options)
    parameters = parameters_of(module, seed, 0.25 if kind == "rnn, relu" else 0.6)
    samples = shape[0] if settings.get("batch_first") else shape[1]
    count = settings.get("num_layers", 1) * (2 if settings.get("bidirectional") else 1)
    whole = (count, samples, settings["hidden_size"])
    x = drawn((seed, "x"), shape)
    names = recurrent.STATES[op]
    states = [drawn((seed, n), whole) for n in names] if given else []
    attributes = {**settings, **own_options, "tables": lstm_tables()}
    y, after, saved = recurrent.stack(op, [x, *states], attributes, parameters.get)
    g = [drawn((seed, "g", i), t.shape) for i, t in enumerate((y, *after))]
    parts, at_states, own = recurrent.stack_backward([g[0]], g[1:], saved)

    float_x = real(x).requires_grad_()
    float_states = [real(s).requires_grad_() for s in states]
    expected = twin(module, parameters)
    before = () if not given else (tuple(float_states) if op == "lstm" else float_states[0],)
    out, last = expected(float_x, *before)
    last = last if op == "lstm" else (last,)
    for found, wanted in zip((y, *after), (out, *last), strict=True):
        assert float((real(found) - wanted.detach()).norm() / wanted.detach().norm()) < 0.03
    torch.autograd.backward((out, *last), tuple(real(t) for t in g))
    # Half an 8-bit code is another side of relu's kink, and so another gradient, here and there.
    least, most = (0.95, 0.1) if kind == "rnn, relu" else (0.99, 0.05)
    assert resolve(parts).shape == shape
    assert cosine(real(resolve(parts)), float_x.grad) > least
    for several, state in zip(at_states, float_states, strict=True):
        found = resolve(several)
        assert cosine(real(found), state.grad) > least
        assert abs(float(real(found).norm() / state.grad.norm()) - 1) < most
    assert set(own) == {n for n, _ in expected.named_parameters()}
    for key, p in expected.named_parameters():
        if not p.grad.any():  # from a state of zeros, or dead units
            assert not any(own[key].codes)
            continue
        assert cosine(real(own[key]), p.grad) > least, key
        ratio = float(real(own[key]).norm() / p.grad.norm())
        assert abs(ratio - 1) < most, key


@pytest.mark.parametrize("kind", list(KINDS))
def test_a_sequence_in_two_parts_is_the_whole(kind: str) -> None:
    """States go from one call to the next without a rounding."""
    what, options, own_options = KINDS[kind]
    op = kind.split(",")[0]
    settings = {"num_layers": 2}
    parameters = parameters_of(getattr(nn, what)(3, 4, 2, **options), 3, 0.4)
    attributes = {**settings, **own_options, "tables": lstm_tables()}
    x = drawn("x", (6, 2, 3))
    whole, at_end, _ = recurrent.stack(op, [x], attributes, parameters.get)
    first, second = (Array(x.codes[at : at + 18], (3, 2, 3), x.one_exponent, 8) for at in (0, 18))
    _, states, _ = recurrent.stack(op, [first], attributes, parameters.get)
    rest, after, _ = recurrent.stack(op, [second, *states], attributes, parameters.get)
    assert [s.values for s in after] == [s.values for s in at_end]
    tail = whole.values[24:]
    assert max(abs(a - b) for a, b in zip(rest.values, tail, strict=True)) <= 2.0 ** (
        whole.one_exponent - 1
    )


@pytest.mark.parametrize("kind", list(KINDS))
def test_a_zero_gradient_is_zero_everywhere(kind: str) -> None:
    what, options, own_options = KINDS[kind]
    op = kind.split(",")[0]
    parameters = parameters_of(getattr(nn, what)(2, 3, **options), 0, 0.5)
    attributes = {**own_options, "tables": lstm_tables()}
    states = [drawn(name, (1, 2, 3)) for name in recurrent.STATES[op]]
    x = drawn("x", (2, 2, 2))
    y, after, saved = recurrent.stack(op, [x, *states], attributes, parameters.get)
    zero = Array([0] * 12, y.shape, 5, 16)
    parts, at_states, own = recurrent.stack_backward([zero], [None] * len(after), saved)
    for array in (*parts, *own.values(), *(g for several in at_states for g in several)):
        assert not any(array.codes)
        assert array.exponent == -128
