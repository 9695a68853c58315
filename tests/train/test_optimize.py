"""One call for the step of all parameters: the same bits as one parameter after the other."""

from __future__ import annotations

import copy
import itertools
import random
import sys
from collections.abc import Iterator

import pytest
import torch

from samebits import kernels
from samebits.errors import InputError, RangeError
from samebits.kernels import library
from samebits.kernels.optimize import GradientCells, StepOptions
from samebits.spec.formats import Q32
from samebits.train import SGD, Adam, BFPParameter, BFPTensor, undo
from samebits.train.value import BFPValue

SHAPES = [(5,), (4, 3), (3, 2, 3, 3), (1,)]
LARGE = (130, 130)  # of which threads take shares
ROUTES = ("one call", "one by one", "eager")


@pytest.fixture(autouse=True)
def native():
    if kernels.realisation() != "native":
        pytest.skip("the kernels in use are not native")


def weights(seed: int, by_rows: bool = False, large: bool = False) -> list[BFPParameter]:
    rng = torch.Generator().manual_seed(seed)
    shapes = [*SHAPES, LARGE] if large else SHAPES
    made = [torch.randn(shape, generator=rng).double() for shape in shapes]
    return [
        BFPParameter.from_real(v * 2.0 ** (3 * i - 6), by_rows=by_rows and i in (1, 2))
        for i, v in enumerate(made)
    ]


def gradient(shape: tuple[int, ...], rng: random.Random, reach: int) -> BFPValue | None:
    """Some parts of some widths, known and unknown bounds, zeros, and what cancels."""
    if rng.random() < 0.1:
        return None
    torch.manual_seed(rng.randrange(1 << 30))
    parts, bounds = [], []
    for _ in range(rng.choice((1, 1, 2, 2, 3, 4))):
        kind = rng.choice((torch.int8, torch.int16, torch.int32, torch.int32, torch.int32))
        most = {torch.int8: 127, torch.int16: 32639, torch.int32: Q32}[kind]
        high = min(most, 1 << rng.choice((rng.randrange(1, 31), 31)))
        codes = torch.randint(-high, high + 1, shape).to(kind)
        if rng.random() < 0.1:
            codes.zero_()
        if len(shape) == 4 and rng.random() < 0.8:
            codes = codes.contiguous(memory_format=torch.channels_last)
        known = rng.random() < 0.6
        parts.append((codes, rng.randint(-reach, reach) - high.bit_length()))
        bounds.append(kernels.of(codes).largest_of(codes) if known else None)
    if rng.random() < 0.2 and parts[0][0].dtype == torch.int32:  # nothing is left
        parts, bounds = [parts[0], (-parts[0][0], parts[0][1])], [bounds[0]] * 2
    return BFPValue.of_parts(tuple(parts), tuple(bounds))


def held(tensor: torch.Tensor) -> tuple[torch.dtype, torch.Size, bytes]:
    """The bits of a tensor, in the order of its axes."""
    return tensor.dtype, tensor.shape, tensor.numpy().tobytes()


def whole(parameters, optimizer) -> list:
    """All that a step may change, as comparable values."""
    found = []
    for p in parameters:
        state = optimizer.state.get(p) or {}
        own = {k: held(v) if isinstance(v, torch.Tensor) else v for k, v in state.items()}
        found.append((held(p.codes), held(p.delayed), held(p.exponent_cell), own))
    return found


def in_turn(route: str, monkeypatch) -> None:
    """Whatever follows goes a route."""
    if route != "one call":
        monkeypatch.setattr(kernels, "enrols", lambda *_: False)


OPTIONS = [
    (kind, {"weight_decay": decay, "rounding": rounding, **own})
    for decay, rounding in itertools.product((0.0, 1e-2), ("stochastic", "nearest"))
    for kind, own in [
        (SGD, {"momentum": 0.0}),
        (SGD, {"momentum": 0.9}),
        (SGD, {"momentum": 0.9, "nesterov": True}),
        (Adam, {"decoupled": False}),
        (Adam, {"decoupled": True, "betas": (0.0, 0.5), "eps": 1e-3}),
    ]
]


