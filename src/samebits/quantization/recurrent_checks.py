"""Refusals before calibration, by layer and gate: parameters that are not finite, constant data."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from samebits.errors import InputError, NonFiniteError
from samebits.ir import Graph
from samebits.ir.real.cell import LAYERS
from samebits.ir.real.recurrent import PEEPHOLE, B, R, W
from samebits.quantization.observe import Statistics

_PEEPHOLES = "iof"


def check_parameters(graph: Graph) -> None:
    """NonFiniteError that names the layer and the gate of a weight or bias that is not finite."""
    for node in graph.nodes:
        if node.op not in LAYERS:
            continue
        gates = LAYERS[node.op].gates
        inputs = [*node.inputs, *[""] * (PEEPHOLE + 1 - len(node.inputs))]
        for index, what, letters in (
            (W, "weights of x", gates),
            (R, "weights of h", gates),
            (B, "biases", 2 * gates),
            (PEEPHOLE, "peephole weights", _PEEPHOLES),
        ):
            array = graph.constants.get(inputs[index])
            if array is None or np.isfinite(array).all():
                continue
            parts = array.reshape(array.shape[0], len(letters), -1)
            _, gate, place = (int(i) for i in np.argwhere(~np.isfinite(parts))[0])
            raise NonFiniteError(
                f"layer {node.name!r}, gate {letters[gate]!r}: expected finite {what}, found "
                f"{parts[:, gate].reshape(-1)[place]}; repair the model before quantizing"
            )


def check_varying(
    graph: Graph, seen: Mapping[str, Statistics], gates: Iterable[tuple[str, str]]
) -> None:
    """InputError that names the first layer and gate where an input of a step graph has one value
    in all samples. gates: layers and gates, in order."""
    for name in graph.own_inputs:
        if name in seen and seen[name].low == seen[name].high:
            layer, gate = next(iter(gates), ("", ""))
            where = f"layer {layer!r}, gate {gate!r}" if gate else f"graph {graph.name!r}"
            raise InputError(
                f"{where}: expected calibration sequences that vary, found {seen[name].low:g} in "
                f"every element of input {name!r}; give sequences as the model will see them"
            )
