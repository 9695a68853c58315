"""Many steps with an optimizer under many budgets: parameters, statistics, generators."""

import hashlib

import pytest
import torch

import samebits as sb
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
    """Budgets from the smallest to everything stored; in BFP the middle one in the paired order."""
    case = make(name, numerics)
    plain = case.copy()
    expected = train(plain, plain.model, steps)
    whole = planned(case.copy(), numerics, 1 << 40)[0]
    recomputed = set()
    for at in range(count):
        budget = whole.smallest + (whole.store_all - whole.smallest) * at // (count - 1)
        one = case.copy()
        plan, forward = planned(one, numerics, budget, at == count // 2)
        recomputed.add(plan.recompute_ps)
        assert train(one, forward, steps) == expected, (budget, plan)
    assert (max(recomputed) > min(recomputed)) == (whole.smallest < whole.store_all)


def planned(case, numerics, budget, paired=False):
    """A plan, and what `train` is to call in the place of the case's model, or of its step."""
    if numerics == "float32":
        step = sb.within(
            *(case.model, case.criterion, (case.inputs, case.labels)),
            budget=budget,
            fallback="error",
        )
        case.loss = lambda loss: loss
        return step.plans[0], lambda x: step(x, case.labels)
    tape, network = survey(case.model, case.inputs, case.loss)
    plan = make_plan(network, find_device("laptop-cpu"), arch="", budget=budget)
    schedule = compile_schedule(network, plan.dropped(network), paired)
    return plan, Executor(tape, network, schedule)


@pytest.mark.parametrize(
    ("name", "numerics"), [("resnet8", "bfp"), ("dropout", "float32"), ("shared", "bfp")]
)
def test_five_steps_under_three_budgets(name, numerics):
    assert_same_runs(name, numerics, 5, 3)


@pytest.mark.slow
@pytest.mark.parametrize("numerics", ["float32", "bfp"])
@pytest.mark.parametrize("name", NAMES)
def test_a_hundred_steps_under_budgets(name, numerics):
    assert_same_runs(name, numerics, 100, 11 if numerics == "bfp" else 4)


def test_the_comparison_sees_a_difference():
    case = make("dropout", "float32")
    a, b = case.copy(), case.copy()
    assert train(a, a.model, 2, seed=1)[0] != train(b, b.model, 2, seed=2)[0]
