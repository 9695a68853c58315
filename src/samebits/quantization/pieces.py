"""Parts of sequences: what a recurrent network is calibrated, tried, compared and judged on.

Parts that begin within a sequence do so from the state that the float network has there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from samebits import progress
from samebits.ir import Graph
from samebits.ir.fidelity import HELD_OUT, MEASURED
from samebits.ir.sequences import StepSequence, run_sequences
from samebits.quantization.levels import element_ranges
from samebits.quantization.observe import Statistics, check_finite, merged, statistics

Array = np.ndarray[Any, Any]

HELD_STEPS = 512  # that a verdict is measured on
COMPARED = 64  # steps of each sequence that the report compares
PROBES, PROBED = 16, 8  # parts of sequences, and steps of each, that single tensors are measured on


def compared_part(sequence: StepSequence) -> StepSequence:
    """The first steps of a sequence, as many as are compared."""
    return StepSequence([array[:COMPARED] for array in sequence.inputs], sequence.states)


def windows(
    graph: Graph, sequences: Sequence[StepSequence], runs: Sequence[Mapping[str, Array]]
) -> list[StepSequence]:
    """Parts of the sequences to measure single tensors on, each from the state that the float graph
    has there."""
    stride = -(-len(sequences) // PROBES)
    picked = range(0, len(sequences), stride)
    each = -(-PROBES // len(picked))
    found = []
    for index in picked:
        sequence, length = sequences[index], len(sequences[index])
        for start in sorted({part * length // each for part in range(each)}):
            found.append(_part(graph, sequence, runs[index], start, start + PROBED))
    return found


def held_back(
    graph: Graph, sequences: Sequence[StepSequence], runs: Sequence[Mapping[str, Array]]
) -> list[StepSequence]:
    """The sequences to measure the integers on: every fourth, or where there are few the last
    quarter of each, from the state that the float graph has there."""
    if len(sequences) >= HELD_OUT * MEASURED:
        found = list(sequences[HELD_OUT - 1 :: HELD_OUT])
    else:
        found = []
        for sequence, run in zip(sequences, runs, strict=True):
            start = len(sequence) - max(len(sequence) // HELD_OUT, 1)
            found.append(_part(graph, sequence, run, start, len(sequence)))
    most = max(1, HELD_STEPS // len(found))
    return [StepSequence([array[:most] for array in s.inputs], s.states) for s in found]


def _part(
    graph: Graph, sequence: StepSequence, run: Mapping[str, Array], start: int, stop: int
) -> StepSequence:
    """Steps of a sequence, from the state that the float graph has before the first of them."""
    states = sequence.states
    if start:
        states = [run[state.output][start - 1] for state in graph.states]
    return StepSequence([array[start:stop] for array in sequence.inputs], states)


def observe_steps(
    graph: Graph, sequences: Sequence[StepSequence], names: Iterable[str]
) -> tuple[dict[str, Statistics], list[dict[str, Array]]]:
    """Statistics of the named values, and the outputs of all steps of each sequence, next states
    among them."""
    progress.stage("calibrating")
    names, after = [*dict.fromkeys(names)], graph.outputs
    parts: dict[str, list[Statistics]] = {name: [] for name in names}
    runs = run_sequences(graph, sequences, [*dict.fromkeys([*names, *after])])
    for index, values in enumerate(runs):
        for name in names:
            check_finite(name, values[name], index)
            if values[name].size:
                parts[name].append(statistics(values[name]))
    kept = [{name: values[name] for name in after} for values in runs]
    return {name: merged(found) for name, found in parts.items() if found}, kept


def input_ranges(graph: Graph, sequences: Sequence[StepSequence]) -> dict[str, tuple[Array, Array]]:
    """The ends of every element of the inputs over all steps."""
    names = graph.own_inputs
    steps = zip(*(sequence.inputs for sequence in sequences), strict=True)
    joined = {name: np.concatenate(arrays) for name, arrays in zip(names, steps, strict=True)}
    return element_ranges(joined, names)


def halves_of(graph: Graph, runs: Sequence[Mapping[str, Array]]) -> dict[str, tuple[float, float]]:
    """The largest magnitude of each state in the first and in the second half of the sequences."""
    found = {}
    for state in graph.states:
        arrays = [np.abs(run[state.output]) for run in runs]
        halves = [np.split(array, [(len(array) + 1) // 2]) for array in arrays]
        first, second = (
            max(float(part.max(initial=0.0)) for part in parts)
            for parts in zip(*halves, strict=True)
        )
        found[state.input] = first, second
    return found
