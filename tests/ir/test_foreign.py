"""What importers share: tables of rules, and a foreign node that emits into a graph."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from samebits.ir import GraphBuilder
from samebits.ir.foreign import ForeignNode, Result, enter_rule

RULES: dict[str, Callable[[ForeignNode], Result]] = {}


@enter_rule(RULES, ["half", "halve"])
def _half(node: ForeignNode) -> Result:
    return node.emit("Div", node.cast("x", "float64"), node.number(2, "float64"))


def test_a_rule_serves_all_of_its_names_and_no_name_has_two() -> None:
    assert {"half": _half, "halve": _half} == RULES
    with pytest.raises(ValueError, match="halve has two rules"):
        enter_rule(RULES, ["third", "halve"])(_half)


def test_a_rule_emits_real_operators_named_after_the_foreign_node() -> None:
    builder = GraphBuilder("g")
    builder.input("x", "int32", (3, 1))
    node = ForeignNode(builder, "half", "layer.half", "half in layer")
    y = RULES[node.op](node)
    assert isinstance(y, str)
    assert (node.dtype_of(y), node.shape_of(y), node.rank_of(y)) == ("float64", (3, 1), 2)
    assert node.cast(y, "float64") == y
    graph = builder.build([y])
    assert [(n.op, n.name) for n in graph.nodes] == [
        ("Cast", "layer.half"),
        ("Div", "layer.half.2"),
    ]
    assert {name: array.item() for name, array in graph.constants.items()} == {
        "layer.half.constant": 2.0
    }


def test_all_outputs_of_an_operator() -> None:
    builder = GraphBuilder("g")
    builder.input("x", "float32", (4, 2))
    node = ForeignNode(builder, "chunk", "chunk", "chunk")
    parts = node.emit_all("Split", "x", axis=0, sizes=(1, 3))
    assert [node.shape_of(part) for part in parts] == [(1, 2), (3, 2)]
    assert node.constant(np.ones(2, np.float32)) == node.constant(np.ones(2, np.float32))
