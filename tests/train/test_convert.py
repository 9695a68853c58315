"""Conversion of torch.nn models: what is kept, what is shared, what is refused."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from samebits.errors import UnsupportedError
from samebits.spec import formats
from samebits.train import BFPTensor, convert, cross_entropy, layers


def bfp(shape, seed=0):
    return BFPTensor.from_real(torch.randn(shape, generator=torch.Generator().manual_seed(seed)))


class Block(nn.Module):
    """A user's own module."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(4, 4, 3, padding=1)
        self.act = nn.ReLU()
        self.scale = 3

    def forward(self, x):
        return self.act(self.conv(x) + x)


EVERY_LAYER = [
    (nn.Linear(4, 3), layers.Linear),
    (nn.Conv2d(2, 4, (3, 1), stride=2, padding=(1, 0), dilation=2, groups=2), layers.Conv2d),
    (nn.BatchNorm1d(3), layers.BatchNorm),
    (nn.BatchNorm2d(3), layers.BatchNorm),
    (nn.LayerNorm(5), layers.LayerNorm),
    (nn.ReLU(), layers.ReLU),
    (nn.ReLU6(), layers.ReLU6),
    (nn.LeakyReLU(0.3), layers.Activation),
    (nn.Tanh(), layers.Activation),
    (nn.Sigmoid(), layers.Activation),
    (nn.SiLU(), layers.Activation),
    (nn.GELU(), layers.Activation),
    (nn.GELU("tanh"), layers.Activation),
    (nn.Mish(), layers.Activation),
    (nn.Softplus(), layers.Activation),
    (nn.Hardswish(), layers.Activation),
    (nn.Hardsigmoid(), layers.Activation),
    (nn.ELU(0.5), layers.Activation),
    (nn.MaxPool2d(3, 2, 1), layers.MaxPool2d),
    (nn.AvgPool2d(2), layers.AvgPool2d),
    (nn.AdaptiveAvgPool2d((2, None)), layers.AdaptiveAvgPool2d),
    (nn.Flatten(), layers.Flatten),
    (nn.Dropout(0.5), layers.Dropout),
    (nn.Embedding(3, 4), layers.Embedding),
    (nn.LSTM(3, 2, num_layers=2, bidirectional=True), layers.LSTM),
    (nn.LSTM(3, 2, bias=False, batch_first=True), layers.LSTM),
]


@pytest.mark.parametrize(("layer", "twin"), EVERY_LAYER)
def test_every_layer_has_its_twin(layer, twin):
    before = {name: value.clone() for name, value in layer.state_dict().items()}
    converted = convert(nn.Sequential(layer))[0]
    assert type(converted) is twin
    assert converted.name == "0"
    for name, parameter in layer.named_parameters():
        values = parameter.detach().flatten().tolist()
        codes, delayed, exponent = formats.initial_weight(values)
        own = getattr(converted, name)
        assert own.codes.reshape(-1).tolist() == codes
        assert own.delayed.reshape(-1).tolist() == delayed
        assert own.exponent == exponent
    for name, value in layer.state_dict().items():
        assert torch.equal(value, before[name])


def test_the_given_model_is_not_changed():
    model = nn.Sequential(Block(), nn.Identity(), nn.ModuleList([nn.Linear(2, 2)]))
    kinds = [type(m) for m in model.modules()]
    twin = convert(model)
    assert [type(m) for m in model.modules()] == kinds
    assert type(twin[0]) is Block
    assert twin[0] is not model[0]
    assert twin[0].scale == 3
    assert isinstance(twin[0].conv, layers.Conv2d)
    assert isinstance(model[0].conv, nn.Conv2d)
    assert [type(twin[1]), type(twin[2])] == [nn.Identity, nn.ModuleList]
    assert twin[0](bfp((1, 4, 5, 5))).bits == 8


def test_no_layer_knows_its_width():
    """It is that of the use, wherever a layer is registered."""
    twin = convert(nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 3)))
    assert not any(hasattr(m, "out_width") for m in twin.modules())
    assert twin(bfp((2, 3))).bits == 32


@pytest.mark.parametrize("training", [True, False])
def test_training_mode_is_kept(training):
    twin = convert(nn.Sequential(nn.BatchNorm1d(3), nn.Dropout(0.5)).train(training))
    assert {m.training for m in twin.modules()} == {training}


