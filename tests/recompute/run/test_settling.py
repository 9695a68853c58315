"""When a planned pass hands gradients over."""

import torch
from torch import nn

from recompute_nets import Case
from samebits.recompute.plan.schedule import compile_schedule
from samebits.recompute.run.apply import Executor
from samebits.recompute.run.profile import survey
from samebits.train import BFPTensor, CrossEntropyLoss, convert


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
    x = BFPTensor.from_real(torch.randn(5, 4))
    case = Case(convert(Shared()), x, torch.arange(5) % 4, CrossEntropyLoss())
    tape, network = survey(case.model, case.inputs, case.loss)
    executor = Executor(tape, network, compile_schedule(network, network.choices()))
    calls = [call.name for call in tape.calls]
    assert calls[1:] == ["first", "middle", "middle#2", "last"]
    there = {}

    def clock(action, seconds):
        given = [n for n, p in case.model.named_parameters() if p.grad is not None]
        if action.kind == "backward":
            there[action.value] = sorted({name.partition(".")[0] for name in given})

    executor.clock = clock
    case.loss(executor(case.inputs)).backward()
    both, every = ["last", "middle"], ["first", "last", "middle"]
    assert there == {4: ["last"], 3: ["last"], 2: both, 1: every}
