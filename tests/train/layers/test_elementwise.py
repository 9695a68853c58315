"""Dropout: which mask which call of a layer draws, and draws again."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from compare import assert_same
from samebits.errors import UnsupportedError
from samebits.recompute.plan.schedule import compile_schedule
from samebits.recompute.run.apply import Executor
from samebits.recompute.run.profile import survey
from samebits.recompute.run.proof import prove
from samebits.spec.philox import philox4x32
from samebits.train import BFPTensor, CrossEntropyLoss, convert, set_step

SEED = 7
x = BFPTensor.from_real(torch.randn(6, 8, generator=torch.Generator().manual_seed(0)).abs() + 1)
labels = torch.arange(6) % 3
criterion = CrossEntropyLoss()


def kept(y):
    """Which of 48 elements a dropout left."""
    return [bool(c) for c in y.codes.flatten().tolist()]


def mask(step, shard, call, site=0):
    """The same by the formula of training.md, section 5, for p = 1/4."""
    words = (philox4x32((i // 4, step, shard, call), (SEED, site))[i % 4] for i in range(48))
    return [word >= 1 << 30 for word in words]


def test_every_call_of_a_step_and_shard_has_its_own_mask(realisation):
    layer = convert(nn.Dropout(0.25))
    for step, shard in ((3, 0), (3, 1), (4, 0), (3, 0)):
        set_step(layer, SEED, step, shard)
        for call in range(3):
            assert_same(kept(layer(x)), mask(step, shard, call), range(48))
    assert layer.eval()(x) is x
    assert_same(kept(layer.train()(x)), mask(3, 0, 3), range(48))  # evaluation is no call


def test_the_calls_of_a_copy_go_on_where_those_of_the_original_are():
    layer = convert(nn.Dropout(0.25))
    set_step(layer, SEED, 5, 0)
    layer(x)
    for twin in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert_same(kept(twin(x)), mask(5, 0, 1), range(48))


def test_without_set_step_every_call_is_a_step():
    layer = convert(nn.Dropout(0.25))
    layer.seed = SEED
    assert [kept(layer(x)) for _ in range(2)] == [mask(1, 0, 0), mask(2, 0, 0)]


class Twice(nn.Module):
    """One dropout, called twice; `again`: what computes the layers between."""

    def __init__(self, again=None):
        super().__init__()
        self.first, self.act = nn.Linear(8, 8), nn.ReLU()
        self.drop, self.head = nn.Dropout(0.25), nn.Linear(8, 3)
        self.again = again

    def middle(self, y):
        return self.act(self.first(y))

    def forward(self, y):
        return self.head(self.drop(self.middle(self.drop(y))))


class OfFunctions(nn.Module):
    """A dropout of a layer, and three of functions, one of them for the weights of attention."""

    def __init__(self):
        super().__init__()
        self.drop = nn.Dropout(0.25)

    def forward(self, y):
        first = functional.dropout(y, 0.25, self.training)
        second = functional.dropout(y * 1, 0.25, self.training, inplace=True)
        eye = torch.eye(6) - 1  # a query for every key, which it alone sees
        third = functional.scaled_dot_product_attention(
            second, second, second, eye * 2.0**20, dropout_p=0.25 * self.training
        )
        return self.drop(y), first, second, third


def test_functions_draw_the_masks_of_one_layer_of_the_model():
    model = convert(nn.Sequential(OfFunctions()))
    for twin in (model, copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        for step in (3, 4, 3):
            set_step(twin, SEED, step, 0)
            layer, first, second, third = twin(x)
            masks = [mask(step, 0, call, 1) for call in range(2)]
            assert_same(kept(first), masks[0], range(48))
            assert_same(kept(second), masks[1], range(48))
            assert_same(kept(layer), mask(step, 0, 0), range(48))
            words = (philox4x32((i // 4, step, 0, 2), (SEED, 1))[i % 4] for i in range(36))
            seen = [word >= 1 << 30 for word in words][::7]  # the diagonal
            rows = [a and seen[at // 8] for at, a in enumerate(masks[1])]
            assert_same(kept(third), rows, range(48))
    assert model.eval()(x)[1] is x


def test_a_function_drops_in_a_model_alone():
    with pytest.raises(UnsupportedError, match=r"found p=0\.5 and no such model; call that model"):
        functional.dropout(x)
    with pytest.raises(UnsupportedError, match="no such model"):
        convert(nn.Sequential(OfFunctions()))[0](x)


class Drops(nn.Module):
    """Two layers, and a dropout of a function behind each."""

    def __init__(self):
        super().__init__()
        self.first, self.head = nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, y):
        return self.head(functional.dropout(torch.relu(self.first(functional.dropout(y))), 0.25))


def test_recomputation_draws_the_masks_of_functions_again():
    torch.manual_seed(0)
    model = convert(Drops())
    planned = copy.deepcopy(model)
    tape, network = survey(planned, x, lambda y: criterion(y, labels))
    executor = Executor(tape, network, compile_schedule(network, network.choices()))
    assert gradients(planned, executor) == gradients(model, model)


def gradients(model, forward):
    """Two steps without an update: the losses, and the gradients of both."""
    found = []
    for step in range(2):
        set_step(model, SEED, step, 0)
        loss = criterion(forward(x), labels)
        loss.backward()
        found.append(loss.item())
    return found, [(p.grad.codes.tolist(), p.grad.exponent) for p in model.parameters()]


def test_recomputation_draws_the_masks_of_both_calls_again():
    torch.manual_seed(0)
    model = convert(Twice())
    planned = copy.deepcopy(model)
    tape, network = survey(planned, x, lambda y: criterion(y, labels))
    dropped = [i for i in range(1, len(network.layers)) if i != network.output]
    schedule = compile_schedule(network, frozenset(dropped), False)
    assert [network.layers[i].kind for k, i in schedule if k == "recompute"].count("Dropout") == 2
    executor = Executor(tape, network, schedule)
    set_step(planned, SEED, 9, 0)
    prove(executor, x, lambda y: criterion(y, labels))
    assert planned.drop.calls == 0
    assert gradients(planned, executor) == gradients(model, model)
    assert planned.drop.calls == model.drop.calls == 2


class Inside(nn.Module):
    """A dropout that is called three times in one layer."""

    def __init__(self):
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(8, 2, 8, 0.25, batch_first=True)
        self.layer.dropout1 = self.layer.dropout2 = self.layer.dropout
        self.head = nn.Linear(8, 3)

    def forward(self, y):
        return self.head(self.layer(y))


@pytest.mark.parametrize("counted", [True, False])
def test_recomputation_of_a_sub_layer_with_several_calls(counted):
    torch.manual_seed(0)
    model = convert(Inside())
    planned = copy.deepcopy(model)
    tape, network = survey(planned, x, lambda y: criterion(y, labels))
    schedule = compile_schedule(network, network.choices())
    again = [network.layers[i].kind for kind, i in schedule if kind == "recompute"]
    assert again.count("Dropout") == 4
    executor = Executor(tape, network, schedule)
    if counted:
        assert gradients(planned, executor) == gradients(model, model)
        assert planned.layer.dropout.calls == model.layer.dropout.calls == 3
        return
    found = []
    for forward, own in ((executor, planned), (model, model)):
        criterion(forward(x), labels).backward()
        found.append([p.grad.codes.tolist() for p in own.parameters()])
        assert own.layer.dropout.step == 3
    assert found[0] == found[1]


class Checkpointed(Twice):
    """With a dropout of its own in a checkpointed part."""

    def part(self, y):
        return self.drop(self.act(self.first(y)))

    def forward(self, y):
        return self.head(self.again(self.part, y))


def plainly(part, y):
    return part(y)


def checkpointed(part, y):
    return checkpoint(part, y, use_reentrant=True)


def saved_nothing(part, y):
    """The other kind: a part is computed again as soon as a tensor that it saved is asked for."""
    return checkpoint(part, y, use_reentrant=False)


def twice(part, y):
    return part(checkpointed(part, y))


def taking_gradients(given):
    return given.detach().requires_grad_()


@pytest.mark.parametrize("realised", [checkpointed, saved_nothing])
def test_gradient_checkpointing_draws_the_mask_of_the_one_call_again(realised):
    torch.manual_seed(0)
    plain = convert(Checkpointed(plainly))
    model = copy.deepcopy(plain)
    model.again = realised
    found = [gradients(m, lambda y, m=m: m(taking_gradients(y))) for m in (plain, model)]
    assert found[0] == found[1]
    assert model.drop.calls == 1


@pytest.mark.parametrize(
    ("realised", "step", "found"),
    [(twice, 0, "2 calls"), (checkpointed, None, "no set_step")],
)
def test_gradient_checkpointing_of_an_unknown_mask_is_refused(realised, step, found):
    model = convert(Checkpointed(realised))
    if step is not None:
        set_step(model, SEED, step, 0)
    loss = criterion(model(taking_gradients(x)), labels)
    with pytest.raises(UnsupportedError, match=f"layer 'drop' .* found {found}, whose mask is"):
        loss.backward()


def test_a_dropout_of_nothing_may_be_computed_again():
    model = convert(Checkpointed(twice))
    model.drop.p = 0.0
    criterion(model(taking_gradients(x)), labels).backward()
    assert model.first.weight.grad is not None