def test_dropout_sites_are_numbered():
    twin = convert(nn.Sequential(nn.Dropout(0.5), nn.ReLU(), nn.Sequential(nn.Dropout(0.2))))
    assert [m.site for m in twin.modules() if isinstance(m, layers.Dropout)] == [0, 1]


def test_empty_containers_stay():
    model = nn.Sequential(nn.Sequential(), nn.ModuleList(), nn.Linear(2, 2))
    assert [type(child) for child in convert(model)] == [
        nn.Sequential,
        nn.ModuleList,
        layers.Linear,
    ]


def test_a_shared_module_stays_shared():
    shared = nn.Linear(3, 3)
    twin = convert(nn.Sequential(shared, nn.ReLU(), shared))
    assert twin[0] is twin[2]
    assert len(list(twin.parameters())) == 2
    # Both uses contribute to one gradient.
    cross_entropy(twin(bfp((4, 3))), torch.tensor([0, 1, 2, 0])).backward()
    assert len(twin[0].weight.grad.parts) == 2


def test_a_shared_parameter_stays_shared():
    model = nn.Sequential(nn.Embedding(5, 4), nn.LayerNorm(4), nn.Linear(4, 5))
    model[2].weight = model[0].weight
    twin = convert(model)
    assert twin[0].weight is twin[2].weight
    assert len(list(twin.parameters())) == 4


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(1))

    def forward(self, x):
        return x * self.gain


class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("count", torch.zeros(1))


class OwnLinear(nn.Linear):
    pass


def test_the_error_lists_every_layer_and_where_it_is():
    model = nn.Sequential(
        nn.Linear(3, 3),
        nn.Sequential(nn.GRU(3, 3), nn.ReLU(), nn.Softmax(1)),
        Scaled(),
        Counting(),
        OwnLinear(2, 2),
        nn.Conv2d(1, 1, 3, padding_mode="reflect"),
    )
    with pytest.raises(UnsupportedError) as caught:
        convert(model)
    lines = str(caught.value).splitlines()
    assert lines[0] == "6 layer(s) cannot be trained in BFP:"
    assert lines[1:7] == [
        "  1.0 (GRU): no rule for this layer",
        "  1.2 (Softmax): no rule for this layer",
        "  2 (Scaled): parameters or buffers of its own (gain)",
        "  3 (Counting): parameters or buffers of its own (count)",
        "  4 (OwnLinear): parameters or buffers of its own (weight, bias)",
        "  5 (Conv2d): padding_mode 'reflect', expected 'zeros'",
    ]
    assert lines[7].startswith("supported: AdaptiveAvgPool2d, AvgPool2d, BatchNorm1d,")


class Tokens(nn.Module):
    """As vision transformers are: parameters of its own beside layers of all kinds."""

    def __init__(self):
        super().__init__()
        self.token = nn.Parameter(torch.zeros(1, 1, 8))
        self.embed = nn.Conv2d(3, 8, 4, 4, padding_mode="circular")
        self.blocks = nn.ModuleDict({"a": Scaled(), "b": nn.TransformerEncoderLayer(8, 2)})
        self.blocks["a"].inner = nn.Sequential(nn.Linear(8, 8), nn.Softsign(), Counting())
        self.blocks["a"].again = self.blocks["a"].inner
        self.none = None
        self.head = nn.Linear(8, 2)


def test_misfits_inside_misfits_are_listed_too():
    model = nn.Sequential(Tokens(), nn.GRU(2, 2))
    before = {key: value.clone() for key, value in model.state_dict().items()}
    children = dict(model.named_modules())
    with pytest.raises(UnsupportedError) as caught:
        convert(model)
    assert str(caught.value).splitlines()[:8] == [
        "7 layer(s) cannot be trained in BFP:",
        "  0 (Tokens): parameters or buffers of its own (token)",
        "  0.embed (Conv2d): padding_mode 'circular', expected 'zeros'",
        "  0.blocks.a (Scaled): parameters or buffers of its own (gain)",
        "  0.blocks.a.inner.1 (Softsign): no rule for this layer",
        "  0.blocks.a.inner.2 (Counting): parameters or buffers of its own (count)",
        "  0.blocks.b (TransformerEncoderLayer): no rule for this layer",
        "  1 (GRU): no rule for this layer",
    ]
    assert dict(model.named_modules()) == children
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())


