"""Models with state of their own under a plan: refused by name, or run without the plan."""

from __future__ import annotations

import copy
import ctypes
import platform
import random
import sys

import numpy as np
import pytest
import torch
from torch import nn

from recompute_nets import assert_same_outcome, make
from samebits.errors import InputError, UnsupportedError
from samebits.progress import Listener, listening
from samebits.recipes import Recomputation
from samebits.recompute.front import plan_module
from samebits.recompute.network.guards import other_generators
from samebits.recompute.plan.schedule import compile_schedule
from samebits.recompute.run.apply import Executor
from samebits.recompute.run.profile import survey
from samebits.recompute.run.proof import prove
from samebits.train import convert
from samebits.train.optim import SGD
from samebits.train.run.checkpoint import parameter_sha256

COUNT = [0]  # a global variable, which no guard sees


class Stateful(nn.Module):
    """A small network whose forward code calls `impure`, and skips a layer for odd results."""

    def __init__(self, impure):
        super().__init__()
        self.first, self.between, self.second = nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(8, 5)
        self.impure, self.count, self.history = impure, 0, []

    def forward(self, x):
        y = torch.relu(self.first(x))
        return self.second(y if self.impure(self) % 2 else self.between(y))


def counts(model):
    model.count += 1
    return model.count


def remembers(model):
    model.history.append(1)
    return len(model.history)


def counts_globally(model):
    COUNT[0] += 1
    return COUNT[0]


def planned(model):
    return plan_module(model, torch.ones(4, 6), None, Recomputation())


@pytest.mark.parametrize(
    ("impure", "words"),
    [
        (counts, "its forward code changes attribute 'count' of the model"),
        (remembers, "its forward code changes attribute 'history' of the model"),
        (lambda _: int(2 * np.random.rand()), "its forward code draws random numbers"),  # noqa: NPY002
        (lambda _: random.randrange(2), "its forward code draws random numbers"),
        (lambda _: int(2 * torch.rand(())), "forward code draws random numbers"),
        (counts_globally, "of a planned step differs from that of a plain one: the forward code"),
    ],
)
def test_forward_code_with_state_is_refused(impure, words):
    model = convert(Stateful(impure))
    random.seed(5)
    np.random.seed(5)  # noqa: NPY002
    before = other_generators(), torch.get_rng_state().tolist()
    with pytest.raises(UnsupportedError, match=words):
        planned(model)
    assert (other_generators(), torch.get_rng_state().tolist()) == before
    assert (model.count, model.history) == (0, [])
    assert all(p.grad is None for p in model.parameters())


def executor(case):
    tape, network = survey(case.model, case.inputs, case.loss)
    return Executor(tape, network, compile_schedule(network, network.choices()))


def set_attribute(model):
    model[-1].scale = 2.0


def replace_head(model):
    model[-1] = convert(nn.Linear(*reversed(model[-1].weight.shape)))


def replace_weight(model):
    model[-1].weight = copy.deepcopy(model[-1].weight)


def unfreeze(model):
    model[0][0].weight.requires_grad_(True)


def hook(model):
    model[-1].register_forward_hook(lambda *_: None)


def method(model):
    model[-1].forward = lambda x: x


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (set_attribute, "attribute 'scale' of module '"),
        (replace_head, "layer '"),
        (replace_weight, "parameter 'weight' of module '.*' \\(another one\\)"),
        (unfreeze, "parameter 'weight' of module '0.0' \\(it is trained now\\)"),
        (hook, "the hooks of module '"),
        (method, "attribute 'forward' of module '"),
    ],
)
def test_a_change_after_planning_is_refused_by_name(change, words):
    case = make("resnet8", "bfp")
    case.model[0][0].weight.requires_grad_(False)
    run = executor(case)
    case.step(run)
    change(case.model)
    with pytest.raises(UnsupportedError, match=f"as it was planned: ({words}).* has changed since"):
        case.step(run)


