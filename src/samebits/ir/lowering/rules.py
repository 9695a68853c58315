"""The rule of every operator that has an integer form, and what to do without one."""

from __future__ import annotations

from collections.abc import Callable

from samebits.errors import UnsupportedError
from samebits.ir.graph import Node
from samebits.ir.lowering import dynamic, normalize, pointwise, products, resize, shape, trees
from samebits.ir.lowering.states import LoweringBuilder, State, States
from samebits.ir.ops import ops_with
from samebits.ir.traits import Trait

Rule = Callable[[LoweringBuilder, Node, States], list[State]]


_CHOICE = (
    "choose by a constant, by an integer input of zeros and ones, or with Max, Min, Clip, Relu"
)
# What to do where an operator has no integer form; of others: replace, or compute outside.
INSTEAD = {
    **dict.fromkeys(ops_with(Trait.DECISION), _CHOICE),
    "IsNaN": "leave the choice out: integers have no NaN",
    "CumSum": "multiply by a constant triangular matrix (MatMul)",
    "ReduceProd": "multiply the parts (Split, Mul)",
    "OneHot": "select rows of a constant identity matrix (Gather)",
    "Einsum": "write it as Transpose, Reshape and MatMul",
}

RULES: dict[str, Rule] = {
    **products.RULES,
    **dynamic.RULES,
    **pointwise.RULES,
    **normalize.RULES,
    **resize.RULES,
    **shape.RULES,
    **trees.RULES,
}


def rule_of(node: Node) -> Rule:
    """The rule of a node's operator. Raises UnsupportedError where there is none."""
    if node.op not in RULES:
        raise UnsupportedError(without_form(node))
    return RULES[node.op]


def without_form(node: Node) -> str:
    """The words for a node whose operator has no rule: expected, found, what to do."""
    hint = INSTEAD.get(node.op, "replace it, or compute it outside the network")
    return (
        f"node {node.name!r} ({node.op}): expected an operator with an integer form "
        f"(docs/spec/graph.md section 4), found {node.op}; {hint}"
    )
