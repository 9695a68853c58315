"""Conversion of torch.nn models: what is kept, what is shared, what is refused."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from reference_nets import StochasticDepth
from samebits.errors import UnsupportedError
from samebits.numerics import philox
from samebits.spec import formats
from samebits.train import BFPTensor, convert, cross_entropy, layers, model_input, set_step


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
    (nn.MaxPool2d(3, 2, 1, ceil_mode=True), layers.MaxPool2d),
    (nn.AvgPool2d(2, 2, 1, True, False, 3), layers.AvgPool2d),
    (nn.AdaptiveAvgPool2d((2, None)), layers.AdaptiveAvgPool2d),
    (nn.Flatten(), layers.Flatten),
    (nn.Dropout(0.5), layers.Dropout),
    (nn.Embedding(3, 4), layers.Embedding),
    (nn.LSTM(3, 2, num_layers=2, bidirectional=True), layers.LSTM),
    (nn.LSTM(3, 2, bias=False, batch_first=True), layers.LSTM),
    (nn.GRU(3, 2, num_layers=2, bidirectional=True), layers.GRU),
    (nn.RNN(3, 2, nonlinearity="relu"), layers.RNN),
    (nn.LSTMCell(3, 2), layers.LSTMCell),
    (nn.GRUCell(3, 2, bias=False), layers.GRUCell),
    (nn.RNNCell(3, 2), layers.RNNCell),
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


class Modes(nn.Module):
    """Layers whose modes are set one by one, some in modules of torch."""

    def __init__(self):
        super().__init__()
        self.norms = nn.ModuleList([nn.BatchNorm1d(4), nn.Sequential(nn.BatchNorm1d(4))])
        self.attention = nn.MultiheadAttention(4, 2, dropout=0.5)
        self.stack = nn.LSTM(4, 4, 2, dropout=0.5)
        self.island = nn.Sequential(nn.Dropout(0.5), nn.Dropout(0.5))
        self.pool = nn.AvgPool1d(2)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("other", ["norms.0", "norms.1.0", "attention", "stack", "island.1", ""])
def test_modes_are_kept_module_by_module(training, other):
    """The original's train() or eval() is not called: modules may have given it another meaning."""
    model = Modes().train(training)
    odd = model.get_submodule(other)
    odd.training = not training
    twin = convert(model, keep_float=["island"])
    inside = {
        "attention": ["attention", "attention.dropout"],
        "stack": ["stack", "stack.dropout_l1"],
    }
    names = [name for name, m in twin.named_modules() if m.training != training]
    assert names == inside.get(other, [other])


def test_a_mode_inside_a_layer_is_kept():
    model = nn.Sequential(nn.MultiheadAttention(4, 2), nn.AvgPool1d(2)).train()
    model[0].out_proj.eval()
    twin = convert(model)
    assert [name for name, m in twin.named_modules() if not m.training] == ["0.out_proj"]
    assert not convert(model.eval())[1].pool.training


def test_dropout_sites_are_numbered():
    depth = StochasticDepth(0.3, "row")
    parts = nn.Dropout(0.5), nn.ReLU(), depth, nn.Sequential(nn.Dropout(0.2), DropPath(0.1))
    twin = convert(nn.Sequential(*parts))
    assert [m.site for m in twin.modules() if isinstance(m, layers.Dropout)] == [0, 1, 2, 3]


class DropPath(nn.Module):
    """As timm names it."""

    __module__ = "timm.layers.drop"

    def __init__(self, drop_prob=0.0, scale_by_keep=True):
        super().__init__()
        self.drop_prob, self.scale_by_keep = drop_prob, scale_by_keep


def test_layers_of_other_packages_are_known_by_their_names():
    parts = StochasticDepth(0.3, "batch"), StochasticDepth(0.2, "row"), DropPath(0.1)
    twin = convert(nn.Sequential(*parts))
    assert [(type(m), m.p, m.mode) for m in twin] == [
        (layers.StochasticDepth, 0.3, "batch"),
        (layers.StochasticDepth, 0.2, "row"),
        (layers.StochasticDepth, 0.1, "row"),
    ]

    class Other(StochasticDepth):
        __module__ = "theirs"

    assert type(convert(Other(0.5, "row"))) is Other


