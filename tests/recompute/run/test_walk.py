"""Plans of BFP models are longer graphs: the same bits for every choice, and the bytes it says."""

from __future__ import annotations

import itertools
import random

import pytest
import torch
from torch import nn

from recompute_nets import CLASSES, Case, assert_same_outcome, make
from samebits.errors import InputError, UnsupportedError
from samebits.recompute.network.graph import trace_graph
from samebits.recompute.plan.schedule import compile_schedule, simulate
from samebits.recompute.run.apply import Executor
from samebits.recompute.run.memory import recording
from samebits.recompute.run.profile import survey
from samebits.train import BFPTensor, CrossEntropyLoss, convert
from samebits.train.architectures import ARCHITECTURES, build
from samebits.train.convert import model_input

SHAPES = {"mlp": (3, 6), "lstm": (5, 4), "gpt": (8,)}
NAMES = {"small cnn": (3, 6, 6)} | {name: SHAPES.get(name, (3, 8, 8)) for name in ARCHITECTURES}
BIG = ("resnet20", "resnet18", "mobilenetv2")
ARCHES = [pytest.param(name, marks=pytest.mark.slow if name in BIG else ()) for name in NAMES]


def small_cnn():
    first = (nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2))
    return nn.Sequential(*first, nn.Flatten(), nn.Linear(36, CLASSES))


def case(name, exponents="tensor", batch=3):
    torch.manual_seed(0)
    shape = NAMES[name]
    plain = small_cnn() if name == "small cnn" else build(name, shape, CLASSES)
    model = convert(plain, exponents).train()
    if name == "gpt":
        labels = torch.randint(CLASSES, (batch, *shape))
        x = torch.randint(CLASSES, (batch, *shape))
        return Case(model, x, labels, Transposed())
    x = model_input(model, torch.randn(batch, *shape))
    return Case(model, x, torch.arange(batch) % CLASSES, CrossEntropyLoss())


class Transposed(CrossEntropyLoss):
    """Of every place of a text; criteria have classes second."""

    def forward(self, output, labels):
        return super().forward(output.transpose(1, 2), labels)


def check(one, tape, network, droppings):
    """Loss, gradients and state of two steps by every choice are those of the model itself."""
    start, found = one.state(), []
    runs = [Executor(tape, network, compile_schedule(network, d)) for d in droppings]
    for forward in (one.model, *runs):
        one.restore(start)
        found.append(([one.step(forward), one.step(forward)], one.outcome()))
    for losses, outcome in found[1:]:
        assert losses == found[0][0]
        assert_same_outcome(found[0][1], outcome)
    return len(runs)


SLOW = pytest.mark.slow


@pytest.mark.parametrize("name", ["mlp", "small cnn"])
def test_every_subset_of_values_gives_the_same_bits(name):
    one = case(name)
    tape, network = survey(one.model, one.inputs, one.loss)
    choices = network.choices()
    subsets = [d for n in range(len(choices) + 1) for d in itertools.combinations(choices, n)]
    assert check(one, tape, network, subsets) == 2 ** len(choices) >= 8


@pytest.mark.parametrize(
    ("name", "exponents"),
    [  # the two large ones have one kind of exponents each in the quick set
        pytest.param(name, exponents, marks=() if kept is None or kept == exponents else SLOW)
        for name, kept in (("resnet8", None), ("lstm", None), ("vit", "tensor"), ("gpt", "row"))
        for exponents in ("tensor", "row", "row-shift")
    ],
)
def test_subsets_of_values_give_the_same_bits(name, exponents):
    one, generator = case(name, exponents), random.Random(1)
    tape, network = survey(one.model, one.inputs, one.loss)
    choices = network.choices()
    some = [tuple(v for v in choices if generator.random() < 0.5) for _ in range(4)]
    check(one, tape, network, [(), choices, *some])


@pytest.mark.parametrize("name", ARCHES)
def test_bytes_that_a_pass_keeps_are_those_that_its_graph_states(name):
    one, generator = case(name), random.Random(2)
    tape, network = survey(one.model, one.inputs, one.loss)
    choices = network.choices()
    for dropped in ((), choices, tuple(v for v in choices if generator.random() < 0.5)):
        schedule = compile_schedule(network, dropped)
        run = Executor(tape, network, schedule)
        with recording() as record, record.span("forward"):
            state, output = run.run_forward(one.inputs, False)
        span = record.named("forward")
        stated = simulate(network, schedule)[len(run.first) - 1].after
        assert span.end - span.start == stated - network.layers[0].size
        del state, output


def test_nothing_that_a_gradient_does_not_read_is_kept():
    """Of conv, norm with its relu, pool, flatten and linear: the input of the first, and what the
    last multiplies. The norm saves the 8 bits of its input that it reads."""
    one = case("small cnn", batch=2)
    tape, network = survey(one.model, one.inputs, one.loss)
    kinds = ["input", "Conv2d", "BatchNorm", "MaxPool2d", "Flatten", "Linear"]
    assert [layer.kind for layer in network.layers] == kinds
    assert [layer.needs for layer in network.layers] == [(), (0,), (), (), (), (4,)]
    run = Executor(tape, network, compile_schedule(network, ()))
    state, _ = run.run_forward(one.inputs, False)
    assert sorted(state.values) == [0, 4, 5]


def test_running_state_changes_once_and_dropouts_count_once():
    one = make("dropout", "bfp")
    twin = one.copy()
    tape, network = survey(one.model, one.inputs, one.loss)
    one.step(Executor(tape, network, compile_schedule(network, network.choices())))
    twin.step(twin.model)
    assert_same_outcome(twin.outcome(), one.outcome())
    for a, b in zip(one.model.modules(), twin.model.modules(), strict=True):
        assert getattr(a, "step", None) == getattr(b, "step", None)


def test_a_pass_is_for_the_parameters_that_it_read():
    one = case("mlp")
    tape, network = survey(one.model, one.inputs, one.loss)
    run = Executor(tape, network, compile_schedule(network, network.choices()))
    loss = one.loss(run(one.inputs))
    next(one.model.parameters()).codes.view(-1)[0] += 1
    with pytest.raises(UnsupportedError, match="expected parameters as they were in the forward"):
        loss.backward()


def test_an_input_with_a_gradient_is_refused():
    one = case("small cnn")
    tape, network = survey(one.model, one.inputs, one.loss)
    run = Executor(tape, network, compile_schedule(network, ()))
    with pytest.raises(UnsupportedError, match="expected an input that requires no gradient"):
        run(one.inputs.detach().requires_grad_())


def test_an_input_of_another_width_is_refused():
    one = case("small cnn")
    tape, network = survey(one.model, one.inputs, one.loss)
    run = Executor(tape, network, compile_schedule(network, ()))
    wide = BFPTensor(one.inputs.codes.to(torch.int32), one.inputs.exponent)
    with pytest.raises(InputError, match="this plan is for inputs of one type, width and place"):
        run(wide)


class Looking(nn.Module):
    """Its course depends on values."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(4, CLASSES)

    def forward(self, x):
        y = self.head(x)
        return y if (y > 0).any() else -y


def test_a_model_without_a_graph_is_refused():
    x = BFPTensor.from_real(torch.ones(2, 4))
    with pytest.raises(UnsupportedError) as caught:
        trace_graph(convert(Looking()), x)
    assert str(caught.value) == ("Looking: forward code reads values (gt); train without a plan")
