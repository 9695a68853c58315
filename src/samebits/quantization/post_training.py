"""Post-training quantization: place, observe, calibrate, convert, report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from samebits import progress
from samebits.errors import InputError
from samebits.ir import Graph
from samebits.quantization.calibrate import Calibrated
from samebits.quantization.convert import Converted, convert, group_numbers
from samebits.quantization.equalize import equalize
from samebits.quantization.observe import Sample, Statistics, observe
from samebits.quantization.placement import Placement, place
from samebits.quantization.refine import affordable, refine
from samebits.quantization.report import QuantizationReport, report
from samebits.quantization.sensitivity import most_sensitive
from samebits.quantization.settings import Settings
from samebits.quantization.signal import LayerChange
from samebits.quantization.stored import float_network
from samebits.quantization.trees import feature_numbers, feature_ranges
from samebits.quantization.weights import WeightCodes

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Observed:
    """A float graph as it is to be quantized, and what its samples showed: all that takes a pass
    over them. Settings that `observe_graph` does not read share it.

    changes: what equalization did; stored: codes that the file has already; features: scales of the
    features of inputs; kept: the first samples; count: all that were read
    """

    graph: Graph
    changes: tuple[LayerChange, ...]
    stored: Mapping[str, WeightCodes]
    placement: Placement
    seen: Mapping[str, Statistics]
    features: Mapping[str, tuple[Calibrated, ...]]
    kept: Sequence[Sequence[Array]]
    count: int


def quantize_graph(
    graph: Graph, samples: Iterable[Sample], settings: Settings | None = None
) -> tuple[Graph, QuantizationReport]:
    """A float32 real graph in QDQ form, with scales calibrated on samples, and a report.

    graph:   simplified (samebits.ir.rewrite.simplify); inputs and outputs keep names and types
    samples: each a mapping of input name to array, or the arrays in order of the inputs, of the
             inputs' shapes and types. Read once (with `equalize`: held). Their order does not
             matter to the result but for which of them the report compares, which roundings and
             biases are chosen on, and where `stop_early` stops

    Raises InputError for samples that do not fit, NaN or infinity in them or in an activation, or
    a graph that is quantized already or has nothing to quantize; UnsupportedError for float types
    other than float32.
    """
    settings = settings or Settings()
    observed = observe_graph(graph, samples, settings, _refined(settings))
    converted, changes = convert_observed(observed, settings)
    _say_idle(settings, changes)
    progress.stage("comparing with the float network")
    compared = observed.kept[: settings.report_samples]
    made = report(
        *(observed.graph, converted, observed.seen, compared, observed.count, settings, changes)
    )
    return converted.graph, made


def _say_idle(settings: Settings, changes: Sequence[LayerChange]) -> None:
    """Notes of options that found nothing to change, or less than they allow."""
    done = Counter(change.step for change in changes)
    asked = {
        "equalize": ("equalization", settings.equalize is not None),
        "rounding": ("rounding", settings.rounding != "nearest"),
        "bias-correction": ("bias correction", settings.bias_correction),
    }
    for option, (step, wanted) in asked.items():
        if wanted and not done[step]:
            progress.note(f"--{option} changed nothing: the network has no layer for it")
    if settings.mixed is not None and done["precision"] < settings.mixed:
        progress.note(
            f"--mixed {settings.mixed}: {done['precision']} tensors cost the outputs something, "
            "and have twice the bits"
        )


def _refined(settings: Settings) -> int:
    return settings.refine_samples if settings.refines else 0


def _kept(graph: Graph, settings: Settings, refined: int) -> int:
    """The number of samples to keep: for the report, and to refine on as far as memory reaches."""
    return max(settings.report_samples, affordable(graph, refined) if refined else 0)


def observe_graph(
    graph: Graph, samples: Iterable[Sample], settings: Settings, refined: int
) -> Observed:
    """The graph to be quantized, after one pass over the samples (with `equalize`: two).

    settings: it reads `equalize` and `report_samples`, and where `stop_early` is set all others
    refined:  samples to keep for `refine`, as far as memory reaches; 0 where nothing is refined

    Raises what `quantize_graph` raises.
    """
    network = float_network(graph)
    graph, stored = network.graph, network.codes
    changes: tuple[LayerChange, ...] = ()
    if settings.equalize is not None:
        samples = list(samples)
        graph, changes = equalize(graph, samples, settings.equalize)
        stored = network.codes_of(graph)
    placement = place(graph)
    if not placement.quantized:
        raise InputError(
            f"graph {graph.name!r}: expected a network that computes on float32 numbers, found "
            "none to quantize"
        )
    wanted = _kept(graph, settings, refined)
    kept: list[Sequence[Array]] = []
    count = 0
    scales: dict[str, tuple[Fraction, int]] = {}
    ranges: dict[str, tuple[Array, Array]] = {}  # of the features of inputs

    def more(sample: Sequence[Array], seen: Mapping[str, Statistics]) -> bool:
        """Keep what the report compares; False where the last `stop_early` samples changed no scale
        and no zero point."""
        nonlocal count, scales
        count += 1
        feature_ranges(ranges, placement.features, dict(zip(graph.inputs, sample, strict=True)))
        if len(kept) < wanted:
            kept.append([np.array(array) for array in sample])
        if settings.stop_early is None or count % settings.stop_early:
            return True
        numbers = group_numbers(graph, placement, seen, settings)
        before, scales = scales, {name: (n.scale, n.zero_point) for name, n in numbers.items()}
        for name, ends in ranges.items():
            each = feature_numbers(graph, name, *ends)
            scales |= {f"{name}[{i}]": (n.scale, n.zero_point) for i, n in enumerate(each)}
        if before != scales:
            return True
        progress.note(
            f"calibration: stopped after {count} samples, of which the last {settings.stop_early} "
            "changed no scale"
        )
        return False

    seen = observe(graph, samples, placement.quantized, more)
    features = {name: feature_numbers(graph, name, *ends) for name, ends in ranges.items()}
    return Observed(graph, changes, stored, placement, seen, features, kept, count)


def convert_observed(
    observed: Observed, settings: Settings
) -> tuple[Converted, tuple[LayerChange, ...]]:
    """An observed graph in QDQ form, as the settings ask for, and what was done to its layers.

    settings: those that it was observed with, but for those that `observe_graph` does not read
    """
    graph, seen, placement = observed.graph, observed.seen, observed.placement
    features, stored, changes = observed.features, observed.stored, observed.changes
    kept = observed.kept[: _kept(graph, settings, _refined(settings))]
    converted = convert(graph, placement, seen, settings, features=features, stored=stored)
    if settings.mixed is not None:
        wide, wider = most_sensitive(graph, placement, converted, kept, settings)
        converted = convert(
            graph, placement, seen, settings, features=features, stored=stored, wide=wide
        )
        changes += wider
    if settings.refines:
        refined = kept[: affordable(graph, settings.refine_samples)]
        converted, more = refine(graph, converted, refined, settings)
        changes += more
    return converted, changes
