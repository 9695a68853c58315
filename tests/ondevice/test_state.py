"""A state goes from PyTorch to C and back at any step, and training goes on with the same bits."""

from __future__ import annotations

import copy

import pytest
import torch

from on_device import Device, batches, code_of, config, engine, network, state_bytes, state_of
from samebits.errors import InputError
from samebits.ondevice.state import from_bytes, to_bytes


@pytest.mark.parametrize("options", [{}, {"optimizer": "adam", "lr": 0.01}, {"momentum": 0.0}])
def test_states_move_at_any_step(tmp_path, options):
    """Two steps in PyTorch, two in C, two in PyTorch, beside six in PyTorch."""
    options = config(**options)
    run, alone = (engine(network("chain"), options) for _ in range(2))
    given = batches(6, 8)
    for step, batch in enumerate(given):
        alone.step(batch, 0.1, step)
    for step in range(2):
        run.step(given[step], 0.1, step)
    device = Device(code_of(run, options, 2), tmp_path, "-O0")
    for step in range(2, 4):
        assert device.step(*given[step], 0.1) == 0
    back = from_bytes(device.state(), device.places)
    assert back.step == 4
    run.model.load_state_dict(back.model)
    saved = copy.deepcopy(run.optimizer.state_dict())
    run.optimizer.load_state_dict({**saved, "state": back.moments})
    for step in range(4, 6):
        run.step(given[step], 0.1, step)
    assert state_bytes(run, 6, device) == state_bytes(alone, 6, device)
    assert to_bytes(back, device.places) == device.state()


def test_bytes_of_others_are_refused():
    options = config()
    run = engine(network("chain"), options)
    code = code_of(run, options)
    data = to_bytes(state_of(run, 0), code.places)
    other = code_of(run, config(seed=1))
    for bad, said in (
        (data[:-1], "expected a saved state of"),
        (b"x" + data[1:], "expected a saved state of"),
        (data[:-1] + b"\1", "found a damaged one"),
    ):
        with pytest.raises(InputError, match=said):
            from_bytes(bad, code.places)
    with pytest.raises(InputError, match="expected a state of the network"):
        from_bytes(data, other.places)
    with pytest.raises(InputError, match="expected 3 steps, as the run has, found 0"):
        to_bytes(state_of(run, 3), code.places)
    assert torch.equal(
        from_bytes(data, code.places).model["0.weight.codes"],
        run.model.state_dict()["0.weight.codes"],
    )
