"""Networks that are hard to recompute, captured: the bits of eager steps under small plans."""

import copy

import pytest
import torch
from torch import nn

import samebits as sb
from recompute_nets import CLASSES, NETS, assert_same_outcome, make
from samebits.errors import UnsupportedError
from samebits.progress import Listener, listening
from samebits.recompute.run.memory import step_peak
from samebits.train.run.trace import Recorder

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
QUICK = ("in place",)
NAMES = [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in NETS]


@pytest.fixture(autouse=True)
def forgotten():
    yield
    torch._dynamo.reset()


def planned(case, budget):
    """A step that fails rather than runs eagerly."""
    batch = (case.inputs, case.labels)
    return sb.within(case.model, case.criterion, batch, budget=budget, fallback="error")


def two_steps(case, call):
    """Two: the second pass adds to the gradients of the first, as accumulation does."""
    torch.manual_seed(3)
    losses = []
    for _ in range(2):
        loss = call(case.inputs, case.labels)
        loss.backward()
        losses.append(loss.detach())
    return losses, case.outcome()


@pytest.mark.parametrize("name", NAMES)
def test_plans_from_the_least_to_all_have_the_bits_of_eager(name):
    """Statistics move once, dropout draws once, hooks are heard once; peaks are as predicted."""
    case = make(name, "float32", batch=16)
    plain = case.copy()
    losses, outcome = two_steps(plain, lambda x, y: plain.criterion(plain.model(x), y))
    whole = planned(case.copy(), "100%").plans[0]
    for budget in dict.fromkeys((whole.smallest, (whole.smallest + whole.store_all) // 2)):
        one = case.copy()
        step = planned(one, budget)
        found, left = two_steps(one, step)
        assert losses == found
        assert_same_outcome(outcome, left)
        one.model.zero_grad()
        measured = step_peak(lambda s=step, c=one: s(c.inputs, c.labels).backward())
        assert measured <= step.plans[0].peak <= budget


class Sums(nn.Module):
    """Gradients that are one tensor for several: of two parameters, and of a value before them."""

    def __init__(self):
        super().__init__()
        self.base, self.delta = (nn.Parameter(torch.full((12,), v)) for v in (0.5, 0.25))
        self.bias = nn.Parameter(torch.linspace(-1, 1, 48).view(4, 12))
        self.head = nn.Linear(12, CLASSES)

    def forward(self, x):
        return self.head(x.flatten(1) * (self.base + self.delta) + self.bias)


def test_a_hook_that_changes_a_gradient_in_place_changes_no_other():
    """As optimizers do that step in the backward pass. The proof calls no hook."""
    torch.manual_seed(0)
    seen, x, labels = [], torch.randn(4, 3, 2, 2), torch.zeros(4).long()
    model, loss = Sums(), nn.CrossEntropyLoss()
    for one in (copy.deepcopy(model), model):
        found = {}
        for name, parameter in one.named_parameters():

            def hook(p, name=name, found=found):
                assert name not in found
                found[name] = p.grad.clone()
                p.grad.zero_()

            parameter.register_post_accumulate_grad_hook(hook)
        call = lambda x, y, one=one: loss(one(x), y)  # noqa: E731
        if one is model:
            call = sb.within(one, loss, (x, labels), fallback="error")
        call(x, labels).backward()
        seen.append(found)
    assert seen[0].keys() == seen[1].keys()
    assert all(torch.equal(seen[0][name], seen[1][name]) for name in seen[0])


class Stateful(nn.Module):
    """Scales by what `impure` gives."""

    def __init__(self, impure):
        super().__init__()
        self.first, self.second = nn.Linear(6, 8), nn.Linear(8, 5)
        self.impure, self.count = impure, 0

    def forward(self, x):
        return self.second(torch.relu(self.first(x)) * self.impure(self))


def counts(model):
    model.count += 1
    return model.count


COUNT = [0]  # a global variable


def counts_globally(model):
    COUNT[0] += 1
    return COUNT[0]


def test_a_state_of_its_own_is_followed_for_a_step_and_then_named():
    model, x = Stateful(counts), torch.ones(4, 6)
    plain = copy.deepcopy(model)
    step = sb.within(model, torch.sum, (x,), fallback="error")
    assert model.count == 0
    assert torch.equal(step(x), plain(x).sum())
    words = "Stateful: its forward code changes attribute 'count' of the model in every step"
    with pytest.raises(UnsupportedError, match=words):
        step(x)
    assert model.count == 1


def test_a_state_outside_of_the_model_is_found_by_the_proof():
    with pytest.raises(UnsupportedError, match="the loss of a planned step differs from that of"):
        sb.within(Stateful(counts_globally), torch.sum, (torch.ones(4, 6),), fallback="error")


def test_a_model_that_is_changed_is_planned_again():
    case = make("in place", "float32")
    step = planned(case, "100%")
    case.model.head = nn.Linear(8, CLASSES)
    case.model.stem[0].weight.requires_grad_(False)
    plain = case.copy()
    losses, outcome = two_steps(plain, lambda x, y: plain.criterion(plain.model(x), y))
    assert two_steps(case, step)[0] == losses
    assert_same_outcome(outcome, case.outcome())
    assert len(step.plans) == 2


class Notes(Listener):
    def __init__(self):
        self.texts = []

    def note(self, text):
        self.texts.append(text)


def test_a_traced_step_says_that_it_has_no_plan():
    case, notes, found = make("in place", "float32"), Notes(), []
    step = planned(case, "100%")
    recorder = Recorder(case.model)
    with listening(notes):
        for call in (lambda x, y: case.criterion(case.model(x), y), step, step):
            torch.manual_seed(3)
            with recorder.forward_pass():
                loss = call(case.inputs, case.labels)
            loss.backward()
            recorder.shard_ends(loss)
            found.append(recorder.take())
    assert len({tuple(hashes.flatten().tolist()) for hashes in found}) == 1
    assert notes.texts == [
        "steps run without the plan while they are traced: a trace hears modules"
    ]