def test_stochastic_depth_drops_samples():
    """Each is there times 1 / (1 - p), or 0, as the word of its number says; all in evaluation."""
    x = bfp((40, 2, 3, 3))
    layer = convert(nn.Sequential(nn.ReLU(), StochasticDepth(0.25, "row")))
    kept = {}
    for step, shard in ((3, 1), (3, 2), (4, 1)):
        set_step(layer, 7, step, shard)
        y = layer(x)
        kept[step, shard] = y.codes.flatten(1).any(1)
        words = philox.words(40, (7, 0), step, shard)
        assert torch.equal(kept[step, shard], words >= 1 << 30)
        scaled = x.dequantize().clamp(min=0) / 0.75 * kept[step, shard].view(-1, 1, 1, 1)
        assert (y.dequantize() - scaled).abs().max() <= 2.0 ** (y.exponent - 1) * 1.01
    assert len({tuple(k.tolist()) for k in kept.values()}) == 3
    layer[1].mode, found = "batch", set()
    for step in range(20):
        set_step(layer, 7, step, 0)
        one = layer(x).codes.flatten(1).any(1)
        assert one.all() or not one.any()
        found.add(bool(one.any()))
    assert found == {False, True}
    assert torch.equal(layer.eval()(x).codes, layer[0](x).codes)


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


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN, nn.GRUCell])
def test_parameters_tied_inside_a_recurrent_module_stay_tied(kind):
    """Both uses contribute to one gradient; no name is lost, for a bias would be left out."""
    model = kind(4, 4)
    end = "" if kind is nn.GRUCell else "_l0"
    for part in ("bias", "weight"):
        setattr(model, f"{part}_hh{end}", getattr(model, f"{part}_ih{end}"))
    twin = convert(model)
    every = {name for name, _ in twin.named_parameters(remove_duplicate=False)}
    assert every == {f"{part}_{of}{end}" for part in ("weight", "bias") for of in ("ih", "hh")}
    weight, bias = twin.parameters()
    result = twin(bfp((3, 4) if kind is nn.GRUCell else (2, 3, 4)))
    y = result[0] if isinstance(result, tuple) else result
    cross_entropy(y.reshape(-1, 4), torch.arange(y.numel() // 4) % 4).backward()
    assert len(weight.grad.parts) == len(bias.grad.parts) == 2


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
        nn.Sequential(nn.Softsign(), nn.ReLU(), nn.Softmin(1)),
        Scaled(),
        Counting(),
        OwnLinear(2, 2),
        nn.MaxPool2d(2, dilation=2),
    )
    with pytest.raises(UnsupportedError) as caught:
        convert(model)
    lines = str(caught.value).splitlines()
    assert lines[0] == "3 layer(s) cannot be trained in BFP:"
    assert lines[1:4] == [
        "  1.0 (Softsign): no rule for this layer; keep it in float32: keep_float=['1.0']",
        "  1.2 (Softmin): no rule for this layer; write nn.Softmax(dim) of -x, or keep it in "
        "float32: keep_float=['1.2']",
        "  5 (MaxPool2d): dilation 2, expected 1",
    ]
    assert lines[4].startswith("supported: AdaptiveAvgPool1d, AdaptiveAvgPool2d, AvgPool1d,")


def encoder_layer():
    layer = nn.TransformerEncoderLayer(8, 2)
    layer.self_attn = nn.MultiheadAttention(8, 2, add_bias_kv=True)
    return layer


class Tokens(nn.Module):
    """As vision transformers are: parameters of its own beside layers of all kinds."""

    def __init__(self):
        super().__init__()
        self.token = nn.Parameter(torch.zeros(1, 1, 8))
        self.embed = nn.MaxPool2d(4, dilation=3)
        self.blocks = nn.ModuleDict({"a": Scaled(), "b": encoder_layer()})
        self.blocks["a"].inner = nn.Sequential(nn.Linear(8, 8), nn.Softsign(), Counting())
        self.blocks["a"].again = self.blocks["a"].inner
        self.none = None
        self.head = nn.Linear(8, 2)


def test_misfits_inside_misfits_are_listed_too():
    model = nn.Sequential(Tokens(), nn.Softmin(1))
    before = {key: value.clone() for key, value in model.state_dict().items()}
    children = dict(model.named_modules())
    with pytest.raises(UnsupportedError) as caught:
        convert(model)
    assert str(caught.value).splitlines()[:5] == [
        "4 layer(s) cannot be trained in BFP:",
        "  0.embed (MaxPool2d): dilation 3, expected 1",
        "  0.blocks.a.inner.1 (Softsign): no rule for this layer; keep it in float32: "
        "keep_float=['0.blocks.a.inner.1']",
        "  0.blocks.b.self_attn (MultiheadAttention): add_bias_kv or add_zero_attn",
        "  1 (Softmin): no rule for this layer; write nn.Softmax(dim) of -x, or keep it in "
        "float32: keep_float=['1']",
    ]
    assert dict(model.named_modules()) == children
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())