@pytest.mark.parametrize(
    ("threads", "count"),
    [(1, 8), (2, 3), *(pytest.param(*p, marks=pytest.mark.slow) for p in ((1, 20), (2, 6)))],
)
@pytest.mark.parametrize(("kind", "options"), OPTIONS)
def test_every_route_gives_the_same_bits(kind, options, threads, count, monkeypatch):
    """Drawn sequences of steps; between them rates, other options and weights change."""
    seed = str((kind.__name__, sorted(options.items())))

    def sequence(route: str) -> Iterator[list]:
        rng = random.Random(seed)
        parameters = weights(rng.randrange(100), rng.random() < 0.3, threads > 1)
        groups = [{"params": parameters[:2]}, {"params": parameters[2:]}]
        optimizer = kind(groups, lr=0.1, seed=7, **options)
        for _ in range(count):
            for group in optimizer.param_groups:
                group["lr"] = rng.choice((0.0, 2.0 ** rng.randint(-20, 3)))
                if kind is SGD and not options.get("nesterov") and rng.random() < 0.3:
                    group["momentum"] = rng.choice((0.0, 0.5, 0.9))
            reach = rng.choice((0, 6, 6, 25))
            for p in parameters:
                value = gradient(p.shape, rng, reach)
                p.grad = None if value is None else BFPTensor.of(value)
            if rng.random() < 0.2:
                with torch.no_grad():
                    parameters[0].codes.fill_(rng.randint(-127, 127))
            if all(p.grad is None for p in parameters):
                continue
            optimizer.step()
            yield whole(parameters, optimizer)

    def states(route: str) -> list:
        threads_before = torch.get_num_threads()
        torch.set_num_threads(threads)
        try:
            with monkeypatch.context() as patch, kernels.use(KERNELS[route]):
                in_turn(route, patch)
                return list(sequence(route))
        finally:
            torch.set_num_threads(threads_before)

    first, *others = (states(route) for route in ROUTES)
    for route, other in zip(ROUTES[1:], others, strict=True):
        for step, (a, b) in enumerate(zip(first, other, strict=True)):
            assert a == b, f"{route}, step {step}"


KERNELS = {"one call": "native", "one by one": "native", "eager": "eager"}


# --- whether a step surely fits ---------------------------------------------------------------


@pytest.mark.parametrize(("kind", "options"), OPTIONS)
def test_what_surely_fits_is_what_python_says(kind, options, monkeypatch):
    """Exponents drawn over their whole range, and beyond it those of gradients."""
    rng = random.Random(str(sorted(options)))
    kept = []
    keep = undo.keep
    monkeypatch.setattr(undo, "keep", lambda *given: kept.append(1) or keep(*given))
    outcomes = set()
    for _ in range(150):
        parameter = BFPParameter(
            torch.tensor([64, -127, 3], dtype=torch.int8),
            rng.randint(-128, 110),
            torch.tensor([1 << 14, -5, -(1 << 14)], dtype=torch.int16),
        )
        optimizer = kind([parameter], lr=2.0 ** rng.randint(-60, 60), **options)
        for _ in range(3):
            count, high = rng.choice((1, 2, 3)), rng.choice((40, 127))
            codes = torch.tensor([(1 << 30) - 1, -5, rng.randint(-9, 9)], dtype=torch.int32)
            value = BFPValue.of_parts(
                tuple((codes, rng.randint(-128, high)) for _ in range(count)), (None,) * count
            )
            parameter.grad = BFPTensor.of(value)
            change = optimizer._change(0, [value])
            expected = optimizer._surely_fits(parameter, change.gradient, change.group)
            kept.clear()
            try:
                optimizer.step()
            except RangeError:
                assert not expected
            assert bool(kept) != expected
            outcomes.add(expected)
    assert outcomes == {False, True}


