"""Lookup tables: correctly rounded, so that no maths library reaches a result."""

from __future__ import annotations

from samebits.tables.activation import ACTIVATIONS, ActivationTable, activation_table
from samebits.tables.expression import OPERATORS, Apply, Constant, Expression, Variable, apply
from samebits.tables.interval import CodeRange
from samebits.tables.sharing import share
from samebits.tables.transfer import Transfer, evaluate, exp_table, transfer_table

__all__ = [
    "ACTIVATIONS",
    "OPERATORS",
    "ActivationTable",
    "Apply",
    "CodeRange",
    "Constant",
    "Expression",
    "Transfer",
    "Variable",
    "activation_table",
    "apply",
    "evaluate",
    "exp_table",
    "share",
    "transfer_table",
]
