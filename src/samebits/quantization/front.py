"""One way in for every float network: options that apply to it, and the quantization it needs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from samebits import progress
from samebits.errors import InputError, UnsupportedError
from samebits.ir import Graph, Trait, has
from samebits.ir.fidelity import HELD_OUT, Fidelity
from samebits.ir.sequences import StepSequence
from samebits.ir.steps import Steps, is_recurrent
from samebits.quantization.effort import CLIPPING, quantize_best
from samebits.quantization.levels import element_ranges, levelled
from samebits.quantization.lstm import (
    QuantizedSteps,
    RecurrentSettings,
    quantize_steps,
    whole_calls,
    whole_sequences,
)
from samebits.quantization.magnitude import basis_widths
from samebits.quantization.post_training import Quantized, quantize_observed
from samebits.quantization.samples import Samples, samples_of
from samebits.quantization.settings import Settings
from samebits.quantization.states import state_sequences
from samebits.quantization.trial import DATA, INPUT, WEIGHTS
from samebits.recipes.quantization import STEP, WHOLE, Calibration, Formats, Recurrence

Array = np.ndarray[Any, Any]

FORMATS = ("scheme", "weights", "mixed")  # who chose one of these wants no other bits
ADVICE = {
    "scheme": "its activations have 8 or 16 bits: give --bits",
    "weights": "its weights have 8 bits",
    "output_bits": "its outputs have the bits of h: give --bits",
    "per_tensor": "its weights have a scale for each matrix of a gate, with --bits 16 each row",
    "stop_early": "its sequences are all read: give fewer",
    "equalize": "its gates have scales of their own",
    "weight_rounding": "its weights are rounded to nearest",
    "bias_correction": "its biases are rounded to nearest",
    "mixed": "give --bits 16",
    "effort": "there is one way to quantize it",
    "finetune": "train it on before quantizing it",
    "bits": "give --scheme asymmetric-s16",
}


HELP = {
    WEIGHTS: "--weights symmetric-s16 keeps them",
    INPUT: "--scheme asymmetric-s16 keeps it, and so do inputs of one range",
    DATA: "--scheme asymmetric-s16 or --mixed N keeps it, and --calibrate mse may",
}
RECURRENT_HELP = {
    WEIGHTS: "its weights have 8 bits: train it to weights of one range",
    INPUT: "--bits 16 keeps it, and so do inputs of one range",
}
BITS_HELP = "--bits 16, or calibration on longer sequences, may keep it"


def judged(verdict: Fidelity, made: Quantized | QuantizedSteps) -> Fidelity:
    """A bad verdict with its cause, the kind of tensor that alone costs most, and what helps."""
    if not verdict.bad:
        return verdict
    ratios = {cause: math.inf if r is None else r for cause, r in made.causes().items()}
    cause = min(ratios, key=lambda name: ratios[name])
    if isinstance(made, Quantized):
        return replace(verdict, cause=cause, advice=HELP[cause])
    return replace(verdict, cause=cause, advice=RECURRENT_HELP.get(cause, BITS_HELP))


PLAIN = (
    "stop_early",
    "equalize",
    "weight_rounding",
    "bias_correction",
    "effort",
)  # of feed-forward ones


@dataclass(frozen=True)
class Options:
    """The recipes of a quantization. finetune: whether it is to be trained on afterwards."""

    formats: Formats
    calibration: Calibration
    recurrence: Recurrence
    finetune: Any = None

    @property
    def plain(self) -> dict[str, Any]:
        """Options of feed-forward networks that were given."""
        kept = {name: getattr(self.calibration, name) for name in PLAIN}
        return _chosen(self.formats.values() | kept)

    @property
    def common(self) -> dict[str, Any]:
        """Settings of both kinds that were given."""
        given = self.calibration
        return _chosen({"calibration": given.calibrate, "percentile": given.percentile})

    @property
    def gated(self) -> dict[str, Any]:
        """Settings of recurrent networks that were given."""
        given = self.recurrence.values()
        return _chosen({name: given[name] for name in ("bits", "symmetry", "gates", "float_bias")})

    def check(self, graph: Graph) -> None:
        """InputError for an option that the other kind of network has, or that lacks another."""
        recurrent, sequence = _recurrent(graph), self.recurrence.sequence
        tuned = {"finetune": self.finetune}
        gated = {**self.gated, "sequence": sequence}
        others, kind = (
            ({**self.plain, **tuned}, "a recurrent") if recurrent else (gated, "a feed-forward")
        )
        for name, value in _chosen(others).items():
            raise InputError(
                f"--{name.replace('_', '-')} does not apply to {kind} network, found {value}; "
                f"{ADVICE.get(name, 'leave it out')}"
            )
        percentile, method = self.calibration.percentile, self.calibration.calibrate
        if percentile is not None and method != "percentile":
            raise InputError(
                f"--percentile {percentile} needs --calibrate percentile, found "
                f"{method or 'the default'}; give both, or leave --percentile out"
            )
        if sequence not in (None, STEP, WHOLE):
            raise InputError(
                f"--sequence: expected {STEP} or {WHOLE}, found {sequence!r}; {STEP} is one "
                f"time step a call, {WHOLE} the whole sequence"
            )

    def settings(self) -> dict[str, Any]:
        """Fields of Settings that were given."""
        renamed = {
            "scheme": "activations",
            "per_tensor": "per_channel",
            "weight_rounding": "rounding",
        }
        found = {**self.plain, **self.common}
        found.pop("effort", None)
        if "per_tensor" in found:
            found["per_tensor"] = not found["per_tensor"]
        return {renamed.get(name, name): value for name, value in found.items()}


def quantize_network(
    graph: Graph, arrays: Mapping[str, Array], options: Options, where: str
) -> Quantized | QuantizedSteps:
    """A float network in QDQ form, whatever its kind, what that cost, and what to measure it on.

    In networks with attention minmax and mse are both tried, if neither was chosen: a transformer's
    few large elements decide its steps, and which of the two is better differs by decibels from
    network to network (docs/results.md). Other networks keep minmax.

    arrays: [samples, ...] for each input; where: what messages call them. Raises InputError for
    samples that do not fit.
    """
    if not _recurrent(graph):
        samples, settings = samples_of(arrays, graph, where), options.settings()
        found = levelled(graph, element_ranges(samples.arrays, graph.inputs))
        free = all(getattr(options.formats, name) is None for name in FORMATS)
        chosen = Settings(**settings, entries=found.entries, repair=free)
        if options.formats.weights is None:
            bits = chosen.activation_format.bits
            chosen = replace(chosen, widths=basis_widths(found.graph, bits))
        if options.calibration.effort == "high":
            made = quantize_best(found.graph, samples, chosen, settings)
        elif "calibration" not in settings and len(samples) >= HELD_OUT and attends(graph):
            made = quantize_best(found.graph, samples, chosen, settings, CLIPPING)
        else:
            made = quantize_observed(found.graph, samples, chosen)
        changes = (*found.changes, *made.report.changes)
        return replace(made, report=replace(made.report, changes=changes))
    recurrent = RecurrentSettings(**options.gated, **options.common)
    if graph.states:
        return quantize_steps(*state_sequences(graph, arrays, where), recurrent)
    samples = samples_of(arrays, graph, where)
    return quantize_steps(*_sequences(graph, samples, options.recurrence.sequence), recurrent)


def _sequences(
    graph: Graph, samples: Samples, sequence: str | None
) -> tuple[Steps, list[StepSequence]]:
    """A network with recurrent layers as steps or over whole sequences, and samples for it."""
    if sequence == WHOLE:
        return whole_calls(graph, samples)
    try:
        return whole_sequences(graph, samples)
    except UnsupportedError as error:
        if sequence == STEP:
            raise UnsupportedError(
                f"--sequence {STEP}: {error}; --sequence {WHOLE} takes whole sequences"
            ) from error
        progress.note(
            f"sequence: a call takes whole sequences, because no time step stands alone ({error})"
        )
        return whole_calls(graph, samples)


def attends(graph: Graph) -> bool:
    """Whether two tensors that depend on the inputs are multiplied, as attention does."""
    dependent = set(graph.inputs)
    for node in graph.nodes:
        found = [name for name in node.inputs if name in dependent]
        if has(node.op, Trait.PRODUCT) and len(found) > 1:
            return True
        if found:
            dependent.update(node.outputs)
    return False


def _recurrent(graph: Graph) -> bool:
    return is_recurrent(graph) or bool(graph.states)


def _chosen(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options that were given."""
    return {name: value for name, value in options.items() if value is not None}
