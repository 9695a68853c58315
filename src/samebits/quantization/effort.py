"""Steps beyond plain quantization, tried one after another and kept where they measurably help.

Every fourth sample is held out. Each step is a change of the settings; the network is quantized
anew on the other samples, calibrated once for every way to equalize, and the step is kept if the
error of the outputs on the held-out ones is smaller than before it, by so much that it is no
accident of a few samples. With the steps that were kept the network is then quantized on all
samples: ranges gain by each. Errors are sums in a fixed order, so the same steps are kept on every
machine.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np

from samebits import progress
from samebits.errors import InputError
from samebits.ir import Graph
from samebits.ir.fidelity import HELD_OUT
from samebits.ir.many import run_many
from samebits.ir.signal import sqnr
from samebits.quantization.observe import Sample, checked
from samebits.quantization.post_training import (
    Observed,
    Quantized,
    convert_observed,
    observe_graph,
    quantize_observed,
)
from samebits.quantization.report import StepReport
from samebits.quantization.settings import Settings
from samebits.quantization.trial import error

Array = np.ndarray[Any, Any]

LESS = 0.975  # of the error before: 0.1 dB
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
) -> Quantized:
    """As `quantize_observed`, with those steps that raise the outputs' signal-to-noise ratio.

    given: fields of the settings that the user chose: steps that would change them are left out
    steps: what is tried, in order: names, and settings to change

    Raises InputError for fewer than HELD_OUT samples, else what `quantize_observed` raises.
    """
    listed = list(checked(graph, samples))
    held = listed[HELD_OUT - 1 :: HELD_OUT]
    if not held:
        raise InputError(
            f"--effort high: expected at least {HELD_OUT} calibration samples, of which every "
            f"{HELD_OUT}th is kept to measure on, found {len(listed)}"
        )
    rest = [sample for i, sample in enumerate(listed) if (i + 1) % HELD_OUT]
    expected = run_many(graph, held)
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
        return error(expected, run_many(made, held))

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
    made = quantize_observed(graph, listed, settings)
    report = replace(made.report, steps=tuple(tries), held_out=len(held))
    return replace(made, report=report)


def _decibels(noise: float) -> float | None:
    return sqnr(1.0, noise)
