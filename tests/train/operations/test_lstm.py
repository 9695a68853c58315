"""LSTM layers as a user meets them: results, memory, sequences of characters, errors."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from compare import assert_same
from samebits import kernels
from samebits.errors import UnsupportedError
from samebits.spec.training import lstm as lstm_rules
from samebits.spec.training.cell import Direction, Tables
from samebits.spec.training.layers import Array, Parameter, initial_parameter
from samebits.train import SGD, BFPParameter, BFPTensor, convert, cross_entropy
from samebits.train.architectures import build, initialise
from samebits.train.layers import LSTM
from samebits.train.operations.lstm import LSTM as OPERATION
from samebits.train.operations.lstm import LstmCell
from samebits.train.operations.recurrence import layer as recurrent_layer
from samebits.train.operations.recurrent import tables
from samebits.train.run.measure import distinct_storages


def sequence(*shape: int, seed: int = 0) -> BFPTensor:
    return BFPTensor.from_real(torch.randn(shape, generator=torch.Generator().manual_seed(seed)))


def lstm(*arguments: int, seed: int = 0, **settings: bool) -> nn.LSTM:
    torch.manual_seed(seed)
    return nn.LSTM(*arguments, **settings)


def layer(*operands: Any) -> Any:
    return recurrent_layer(OPERATION, LstmCell(), *operands)


def values(x: BFPTensor) -> Tensor:
    return x.detach().dequantize()


def test_tables_at_their_ends_and_centre() -> None:
    sigmoid, tanh = tables("cpu")
    assert [int(sigmoid[i]) for i in (0, 32767, 65534)] == [11, 16384, 32757]
    assert [int(tanh[i]) for i in (0, 32767, 65534)] == [-32767, 0, 32767]
    assert torch.equal(tanh, -tanh.flip(0))
    assert torch.equal(sigmoid + sigmoid.flip(0), torch.full_like(sigmoid, -32768))  # 2**15 wraps
    assert bool((sigmoid.diff() >= 0).all())


@pytest.mark.parametrize("settings", [
    {}, {"bidirectional": True}, {"batch_first": True}, {"bidirectional": True, "bias": False},
])  # fmt: skip
def test_results_are_those_of_torch(settings: dict[str, bool]) -> None:
    source = lstm(5, 8, 2, **settings)
    x = sequence(6, 3, 5)
    output, (last, state) = convert(source)(x)
    with torch.no_grad():
        expected, (expected_last, expected_state) = source.double()(values(x))
    assert output.shape == expected.shape
    assert last.shape == expected_last.shape
    assert state.shape == expected_state.shape
    assert float((values(state) - expected_state).abs().max()) < 0.03
    assert float((values(output) - expected).abs().max()) < 0.03
    assert float((values(last) - expected_last).abs().max()) < 0.03


def test_the_last_states_are_those_of_the_output() -> None:
    output, (last, _) = convert(lstm(4, 3, bidirectional=True))(sequence(5, 2, 4))
    assert torch.equal(values(last[0]), values(output[-1, :, :3]))
    assert torch.equal(values(last[1]), values(output[0, :, 3:]))


def test_a_layer_of_its_parameters_alone_is_one_in_one_direction() -> None:
    twin = convert(lstm(4, 3))
    x = sequence(5, 2, 4)
    output, (last, _) = LSTM(dict(twin.named_parameters()))(x)
    assert torch.equal(values(output), values(twin(x)[0]))
    assert torch.equal(values(last), values(output[-1:]))


def same_gradients(
    biases: list[list[float]], hidden: list[list[int]], e_hidden: int, g: list[list[int]]
) -> Array:
    """The gradients of two units over len(g) steps of one sample, compared with the definition's.

    biases: of i, f, g and o by unit; the weight of x is 0, and that of h `hidden` * 2**e_hidden.
    Gives the definition's gradient of the biases.
    """
    x = [5 + t for t in range(len(g))]
    shape = (len(g), 1, 2)
    bias = torch.tensor(biases, dtype=torch.float64).flatten()
    theirs = Direction(
        Parameter(([0] * 8, [0] * 8, 0), (8, 1)),
        Parameter(([w for row in hidden for w in row], [0] * 16, e_hidden), (8, 2)),
        *(initial_parameter(v.tolist(), (8,)) for v in (bias, 0 * bias)),
    )
    signal = Array(x, (len(g), 1, 1), -3, 8)
    _, run = lstm_rules.lstm(signal, theirs, Tables(*tables("cpu").tolist()))
    gradient = Array([v for step in g for v in step], shape, 0, 32)
    wanted = lstm_rules.lstm_backward(gradient, signal, theirs, run)

    ours = BFPTensor(torch.tensor(x, dtype=torch.int8).view(-1, 1, 1), -3).requires_grad_()
    ih, hh = (
        BFPParameter(codes, exponent, torch.zeros_like(codes, dtype=torch.int16))
        for codes, exponent in (
            (torch.zeros(8, 1, dtype=torch.int8), 0),
            (torch.tensor(hidden, dtype=torch.int8), e_hidden),
        )
    )
    biases_of_both = BFPParameter.from_real(bias), BFPParameter.from_real(0 * bias)
    codes = torch.tensor(g, dtype=torch.int32).view(shape)
    layer(ours, ih, hh, *biases_of_both)[0].backward(BFPTensor(codes, 0))
    pairs = zip((ours, ih, hh, *biases_of_both), (wanted.x, *wanted.own), strict=True)
    for found, expected in pairs:
        codes, exponent = found.grad.resolved()
        assert exponent == expected.exponent
        assert_same(codes, expected.codes, range(codes.numel()))
    return wanted.own[-1]


def test_a_cell_gradient_far_above_that_of_its_hidden_state(realisation: str) -> None:
    """Half of the second unit's dc, 20001, is a tie in the 16 bits that the first unit leaves; what
    h adds is less than 2**-44 of it, but decides: W makes hardly anything of the other unit's D.
    (Sigmoid of -1/2 is 12371 * 2**-15, which makes 20001 of 26489.)"""
    biases = [[0.0, 0.0], [8.0, 0.0], [0.0, 0.0], [0.0, -0.5]]
    only_g = [[0, int(row == 4)] for row in range(8)]
    found = same_gradients(biases, only_g, -58, [[0, 0], [32001 << 16, 26489 << 16]])
    assert found.values[5] == (20001 + 10001) * 2.0**14


def test_a_cell_gradient_is_rounded_once(realisation: str) -> None:
    """181 * 523 * (2**30 - 32765**2) is 1 above a tie in 16 bits: the first unit's 32001 * 11 *
    (2**30 - 32767**2) leaves steps of 2**20. Eight steps with open gates bring c there."""
    product = 181 * 523 * (2**30 - 32765**2)
    assert product == 17748 * 2**20 + 2**19 + 1
    biases = [[8.0, 8.0], [8.0, 8.0], [8.0, 2943 / 4096], [-8.0, -16885 / 4096]]
    same_gradients(biases, [[0, 0]] * 8, 0, [[0, 0]] * 7 + [[32001, 181]])


@pytest.mark.parametrize(("e_ih", "e_hh"), [(33, 0), (0, 40)])
def test_sums_are_kept_30_bits_below_the_exponent_of_a_product(
    e_ih: int, e_hh: int, realisation: str
) -> None:
    """2**33 of x, or of h (codes at 2**-7), leaves steps of 8, even where the products are zero: a
    bias of 4 is a tie, 0; one of 8 stays. (Then h is sigmoid(8) * tanh(sigmoid(8) * tanh(8)).)"""
    shapes = ((4, 1), e_ih), ((4, 1), e_hh)
    ih, hh = (
        BFPParameter(torch.zeros(s, dtype=torch.int8), e, torch.zeros(s, dtype=torch.int16))
        for s, e in shapes
    )
    x = BFPTensor(torch.ones(1, 1, 1, dtype=torch.int8), 0)
    for bias, code in ((4.0, 0), (8.0, 97), (12.0, 97)):
        parameter = BFPParameter.from_real(torch.full((4,), bias))
        found, _ = layer(x, ih, hh, parameter)
        assert (found.codes.tolist(), found.exponent) == ([[[code]]], -7)


@pytest.mark.parametrize("realisation", ["native", "eager"])
def test_a_sequence_reversed_is_the_other_direction(realisation: str) -> None:
    if realisation == "native" and kernels.realisation() != "native":
        pytest.skip("no native kernels: no C compiler on this machine")
    source = lstm(4, 3, bidirectional=True)
    with torch.no_grad():
        for name, p in source.named_parameters():
            if name.endswith("_reverse"):
                p.copy_(getattr(source, name.removesuffix("_reverse")))
    twin = convert(source)
    codes, exponent = sequence(6, 2, 4).resolved()
    with kernels.use(realisation):
        forth = twin(BFPTensor(codes, exponent))[0].codes
        back = twin(BFPTensor(codes.flip(0), exponent))[0].codes
    assert torch.equal(forth[..., :3], back[..., 3:].flip(0))
    assert torch.equal(forth[..., 3:], back[..., :3].flip(0))


def test_what_is_kept_for_the_backward_pass() -> None:
    """x and h take one byte an element, c two, and its exponents eight a step; nothing else but the
    parameters is kept."""
    steps, n, features, hidden = 12, 4, 10, 16
    twin = convert(lstm(features, hidden))
    kept: list[Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        output = twin(sequence(steps, n, features))[0]
    own = {p.data_ptr() for q in twin.parameters() for p in (q.codes, q.delayed)}
    found = distinct_storages(t for t in kept if t.data_ptr() not in own)
    expected = steps * n * (features + 3 * hidden) + 8 * steps
    assert sum(size for size, _ in found.values()) == expected
    assert output.codes.untyped_storage().data_ptr() in found


class Characters(nn.Module):
    """The next character from those before it."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(count, 8)
        self.lstm = nn.LSTM(8, 24, batch_first=True)
        self.out = nn.Linear(24, count)

    def forward(self, x: Tensor) -> Tensor:
        states, _ = self.lstm(self.embed(x))
        y: Tensor = self.out(states)
        return y


