"""Line plots as SVG text, drawn without a display."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass

import matplotlib
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

COLOURS = ("#0b6e6e", "#c4622d", "#5b4b9a", "#7a7a7a")
MARKERS = ("o", "s", "^", "D")


@dataclass(frozen=True)
class Curve:
    """A labelled line through the points (x, y)."""

    label: str
    x: Sequence[float]
    y: Sequence[float]


def bar_plot(labels: Sequence[str], values: Sequence[float], *, x_title: str) -> bytes:
    """Horizontal bars from the top down, in the order given. Same input, same bytes."""
    figure = Figure(figsize=(7.2, 0.8 + 0.26 * len(labels)), layout="constrained")
    axes = figure.add_subplot()
    places = range(len(labels))
    axes.barh(places, values, color=COLOURS[0])
    axes.set_yticks(places, labels, fontsize=8, parse_math=False)
    axes.invert_yaxis()
    axes.set_xlabel(x_title)
    axes.grid(color="#dfe4ea", linewidth=0.8, axis="x")
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    return _svg(figure)


def line_plot(
    curves: Sequence[Curve], *, x_title: str, y_title: str, markers: bool = True
) -> bytes:
    """Curves over common axes; the x axis counts in whole numbers. Same input, same bytes.

    markers: one on every point.
    """
    figure = Figure(figsize=(7.2, 3.4), layout="constrained")
    axes = figure.add_subplot()
    for index, curve in enumerate(curves):
        axes.plot(
            curve.x,
            curve.y,
            label=curve.label,
            color=COLOURS[index % len(COLOURS)],
            marker=MARKERS[index % len(MARKERS)] if markers else "",
            markersize=5,
            linewidth=2 if markers else 1,
        )
    axes.set_xlabel(x_title)
    axes.set_ylabel(y_title)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(color="#dfe4ea", linewidth=0.8)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    return _svg(figure)


def _svg(figure: Figure) -> bytes:
    text = io.BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": "samebits"}):
        figure.savefig(text, format="svg", metadata={"Date": None})
    return text.getvalue()
