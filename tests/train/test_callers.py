"""Who called an operation: modules by their paths, optimizers, nobody."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from samebits.errors import UnsupportedError
from samebits.train import SGD, BFPTensor, convert, cross_entropy
from samebits.train.callers import calling_module, calling_optimizer

x = BFPTensor.from_real(torch.linspace(-1, 1, 12).view(3, 4))


class Asking(nn.Module):
    """Asks who calls, in a method that its forward calls."""

    def __init__(self, question, inner=None):
        super().__init__()
        self.question, self.inner, self.answer = question, inner, None

    def ask(self):
        self.answer = self.question()

    def forward(self, y):
        self.ask()
        return y if self.inner is None else self.inner(y)


def test_the_innermost_module_by_its_path_in_the_outermost():
    inner = Asking(calling_module)
    outer = Asking(calling_module, nn.Sequential(nn.Identity(), inner))
    assert outer(x) is x
    assert inner.answer.words == "module 'inner.1' (Asking): "
    assert inner.answer.module is inner
    assert outer.answer.words == "the model (Asking): "
    assert calling_module() is None
    inner(x)
    assert inner.answer.words == ""  # alone


def test_a_module_that_is_not_registered():
    outer = Asking(calling_module, None)
    held = [Asking(calling_module)]
    outer.inner = lambda y: held[0](y)
    outer(x)
    assert held[0].answer.path is None
    words = "module of type Asking, which its model has not registered: "
    assert held[0].answer.words == words


def test_layers_say_themselves_where_they_are():
    model = convert(nn.Sequential(nn.Linear(4, 4)))
    found = []
    model[0].compute = lambda y: found.append(calling_module()) or y
    model(x)
    assert found == [None]


class Plain(torch.optim.Optimizer):
    """An optimizer that asks who calls, and has a closure called."""

    answer = None

    def step(self, closure=None):
        self.answer = calling_optimizer()
        return None if closure is None else closure()


class Own(SGD):
    step = Plain.step
    answer = None


def test_optimizers_but_for_those_of_samebits():
    assert calling_optimizer() is None
    model = convert(nn.Sequential(nn.Linear(4, 4)))
    foreign, own = Plain(model.parameters(), {}), Own(model.parameters(), lr=0.1, seed=0)
    foreign.step()
    own.step()
    assert foreign.answer is foreign
    assert own.answer is None
    asking = Asking(calling_optimizer)
    foreign.step(lambda: asking(x))
    assert asking.answer is None


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (torch.optim.SGD, {}),
        (torch.optim.SGD, {"momentum": 0.9, "nesterov": True}),
        (torch.optim.Adam, {}),
        (torch.optim.AdamW, {"foreach": True}),
        (torch.optim.RMSprop, {}),
        (torch.optim.Adagrad, {}),
    ],
)
def test_optimizers_of_torch_name_those_of_samebits(kind, options):
    model = convert(nn.Linear(4, 3))
    cross_entropy(model(x), torch.tensor([0, 1, 2])).backward()
    before = model.weight.codes.clone(), model.weight.delayed.clone()
    wanted = (
        f"^BFP parameters are integers, which {kind.__name__} cannot change: use "
        r"samebits.train.SGD, or Adam \(with decoupled=True for AdamW\), and give an optimizer of "
        "torch the parameters of float modules alone$"
    )
    with pytest.raises(UnsupportedError, match=wanted):
        kind(model.parameters(), lr=0.1, **options).step()
    assert torch.equal(model.weight.codes, before[0])
    assert torch.equal(model.weight.delayed, before[1])
