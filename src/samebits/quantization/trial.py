"""Trials: what single tensors of a network cost its outputs, measured on samples.

A trial is the float network with some of its tensors quantized, all others exact. What each tensor
costs alone says which of them need more bits, and what kind of tensor loses a network: errors of
tensors add up about as if they were independent (Z. Dong et al., "HAWQ: Hessian aware quantization
of neural networks with mixed precision", 2019; the sensitivity profiles of R. Krishnamoorthi,
"Quantizing deep convolutional networks for efficient inference", 2018, section 3). Sums in one
order and comparisons of them: the same choice on every machine.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from samebits.ir import Graph, Trait, has
from samebits.ir.signal import away, power
from samebits.quantization.placement import Placement
from samebits.quantization.settings import WIDTHS

Array = np.ndarray[Any, Any]
Widths = Mapping[str, int]
Outputs = Sequence[Iterable[Array]]  # for each output its arrays, sample by sample

WEIGHTS, INPUT, DATA = "weights", "input", "data"  # data: all other activations
QUIET = 3e-4  # noise over signal that one tensor may always make: 35 dB


@dataclass(frozen=True, eq=False)
class Trial:
    """A float graph, and how it is quantized and measured.

    make: the graph with the tensors of a placement quantized, some of them with bits of their own
    run:  the outputs of a graph on the samples: one list of arrays for each
    """

    graph: Graph
    placement: Placement
    make: Callable[[Placement, Widths], Graph]
    run: Callable[[Graph], Outputs]

    @cached_property
    def expected(self) -> Outputs:
        """The outputs of the float graph."""
        return self.run(self.graph)

    def noise(self, placement: Placement, widths: Widths | None = None) -> float:
        """The noise that the quantized tensors make, over the signal."""
        return error(self.expected, self.run(self.make(placement, widths or {})))

    # --- parts of the placement -----------------------------------------------------------------

    @cached_property
    def groups(self) -> list[str]:
        """The groups of activations, in the order of the graph."""
        group = self.placement.group
        return list(dict.fromkeys(group[name] for name in self.placement.quantized))

    @cached_property
    def layers(self) -> dict[str, str]:
        """Nodes with constant weights -> these."""
        found = {}
        for node in self.graph.nodes:
            if has(node.op, Trait.PRODUCT) and len(node.inputs) > 1:
                weights = [name for name in node.inputs[:2] if name in self.graph.constants]
                if weights:
                    found[node.name] = weights[0]
        return found

    def only(self, groups: Collection[str], layers: Collection[str] = ()) -> Placement:
        """These groups of activations and the weights of these layers alone."""
        return only(self.placement, groups, layers)

    def causes(self) -> dict[str, float]:
        """The noise with nothing quantized but the weights, the inputs, the other activations."""
        inputs = self.placement.groups_of_inputs(self.graph) & set(self.groups)
        others = [name for name in self.groups if name not in inputs]
        parts = {
            WEIGHTS: self.placement.weights_alone(),
            INPUT: self.only(inputs),
            DATA: self.only(others),
        }
        return {cause: self.noise(part) for cause, part in parts.items()}


def only(placement: Placement, groups: Collection[str], layers: Collection[str] = ()) -> Placement:
    """A placement of these groups of activations and the weights of these layers alone."""
    return replace(
        placement,
        quantized=tuple(n for n in placement.quantized if placement.group[n] in groups),
        operands=frozenset(),
        biases={},
        layers=frozenset(layers),
    )


def error(expected: Outputs, found: Outputs) -> float:
    """The noise of the outputs over their signal, each output alone, added."""
    return sum(
        away(targets, made) / (power(targets) or 1.0)
        for targets, made in zip(expected, found, strict=True)
    )


def sufficient(
    trial: Trial, groups: Iterable[str], floor: float, steps: Sequence[int] = WIDTHS
) -> dict[str, int]:
    """The fewest bits of each group with which its rounding alone makes no more noise than `floor`.

    A bit more is a quarter of the noise. Groups for which the least of `steps` is enough are left
    out.
    """
    found = {}
    for group in groups:
        noise, base = trial.noise(trial.only({group})), steps[0]
        enough = [bits for bits in steps if noise <= floor * 4.0 ** (bits - base)]
        bits = enough[0] if enough else steps[-1]
        if bits != base:
            found[group] = bits
    return found
