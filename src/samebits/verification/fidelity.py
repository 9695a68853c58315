"""How much a quantized network keeps of the float one: its integers, measured on samples."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from samebits import progress
from samebits.ir import Graph
from samebits.ir.fidelity import Fidelity, Held, compared, thinned
from samebits.ir.many import run_many
from samebits.ir.sequences import StepSequence, run_sequences
from samebits.model import Model
from samebits.verification.inputs import dequantize, quantize_samples

Array = np.ndarray[Any, Any]


def measured(model: Model, held: Held, lost: Iterable[str] = ()) -> Fidelity:
    """Measure the integers of a model on what is held back; without a cause.

    held: the float network with the same inputs and outputs, and samples
    lost: tensors that are known to keep little
    """
    progress.stage("measuring the integers against the float network")
    integer, graph = model.integer, held.graph
    if held.sequences:
        coded = [_coded(integer, sequence) for sequence in held.samples]
        found = _steps(run_sequences(integer, coded), integer.own_outputs, integer, held.last)
        wanted = _steps(run_sequences(graph, held.samples), graph.own_outputs, graph, held.last)
    else:
        samples = thinned(held.samples, graph)
        codes = [
            [
                _codes(array, integer, name)
                for array, name in zip(sample, integer.inputs, strict=True)
            ]
            for sample in samples
        ]
        found = dict(zip(integer.outputs, run_many(integer, codes), strict=True))
        wanted = dict(zip(graph.outputs, run_many(graph, samples), strict=True))
    names = graph.own_outputs
    reals = {
        name: _reals(found[own], integer, own)
        for name, own in zip(names, integer.own_outputs, strict=True)
    }
    count = len(next(iter(reals.values()))) if reals else 0
    return Fidelity(count, compared(names, wanted, reals), tuple(lost))


def _coded(integer: Graph, sequence: StepSequence) -> StepSequence:
    """A sequence of reals as codes, its first states too."""
    inputs = zip(sequence.inputs, integer.own_inputs, strict=True)
    states = None
    if sequence.states is not None:
        own = [state.input for state in integer.states]
        pairs = zip(sequence.states, own, strict=True)
        states = [_codes(array, integer, name) for array, name in pairs]
    return StepSequence([_codes(array, integer, name) for array, name in inputs], states)


def _codes(array: Array, integer: Graph, name: str) -> Array:
    value = integer.values[name]
    if value.quantization is None:
        return array.astype(value.dtype)
    return quantize_samples(array, value)


def _reals(array: Array, integer: Graph, name: str) -> Array:
    value = integer.values[name]
    return array if value.quantization is None else dequantize(array, value)


def _steps(
    runs: Sequence[Mapping[str, Array]], names: Sequence[str], graph: Graph, last: frozenset[str]
) -> dict[str, Array]:
    """Each output at all steps of all sequences, or at the last of each."""
    return {
        name: np.concatenate([run[name][-1:] if name in last else run[name] for run in runs])
        for name in names
    }
