"""The optimizers' interface, their memory, and what is left in floating point (nothing)."""

from __future__ import annotations

import copy
import gc
import itertools
import random
import types

import pytest
import torch
from torch import nn

from compare import assert_same
from realisations import eager_slowly
from samebits import kernels
from samebits.errors import CheckpointError, InputError, RangeError
from samebits.spec.training import optimizer as rules
from samebits.spec.training.layers import Parameter
from samebits.spec.training.moments import value as moment
from samebits.train import (
    SGD,
    Adam,
    BFPParameter,
    BFPTensor,
    convert,
    cross_entropy,
    set_step,
    undo,
)

OPTIMIZERS = {
    "sgd": (lambda p: SGD(p, lr=0.1), 3),
    "momentum": (lambda p: SGD(p, lr=0.1, momentum=0.9, weight_decay=1e-4), 5),
    "nesterov": (lambda p: SGD(p, lr=0.1, momentum=0.9, nesterov=True), 5),
    "adam": (lambda p: Adam(p, lr=0.01), 7),
    "adamw": (lambda p: Adam(p, lr=0.01, weight_decay=0.1, decoupled=True), 7),
}


def build():
    torch.manual_seed(1)
    return convert(
        nn.Sequential(
            nn.Conv2d(3, 6, 3, padding=1, bias=False),
            nn.BatchNorm2d(6),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Dropout(0.1),
            nn.Linear(54, 5),
        )
    )


def backward(model, seed=0):
    x = torch.randn(4, 3, 6, 6, generator=torch.Generator().manual_seed(seed))
    loss = cross_entropy(model(BFPTensor.from_real(x)), torch.tensor([0, 4, 2, 1]))
    loss.backward()
    return loss


def train(model, optimizer, steps, start=0):
    for step in range(start, start + steps):
        set_step(model, 3, step, 0)
        backward(model, step)
        optimizer.step()
        optimizer.zero_grad()


def state_of(model, optimizer):
    integers = {name: v.tolist() for name, v in model.state_dict().items()}
    own = [
        {k: v.tolist() if isinstance(v, torch.Tensor) else v for k, v in optimizer.state[p].items()}
        for p in model.parameters()
    ]
    return integers, own


# --- memory -----------------------------------------------------------------------------------


def reachable(*roots):
    """Every tensor that the objects hold, however deep."""
    seen, stack, tensors = set(), list(roots), []
    while stack:
        item = stack.pop()
        if id(item) in seen or isinstance(
            item, type | types.ModuleType | types.FunctionType | types.CodeType | types.FrameType
        ):
            continue
        seen.add(id(item))
        if isinstance(item, torch.Tensor):
            tensors.append(item)
            stack += [item.grad, getattr(item, "__dict__", None)]
        stack += gc.get_referents(item)
    return tensors


def storages(tensors):
    """{address: bytes} of the tensors that have memory of their own (BFP tensors have none)."""
    plain = [t for t in tensors if not isinstance(t, BFPTensor)]
    return {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in plain}


@pytest.mark.parametrize("name", list(OPTIMIZERS))
@eager_slowly
def test_nothing_stays_in_floating_point(name, realisation):
    model = build()
    optimizer = OPTIMIZERS[name][0](model.parameters())
    gc.collect()
    gc.freeze()  # what is there already is none of gc.get_objects()
    train(model, optimizer, 2)
    backward(model, 3)  # gradients too
    statistics = {b.data_ptr() for b in model.buffers()}
    floating = [
        t
        for t in reachable(model, optimizer.state, optimizer)
        if t.is_floating_point() and not isinstance(t, BFPTensor) and t.data_ptr() not in statistics
    ]
    assert floating == []
    optimizer.zero_grad()
    gc.collect()
    left = [
        t
        for t in gc.get_objects()
        if issubclass(type(t), torch.Tensor)
        and t.is_floating_point()
        and not isinstance(t, BFPTensor)
        and t.numel() > 1
    ]
    assert left == []


