from dataclasses import replace

from recompute_nets import make
from samebits.recompute.plan.cost import find_device, times
from samebits.recompute.plan.planner import make_plan
from samebits.recompute.plan.schedule import PassStep
from samebits.recompute.run.profile import survey
from samebits.reports.html import render_page
from samebits.reports.recompute import memory_picture, plan_rows, plan_section, plan_summary


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
