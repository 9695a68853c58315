"""Graphs of real and integer operators: data, rules, exact meaning, rewrites and lowering."""

from samebits.ir import integer, real
from samebits.ir.graph import Graph, GraphBuilder, Node, State
from samebits.ir.ops import has, ops_with
from samebits.ir.traits import Trait
from samebits.ir.value import Quantization, Value

__all__ = [
    "Graph",
    "GraphBuilder",
    "Node",
    "Quantization",
    "State",
    "Trait",
    "Value",
    "has",
    "integer",
    "ops_with",
    "real",
]
