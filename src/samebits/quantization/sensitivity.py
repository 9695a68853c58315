"""Mixed precision: the tensors whose rounding costs the outputs most get twice the bits.

What a tensor costs is measured: the float network with this one tensor rounded, all others exact,
on samples of the calibration. (Errors of tensors add up about as if they were independent, which is
why each alone tells enough: Z. Dong et al., "HAWQ", 2019, and the sensitivity profiles of R.
Krishnamoorthi, "Quantizing deep convolutional networks for efficient inference", 2018, section
3.) Sums in one order and comparisons of them: the same choice on every machine.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from samebits import progress
from samebits.ir import Graph, Node
from samebits.ir.interpreter import carry, evaluate, trace
from samebits.quantization.calibrate import Calibrated
from samebits.quantization.convert import Converted, output_groups
from samebits.quantization.placement import Placement
from samebits.quantization.settings import Settings, doubled
from samebits.quantization.signal import LayerChange, away, power, sqnr
from samebits.quantization.weights import encode

Array = np.ndarray[Any, Any]

SAMPLES = 8  # that each tensor is rounded on


@dataclass(frozen=True)
class _Candidate:
    """A group of activations, or a weight, that could have twice the bits.

    key: of the group or constant; rounded: the activations that are rounded; weights: the constant
    that is replaced, as binary64
    """

    key: str
    op: str
    bits: int
    rounded: Mapping[str, Calibrated]
    weights: Mapping[str, Array]


def most_sensitive(
    graph: Graph,
    placement: Placement,
    converted: Converted,
    samples: Sequence[Sequence[Array]],
    settings: Settings,
) -> tuple[frozenset[str], tuple[LayerChange, ...]]:
    """Groups and weights, `settings.mixed` at most, of which each alone costs the outputs most.

    converted: the graph without them; the report's `before` is the ratio that each alone leaves
    """
    candidates = [*_activations(graph, placement, converted, settings), *_weights(graph, converted)]
    noise = [dict.fromkeys(graph.outputs, 0.0) for _ in candidates]
    signal = dict.fromkeys(graph.outputs, 0.0)
    kept = samples[:SAMPLES]
    for sample in progress.track(kept, "measuring sensitivity", len(kept)):
        values = trace(graph, sample)
        for name in graph.outputs:
            signal[name] += power([values[name]])
        for index, candidate in enumerate(candidates):
            changed = _changed(graph, values, candidate)
            for name in changed.keys() & signal.keys():
                noise[index][name] += away([values[name]], [changed[name]])
    costs = [sum(each[name] / (signal[name] or 1) for name in signal) for each in noise]
    ranked = sorted(range(len(candidates)), key=lambda index: (-costs[index], index))
    chosen = [index for index in ranked[: settings.mixed or 0] if costs[index] > 0]
    changes = tuple(
        LayerChange(
            *("precision", candidates[i].key, candidates[i].op),
            f"{2 * candidates[i].bits} bits; before: what it alone costs the outputs",
            sqnr(1.0, costs[i]),
        )
        for i in chosen
    )
    return frozenset(candidates[i].key for i in chosen), changes


def _activations(
    graph: Graph, placement: Placement, converted: Converted, settings: Settings
) -> Iterator[_Candidate]:
    """Groups of activations whose format has a wider one, and is not the one asked for."""
    given = set() if settings.output_bits is None else output_groups(graph, placement)
    groups: dict[str, dict[str, Calibrated]] = {}
    ops = {tensor.name: tensor.op for tensor in converted.tensors}
    for tensor in converted.tensors:
        group = placement.group[tensor.name]
        wider = doubled(tensor.numbers.format, weights=False)
        if not tensor.features and wider is not None and group not in given:
            groups.setdefault(group, {})[tensor.name] = tensor.numbers
    for group, members in groups.items():
        first, numbers = next(iter(members.items()))
        yield _Candidate(group, ops[first], numbers.format.bits, members, {})


def _weights(graph: Graph, converted: Converted) -> Iterator[_Candidate]:
    """Weights whose format has a wider one, each once."""
    listed: set[str] = set()
    constants = {constant.dequantized: constant for constant in converted.constants}
    for layer in converted.layers:
        found = constants[layer.weights]
        wider = doubled(found.codes.format, weights=True)
        if wider is None or found.name not in graph.constants or found.name in listed:
            continue
        listed.add(found.name)
        values = graph.constants[found.name].astype(np.float64)
        # A Gemm's factor is part of what was rounded.
        node = next(node for node in graph.nodes if node.name == layer.name)
        away = found.codes.reals() - found.values
        replaced = values + away / node.attributes.get("alpha", 1.0)
        yield _Candidate(found.name, layer.op, found.codes.format.bits, {}, {found.name: replaced})


def _changed(graph: Graph, values: Mapping[str, Array], candidate: _Candidate) -> dict[str, Array]:
    """Every value that differs, binary64, where one candidate is rounded."""
    changed = dict(candidate.weights)

    def keep(name: str, array: Array) -> None:
        numbers = candidate.rounded.get(name)
        if numbers is not None:
            array = encode(np.asarray(array, np.float32), [numbers], None).reals()
        changed[name] = array

    def read(node: Node) -> Iterator[Array | None]:
        for name in node.inputs:
            if not name:
                yield None
            elif name in changed:
                yield changed[name]
            else:
                known = values[name] if name in values else graph.constants[name]
                yield carry(known, graph.values[name].dtype, False)

    for name in graph.inputs:
        if name in candidate.rounded:
            keep(name, values[name])
    for node in graph.nodes:
        if changed.keys() & set(node.inputs):
            made = evaluate(node, list(read(node)), graph.values)
            for name, array in zip(node.outputs, made, strict=False):
                keep(name, array)
        else:
            for name in node.outputs:
                if name in candidate.rounded:
                    keep(name, values[name])
    return changed
