"""Recurrent layers as a user meets them: states, dropout between layers, cells, errors."""

from __future__ import annotations

import functools
import math
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from reference_nets import lstm_tables
from samebits.errors import UnsupportedError
from samebits.spec.formats import CODE_MAX
from samebits.spec.training.cell import Direction
from samebits.spec.training.gru import gru as spec_gru
from samebits.spec.training.gru import gru_backward
from samebits.spec.training.layers import Array, Parameter
from samebits.spec.training.lstm import lstm as spec_lstm
from samebits.spec.training.lstm import lstm_backward
from samebits.spec.training.recurrent import STATE_BITS, stacked
from samebits.spec.training.rnn import rnn as spec_rnn
from samebits.spec.training.rnn import rnn_backward
from samebits.train import SGD, BFPTensor, convert, cross_entropy, mse_loss, set_step
from samebits.train.convert import model_input
from samebits.train.deployed.deploy import calibrate
from samebits.train.operations.gru import GRU, GruCell
from samebits.train.operations.lstm import LSTM, LstmCell
from samebits.train.operations.recurrence import layer as recurrent_layer
from samebits.train.operations.recurrent import own_exponent
from samebits.train.operations.recurrent import states as states_of
from samebits.train.operations.rnn import RNN, RnnCell
from samebits.train.tensor import BFPParameter

KINDS: dict[str, Callable[..., nn.Module]] = {
    "lstm": nn.LSTM,
    "gru": nn.GRU,
    "tanh": nn.RNN,
    "relu": functools.partial(nn.RNN, nonlinearity="relu"),
}
CELLS: dict[str, Callable[..., nn.Module]] = {
    "lstm": nn.LSTMCell,
    "gru": nn.GRUCell,
    "tanh": nn.RNNCell,
    "relu": functools.partial(nn.RNNCell, nonlinearity="relu"),
}


def layer(kind: str, *sizes: int, **settings: Any) -> nn.Module:
    torch.manual_seed(len(kind) + sum(sizes))
    return KINDS[kind](*sizes, **settings)


