"""What errors advise: the words, and that what they advise computes."""

from __future__ import annotations

import re

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.overrides import resolve_name

from samebits.errors import UnsupportedError
from samebits.train import SGD, BFPTensor, convert, cross_entropy, model_input
from samebits.train.advice import LAYERS, OPERATIONS, for_layer

x = BFPTensor.from_real(torch.linspace(-3, 3, 24).view(6, 4))
real = x.dequantize().float()


class Net(nn.Module):
    """One operation on what a layer gives, and another one beside it."""

    def __init__(self, call):
        super().__init__()
        self.layer, self.call = nn.Linear(4, 4), call

    def forward(self, y):
        return self.call(self.layer(y))


def message(call, path="1"):
    """What the error of an operation in a module says."""
    model = convert(nn.Sequential(nn.ReLU(), Net(call)) if path else Net(call))
    with pytest.raises(UnsupportedError) as caught:
        model(x)
    return str(caught.value)


FLOAT = "keep the module in float32 ({} of convert), or go on in floats with .dequantize()"


def test_an_operation_that_bfp_does_not_have():
    have = "BFP tensors are integers and have no"
    inside = FLOAT.format("keep_float=['1']")
    assert message(lambda y: torch.cumsum(y, 0)) == (
        f"module '1' (Net): {have} torch.cumsum: {inside}"
    )
    way = "write nn.LayerNorm or nn.RMSNorm, which divide by a root"
    assert message(lambda y: torch.rsqrt(y)) == (
        f"module '1' (Net): {have} torch.rsqrt: {way}, or {inside}"
    )
    assert message(lambda y: torch.sqrt(y), "") == (
        f"the model (Net): {have} torch.sqrt: {way}, or {FLOAT.format('keep_float')}"
    )
    with pytest.raises(UnsupportedError) as caught:
        x.sin()
    assert str(caught.value) == f"{have} torch.Tensor.sin: {FLOAT.format('keep_float')}"


def test_an_operation_with_other_arguments_is_met_somewhere_too():
    assert message(lambda y: functional.dropout(y, 1.0)) == (
        "module '1' (Net): dropout: expected p below 1, in the forward() of the model that convert "
        "gave, which numbers the masks, found p=1.0; call that model itself, or use "
        "torch.nn.Dropout in the module"
    )
    assert message(lambda y: y.std(0)) == (
        "module '1' (Net): std of BFP tensors has no gradient: expected torch.no_grad() around "
        "it, or a tensor that requires none; read values with .detach().dequantize(); write "
        "nn.LayerNorm or nn.GroupNorm"
    )
    assert message(lambda y: abs(y)).endswith(".dequantize(); write relu(x) + relu(-x)")
    assert message(lambda y: functional.layer_norm(y, (6, 4))) == (
        "module '1' (Net): layer norm: expected one normalised axis, and parameters of a module, "
        "found (6, 4)"
    )


def test_where_is_said_once():
    assert message(lambda y: convert(nn.Linear(3, 2))(y)).startswith(
        "layer '' (Linear): convolution: "
    )
    inner = convert(Net(lambda y: torch.sin(y)))
    found = message(lambda y: functional.relu(inner(y)))
    assert found.startswith("module of type Net, which its model has not registered: BFP tensors")
    assert found.count("module") == found.count("integers") + 1 == 2  # where, and what to keep


@pytest.mark.parametrize(
    "call",
    [
        nn.Linear(4, 4),
        nn.LayerNorm(4),
        nn.BatchNorm1d(4),
        lambda y: y * nn.Parameter(torch.ones(4)),
        lambda y: torch.add(y, other=nn.Parameter(torch.ones(4))),
        lambda y: torch.cat([y, nn.Parameter(torch.ones(6, 4))]),
    ],
)
def test_a_parameter_that_convert_has_not_seen(call):
    unregistered = [call]  # in a list, which torch does not look into
    found = message(lambda y: unregistered[0](y))
    assert "found a torch.nn.Parameter that convert has not seen" in found
    assert "register what holds it (a list as nn.ModuleList) before convert" in found
    if isinstance(call, nn.Module):
        kind = type(call).__name__
        begin = f"module of type {kind}, which its model has not registered: torch.nn.functional."
        assert found.startswith(begin)


def test_an_error_of_a_backward_pass_is_left_as_it_is():
    class Refusing(torch.autograd.Function):
        @staticmethod
        def forward(ctx, y):
            return y.clone()

        @staticmethod
        def backward(ctx, g):
            raise UnsupportedError("not this one")

    given = BFPTensor(x.codes, x.exponent).requires_grad_()
    for run in (
        lambda y: y.backward(y.detach()),
        lambda y: torch.autograd.backward(y, y.detach()),
        lambda y: torch.autograd.grad(y, given, y.detach()),
    ):
        assert message(lambda y, run=run: run(Refusing.apply(given))) == "not this one"


# --- what is advised, beside what it stands for -------------------------------------------------


def glu(y):
    a, b = y.chunk(2, -1)
    return a * torch.sigmoid(b)


