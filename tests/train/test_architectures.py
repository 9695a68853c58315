import itertools
import sys

import pytest
import torch
from torch import nn

from samebits.errors import InputError, UnsupportedError
from samebits.train.architectures import ARCHITECTURES, LANGUAGE_MODELS, build, initialise

PARAMETERS = {  # with 10 classes; resnet8: the MLPerf Tiny network (78,666 with conv biases)
    "mlp": 411146,
    "cnn": 24346,
    "resnet8": 78042,
    "resnet20": 272474,
    "resnet18": 11173962,
    "mobilenetv2": 587178,
    "smooth": 70986,
    "lstm": 75402,
    "vit": 2693578,
}


OF_IMAGES = [name for name in ARCHITECTURES if name not in LANGUAGE_MODELS]


@pytest.mark.parametrize("name", OF_IMAGES)
@pytest.mark.parametrize("shape", [(3, 32, 32), (1, 8, 8)], ids=["colour", "digits"])
def test_every_architecture_gives_logits(name, shape):
    model = build(name, shape, 10).eval()
    with torch.no_grad():
        assert model(torch.zeros(2, *shape)).shape == (2, 10)
    if shape[0] == 3:
        assert sum(p.numel() for p in model.parameters()) == PARAMETERS[name]


@pytest.mark.parametrize("name", OF_IMAGES)
def test_convolutions_before_batch_norm_have_no_bias(name):
    modules = list(build(name, (3, 32, 32), 10).modules())
    for module, after in itertools.pairwise(modules):
        if isinstance(after, nn.BatchNorm2d):
            assert isinstance(module, nn.Conv2d)
            assert module.bias is None


def test_unknown_architecture_lists_the_known_ones():
    with pytest.raises(InputError) as caught:
        build("resnet9", (3, 32, 32), 10)
    assert str(caught.value) == (
        "unknown architecture 'resnet9'; expected one of mlp, cnn, smooth, resnet8, resnet20, "
        "resnet18, mobilenetv2, lstm, vit, gpt, or module:callable or path/to/file.py:callable"
    )


def test_images_too_small_are_refused():
    with pytest.raises(InputError, match=r"architecture cnn: expected images .* at least 4x4"):
        build("cnn", (1, 2, 2), 10)


def test_lstm_takes_sequences_and_rows_of_images():
    model = build("lstm", (20, 13), 5)
    assert model.lstm.input_size == 13
    assert model(torch.zeros(2, 20, 13)).shape == (2, 5)
    image = build("lstm", (3, 4, 6), 5)
    assert image.lstm.input_size == 18
    x = torch.arange(72.0).view(1, 3, 4, 6)
    rows = torch.stack([x[0, :, row].flatten() for row in range(4)])[None]
    with torch.no_grad():
        assert torch.equal(image(x), image(rows))
    with pytest.raises(InputError, match=r"architecture lstm: expected sequences .* found \[7\]"):
        build("lstm", (7,), 5)


def test_initial_lstm_weights_have_their_bounds():
    model = build(
        "lstm",
        (8, 32),
        10,
    )
    initialise(model, 0)
    for name, bound in {"weight_ih_l0": (3 / 32) ** 0.5, "weight_hh_l1": (3 / 64) ** 0.5}.items():
        weight = getattr(model.lstm, name).detach()
        assert 0.98 * bound < float(weight.abs().max()) <= bound
    for layer in range(2):
        bias = getattr(model.lstm, f"bias_ih_l{layer}").detach()
        assert bias.tolist() == [0.0] * 64 + [1.0] * 64 + [0.0] * 128
        assert not getattr(model.lstm, f"bias_hh_l{layer}").any()


