"""Parameters and buffers of a user's modules, and constants that meet BFP tensors."""

from __future__ import annotations

import abc
import copy
import io
import math
import pickle

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from bfp_arrays import array, same, tensor
from deploy_nets import assert_exported
from given_options import called
from reference_nets import state_of
from samebits import api
from samebits.data import Dataset
from samebits.errors import CheckpointError, UnsupportedError
from samebits.spec.training import layers, moves
from samebits.spec.training.layers import Parameter
from samebits.train import (
    EMA,
    SGD,
    Adam,
    BFPTensor,
    convert,
    cross_entropy,
    load_state,
    model_input,
    mse_loss,
)
from samebits.train.architectures import initialise
from samebits.train.deployed.deploy import calibrate, deployed
from samebits.train.tensor import BFPParameter

EXPONENTS = ["tensor", "row", "row-shift"]


class Own(nn.Module):
    """Parameters of 0 to 3 axes, one of them frozen; buffers of all kinds; a layer inside."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4))
        self.places, self.rows = nn.Parameter(torch.randn(1, 3, 4)), nn.Parameter(torch.randn(3, 4))
        self.gain, self.scale = nn.Parameter(torch.tensor(0.7)), nn.Parameter(torch.randn(4))
        self.mix = nn.Parameter(torch.randn(4, 4))
        self.rows.requires_grad_(False)
        self.register_buffer("later", torch.full((3, 3), -math.inf).triu(1))
        self.register_buffer("codes", torch.tensor([2, 0, 1000]))
        self.register_buffer("exponent", torch.tensor([True, False]))
        self.register_buffer("temporary", torch.ones(2), persistent=False)

    def forward(self, x):
        x = (x + self.places) * self.scale + self.rows
        x = self.inner((x @ self.mix) * self.gain)
        y = functional.scaled_dot_product_attention(x, x, x, self.later)
        return (x + y).flatten(1)


class Head(nn.Linear):
    """A layer of torch with a forward of its own."""

    def forward(self, x):
        return functional.linear(functional.relu(x), self.weight, self.bias)


class Net(nn.Module):
    """A module that holds a parameter, and modules that do."""

    def __init__(self):
        super().__init__()
        self.first, self.own, self.head = nn.Parameter(torch.randn(4)), Own(), Head(12, 5)

    def forward(self, x):
        return self.head(self.own(x + self.first))


KEYS = [
    *("first", "own.places", "own.rows", "own.gain", "own.scale", "own.mix"),
    *("own.inner.0.weight", "own.inner.0.bias", "own.inner.1.weight", "own.inner.1.bias"),
    *("head.weight", "head.bias"),
]
BUFFERS = ["own.later", "own.codes", "own.exponent"]


def real(seed=0, kind=Net):
    torch.manual_seed(seed)
    return kind()


def drawn(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def plain(x):
    codes, exponent = x.resolved()
    return codes.tolist(), torch.as_tensor(exponent).tolist()


def state_dict(model):
    return {key: (v.dtype, v.tolist()) for key, v in model.state_dict().items()}


def trained(model, make=SGD, steps=2, **options):
    """The losses of some steps."""
    optimizer = make(model.parameters(), lr=0.05, **options)
    losses = []
    for step in range(steps):
        optimizer.zero_grad()
        out = model(model_input(model, drawn(6, 3, 4, seed=step)))
        loss = cross_entropy(out, torch.tensor([0, 1, 2, 3, 4, 0]))
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


# --- conversion -------------------------------------------------------------------------------


@pytest.mark.parametrize("exponents", EXPONENTS)
def test_conversion(exponents):
    module = real()
    model = convert(module, exponents)
    assert {name for name, _ in model.named_parameters()} == set(KEYS)
    assert all(isinstance(p, BFPParameter) for p in model.parameters())
    assert [name for name, p in model.named_parameters() if not p.requires_grad] == ["own.rows"]
    for name, twin in model.named_modules():
        original = module.get_submodule(name)
        if name.startswith("own.inner") or isinstance(twin, nn.Sequential):
            continue
        assert isinstance(twin, type(original))
        assert type(twin).__name__ == type(original).__name__
    assert "own.later" in dict(model.named_buffers())
    out = model(model_input(model, drawn(6, 3, 4)))
    wanted = module(drawn(6, 3, 4)).detach()
    assert float((out.detach().dequantize() - wanted).norm() / wanted.norm()) < 0.15
    assert all(not isinstance(p, BFPParameter) for p in module.parameters())  # as it was


@pytest.mark.parametrize("by_rows", [False, True])
@pytest.mark.parametrize("shape", [(), (1,), (5,), (3, 4), (2, 1, 3), (2, 3, 2, 2)])
def test_an_entry_is_the_codes_of_a_parameter(shape, by_rows, realisation):
    """And its gradient what arrives, with one exponent."""

    class One(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(drawn(*shape, seed=len(shape)) * 3)

        def forward(self):
            return self.weight.expand(*shape) if shape else self.weight.reshape(())

    module = One()
    model = convert(module, "row" if by_rows else "tensor")
    own: Parameter = state_of(module, by_rows, {})[0]["weight"]
    out = model()
    same(out, moves.entered(own))
    g = tensor(shape, "row" if by_rows and len(shape) > 1 else "tensor", 32, 4)
    out.backward(g)
    given = array(g)
    wanted = layers.wide_whole(given.codes, given.shape, given.exponent) if g.by_rows else given
    same(model.weight.grad, wanted)


def test_widths_are_those_of_the_module():
    model = convert(real(), widths={"": (8, 16, 32), "own": (5, 12, 32)})
    assert model.own.mix.widths == (5, 12, 32)
    assert model.first.widths == (8, 16, 32)
    assert int(model.own.mix.codes.abs().max()) <= 15
    assert len(trained(model)) == 2


class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.out = nn.Embedding(7, 4), nn.Linear(4, 7, bias=False)
        self.out.weight = self.table.weight
        self.places = nn.Parameter(torch.randn(3, 4))
        self.again = self.places

    def forward(self, x):
        y = self.table(x) + self.places * self.again
        logits = self.out(y), functional.linear(y, self.table.weight)
        return torch.cat([v.reshape(-1, 7) for v in logits])


def test_tied_parameters():
    module = real(kind=Words)
    for exponents in EXPONENTS:
        model = convert(module, exponents)
        assert model.table.weight is model.out.weight
        assert model.places is model.again
        assert len(list(model.parameters())) == 2
        index = torch.tensor([[1, 2, 3], [4, 5, 6]])
        cross_entropy(model(index), torch.arange(12) % 7).backward()
        assert all(p.grad is not None for p in model.parameters())
        for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
            assert twin.table.weight is twin.out.weight
            assert twin.places is twin.again
            assert twin.places is not model.places
            assert plain(twin(index)) == plain(model(index))
        moved = copy.deepcopy(model).to("meta")
        assert moved.table.weight is moved.out.weight
        assert moved.places is moved.again
        other = convert(module, exponents)
        other.load_state_dict(real(1, Words).state_dict())
        assert state_dict(other) == state_dict(convert(real(1, Words), exponents))


def test_a_tied_parameter_has_one_gradient():
    """Used twice in one product, and once as a constant of a frozen twin."""

    class Square(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Parameter(drawn(3, 3))
            self.b = self.a

        def forward(self):
            return self.a @ self.b

    model = convert(Square())
    y = model()
    y.backward(tensor((3, 3), bits=32, seed=1))
    assert len(model.a.grad.parts) == 2
    model.requires_grad_(False)
    assert not model().requires_grad


class Flags(nn.Module):
    def __init__(self, **parameters):
        super().__init__()
        for name, value in parameters.items():
            setattr(self, name, value)


class Extra(nn.Module):
    def __init__(self):
        super().__init__()
        self.p = nn.Parameter(torch.ones(2))

    def get_extra_state(self):
        return 3


class Keyed(nn.Module):
    def __init_subclass__(cls, /, key):
        super().__init_subclass__()


class WithKey(Keyed, key=1):
    def __init__(self):
        super().__init__()
        self.p = nn.Parameter(torch.ones(2))


@pytest.mark.parametrize(
    ("module", "text"),
    [
        (Flags(i=nn.Parameter(torch.arange(2), requires_grad=False)), "parameter i of torch.int64"),
        (
            Flags(z=nn.Parameter(torch.ones(2) * 1j)),
            "parameter z of torch.complex64, expected real",
        ),
        (Extra(), "get_extra_state, beside parameters of its own"),
        (WithKey(), "a class that cannot hold integers: .* missing 1 required"),
    ],
)
def test_modules_that_have_no_twin(module, text):
    with pytest.raises(UnsupportedError, match=text):
        convert(module)


class Abstract(nn.Module, abc.ABC):
    def __init__(self):
        super().__init__()
        self.p = nn.Parameter(torch.ones(2))

    @abc.abstractmethod
    def forward(self, x): ...


class Concrete(Abstract):
    def forward(self, x):
        return x * self.p


def test_a_class_with_a_class_of_its_own():
    model = convert(Concrete())
    assert plain(model(BFPTensor.from_real(torch.ones(3, 2))))[0] == [[64, 64]] * 3
    assert type(convert(Concrete())) is type(model)  # so that their types compare


# --- state dicts ------------------------------------------------------------------------------


@pytest.mark.parametrize("exponents", EXPONENTS)
def test_round_trips(exponents):
    module = real()
    model, other = convert(module, exponents), convert(real(1), exponents)
    trained(model, Adam)
    model.own.later[0, 1] = 0.5
    state = model.state_dict()
    integers = {f"{key}.{part}" for key in KEYS for part in ("codes", "exponent", "delayed")}
    assert {k for k in state if not k.endswith("channel_peak")} == integers | set(BUFFERS)
    held = list(other.parameters())
    other.load_state_dict(state)
    assert state_dict(other) == state_dict(model)
    assert all(a is b for a, b in zip(held, other.parameters(), strict=True))
    x = model_input(model, drawn(6, 3, 4))
    wanted = plain(model.eval()(x))
    for twin in (other.eval(), copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert plain(twin(x)) == wanted
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    assert plain(torch.load(file, weights_only=False)(x)) == wanted


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("exponents", EXPONENTS)
def test_states_of_the_float_module(exponents, dtype):
    module = real(1).to(dtype)
    with torch.no_grad():
        module.own.later[0, 1] = 0.25
        module.own.codes[0] = 7
    for load in (lambda m, s: m.load_state_dict(s), load_state):
        model = convert(real(), exponents)
        load(model, module.state_dict())
        assert state_dict(model) == state_dict(convert(module.float(), exponents))
        assert model.own.codes.tolist() == [7, 0, 1000]
        assert model.own.later[0].tolist() == [0, 0.25, -math.inf]
        assert model.own.later.dtype == torch.float32


CHANGES = {
    "shape": ("head.weight", torch.ones(3), r"head\.weight: expected real values \(5, 12\)"),
    "an inner layer": ("own.inner.0.bias", torch.ones(3), r"own\.inner\.0\.bias: expected real"),
    "no axes": ("own.gain", torch.ones(1), r"own\.gain: expected real values \(\), found"),
    "a buffer": ("own.later", torch.ones(2), r"own\.later: expected torch.float32 \(3, 3\)"),
    "type of a buffer": ("own.codes", torch.ones(3), r"own\.codes: expected torch.int64 \(3,\)"),
    "NaN": ("own.gain", torch.tensor(math.nan), r"own\.gain: .* expected finite values"),
    "integers": ("own.mix.codes", torch.ones(4, 4), "expected real values, as first has, found"),
}


@pytest.mark.parametrize("exponents", ["tensor", "row"])
@pytest.mark.parametrize("change", CHANGES)
def test_a_state_that_does_not_fit_changes_nothing(change, exponents):
    """Also where the whole model is a module with parameters of its own."""
    model = convert(real(), exponents)
    before = state_dict(model)
    key, value, text = CHANGES[change]
    state = {**real(1).state_dict(), key: value}
    with pytest.raises(RuntimeError, match=text):
        model.load_state_dict(state)
    assert state_dict(model) == before
    with pytest.raises(CheckpointError, match=f"(?s)^file: not the state of this model.*{text}"):
        load_state(model, state, "file")
    assert state_dict(model) == before


def test_integers_that_are_no_state():
    model, other = convert(real(), "row"), convert(real(1), "row")
    before = state_dict(model)
    for key, value, text in (
        ("own.mix.codes", -128, "expected integers in .-127, 127., found -128"),
        ("first.exponent", 127, "first.exponent"),
        ("own.gain.delayed", 1 << 14, None),
        ("own.scale.delayed", -20000, "expected integers in .-16384, 16384., found -20000"),
    ):
        state = {k: v.clone() for k, v in other.state_dict().items()}
        if key == "first.exponent":
            state[key] = torch.tensor([1, 2])
        else:
            state[key].flatten()[:1] = value
        if text is None:
            copy.deepcopy(model).load_state_dict(state)
            continue
        with pytest.raises(RuntimeError, match=text):
            model.load_state_dict(state)
        assert state_dict(model) == before


class Renamed(nn.Module):
    """Takes a state whose key has an older name."""

    def __init__(self):
        super().__init__()
        self.weight, self.seen = nn.Parameter(torch.ones(2)), []
        self.register_load_state_dict_pre_hook(self.rename)

    @staticmethod
    def rename(module, state, prefix, *others):
        module.seen.append(prefix)
        if prefix + "old" in state:
            state[prefix + "weight"] = state.pop(prefix + "old")


def test_hooks_of_a_module_run_for_its_twin():
    """Before a state is checked, and with the twin: the original may be gone."""
    model = convert(Renamed())
    model.load_state_dict({"old": torch.tensor([0.5, 0.25])})
    assert model.weight.dequantize().tolist() == [0.5, 0.25]
    assert model.seen == [""]
    inside = convert(nn.Sequential(Renamed()))
    inside.load_state_dict(inside.state_dict())
    assert inside[0].seen == ["0."]


def test_moves_keep_integers_and_constants():
    model = convert(real(), "row")
    for moved in (copy.deepcopy(model).double(), copy.deepcopy(model).half()):
        assert state_dict(moved) == state_dict(model)
        assert moved.own.later.dtype == torch.float32
    moved = copy.deepcopy(model).to("meta")
    assert {p.device.type for p in moved.parameters()} == {"meta"}
    assert {b.device.type for b in moved.buffers()} == {"meta"}
    assert moved.own.gain.codes.shape == ()
    assert moved.own.mix.exponent.device.type == "meta"


# --- training ---------------------------------------------------------------------------------


@pytest.mark.parametrize("exponents", EXPONENTS)
@pytest.mark.parametrize(
    ("make", "options"),
    [(SGD, {"momentum": 0.9, "weight_decay": 0.01}), (Adam, {}), (Adam, {"decoupled": True})],
)
def test_every_parameter_is_trained_but_the_frozen_one(make, options, exponents):
    model = convert(real(), exponents)
    before = {name: plain(p) for name, p in model.named_parameters()}
    losses = trained(model, make, steps=8, **options)
    moved = {name for name, p in model.named_parameters() if plain(p) != before[name]}
    assert moved == set(KEYS) - {"own.rows"}
    assert losses != losses[:1] * 8
    again = convert(real(), exponents)
    assert trained(again, make, steps=8, **options) == losses
    assert state_dict(again) == state_dict(model)


@pytest.mark.parametrize("exponents", EXPONENTS)
def test_averages_of_weights(exponents):
    model = convert(real(), exponents)
    average = EMA(model, 0.5)
    trained(model)
    average.update()
    own = state_dict(model)
    with average.applied():
        inside = state_dict(model)
        assert inside != own
        for key in BUFFERS:
            assert inside[key] == own[key]
    assert state_dict(model) == own
    other = EMA(convert(real(1), exponents), 0.5)
    other.load_state_dict(average.state_dict())
    given = convert(real(1), exponents)
    other.apply_to(given)
    wanted = convert(real(), exponents)
    average.apply_to(wanted)
    assert {n: plain(p) for n, p in given.named_parameters()} == {
        n: plain(p) for n, p in wanted.named_parameters()
    }


def test_without_gradients_nothing_is_recorded():
    model = convert(real())
    x = model_input(model, drawn(6, 3, 4))
    with torch.no_grad():
        assert not model(x).requires_grad
    assert plain(model(x)) == plain(model(x).detach())


def test_initial_values_of_a_run():
    """Of any number of axes, drawn within a bound, but for one number; biases as of layers."""
    module = real()
    gain = module.own.gain.detach().clone()
    initialise(module, 3)
    assert torch.equal(module.own.gain, gain)
    for p in (module.first, module.own.places, module.own.mix):
        assert 0 < float(p.detach().abs().max()) <= 0.035
    assert not module.head.bias.any()
    assert 0.1 < float(module.head.weight.detach().abs().max()) <= math.sqrt(1 / 12)
    values = module.state_dict()
    again = real(1)
    initialise(again, 3)
    drawn_keys = [k for k in KEYS if k != "own.gain"]
    assert all(torch.equal(again.state_dict()[k], values[k]) for k in drawn_keys)


class Patches(nn.Module):
    """A small image classifier with parameters and a mask of its own."""

    def __init__(self):
        super().__init__()
        self.patches = nn.Conv2d(1, 8, 3, stride=3)
        self.first, self.places = (
            nn.Parameter(torch.randn(1, 1, 8)),
            nn.Parameter(torch.randn(5, 8)),
        )
        self.layer = nn.TransformerEncoderLayer(8, 2, 8, 0.1, "gelu", batch_first=True)
        self.gain, self.head = nn.Parameter(torch.tensor(1.0)), nn.Linear(8, 3)
        self.register_buffer("later", torch.full((5, 5), -math.inf).triu(1))
        self.register_buffer("known", torch.ones(5, dtype=torch.bool))

    def forward(self, x):
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat((self.first.expand(x.shape[0], -1, -1), x), 1) + self.places
        return self.head(self.layer(x, self.later)[:, -1] * self.gain)


def images():
    labels = np.arange(48) % 3
    x = np.random.default_rng(0).integers(0, 90, (48, 1, 6, 6)) + 60 * labels[:, None, None, None]
    x, y = torch.from_numpy(x.astype(np.uint8)), torch.from_numpy(labels)
    return Dataset(x[:32], y[:32], x[32:], y[32:], ("a", "b", "c"), "made")


RUN = {"batch": 16, "shards": 2, "epochs": 2, "lr": 0.02, "threads": 1}


@pytest.mark.slow
@pytest.mark.parametrize("exponents", ["tensor", "row"])
def test_runs_go_on_and_start_from_others(tmp_path, exponents):
    """Checkpoints with a mask of -inf and one of bool; a plan changes nothing."""
    options = {**RUN, "exponents": exponents, "ema": 0.9}
    whole = called(api.fit, data=images(), arch=real(kind=Patches), out=tmp_path / "a", **options)
    again = {**options, "checkpoint_every": 1}
    called(api.fit, data=images(), arch=real(kind=Patches), out=tmp_path / "b", **again)
    for path in ("result.json", "checkpoint-00000004.safetensors"):
        (tmp_path / "b" / path).unlink()
    resumed = called(
        api.fit, data=images(), arch=real(kind=Patches), out=tmp_path / "b", **again, resume=True
    )
    assert resumed.result.sha256 == whole.result.sha256
    planned = called(
        api.fit, data=images(), arch=real(kind=Patches), out=tmp_path / "c", **options, plan="auto"
    )
    assert planned.result.sha256 == whole.result.sha256
    still = {**RUN, "exponents": exponents, "epochs": 1, "lr": 0.0}
    after = called(
        api.fit,
        data=images(),
        arch=real(kind=Patches),
        out=tmp_path / "d",
        **still,
        init=tmp_path / "a",
    )
    assert after.result.sha256 == whole.result.sha256


def test_a_run_starts_from_a_float_one(tmp_path):
    called(
        api.fit,
        data=images(),
        arch=real(kind=Patches),
        out=tmp_path / "a",
        **RUN,
        numerics="float32",
    )
    found = called(
        api.fit,
        data=images(),
        arch=real(kind=Patches),
        out=tmp_path / "b",
        **RUN,
        init=tmp_path / "a",
    )
    state = real(1, Patches).state_dict()
    other = called(
        api.fit, data=images(), arch=real(kind=Patches), out=tmp_path / "c", **RUN, init=state
    )
    assert other.result.sha256 != found.result.sha256
    state["first"][0, 0, 0] = -math.inf
    with pytest.raises(CheckpointError, match="tensor 'first': expected finite values"):
        called(
            api.fit, data=images(), arch=real(kind=Patches), out=tmp_path / "d", **RUN, init=state
        )


# --- constants --------------------------------------------------------------------------------


CONSTANTS = {
    "number": 1.5,
    "whole number": 3,
    "negative": -0.25,
    "truth": True,
    "no axes": torch.tensor(1.5),
    "float16": torch.tensor([0.5, -1.0, 2.0, 0.25], dtype=torch.float16),
    "bfloat16": torch.tensor([0.5, -1.0, 2.0, 0.25], dtype=torch.bfloat16),
    "float64": torch.tensor([0.5, -1.0, 2.0, 0.25], dtype=torch.float64),
    "int64": torch.tensor([1, -2, 3, 0]),
    "int8": torch.tensor([1, -128, 3, 0], dtype=torch.int8),
    "uint8": torch.tensor([5, 0, 200, 1], dtype=torch.uint8),
    "bool": torch.tensor([True, False, True, True]),
    "a column": torch.tensor([[2.0], [-1.0], [0.5]]),
    "more axes": torch.arange(24.0).view(2, 1, 3, 4) / 8,
}
FORMS = {
    "add": lambda x, c: x + c,
    "added": lambda x, c: c + x,
    "subtract": lambda x, c: x - c,
    "subtracted": lambda x, c: c - x,
    "multiply": lambda x, c: x * c,
    "multiplied": lambda x, c: c * x,
}


@pytest.mark.parametrize("kind", ["tensor", "row"])
@pytest.mark.parametrize("bits", [8, 32])
@pytest.mark.parametrize("name", CONSTANTS)
def test_constants_have_the_meaning_that_torch_gives_them(name, bits, kind):
    """Within what 8 bits hold of the largest number."""
    constant = CONSTANTS[name]
    for form, call in FORMS.items():
        x = tensor((2, 3, 4), kind, bits, exponent=-6 if bits == 8 else -29, spread=1)
        x.requires_grad_()
        y, value = call(x, constant), x.dequantize()
        wide = constant.double() if isinstance(constant, torch.Tensor) else constant
        wanted = call(value, float(wide) if wide is True else wide)
        assert y.shape == wanted.shape, form
        largest = float(value.abs().max()) + float(torch.as_tensor(wide).double().abs().max())
        largest = max(largest, float(wanted.abs().max()))
        error = float((y.detach().dequantize() - wanted).abs().max())
        assert error <= largest * 2**-6, form
        assert y.by_rows == (kind == "row"), form
        y.backward(tensor(tuple(y.shape), kind, 32, 5))
        assert x.grad.shape == x.shape, form


@pytest.mark.parametrize("kind", ["tensor", "row"])
@pytest.mark.parametrize(
    ("shape", "whole"),
    [
        ((4,), (1, 4)),
        ((4,), (2, 3, 4)),
        ((3, 4), (1, 3, 4)),
        ((2, 3, 4), (1, 2, 3, 4)),
        ((), (2, 3)),
    ],
)
def test_sums_and_products_of_other_ranks(shape, whole, kind, realisation):
    """Gradients have the shape of what was repeated, also where nothing was but an axis came."""
    for call in (torch.add, torch.mul):
        a, b = tensor(shape, kind, seed=1).requires_grad_(), tensor(whole, kind).requires_grad_()
        y = call(a, b)
        g = tensor(whole, kind, 32, 3)
        y.backward(g)
        found = a.grad.dequantize()
        assert found.shape == shape
        by = g.dequantize() * (1 if call is torch.add else b.dequantize())
        assert float((found - by.sum_to_size(shape)).abs().max()) <= 1e-6 * float(by.abs().max())
        assert b.grad.shape == whole


def test_a_tensor_without_axes_is_a_number():
    """So scores keep their 32 bits."""
    x = tensor((2, 3), bits=32)
    wanted = plain(x * 0.3)
    number = torch.tensor(0.3, dtype=torch.float64)
    assert all(plain(y) == wanted for y in (x * number, number * x, x / (1 / number)))


def test_what_has_no_rule_is_refused():
    x = BFPTensor.from_real(torch.ones(2, 3))
    for call, text in (
        (lambda: x + torch.ones(3, requires_grad=True), "requires a gradient"),
        (lambda: x * torch.ones(3, requires_grad=True), "requires a gradient"),
        (lambda: x + torch.full((3,), -math.inf).requires_grad_(), "requires a gradient"),
        (lambda: x * torch.ones(3, dtype=torch.complex64), "expected real numbers"),
        (lambda: x * torch.tensor(2.0, requires_grad=True), "requires a gradient"),
        (lambda: x / torch.tensor(2.0, requires_grad=True), "requires a gradient"),
        (lambda: x + torch.ones(4), r"expected shapes whose sizes are equal or 1"),
        (lambda: x + torch.full((4,), -math.inf), r"mask: expected shapes .* \(2, 3\) and \(4,\)"),
        (lambda: x[torch.tensor([0, 1], dtype=torch.uint8)], "no indexing by several tensors"),
        (lambda: torch.roll(x, (1, 2), 0), "roll: expected an axis for every shift"),
        (lambda: torch.roll(x, 1, 2), "roll: expected an axis of 2, found 2"),
    ):
        with pytest.raises(UnsupportedError, match=text):
            call()


class Functions(nn.Module):
    """Layers as functions of a module's own parameters."""

    def __init__(self):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(4, 4)), nn.Parameter(torch.randn(4))
        self.kernel, self.one = nn.Parameter(torch.randn(2, 2, 1, 1)), nn.Parameter(torch.randn(1))


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda m, x: functional.linear(x, m.weight, m.one), r"linear: .* and BFPParameter \(1,\)"),
        (lambda m, x: functional.linear(x, m.kernel), "linear: expected a weight of 2 axes"),
        (lambda m, x: functional.linear(torch.ones(4, 4), m.weight), "expected a BFPTensor"),
        (lambda m, x: functional.conv2d(x, m.weight), "conv2d: expected a weight of 4 axes"),
        (lambda m, x: functional.embedding(torch.arange(3), x), "embedding: expected a parameter"),
        (lambda m, x: functional.layer_norm(x, (4,), m.one), "expected parameters of 4 elements"),
        (lambda m, x: functional.layer_norm(x, (4,), m.bias, eps=0.0), "expected eps > 0, found 0"),
        (lambda m, x: functional.rms_norm(x, (4,), m.bias, eps=0.0), "expected eps > 0, found 0"),
        (lambda m, x: functional.layer_norm(x, (2, 4)), "expected one normalised axis"),
        (lambda m, x: functional.layer_norm(x, (4,), torch.ones(4)), "parameters of a module"),
    ],
)
def test_functions_with_parameters_that_do_not_fit(call, text):
    model = convert(Functions())
    with pytest.raises(UnsupportedError, match=text):
        call(model, BFPTensor.from_real(torch.ones(3, 4)))


