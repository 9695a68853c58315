import concurrent.futures
import random
import threading
import time

import pytest
import torch
from torch import nn

from recompute_nets import CLASSES, NETS, Case, assert_same_outcome, conv_bn, make
from samebits.errors import InputError, RangeError, UnsupportedError
from samebits.recompute.apply import Executor, Pass
from samebits.recompute.memory import step_peak
from samebits.recompute.profile import survey
from samebits.recompute.schedule import compile_schedule, peak
from samebits.train import layers

CASES = [(name, "float32") for name in NETS]
CASES += [(name, "bfp") for name in NETS if name != "in place"]


def droppings(network, count, seed=0):
    """Nothing, everything, and random subsets of what may be dropped."""
    choices = network.choices()
    generator = random.Random(seed)
    yield ()
    yield choices
    for _ in range(count):
        share = generator.random()
        yield tuple(v for v in choices if generator.random() < share)


def executor(case, dropped=None, keep=()):
    program, network = survey(case.model, case.inputs, case.loss)
    if dropped is None:
        dropped = tuple(v for v in network.choices() if v not in keep)
    return Executor(program, network, compile_schedule(network, dropped))


@pytest.mark.parametrize(("name", "numerics"), CASES)
def test_every_plan_gives_the_bits_of_eager_execution(name, numerics):
    case = make(name, numerics)
    start = case.state()
    program, network = survey(case.model, case.inputs, case.loss)

    def two_steps(forward):
        """Two: the second pass adds to the gradients of the first, as accumulation does."""
        case.restore(start)
        torch.manual_seed(3)
        return [case.step(forward), case.step(forward)], case.outcome()

    losses, outcome = two_steps(case.model)
    for dropped in droppings(network, 3 if name in ("resnet18", "mobilenetv2") else 12):
        run = Executor(program, network, compile_schedule(network, dropped))
        found, planned = two_steps(run)
        assert losses == found
        assert_same_outcome(outcome, planned)


class Inline(concurrent.futures.Executor):
    """Deferred work at once, where the allocator's events are recorded."""

    def submit(self, fn, /, *args, **kwargs):
        future = concurrent.futures.Future()
        future.set_result(fn(*args, **kwargs))
        return future


@pytest.mark.parametrize(("name", "numerics"), CASES)
def test_the_paired_order_gives_the_bits_of_the_sequential_one(name, numerics):
    """And its memory is at most what is predicted."""
    case = make(name, numerics)
    start = case.state()
    torch.manual_seed(3)
    losses = [case.step(case.model), case.step(case.model)]
    outcome = case.outcome()
    program, network = survey(case.model, case.inputs, case.loss)
    for dropped in droppings(network, 1):
        schedule = compile_schedule(network, dropped, paired=True)
        actions = [action for action, _ in schedule]
        assert actions.count("weight gradient") == actions.count("join") > 0
        run = Executor(program, network, schedule)
        ran = {}
        run.clock = ran.__setitem__
        case.restore(start)
        torch.manual_seed(3)
        assert losses == [case.step(run), case.step(run)]
        assert_same_outcome(outcome, case.outcome())
        assert ran.keys() == set(run.second)
        case.restore(start)
        run.beside = Inline()
        measured = step_peak(lambda run=run: case.step(run)) + network.layers[0].size
        assert measured <= 1.02 * peak(network, schedule) <= 1.3 * measured


def test_an_error_beside_a_deferred_gradient_waits_for_it(monkeypatch):
    case = make("resnet8", "float32")
    program, network = survey(case.model, case.inputs, case.loss)
    run = Executor(program, network, compile_schedule(network, (), paired=True))
    ended = threading.Event()
    real = Pass.weight_gradient

    def slow(self, index):
        ended.clear()
        time.sleep(0.05)
        found = real(self, index)
        ended.set()
        return found

    def fails(self, index):
        raise RuntimeError("here")

    monkeypatch.setattr(Pass, "weight_gradient", slow)
    monkeypatch.setattr(Pass, "backward", fails)
    with pytest.raises(RuntimeError, match="here"):
        case.step(run)
    assert ended.is_set()


def test_an_error_in_a_deferred_gradient_reaches_the_caller(monkeypatch):
    case = make("resnet8", "bfp")
    program, network = survey(case.model, case.inputs, case.loss)
    run = Executor(program, network, compile_schedule(network, (), paired=True))

    def fails(self, index):
        raise RangeError("too large")

    monkeypatch.setattr(Pass, "weight_gradient", fails)
    with pytest.raises(RangeError, match="too large"):
        case.step(run)


@pytest.mark.parametrize(("name", "numerics"), CASES)
def test_survey_leaves_everything_as_it_was(name, numerics):
    case = make(name, numerics)
    before = case.copy().outcome()
    modes = [m.training for m in case.model.eval().modules()]
    survey(case.model, case.inputs, case.loss)
    assert_same_outcome(before, case.outcome())
    assert modes == [m.training for m in case.model.modules()]


@pytest.mark.parametrize(("name", "numerics"), CASES)
def test_predicted_peak_is_the_measured_peak(name, numerics):
    """Within 1 % of all tensor memory."""
    case = make(name, numerics, batch=16, size=8 if name in ("resnet18", "dropout") else 16)
    if name in ("dropout", "nested", "smooth", "in place"):
        case = make(name, numerics, batch=64)
    program, network = survey(case.model, case.inputs, case.loss)
    state = case.state()
    for dropped in droppings(network, 2 if name in ("resnet18", "mobilenetv2") else 6):
        schedule = compile_schedule(network, dropped)
        run = Executor(program, network, schedule)
        case.step(run)  # the first pass meets what is made once: tables, kernels
        case.restore(state)
        measured = step_peak(lambda run=run: case.step(run)) + network.layers[0].size
        case.restore(state)
        predicted = peak(network, schedule)
        assert abs(measured - predicted) <= 0.01 * measured, (dropped, predicted, measured)


