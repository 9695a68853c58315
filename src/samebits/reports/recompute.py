"""A recomputation plan as text rows, and memory over the time of a step as a picture."""

from __future__ import annotations

from collections.abc import Sequence

from samebits.recompute.plan.balance import Balance
from samebits.recompute.plan.plan import Plan
from samebits.recompute.plan.planner import PlannedStep, least_peak
from samebits.recompute.plan.simulation import Moment, simulate
from samebits.reports.html import Figure, Paragraph, Section
from samebits.reports.plots import Curve, line_plot
from samebits.reports.report import printable

MICROSECOND, MILLISECOND = 10**6, 10**9  # picoseconds
ENDED = {
    "steps": "; the search ended at its limit of steps",
    "time": "; the search ended at its limit of time",
}
COLUMNS = (
    *("sub-layer", "kind", "bytes", "output", "lives in"),
    *("loading its inputs, us", "computing it again, us", "loading it, us"),
    *("net gain of dropping it, us", "because"),
)


def plan_rows(plan: Plan) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Column titles and one row of text per sub-layer."""
    return COLUMNS, [
        (
            layer.name,
            layer.kind,
            f"{layer.bytes:,}",
            "stored" if layer.stored else "dropped",
            layer.tier,
            *(
                f"{value / MICROSECOND:,.2f}" if layer.tier else ""
                for value in (layer.fetch_ps, layer.recompute_ps, layer.load_ps, layer.gain_ps)
            ),
            layer.reason,
        )
        for layer in plan.layers
    ]


def plan_summary(plan: Plan) -> list[str]:
    """The plan's figures, a line each."""
    stored = plan.store_all
    lines = [
        f"peak {plan.peak:,} bytes ({100 * plan.peak / stored:.1f} % of the {stored:,} with "
        f"everything stored; the smallest plan found has {plan.smallest:,})",
        f"computed again per pass: {plan.recompute_ps / MILLISECOND:.3f} ms on {plan.device}, for "
        f"loads of {plan.avoided_ps / MILLISECOND:.3f} ms that fall away",
    ]
    if plan.backward == "paired":
        load = Balance(plan.work_ps, plan.span_ps).load
        lines.append(
            f"backward pass: {plan.work_ps / MILLISECOND:.3f} ms of work in "
            f"{plan.span_ps / MILLISECOND:.3f} ms on two threads (load balance {load:.2f}, "
            "sequential 0.50)"
        )
    if plan.budget is not None:
        if plan.bound_ps == plan.recompute_ps:
            lines.append(f"no plan within {plan.budget:,} bytes computes less again")
        elif plan.bound_ps:
            bound, gap = plan.bound_ps / MILLISECOND, plan.recompute_ps - plan.bound_ps
            lines.append(
                f"no plan within {plan.budget:,} bytes can do with less than {bound:.3f} ms, so "
                f"another one could save {gap / MILLISECOND:.3f} ms at most"
                + ENDED.get(plan.search, "")
            )
        elif plan.search in ENDED:
            lines.append(f"nothing is known of the least{ENDED[plan.search]}")
    return lines


Rows = tuple[tuple[str, ...], list[tuple[str, ...]]]


def compared_plans(plans: Sequence[Plan]) -> Rows:
    """Column titles and a row of figures per plan."""
    columns = (
        *("device", "backward", "budget", "peak, bytes", "results dropped"),
        *("computed again, ms", "loads that fall away, ms", "net gain, ms"),
    )
    return columns, [
        (
            printable(plan.device),
            plan.backward,
            "local rule" if plan.budget is None else f"{plan.budget:,}",
            f"{plan.peak:,} ({100 * plan.peak / max(plan.store_all, 1):.1f} %)",
            f"{sum(not layer.stored for layer in plan.layers):,} of {len(plan.layers):,}",
            *(
                f"{value / MILLISECOND:,.3f}"
                for value in (
                    plan.recompute_ps,
                    plan.avoided_ps,
                    plan.avoided_ps - plan.recompute_ps,
                )
            ),
        )
        for plan in plans
    ]


def differing(plans: Sequence[Plan]) -> list[int]:
    """The results that some of these plans store, and others do not, by number."""
    pairs = enumerate(zip(*(plan.layers for plan in plans), strict=True))
    return [at for at, layers in pairs if len({layer.stored for layer in layers}) > 1]


def compared_results(plans: Sequence[Plan]) -> Rows:
    """Column titles and a row per result that not all plans store: what each does, and why."""
    rows = []
    for at in differing(plans):
        first, *_ = layers = [plan.layers[at] for plan in plans]
        said = (f"{'stored' if x.stored else 'dropped'}: {x.reason}" for x in layers)
        rows.append((printable(first.name), first.kind, f"{first.bytes:,}", *said))
    devices = (printable(f"{at}: {plan.device}") for at, plan in enumerate(plans, 1))
    return ("sub-layer", "kind", "bytes", *devices), rows


def plan_section(plan: Plan, picture: bytes) -> Section:
    """The card of a plan, with its `memory_picture`."""
    again = sum(not layer.stored for layer in plan.layers)
    return Section(
        "Recompute or store",
        [
            Paragraph(
                f"The same training again within {plan.budget or plan.peak:,} bytes a pass: of "
                f"{len(plan.layers) - 1} results of the network's sub-layers {again} are not kept, "
                "but computed again or never needed. No plan changes a bit."
            ),
            *(Paragraph(f"{line[:1].upper()}{line[1:]}.") for line in plan_summary(plan)),
            Figure(picture, "memory over the time of a pass", "Predicted from one measured pass."),
        ],
    )


def memory_picture(step: PlannedStep, plan: Plan) -> bytes:
    """SVG: MiB held over the time of a pass, with everything stored, by the plan, at the least."""
    gone = plan.dropped(step.network)
    dropped = ((), gone, least_peak(step, plan.budget is not None))
    labels = ("everything stored", "this plan", "least")
    return line_plot(
        [_curve(label, step, values) for label, values in zip(labels, dropped, strict=True)],
        x_title=f"time of a pass on {plan.device} (ms)",
        y_title="memory (MiB)",
        markers=False,
    )


def _curve(label: str, step: PlannedStep, dropped: Sequence[int]) -> Curve:
    """Memory over time of the step that drops these values."""
    facts, moments = step.facts, list[Moment]()
    outcome = simulate(facts, step.kept(dropped), moments)
    forward = facts.forward
    nodes = [*forward, *((forward if again else facts.backward)[at] for at, again in outcome.order)]
    x: list[float] = [0.0]
    y: list[float] = [facts.held / 2**20]
    time = 0
    for node, moment in zip(nodes, moments, strict=True):
        after = moment.level - sum(facts.sizes[s] for s in moment.freed)
        x.append(time / MILLISECOND)
        y.append(moment.peak / 2**20)
        time += node.cost
        x += [time / MILLISECOND] * 2
        y += [moment.peak / 2**20, after / 2**20]
    return Curve(label, x, y)