@pytest.mark.parametrize("exponents", ["tensor", "row"])
def test_functions_are_layers(exponents, realisation):
    module = real(kind=Functions)
    model = convert(module, exponents)
    linear, norm = nn.Linear(4, 4), nn.LayerNorm(4)
    linear.weight, linear.bias, norm.weight, norm.bias = (
        module.weight,
        module.bias,
        module.bias,
        None,
    )
    other = convert(nn.Sequential(linear, norm), exponents)
    x = model_input(model, drawn(3, 2, 4))
    y = functional.layer_norm(functional.linear(x, model.weight, model.bias), (4,), model.bias)
    mse_loss(y, drawn(3, 2, 4, seed=1)).backward()
    z = other(x)
    mse_loss(z, drawn(3, 2, 4, seed=1)).backward()
    assert plain(y) == plain(z)
    assert plain(model.weight.grad) == plain(other[0].weight.grad)


# --- deployment -------------------------------------------------------------------------------


class Between(nn.Module):
    """Something between two linear layers, with parameters to use."""

    def __init__(self, function):
        super().__init__()
        self.before, self.after, self.function = nn.Linear(4, 4), nn.Linear(4, 3), function
        self.scale, self.mix = nn.Parameter(torch.randn(4)), nn.Parameter(torch.randn(4, 4))

    def forward(self, x):
        return self.after(self.function(self, torch.relu(self.before(x))))


