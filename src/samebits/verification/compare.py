"""Two sets of outputs compared for equality, and the verdict."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from samebits.ir import Graph
from samebits.npu.simulator.machine import canonical
from samebits.verification.inputs import dequantize

Array = np.ndarray[Any, Any]
SHOWN = 5


@dataclass(frozen=True)
class Difference:
    """One element that differs: which output, where (axis 0 counts samples), and both values."""

    output: str
    index: tuple[int, ...]
    expected: float
    found: float


def _number(value: float) -> float | str:
    """JSON has no NaN and no infinity: they become text."""
    return value if np.isfinite(value) else str(value)


@dataclass(frozen=True)
class Verdict:
    """The result of a comparison.

    differing: number of elements that differ, among `total`
    samples:   number of samples with such an element, among `sample_count`
    largest:   the largest difference, in steps of the output's scale
    first:     the first five differences
    sha256:    hash of the outputs found, of reals that are equal to codes as those codes;
               expected_sha256: of those expected
    between:   (codes that differ, codes compared, tensors) of those between inputs and outputs
    skipped:   why nothing was compared, or None
    note:      why this backend may differ on this model, or "" if it may not
    """

    backend: str
    differing: int = 0
    total: int = 0
    samples: int = 0
    sample_count: int = 0
    largest: float = 0.0
    first: tuple[Difference, ...] = ()
    sha256: str = ""
    expected_sha256: str = ""
    between: tuple[int, int, int] = (0, 0, 0)
    skipped: str | None = None
    note: str = ""

    @property
    def equal(self) -> bool:
        """Whether something was compared and nothing differs."""
        return self.skipped is None and self.differing == 0 and self.between[0] == 0

    def to_dict(self) -> dict[str, Any]:
        """As JSON data."""
        record = dict(vars(self))
        record["largest"] = _number(self.largest)
        record["first"] = [
            {**vars(d), "expected": _number(d.expected), "found": _number(d.found)}
            for d in self.first
        ]
        record["equal"] = self.equal
        return record


def compare(
    backend: str, graph: Graph, expected: Sequence[Array], found: Sequence[Array], note: str = ""
) -> Verdict:
    """Compare outputs for equality, without any tolerance.

    graph:    says what the outputs are (`Model.interface`)
    expected: codes, or binary16 of firmware
    found:    codes; binary32 reals, which are compared with the real values of the expected codes;
              or binary16, which is compared by its bits, where all NaN are alike and the two zeros
              are not

    Raises ValueError for another shape or type than expected.
    """
    differing = total = 0
    largest = 0.0
    first: list[Difference] = []
    wrong_samples: set[int] = set()
    digests = hashlib.sha256(), hashlib.sha256()
    for name, e, f in zip(graph.outputs, expected, found, strict=True):
        value = graph.values[name]
        step, codes = 1.0, e
        if f.dtype.kind == "f" and value.quantization is not None:
            e, step = dequantize(e, value), float(value.quantization.scale)
        if e.shape != f.shape:
            raise ValueError(f"{backend}: output {name!r}: expected {e.shape}, found {f.shape}")
        if value.dtype == "float16" and f.dtype != np.float16:
            raise ValueError(f"{backend}: output {name!r}: expected binary16, found {f.dtype}")
        if value.dtype == "float16":  # of firmware
            e, f = canonical(e), canonical(f)
            unequal = e.view(np.uint16) != f.view(np.uint16)
        else:
            unequal = ~(e == f)  # NaN differs
        places = np.argwhere(unequal)
        differing += len(places)
        total += e.size
        wrong_samples |= {int(place[0]) for place in places}
        if len(places):
            gap = np.abs(e[unequal].astype(np.float64) - f[unequal].astype(np.float64))
            largest = max(
                largest, float(np.nan_to_num(gap, nan=np.inf, posinf=np.inf).max()) / step
            )
        for place in places[: SHOWN - len(first)]:
            index = tuple(int(i) for i in place)
            first.append(Difference(name, index, e[index].item(), f[index].item()))
        if f.dtype.kind == "f" and codes.dtype.kind != "f" and not len(places):
            e = f = codes  # the same outputs have the same hash, whoever dequantized them
        for digest, array in zip(digests, (f, e), strict=True):
            digest.update(array.astype(array.dtype.newbyteorder("<")).tobytes())
    return Verdict(
        backend,
        differing=differing,
        total=total,
        samples=len(wrong_samples),
        sample_count=len(expected[0]) if expected else 0,
        largest=largest,
        first=tuple(first),
        sha256=digests[0].hexdigest(),
        expected_sha256=digests[1].hexdigest(),
        note=note,
    )


def cells(verdict: Verdict, between: bool) -> tuple[str, ...]:
    """The row of a verdict in a table. between: with the codes of tensors between."""
    differing, total, _ = verdict.between
    return (
        verdict.backend,
        f"{verdict.differing:,}",
        f"{verdict.total:,}",
        *((f"{differing:,}", f"{total:,}") if between else ()),
        f"{verdict.largest:g}",
        f"{verdict.samples} of {verdict.sample_count}",
        verdict.sha256[:16],
    )


def agreeing(verdicts: Sequence[Verdict]) -> list[str]:
    """Who computes the same outputs as whom, in a line each, where there are more than two kinds of
    outputs."""
    groups: dict[str, list[str]] = {}
    for verdict in verdicts:
        groups.setdefault(verdict.expected_sha256, ["the reference"])
        groups.setdefault(verdict.sha256, []).append(verdict.backend)
    shared = [", ".join(names) for names in groups.values() if len(names) > 1]
    return [f"same outputs: {names}" for names in shared] if len(groups) > 2 else []
