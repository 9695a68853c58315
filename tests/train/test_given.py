"""What convert refuses as a whole, each in one sentence."""

from __future__ import annotations

import re

import pytest
import torch
from torch import nn

from samebits.errors import InputError, UnsupportedError
from samebits.train import convert


def pair():
    return nn.Sequential(nn.Linear(2, 2), nn.GELU())


def on_meta(**where):
    with torch.device("meta"):
        model = nn.Sequential(nn.BatchNorm1d(2))
    if where:
        model[0].weight, model[0].bias = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))
    return model


FLOAT = "convert: expected a float model, found {}, which is converted; use the model as it is"
MODULE = "convert: expected a torch.nn.Module, found {}"
META = (
    "convert: expected parameters with values, found {!r} on the device meta; load them, or "
    "initialise what model.to_empty(device='cpu') gives, first"
)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (lambda: convert(pair()), FLOAT.format("'0' (Linear)")),
        (lambda: convert(nn.Linear(2, 2)), FLOAT.format("Linear")),
        (lambda: nn.Sequential(pair(), convert(nn.GELU())), FLOAT.format("'1' (Activation)")),
        (
            lambda: nn.Sequential(convert(pair(), keep_float=["0"])[0]),
            FLOAT.format("'0' (Linear)"),
        ),
        (lambda: pair, MODULE.format("function")),
        (dict, MODULE.format("dict")),
        (lambda: None, MODULE.format("NoneType")),
        (lambda: nn.ReLU, MODULE.format("the class ReLU; make one: ReLU(...)")),
        (on_meta, META.format("0.weight")),
        (lambda: on_meta()[0], META.format("weight")),
        (lambda: on_meta(values=True), META.format("0.running_mean")),
    ],
)
def test_what_is_no_float_model(given, message):
    model = given()
    with pytest.raises(InputError, match=f"^{re.escape(message)}$"):
        convert(model)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("make", [torch.jit.script, lambda m: torch.jit.trace(m, torch.ones(1, 2))])
def test_what_torch_has_scripted(make):
    text = r"{} \(.*\): compiled by torch.jit, expected the module it was made of"
    scripted = make(nn.Linear(2, 2))
    with pytest.raises(UnsupportedError, match=text.format("the model")):
        convert(scripted)
    with pytest.raises(UnsupportedError, match=text.format("1")):
        convert(nn.Sequential(nn.ReLU(), scripted))
