"""Instructions layer by layer, as a table and a chart."""

from __future__ import annotations

from collections.abc import Sequence

from samebits.codegen.run.profile import LayerCost
from samebits.reports.html import Figure, Table
from samebits.reports.plots import bar_plot
from samebits.reports.report import Report, printable, section

LONGEST = 24  # characters of a layer's name in the chart


def profile_report(source: str, board: str, layers: Sequence[LayerCost], total: int) -> Report:
    """Layers in the order in which they run; layers that take no instructions are left out."""
    rows, labels, values = [], [], []
    for layer in layers:
        if not layer.kernels:
            continue
        rows.append(
            (
                printable(layer.name),
                " ".join(layer.kernels),
                " x ".join(map(str, layer.shape)),
                f"{layer.instructions:,}",
                f"{100 * layer.instructions / max(total, 1):.1f} %",
                f"{layer.products:,}" if layer.products else "",
                f"{layer.instructions / layer.products:.2f}" if layer.products else "",
            )
        )
        labels.append(printable(layer.name)[-LONGEST:])
        values.append(layer.instructions)
    work = sum(layer.products for layer in layers)
    rows.append(("all", "", "", f"{total:,}", "100 %", f"{work:,}", _each(total, work)))
    columns = ("layer", "kernels", "shape", "instructions", "share", "products", "each")
    chart = bar_plot(labels, values, x_title="instructions")
    return Report(
        f"Instructions of {printable(source)} on {board}",
        f"{total:,} for one run, counted by the board's emulator; they are not cycles.",
        [
            section(Table(columns, rows)),
            section(
                Figure(chart, f"instructions by layer on {board}", "From the first layer down.")
            ),
        ],
    )


def _each(total: int, products: int) -> str:
    return f"{total / products:.2f}" if products else ""