@pytest.mark.parametrize(
    ("layer", "reason"),
    [
        (nn.BatchNorm2d(3, affine=False), "affine=False"),
        (nn.BatchNorm2d(3, track_running_stats=False), "track_running_stats=False"),
        (nn.BatchNorm2d(3, momentum=None), "momentum=None"),
        (nn.LayerNorm((2, 3)), "more than one normalised dimension"),
        (nn.RMSNorm((2, 3)), "more than one normalised dimension"),
        (nn.Softmax(), "no dim, expected an axis"),
        (nn.MultiheadAttention(4, 2, kdim=3), "kdim or vdim other than embed_dim"),
        (nn.MultiheadAttention(4, 2, add_zero_attn=True), "add_bias_kv or add_zero_attn"),
        (nn.MaxPool2d(2, dilation=2), "dilation 2, expected 1"),
        (nn.MaxPool2d(2, return_indices=True), "return_indices"),
        (nn.AvgPool2d(2, divisor_override=-3), "divisor_override=-3, expected at least 1"),
        (nn.MaxPool2d((2, 4), padding=2), "padding beyond half the window"),
        (nn.AvgPool2d(3, padding=2), "padding beyond half the window"),
        (nn.Dropout(1.0), "p = 1 drops everything"),
        (StochasticDepth(1.0, "row"), "p = 1 drops everything"),
        (DropPath(1.0), "drop_prob = 1 drops everything"),
        (DropPath(0.5, scale_by_keep=False), "scale_by_keep=False"),
        (nn.Softplus(beta=2.0), "beta=2.0, expected 1"),
        (nn.Embedding(3, 3, max_norm=1.0), "max_norm"),
        (nn.LSTM(3, 4, proj_size=2), "proj_size=2, expected 0"),
        (nn.GRU(3, 4, num_layers=2, dropout=1.0), "dropout = 1 drops everything"),
        (nn.ConvTranspose3d(1, 1, 1), "no rule for this layer"),
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
    with pytest.raises(UnsupportedError, match=r"^layer '0' \(LayerNorm\): layer norm: expected"):
        convert(nn.Sequential(nn.LayerNorm(4)))(bfp((2, 5)))
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


def test_a_model_without_matrices_has_rows_too():
    model = convert(nn.Sequential(nn.ReLU(), nn.LayerNorm(4)), exponents="row")
    x = model_input(model, torch.tensor([[1.0, 2.0, 3.0, 4.0], [1e3, 2e3, 3e3, 5e3]]))
    assert x.by_rows
    assert model(x).by_rows
