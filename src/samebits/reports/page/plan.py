"""The page of a recomputation plan: what is kept, what is computed again, memory over time."""

from __future__ import annotations

from samebits.recompute.plan.plan import Plan
from samebits.reports.html import (
    Figure,
    Figures,
    Fold,
    PageBlock,
    Paragraph,
    Section,
    Status,
    Table,
)
from samebits.reports.plots import Bars, bar_plots
from samebits.reports.recompute import MILLISECOND, plan_rows, plan_summary
from samebits.reports.report import printable

MOST = 30  # results in one chart
LETTERS = 24  # of their names


def plan_sections(plan: Plan, picture: bytes | None) -> list[Section]:
    """The figures, the memory curve where the plan was just made, the sub-layers."""
    kept = sum(layer.stored for layer in plan.layers)
    share = 100 * plan.peak / max(plan.store_all, 1)
    blocks: list[PageBlock] = [
        Status("good", "No plan changes a bit: what is computed again is computed the same way."),
        Figures(
            [
                ("peak of a pass", f"{plan.peak:,}", f"bytes, {share:.1f} % of storing everything"),
                ("everything stored", f"{plan.store_all:,}", "bytes"),
                ("computed again", f"{plan.recompute_ps / MILLISECOND:.3f}", "ms a pass"),
                ("results kept", f"{kept:,}", f"of {len(plan.layers):,}"),
            ]
        ),
        *map(Paragraph, (f"{line[:1].upper()}{line[1:]}." for line in plan_summary(plan))),
    ]
    memory: list[PageBlock] = []
    if picture is not None:
        caption = "Memory over the time of a pass, predicted from one measured pass"
        memory.append(Figure(picture, caption, caption))
    else:
        memory.append(
            Paragraph(
                "The file of a plan holds no times, so the curve cannot be drawn from it: samebits "
                "plan --report PAGE draws it when the plan is made."
            )
        )
    columns, rows = plan_rows(plan)
    rows = [tuple(map(printable, row)) for row in rows]
    found = [
        Section("The plan", blocks),
        Section("Memory with and without the plan", memory),
    ]
    found.append(
        Section(
            "Sub-layers",
            [_largest(plan), Fold(f"Every sub-layer: {len(rows):,}", [Table(columns, rows)])],
        )
    )
    return found


def _largest(plan: Plan) -> Figure:
    """The largest results as bars, in the order of the pass."""
    ranked = sorted(range(len(plan.layers)), key=lambda index: -plan.layers[index].bytes)[:MOST]
    layers = [plan.layers[index] for index in sorted(ranked) if plan.layers[index].bytes]
    labels = [printable(layer.name)[-LETTERS:] for layer in layers]
    bars = [
        Bars("kept", [layer.bytes * layer.stored for layer in layers]),
        Bars("not kept", [layer.bytes * (not layer.stored) for layer in layers]),
    ]
    caption = f"Bytes of the {len(layers)} largest results, from the first of the pass down"
    return Figure(bar_plots(labels, bars, x_title="bytes"), caption, caption)
