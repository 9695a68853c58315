import functools
import json
from dataclasses import replace

import pytest
import torch

from recompute_nets import assert_same_outcome, make
from samebits.errors import InputError
from samebits.recompute.network.sublayer import Loss, PassNetwork, SubLayer
from samebits.recompute.plan import plan as plan_file
from samebits.recompute.plan.cost import find_device, parse_device, times
from samebits.recompute.plan.plan import read_plan, write_plan
from samebits.recompute.plan.planner import make_plan
from samebits.recompute.plan.rule import UNREAD
from samebits.recompute.plan.schedule import PassStep, compile_schedule, peak
from samebits.recompute.run.apply import Executor
from samebits.recompute.run.memory import step_peak
from samebits.recompute.run.profile import survey

# One tier: a byte takes 10 ps, an operation 1 ps.
DEVICE = parse_device(
    """
name = "plain"
integer_operations_per_second = 1_000_000_000_000
float_operations_per_second = 1_000_000_000_000
pointwise_operations_per_second = 1_000_000_000_000
dispatch_ns = 0
overhead_ns = 0
[[tier]]
name = "memory"
bytes = 1_000_000_000
bytes_per_second = 100_000_000_000
latency_ns = 0
""",
    "plain",
)


def layer(name, inputs, size, needs, operations, alias=None):
    return SubLayer(name, "any", inputs, (size,), size, alias, needs, operations=operations)


# A near tier that holds what a layer reads and writes, at 1 ps a byte; a far one at 10.
NEAR = replace(DEVICE.tiers[0], name="near", bytes=250, bytes_per_second=10**12)
TIERS = replace(DEVICE, tiers=(NEAR, replace(DEVICE.tiers[0], name="far")))


def rule_of(layers):
    """The local rule's decisions about all values but the input."""
    network = PassNetwork(layers, len(layers) - 1)
    found = PassStep(network, times(network, TIERS)).rule(TIERS)
    assert list(found) == list(range(1, len(layers)))
    return list(found.values())


def test_the_sides_of_the_local_rule():
    layers = (
        SubLayer("input", "input", size=100, differentiable=False),
        layer("conv", (0,), 100, (0,), 5000),  # 5000 + nothing: its backward loads the input
        layer("norm", (1,), 100, (1,), 300),
        layer("relu", (2,), 100, (3,), 100),  # its traffic, 200; norm again, which is not stored
        layer("mask", (3,), 50, (4,), 10),  # relu is there again; its own 50 bytes are near
        layer("heavy", (3,), 50, (5,), 2000),
        layer("sum", (4, 5), 50, (), 1),
        layer("out", (5, 6), 60, (), 1),  # heavy, near; and the sum again, 150 and its inputs
        layer("read", (7,), 10, (7,), 1),
    )
    decisions = rule_of(layers)
    found = [(x.stored, x.fetch, x.compute, x.load) for x in decisions]
    assert found == [
        (True, 0, 5000, 1000),
        (False, 0, 300, 0),
        (False, 300, 200, 1000),
        (True, 0, 150, 50),
        (True, 0, 2000, 50),
        (False, 100, 150, 0),
        (True, 50 + 250, 160, 60),
        (False, 0, 70, 0),
    ]
    reasons = [d.reason for d in decisions]
    assert [i for i, reason in enumerate(reasons) if reason == UNREAD] == [1, 5, 7]
    assert reasons[2] == "computing it again is cheaper than loading it"
    assert reasons[4] == "loading it is cheaper than computing it again"
    assert [x.tier for x in decisions[:3]] == ["far", "near", "near"]


@pytest.mark.parametrize("device", ["accelerator-core", "laptop-cpu"])
@pytest.mark.parametrize("name", ["resnet8", "mobilenetv2"])
def test_the_rule_never_computes_for_longer_than_it_loads_less(name, device):
    """By the plan's own total, not only by each value's own figures."""
    case = make(name, "bfp", batch=8, size=16)
    _, network = survey(case.model, case.inputs, case.loss)
    plan = make_plan(network, find_device(device), arch=name)
    assert plan.recompute_ps <= plan.avoided_ps
    if (name, device) == ("mobilenetv2", "accelerator-core"):
        assert plan.recompute_ps > 0


def test_equal_sides_store():
    layers = (
        SubLayer("input", "input", size=100, differentiable=False),
        layer("a", (0,), 100, (0, 1), 1000),
        layer("b", (0,), 100, (0, 2), 999),
        layer("c", (1, 2), 200, (3,), 1),
    )
    found = [(x.stored, x.load - x.compute) for x in rule_of(layers)]
    assert found[:2] == [(True, 0), (False, 1)]


def test_what_is_saved_besides_is_loaded_too():
    """A mask of 30 bytes, which its own backward pass reads, of a value that none reads."""
    layers = (
        SubLayer("input", "input", size=100, differentiable=False),
        replace(layer("a", (0,), 100, (), 1), extra=30),
        layer("b", (1,), 100, (2,), 1),
    )
    found = rule_of(layers)[0]
    assert (found.stored, found.compute, found.load) == (True, 200, 30)


