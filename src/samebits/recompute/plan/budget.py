"""Memory budgets of plans: bytes, or a share of what storing everything takes."""

from __future__ import annotations

import re
from fractions import Fraction

from samebits.errors import InputError
from samebits.ledger import byte_count

Budget = int | Fraction
"""A number of bytes, or (a Fraction) a share of the peak with everything stored."""


def parse_budget(given: int | str) -> Budget:
    """A budget from a number of bytes, or from a text: 3000000, 3M, 1.5G (powers of 1024), 40%.

    Raises InputError for anything else, and for less than one byte.
    """
    text = str(given).strip()
    found = re.fullmatch(r"(\d{1,15}(?:\.\d{1,9})?)\s*%", text, re.ASCII)
    if found is not None and 0 < Fraction(found[1]) <= 100:
        return Fraction(found[1]) / 100
    if (size := byte_count(text)) is not None:
        return size
    raise InputError(
        f"--memory-budget: expected a number of bytes such as 3000000, 3M or 1.5G, or a share of "
        f"what storing everything takes such as 40%, found {text[:40]!r}"
    )