@pytest.mark.parametrize("name", list(OPTIMIZERS))
def test_bytes_of_persistent_state(name, realisation):
    """3 bytes a parameter; with momentum 5; with Adam 7; 8 a tensor for its exponent. Measured."""
    make, expected = OPTIMIZERS[name]
    model = build()
    optimizer = make(model.parameters())
    train(model, optimizer, 2)
    gc.collect()
    held = storages(reachable(model, optimizer.state))
    statistics = sum(b.untyped_storage().nbytes() for b in model.buffers())
    count = sum(p.numel() for p in model.parameters())
    exponents = 8 * len(list(model.parameters()))
    assert sum(held.values()) - statistics - exponents == expected * count


def test_a_gradient_takes_no_more_than_its_parts(realisation):
    """Weight gradients are bfp32: 4 bytes an element and shard until the update."""
    model = build()
    backward(model)
    backward(model, 1)
    for parameter in model.parameters():
        sizes = storages(codes for codes, _ in parameter.grad.parts)
        assert sum(sizes.values()) == 2 * 4 * parameter.numel()


# --- interface --------------------------------------------------------------------------------


def test_parameters_must_be_bfp():
    with pytest.raises(InputError, match="parameter 0: expected a BFP parameter, found Parameter"):
        SGD(nn.Linear(2, 2).parameters(), lr=0.1)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda p: SGD(p, lr=0.1, nesterov=True), "expected momentum > 0, found 0"),
        (lambda p: SGD(p, lr=0.1, momentum=-0.5), "momentum: expected a finite number >= 0"),
        (lambda p: SGD(p, lr=0.1, weight_decay=float("nan")), "weight decay: expected a finite"),
        (lambda p: Adam(p, betas=(1.0, 0.9)), r"betas: expected numbers in \[0, 1\), found 1.0"),
        (lambda p: Adam(p, eps=0.0), "eps: expected a number > 0, found 0"),
        (lambda p: Adam(p, weight_decay=-1.0), "weight decay: expected a finite number >= 0"),
    ],
)
def test_settings_that_make_no_sense(make, message):
    with pytest.raises(InputError, match=message):
        make(build().parameters())


@pytest.mark.parametrize("lr", [-0.1, float("inf"), float("nan")])
def test_a_learning_rate_that_makes_no_sense(lr):
    model = build()
    optimizer = SGD(model.parameters(), lr=lr)
    backward(model)
    with pytest.raises(InputError, match="learning rate: expected a finite number >= 0"):
        optimizer.step()


def test_learning_rate_zero_updates_only_the_momentum(realisation):
    model = build()
    optimizer = SGD(model.parameters(), lr=0.0, momentum=0.9)
    before = [(p.codes.tolist(), p.delayed.tolist(), p.exponent) for p in model.parameters()]
    backward(model)
    optimizer.step()
    after = [(p.codes.tolist(), p.delayed.tolist(), p.exponent) for p in model.parameters()]
    assert after == before
    assert all("momentum" in optimizer.state[p] for p in model.parameters())


def test_parameters_without_a_gradient_are_left_alone():
    model = build()
    frozen = model[0].weight
    frozen.requires_grad_(False)
    before = frozen.codes.tolist(), frozen.delayed.tolist(), frozen.exponent
    train(model, SGD(model.parameters(), lr=0.1, momentum=0.9), 2)
    assert (frozen.codes.tolist(), frozen.delayed.tolist(), frozen.exponent) == before


@pytest.mark.parametrize("named", [True, False])
def test_an_overflowing_update_names_the_parameter(named):
    model = build()
    optimizer = SGD(model.parameters(), lr=1e30)
    if named:
        optimizer.name_parameters(model)
    weight = model[6].weight
    weight.grad = BFPTensor(torch.full(weight.shape, 2**30, dtype=torch.int32), 60)
    name = r"6\.weight" if named else "parameter 3"
    with pytest.raises(RangeError, match=f"parameter '{name}': the update overflows"):
        optimizer.step()


