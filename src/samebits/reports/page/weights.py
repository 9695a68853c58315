"""The weights of the layers that multiply by some, as histograms."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from samebits.ir import Graph
from samebits.ir.integer.define import limits
from samebits.reports.html import Paragraph, Section
from samebits.reports.page.histogram import Histograms, NamedHistogram, histogram_of
from samebits.reports.page.layers import NetworkLayer
from samebits.reports.report import printable

MOST = 120  # histograms of one page


def weights_section(graph: Graph, layers: Sequence[NetworkLayer]) -> Section | None:
    """A histogram for each layer with a matrix or kernel; None where there is none."""
    found: list[NamedHistogram] = []
    for layer in layers:
        if layer.tone != "product":
            continue
        arrays = [graph.constants[name] for name in layer.weights]
        array = max(arrays, key=lambda one: (one.ndim > 1, one.size), default=None)
        if array is None or array.ndim < 2 or array.dtype.kind not in "iuf":
            continue
        zeros = np.count_nonzero(array == 0) / array.size
        below = f"{array.size:,} x {array.dtype.name}, {100 * zeros:.1f} % zero"
        wrong = np.count_nonzero(~np.isfinite(array))
        if wrong:
            below += f", {wrong:,} not finite"
        if array.dtype.name in ("int8", "uint8", "int16", "uint16"):
            low, high = limits(array.dtype.name)
            low = -high if array.dtype.kind == "i" else low
            ends = np.count_nonzero((array <= low) | (array >= high)) / array.size
            below += f", {100 * ends:.2f} % at the ends"
        found.append(NamedHistogram(printable(layer.name), below, histogram_of(array)))
    if not found:
        return None
    text = "The stored numbers of every layer that multiplies by weights; heights are not compared."
    if len(found) > MOST:
        text += f" The first {MOST} of {len(found):,} layers."
    return Section("Weights", [Paragraph(text), Histograms(found[:MOST])])
