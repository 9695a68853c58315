"""Steps beyond plain quantization, tried one after another and kept where they measurably help.

Every fourth sample is held out. Each step is a change of the settings; the network is quantized
anew on the other samples, calibrated once for every way to equalize, and the step is kept if the
error of the outputs on the held-out ones is smaller than before it, by so much that it is no
accident of a few samples. With the steps that were kept the network is then quantized on all
samples: ranges gain by each. Errors are sums in a fixed order, so the same steps are kept on every
machine.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from samebits import progress
from samebits.errors import InputError
from samebits.ir import Graph
from samebits.ir.interpreter import run
from samebits.quantization.observe import Sample, checked
from samebits.quantization.post_training import (
    Observed,
    convert_observed,
    observe_graph,
    quantize_graph,
)
from samebits.quantization.report import QuantizationReport, StepReport
from samebits.quantization.settings import Settings
from samebits.quantization.signal import away, power, sqnr

Array = np.ndarray[Any, Any]

LESS = 0.975  # of the error before: 0.1 dB
HOLD_OUT = 4  # every fourth sample is not quantized on
Steps = tuple[tuple[str, dict[str, Any]], ...]
CLIPPING: Steps = (("clip at the least squared error", {"calibration": "mse"}),)
STEPS: Steps = (
    *CLIPPING,
    ("clip 0.01 % of the elements", {"calibration": "percentile"}),
    ("equalize weights", {"equalize": "weights"}),
    ("equalize activations", {"equalize": "activations"}),
    ("correct biases", {"bias_correction": True}),
    ("round weights to least error", {"rounding": "least-error", "bias_correction": True}),
)


def quantize_best(
    graph: Graph,
    samples: Iterable[Sample],
    settings: Settings,
    given: Iterable[str] = (),
    steps: Steps = STEPS,
) -> tuple[Graph, QuantizationReport]:
    """As `quantize_graph`, with those steps that raise the outputs' signal-to-noise ratio.

    given: fields of the settings that the user chose: steps that would change them are left out
    steps: what is tried, in order: names, and settings to change

    Raises InputError for fewer than HOLD_OUT samples, else what `quantize_graph` raises.
    """
    listed = list(checked(graph, samples))
    held = listed[HOLD_OUT - 1 :: HOLD_OUT]
    if not held:
        raise InputError(
            f"--effort high: expected at least {HOLD_OUT} calibration samples, of which every "
            f"{HOLD_OUT}th is kept to measure on, found {len(listed)}"
        )
    rest = [sample for i, sample in enumerate(listed) if (i + 1) % HOLD_OUT]
    expected = [run(graph, sample) for sample in held]
    known: dict[str | None, Observed] = {}

    def observed(tried: Settings) -> Observed:
        """One for every way to equalize; a new one for every step with `stop_early`, as the
        settings decide then how many samples are read."""
        if tried.stop_early is not None or tried.equalize not in known:
            known[tried.equalize] = observe_graph(graph, rest, tried, tried.refine_samples)
        return known[tried.equalize]

    def attempt(name: str, tried: Settings) -> float:
        progress.stage(f"trying: {name}")
        made = convert_observed(observed(tried), tried)[0].graph
        return error(expected, [run(made, sample) for sample in held])

    least = attempt("plain", settings)
    tries = [StepReport("plain", _decibels(least), True)]
    chosen = set(given)
    for name, wished in steps:
        changed = {k: value for k, value in wished.items() if getattr(settings, k) != value}
        if not changed or chosen & set(changed):
            continue
        tried = replace(settings, **changed)
        found = attempt(name, tried)
        better = found < LESS * least
        tries.append(StepReport(name, _decibels(found), better))
        if better:
            least, settings = found, tried
    known.clear()
    progress.stage("quantizing with the steps kept")
    made, report = quantize_graph(graph, listed, settings)
    return made, replace(report, steps=tuple(tries), held_out=len(held))


def error(expected: Sequence[Sequence[Array]], found: Sequence[Sequence[Array]]) -> float:
    """The noise of the outputs over their signal, each output alone, added."""
    total = 0.0
    for targets, made in zip(zip(*expected, strict=True), zip(*found, strict=True), strict=True):
        total += away(targets, made) / (power(targets) or 1.0)
    return total


def _decibels(noise: float) -> float | None:
    return sqnr(1.0, noise)
