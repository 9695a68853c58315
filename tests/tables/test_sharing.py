"""Equal tables are one table."""

from __future__ import annotations

from fractions import Fraction

from samebits.tables import CodeRange, Variable, apply, share, transfer_table


def test_share():
    assert share([[1, 2], (3, 4), (1, 2), [3, 4], (1, 3)]) == (
        ((1, 2), (3, 4), (1, 3)),
        (0, 1, 0, 1, 2),
    )
    assert share([]) == ((), ())


def test_pairs_of_layers_share_their_tables():
    """relu between equal scales is one table, whatever the scale."""
    tables = []
    for scale in (Fraction(1, 8), Fraction(3, 7), Fraction(5)):
        codes = CodeRange(scale, 0, -128, 127)
        tables.append(transfer_table(apply("Relu", Variable()), codes, codes).codes)
    unique, index = share(tables)
    assert index == (0, 0, 0)
    assert unique == (tuple(max(j, 0) for j in range(-128, 128)),)
