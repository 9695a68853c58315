"""Graphs of real and integer operators: data, rules, exact meaning, rewrites and lowering."""

from samebits.ir import integer, real
from samebits.ir.graph import Graph, GraphBuilder, Node, Quantization, State, Value

__all__ = ["Graph", "GraphBuilder", "Node", "Quantization", "State", "Value", "integer", "real"]
