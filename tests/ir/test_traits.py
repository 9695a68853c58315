"""Traits of operators: their table, what implies what, and that nothing else lists operators."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from samebits.ir import Trait, has, ops_with, steps
from samebits.ir.lowering.rules import RULES
from samebits.ir.ops import Op, known_ops, op_named
from samebits.ir.traits import IMPLIED
from samebits.onnx.reader.node import RULES as IMPORTED
from samebits.tables.expression import OPERATORS

SOURCE = Path(__file__).resolve().parents[2] / "src" / "samebits"
RECORDS = ("ir/real/", "ir/integer/", "spec/graph.py")  # state traits, or define operators
COLLECTIONS = (ast.Tuple, ast.List, ast.Set)
NAMES = frozenset(op.name for op in known_ops())


# --- the table ----------------------------------------------------------------------------------


def test_the_table(golden):
    """One line for each operator: what joins or leaves a pass is one line of a diff."""

    def line(op: Op) -> str:
        traits = " ".join(sorted(trait.name for trait in op.traits))
        return f"{op.name:21} {traits or '-'}\n"

    ordered = sorted(known_ops(), key=lambda op: (op.integer, op.name))
    golden("tests/golden/traits.txt", "".join(map(line, ordered)))


def test_an_unknown_operator_has_no_trait():
    assert not has("NoSuchOperator", *Trait)
    assert not has("", Trait.POINTWISE)


def test_real_and_integer_operators_stay_apart():
    for trait in Trait:
        assert not any(op_named(name).integer for name in ops_with(trait))
        assert all(op_named(name).integer for name in ops_with(trait, integer=True))
    assert ops_with(*Trait) == frozenset().union(*map(ops_with, Trait))


# --- implications -------------------------------------------------------------------------------


def test_records_have_what_their_traits_imply():
    for trait, implied in IMPLIED.items():
        for integer in (False, True):
            for other in implied:
                assert ops_with(trait, integer=integer) <= ops_with(other, integer=integer)
    assert ops_with(Trait.WEIGHTED) <= ops_with(Trait.ACCUMULATES)  # by way of PRODUCT
    assert ops_with(Trait.RESHAPES) <= ops_with(Trait.UNROUNDED)  # by way of MOVEMENT


def test_a_function_is_what_tables_evaluate():
    """Cast between float types changes nothing, and a Mean is a Sum and a product."""
    assert ops_with(Trait.FUNCTION) - {"Cast", "Mean"} == OPERATORS.keys() - {"Requantize"}


def test_passes_have_a_rule_for_every_operator_with_the_trait():
    assert ops_with(Trait.FUNCTION) <= RULES.keys()
    assert ops_with(Trait.MOVEMENT, Trait.SELECTION) <= RULES.keys()
    assert ops_with(Trait.ACCUMULATES) <= RULES.keys()
    for trait in (Trait.POINTWISE, Trait.RESHAPES, Trait.ALONG):
        assert ops_with(trait) <= steps._RULES.keys()
    # What ONNX calls by another name has another rule in onnx.reader.mapping.
    assert ops_with(Trait.POINTWISE) <= {name for domain, name in IMPORTED if not domain}


@pytest.mark.parametrize("name", sorted(ops_with(*Trait) | ops_with(*Trait, integer=True)))
def test_records_are_as_their_traits_say(name):
    op = op_named(name)
    if has(name, Trait.WEIGHTED):
        assert op.inputs[1] == 3  # x, w and a bias
    if has(name, Trait.PRODUCT):
        assert op.inputs[0] >= 2
    if has(name, Trait.FUNCTION):
        assert op.inputs in ((1, 1), (2, 2), (1, None))
    if has(name, Trait.NEUTRAL):
        assert op.inputs[0] == 1
    if has(name, Trait.REDUCES):
        assert {"axes", "keepdims"} <= op.attributes.keys()
    if has(name, Trait.ALONG):
        assert "axis" in op.attributes


# --- no lists of operators elsewhere ------------------------------------------------------------


def literal(node: ast.expr) -> list[str]:
    """The operators in a literal tuple, list or set, those of literals spread in it included."""
    found = []
    for item in node.elts if isinstance(node, COLLECTIONS) else ():
        if isinstance(item, ast.Starred):
            found += literal(item.value)
        elif isinstance(item, ast.Constant) and item.value in NAMES:
            found.append(item.value)
    return found


def same_values(node: ast.Dict) -> bool:
    """Whether a dict maps all keys to one constant: a list in disguise, and no table of rules."""
    values = {value.value if isinstance(value, ast.Constant) else value for value in node.values}
    return len(values) == 1 and all(isinstance(value, ast.Constant) for value in node.values)


def listed(tree: ast.Module) -> Iterator[tuple[int, list[str]]]:
    """(line, operators) of literal collections of three or more names of operators; what a module
    exports are classes of such names."""
    inner = set()  # collections in others, which are counted there
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            inner.add(id(node.value))
        if isinstance(node, COLLECTIONS):
            inner.update(id(i.value) for i in node.elts if isinstance(i, ast.Starred))
            names = [] if id(node) in inner else literal(node)
        elif isinstance(node, ast.Dict) and same_values(node):
            names = [k.value for k in node.keys if isinstance(k, ast.Constant) and k.value in NAMES]
        else:
            continue
        if len(set(names)) > 2:
            yield node.lineno, names


def shared(names: list[str]) -> str:
    """Advice: traits that all the operators have, with what else has them."""
    integer = op_named(names[0]).integer
    found = []
    for trait in Trait:
        members = ops_with(trait, integer=integer)
        if members >= set(names):
            more = ", ".join(sorted(members - set(names))[:6])
            found.append(f"{trait.name} (has {more or 'nothing'} besides)")
    if found:
        return f"ask for {' or '.join(found)}"
    return "state a new trait, with what a pass may conclude from it, in their records"


def test_no_module_lists_operators():
    """A table of rules, {"Conv": conv, ...}, is no list: each operator has a rule of its own."""
    faults = []
    for path in sorted(SOURCE.rglob("*.py")):
        where = path.relative_to(SOURCE).as_posix()
        if where.startswith(RECORDS):
            continue
        for line, names in listed(ast.parse(path.read_text(encoding="utf-8"))):
            faults.append(f"src/samebits/{where}:{line} lists {', '.join(names)}: {shared(names)}")
    assert not faults, "\n".join(["operators are listed by hand (samebits.ir.traits)", *faults])


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('A = ("Conv", "Gemm", "MatMul")', 3),
        ('A = frozenset(["Conv", "Gemm", "MatMul", "other"])', 3),
        ('A = {*("Conv", "Gemm"), *["MatMul"]}', 3),
        ('A = dict.fromkeys(("Conv", "Gemm", "MatMul"), rule)', 3),
        ('A = {"Conv": True, "Gemm": True, "MatMul": True}', 3),
        ('if op in ("Conv", "Gemm", "MatMul"): pass', 3),
        ('A = {"Conv": conv, "Gemm": gemm, "MatMul": gemm}', 0),
        ('if op in ("Conv", "Gemm"): pass', 0),
        ('onnx_op("Conv", "Gemm", "MatMul")', 0),
        ('A = ("Conv", "Conv", "Conv", "text")', 0),
    ],
)
def test_what_counts_as_a_list(text, found):
    assert sum(len(names) for _, names in listed(ast.parse(text))) == found


def test_the_message_names_a_trait():
    assert shared(["Conv", "Gemm", "ConvTranspose"]).startswith("ask for ACCUMULATES (has Add,")
    assert "WEIGHTED (has nothing besides)" in shared(["Conv", "Gemm", "ConvTranspose"])
    assert shared(["Conv", "Softmax", "Relu"]).startswith("state a new trait")
