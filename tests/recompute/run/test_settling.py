"""When a planned pass hands gradients over, and what the survey says is kept to compute again."""

import torch
from torch import nn

from recompute_nets import CLASSES, Case
from samebits.recompute.plan.schedule import compile_schedule
from samebits.recompute.run.apply import Executor
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
