"""One training run computed in many ways: a table of parameter hashes."""

from __future__ import annotations

from collections.abc import Mapping

from samebits.reports.html import Paragraph, Section, Table, render_page
from samebits.reports.report import section

Hashes = Mapping[str, str]
"""How a run was computed -> SHA-256 of its parameters."""


def same_bits_section(bfp: Hashes, float32: Hashes | None = None) -> Section:
    """The BFP run's hashes, which must be one; beside them those of the run in float32."""
    ways = list(dict.fromkeys((*bfp, *(float32 or {}))))
    columns = ["computed by", "BFP"]
    rows = [[way, bfp.get(way, "")] for way in ways]
    sentences = [_verdict("The BFP run", bfp)]
    if float32:
        columns.append("float32 PyTorch")
        rows = [[*row, float32.get(way, "")] for row, way in zip(rows, ways, strict=True)]
        sentences.append(_verdict("The run in float32", float32))
    return Section(
        "One run, computed in several ways",
        [
            Table(columns, rows, caption="SHA-256 of the parameters", code=columns[1:]),
            Paragraph(" ".join(sentences)),
        ],
    )


def same_bits_text(bfp: Hashes) -> Section:
    """The BFP run's hashes, a line each."""
    return section(*(f"sha256 {sha256} bfp, {way}" for way, sha256 in bfp.items()))


def _verdict(run: str, hashes: Hashes) -> str:
    count = len(set(hashes.values()))
    verdict = "the hash is the same" if count == 1 else f"there are {count} different hashes"
    return f"{run} was computed in {len(hashes)} ways: {verdict}."


def same_bits_page(
    bfp: Hashes, float32: Hashes, *, run: str, machine: Mapping[str, object], skipped: Hashes
) -> str:
    """The page of a whole matrix. run: what was trained. skipped: ways -> why they did not run."""
    sections = [same_bits_section(bfp, float32)]
    if skipped:
        sections.append(
            Section("Not computed", [Table(("way", "reason"), [list(i) for i in skipped.items()])])
        )
    facts = [[name, str(value)] for name, value in machine.items()]
    sections.append(Section("Machine", [Table(("", "found"), facts)]))
    return render_page("samebits: the same bits everywhere", run, sections)
