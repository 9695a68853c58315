"""Plots as SVG text, drawn without a display, and SVG text as a part of a page."""

from __future__ import annotations

import html
import io
import re
from collections.abc import Sequence
from dataclasses import dataclass

import matplotlib
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

COLOURS = ("#0b6e6e", "#c4622d", "#5b4b9a", "#7a7a7a")
MARKERS = ("o", "s", "^", "D")
GRID = "#dfe4ea"
THEMED = {
    **{colour: f"var(--series-{number})" for number, colour in enumerate(COLOURS, 1)},
    GRID: "var(--line)",
    "#000000": "currentColor",
    "#ffffff": "none",
}
"""Colours of a drawing and what a page has in their stead, in light and in dark."""


@dataclass(frozen=True)
class Curve:
    """A labelled line through the points (x, y)."""

    label: str
    x: Sequence[float]
    y: Sequence[float]


@dataclass(frozen=True)
class Bars:
    """Labelled values, one for each place."""

    label: str
    values: Sequence[float]


def bar_plot(labels: Sequence[str], values: Sequence[float], *, x_title: str) -> bytes:
    """Horizontal bars from the top down, in the order given. Same input, same bytes."""
    return bar_plots(labels, [Bars("", values)], x_title=x_title)


def bar_plots(labels: Sequence[str], bars: Sequence[Bars], *, x_title: str) -> bytes:
    """Horizontal bars, several at one place one after the other."""
    figure = Figure(figsize=(7.2, 0.9 + 0.26 * len(labels)), layout="constrained")
    axes = figure.add_subplot()
    places = range(len(labels))
    left = [0.0] * len(labels)
    for part, colour in zip(bars, COLOURS, strict=False):
        axes.barh(places, part.values, left=left, color=colour, label=part.label)
        left = [start + value for start, value in zip(left, part.values, strict=True)]
    axes.set_yticks(places, labels, fontsize=8, parse_math=False)
    axes.invert_yaxis()
    axes.set_xlabel(x_title)
    axes.grid(color=GRID, linewidth=0.8, axis="x")
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    if len(bars) > 1:
        axes.legend(frameon=False)
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
    axes.grid(color=GRID, linewidth=0.8)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    return _svg(figure)


def line_plots(parts: Sequence[Sequence[Curve]], *, x_title: str, y_titles: Sequence[str]) -> bytes:
    """Curves in parts below each other over one x axis; the first part is twice as high."""
    heights = [2, *[1] * (len(parts) - 1)]
    figure = Figure(figsize=(7.2, 0.8 + 1.2 * sum(heights)), layout="constrained")
    rows = figure.subplots(len(parts), 1, sharex=True, height_ratios=heights, squeeze=False)
    for axes, curves, y_title in zip(rows[:, 0], parts, y_titles, strict=True):
        for index, curve in enumerate(curves):
            style = "-" if index == 0 else "--"
            colour = COLOURS[index % len(COLOURS)]
            axes.plot(curve.x, curve.y, style, label=curve.label, color=colour, linewidth=1.5)
        axes.set_ylabel(y_title)
        axes.grid(color=GRID, linewidth=0.8)
        axes.spines[["top", "right"]].set_visible(False)
        if len(curves) > 1:
            axes.legend(frameon=False)
    rows[-1, 0].set_xlabel(x_title)
    return _svg(figure)


def _svg(figure: Figure) -> bytes:
    text = io.BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": "samebits", "svg.fonttype": "none"}):
        figure.savefig(text, format="svg", metadata={"Date": None})
    return text.getvalue()


def inline(svg: bytes, prefix: str, alt: str) -> str:
    """A drawing as an element of a page: in the page's colours, its ids begin with the prefix."""
    text = svg.decode()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r'\bid="', f'id="{prefix}-', text)
    text = re.sub(r'href="#', f'href="#{prefix}-', text)
    text = re.sub(r"url\(#", f"url(#{prefix}-", text)
    for colour, variable in THEMED.items():
        text = text.replace(colour, variable)
    head, _, body = text.partition(">")
    box = re.search(r'viewBox="[^"]*"', head)
    return (
        f'<svg {box[0] if box else ""} role="img" aria-label="{html.escape(alt, quote=True)}" '
        f'xmlns:xlink="http://www.w3.org/1999/xlink">' + ("</svg>" if head.endswith("/") else body)
    )
