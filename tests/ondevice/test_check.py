"""Where the C of a network parts from PyTorch, or from the same C elsewhere, is named."""

from __future__ import annotations

from dataclasses import replace

import pytest

from on_device import batches, code_of, config, engine, network
from samebits.codegen.run.targets import TARGETS
from samebits.errors import InputError
from samebits.ondevice.check import (
    StepTrace,
    parting_instruction,
    parting_tensor,
    step_program,
    torch_steps,
)


@pytest.fixture(scope="module")
def programs(tmp_path_factory):
    """The C of a network, and the same with a momentum that is wrong from its first step on."""
    options = config()
    run = engine(network("dropout"), options)
    code = code_of(run, options)
    name = "samebits/train_momentum.h"
    text = code.files[name].replace(
        b"rounded10(size, n, bits)", b"rounded10(size, n, bits ^ 0x8000)"
    )
    assert text != code.files[name]
    wrong = replace(code, files={**code.files, name: text})
    home = tmp_path_factory.mktemp("c")
    built = [
        step_program(own, TARGETS["c"], home / folder)
        for own, folder in ((code, "good"), (wrong, "bad"))
    ]
    return run, *built


def test_the_instruction_and_the_tensor_are_named(programs):
    run, good, bad = programs
    given, rates = batches(2, 8), [0.1, 0.1]
    wanted, state = torch_steps(run, good.code, 0, given, rates)
    found, same = good.steps(given, rates)
    assert (found, same) == (wanted, state)
    assert isinstance(found[0], StepTrace)
    said = parting_tensor(good.code, bad.steps(given, rates)[1], state)
    assert said == "1.weight: delayed update"
    assert parting_instruction(good, good, given[:1], rates[:1]) is None
    said = parting_instruction(good, bad, given[:1], rates[:1])
    assert said.startswith("instruction ")
    assert "layer '7' (Linear): samebits_train_bias_step, 7.bias: " in said
    assert said.endswith((": momentum", ": delayed update"))


def test_a_step_that_c_refuses_is_named(programs):
    images, labels = batches(1, 8)[0]
    with pytest.raises(InputError, match="step 1: expected samples that C trains on"):
        programs[1].steps([(images, labels), (images, labels + 10)], [0.1, 0.1])
