"""The width of a linear value is that of its use (docs/spec/training.md, 5)."""

import random
import re

import pytest
import torch
from torch import nn

from compare import assert_same
from samebits.errors import RangeError, UnsupportedError
from samebits.recompute.plan.cost import find_device
from samebits.recompute.plan.planner import make_plan
from samebits.recompute.run.apply import Executor
from samebits.recompute.run.profile import survey
from samebits.recompute.run.proof import prove
from samebits.spec.training import optimizer as reference_optimizers
from samebits.spec.training import step as reference
from samebits.spec.training.layers import initial_parameter, quantize_input
from samebits.spec.training.step import Node
from samebits.train import SGD, BFPTensor, convert, cross_entropy, mse_loss
from samebits.train.deployed.deploy import calibrate, deployed
from samebits.train.deployed.export import to_graph
from samebits.train.operations.narrow import as_bfp8

TARGETS = torch.tensor([0, 2, 1, 0])


def reals(shape, seed):
    rng = random.Random(seed)
    count = torch.Size(shape).numel()
    return torch.tensor([rng.gauss(0.2, 1.0) for _ in range(count)]).view(shape)


def filled(model):
    """The model with parameters that depend on their names alone."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(0.4 * reals(tuple(parameter.shape), name))
    return model


def same(a, b, what):
    assert a.shape == b.shape
    assert (a.bits, a.exponent) == (b.bits, b.exponent), what
    assert_same(a.codes, b.codes, [what] * a.numel())


def schedule(network):
    plan = make_plan(network, find_device("laptop-cpu"), arch="", budget=None)
    return plan.schedule(network)


class Net(nn.Module):
    """A body and a head, registered in one of two orders."""

    def __init__(self, names):
        super().__init__()
        parts = {"conv": nn.Conv2d(2, 3, 3), "body": nn.Linear(12, 5), "head": nn.Linear(5, 3)}
        for name in names:
            self.add_module(name, parts[name])

    def forward(self, x):
        x = torch.relu(self.conv(x)).flatten(1)
        return self.head(torch.relu(self.body(x)))


IN_ORDER, HEAD_FIRST = ("conv", "body", "head"), ("head", "conv", "body")


def image(seed=0):
    return BFPTensor.from_real(reals((4, 2, 4, 4), seed))


def trained(names, forward=lambda model: model):
    model = convert(filled(Net(names)))
    optimizer = SGD(model.parameters(), lr=0.3, momentum=0.9, rounding="nearest")
    run, losses = forward(model), []
    for step in range(3):
        optimizer.zero_grad()
        logits = run(image(step))
        assert logits.bits == 32
        loss = cross_entropy(logits, TARGETS)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return model, losses


def test_the_order_of_registration_changes_no_bit():
    """The head gives 32 bits wherever it is registered; two layers before it give 8."""
    (ordered, losses), (other, others) = trained(IN_ORDER), trained(HEAD_FIRST)
    assert losses == others
    for name, parameter in ordered.named_parameters():
        twin = other.get_parameter(name)
        assert parameter.exponent == twin.exponent
        assert_same(parameter.codes, twin.codes, [name] * twin.numel())
        assert_same(parameter.delayed, twin.delayed, [name] * twin.numel())


def test_a_plan_of_a_model_with_its_head_first():
    def planned(model):
        loss = lambda output: cross_entropy(output, TARGETS)  # noqa: E731
        tape, network = survey(model, image(), loss)
        assert tape.output not in tape.widths
        executor = Executor(tape, network, schedule(network))
        prove(executor, image(), loss)
        return executor

    plain, found = trained(IN_ORDER), trained(HEAD_FIRST, planned)
    assert plain[1] == found[1]
    for name, parameter in plain[0].named_parameters():
        assert_same(found[0].get_parameter(name).codes, parameter.codes, [name] * parameter.numel())


def test_deployed_models_with_their_head_first():
    found = {}
    images = reals((4, 2, 4, 4), 9)
    for names in (IN_ORDER, HEAD_FIRST):
        model = convert(filled(Net(names)))
        exponents = calibrate(model, [images, reals((3, 2, 4, 4), 10)])
        codes, exponent = deployed(model, exponents).codes(images)
        assert codes.dtype == torch.int32
        graph = to_graph(model, exponents, (2, 4, 4))
        operations = [node.op for node in graph.nodes]
        found[names] = (exponents, exponent, codes.tolist(), operations)
    assert found[IN_ORDER] == found[HEAD_FIRST]
    names = [site.name for site in found[IN_ORDER][0].sites]
    assert names == ["input", "conv (Conv2d)", "body (Linear)"]


class Heads(nn.Module):
    """Two heads; the first one's value also goes on through a layer to the second."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(6, 3), nn.Linear(3, 2)
        self.third = nn.Linear(3, 2)

    def forward(self, x):
        y = self.first(x)
        return y, self.second(y), self.third(y)


