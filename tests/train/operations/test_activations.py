"""Activations in every form that PyTorch has, against the plain integers and PyTorch's own."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

from activation_forms import FORMS
from bfp_arrays import forms_agree
from samebits.errors import UnsupportedError
from samebits.spec.training import pointwise as reference
from samebits.spec.training.layers import Array
from samebits.tables import ACTIVATIONS, activation_table
from samebits.train import BFPTensor, convert
from samebits.train.convert import RULES

PARAMETERS = {"elu": 0.75, "leaky_relu": 0.25}


def table(name, part):
    def at(exponent):
        t = activation_table(name, exponent, PARAMETERS.get(name))
        codes = (t.codes, t.exponent), (t.derivative_codes, t.derivative_exponent)
        return list(codes[part][0]), codes[part][1]

    return at


def sample(by_rows):
    """Codes from edge to edge, kinks included, in rows from fine to coarse; or in one."""
    codes = torch.tensor([-127, -96, -48, -24, -1, 0, 1, 12, 24, 48, 96, 127], dtype=torch.int8)
    rows = codes.repeat(4, 1)
    exponent = torch.tensor([[-9], [-4], [-3], [2]])
    return (rows, exponent) if by_rows else (rows, -4)


def array(codes, exponent, bits):
    own = (
        exponent if isinstance(exponent, int) else tuple(exponent.repeat(1, 12).flatten().tolist())
    )
    return Array(codes.flatten().tolist(), tuple(codes.shape), own, bits)


def numbers(tensor):
    codes, exponent = tensor.resolved()
    own = [exponent] if isinstance(exponent, int) else exponent.flatten().tolist()
    return codes.flatten().tolist(), own


def wanted(found):
    own = [found.exponent] if isinstance(found.exponent, int) else list(found.exponent[::12])
    return found.codes, own


@pytest.mark.parametrize("by_rows", [False, True])
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_every_form_is_the_definition(name, by_rows, realisation):
    codes, exponent = sample(by_rows)
    gradient = torch.arange(-24, 24, dtype=torch.int32).view(4, 12) * 1001
    x = array(codes, exponent, 8)
    y = reference.table_activation(x, table(name, 0), ACTIVATIONS[name].bounded)
    g = reference.table_backward(array(gradient, -30, 32), x, table(name, 1))
    *functions, module = FORMS[name]
    for form in (*functions, convert(module)):
        given = BFPTensor(codes, exponent, bits=8).requires_grad_()
        out = form(given)
        assert numbers(out) == wanted(y)
        assert out.bits == 8
        torch.autograd.backward(out, BFPTensor(gradient, -30))
        assert numbers(given.grad) == wanted(g)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_values_and_slopes_are_those_of_torch(name):
    """Kinks included: at the codes -48, 0 and 48, which are -3, 0 and 3."""
    codes, exponent = sample(by_rows=False)
    x = BFPTensor(codes, exponent, bits=8).requires_grad_()
    real = (codes.double() * 2.0**exponent).requires_grad_()
    form = FORMS[name][-1]
    ours, theirs = convert(form)(x), form(real)
    torch.autograd.backward(ours, BFPTensor(torch.full((4, 12), 1 << 14, dtype=torch.int32), -14))
    theirs.backward(torch.ones(4, 12, dtype=torch.float64))
    top = float(theirs.detach().abs().max())
    assert float((ours.detach().dequantize() - theirs.detach()).abs().max()) <= top / 127
    assert float((x.grad.dequantize() - real.grad).abs().max()) < 1e-3


def test_every_activation_with_a_module_has_functions():
    rules = {type(forms[-1]) for forms in FORMS.values()}
    assert set(FORMS) == set(ACTIVATIONS)
    assert rules <= set(RULES)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x: functional.softplus(x, beta=2), "softplus: expected beta=1 and a threshold"),
        (
            lambda x: functional.softplus(x, threshold=3.0),
            "threshold of at least 20, found 1.0 and",
        ),
        (lambda x: functional.gelu(x, approximate="erf"), "gelu: expected approximate none or"),
        (lambda x: functional.selu(x), "BFP tensors are integers and have no"),
    ],
)
def test_other_options_are_refused(call, message):
    with pytest.raises(UnsupportedError, match=message):
        call(BFPTensor.from_real(torch.randn(2, 3)))


IN_PLACE = (
    (functional.relu_, torch.relu),
    (torch.Tensor.relu_, torch.relu),
    (torch.tanh_, torch.tanh),
    (torch.Tensor.tanh_, torch.tanh),
    (torch.sigmoid_, torch.sigmoid),
    (torch.Tensor.sigmoid_, torch.sigmoid),
    (lambda x: functional.leaky_relu_(x, 0.3), lambda x: functional.leaky_relu(x, 0.3)),
    (functional.leaky_relu_, functional.leaky_relu),
    (lambda x: functional.elu_(x, 0.5), lambda x: functional.elu(x, 0.5)),
    (functional.elu_, functional.elu),
)


@pytest.mark.parametrize("at", range(len(IN_PLACE)))
def test_functions_in_place(at):
    changing, plain = IN_PLACE[at]
    forms_agree((lambda x: changing(x * 1), lambda x: plain(x * 1)), (2, 3))


def test_what_was_changed_in_place_is_used_up():
    """In PyTorch it would have the new values: another network, where it is read again."""
    for change in (
        lambda x: functional.relu(x, inplace=True),
        lambda x: functional.hardswish(x, inplace=True),
        lambda x: functional.leaky_relu(x, 0.1, True),
        lambda x: functional.elu(x, inplace=True),
        lambda x: functional.relu6(x, True),
        *(change for change, _ in IN_PLACE),
    ):
        x = BFPTensor.from_real(torch.randn(2, 3))
        y = change(x)
        assert y.codes.shape == (2, 3)
        with pytest.raises(UnsupportedError, match="changed in place: use the result of"):
            y + x


def test_forms_side_by_side_in_a_module():
    class Net(nn.Module):
        def forward(self, x):
            return functional.relu6(functional.hardswish(functional.relu(x, inplace=True)))

    y = convert(Net())(BFPTensor.from_real(torch.linspace(-8, 8, 17)[None], bits=8))
    assert float(y.detach().dequantize().max()) == pytest.approx(6, abs=0.1)
    assert float(y.detach().dequantize().min()) == 0