def test_gradients_below_what_binary64_holds_are_left_to_python():
    """Adam's numbers are binary64: the least exponent of a part decides, not the largest."""
    found = []
    for route in ("native", "eager"):
        parameter = BFPParameter.from_real(torch.tensor([1.0, -2.0]))
        optimizer = Adam([parameter], lr=0.1)
        tiny = torch.tensor([1 << 30, -(1 << 29)], dtype=torch.int32)
        parts = ((torch.zeros(2, dtype=torch.int32), 0), (tiny, -1000))
        with kernels.use(route):
            for _ in range(2):
                parameter.grad = BFPTensor.of(BFPValue.of_parts(parts, (0, None)))
                optimizer.step()
        found.append(whole([parameter], optimizer))
    assert found[0] == found[1]


def mixed(lr: float = 0.1) -> tuple[list[BFPParameter], SGD]:
    """Parameters of which some have exponents by rows, with gradients, after a step."""
    parameters = weights(1, by_rows=True)
    optimizer = SGD([{"params": [p]} for p in parameters], lr=lr, momentum=0.9)
    rng = random.Random(3)
    for _ in range(2):
        give(parameters, rng)
        optimizer.step()
    give(parameters, rng)
    return parameters, optimizer


def give(parameters: list[BFPParameter], rng: random.Random) -> None:
    for p in parameters:
        value = None
        while value is None:
            value = gradient(p.shape, rng, 4)
        p.grad = BFPTensor.of(value)


@pytest.mark.parametrize("failing", range(len(SHAPES)))
def test_a_step_of_both_kinds_that_fails_changes_nothing(failing):
    parameters, optimizer = mixed()
    before = whole(parameters, optimizer)
    optimizer.param_groups[failing]["lr"] = 2.0**140
    with pytest.raises(RangeError, match=f"^parameter 'parameter {failing}': the update overflows"):
        optimizer.step()
    assert whole(parameters, optimizer) == before
    optimizer.param_groups[failing]["lr"] = 0.1
    twins, twin = mixed()
    twin.step()
    optimizer.step()
    assert whole(parameters, optimizer) == whole(twins, twin)


def test_a_step_without_memory_changes_nothing(monkeypatch):
    parameters, optimizer = mixed()
    before = whole(parameters, optimizer)
    native = kernels.of(parameters[0].codes)
    with monkeypatch.context() as patch:
        patch.setattr(native._c, "samebits_optimize", lambda *_: 2)
        with pytest.raises(MemoryError, match="no memory for the directions"):
            optimizer.step()
    assert whole(parameters, optimizer) == before


# --- what others change between steps ---------------------------------------------------------


def moved(v: torch.Tensor) -> None:
    """Other memory for a tensor, as when processes are to share it."""
    v.set_(v.clone().untyped_storage(), 0, v.shape, v.stride())


