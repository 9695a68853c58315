"""When a planned pass hands gradients over, and what the survey says is kept to compute again."""

import torch
from torch import nn

from recompute_nets import CLASSES, Case, assert_same_outcome
from samebits.recompute.plan.schedule import compile_schedule
from samebits.recompute.run.apply import Executor
from samebits.recompute.run.passes import owns
from samebits.recompute.run.profile import survey


class Shared(nn.Module):
    """The middle layer runs twice: its gradient is whole when the first of both has run."""

    def __init__(self):
        super().__init__()
        self.first, self.middle, self.last = (nn.Linear(4, 4) for _ in range(3))
        self.relu = nn.ReLU()

    def forward(self, x):
        y = self.middle(self.relu(self.first(x)))
        return self.last(self.middle(self.relu(y)))


def test_a_gradient_is_handed_over_after_its_last_contribution():
    """Not at the end of the pass: what is not handed over yet, hooks and optimizers wait for."""
    case = Case(Shared(), torch.randn(5, 4), torch.arange(5) % 4, nn.CrossEntropyLoss())
    tape, network = survey(case.model, case.inputs, case.loss)
    executor = Executor(tape, network, compile_schedule(network, network.choices()))
    calls = [call.name for call in tape.calls]
    assert calls[1:] == ["first", "relu", "middle", "relu#2", "middle#2", "last"]
    there = {}

    def clock(action, seconds):
        given = [n for n, p in case.model.named_parameters() if p.grad is not None]
        if action.kind == "backward":
            there[action.value] = sorted({name.partition(".")[0] for name in given})

    executor.clock = clock
    case.loss(executor(case.inputs)).backward()
    both, every = ["last", "middle"], ["first", "last", "middle"]
    assert there == {6: ["last"], 5: ["last"], 4: ["last"], 3: both, 2: both, 1: every}


class Scaled(nn.Module):
    """The first sub-layer reads a trained weight, but has no backward pass."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(4, 4)

    def forward(self, x):
        return self.head(x * self.head.weight.detach())


def test_a_weight_whose_first_reader_has_no_gradient_gets_its_own():
    torch.manual_seed(0)
    case = Case(Scaled(), torch.randn(4, 4), torch.arange(4), nn.CrossEntropyLoss())
    plain, planned = case.copy(), case.copy()
    tape, network = survey(planned.model, planned.inputs, planned.loss)
    assert [call.kind for call in tape.calls[1:]] == ["detach", "mul", "Linear"]
    planned.step(Executor(tape, network, compile_schedule(network, ())))
    plain.step(plain.model)
    assert_same_outcome(plain.outcome(), planned.outcome())


class Shifted(nn.Module):
    """The gradient of a sum is that of both of its terms: one tensor for `bias` and for what came
    before it."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 4)
        self.bias = nn.Parameter(torch.zeros(5, 4))

    def forward(self, x):
        return self.last(self.first(x) + self.bias)


def test_a_hook_that_changes_a_gradient_in_place_changes_no_other():
    """As optimizers do that step in the backward pass."""
    torch.manual_seed(0)
    case = Case(Shifted(), torch.randn(5, 4), torch.arange(5) % 4, nn.CrossEntropyLoss())
    plain, planned = case.copy(), case.copy()
    tape, network = survey(planned.model, planned.inputs, planned.loss)
    run = Executor(tape, network, compile_schedule(network, network.choices()))
    seen = []
    for one, forward in ((plain, plain.model), (planned, run)):
        found = {}
        for name, parameter in one.model.named_parameters():

            def hook(p, name=name, found=found):
                found[name] = p.grad.clone()
                p.grad.zero_()

            parameter.register_post_accumulate_grad_hook(hook)
        one.step(forward)
        seen.append(found)
    expected, found = seen
    assert expected.keys() == found.keys()
    assert len(found) == 5
    wrong = [name for name, a in expected.items() if not torch.equal(a, found[name])]
    assert not wrong, f"{len(wrong)} of {len(found)} differ, first: {wrong[:5]}"
    assert all(bool(gradient.any()) for gradient in found.values())


def test_a_gradient_owns_a_storage_that_holds_nothing_else():
    arrived, gradient = torch.ones(6), torch.ones(2, 3)
    assert owns(gradient, arrived)
    assert owns(gradient.T, arrived)
    assert not owns(arrived, arrived)
    assert not owns(arrived.view(2, 3), arrived)
    assert not owns(gradient[1], arrived)
    assert not owns(gradient[:, 0], arrived)
    assert not owns(torch.ones(1).expand(6), arrived)


def test_the_state_of_batch_norms_and_of_dropout():
    model = nn.Sequential(nn.Conv2d(3, 5, 3), nn.BatchNorm2d(5), nn.ReLU(), nn.Dropout(0.5))
    model = nn.Sequential(*model, nn.Flatten(), nn.Linear(5 * 36, CLASSES))
    case = Case(model, torch.randn(4, 3, 8, 8), torch.arange(4) % CLASSES, nn.CrossEntropyLoss())
    _, network = survey(case.model, case.inputs, case.loss)
    state = {layer.kind: layer.state for layer in network.layers}
    generator = torch.get_rng_state().untyped_storage().nbytes()
    assert state["Conv2d"] == state["ReLU"] == state["Linear"] == 0
    assert state["Dropout"] == generator
    # Its output follows from its input and from what its backward pass keeps.
    assert [layer.kind for layer in network.layers if layer.statistics] == ["BatchNorm2d"]
    assert state["BatchNorm2d"] == 0
