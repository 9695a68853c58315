import random

import pytest
import torch
from torch import nn

from recompute_nets import CLASSES, Case, conv_bn, make
from samebits.errors import UnsupportedError
from samebits.recompute.network.trace import StateError
from samebits.recompute.run.profile import survey


class Branches(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(12, CLASSES)

    def forward(self, x):
        return self.head(x.flatten(1)) if x.sum() > 0 else self.head(-x.flatten(1))


class Pair(Branches):
    def forward(self, x):
        a, b = x.flatten(1).chunk(2, 1)
        return self.head(torch.cat([a, b], 1))


class StaleView(Branches):
    def forward(self, x):
        y = x * 2
        z = y.view(x.shape[0], -1)
        y.mul_(2)
        return self.head(z)


class TwoInputs(Branches):
    def forward(self, x, y):
        return self.head((x + y).flatten(1))


class NoGrad(Branches):
    def forward(self, x):
        with torch.no_grad():
            y = x * 2
        return self.head(y.flatten(1))


class Autocast(Branches):
    def forward(self, x):
        with torch.autocast("cpu", torch.bfloat16):
            return self.head(x.flatten(1))


class Draws(Branches):
    def forward(self, x):
        return self.head(x.flatten(1) * torch.rand(1).item())


class DrawsInPython(Branches):
    def forward(self, x):
        return self.head(x.flatten(1) * random.random())


class DrawsLike(Branches):
    def forward(self, x):
        return self.head((x + torch.randn(x.shape)).flatten(1))


class Counts(Branches):
    def __init__(self):
        super().__init__()
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x):
        self.count.add_(1)
        return self.head(x.flatten(1))


class Averages(Counts):
    def forward(self, x):
        self.count.add_(x.mean())
        return self.head(x.flatten(1))


class InPlaceFunction(Branches):
    def forward(self, x):
        return self.head(torch.relu_(x * 2).flatten(1))


@pytest.mark.parametrize(
    ("model", "text"),
    [
        (Branches, "cannot be followed"),
        (Pair, "chunk: expected one tensor as its result, found tuple"),
        (StaleView, "its result is read after a view of it was changed in place"),
        (TwoInputs, "found a second, 'y'"),
        (NoGrad, "mul: computed under torch.no_grad, enable_grad or autocast"),
        (Autocast, "computed under torch.no_grad, enable_grad or autocast"),
        (Draws, "draws random numbers or changes buffers itself"),
        (DrawsInPython, "draws random numbers or changes buffers itself"),
        (DrawsLike, "randn: draws random numbers of its own"),
        (Counts, "draws random numbers or changes buffers itself"),
        (Averages, "changes a parameter, a buffer or a constant in place"),
        (InPlaceFunction, "leaves its inputs alone, found relu_; use relu"),
    ],
)
def test_models_that_cannot_be_planned_say_why(model, text):
    case = Case(model(), torch.randn(4, 3, 2, 2), torch.zeros(4).long(), nn.CrossEntropyLoss())
    with pytest.raises(UnsupportedError) as caught:
        survey(case.model, case.inputs, case.loss)
    assert text in str(caught.value)
    assert "train without a plan" in str(caught.value)


@pytest.mark.parametrize(
    "register",
    [
        nn.Module.register_forward_hook,
        nn.Module.register_forward_pre_hook,
        nn.Module.register_full_backward_hook,
        nn.Module.register_full_backward_pre_hook,
    ],
)
def test_hooks_of_modules_are_refused(register):
    model = nn.Sequential(conv_bn(3, 4), nn.Flatten(), nn.Linear(4 * 64, CLASSES))
    case = Case(model, torch.randn(4, 3, 8, 8), torch.zeros(4).long(), nn.CrossEntropyLoss())
    handle = register(model[0], lambda *_: None)
    with pytest.raises(UnsupportedError, match="module '0' has hooks"):
        survey(case.model, case.inputs, case.loss)
    handle.remove()
    survey(case.model, case.inputs, case.loss)


def test_hooks_of_parameters_are_refused():
    case = make("resnet8", "float32")
    case.model[-1].weight.register_hook(lambda g: g)
    with pytest.raises(UnsupportedError, match=r"parameter '\d+.weight' has gradient hooks"):
        survey(case.model, case.inputs, case.loss)


def test_a_tensor_that_forward_makes_is_refused_and_not_kept():
    """By no state of the model's: what else follows such a model may take it."""

    class Summed(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(3, 8)

        def forward(self, x):
            return torch.zeros(2, 8).index_add(0, torch.arange(4) % 2, self.layer(x))

    model = Summed()
    before = set(vars(model))
    with pytest.raises(
        UnsupportedError, match=r"a tensor \[2, 8\] that its forward code"
    ) as caught:
        survey(model, torch.randn(4, 3), torch.sum)
    assert not isinstance(caught.value, StateError)
    assert set(vars(model)) == before


def test_sparse_gradients_are_refused():
    case = make("words", "float32")
    case.model.table.sparse = True
    with pytest.raises(UnsupportedError, match="table: expected dense gradients"):
        survey(case.model, case.inputs, case.loss)