def whole_state(model, optimizer):
    """Every number that a step may change, as comparable values."""
    parameters = list(model.parameters())
    return (
        [(p.codes.tolist(), p.delayed.tolist(), p.exponent, p.largest_joint()) for p in parameters],
        {
            index: {k: v.tolist() if hasattr(v, "tolist") else v for k, v in values.items()}
            for index, p in enumerate(parameters)
            if (values := optimizer.state.get(p))
        },
    )


def failures():
    """(realisation, optimizer, steps before, parameter that fails): every pair of two of them.

    The slow set has all products.
    """
    ways = list(itertools.product((0, 2), ("native", "eager")))
    for (place, name), failing in itertools.product(enumerate(OPTIMIZERS), range(5)):
        for way, (steps, kind) in enumerate(ways):
            marks = () if way == (place + failing) % 4 else pytest.mark.slow
            yield pytest.param(kind, name, steps, failing, marks=marks)


@pytest.mark.parametrize(
    ("realisation", "optimizer_name", "steps", "failing"),
    list(failures()),
    indirect=["realisation"],
)
def test_a_step_that_fails_changes_nothing(realisation, optimizer_name, steps, failing):
    """Whichever parameter's update overflows; then a lower learning rate goes on as if it was the
    first try."""
    (model, optimizer), (twin, twin_optimizer) = (
        (made, OPTIMIZERS[optimizer_name][0]([{"params": [p]} for p in made.parameters()]))
        for made in (build(), build())
    )
    for one, its_optimizer in ((model, optimizer), (twin, twin_optimizer)):
        train(one, its_optimizer, steps)
        set_step(one, 3, steps, 0)
        backward(one, steps)
    before = whole_state(model, optimizer)
    optimizer.param_groups[failing]["lr"] = 2.0**140
    with pytest.raises(RangeError, match=f"parameter {failing}'"):
        optimizer.step()
    assert whole_state(model, optimizer) == before
    for both in (optimizer, twin_optimizer):
        for group in both.param_groups:
            group["lr"] = 0.01
        both.step()
    assert whole_state(model, optimizer) == whole_state(twin, twin_optimizer)


@pytest.mark.parametrize("optimizer_name", OPTIMIZERS)
def test_a_step_that_copies_nothing_cannot_fail(optimizer_name, monkeypatch):
    """Exponents drawn over their whole range: where a step fails, the state was kept before."""
    generator = random.Random(optimizer_name)
    kept = []
    keep = undo.keep
    monkeypatch.setattr(undo, "keep", lambda *given: kept.append(1) or keep(*given))
    outcomes = set()
    for _ in range(150):
        weight = BFPParameter(
            torch.tensor([64, -127, 3], dtype=torch.int8),
            generator.randint(-128, 127),
            torch.tensor([1 << 14, -5, -(1 << 14)], dtype=torch.int16),
        )
        optimizer = OPTIMIZERS[optimizer_name][0]([weight])
        for group in optimizer.param_groups:
            group["lr"] = 2.0 ** generator.randint(-60, 60)
        for _ in range(2):
            codes = torch.tensor([(1 << 31) - 1, -5, generator.randint(-9, 9)], dtype=torch.int32)
            weight.grad = BFPTensor(codes, generator.randint(-128, 127))
            kept.clear()
            before = whole_state(nn.ParameterList([weight]), optimizer)
            try:
                optimizer.step()
                outcomes.add(("done", bool(kept)))
            except RangeError:
                assert kept
                outcomes.add(("failed", True))
                assert whole_state(nn.ParameterList([weight]), optimizer) == before
    assert {("done", False), ("failed", True)} <= outcomes


