from dataclasses import replace

import pytest

from recompute_nets import make
from samebits.errors import InputError
from samebits.recompute.plan.cost import find_device, times
from samebits.recompute.plan.planner import make_plan
from samebits.recompute.plan.schedule import PassStep
from samebits.recompute.run.profile import survey
from samebits.reports.html import render_page
from samebits.reports.recompute import (
    compared_plans,
    compared_results,
    memory_picture,
    plan_rows,
    plan_section,
    plan_summary,
)
from samebits.results import MemoryPlan


def planned(budget=None, backward="sequential"):
    case = make("resnet8", "bfp")
    _, network = survey(case.model, case.inputs, case.loss)
    device = find_device("laptop-cpu")
    options = {"arch": "resnet8", "backward": backward}
    plan = make_plan(network, device, budget=budget, **options)
    return network, plan, PassStep(network, times(network, device), backward == "paired")


def test_a_row_per_sub_layer():
    network, plan, _ = planned()
    columns, rows = plan_rows(plan)
    assert {len(row) for row in rows} == {len(columns)}
    assert [row[0] for row in rows] == [layer.name for layer in network.layers]
    assert rows[0] == ("input", "input", "768", "stored", *[""] * 5, "the input")
    assert {row[3] for row in rows} == {"stored", "dropped"}


def test_plans_of_one_step_beside_each_other():
    """One with a result turned from stored to dropped is told of, with both reasons."""
    _, plan, _ = planned()
    at = next(i for i, layer in enumerate(plan.layers) if i and layer.stored)
    turned = replace(plan.layers[at], stored=False, reason="it is cheap")
    other = replace(
        plan, device="another", budget=9, layers=(*plan.layers[:at], turned, *plan.layers[at + 1 :])
    )
    first, second = MemoryPlan(plan), MemoryPlan(other)
    found = first.compare(second)
    assert found.to_dict()["different"] == [at]
    columns, rows = compared_plans(found.plans)
    assert [row[:3] for row in rows] == [
        ("laptop CPU", "sequential", "local rule"),
        ("another", "sequential", "9"),
    ]
    assert {len(row) for row in rows} == {len(columns)}
    columns, rows = compared_results(found.plans)
    assert columns[3:] == ("1: laptop CPU", "2: another")
    assert [row[3:] for row in rows] == [
        (f"stored: {plan.layers[at].reason}", "dropped: it is cheap")
    ]
    assert "All plans store the same results." in str(first.compare(first))
    shorter = MemoryPlan(replace(plan, layers=plan.layers[:-1]))
    with pytest.raises(InputError, match="expected plans of one step"):
        first.compare(second, shorter)


def test_the_summary_says_what_is_proven():
    _, local, _ = planned()
    assert len(plan_summary(local)) == 2
    assert f"of the {local.store_all:,} with everything stored" in plan_summary(local)[0]
    _, plan, _ = planned(local.store_all)
    assert plan_summary(plan)[2] == f"no plan within {local.store_all:,} bytes computes less again"
    within = f"no plan within {local.store_all:,} bytes"
    lower = replace(plan, recompute_ps=plan.bound_ps + 10**9, bound_ps=plan.bound_ps + 10**8)
    assert plan_summary(lower)[2].startswith(f"{within} can do with less than 0.")
    assert len(plan_summary(replace(lower, bound_ps=0))) == 2


def test_the_summary_of_a_paired_plan_has_its_load_balance():
    _, plan, _ = planned(backward="paired")
    work, span = (f"{ps / 10**9:.3f} ms" for ps in (plan.work_ps, plan.span_ps))
    assert plan_summary(plan)[2] == (
        f"backward pass: {work} of work in {span} on two threads (load balance "
        f"{plan.work_ps / (2 * plan.span_ps):.2f}, sequential 0.50)"
    )


def test_the_section_of_a_report():
    _, plan, step = planned()
    picture = memory_picture(step, plan)
    section = plan_section(plan, picture)
    page = render_page("title", "lead", [section])
    assert "Recompute or store" in page
    assert "No plan changes a bit" in page
    assert page.count("<svg ") == 1


def test_the_picture_is_the_same_every_time():
    _, plan, step = planned()
    first = memory_picture(step, plan)
    assert first == memory_picture(step, plan)
    assert first.startswith(b"<?xml")
    assert first.count(b"<path") > 3