@pytest.mark.parametrize("numerics", ["float32", "bfp"])
def test_a_budgeted_step_frees_what_it_no_longer_needs(numerics):
    case = make("resnet8", numerics, batch=16, size=16)
    program, network = survey(case.model, case.inputs, case.loss)
    dropped = tuple(v for v in network.choices() if network.layers[v].kind != "Conv2d")
    run = Executor(program, network, compile_schedule(network, dropped))
    state, output = run.run_forward(case.inputs, False)
    kinds = {network.layers[v].kind for v in state.values if v}
    assert kinds <= {"Conv2d", "Linear"}
    assert not any(
        entry.tensor is None and entry.value < 0 for g in state.graphs.values() for entry in g.saved
    )
    loss_gradient = torch.autograd.grad(
        case.loss(leaf := output.detach().requires_grad_()), [leaf]
    )[0]
    run.run_backward(state, loss_gradient)
    assert not state.values.keys() - {0}
    assert not state.graphs
    assert not state.gradients
    assert not state.replays
    assert not state.parameter_gradients


def test_running_statistics_are_updated_once():
    case = make("shared", "float32")
    run = executor(case)
    assert run.recomputed
    case.step(run)
    assert int(case.model.stem[1].num_batches_tracked) == 1
    assert int(case.model.block[1].num_batches_tracked) == 3


def test_a_counting_dropout_counts_every_pass_once():
    case = make("dropout", "bfp")
    run = executor(case)
    case.step(run)
    case.step(run)
    sites = [m for m in case.model.modules() if isinstance(m, layers.Dropout)]
    assert [m.step for m in sites] == [2, 2, 2]


def test_frozen_layers_get_no_gradient():
    case = make("resnet8", "float32")
    for parameter in list(case.model.parameters())[:5]:
        parameter.requires_grad_(False)
    plain, planned = case.copy(), case.copy()
    planned.step(executor(planned))
    plain.step(plain.model)
    assert_same_outcome(plain.outcome(), planned.outcome())


def test_gradient_of_the_input():
    plain = make("nested", "float32")
    planned = plain.copy()
    gradients = []
    for one, forward in ((plain, plain.model), (planned, executor(planned))):
        one.inputs = one.inputs.clone().requires_grad_()
        if forward is not one.model:
            forward = executor(one)
        one.step(forward)
        gradients.append(one.inputs.grad)
    assert torch.equal(*gradients)


def test_evaluation_is_the_model_itself():
    case = make("dropout", "float32")
    run = executor(case)
    case.model.eval()
    assert torch.equal(run(case.inputs), case.model(case.inputs))
    case.model.train()
    with torch.no_grad():
        assert not run(case.inputs[:2]).requires_grad


def test_post_accumulate_hooks_run():
    case = make("resnet8", "float32")
    seen = []
    weight = case.model[-1].weight
    run = executor(case)
    weight.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.clone()))
    case.step(run)
    assert len(seen) == 1
    assert torch.equal(seen[0], weight.grad)


def test_another_shape_is_refused():
    case = make("resnet8", "float32")
    run = executor(case)
    with pytest.raises(InputError) as caught:
        run(case.inputs[:3])
    assert str(caught.value) == (
        "this plan is for inputs of shape [4, 3, 8, 8], found [3, 3, 8, 8]; plan again for this "
        "batch"
    )


def test_a_pass_serves_one_backward():
    case = make("resnet8", "float32")
    run = executor(case)
    loss = case.loss(run(case.inputs))
    loss.backward(retain_graph=True)
    with pytest.raises(UnsupportedError, match=r"used up by its first backward\(\)"):
        loss.backward()
    images = case.inputs.clone().requires_grad_()
    with pytest.raises(UnsupportedError, match="gradients of gradients"):
        torch.autograd.grad(run(images).sum(), [images], create_graph=True)


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


@pytest.mark.parametrize(
    ("model", "text"),
    [
        (Branches, "cannot be followed"),
        (Pair, "chunk: expected one tensor as its result, found tuple"),
        (StaleView, "its result is read after a view of it was changed in place"),
        (TwoInputs, "found a second, 'y'"),
    ],
)
def test_models_that_cannot_be_planned_say_why(model, text):
    case = Case(model(), torch.randn(4, 3, 2, 2), torch.zeros(4).long(), nn.CrossEntropyLoss())
    with pytest.raises(UnsupportedError) as caught:
        survey(case.model, case.inputs, case.loss)
    assert text in str(caught.value)
    assert "train without a plan" in str(caught.value)


def test_hooks_are_refused():
    model = nn.Sequential(conv_bn(3, 4), nn.Flatten(), nn.Linear(4 * 64, CLASSES))
    case = Case(model, torch.randn(4, 3, 8, 8), torch.zeros(4).long(), nn.CrossEntropyLoss())
    handle = model[0].register_forward_hook(lambda *_: None)
    with pytest.raises(UnsupportedError, match="module '0' has forward hooks"):
        survey(case.model, case.inputs, case.loss)
    handle.remove()
    model[2].weight.register_hook(lambda g: g)
    with pytest.raises(UnsupportedError, match=r"parameter '2.weight' has gradient hooks"):
        survey(case.model, case.inputs, case.loss)