def test_an_exponent_goes_down_to_minus_128(realisation):
    """There a weight keeps its small codes; at -127 and above it takes all their bits."""
    for exponent, after in ((-128, -128), (-127, -128), (-126, -128), (-120, -123)):
        weight = BFPParameter(
            torch.tensor([10, -3], dtype=torch.int8), exponent, torch.zeros(2, dtype=torch.int16)
        )
        optimizer = SGD([weight], lr=1.0, rounding="nearest")
        weight.grad = BFPTensor(torch.tensor([5, 0], dtype=torch.int32), exponent - 15)
        optimizer.step()
        by = exponent - after
        assert weight.exponent == after
        assert weight.codes.tolist() == [10 << by, -3 << by]
        assert weight.delayed.tolist() == [5 << by, 0]


@pytest.mark.parametrize("optimizer_name", OPTIMIZERS)
def test_moments_stay_below_the_bound_of_their_step(optimizer_name, monkeypatch):
    """A large gradient, and then hardly any: the second step's numbers are those of its moments."""
    bounds = []
    monkeypatch.setattr(undo, "fits", lambda bits: bounds.append(bits) or True)
    weight = BFPParameter.from_real(torch.tensor([1.0, -0.25]))
    optimizer = OPTIMIZERS[optimizer_name][0]([weight])
    optimizer.param_groups[0]["lr"] = 0.0
    for exponent in (30, -100):
        weight.grad = BFPTensor(
            torch.tensor([(1 << 31) - 1, -(1 << 30)], dtype=torch.int32), exponent
        )
        with kernels.use("eager"):  # where the bounds are numbers of Python
            optimizer.step()
        state = optimizer.state[weight]
        for name in {"momentum", "first", "root"} & set(state):
            codes = state[name].tolist()
            largest = max(abs(moment(code, state[f"{name}_exponent"])) for code in codes)
            assert 0 < largest < 2.0 ** bounds[-1]


def test_gradients_of_another_kind_change_nothing():
    model = build()
    optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9)
    train(model, optimizer, 1)
    backward(model)
    model[6].bias.grad = torch.zeros(5)
    before = whole_state(model, optimizer)
    with pytest.raises(InputError, match="expected BFP gradients"):
        optimizer.step()
    assert whole_state(model, optimizer) == before


def test_groups_have_their_own_settings(realisation):
    model = build()
    matrices = [p for p in model.parameters() if p.dim() > 1]
    vectors = [p for p in model.parameters() if p.dim() == 1]
    optimizer = SGD(
        [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "lr": 0.0}], lr=0.1
    )
    before = [p.delayed.tolist() for p in vectors]
    train(model, optimizer, 1)
    assert [p.delayed.tolist() for p in vectors] == before
    assert all(p.delayed.count_nonzero() for p in matrices)


def test_a_schedule_changes_the_learning_rate():
    model = build()
    optimizer = SGD(model.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    train(model, optimizer, 1)
    schedule.step()
    assert optimizer.param_groups[0]["lr"] == 0.05
    train(model, optimizer, 1)


def test_a_closure_is_called_once():
    model = build()
    optimizer = SGD(model.parameters(), lr=0.1)
    calls = []

    def closure():
        calls.append(torch.is_grad_enabled())
        return float(backward(model).detach())

    assert optimizer.step(closure) > 0
    assert calls == [True]


@pytest.mark.parametrize("name", list(OPTIMIZERS))
def test_state_round_trip(name, realisation):
    """Training continued from saved state is the training that was not interrupted."""
    make, _ = OPTIMIZERS[name]
    model, other = build(), build()
    optimizer = make(model.parameters())
    train(model, optimizer, 2)
    saved = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    train(model, optimizer, 2, 2)
    other.load_state_dict(saved[0])
    resumed = make(other.parameters())
    resumed.load_state_dict(saved[1])
    for values in resumed.state.values():
        assert not any(
            v.is_floating_point() for v in values.values() if isinstance(v, torch.Tensor)
        )
    train(other, resumed, 2, 2)
    assert state_of(other, resumed) == state_of(model, optimizer)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda s: s.update({99: s.pop(0)}),
            "optimizer state for parameter 99, which is not there",
        ),
        (
            lambda s: s[0].update(momentum=torch.zeros(3, dtype=torch.int16)),
            "found torch.int16 \\(3,\\)",
        ),
        (lambda s: s[0].update(momentum=s[0]["momentum"].float()), "found torch.float32"),
        (lambda s: s[0]["momentum"].fill_(-32768), "of 0 and magnitudes of 512 to 32767, found"),
        (lambda s: s[0]["momentum"].fill_(511), "of 0 and magnitudes of 512 to 32767, found"),
        (lambda s: s[0].update(steps=0), "'steps' of parameter 0: expected a number in .1, "),
        (lambda s: s[0].update(momentum_exponent=128), "expected a number in .-128, 127., "),
        (lambda s: s[0].pop("steps"), "expected .*momentum.*, found"),
    ],
)
def test_state_of_another_model(change, message):
    model = build()
    optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9)
    train(model, optimizer, 1)
    saved = copy.deepcopy(optimizer.state_dict())
    change(saved["state"])
    with pytest.raises(CheckpointError, match=message):
        optimizer.load_state_dict(saved)