DEPLOYED = {
    "unused parameters": lambda m, x: x,
    "a linear function": lambda m, x: functional.linear(x, m.mix, m.scale),
    "a number": lambda m, x: x + 1.5,
    "a constant": lambda m, x: x + torch.ones(4),
    "a constant of the shape": lambda m, x: x + torch.ones(x.shape),
    "a choice": lambda m, x: torch.where(torch.arange(4).expand(x.shape) > 1, x, x * 2),
    "expansion": lambda m, x: x * x[:, :1].expand(-1, 4) + x[:, :1],
    "a parameter": lambda m, x: x + m.scale,
    "a product": lambda m, x: x @ m.mix,
    "a product and its bias": lambda m, x: x @ m.mix + m.scale,
    "products of products": lambda m, x: x @ m.mix @ m.mix,
    "softmax": lambda m, x: torch.softmax(x, -1),
    "softmax of sums": lambda m, x: torch.softmax(functional.linear(x, m.mix), -1),
    "softmax of scores": lambda m, x: torch.softmax(x @ m.mix * 0.3 + m.mix[:1], 0),
    "shares beside others": lambda m, x: torch.softmax(x @ m.mix, -1) + x,
    "a mask": lambda m, x: torch.softmax(
        (x @ m.mix).masked_fill(torch.eye(5, 4) > 0, -math.inf), -1
    ),
    "constants and a mask": lambda m, x: torch.softmax(
        x @ m.mix + torch.where(torch.eye(5, 4) > 0, -math.inf, torch.arange(20.0).view(5, 4)), -1
    ),
    "roll": lambda m, x: torch.roll(x, (1, -2), (1, 0)),
    "padding": lambda m, x: functional.pad(x, (0, 1, 2, 0))[2:, 1:],
    "parts": lambda m, x: (
        torch.cat((*torch.chunk(x, 2, 1)[::-1], x[1::2, -2:]), 0)
        .reshape(1, -1)[:, :20]
        .reshape(5, 4)
    ),
    "integers": lambda m, x: x[torch.arange(len(x)) % 2],
    "rows of a parameter": lambda m, x: x + m.mix[torch.arange(len(x)) % 3],
    "a norm": lambda m, x: functional.rms_norm(x, (4,), m.scale),
    "groups": lambda m, x: functional.group_norm(x, 2, m.scale, m.scale),
    "images": lambda m, x: functional.interpolate(
        functional.group_norm(x.reshape(5, 1, 2, 2), 1), scale_factor=2
    )[..., ::2, 1::2].reshape(5, 4),
}


