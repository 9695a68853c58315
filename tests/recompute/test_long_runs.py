"""Many steps with an optimizer under many budgets: parameters, statistics, generators."""

import hashlib

import pytest
import torch

from recompute_nets import Case, make
from samebits.recompute.plan.cost import find_device
from samebits.recompute.plan.planner import make_plan
from samebits.recompute.plan.schedule import compile_schedule
from samebits.recompute.run.apply import Executor
from samebits.recompute.run.profile import survey
from samebits.train.layers import set_step
from samebits.train.optim import SGD
from samebits.train.run.checkpoint import parameter_sha256
from samebits.train.tensor import BFPTensor

NAMES = ("resnet8", "resnet18", "mobilenetv2", "dropout", "shared")


def train(case: Case, forward, steps, seed=11):
    """SHA-256 of parameters and running statistics, of the generator, of all losses."""
    numerics = "bfp" if isinstance(case.inputs, BFPTensor) else "float32"
    kind = SGD if numerics == "bfp" else torch.optim.SGD
    optimizer = kind(list(case.model.parameters()), lr=0.002, momentum=0.9, weight_decay=1e-3)
    torch.manual_seed(seed)
    case.model.train()
    losses = []
    for step in range(steps):
        set_step(case.model, seed=seed, step=step, shard=0)
        losses.append(float(case.step(forward)))
        optimizer.step()
        optimizer.zero_grad()
    assert len(set(losses)) > 1
    generator = hashlib.sha256(torch.get_rng_state().numpy().tobytes()).hexdigest()
    return parameter_sha256(case.model.state_dict()), generator, losses


def assert_same_runs(name, numerics, steps, count):
    """Budgets from the smallest to everything stored, the middle one in the paired order."""
    case = make(name, numerics)
    plain = case.copy()
    expected = train(plain, plain.model, steps)
    device = find_device("laptop-cpu")
    budgets = None
    recomputed = set()
    for at in range(count):
        planned = case.copy()
        tape, network = survey(planned.model, planned.inputs, planned.loss)
        if budgets is None:
            base = make_plan(network, device, arch=name, numerics=numerics, budget=1 << 40)
            budgets = [
                base.smallest + (base.store_all - base.smallest) * i // (count - 1)
                for i in range(count)
            ]
        plan = make_plan(network, device, arch=name, numerics=numerics, budget=budgets[at])
        dropped, paired = plan.dropped(network), at == count // 2
        schedule = compile_schedule(network, dropped, paired)
        recomputed.add(sum(kind == "recompute" for kind, _ in schedule))
        found = train(planned, Executor(tape, network, schedule), steps)
        assert found == expected, (budgets[at], dropped, paired)
    assert max(recomputed) > min(recomputed)


@pytest.mark.parametrize(
    ("name", "numerics"), [("resnet8", "bfp"), ("dropout", "float32"), ("shared", "bfp")]
)
def test_five_steps_under_three_budgets(name, numerics):
    assert_same_runs(name, numerics, 5, 3)


@pytest.mark.slow
@pytest.mark.parametrize("numerics", ["float32", "bfp"])
@pytest.mark.parametrize("name", NAMES)
def test_a_hundred_steps_under_eleven_budgets(name, numerics):
    assert_same_runs(name, numerics, 100, 11)


def test_the_comparison_sees_a_difference():
    case = make("dropout", "float32")
    a, b = case.copy(), case.copy()
    assert train(a, a.model, 2, seed=1)[0] != train(b, b.model, 2, seed=2)[0]
