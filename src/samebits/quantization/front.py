"""One way in for every float network: options that apply to it, and the quantization it needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from samebits.errors import InputError
from samebits.ir import Graph, Trait, has
from samebits.ir.steps import is_recurrent
from samebits.quantization.effort import CLIPPING, HOLD_OUT, quantize_best
from samebits.quantization.lstm import RecurrentReport, RecurrentSettings, quantize_recurrent
from samebits.quantization.post_training import quantize_graph
from samebits.quantization.report import QuantizationReport
from samebits.quantization.samples import samples_of
from samebits.quantization.settings import EFFORTS, Settings
from samebits.quantization.states import quantize_states

Array = np.ndarray[Any, Any]

ADVICE = {
    "scheme": "its activations have 8 or 16 bits: give --bits",
    "weights": "its weights have 8 bits",
    "output_bits": "its outputs have the bits of h: give --bits",
    "per_tensor": "its weights have a scale for each matrix of a gate, with --bits 16 each row",
    "stop_early": "its sequences are all read: give fewer",
    "equalize": "its gates have scales of their own",
    "rounding": "its weights are rounded to nearest",
    "bias_correction": "its biases are rounded to nearest",
    "mixed": "give --bits 16",
    "effort": "there is one way to quantize it",
    "finetune": "train it on before quantizing it",
    "bits": "give --scheme asymmetric-s16",
}


@dataclass(frozen=True)
class Options:
    """Options by name, None where one was not given.

    plain: of feed-forward networks; gated: of recurrent ones; common: of both, as settings
    """

    plain: Mapping[str, Any]
    gated: Mapping[str, Any]
    common: Mapping[str, Any]

    def check(self, graph: Graph) -> None:
        """InputError for an option that the other kind of network has, or that lacks another."""
        recurrent = _recurrent(graph)
        others, kind = (self.plain, "a recurrent") if recurrent else (self.gated, "a feed-forward")
        for name, value in _chosen(others).items():
            raise InputError(
                f"--{name.replace('_', '-')} does not apply to {kind} network, found {value}; "
                f"{ADVICE.get(name, 'leave it out')}"
            )
        percentile, method = self.common["percentile"], self.common["calibration"]
        if percentile is not None and method != "percentile":
            raise InputError(
                f"--percentile {percentile} needs --calibrate percentile, found "
                f"{method or 'the default'}; give both, or leave --percentile out"
            )
        epochs = self.plain["epochs"]
        if epochs is not None and (epochs < 1 or self.plain["finetune"] is None):
            raise InputError(
                f"--epochs: expected 1 or more, with --finetune DATA, found {epochs} "
                f"{'with' if self.plain['finetune'] is not None else 'without'} it"
            )
        effort = self.plain["effort"]
        if effort not in (None, *EFFORTS):
            raise InputError(f"--effort: expected one of {', '.join(EFFORTS)}, found {effort!r}")

    def settings(self) -> dict[str, Any]:
        """Fields of Settings that were given."""
        renamed = {"scheme": "activations", "per_tensor": "per_channel"}
        found = _chosen({**self.plain, **self.common})
        for name in ("effort", "finetune", "epochs"):
            found.pop(name, None)
        if "per_tensor" in found:
            found["per_tensor"] = not found["per_tensor"]
        return {renamed.get(name, name): value for name, value in found.items()}


def quantize_network(
    graph: Graph, arrays: Mapping[str, Array], options: Options, where: str
) -> tuple[Graph, QuantizationReport | RecurrentReport]:
    """A float network in QDQ form, whatever its kind, and what that cost.

    In networks with attention minmax and mse are both tried, if neither was chosen: a transformer's
    few large elements decide its steps, and which of the two is better differs by decibels from
    network to network (docs/results.md). Other networks keep minmax.

    arrays: [samples, ...] for each input; where: what messages call them. Raises InputError for
    samples that do not fit.
    """
    if not _recurrent(graph):
        samples, settings = samples_of(arrays, graph, where), options.settings()
        chosen = Settings(**settings)
        if options.plain["effort"] == "high":
            return quantize_best(graph, samples, chosen, settings)
        if "calibration" not in settings and len(samples) >= HOLD_OUT and attends(graph):
            return quantize_best(graph, samples, chosen, settings, CLIPPING)
        return quantize_graph(graph, samples, chosen)
    recurrent = RecurrentSettings(**_chosen({**options.gated, **options.common}))
    if graph.states:
        return quantize_states(graph, arrays, recurrent, where)
    return quantize_recurrent(graph, samples_of(arrays, graph, where), recurrent)


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