@pytest.mark.parametrize(
    ("layer", "reason"),
    [
        (nn.Conv2d(1, 1, 2, padding="same"), "padding 'same' of an even kernel"),
        (nn.BatchNorm2d(3, affine=False), "affine=False"),
        (nn.BatchNorm2d(3, track_running_stats=False), "track_running_stats=False"),
        (nn.BatchNorm2d(3, momentum=None), "momentum=None"),
        (nn.LayerNorm((2, 3)), "more than one normalised dimension"),
        (nn.LayerNorm(3, elementwise_affine=False), "no gamma or beta"),
        (nn.LayerNorm(3, bias=False), "no gamma or beta"),
        (nn.MaxPool2d(2, dilation=2), "dilation 2, expected 1"),
        (nn.MaxPool2d(2, ceil_mode=True), "ceil_mode or return_indices"),
        (nn.AvgPool2d(2, padding=1, count_include_pad=False), "count_include_pad=False"),
        (nn.AvgPool2d(2, divisor_override=3), "ceil_mode or divisor_override"),
        (nn.MaxPool2d((2, 4), padding=2), "padding beyond half the window"),
        (nn.AvgPool2d(3, padding=2), "padding beyond half the window"),
        (nn.Dropout(1.0), "p = 1 drops everything"),
        (nn.Softplus(beta=2.0), "beta=2.0, expected 1"),
        (nn.Embedding(3, 3, padding_idx=0), "padding_idx or max_norm"),
        (nn.LSTM(3, 4, proj_size=2), "proj_size=2, expected 0"),
        (nn.LSTM(3, 4, num_layers=2, dropout=0.1), "dropout=0.1 between its layers, expected 0"),
        (nn.ConvTranspose2d(1, 1, 1), "no rule for this layer"),
    ],
)
def test_settings_that_are_not_realised(layer, reason):
    with pytest.raises(UnsupportedError, match=f"the model .*: {reason}"):
        convert(layer)


@pytest.mark.parametrize(
    ("kernel", "dilation", "padding"), [(3, 1, 1), (5, 1, 2), (3, 2, 2), (1, 1, 0)]
)
def test_padding_by_name(kernel, dilation, padding):
    same = convert(nn.Conv2d(1, 1, kernel, dilation=dilation, padding="same"))
    assert same.padding == (padding, padding)
    assert convert(nn.Conv2d(1, 1, kernel, padding="valid")).padding == (0, 0)


def test_batch_norm_takes_over_running_statistics():
    norm = nn.BatchNorm2d(2)
    with torch.no_grad():
        norm.running_mean.copy_(torch.tensor([0.1, -3.0]))
    twin = convert(norm)
    assert twin.running_mean.dtype == torch.float64
    assert twin.running_mean.tolist() == norm.running_mean.double().tolist()
    twin.running_mean += 1
    assert norm.running_mean[1] == -3.0


def test_limits_of_layers():
    with pytest.raises(UnsupportedError, match=r"layer '0' .*values per channel, found 1"):
        convert(nn.Sequential(nn.BatchNorm1d(3)))(bfp((1, 3)))
    with pytest.raises(UnsupportedError, match="at most 4096 elements, found 4097"):
        convert(nn.LayerNorm(4097))(bfp((1, 4097)))
    with pytest.raises(UnsupportedError, match="at most 255 positions"):
        convert(nn.MaxPool2d(16))(bfp((1, 1, 16, 16)))
    with pytest.raises(UnsupportedError, match=r"indices in \[0, 2\], found 1 to 3"):
        convert(nn.Embedding(3, 2))(torch.tensor([1, 3]))
    with pytest.raises(UnsupportedError, match="expected 3 input channels, found 4"):
        convert(nn.Linear(3, 2))(bfp((1, 4)))
    z = bfp((2, 3))
    with pytest.raises(UnsupportedError, match=r"targets in \[0, 2\], found 0 to 3"):
        cross_entropy(z, torch.tensor([0, 3]))
    with pytest.raises(UnsupportedError, match="2 integer targets"):
        cross_entropy(z, torch.tensor([0.0, 1.0]))


def test_hooks_of_the_twin_are_its_own() -> None:
    model = nn.Sequential(nn.Sequential(nn.Linear(4, 4)))
    twin = convert(model)
    calls: list[str] = []
    twin[0].register_forward_hook(lambda *_: calls.append("twin"))
    model(torch.zeros(1, 4))
    assert calls == []
    twin(BFPTensor.from_real(torch.ones(1, 4)))
    assert calls == ["twin"]
