"""Figures of a graph: the multiply-adds of a pass, the bytes of its constants, its hash."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from samebits.ir.graph import Graph, Node
from samebits.ir.ops import has, op_named
from samebits.ir.real.cell import LAYERS
from samebits.ir.real.recurrent import PROJECTION, R, W, X
from samebits.ir.traits import Trait
from samebits.ir.value import Value

# A transposed convolution has one of these attributes: results of several sizes have an operand of
# one size, so that it must state which. Its kernel is applied once for each element of the operand.
RESULT_SIZE = frozenset({"output_padding", "size"})


# --- work ---------------------------------------------------------------------------------------


def multiply_adds(graph: Graph) -> int:
    """The products that the sums of products of one evaluation take; of a step graph, of one step.

    Windows count whole, with what they hold of the padding. Sequences count at their full length.
    Point-wise operators, means and sums are not counted.
    """
    return sum(node_multiply_adds(graph, node) for node in graph.nodes)


def node_multiply_adds(graph: Graph, node: Node) -> int:
    """The products of one node: the elements of its weights or of a row, at every place where they
    are applied."""
    operands = [graph.values[name] if name else None for name in node.inputs]
    known = [value for value in operands if value is not None]
    if node.op in LAYERS:
        matrices = [operands[i] for i in (W, R, PROJECTION) if i < len(operands)]
        return math.prod(known[X].shape[:2]) * sum(m.size for m in matrices if m is not None)
    if node.op == "Einsum":
        return _einsum_products(known, node.attributes["equation"])
    if not has(node.op, Trait.PRODUCT):
        return 0
    result = graph.values[node.output]
    if has(node.op, Trait.SPATIAL):
        anchor = known[0] if RESULT_SIZE & node.attributes.keys() else result
        channels = -1 if op_named(node.op).integer else 1
        return anchor.size // max(anchor.shape[channels], 1) * known[1].size
    if has(node.op, Trait.WEIGHTED):
        return result.size // max(result.shape[-1], 1) * known[1].size
    return result.size * known[0].shape[-1]


def _einsum_products(operands: Sequence[Value], equation: str) -> int:
    """All combinations of indices, each a product of all operands. Axes that "..." stands for are
    counted from the last one."""
    sizes: dict[str | int, int] = {}
    terms = equation.replace(" ", "").partition("->")[0].split(",")
    for term, value in zip(terms, operands, strict=True):
        before, _, after = term.partition("...")
        hidden = len(value.shape) - len(before) - len(after)
        labels = [*before, *range(-hidden, 0), *after]
        for label, size in zip(labels, value.shape, strict=True):
            if sizes.setdefault(label, size) == 1:
                sizes[label] = size
    return math.prod(sizes.values()) * (len(operands) - 1)


# --- memory -------------------------------------------------------------------------------------


def constant_bytes(graph: Graph) -> int:
    """The bytes of all constants together."""
    return sum(array.nbytes for array in graph.constants.values())


# --- identity -----------------------------------------------------------------------------------


def graph_sha256(graph: Graph) -> str:
    """SHA-256 of the program that a graph is, whatever its values, nodes and graph are called.

    It covers, in this order: types, shapes, scales and zero points of the inputs; every node in
    its place, by operator, operands and all attributes, with the types, shapes and bytes (little-
    endian, row-major) of the constants it reads before it; types, shapes, scales and zero points of
    the outputs; what each state is at first and after a step. Values are numbered in the order in
    which they appear. Equal hashes mean the same computation; the same function may be computed by
    graphs of different hashes.
    """
    digest = hashlib.sha256()
    numbers: dict[str, int] = {}

    def say(line: str) -> None:
        digest.update(line.encode() + b"\n")

    def number(name: str) -> str:
        """The number of a value; a constant gets one, and is told, when it is first read."""
        if not name:
            return "-"
        if name not in numbers:
            array = graph.constants[name]
            numbers[name] = len(numbers)
            say(f"constant {array.dtype.name} {list(array.shape)}")
            little = array.astype(array.dtype.newbyteorder("<"), copy=False)
            digest.update(np.ascontiguousarray(little).tobytes())
        return str(numbers[name])

    for name in graph.inputs:
        numbers[name] = len(numbers)
        say(f"input {_type(graph.values[name])}")
    for node in graph.nodes:
        operands = [number(name) for name in node.inputs]
        attributes = [f"{key}={_text(node.attributes[key])}" for key in sorted(node.attributes)]
        say(" ".join([node.op, *operands, *attributes]))
        for name in node.outputs:
            numbers[name] = len(numbers)
    for name in graph.outputs:
        place = number(name)
        say(f"output {place} {_type(graph.values[name])}")
    for state in graph.states:
        places = [number(name) for name in (state.input, state.output, state.initial)]
        say(" ".join(["state", *places]))
    return digest.hexdigest()


def _type(value: Value) -> str:
    text = f"{value.dtype} {list(value.shape)}"
    if value.quantization is None:
        return text
    return f"{text} {value.quantization}"


def _text(value: Any) -> str:
    """An attribute, exactly: floats in hexadecimal, fractions as n/d."""
    if isinstance(value, tuple):
        return f"({','.join(map(_text, value))})"
    if isinstance(value, float):
        return value.hex()
    return str(value) if isinstance(value, Fraction) else repr(value)