def real(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def values(x: BFPTensor) -> Tensor:
    return x.detach().dequantize()


def each(state: Any) -> tuple[Any, ...]:
    """The states of a kind, one or two."""
    return state if isinstance(state, tuple) else (state,)


def as_given(states: tuple[Any, ...]) -> Any:
    return states if len(states) > 1 else states[0]


@pytest.mark.parametrize("given", [False, True])
@pytest.mark.parametrize(
    "settings", [{}, {"bidirectional": True}, {"batch_first": True}, {"bias": False}]
)
@pytest.mark.parametrize("kind", list(KINDS))
def test_results_are_those_of_torch(kind: str, settings: dict[str, bool], given: bool) -> None:
    source = layer(kind, 5, 8, 2, **settings)
    twin = convert(source)
    x = model_input(twin, real(4, 4, 5))
    count = 4 if settings.get("bidirectional") else 2
    state = as_given(tuple(real(count, 4, 8, seed=s) for s in range(2 if kind == "lstm" else 1)))
    before = (state,) if given else ()
    output, last = twin(x, *before)
    with torch.no_grad():
        doubled = as_given(tuple(s.double() for s in each(state)))
        expected, expected_last = source.double()(values(x), *((doubled,) if given else ()))
    for found, wanted in zip((output, *each(last)), (expected, *each(expected_last)), strict=True):
        assert found.shape == wanted.shape
        assert float((values(found) - wanted).abs().max()) < 0.06


@pytest.mark.parametrize("exponents", ["row", "tensor"])
@pytest.mark.parametrize("kind", list(KINDS))
def test_parts_of_a_sequence_have_the_states_of_the_whole(
    kind: str, exponents: str, realisation: str
) -> None:
    """The input has one exponent in both cases: every row has a 1."""
    twin = convert(layer(kind, 3, 4, 2), exponents)
    x = real(6, 2, 3).clamp(-0.99, 0.99)
    x[..., 0] = 1.0
    whole, at_end = twin(model_input(twin, x))
    first, state = twin(model_input(twin, x[:2]))
    second, state = twin(model_input(twin, x[2:]), state)
    for found, wanted in zip(each(state), each(at_end), strict=True):
        assert torch.equal(values(found), values(wanted))
    if exponents == "row" or kind == "lstm":  # else the outputs of a part have an own grid
        parts = torch.cat([values(first), values(second)])
        assert torch.equal(parts, values(whole))


@pytest.mark.parametrize("shape", [(3, 2, 4), (2, 4)])
def test_the_exponent_of_a_gradient_is_where_the_gradient_is(shape: tuple[int, ...]) -> None:
    g = torch.empty(shape, device="meta")
    found = own_exponent(g, -7, by_rows=True)
    assert isinstance(found, Tensor)
    assert found.device == g.device
    assert found.shape == (*shape[:-1], 1)
    rows = torch.arange(math.prod(shape[:-1])).view(*shape[:-1], 1)
    assert torch.equal(torch.as_tensor(own_exponent(torch.empty(shape), rows, True)), rows)
    assert own_exponent(g, -7, by_rows=False) == -7


@pytest.mark.parametrize("make", [*KINDS.values(), *CELLS.values()])
def test_twins_have_the_sizes_of_torch(make: Callable[..., nn.Module]) -> None:
    source = make(3, 4)
    twin = convert(source)
    assert (twin.input_size, twin.hidden_size) == (source.input_size, source.hidden_size) == (3, 4)
    if isinstance(source, nn.RNNBase):
        assert twin.flatten_parameters() is None


@pytest.mark.parametrize("kind", list(KINDS))
def test_arguments_have_the_names_of_torch(kind: str) -> None:
    ours, steps = convert(layer(kind, 3, 4)), convert(CELLS[kind](3, 4))
    x = model_input(ours, real(2, 2, 3))
    state = as_given(tuple(real(1, 2, 4, seed=s) for s in range(2 if kind == "lstm" else 1)))
    assert torch.equal(values(ours(hx=state, input=x)[0]), values(ours(x, state)[0]))
    before = as_given(tuple(s[0] for s in each(state)))
    found, expected = steps(hx=before, input=x[0]), steps(x[0], before)
    assert torch.equal(values(each(found)[0]), values(each(expected)[0]))


@pytest.mark.parametrize("kind", list(KINDS))
def test_states_of_zeros_are_no_states(kind: str) -> None:
    twin = convert(layer(kind, 3, 4, 2))
    x = model_input(twin, real(3, 2, 3))
    zeros = as_given(tuple(torch.zeros(2, 2, 4) for _ in range(2 if kind == "lstm" else 1)))
    expected, _ = twin(x)
    found, _ = twin(x, zeros)
    assert torch.equal(found.codes, expected.codes)
    assert found.exponent == expected.exponent
    gradients = []
    for y in (expected, found):
        twin.zero_grad()
        y.backward(BFPTensor.from_real(real(*y.shape)))
        gradients.append([values(p.grad) for p in twin.parameters()])
    assert all(map(torch.equal, *gradients))


@pytest.mark.parametrize("kind", list(KINDS))
def test_truncated_backpropagation_cuts_the_gradient(kind: str) -> None:
    twin = convert(layer(kind, 3, 4))
    x = [model_input(twin, real(3, 2, 3, seed=s)) for s in range(2)]
    _, state = twin(x[0])
    cut = as_given(tuple(s.detach() for s in each(state)))
    assert all(s.requires_grad for s in each(state))
    results = []
    for given in (cut, state):
        twin.zero_grad()
        y, _ = twin(x[1], given)
        y.backward(BFPTensor.from_real(real(*y.shape)))
        results.append(values(twin.weight_ih_l0.grad))
    assert not torch.equal(*results)


@pytest.mark.parametrize("kind", list(KINDS))
def test_a_cell_step_by_step_is_the_layer(kind: str) -> None:
    source = layer(kind, 3, 4)
    cell = CELLS[kind](3, 4)
    with torch.no_grad():
        for name, p in cell.named_parameters():
            p.copy_(getattr(source, f"{name}_l0"))
    ours, steps = convert(source), convert(cell)
    x = real(5, 2, 3).clamp(-0.99, 0.99)
    x[..., 0] = 1.0
    output, last = ours(model_input(ours, x))
    state = None
    for t in range(5):
        state = steps(model_input(steps, x[t]), state)
        h = each(state)[0]
        assert float((values(h) - values(output[t])).abs().max()) < 2.0**output.exponent
    for found, wanted in zip(each(state), each(last), strict=True):
        assert torch.equal(values(found), values(wanted[0]))


@pytest.mark.slow
def test_a_cell_trains_through_its_states() -> None:
    torch.manual_seed(1)

    class Counter(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell, self.out = nn.GRUCell(2, 12), nn.Linear(12, 2)

        def forward(self, x: Tensor) -> Tensor:
            state = None
            for t in range(x.shape[0]):
                state = self.cell(x[t], state)
            y: Tensor = self.out(state)
            return y

    bits = torch.randint(0, 2, (6, 32), generator=torch.Generator().manual_seed(0))
    twin = convert(Counter())
    optimizer = SGD(twin.parameters(), lr=0.3, momentum=0.9)
    x = model_input(twin, torch.stack([bits, 1 - bits], -1).float())
    losses = []
    for _ in range(80):
        loss = cross_entropy(twin(x), bits[-3])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
    assert losses[0] > 0.5
    assert losses[-1] < 0.05


class Translator(nn.Module):
    """An encoder whose states begin a decoder, as sequences to sequences have them."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.encoder, self.decoder = layer(kind, 2, 8), layer(kind, 2, 8)
        self.out = nn.Linear(8, 2)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        _, state = self.encoder(x)
        z, _ = self.decoder(y, state)
        result: Tensor = self.out(z)
        return result


@pytest.mark.parametrize("exponents", ["tensor", "row"])
@pytest.mark.parametrize("kind", list(KINDS))
def test_an_encoder_learns_through_the_states_alone(kind: str, exponents: str) -> None:
    twin = convert(Translator(kind), exponents)
    x, y = (model_input(twin, v) for v in (real(4, 8, 2), torch.ones(4, 8, 2)))
    optimizer = SGD(twin.parameters(), lr=0.05 if kind == "relu" else 0.3, momentum=0.9)
    before = values(twin.encoder.weight_ih_l0)
    losses = []
    for _ in range(30):
        loss = mse_loss(twin(x, y), x.dequantize().flip(0))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.8 * losses[0]
    assert not torch.equal(values(twin.encoder.weight_ih_l0), before)


@pytest.mark.parametrize("kind", list(KINDS))
def test_dropout_is_between_layers_and_in_training_alone(kind: str) -> None:
    twin = convert(nn.Sequential(nn.Dropout(0.1), layer(kind, 3, 64, 3, dropout=0.5)))
    stack = twin[1]
    assert [d.site for d in (stack.dropout_l1, stack.dropout_l2)] == [1, 2]
    assert stack.dropout_l2.name == "1.dropout_l2"
    x = model_input(twin, real(4, 2, 3))
    outputs = []
    for step in (0, 0, 1):
        set_step(twin, 5, step, 0)
        outputs.append(values(stack(x)[0]))
    assert torch.equal(outputs[0], outputs[1])
    assert not torch.equal(outputs[0], outputs[2])
    twin.eval()
    plain = convert(layer(kind, 3, 64, 3)).eval()
    assert torch.equal(values(stack(x)[0]), values(plain(x)[0]))


# --- one layer in one direction, of any exponents ---------------------------------------------

OPERATIONS: dict[str, tuple[Any, Callable[..., Any], Callable[..., Any], int]] = {
    "lstm": ((LSTM, LstmCell()), spec_lstm, lstm_backward, 4),
    "gru": ((GRU, GruCell()), spec_gru, gru_backward, 3),
    "tanh": ((RNN, RnnCell(False)), functools.partial(spec_rnn, relu=False), rnn_backward, 1),
    "relu": ((RNN, RnnCell(True)), functools.partial(spec_rnn, relu=True), rnn_backward, 1),
}


class Draws:
    """Tensors of random codes and exponents, as both sides have them."""

    def __init__(self, seed: object, by_rows: bool) -> None:
        self.rng, self.by_rows = random.Random(str(seed)), by_rows

    def codes(self, count: int, bits: int) -> list[int]:
        """Codes of which some are 0, and some the largest."""
        largest = CODE_MAX[bits]
        rng, span = self.rng, self.rng.choice((0, 1, 5, largest))
        return [rng.choice((0, largest, rng.randint(-span, span))) for _ in range(count)]

    def exponents(self, rows: int, spread: int) -> list[int]:
        own = [self.rng.randint(-spread, spread) for _ in range(rows)]
        return own if self.by_rows else own[:1] * rows

    def tensor(self, shape: tuple[int, ...], bits: int, spread: int) -> tuple[BFPTensor, Array]:
        size, count = shape[-1], math.prod(shape)
        codes, own = self.codes(count, bits), self.exponents(count // shape[-1], spread)
        own = [e - bits + 1 for e in own]
        kind = {8: torch.int8, 16: torch.int16, 32: torch.int32}[bits]
        exponent = torch.tensor(own).view(*shape[:-1], 1) if self.by_rows else own[0]
        ours = BFPTensor(torch.tensor(codes, dtype=kind).view(shape), exponent)
        each_own = tuple(e for e in own for _ in range(size))
        return ours, Array(codes, shape, each_own if self.by_rows else own[0], bits)

    def parameter(self, *shape: int) -> tuple[BFPParameter, Parameter]:
        size, count = math.prod(shape[1:]), math.prod(shape)
        codes = self.codes(count, 8)
        delayed = [self.rng.randint(-(1 << 14), 1 << 14) for _ in codes]
        own = [e - 7 for e in self.exponents(shape[0], 6)]
        exponent: Any = own[0]
        if self.by_rows and len(shape) > 1:
            exponent = torch.tensor(own).view(-1, 1)
            own = [e for e in own for _ in range(size)][::size]
        ours = BFPParameter(
            torch.tensor(codes, dtype=torch.int8).view(shape),
            exponent,
            torch.tensor(delayed, dtype=torch.int16).view(shape),
        )
        of_rows = tuple(own) if self.by_rows and len(shape) > 1 else own[0]
        return ours, Parameter((codes, delayed, of_rows), shape)


def same(found: Any, expected: Array, what: str) -> None:
    codes, exponent = found.resolved()
    assert codes.flatten().tolist() == expected.codes, what
    if isinstance(exponent, Tensor):
        assert tuple(exponent.expand(codes.shape).flatten().tolist()) == expected.exponent, what
    else:
        assert exponent == expected.exponent, what


@pytest.mark.parametrize("by_rows", [False, True])
@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("kind", list(OPERATIONS))
def test_passes_of_any_exponents(kind: str, seed: int, by_rows: bool, realisation: str) -> None:
    """Inputs, weights, states and gradients whose sizes differ by many binades."""
    ours, theirs, backward, gates = OPERATIONS[kind]
    draw = Draws((kind, seed), by_rows)
    steps, samples, features, size = draw.rng.choice([(1, 1, 1, 1), (3, 2, 3, 2), (2, 3, 1, 4)])
    x = draw.tensor((steps, samples, features), 8, 8)
    outputs = gates * size
    own = [
        draw.parameter(outputs, features),
        draw.parameter(outputs, size),
        draw.parameter(outputs),
        draw.parameter(outputs),
    ]
    reverse = seed % 2 == 1
    widths = (8, 32) if kind == "lstm" else (32,)
    states = [draw.tensor((samples, size), bits, 12) for bits in widths]
    for tensor in (x[0], *(s for s, _ in states)):
        tensor.requires_grad_()
    parameters, given = [p for p, _ in own], [s for s, _ in states]
    y, last = recurrent_layer(*ours, x[0], *parameters, reverse, given)
    direction = Direction(*(p for _, p in own), reverse)
    expected, run = theirs(x[1], direction, lstm_tables(), **given_to(kind, states))
    same(y, expected, "output")
    codes, exponent = run.last
    same(last, Array(list(codes), (samples, size), exponent, 16), "last state")

    g = draw.tensor(tuple(y.shape), 32, 20)
    at_last = draw.tensor((samples, size), 32, 20)
    torch.autograd.backward((y, last), (g[0], at_last[0]))
    wanted = backward(g[1], x[1], direction, run, at_last[1])
    same(x[0].grad, wanted.x, "gradient of x")
    for p, array in zip(parameters, wanted.own, strict=True):
        same(p.grad, array, "gradient of a parameter")
    for (s, _), array in zip(states, wanted.states, strict=True):
        same(s.grad, array, "gradient of a state")


def given_to(kind: str, states: list[tuple[BFPTensor, Array]]) -> dict[str, Array]:
    names = ("h", "c") if kind == "lstm" else ("state",)
    return {name: array for name, (_, array) in zip(names, states, strict=True)}


@pytest.mark.parametrize("seed", range(40))
def test_states_of_layers_that_differ_by_any_number_of_binades(seed: int) -> None:
    draw = Draws(seed, seed % 4 == 3)
    spread = draw.rng.choice((3, 8, 40))
    parts = [draw.tensor((2, 3), draw.rng.choice((8, 16)), spread) for _ in range(seed % 3 + 1)]
    expected = stacked([(a.codes, a.exponent) for _, a in parts], (2, 3), 32, STATE_BITS)
    found = states_of(*(t for t, _ in parts))
    same(found, expected, "states")
    assert found.bits == 32


# --- errors -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "state", "text"),
    [
        ("gru", torch.zeros(2, 2, 4), r"expected h_0 of shape \(1, 2, 4\), found \(2, 2, 4\)"),
        ("lstm", torch.zeros(1, 2, 4), "expected h_0 and c_0 as initial state, found tensor"),
        ("lstm", (None, torch.zeros(1, 2, 4)), r"expected h_0 and c_0 as initial state, found \(N"),
        ("tanh", (torch.zeros(1, 2, 4),), r"expected h_0 as initial state, found \(tensor"),
        ("gru", torch.zeros(1, 2, 4, requires_grad=True), "h_0: .* requires a gradient; make it"),
        (
            "gru",
            BFPTensor.from_real(torch.ones(1, 2, 4), by_rows=True),
            "expected initial states with one exponent, as the input has, found exponents by rows",
        ),
    ],
)
def test_states_that_do_not_fit(kind: str, state: Any, text: str) -> None:
    twin = convert(nn.Sequential(layer(kind, 3, 4)))
    with pytest.raises(UnsupportedError, match=rf"layer '0' \((LSTM|GRU|RNN)\): .*{text}"):
        twin[0](model_input(twin, real(3, 2, 3)), state)


def test_packed_sequences_and_other_inputs_are_refused() -> None:
    twin = convert(nn.Sequential(nn.GRU(3, 4), nn.GRUCell(3, 4)))
    packed = nn.utils.rnn.pack_sequence([real(3, 3), real(2, 3)])
    with pytest.raises(UnsupportedError, match=r"'0' \(GRU\): .* found a PackedSequence; pad them"):
        twin[0](packed)
    with pytest.raises(UnsupportedError, match=r"of one length, found a PackedSequence; pad"):
        nn.utils.rnn.pack_padded_sequence(model_input(twin, real(3, 2, 3)), [3, 2])
    with pytest.raises(UnsupportedError, match=r"\(GRU\): .*\[samples, 3\], found shape \(4, 2, 5"):
        twin[0](model_input(twin, real(4, 2, 5)))
    text = "layer '1' (GRUCell): expected a batch of at least one sample [samples, 3], found shape "
    for shape in ((3,), (2, 2), (1, 2, 3), (0, 3)):
        with pytest.raises(UnsupportedError) as caught:
            twin[1](model_input(twin, real(*shape)))
        assert str(caught.value) == text + str(shape)


@pytest.mark.parametrize("make", [nn.RNN, nn.RNNCell])
def test_the_function_of_a_plain_cell_is_printed(make: Callable[..., nn.Module]) -> None:
    tanh, relu = (repr(convert(make(3, 4, nonlinearity=f))) for f in ("tanh", "relu"))
    assert "nonlinearity=tanh" in tanh
    assert relu == tanh.replace("tanh", "relu")


@pytest.mark.parametrize("make", [nn.LSTMCell, nn.GRUCell, nn.RNNCell])
def test_what_cannot_be_deployed_is_named(make: type[nn.Module]) -> None:
    twin = convert(nn.Sequential(make(3, 4)))
    with pytest.raises(UnsupportedError, match=rf"0 \({make.__name__}\): a cell hands its states"):
        calibrate(twin, [real(2, 3)])


class Begun(nn.Module):
    def __init__(self, given: bool) -> None:
        super().__init__()
        self.lstm, self.given = nn.LSTM(3, 4, batch_first=True), given

    def forward(self, x: Tensor) -> Tensor:
        state = (torch.zeros(1, x.shape[0], 4),) * 2 if self.given else None
        y, (_, c) = self.lstm(x, state)
        result: Tensor = y if self.given else c[0]
        return result


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (True, "no initial state in deployed arithmetic, where states start at zero, found one"),
        (False, "reads the hidden states in deployed arithmetic, found one that reads the cell"),
    ],
)
def test_states_in_deployed_arithmetic_are_refused(given: bool, text: str) -> None:
    twin = convert(Begun(given))
    with pytest.raises(UnsupportedError, match=rf"layer 'lstm' \(LSTM\): expected .*{text}"):
        calibrate(twin, [real(2, 3, 3)])


class Reads(nn.Module):
    """A cell whose memory a function reads."""

    def __init__(self, read: Callable[[BFPTensor, Any], Any]) -> None:
        super().__init__()
        self.first, self.lstm, self.read = nn.Linear(3, 3), nn.LSTM(3, 4, batch_first=True), read

    def forward(self, x: Tensor) -> Any:
        y, (_, c) = self.lstm(self.first(x))
        return self.read(y, c)


@pytest.mark.parametrize(
    "read",
    [
        lambda h, c: torch.tanh(c),
        lambda h, c: c.tanh(),
        lambda h, c: h + c,
        lambda h, c: c + h,
        lambda h, c: torch.cat([h, c]),
        lambda h, c: torch.stack((c, c)),
        lambda h, c: 2 * c,
        lambda h, c: c / 2,
        lambda h, c: 1 - c,
        lambda h, c: torch.where(h > 0, h, c),
        lambda h, c: list(c),
    ],
)
def test_any_use_of_a_cell_state_in_deployed_arithmetic_is_refused(read: Any) -> None:
    twin = convert(Reads(read))
    with pytest.raises(UnsupportedError, match=r"layer 'lstm' \(LSTM\): .* reads the cell state"):
        calibrate(twin, [real(2, 3, 3)])