ENOUGH = 1 << 40  # bytes: a budget for everything, whose plan knows the smallest peak


def plan_for(case, budget=None, **options):
    tape, network = survey(case.model, case.inputs, case.loss)
    return tape, network, planned(network, budget, **options)


def planned(network, budget, **options):
    device = find_device("laptop-cpu")
    return make_plan(network, device, arch="net", budget=budget, **options)


def budgets(plan, count):
    """From the smallest peak to storing everything."""
    return [
        plan.smallest + (plan.store_all - plan.smallest) * i // (count - 1) for i in range(count)
    ]


NETS = ("resnet8", "resnet18", "mobilenetv2", "dropout", "shared")
QUICK = {"dropout": 4, "shared": 4}


@pytest.mark.parametrize("name", QUICK)
def test_budgets_are_kept_and_change_no_bit(name):
    assert_budgets_are_kept(name, QUICK[name])


@pytest.mark.slow
@pytest.mark.parametrize("name", NETS)
def test_eleven_budgets_are_kept_and_change_no_bit(name):
    assert_budgets_are_kept(name, 11)


def assert_budgets_are_kept(name, count):
    """Prediction within 1 % of measurement, the measured peak monotone in the budget."""
    case = make(name, "bfp", batch=16, size=8 if name == "dropout" else 16)
    start = case.state()
    torch.manual_seed(7)
    case.step(case.model)
    expected = case.outcome()
    tape, network, local = plan_for(case, ENOUGH)
    measured = []
    for budget in budgets(local, count):
        plan = planned(network, budget)
        run = Executor(tape, network, plan.schedule(network))
        case.restore(start)
        torch.manual_seed(7)
        case.step(run)
        assert_same_outcome(expected, case.outcome())
        case.restore(start)
        found = step_peak(lambda r=run: case.step(r)) + network.layers[0].size
        assert abs(found - plan.peak) <= 0.01 * found, (budget, plan.peak, found)
        assert found <= 1.01 * budget
        measured.append(found)
    assert measured == sorted(measured)


def test_a_budget_below_the_least_says_what_the_least_is():
    case = make("resnet8", "bfp")
    _, network, plan = plan_for(case, ENOUGH)
    assert planned(network, plan.smallest).peak <= plan.smallest
    with pytest.raises(InputError) as caught:
        planned(network, plan.smallest - 1)
    assert str(caught.value) == (
        f"--memory-budget: expected at least {plan.smallest} bytes for this model and batch, "
        f"found {plan.smallest - 1}; raise the budget, lower --batch or give more --shards"
    )
    later = planned(network, plan.smallest + 1000, earlier=1000)
    assert later.peak <= plan.smallest + 1000
    assert peak(network, compile_schedule(network, later.dropped(network))) + 1000 == later.peak