def test_a_character_model_learns_its_text() -> None:
    text = "the same bits everywhere, the same words again. " * 4
    letters = sorted(set(text))
    codes = torch.tensor([letters.index(c) for c in text])
    windows = codes.unfold(0, 17, 5)
    model = Characters(len(letters))
    initialise(model, 0)
    twin = convert(model)
    optimizer = SGD(twin.parameters(), lr=0.5, momentum=0.9)
    losses = []
    for _ in range(60):
        logits = twin(windows[:, :-1])
        loss = cross_entropy(logits.reshape(-1, len(letters)), windows[:, 1:].reshape(-1))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
    assert losses[0] > 2.5
    assert losses[-1] < 0.5


def test_the_architecture_trains_alike_on_both_realisations() -> None:
    if kernels.realisation() != "native":
        pytest.skip("no native kernels: no C compiler on this machine")
    results = []
    for name in ("native", "eager"):
        model = build("lstm", (1, 8, 8), 4)
        initialise(model, 3)
        twin = convert(model)
        optimizer = SGD(twin.parameters(), lr=0.2, momentum=0.9)
        with kernels.use(name):
            for step in range(3):
                images = sequence(16, 1, 8, 8, seed=step)
                cross_entropy(twin(images), torch.arange(16) % 4).backward()
                optimizer.step()
                optimizer.zero_grad()
        results.append(twin.state_dict())
    for key, value in results[0].items():
        assert torch.equal(value, results[1][key]), key


