"""Post-training quantization: place, observe, calibrate, convert, report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np

from samebits import progress
from samebits.errors import InputError, SamebitsError
from samebits.ir import Graph
from samebits.ir.canonical import without_guards
from samebits.ir.fidelity import HELD_OUT, MEASURED, MOST, Held
from samebits.ir.lowering.lower import lower_graph
from samebits.ir.many import Live, run_many
from samebits.ir.reuse import Reuse
from samebits.ir.rewrite import simplify
from samebits.ir.signal import sqnr
from samebits.quantization.calibrate import Calibrated
from samebits.quantization.changes import LayerChange
from samebits.quantization.convert import Converted, convert, group_numbers
from samebits.quantization.equalize import equalize
from samebits.quantization.joins import with_own_scales
from samebits.quantization.observe import Sample, Statistics, observe
from samebits.quantization.placement import Placement, place
from samebits.quantization.refine import affordable, refine
from samebits.quantization.report import QuantizationReport, report
from samebits.quantization.sensitivity import SAMPLES, most_sensitive, repaired
from samebits.quantization.settings import Settings
from samebits.quantization.stored import float_network
from samebits.quantization.trees import feature_numbers, feature_ranges
from samebits.quantization.trial import Trial, Widths, error
from samebits.quantization.weights import WeightCodes

Array = np.ndarray[Any, Any]
LOST_NOISE = 0.1  # noise over the signal of an output: fidelity.FLOOR as a ratio, without a power


@dataclass(frozen=True)
class Observed:
    """A float graph as it is to be quantized, and what its samples showed: all that takes a pass
    over them. Settings that `observe_graph` does not read share it.

    changes: what equalization did; stored: codes that the file has already; features: scales of the
    features of inputs; kept: the first samples; held: those to measure on; first: a few of
    the first; count: all that were read
    """

    graph: Graph
    changes: tuple[LayerChange, ...]
    stored: Mapping[str, WeightCodes]
    placement: Placement
    seen: Mapping[str, Statistics]
    features: Mapping[str, tuple[Calibrated, ...]]
    kept: Sequence[Sequence[Array]]
    held: Sequence[Sequence[Array]]
    first: Sequence[Sequence[Array]]
    count: int


@dataclass(frozen=True, eq=False)
class Quantized:
    """A network in QDQ form, what that cost, and what its integers are to be measured on."""

    graph: Graph
    report: QuantizationReport
    held: Held
    trial: Trial

    def causes(self) -> dict[str, float | None]:
        """The ratio of the outputs in dB with nothing quantized but each kind of tensor."""
        return {cause: sqnr(1.0, noise) for cause, noise in self.trial.causes().items()}


def quantize_graph(
    graph: Graph, samples: Iterable[Sample], settings: Settings | None = None
) -> tuple[Graph, QuantizationReport]:
    """As `quantize_observed`, without what is measured later."""
    found = quantize_observed(graph, samples, settings or Settings())
    return found.graph, found.report


def quantize_observed(graph: Graph, samples: Iterable[Sample], settings: Settings) -> Quantized:
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
    observed = observe_graph(graph, samples, settings, _refined(settings))
    converted, changes = convert_observed(observed, settings)
    _say_idle(settings, changes)
    if settings.repair:
        settings, converted, changes = _repaired(observed, settings, converted, changes)
    progress.stage("comparing with the float network")
    compared = observed.kept[: settings.report_samples]
    made = report(
        *(observed.graph, converted, observed.seen, compared, observed.count, settings, changes),
        greatest=observed.placement.greatest,
    )
    trial = trial_of(observed, settings)
    return Quantized(
        converted.graph, made, Held(observed.graph, observed.held, observed.first), trial
    )


def _repaired(
    observed: Observed,
    settings: Settings,
    converted: Converted,
    changes: tuple[LayerChange, ...],
) -> tuple[Settings, Converted, tuple[LayerChange, ...]]:
    """With more bits for some tensors where the outputs would be lost, and these have an integer
    form."""
    trial = trial_of(observed, settings)
    found = trial.run(converted.graph)
    worst = max(error([x], [y]) for x, y in zip(trial.expected, found, strict=True))
    if worst <= LOST_NOISE:
        return settings, converted, changes
    widths, more = repaired(trial, converted, settings, error(trial.expected, found))
    if not widths:
        return settings, converted, changes
    wider = replace(settings, widths={**settings.widths, **widths})
    try:
        made, refined = convert_observed(observed, wider)
        lower_graph(without_guards(simplify(made.graph)))
    except SamebitsError as error_:
        progress.note(f"more bits were tried, and have no integer form: {error_}")
        return settings, converted, changes
    return wider, made, (*refined, *more)


def trial_of(observed: Observed, settings: Settings) -> Trial:
    """Trials of single tensors of an observed graph, on samples held back."""
    graph = observed.graph
    samples, reuse = observed.held[:SAMPLES], Reuse[Live](graph)

    def made(placement: Placement, widths: Widths) -> Graph:
        chosen = replace(settings, widths={**settings.widths, **widths})
        return convert(
            *(graph, placement, observed.seen, chosen),
            features=observed.features,
            stored=observed.stored,
        ).graph

    return Trial(graph, observed.placement, made, lambda of: run_many(of, samples, reuse))


def _say_idle(settings: Settings, changes: Sequence[LayerChange]) -> None:
    """Notes of options that found nothing to change, or less than they allow."""
    done = Counter(change.step for change in changes)
    asked = {
        "equalize": ("equalization", settings.equalize is not None),
        "weight-rounding": ("rounding", settings.rounding != "nearest"),
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
    placement = place(graph, entries=settings.entries)
    if not placement.quantized:
        raise InputError(
            f"graph {graph.name!r}: expected a network that computes on float32 numbers, found "
            "none to quantize"
        )
    wanted = _kept(graph, settings, refined)
    kept: list[Sequence[Array]] = []
    first: list[Sequence[Array]] = []
    held: list[Sequence[Array]] = []
    count = 0
    scales: dict[str, tuple[Fraction, int]] = {}
    ranges: dict[str, tuple[Array, Array]] = {}  # of the features of inputs

    def keep(sample: Sequence[Array]) -> None:
        """Keep what the report compares and what is measured on."""
        nonlocal count
        count += 1
        feature_ranges(ranges, placement.features, dict(zip(graph.inputs, sample, strict=True)))
        if len(kept) < wanted:
            kept.append(sample)
        if count <= MEASURED * HELD_OUT:
            first.append(sample)
        if count % HELD_OUT == 0 and len(held) < MOST:
            held.append(sample)

    def settled(seen: Mapping[str, Statistics]) -> bool:
        """Whether the last `stop_early` samples changed no scale and no zero point."""
        nonlocal scales
        numbers = group_numbers(graph, placement, seen, settings)
        before, scales = scales, {name: (n.scale, n.zero_point) for name, n in numbers.items()}
        for name, ends in ranges.items():
            each = feature_numbers(graph, name, *ends)
            scales |= {f"{name}[{i}]": (n.scale, n.zero_point) for i, n in enumerate(each)}
        if before != scales:
            return False
        progress.note(
            f"calibration: stopped after {count} samples, of which the last {settings.stop_early} "
            "changed no scale"
        )
        return True

    names = (*placement.quantized, *placement.greatest.values())
    seen = observe(graph, samples, names, keep, settings.stop_early, settled)
    for name, greatest in placement.greatest.items():
        if name in seen and seen[name].low < min(seen[greatest].low, 0):
            seen[name] = seen[greatest]
    features = {name: feature_numbers(graph, name, *ends) for name, ends in ranges.items()}
    graph, copied = with_own_scales(graph, placement, seen)
    if copied:
        seen = {**seen, **copied}
        placement = replace(place(graph, entries=settings.entries), features=placement.features)
    measured = held if len(held) >= MEASURED else first
    return Observed(graph, changes, stored, placement, seen, features, kept, measured, first, count)


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
        widths, wider = most_sensitive(trial_of(observed, settings), converted, settings)
        settings = replace(settings, widths={**settings.widths, **widths})
        converted = convert(graph, placement, seen, settings, features=features, stored=stored)
        changes += wider
    if settings.refines:
        refined = kept[: affordable(graph, settings.refine_samples)]
        converted, more = refine(graph, converted, refined, settings)
        changes += more
    return converted, changes