CHANGES = {
    "nothing": lambda parameters, optimizer: None,
    "the state is replaced": lambda parameters, optimizer: optimizer.state.update(
        {p: dict(optimizer.state[p]) for p in parameters}
    ),
    "the state is saved and loaded": lambda parameters, optimizer: optimizer.load_state_dict(
        copy.deepcopy(optimizer.state_dict())
    ),
    "a moment is another tensor": lambda parameters, optimizer: optimizer.state[
        parameters[0]
    ].update([("first", optimizer.state[parameters[0]]["first"].clone())]),
    "memory moves": lambda parameters, optimizer: [
        moved(v) for p in parameters for v in (p.codes, p.delayed, p.exponent_cell)
    ],
    "moments move": lambda parameters, optimizer: [
        moved(optimizer.state[p][name]) for p in parameters for name in ("first", "root")
    ],
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_lies_elsewhere_is_found(change):
    def trained(route: str) -> list:
        parameters = weights(5)
        optimizer = Adam(parameters, lr=0.01)
        rng = random.Random(5)
        with kernels.use(route):
            for _ in range(4):
                give(parameters, rng)
                optimizer.step()
                with torch.no_grad():
                    CHANGES[change](parameters, optimizer)
        return whole(parameters, optimizer)

    assert trained("native") == trained("eager")


def test_a_state_that_is_cleared_begins_again():
    parameters = weights(5)
    optimizer = Adam(parameters, lr=0.0)
    give(parameters, random.Random(5))
    optimizer.step()
    first = whole(parameters, optimizer)
    optimizer.step()
    assert whole(parameters, optimizer) != first
    optimizer.state.clear()
    optimizer.step()
    assert whole(parameters, optimizer) == first


def test_groups_may_come_later():
    def trained(route: str) -> list:
        parameters, rng = weights(6), random.Random(6)
        optimizer = SGD(parameters[:2], lr=0.1, momentum=0.9)
        with kernels.use(route):
            for _ in range(2):
                give(parameters, rng)
                optimizer.step()
            optimizer.add_param_group({"params": parameters[2:], "lr": 0.01, "momentum": 0.0})
            for _ in range(2):
                give(parameters, rng)
                optimizer.step()
        return whole(parameters, optimizer)

    assert trained("native") == trained("eager")


@pytest.mark.filterwarnings("ignore:optimizer contains a parameter group with duplicate")
def test_a_parameter_that_is_there_twice_is_updated_twice():
    def trained(route: str) -> list:
        parameters = weights(7)[:2]
        optimizer = SGD([*parameters, parameters[0]], lr=0.1, momentum=0.9)
        rng = random.Random(7)
        with kernels.use(route):
            for _ in range(2):
                give(parameters, rng)
                optimizer.step()
        return whole(parameters, optimizer)

    assert trained("native") == trained("eager")


def test_realisations_take_turns():
    def trained(routes: tuple[str, ...]) -> list:
        parameters, rng = weights(8), random.Random(8)
        optimizer = Adam(parameters, lr=0.01)
        for route in routes:
            give(parameters, rng)
            with kernels.use(route):
                optimizer.step()
        return whole(parameters, optimizer)

    assert trained(("native", "eager", "native", "eager")) == trained(("eager",) * 4)


def test_versions_count_steps_that_write():
    """What a backward pass or a graph holds is known to be old; without a rate nothing is."""
    parameters = weights(9)
    optimizer = SGD([{"params": [p]} for p in parameters], lr=0.1, momentum=0.9)
    optimizer.param_groups[1]["lr"] = 0.0
    give(parameters, random.Random(9))
    before = [p.value.versions() for p in parameters]
    optimizer.step()
    after = [p.value.versions() for p in parameters]
    pairs = zip(before, after, strict=True)
    grown = [tuple(b - a for a, b in zip(*pair, strict=True)) for pair in pairs]
    assert grown == [(1, 1, 1), (0, 0, 0), (1, 1, 1), (1, 1, 1)]
    for p in parameters:
        if (largest := p.largest_joint()) is not None:
            assert largest == int(p.joint()[0].abs().max())
    assert parameters[1].largest_joint() is None
    with torch.no_grad():
        parameters[0].codes.fill_(1)
    assert parameters[0].largest_joint() is None


# --- a step by gradients that always lie at the same places -----------------------------------


def cells(parameters: list[BFPParameter]) -> list[GradientCells | None]:
    """Places of gradients with two parts each, none of the last parameter."""
    found = []
    for p in parameters[:-1]:
        codes = [torch.zeros_like(p.codes, dtype=kind) for kind in (torch.int32, torch.int16)]
        exponents = (torch.tensor(0), torch.tensor(0))
        parts = tuple(zip(codes, exponents, strict=True))
        found.append(GradientCells(parts, (torch.tensor(-1), None)))
    return [*found, None]


@pytest.mark.parametrize("reach", [5, 60])
@pytest.mark.parametrize("by_rows", [False, True])
@pytest.mark.parametrize("kind", [SGD, Adam])
def test_a_prepared_step_is_a_step(kind, by_rows, reach):
    """Numbers in cells change; where they are large, everything is kept first."""
    ours, theirs = weights(2, by_rows), weights(2, by_rows)
    mine, other = kind(ours, lr=0.01), kind(theirs, lr=0.01)
    given = cells(ours)
    step = mine.prepared(given)
    rng = torch.Generator().manual_seed(reach)
    for index in range(5):
        mine.param_groups[0]["lr"] = other.param_groups[0]["lr"] = 0.01 / (index + 1)
        for p, gradient in zip(theirs, given, strict=True):
            if gradient is None:
                continue
            for codes, exponent in gradient.parts:
                high = 30000 if codes.dtype == torch.int16 else 1 << 30
                codes.copy_(torch.randint(-high, high, codes.shape, generator=rng))
                exponent.fill_(int(torch.randint(-reach, reach, (), generator=rng)) - 35)
            largest = int(gradient.parts[0][0].abs().max())
            gradient.bounds[0].fill_(largest if index % 2 else -1)
            parts = tuple((codes.clone(), int(e)) for codes, e in gradient.parts)
            p.grad = BFPTensor.of(BFPValue.of_parts(parts, (largest if index % 2 else None, None)))
        step()
        other.step()
        assert whole(ours, mine) == whole(theirs, other)
    assert not mine.state.get(ours[-1])


def test_a_prepared_step_that_fails_changes_nothing():
    parameters = weights(2)
    optimizer = SGD(parameters, lr=1.0, momentum=0.9)
    given = cells(parameters)
    given[1].parts[0][0].fill_(1 << 30)
    given[1].parts[0][1].fill_(110)
    before = whole(parameters, optimizer)
    step = optimizer.prepared(given)
    with pytest.raises(RangeError, match=r"^parameter 'parameter 1': the exponent overflows"):
        step()
    assert whole(parameters, optimizer) == before
    given[1].parts[0][1].fill_(-40)
    step()
    assert whole(parameters, optimizer) != before


def test_gradients_that_cannot_stay_are_refused():
    """A copy in another order would be old in the next step."""
    parameter = weights(2)[2]
    codes = torch.zeros(parameter.shape, dtype=torch.int32)
    given = GradientCells(((codes, torch.tensor(0)),), (None,))
    step = Adam([parameter]).prepared([given])
    with pytest.raises(InputError, match="channels last in memory"):
        step()
    with pytest.raises(InputError, match="for each of 1 parameters, found 2"):
        Adam([parameter]).prepared([given, None])


def calls_of(step) -> int:
    """Calls of Python functions that a step makes."""
    found = [0]

    def note(frame, event, argument) -> None:
        found[0] += event == "call"

    step()
    sys.setprofile(note)
    step()
    sys.setprofile(None)
    return found[0]


@pytest.mark.parametrize("kind", [SGD, Adam])
def test_calls_do_not_grow_with_parameters(kind):
    counts = []
    for copies in (1, 5):
        sets = [weights(index) for index in range(copies)]
        given = [gradient for own in sets for gradient in cells(own)]
        optimizer = kind([p for own in sets for p in own], lr=0.01)
        counts.append(calls_of(optimizer.prepared(given)))
    assert counts[0] == counts[1] < 60


# --- what is kept -----------------------------------------------------------------------------


def test_options_are_those_of_c():
    names = [name for name, _ in library.fields("Options")]
    assert list(StepOptions._fields) == names


@pytest.mark.parametrize("kind", [SGD, Adam])
def test_a_state_is_saved_as_plain_numbers(kind):
    parameters = weights(3)
    optimizer = kind(parameters, lr=0.01, **({"momentum": 0.9} if kind is SGD else {}))
    assert optimizer.state_dict()["state"] == {}
    give(parameters, random.Random(3))
    parameters[2].grad = None
    optimizer.step()
    saved = optimizer.state_dict()["state"]
    assert list(saved) == [0, 1, 3]
    for state in saved.values():
        assert type(state) is dict
        assert {type(v) for v in state.values()} <= {int, float, torch.Tensor}
        assert set(state) == set(kind.STATES[-1])
        assert state["steps"] == 1


def test_a_state_is_copied_with_its_numbers():
    parameters = weights(3)
    optimizer = Adam(parameters, lr=0.01)
    give(parameters, random.Random(3))
    optimizer.step()
    state = optimizer.state[parameters[0]]
    twin = copy.deepcopy(state)
    assert twin["first"] is not state["first"]
    assert {k: v for k, v in twin.items() if k not in ("first", "root")} == {
        k: v for k, v in state.items() if k not in ("first", "root")
    }
    with pytest.raises(KeyError, match="momentum"):
        state["momentum"]
    assert "momentum_exponent" not in state
