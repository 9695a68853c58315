"""A recomputation plan as text rows, and memory over the time of a step as a picture."""

from __future__ import annotations

from collections.abc import Iterable

from samebits.recompute.cost import Device, times
from samebits.recompute.optimum import smallest
from samebits.recompute.plan import Plan
from samebits.recompute.schedule import Network, compile_schedule, simulate
from samebits.report.plots import Curve, line_plot

MICROSECOND, MILLISECOND = 10**6, 10**9  # picoseconds
COLUMNS = (
    *("sub-layer", "kind", "bytes", "output", "lives in"),
    *("computing it again, us", "loading it, us", "because"),
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
            f"{layer.recompute_ps / MICROSECOND:,.2f}" if layer.tier else "",
            f"{layer.load_ps / MICROSECOND:,.2f}" if layer.tier else "",
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
        f"computed again per pass: {plan.recompute_ps / MILLISECOND:.3f} ms on {plan.device}",
    ]
    if plan.budget is not None:
        if plan.bound_ps == plan.recompute_ps:
            lines.append(f"no plan within {plan.budget:,} bytes computes less again")
        else:
            bound = plan.bound_ps / MILLISECOND
            lines.append(
                f"no plan within {plan.budget:,} bytes can do with less than {bound:.3f} ms"
            )
    return lines


def memory_picture(network: Network, plan: Plan, device: Device) -> bytes:
    """SVG: MiB held over the time of a pass, with everything stored, by the plan, at the least."""
    costs = times(network, device, plan.numerics)
    least = smallest(network, costs)
    return line_plot(
        [
            _curve("everything stored", network, (), costs),
            _curve("this plan", network, plan.dropped(network), costs),
            _curve("smallest plan found", network, least.dropped, costs),
        ],
        x_title=f"time of a pass on {plan.device} (ms)",
        y_title="memory (MiB)",
        markers=False,
    )


def _curve(label: str, network: Network, dropped: Iterable[int], costs: list[int]) -> Curve:
    """A backward pass counts as two forward passes: two products instead of one."""
    x: list[float] = [0.0]
    y: list[float] = [network.layers[0].size / 2**20]
    time = 0
    for (action, index), peak, after in simulate(network, compile_schedule(network, dropped)):
        x.append(time / MILLISECOND)
        y.append(peak / 2**20)
        time += {"backward": 2, "forward": 1, "recompute": 1}.get(action, 0) * costs[index]
        x += [time / MILLISECOND] * 2
        y += [peak / 2**20, after / 2**20]
    return Curve(label, x, y)
