"""Post-training quantization: place, observe, calibrate, convert, report."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from samebits.ir import Graph
from samebits.quantization.convert import convert
from samebits.quantization.observe import Sample, checked, observe
from samebits.quantization.placement import place
from samebits.quantization.report import QuantizationReport, report
from samebits.quantization.settings import Settings

Array = np.ndarray[Any, Any]


def quantize_graph(
    graph: Graph, samples: Iterable[Sample], settings: Settings | None = None
) -> tuple[Graph, QuantizationReport]:
    """A float32 real graph in QDQ form, with scales calibrated on samples, and a report.

    graph:   simplified (samebits.ir.rewrite.simplify); inputs and outputs keep names and types
    samples: each a mapping of input name to array, or the arrays in order of the inputs, of the
             inputs' shapes and types. Read once; their order does not matter to the result but for
             which of them the report compares

    Raises InputError for samples that do not fit, NaN or infinity in them or in an activation, or
    a graph that is quantized already; UnsupportedError for float types other than float32.
    """
    settings = settings or Settings()
    placement = place(graph)
    kept: list[list[Array]] = []
    count = 0

    def keeping() -> Iterator[Sample]:
        nonlocal count
        for arrays in checked(graph, samples):
            count += 1
            if len(kept) < settings.report_samples:
                kept.append([np.array(array) for array in arrays])
            yield arrays

    seen = observe(graph, keeping(), placement.quantized)
    converted = convert(graph, placement, seen, settings)
    return converted.graph, report(graph, converted, seen, kept, count, settings)