HEADS = [
    Node("x", "input"),
    Node("first", "linear", ("x",)),
    Node("second", "linear", ("first",)),
    Node("third", "linear", ("first",)),
]
LOSSES = {"first": "cross_entropy", "second": "mse", "third": "mse"}


@pytest.mark.parametrize("late", [False, True])
def test_several_losses_equal_the_plain_definition(late):
    """A value that a loss and two layers use, the loss before the layers or after them."""
    real, wanted = filled(Heads()), reals((4, 2), "wanted")
    parameters = {
        name: initial_parameter(p.detach().flatten().tolist(), tuple(p.shape))
        for name, p in real.named_parameters()
    }
    model = convert(real)
    optimizer = SGD(model.parameters(), lr=0.2, momentum=0.9, rounding="nearest")
    plain, state = reference_optimizers.SGD(0.2, momentum=0.9, seed=None), {}
    for step in range(3):
        images = reals((4, 6), step)
        given = {"x": quantize_input(images.flatten().tolist(), (4, 6))}
        flat = wanted.flatten().tolist()
        targets = {"first": TARGETS.tolist(), "second": flat, "third": flat}
        result = reference.step(HEADS, parameters, {}, state, [(given, targets)], plain, LOSSES)
        parameters, state = result.parameters, result.state
        optimizer.zero_grad()
        x = BFPTensor.from_real(images)
        if late:
            first, second, third = model(x)
            values = [cross_entropy(first, TARGETS)]
        else:
            first = model.first(x)
            values = [cross_entropy(first, TARGETS)]
            second, third = model.second(first), model.third(first)
        assert [t.bits for t in (first, second, third)] == [32, 32, 32]
        values += [mse_loss(second, wanted), mse_loss(third, wanted)]
        loss = values[0] + values[1] + values[2]
        loss.backward()
        assert [loss.item()] == result.losses
        for name, parameter in model.named_parameters():
            codes, exponent = parameter.grad.resolved()
            assert exponent == result.gradients[name].exponent
            assert_same(codes, result.gradients[name].codes, [name] * codes.numel())
        optimizer.step()
        for name, parameter in model.named_parameters():
            assert_same(parameter.codes, parameters[name].codes, [name] * parameter.numel())


def wide_layer():
    """A linear layer and its input: 32 rows, whose magnitudes grow."""
    model = convert(filled(nn.Sequential(nn.Linear(5, 4))))
    x = reals((32, 5), 1) * torch.logspace(-3, 0, 32)[:, None]
    return model[0], BFPTensor.from_real(x)


def test_a_layer_takes_8_bits_and_reading_decides_nothing():
    layer, x = wide_layer()
    first, second = layer(x), layer(x)
    before = first.detach().dequantize()
    assert torch.equal(
        as_bfp8(first, "test").detach().dequantize(), as_bfp8(second, "test").detach().dequantize()
    )
    assert as_bfp8(second, "test").bits == 8
    assert torch.equal(second.detach().dequantize(), before)  # computed again
    assert (second.codes.dtype, second.exponent) == (torch.int32, first.exponent)
    assert "bits=32" in repr(second)


