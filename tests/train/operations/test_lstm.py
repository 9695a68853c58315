"""LSTM layers as a user meets them: results, memory, sequences of characters, errors."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from samebits import kernels
from samebits.errors import UnsupportedError
from samebits.train import SGD, BFPTensor, convert, cross_entropy
from samebits.train.architectures import build, initialise
from samebits.train.operations.lstm import tables
from samebits.train.run.measure import distinct_storages


def sequence(*shape: int, seed: int = 0) -> BFPTensor:
    return BFPTensor.from_real(torch.randn(shape, generator=torch.Generator().manual_seed(seed)))


def lstm(*arguments: int, seed: int = 0, **settings: bool) -> nn.LSTM:
    torch.manual_seed(seed)
    return nn.LSTM(*arguments, **settings)


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
        expected, (expected_last, _) = source.double()(values(x))
    assert output.shape == expected.shape
    assert last.shape == expected_last.shape
    assert state is None
    assert float((values(output) - expected).abs().max()) < 0.03
    assert float((values(last) - expected_last).abs().max()) < 0.03


def test_the_last_states_are_those_of_the_output() -> None:
    output, (last, _) = convert(lstm(4, 3, bidirectional=True))(sequence(5, 2, 4))
    assert torch.equal(values(last[0]), values(output[-1, :, :3]))
    assert torch.equal(values(last[1]), values(output[0, :, 3:]))


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
    """x and h take one byte an element, c two; nothing else but the parameters is kept."""
    steps, n, features, hidden = 12, 4, 10, 16
    twin = convert(lstm(features, hidden))
    kept: list[Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        output = twin(sequence(steps, n, features))[0]
    own = {p.data_ptr() for q in twin.parameters() for p in (q.codes, q.delayed)}
    found = distinct_storages(t for t in kept if t.data_ptr() not in own)
    assert sum(size for size, _ in found.values()) == steps * n * (features + 3 * hidden)
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


def test_an_initial_state_is_refused() -> None:
    x = sequence(2, 1, 3)
    with pytest.raises(UnsupportedError, match=r"LSTM\): expected no initial state"):
        convert(lstm(3, 2))(x, (x, x))


def test_too_many_units_are_refused() -> None:
    from samebits.train.operations.lstm import lstm as layer
    from samebits.train.tensor import BFPParameter

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
    with pytest.raises(UnsupportedError, match="expected integers, slices or"):
        x[torch.tensor([0, 1])]
