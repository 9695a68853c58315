"""Memory budgets: numbers of bytes and shares as people write them."""

from __future__ import annotations

from fractions import Fraction

import pytest

from samebits.errors import InputError
from samebits.recompute.plan.budget import parse_budget

MIB = 1 << 20


@pytest.mark.parametrize(
    ("given", "budget"),
    [
        (3_000_000, 3_000_000),
        ("3000000", 3_000_000),
        ("1", 1),
        ("1K", 1024),
        ("3M", 3 * MIB),
        ("3 M", 3 * MIB),
        ("3MB", 3 * MIB),
        ("3MiB", 3 * MIB),
        (" 3M ", 3 * MIB),
        ("2G", 2048 * MIB),
        ("1.5G", 1536 * MIB),
        ("0.5K", 512),
        ("512B", 512),
        ("0.1K", 102),  # whole bytes, never more than was asked for
        ("40%", Fraction(2, 5)),
        ("40 %", Fraction(2, 5)),
        ("12.5%", Fraction(1, 8)),
        ("100%", Fraction(1)),
        ("0.01%", Fraction(1, 10_000)),
    ],
)
def test_bytes_and_shares(given, budget):
    found = parse_budget(given)
    assert found == budget
    assert type(found) is type(budget)


@pytest.mark.parametrize(
    "given",
    [
        *("", "many", "-1", "+1", "1e6", "0x10", "3 000", "3_000", "3,5M", ".5M", "5.", "3T", "3m"),
        *("0", "0.0", "0.0001K", "0%", "100.1%", "-40%", "40%M", "40%B", "3iB", "M", "%"),
        *("inf", "nan", "٣M", "1" * 16, "1.1234567890", 0, -5, 0.4, None, [1], True),
    ],
)
def test_anything_else(given):
    with pytest.raises(InputError) as caught:
        parse_budget(given)
    assert str(caught.value) == (
        "--memory-budget: expected a number of bytes such as 3000000, 3M or 1.5G, or a share of "
        f"what storing everything takes such as 40%, found {str(given)[:40]!r}"
    )
