"""Weights that a float network has as codes: weight-only files of torchao and onnxruntime.

They are read as the numbers that they stand for, and calibration runs on those. Where the codes
have a scale for the tensor or for each output, they stay what they are; blocks and others are
rounded again to the weights' format.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np

from samebits.ir import Graph, Node
from samebits.ir.interpreter import carry
from samebits.ir.ops import op_named
from samebits.ir.real.quantize import is_stored
from samebits.ir.rewrite import Edit, rewrite, simplify
from samebits.numerics import Format, catalog
from samebits.quantization.weights import WeightCodes

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class FloatNetwork:
    """A graph whose weights are numbers, and the codes that some of them had, by name."""

    graph: Graph
    codes: Mapping[str, WeightCodes]

    def codes_of(self, other: Graph) -> Mapping[str, WeightCodes]:
        """Those of weights that another graph, made of this one, has unchanged."""
        same, own = other.constants, self.graph.constants
        return {
            name: codes
            for name, codes in self.codes.items()
            if name in same and np.array_equal(same[name], own[name])
        }


def float_network(graph: Graph) -> FloatNetwork:
    """The network with every DequantizeLinear of constants computed, rounded to its type once."""
    found: dict[str, WeightCodes] = {}

    def rule(edit: Edit, node: Node) -> list[Node] | None:
        """No node where the result is a constant: numbers, and their codes if they can stay."""
        arrays = [edit.constants.get(name) if name else None for name in node.inputs]
        codes: WeightCodes | None
        if node.op == "Transpose" and node.inputs[0] in found:
            codes = _transposed(found[node.inputs[0]], node.attributes["perm"])
            reals = edit.constants[node.inputs[0]].transpose(node.attributes["perm"])
        elif is_stored(node, edit.constants):
            carried = [None if a is None else carry(a, a.dtype.name, False) for a in arrays]
            values = op_named(node.op).meaning([*carried, None][:3], node.attributes)[0]
            reals, codes = values.astype(edit.values[node.output].dtype), _codes(node, arrays)
        else:
            return None
        if codes is not None:
            found[node.output] = codes
        edit.constants[node.output] = np.array(reals, order="C")
        return []

    plain = rewrite(graph, rule)
    if plain is graph:
        return FloatNetwork(graph, {})
    simple = simplify(plain)
    return FloatNetwork(simple, {n: c for n, c in found.items() if n in simple.constants})


def _codes(node: Node, arrays: list[Array | None]) -> WeightCodes | None:
    """Codes of 8 or 16 bits with a scale for all or for each index of an axis."""
    codes, scale, zero = (*arrays, None)[:3]
    assert codes is not None
    assert scale is not None
    fmt = _format(codes.dtype.name, zero)
    if fmt is None or node.attributes["block_size"] or codes.size == 0:
        return None
    zeros = np.zeros(scale.size, np.int64) if zero is None else zero.reshape(-1)
    return WeightCodes(
        codes,
        fmt,
        tuple(Fraction(float(s)) for s in scale.reshape(-1)),
        tuple(np.broadcast_to(zeros, scale.size).tolist()),
        node.attributes["axis"] % codes.ndim if scale.size > 1 else None,
    )


def _format(dtype: str, zero: Array | None) -> Format | None:
    """The format of such codes, of those that weights may have."""
    offset = zero is not None and bool(np.any(zero))
    if dtype in ("int8", "uint8"):
        signed = dtype == "int8"
        return catalog.asymmetric(8, signed) if offset or not signed else catalog.symmetric(8, True)
    return catalog.symmetric(16, True) if dtype == "int16" and not offset else None


def _transposed(found: WeightCodes, perm: tuple[int, ...]) -> WeightCodes:
    axis = None if found.axis is None else perm.index(found.axis)
    return replace(found, codes=np.array(found.codes.transpose(perm), order="C"), axis=axis)