@pytest.mark.parametrize("exponents", ["tensor", "row"])
@pytest.mark.parametrize("name", DEPLOYED)
def test_what_is_deployed_is_near_the_float_module(name, exponents):
    """And its graph computes the same codes."""
    torch.manual_seed(0)
    module = Between(DEPLOYED[name])
    model, x = convert(module, exponents), drawn(5, 4)
    found = calibrate(model, [x])
    logits, wanted = deployed(model, found).logits(x), module(x).detach()
    assert float((logits - wanted).norm() / wanted.norm()) < 0.1
    assert_exported(model, x, found)


class Lists(nn.Module):
    """Parameters in the containers that torch has for them."""

    def __init__(self):
        super().__init__()
        self.gains = nn.ParameterList(nn.Parameter(torch.randn(4)) for _ in range(2))
        self.named = nn.ParameterDict({"mix": torch.randn(4, 3), "shift": torch.randn(3)})

    def forward(self, x):
        for gain in self.gains:
            x = x * gain
        return x @ self.named["mix"] + self.named["shift"]


class Alone(nn.Module):
    """The same with parameters of its own."""

    def __init__(self, of):
        super().__init__()
        self.first, self.second = of.gains
        self.mix, self.shift = of.named["mix"], of.named["shift"]

    def forward(self, x):
        return (x * self.first * self.second) @ self.mix + self.shift


