"""Lookup tables: correctly rounded, so that no maths library reaches a result."""

from __future__ import annotations

from samebits.tables.activation import ACTIVATIONS, ActivationTable, activation_table

__all__ = ["ACTIVATIONS", "ActivationTable", "activation_table"]