def test_module_and_callable(tmp_path, monkeypatch):
    (tmp_path / "own_network.py").write_text(
        "from torch import nn\n"
        "def make(input_shape, classes):\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(input_shape[1], classes))\n"
        "number = 3\n"
        "def strict(shape):\n"
        "    return nn.Flatten()\n"
        "def wrong(input_shape, classes):\n"
        "    return 5\n"
    )
    (tmp_path / "broken_network.py").write_text("1/0\n")
    monkeypatch.chdir(tmp_path)
    before = list(sys.path)
    for name in ("own_network:make", "own_network.py:make", f"{tmp_path}/own_network.py:make"):
        assert build(name, (1, 8, 1), 3)[1].out_features == 3
    assert sys.path == before
    for name, text in {
        "own_network:none": "expected a callable in own_network, found nothing of that name",
        "own_network:number": "found int",
        "own_network:strict": "classes=3 failed (TypeError: strict() got an unexpected keyword",
        "own_network:wrong": "expected a torch.nn.Module, found int",
        "no_such_network:make": "cannot import 'no_such_network' (ModuleNotFoundError",
        "broken_network:make": "cannot import 'broken_network' (ZeroDivisionError",
        ":make": "unknown architecture ':make'; expected one of",
        "own_network:": "unknown architecture 'own_network:'",
    }.items():
        with pytest.raises(InputError) as caught:
            build(name, (1, 8, 1), 3)
        assert text in str(caught.value)


def test_initial_weights_depend_on_the_seed_alone():
    models = [build("cnn", (1, 8, 8), 10) for _ in range(3)]
    for model, seed in zip(models, (1, 1, 2), strict=True):
        initialise(model, seed)
    for (name, a), b, c in zip(
        models[0].named_parameters(), models[1].parameters(), models[2].parameters(), strict=True
    ):
        assert torch.equal(a, b)
        assert (a.ndim > 1) != torch.equal(a, c), name


def test_initial_weights_have_their_bounds():
    model = build("mlp", (1, 8, 8), 10)
    initialise(model, 0)
    for layer, bound in ((model[1], (6 / 64) ** 0.5), (model[5], (1 / 128) ** 0.5)):
        weight = layer.weight.detach()
        assert 0.98 * bound < float(weight.abs().max()) <= bound
        assert abs(float(weight.mean())) < 0.05 * bound
        assert not layer.bias.any()


@pytest.mark.parametrize("name", sorted(set(ARCHITECTURES) - {"gpt", "lstm", "resnet18"}))
def test_first_losses_are_those_of_pytorchs_own_initialisation(name):
    """Means of three seeds differ by less than a sixth of a nat; single ones by as much."""
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(32, 3, 16, 16, generator=generator)
    labels = torch.randint(10, (32,), generator=generator)
    found = []
    for seed in range(3):
        torch.manual_seed(seed)
        model = build(name, (3, 16, 16), 10)
        with torch.no_grad():
            own = nn.functional.cross_entropy(model(images), labels)
            initialise(model, seed)
            found.append(float(nn.functional.cross_entropy(model(images), labels) - own))
    assert abs(sum(found) / 3) < 1 / 6, found


def test_first_initial_weight_by_hand():
    # Philox4x32-10 of counter 0 and key 0 starts with 6627e8d5 (Salmon et al., known answers)
    model = nn.Sequential(nn.Linear(6, 4), nn.Linear(4, 2))
    initialise(model, 0)
    expected = (2 * 0x6627E8D5 + 1 - 2**32) * 2.0**-32 * 1.0
    assert model[0].weight[0, 0] == torch.tensor(expected, dtype=torch.float64).float()


def test_parameters_without_a_rule_are_named():
    with pytest.raises(UnsupportedError, match=r"parameter '0\.weight' of PReLU: .* EmbeddingBag,"):
        initialise(nn.Sequential(nn.PReLU()), 0)


def test_parameters_of_a_users_module():
    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.gain = nn.Parameter(torch.full((3,), 0.25))
            self.token = nn.Parameter(torch.zeros(1, 1, 400))
            self.drawn = nn.Parameter(torch.randn(20, 20))
            self.norm = nn.GroupNorm(1, 3)

    own = Own()
    initialise(own, 3)
    assert own.gain.tolist() == [0.25] * 3
    for parameter in (own.token, own.drawn):
        assert 0.033 < float(parameter.detach().abs().max()) <= 0.035
    assert own.norm.weight.tolist() == [1.0] * 3


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
def test_a_named_architecture_is_float32_on_the_cpu_whatever_the_defaults_are(dtype):
    wanted = build("mlp", (1, 4, 4), 3)
    initialise(wanted, 5)
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with torch.device("meta"):
            found = build("mlp", (1, 4, 4), 3)
            initialise(found, 5)
            assert torch.get_default_dtype() == dtype
    finally:
        torch.set_default_dtype(before)
    for a, b in zip(wanted.parameters(), found.parameters(), strict=True):
        assert (a.dtype, a.device) == (b.dtype, b.device)
        assert torch.equal(a, b)
