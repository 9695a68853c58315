"""Graphs of real and integer operators: data, rules, exact meaning, rewrites and lowering."""

from samebits.ir import (
    integer_pointwise,
    integer_products,
    integer_reduce,
    integer_shape,
    real_linear,
    real_more,
    real_pointwise,
    real_quantize,
    real_recurrent,
    real_reduce,
    real_shape,
    real_window,
)
from samebits.ir.graph import Graph, GraphBuilder, Node, Quantization, State, Value

__all__ = [
    "Graph",
    "GraphBuilder",
    "Node",
    "Quantization",
    "State",
    "Value",
    "integer_pointwise",
    "integer_products",
    "integer_reduce",
    "integer_shape",
    "real_linear",
    "real_more",
    "real_pointwise",
    "real_quantize",
    "real_recurrent",
    "real_reduce",
    "real_shape",
    "real_window",
]