ADVISED = {
    "Hardtanh": (nn.Hardtanh(0, 6), lambda y: nn.functional.relu6(y)),
    "GLU": (nn.GLU(), glu),
    "SELU": (nn.SELU(), lambda y: 1.0507 * functional.elu(y, 1.67326)),
    "CELU": (nn.CELU(), lambda y: functional.elu(y)),
    "LogSigmoid": (nn.LogSigmoid(), lambda y: -functional.softplus(-y)),
    "Tanhshrink": (nn.Tanhshrink(), lambda y: y - torch.tanh(y)),
    "Softmin": (nn.Softmin(1), lambda y: torch.softmax(-y, 1)),
    "abs": (torch.abs, lambda y: functional.relu(y) + functional.relu(-y)),
    "clamp": (lambda y: torch.clamp(y, min=0.5), lambda y: functional.relu(y - 0.5) + 0.5),
    "maximum": (lambda y: torch.maximum(y, y * y), lambda y: functional.relu(y - y * y) + y * y),
    "minimum": (lambda y: torch.minimum(y, y * y), lambda y: y - functional.relu(y - y * y)),
}


@pytest.mark.parametrize("name", ADVISED)
def test_what_is_advised_computes_the_same(name):
    float_one, advised = ADVISED[name]
    assert name in LAYERS or name in OPERATIONS
    found = advised(BFPTensor(x.codes, x.exponent).requires_grad_()).detach().dequantize()
    assert (found - float_one(real)).abs().max() < 0.15  # codes of 8 bits, up to 9


@pytest.mark.parametrize("name", [n for n in LAYERS if n not in ("SyncBatchNorm",)])
def test_every_layer_with_advice_is_one_of_torch(name):
    assert hasattr(nn, name) or hasattr(nn.parallel, name)


@pytest.mark.parametrize("name", OPERATIONS)
def test_every_operation_with_advice_is_one_of_torch(name):
    places = torch, functional, torch.linalg
    found = next(getattr(place, name) for place in places if hasattr(place, name))
    assert resolve_name(found).rpartition(".")[2] == name


def test_functions_in_place_have_the_same_advice():
    found = message(lambda y: functional.hardtanh_(y))
    assert "no torch.nn.functional.hardtanh_: write relu6(x), which is hardtanh(x, 0, 6)," in found


def test_gradients_that_torch_would_clip_are_told_of_nothing_else():
    model = convert(nn.Linear(4, 3))
    cross_entropy(model(x[:3]), torch.tensor([0, 1, 2])).backward()
    for clip in (nn.utils.clip_grad_norm_, nn.utils.clip_grad_value_):
        with pytest.raises(UnsupportedError, match=r"of samebits.train; read.*\.dequantize\(\)$"):
            clip(model.parameters(), 1.0)


def reads(text, module, path="a.b"):
    assert for_layer(module, path) == text.replace(
        "FLOAT", "keep it in float32: keep_float=['a.b']"
    )


def test_advice_about_layers():
    reads("write nn.ReLU6(), which is Hardtanh(0, 6), or FLOAT", nn.Hardtanh())
    reads("write nn.BatchNorm2d, or FLOAT", nn.SyncBatchNorm(2))
    reads("FLOAT", nn.Conv3d(1, 1, 1))
    reads("train the model in float32", nn.Conv3d(1, 1, 1), "")
    reads("write nn.LeakyReLU()", nn.PReLU(), "")
    parametrized = nn.utils.parametrizations.weight_norm(nn.Linear(2, 2))
    reads("call torch.nn.utils.parametrize.remove_parametrizations before convert", parametrized)
    lazy = "call the model once, which makes its parameters, before convert"
    reads(lazy, nn.LazyLinear(2))


def test_the_list_of_layers_is_for_those_without_a_rule():
    with pytest.raises(UnsupportedError) as caught:
        convert(nn.Sequential(nn.ReLU(), nn.GLU(), nn.MaxPool2d(2, dilation=2)))
    lines = str(caught.value).splitlines()
    assert lines[1] == (
        "  1 (GLU): no rule for this layer; write a * torch.sigmoid(b) of a, b = x.chunk(2, dim), "
        "or keep it in float32: keep_float=['1']"
    )
    assert re.match(r"supported: Adapt.*, Upsamp.*; change or replace these layers,", lines[3])
    with pytest.raises(UnsupportedError) as caught:
        convert(nn.MaxPool2d(2, dilation=2))
    assert str(caught.value).splitlines()[2].startswith("change or replace these layers, keep")


def test_averages_and_scalers_of_torch_name_what_there_is():
    model = convert(nn.Sequential(nn.Linear(4, 2)))
    averaged = torch.optim.swa_utils.AveragedModel(model)
    with pytest.raises(UnsupportedError, match="AveragedModel cannot average: use"):
        averaged.update_parameters(model)
    scaler, optimizer = torch.amp.GradScaler("cpu"), SGD(model.parameters(), lr=0.1)
    loss = cross_entropy(model(model_input(model, torch.ones(2, 4))), torch.tensor([0, 1]))
    scaler.scale(loss).backward()
    with pytest.raises(UnsupportedError, match="expected no GradScaler; call"):
        scaler.step(optimizer)
