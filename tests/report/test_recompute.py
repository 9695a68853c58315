from recompute_nets import make
from samebits.recompute.cost import find_device
from samebits.recompute.planner import make_plan
from samebits.recompute.profile import survey
from samebits.report.recompute import memory_picture, plan_rows, plan_summary


def planned(budget=None):
    case = make("resnet8", "float32")
    _, network = survey(case.model, case.inputs, case.loss)
    device = find_device("laptop-cpu")
    plan = make_plan(network, device, arch="resnet8", numerics="float32", budget=budget)
    return network, plan, device


def test_a_row_per_sub_layer():
    network, plan, _ = planned()
    columns, rows = plan_rows(plan)
    assert {len(row) for row in rows} == {len(columns)}
    assert [row[0] for row in rows] == [layer.name for layer in network.layers]
    assert rows[0] == ("input", "input", "3,072", "stored", "", "", "", "the input")
    assert {row[3] for row in rows} == {"stored", "dropped"}


def test_the_summary_says_what_is_proven():
    _, local, _ = planned()
    assert len(plan_summary(local)) == 2
    assert f"of the {local.store_all:,} with everything stored" in plan_summary(local)[0]
    _, plan, _ = planned(local.store_all)
    assert plan_summary(plan)[2] == f"no plan within {local.store_all:,} bytes computes less again"
    _, plan, _ = planned(local.smallest)
    assert f"no plan within {local.smallest:,} bytes" in plan_summary(plan)[2]


def test_the_picture_is_the_same_every_time():
    first = memory_picture(*planned())
    assert first == memory_picture(*planned())
    assert first.startswith(b"<?xml")
    assert first.count(b"<path") > 3