def test_gradients_read_between_steps_do_not_change_them(realisation):
    """Reading `.grad` after the last shard gives what the optimizer uses."""
    looked, blind = build(), build()
    for model in (looked, blind):
        optimizer = SGD(model.parameters(), lr=0.3, momentum=0.9)
        for step in range(2):
            backward(model, step)
        if model is looked:
            assert all(p.grad.dequantize().isfinite().all() for p in model.parameters())
        optimizer.step()
    assert looked.state_dict().keys() == blind.state_dict().keys()
    for name, value in looked.state_dict().items():
        assert torch.equal(value, blind.state_dict()[name]), name


def test_adam_with_zero_gradients(realisation):
    """All-zero moments have the smallest exponent, and nothing is divided by zero."""
    parameter = BFPParameter.from_real(torch.tensor([1.0, -2.0]))
    optimizer = Adam([parameter], lr=0.1)
    for _ in range(2):
        parameter.grad = BFPTensor(torch.zeros(2, dtype=torch.int32), -128)
        optimizer.step()
    state = optimizer.state[parameter]
    assert (state["first"].tolist(), state["first_exponent"]) == ([0, 0], -128)
    assert (state["root"].tolist(), state["root_exponent"]) == ([0, 0], -128)
    assert parameter.dequantize().tolist() == [1.0, -2.0]


def test_reading_a_gradient_between_shards_changes_nothing() -> None:
    def trained(read: bool) -> list[torch.Tensor]:
        torch.manual_seed(0)
        model = convert(nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 4)))
        optimizer = SGD(model.parameters(), lr=0.3, momentum=0.9)
        images, labels = torch.randn(12, 12), torch.arange(12) % 4
        for _ in range(4):
            for at in (slice(0, 4), slice(4, 8), slice(8, 12)):
                (cross_entropy(model(BFPTensor.from_real(images[at])), labels[at]) / 3).backward()
                if read:
                    assert all(p.grad.codes.dtype == torch.int32 for p in model.parameters())
            optimizer.step()
            optimizer.zero_grad()
        return list(model.state_dict().values())

    for seen, unseen in zip(trained(True), trained(False), strict=True):
        assert torch.equal(seen, unseen)


def test_a_step_between_forward_and_backward_is_an_error() -> None:
    model = convert(nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4)))
    optimizer = SGD(model.parameters(), lr=0.1)
    x, labels = BFPTensor.from_real(torch.eye(4, 8)), torch.arange(4)
    first, second = cross_entropy(model(x), labels), cross_entropy(model(x), labels)
    first.backward()
    optimizer.step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        second.backward()


# --- exponents by rows ------------------------------------------------------------------------

