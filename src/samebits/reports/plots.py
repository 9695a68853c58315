"""Plots as SVG text, drawn without a display, and SVG text as a part of a page."""

from __future__ import annotations

import html
import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

COLOURS = ("#0b6e6e", "#c4622d", "#5b4b9a", "#7a7a7a")
MARKERS = ("o", "s", "^", "D")
GRID = "#dfe4ea"
WIDTH = 4.8  # inches: in a page as wide as a telephone the letters can still be read
THEMED = {
    **{colour: f"var(--series-{number})" for number, colour in enumerate(COLOURS, 1)},
    GRID: "var(--line)",
    "#000000": "currentColor",
    "#ffffff": "none",
}
"""Colours of a drawing and what a page has in their stead, in light and in dark."""


STYLE: dict[Any, Any] = {"font.size": 8.5, "svg.hashsalt": "samebits", "svg.fonttype": "none"}


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


@matplotlib.rc_context(STYLE)
def bar_plots(labels: Sequence[str], bars: Sequence[Bars], *, x_title: str) -> bytes:
    """Horizontal bars, several at one place one after the other."""
    figure = Figure(figsize=(WIDTH, 0.9 + 0.2 * len(labels)), layout="constrained")
    axes = figure.add_subplot()
    places = range(len(labels))
    left = [0.0] * len(labels)
    for part, colour in zip(bars, COLOURS, strict=False):
        axes.barh(places, part.values, left=left, color=colour, label=part.label)
        left = [start + value for start, value in zip(left, part.values, strict=True)]
    axes.set_yticks(places, labels, fontsize=7.5, parse_math=False)
    axes.invert_yaxis()
    axes.set_xlabel(x_title)
    axes.grid(color=GRID, linewidth=0.8, axis="x")
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    if len(bars) > 1:
        _legend(axes)
    return _svg(figure)


@matplotlib.rc_context(STYLE)
def line_plot(
    curves: Sequence[Curve], *, x_title: str, y_title: str, markers: bool = True
) -> bytes:
    """Curves over common axes; the x axis counts in whole numbers. Same input, same bytes.

    markers: one on every point.
    """
    figure = Figure(figsize=(WIDTH, 2.6), layout="constrained")
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
    _legend(axes)
    return _svg(figure)


@matplotlib.rc_context(STYLE)
def line_plots(parts: Sequence[Sequence[Curve]], *, x_title: str, y_titles: Sequence[str]) -> bytes:
    """Curves in parts below each other over one x axis; the first part is the highest."""
    heights = [1.7, *[1] * (len(parts) - 1)]
    figure = Figure(figsize=(WIDTH, 0.7 + 0.95 * sum(heights)), layout="constrained")
    rows = figure.subplots(len(parts), 1, sharex=True, height_ratios=heights, squeeze=False)
    for axes, curves, y_title in zip(rows[:, 0], parts, y_titles, strict=True):
        for index, curve in enumerate(curves):
            style = ("-", "--", "-.", ":")[index % 4]
            colour = COLOURS[index % len(COLOURS)]
            axes.plot(curve.x, curve.y, style, label=curve.label, color=colour, linewidth=1.4)
        axes.set_ylabel(y_title)
        axes.grid(color=GRID, linewidth=0.8)
        axes.spines[["top", "right"]].set_visible(False)
        if len(curves) > 1 and curves is parts[0]:  # the others have the same labels
            _legend(axes)
    rows[-1, 0].set_xlabel(x_title)
    if all(float(x).is_integer() for curves in parts for curve in curves for x in curve.x):
        rows[-1, 0].xaxis.set_major_locator(MaxNLocator(integer=True))
    return _svg(figure)


@matplotlib.rc_context(STYLE)
def scatter_plot(x: Sequence[float], y: Sequence[float], *, x_title: str, y_title: str) -> bytes:
    """Points, and the line on which both numbers are equal. Same input, same bytes."""
    figure = Figure(figsize=(WIDTH, 3.6), layout="constrained")
    axes = figure.add_subplot()
    ends = [min(*x, *y), max(*x, *y)]
    axes.plot(ends, ends, color=COLOURS[3], linewidth=1)
    axes.plot(x, y, "o", color=COLOURS[0], markersize=3, alpha=0.6)
    axes.set_xlabel(x_title)
    axes.set_ylabel(y_title)
    axes.grid(color=GRID, linewidth=0.8)
    axes.spines[["top", "right"]].set_visible(False)
    return _svg(figure)


def _legend(axes: Axes) -> None:
    """The labels beside their lines; names from files are no formulas."""
    for text in axes.legend(frameon=False).get_texts():
        text.set_parse_math(False)


def _svg(figure: Figure) -> bytes:
    text = io.BytesIO()
    with matplotlib.rc_context(STYLE):
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
