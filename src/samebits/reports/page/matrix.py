"""Backends by models: where the bits are the same."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from samebits.reports.deployment import BACKENDS
from samebits.verification.compare import Verdict


@dataclass(frozen=True)
class MatrixCell:
    """state: good, bad, open; text: in a few words; more: the whole of it."""

    state: str
    text: str
    more: str = ""


@dataclass(frozen=True)
class Matrix:
    """A block: a row for each backend, a cell for each model."""

    kind: ClassVar[str] = "matrix"
    columns: Sequence[str]
    rows: Sequence[tuple[str, Sequence[MatrixCell]]]


def matrix_of(verdicts: Mapping[str, Sequence[Verdict]]) -> Matrix:
    """verdicts: by the name of the model"""
    names = dict.fromkeys(v.backend for some in verdicts.values() for v in some)
    known = {model: {v.backend: v for v in some} for model, some in verdicts.items()}
    rows = [
        (BACKENDS.get(name, name), [_cell(found.get(name)) for found in known.values()])
        for name in names
    ]
    return Matrix(list(verdicts), rows)


def _cell(v: Verdict | None) -> MatrixCell:
    if v is None:
        return MatrixCell("", "")
    if v.skipped is not None:
        return MatrixCell("open", "not compared", v.skipped)
    if not v.differing:
        return MatrixCell("good", "same", f"{v.total:,} outputs")
    if v.note:
        return MatrixCell("open", "may differ", f"{v.differing:,} of {v.total:,} outputs: {v.note}")
    return MatrixCell("bad", "differs", f"{v.differing:,} of {v.total:,} outputs")