def test_what_is_moved_is_rounded_as_part_of_the_whole():
    """Rows that are small beside others have the exponent of all, whatever takes them."""
    layer, x = wide_layer()
    whole = as_bfp8(layer(x), "test")
    for move in (
        lambda y: y[3:7],
        lambda y: y.permute(1, 0)[:, :5],
        lambda y: y.reshape(8, 4, 4)[2],
        lambda y: convert(nn.Flatten(0))(y)[:9],
    ):
        same(as_bfp8(move(layer(x)), "test"), move(whole), "moved")
        wide = move(layer(x))
        assert wide.bits == 32
        same(wide, move(BFPTensor(layer(x).codes, layer(x).exponent)), "moved sums")


def test_a_gradient_of_several_uses_is_one_sum():
    """Its order of arrival and the number of narrowings change nothing."""
    layer, x = wide_layer()
    grads = []
    for order in ((0, 1, 2), (2, 0, 1)):
        y = layer(x)
        uses = [y, as_bfp8(y, "a"), as_bfp8(y, "b")]
        g = [BFPTensor(torch.full((32, 4), 3 + i, dtype=torch.int32), -7 * i - 9) for i in range(3)]
        layer.weight.grad = None
        torch.autograd.backward([uses[i] for i in order], [g[i] for i in order])
        grads.append(layer.weight.grad)
    same(grads[0], grads[1], "weight")
    assert len(grads[0].parts) == 1


def test_sums_are_let_go_by_the_layer_that_takes_them():
    layer, x = wide_layer()
    y = layer(x)
    assert [t.dtype for t in y.sums.held()] == [torch.int32]
    as_bfp8(y, "test")
    assert [t.dtype for t in y.sums.held()] == [torch.int8]


def test_sums_of_changed_weights_are_gone():
    layer, x = wide_layer()
    y, read = layer(x), layer(x)
    as_bfp8(y, "test")
    with torch.no_grad():
        layer.bias.delayed.add_(1)
    text = "the 32-bit value of this product with a weight is gone: a layer took it as codes"
    with pytest.raises(UnsupportedError, match=re.escape(text)):
        y.detach().dequantize()
    assert as_bfp8(y, "test").bits == 8
    read.detach().dequantize()  # nobody took it


def test_an_overflow_names_the_layer_that_computed_the_sums():
    """And only where they are taken as 8 bits: bfp32 exponents have no limit."""
    layer, _ = wide_layer()
    layer.weight.set_exponent(127)
    y = layer(BFPTensor(torch.full((2, 5), 100, dtype=torch.int8), 0))
    assert y.exponent > 100
    with pytest.raises(RangeError, match=r"^layer '0' \(Linear\): expected an exponent of at most"):
        convert(nn.ReLU())(y)


class Returned(nn.Module):
    """Returns a value that a layer has taken too."""

    def __init__(self):
        super().__init__()
        self.head, self.after = nn.Linear(6, 3), nn.Linear(3, 2)

    def forward(self, x):
        y = self.head(x)
        self.after(y)
        return y.reshape(-1, 3)


def test_a_returned_value_that_a_layer_takes():
    """Deployed, it keeps 32 bits, and the layer rounds them at a site of its own."""
    model = convert(filled(Returned()))
    images = reals((4, 6), 3)
    exponents = calibrate(model, [images])
    assert [s.name for s in exponents.sites] == ["input", "after (narrow)", "after (Linear)"]
    codes, _ = deployed(model, exponents).codes(images)
    assert codes.dtype == torch.int32
    x = BFPTensor.from_real(images)
    tape, network = survey(model, x, lambda y: cross_entropy(y, TARGETS))
    executor = Executor(tape, network, schedule(network))
    prove(executor, x, lambda y: cross_entropy(y, TARGETS))
    model.train()
    same(executor(x), model(x), "output")