@pytest.mark.parametrize("exponents", EXPONENTS)
def test_lists_of_parameters(exponents):
    torch.manual_seed(7)
    net = Lists()
    models = [convert(net, exponents), convert(Alone(net), exponents)]
    for model in models:
        optimizer = SGD(model.parameters(), lr=0.1, rounding="nearest")
        x = torch.randn(5, 4, generator=torch.Generator().manual_seed(1))
        for _ in range(2):
            cross_entropy(model(model_input(model, x)), torch.tensor([0, 1, 2, 1, 0])).backward()
            optimizer.step()
            optimizer.zero_grad()
    lists, alone = models
    assert len(lists.gains) == 2
    assert list(lists.named) == sorted(net.named)
    pairs = [
        *zip(lists.gains, (alone.first, alone.second), strict=True),
        *((lists.named[name], getattr(alone, name)) for name in ("mix", "shift")),
    ]
    for ours, wanted in pairs:
        assert torch.equal(ours.joint()[0], wanted.joint()[0])
    again = convert(Lists(), exponents)
    load_state(again, copy.deepcopy(lists).state_dict())
    assert torch.equal(again.gains[1].codes, lists.gains[1].codes)
    again.load_state_dict(net.state_dict())
    assert torch.equal(again.named["mix"].codes, convert(net, exponents).named["mix"].codes)