@pytest.mark.parametrize("change", [set_attribute, unfreeze, replace_weight])
def test_or_runs_without_the_plan_where_asked_for(change):
    case = make("resnet8", "bfp")
    case.model[0][0].weight.requires_grad_(False)
    change(case.model)
    plain = case.copy()
    plain.step(plain.model)
    case.model[0][0].weight.requires_grad_(False)
    run = executor(case)
    run.eager = True
    run.facts = {**run.facts, ("", "attribute", "gone"): 1}
    if change is unfreeze:
        change(case.model)
    case.step(run)
    assert_same_outcome(plain.outcome(), case.outcome())


class Notes(Listener):
    def __init__(self):
        self.texts = []

    def stage(self, what, total):
        pass

    def note(self, text):
        self.texts.append(text)


def trained(case, forward, change):
    """SHA-256 of the parameters after two steps, a change of the model and two more."""
    optimizer = SGD(list(case.model.parameters()), lr=0.01, momentum=0.9)
    for step in range(4):
        if step == 2:
            torch.manual_seed(3)
            change(case.model)
            optimizer = SGD(list(case.model.parameters()), lr=0.01, momentum=0.9)
        case.step(forward)
        optimizer.step()
        optimizer.zero_grad()
    return parameter_sha256(case.model.state_dict())


def freeze_statistics(model):
    """A mode that the plan's model did not have: a batch-norm frozen in evaluation mode."""
    model[0][1].eval()


@pytest.mark.parametrize(
    "change", [set_attribute, replace_head, replace_weight, unfreeze, hook, freeze_statistics]
)
def test_eager_steps_leave_the_bits_of_no_plan(change):
    case = make("resnet8", "bfp")
    case.model[0][0].weight.requires_grad_(False)
    plain = case.copy()
    expected = trained(plain, plain.model, change)
    run, notes = executor(case), Notes()
    run.eager = True
    with listening(notes):
        assert trained(case, run, change) == expected
    (note,) = notes.texts
    assert note.startswith("steps run without the plan from here on: a plan is for the ")


def test_a_right_plan_is_proved_and_leaves_no_trace():
    case = make("dropout", "bfp")
    run = executor(case)
    before = case.outcome()
    prove(run, case.inputs, case.loss)
    assert_same_outcome(before, case.outcome())


def test_a_wrong_plan_is_not_trusted(monkeypatch):
    case = make("resnet8", "bfp")
    run = executor(case)
    forward = Executor.run_forward

    def off_by_one(self, x, differentiable):
        state, output = forward(self, x, differentiable)
        output.parts[0][0].view(-1)[0] ^= 1
        return state, output

    monkeypatch.setattr(Executor, "run_forward", off_by_one)
    with pytest.raises(UnsupportedError, match="Sequential: the output of a planned step differs"):
        prove(run, case.inputs, case.loss)


def test_a_pass_that_draws_from_another_generator_is_refused(monkeypatch):
    case = make("resnet8", "bfp")
    run = executor(case)
    forward = Executor.run_forward

    for draw in (random.random, np.random.rand):

        def drawing(self, x, differentiable, draw=draw):
            draw()
            return forward(self, x, differentiable)

        monkeypatch.setattr(Executor, "run_forward", drawing)
        with pytest.raises(UnsupportedError, match="draws numbers from Python's or numpy's"):
            case.step(run)


UPWARD = {"x86_64": 0x800, "aarch64": 0x400000}.get(platform.machine())


@pytest.mark.skipif(
    UPWARD is None or sys.platform != "linux", reason="modes of this machine unknown"
)
def test_the_second_thread_rounds_to_nearest_too():
    case = make("resnet8", "bfp")
    tape, network = survey(case.model, case.inputs, case.loss)
    run = Executor(tape, network, compile_schedule(network, (), paired=True))
    case.step(run)
    _, pool = run._pool
    libm = ctypes.CDLL("libm.so.6")
    assert pool.submit(libm.fesetround, UPWARD).result() == 0  # of that thread alone
    with pytest.raises(InputError, match="expected arithmetic that rounds to nearest"):
        case.step(run)
    assert pool.submit(libm.fesetround, 0).result() == 0
    case.step(run)