@pytest.mark.parametrize(
    ("shape", "text"),
    [
        ((4, 3), r"expected a batch of sequences \[3 axes\], found shape \(4, 3\)"),
        ((4, 2, 5), r"step of \[samples, 3\], found shape \(4, 2, 5\)"),
        ((0, 2, 3), r"at least one step .* found shape \(0, 2, 3\)"),
        ((4, 0, 3), r"at least one step .* found shape \(4, 0, 3\)"),
    ],
)
def test_shapes_that_do_not_fit(shape: tuple[int, ...], text: str) -> None:
    twin = convert(nn.Sequential(lstm(3, 2)))
    with pytest.raises(UnsupportedError, match=rf"layer '0' \(LSTM\): .*{text}"):
        twin(BFPTensor(torch.zeros(shape, dtype=torch.int8), 0))


def test_too_many_units_are_refused() -> None:
    size = (1 << 14) + 1
    ih, hh = (
        BFPParameter(torch.zeros(4, n, dtype=torch.int8), 0, torch.zeros(4, n, dtype=torch.int16))
        for n in (3, size)
    )
    with pytest.raises(UnsupportedError, match="at most 16384 units, found 16385"):
        layer(sequence(2, 1, 3), ih, hh)


def test_indexing_and_permutation() -> None:
    x = sequence(3, 4, 5).requires_grad_()
    y = x.permute(2, 0, 1).transpose(0, 2)[1:, ..., -1]
    assert torch.equal(values(y), values(x).permute(1, 0, 2)[1:, ..., -1])
    y.backward(BFPTensor(torch.full(y.shape, 3, dtype=torch.int16), -4))
    expected = torch.zeros(3, 4, 5)
    expected[:, 1:, -1] = 3 / 16
    assert torch.equal(values(x.grad), expected.double())
    assert x.grad.bits == 16
    with pytest.raises(UnsupportedError, match="expected integers, slices, None or"):
        x[torch.tensor([True, False, True])]


def test_an_order_of_axes_may_be_one_tuple() -> None:
    x = sequence(3, 4, 5)
    named = torch.permute(x, dims=(2, 0, 1))
    for y in (x.permute(2, 0, 1), x.permute((2, 0, 1)), torch.permute(x, [2, 0, 1]), named):
        assert torch.equal(values(y), values(x).permute(2, 0, 1))
    line = sequence(5)
    assert torch.equal(values(line.permute(0)), values(line))


@pytest.mark.parametrize("given", [(True, False), (False, True)])
def test_a_layer_with_one_bias_has_the_gradients_that_it_has_with_both(given) -> None:
    """Where the other bias is zero."""
    torch.manual_seed(0)
    w_ih, w_hh, bias = (
        BFPParameter.from_real(torch.randn(shape) * 0.4) for shape in ((12, 4), (12, 3), (12,))
    )
    zero = BFPParameter.from_real(torch.zeros(12))
    found = []
    for other in (None, zero):
        for parameter in (w_ih, w_hh, bias):
            parameter.grad = None
        biases = [bias if own else other for own in given]
        y, _ = layer(sequence(5, 2, 4), w_ih, w_hh, *biases)
        y.backward(BFPTensor.from_real(torch.ones(5, 2, 3)))
        found.append([values(p.grad).tolist() for p in (w_ih, w_hh, bias)])
    assert found[0] == found[1]