def test_a_compiled_module_is_refused():
    inner = nn.Linear(2, 2)
    model = nn.Sequential(torch.compile(inner), nn.ReLU())
    with pytest.raises(UnsupportedError, match=r"0 \(OptimizedModule\): compiled by torch.compile"):
        convert(model)
    assert isinstance(convert(inner), nn.Module)


class Activated(nn.BatchNorm2d):
    """As timm's: a subclass whose forward calls the function."""

    def forward(self, x):
        y = functional.batch_norm(
            x,
            self.running_mean,
            self.running_var,
            self.weight,
            self.bias,
            self.training,
            self.momentum,
            self.eps,
        )
        return torch.relu(y)


class OfLines(Activated):
    def _check_input_dim(self, x):
        pass


@pytest.mark.parametrize(("shape", "kind"), [((4, 3, 5, 5), Activated), ((4, 3, 6), OfLines)])
def test_a_subclass_of_batch_norm_is_the_layer(shape, kind):
    """With its statistics in binary64, and those of the float module left alone."""
    own = kind(3)
    layer = nn.BatchNorm2d(3) if len(shape) == 4 else nn.BatchNorm1d(3)
    found = []
    for network in (nn.Sequential(own), nn.Sequential(layer, nn.ReLU())):
        model = convert(network)
        generator = torch.Generator().manual_seed(1)
        for training in (True, False):
            model.train(training)
            x = model_input(model, torch.randn(shape, generator=generator) * 3 + 1)
            found.append(model(x).detach().dequantize())
        found += [model[0].running_mean, model[0].running_var]
    for one, other in zip(found[:4], found[4:], strict=True):
        assert one.dtype == torch.float64
        assert torch.equal(one, other)
    assert own.running_mean.tolist() == [0.0] * 3


def test_batch_norm_of_other_tensors_is_refused():
    x, ones = BFPTensor.from_real(torch.ones(2, 3), "x"), torch.ones(3)
    with pytest.raises(UnsupportedError, match="batch_norm: expected weight, bias and running"):
        functional.batch_norm(x, ones, ones, training=True)