def test_budgets_hold_in_the_paired_order():
    case = make("resnet8", "bfp", batch=16, size=16)
    _, network, local = plan_for(case, ENOUGH, backward="paired")
    local = replace(local, store_all=peak(network, compile_schedule(network, (), paired=True)))
    assert local.smallest < local.store_all
    assert local.span_ps < local.work_ps
    again = []
    for budget in budgets(local, 4):
        plan = planned(network, budget, backward="paired")
        schedule = plan.schedule(network)
        assert "join" in {kind for kind, _ in schedule}
        assert peak(network, schedule) == plan.peak <= budget
        again.append(plan.recompute_ps)
    assert again[0] > again[-1] == 0
    with pytest.raises(InputError, match=f"expected at least {local.smallest} bytes"):
        planned(network, local.smallest // 2, backward="paired")
    sequential = planned(network, ENOUGH)
    assert sequential.span_ps == sequential.work_ps
    assert sequential.smallest <= local.smallest


def small_products():
    """Two products whose gradients may be apart, and a function between them."""
    return PassNetwork(
        (
            SubLayer("input", "input", shape=(1,), size=1, differentiable=False),
            SubLayer(
                *("a", "Linear", (0,), (2,), 2), needs=(0,), backward_peak=2, weights=((1, 2),),
                apart=(0, 2), operations=800,
            ),
            SubLayer(
                *("b", "any", (1,), (4,), 4), needs=(1,), backward_peak=3, operations=700,
                gradients=((1, (0,)),), fresh=(1,),
            ),
            SubLayer(
                *("c", "Linear", (2,), (4,), 4), needs=(2, 3), backward_peak=4, operations=200,
                gradients=((2, (0,)),), fresh=(1,), weights=((3, 3),), apart=(1, 3),
            ),
        ),
        3,
        Loss(0, 0, 1, 1),
    )  # fmt: skip


def test_the_paired_order_is_planned_by_its_own_levels():
    """Both products wait for each other there: 19 bytes, of which dropping a value saves none."""
    network, options = small_products(), {"arch": "net", "backward": "paired"}
    with pytest.raises(InputError, match=r"expected at least 19 bytes .* found 18"):
        make_plan(network, DEVICE, budget=18, **options)
    plan = make_plan(network, DEVICE, budget=19, **options)
    assert (plan.peak, plan.recompute_ps, plan.search) == (19, 0, "complete")


def test_what_the_step_holds_before_the_pass_counts_in_every_figure():
    """A pass of 16 bytes after 1000 of gradients; a device has to hold all of that, no more."""
    network, options = small_products(), {"arch": "net"}
    plan = make_plan(network, DEVICE, earlier=1000, budget=2000, **options)
    assert (plan.store_all, plan.peak, plan.recompute_ps) == (1016, 1016, 0)
    assert plan.smallest == make_plan(network, DEVICE, budget=2000, **options).smallest + 1000
    memory = DEVICE.tiers[-1]
    exact = replace(DEVICE, tiers=(replace(memory, bytes=1016),))
    assert make_plan(network, exact, earlier=1000, budget=2000, **options).peak == 1016
    less = replace(DEVICE, tiers=(replace(memory, bytes=1015),))
    with pytest.raises(InputError, match=r"at most 1015 bytes .* found a peak of 1016"):
        make_plan(network, less, earlier=1000, budget=2000, **options)


def test_plans_are_deterministic_and_survive_their_file(tmp_path):
    case = make("resnet8", "bfp")
    _, _, local = plan_for(case, ENOUGH)
    plans = [plan_for(case, (local.smallest + local.store_all) // 2)[2] for _ in range(2)]
    assert plans[0] == plans[1]
    empty = replace(plans[0].layers[1], shape=(0, 3), bytes=0)  # of no elements, so of no bytes
    for plan in (plans[0], replace(plans[0], layers=(plans[0].layers[0], empty))):
        write_plan(tmp_path / "plan.json", plan)
        assert read_plan(tmp_path / "plan.json") == plan


def test_a_plan_for_something_else_is_refused_with_the_first_difference():
    _, network, plan = plan_for(make("resnet8", "bfp"))
    _, larger, _ = plan_for(make("resnet8", "bfp", batch=8))
    with pytest.raises(InputError) as caught:
        plan.dropped(larger)
    assert str(caught.value) == (
        "this plan is for another model or batch: sub-layer 0 (input): expected shape "
        "[4, 3, 8, 8], found [8, 3, 8, 8]; plan again with samebits plan"
    )
    shorter = replace(network, layers=network.layers[:-1])
    with pytest.raises(InputError, match=r"expected \d+ sub-layers, found \d+"):
        plan.dropped(shorter)
    decisions = (replace(plan.layers[0], stored=False), *plan.layers[1:])
    with pytest.raises(InputError, match=r"drops sub-layer 0 \(input\)"):
        replace(plan, layers=decisions).dropped(network)


@functools.cache
def plan_text():
    return json.dumps(plan_for(make("resnet8", "bfp"))[2].to_dict())


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (
            lambda r: r.update(format="samebits-plan-3"),
            "field format: expected 'samebits-plan-2' of samebits, found 'samebits-plan-3'; plan "
            "again with samebits plan, or use the release of samebits that wrote it",
        ),
        (lambda r: r.pop("format"), "expected 'samebits-plan-2' of samebits, found None; plan"),
        (lambda r: r.update(peak=-1), "field peak: expected a whole number in 0..10000"),
        (lambda r: r.update(budget=10**400), "field budget: expected a whole number in 0..10000"),
        (lambda r: r.update(store_all=0), "field store_all: expected at least one byte, found 0"),
        (lambda r: r.update(device="\x1b[31m"), "field device: expected printable text of at most"),
        (lambda r: r["layers"][1].update(name="a" * 999), "field layers[1].name: expected printab"),
        (lambda r: r.update(layers=3), "field layers: expected a list of objects"),
        (lambda r: r.update(backward="x"), "field backward: expected sequential or paired, found"),
        (lambda r: r["layers"][2].pop("stored"), "field layers[2].stored: expected true or false"),
        (lambda r: r["layers"][1].update(shape=[1.5]), "field layers[1].shape: expected a list"),
        (lambda r: r["layers"][1].update(bytes=True), "field layers[1].bytes: expected a whole"),
    ],
)
def test_a_malformed_plan_names_the_field(tmp_path, change, text):
    record = json.loads(plan_text())
    change(record)
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(record))
    with pytest.raises(InputError) as caught:
        read_plan(path)
    assert text in str(caught.value)
    assert str(path) in str(caught.value)


def test_what_is_no_plan(tmp_path, monkeypatch):
    with pytest.raises(InputError, match="cannot be read"):
        read_plan(tmp_path / "none.json")
    (tmp_path / "text.json").write_text("[" * 100_000)
    with pytest.raises(InputError, match="not a plan"):
        read_plan(tmp_path / "text.json")
    monkeypatch.setattr(plan_file, "LARGEST_FILE", 10)
    with pytest.raises(InputError, match="expected at most 10 bytes"):
        read_plan(tmp_path / "text.json")
    (tmp_path / "list.json").write_text("[]")
    with pytest.raises(InputError, match="found 'list'"):
        read_plan(tmp_path / "list.json")