RULES = {
    "sgd": (lambda p, **more: SGD(p, lr=0.25, **more), lambda seed: rules.SGD(0.25, seed=seed)),
    "momentum": (
        lambda p, **more: SGD(p, lr=0.1, momentum=0.9, weight_decay=1e-2, **more),
        lambda seed: rules.SGD(0.1, 0.9, 1e-2, seed=seed),
    ),
    "nesterov": (
        lambda p, **more: SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.1, **more),
        lambda seed: rules.SGD(0.1, 0.9, 0.1, True, seed=seed),
    ),
    "adam": (
        lambda p, **more: Adam(p, lr=0.5, weight_decay=0.01, **more),
        lambda seed: rules.Adam(0.5, weight_decay=0.01, seed=seed),
    ),
    "adamw": (
        lambda p, **more: Adam(p, lr=0.02, weight_decay=0.5, decoupled=True, **more),
        lambda seed: rules.Adam(0.02, weight_decay=0.5, decoupled=True, seed=seed),
    ),
}


@pytest.mark.parametrize("rounding", ["stochastic", "nearest"])
@pytest.mark.parametrize("name", list(RULES))
def test_rows_with_exponents_of_their_own(name, rounding, realisation):
    """Rows 2**-30 to 2**20 in size, one that is zero, gradients that vanish by rows: 12 steps."""
    make, rule_of = RULES[name]
    rng = torch.Generator().manual_seed(2)
    for shape in ((7, 5), (3, 2, 2, 3)):
        sizes = 2.0 ** torch.randint(-30, 20, (shape[0],), generator=rng).double()
        sizes[1] = 0.0
        start = torch.randn(shape, generator=rng).double() * sizes.view(-1, *(1 for _ in shape[1:]))
        ours = BFPParameter.from_real(start, by_rows=True)
        held = (
            ours.codes.flatten().tolist(),
            ours.delayed.flatten().tolist(),
            ours_exponents(ours),
        )
        theirs, state = Parameter(held, shape), None
        optimizer = make([ours], seed=5, rounding=rounding)
        rule = rule_of(5 if rounding == "stochastic" else None)
        for step in range(12):
            g = torch.randint(-(2**20), 2**20, shape, generator=rng)
            g[step % shape[0]] = 0
            g[(step + 1) % shape[0]] >>= 14
            e_g = -30 + step
            ours.grad = BFPTensor(g.int().contiguous(memory_format=order_of(shape)), e_g)
            optimizer.step()
            theirs, state = rule.update("w", 0, theirs, (g.flatten().tolist(), e_g), state)
            inputs = list(zip(*theirs.weight[:2], strict=True))
            assert ours_exponents(ours) == theirs.weight[2], step
            assert_same(ours.codes, theirs.weight[0], inputs)
            assert_same(ours.delayed, theirs.weight[1], inputs)
        assert len(set(theirs.weight[2])) > 1


def ours_exponents(parameter):
    return tuple(parameter.parts[0][1].flatten().tolist())


def order_of(shape):
    return torch.channels_last if len(shape) == 4 else torch.contiguous_format


def test_a_row_that_overflows_leaves_everything_as_it_was(realisation):
    weights = torch.tensor([[1.0, 2.0], [2.0**132, 1.0]], dtype=torch.float64)
    parameter = BFPParameter.from_real(weights, by_rows=True)
    before = parameter.codes.clone(), parameter.delayed.clone(), ours_exponents(parameter)
    optimizer = SGD([parameter], lr=64.0, momentum=0.9)
    parameter.grad = BFPTensor(torch.tensor([[1, 1], [2**30, 1]], dtype=torch.int32), 100)
    with pytest.raises(RangeError, match=r"^parameter 'parameter 0': the update overflows"):
        optimizer.step()
    assert torch.equal(parameter.codes, before[0])
    assert torch.equal(parameter.delayed, before[1])
    assert ours_exponents(parameter) == before[2]
    assert not optimizer.state[parameter]
