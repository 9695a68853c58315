"""What a second computation sees, and what it leaves: the generators of the CPU and of GPUs."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from samebits.recompute.run.replay import Replay


@pytest.mark.parametrize("gpus", [0, 1, 2])
def test_generators_go_back_and_come_again(monkeypatch, gpus):
    """GPUs that are none: each has a state of four numbers, of which drawing takes one more."""
    states = [torch.tensor([at, 0, 0, 0], dtype=torch.uint8) for at in range(gpus)]

    def draw():
        for state in states:
            state[1] += 1
        return torch.rand(3).tolist(), [state.tolist() for state in states]

    def put(given):
        assert len(given) == gpus
        for state, value in zip(states, given, strict=True):
            state.copy_(value)

    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: gpus > 0)
    monkeypatch.setattr(torch.cuda, "get_rng_state_all", lambda: [s.clone() for s in states])
    monkeypatch.setattr(torch.cuda, "set_rng_state_all", put)
    tape = SimpleNamespace(calls=[SimpleNamespace(module=nn.Dropout())])
    replay = Replay(tape, True, 0)
    assert replay.size == torch.get_rng_state().numel() + 4 * gpus
    first = draw()
    assert draw() != first
    cpu, after = torch.get_rng_state(), [state.clone() for state in states]
    with replay:
        assert draw() == first
        draw()
    assert torch.equal(torch.get_rng_state(), cpu)
    assert all(map(torch.equal, states, after))
