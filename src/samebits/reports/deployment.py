"""Models on their way to a device: backends, memory, tables and quantization as report sections."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from samebits.quantization import QuantizationReport, RecurrentReport
from samebits.reports.html import Fold, Links, PageBlock, Paragraph, Section, Table
from samebits.reports.quantization import quantization_sections
from samebits.reports.report import section
from samebits.verification.compare import Verdict

BACKENDS = {
    "reference": "reference interpreter",
    "npu": "simulator of the neural processor",
    "training": "training framework",
    "torch": "integer graph in PyTorch",
    "c": "generated C, this machine",
    "cortex-m0": "generated C, Cortex-M0 (emulated)",
    "cortex-m3": "generated C, Cortex-M3 (emulated)",
    "cortex-m55": "generated C, Cortex-M55 (emulated)",
    "onnxruntime": "onnxruntime, tables, not optimized",
    "onnxruntime-optimized": "onnxruntime, tables, optimized",
    "onnxruntime-float": "onnxruntime, float functions, optimized",
    "onnxruntime-integer": "onnxruntime, integer export",
    "concordant-torch": "concordant PyTorch",
    "concordant-onnx": "concordant ONNX in onnxruntime",
    "concordant-tensorflow": "concordant TensorFlow",
    "concordant-c": "concordant C",
}


@dataclass(frozen=True)
class Deployment:
    """One deployed model, as its report shows it.

    name:     what a sentence calls the model
    accuracy: rows (what computed it, percent)
    memory:   rows (kind of memory, bytes)
    tables:   pairs, tables, bytes and unshared of `ir.integer.transfer.transfer_tables`
    page:     the file of the network's own page, beside the one that names it
    """

    name: str
    title: str
    summary: str
    accuracy: Sequence[tuple[str, float]]
    verdicts: Sequence[Verdict]
    memory: Sequence[tuple[str, int]]
    tables: Mapping[str, int]
    quantization: QuantizationReport | RecurrentReport | None = None
    page: str = ""

    def to_dict(self) -> dict[str, Any]:
        """As JSON data."""
        return {
            "title": self.title,
            "accuracy": dict(self.accuracy),
            "memory": dict(self.memory),
            "tables": dict(self.tables),
            "verdicts": [v.to_dict() for v in self.verdicts],
        }


def verdict_rows(verdicts: Sequence[Verdict]) -> list[tuple[str, str, str, str]]:
    """One row per backend: what it is, differing of all elements, samples, SHA-256."""
    rows = []
    for v in verdicts:
        what = BACKENDS.get(v.backend, v.backend)
        if v.skipped is not None:
            rows.append((what, "not compared", "", v.skipped))
            continue
        differing = f"{v.differing:,} of {v.total:,}"
        rows.append((what, differing, f"{v.samples} of {v.sample_count}", v.sha256[:16]))
    return rows


def verdict_table(verdicts: Sequence[Verdict], caption: str) -> Table:
    """The verdicts as a table of a page."""
    columns = ("backend", "differing outputs", "samples with one", "SHA-256 of the outputs")
    return Table(columns, verdict_rows(verdicts), caption, code=columns[3:])


def verdict_text(verdicts: Sequence[Verdict]) -> Table:
    """The verdicts as a table that fits a terminal."""
    return Table(("backend", "differing", "samples"), [row[:3] for row in verdict_rows(verdicts)])


def reasons(verdicts: Sequence[Verdict]) -> list[str]:
    """A sentence per backend that may differ and does."""
    return [
        f"Why {BACKENDS.get(v.backend, v.backend)} differs: {v.note}."
        for v in verdicts
        if v.note and v.differing
    ]


def agree(verdicts: Sequence[Verdict]) -> bool:
    """Whether something was compared and nothing differs that provably may not."""
    compared = [v for v in verdicts if v.skipped is None]
    return bool(compared) and all(v.equal or v.note for v in compared)


def unproved(verdicts: Mapping[str, Sequence[Verdict]]) -> list[str]:
    """Sentences for all that `agree` leaves open: a backend that differs and may, or backends that
    were not compared and why.

    verdicts: by the name of the model
    """
    found = [
        f"not counted: {v.backend} on {name}, where {v.differing:,} of {v.total:,} outputs differ"
        for name, some in verdicts.items()
        for v in some
        if v.note and v.differing
    ]
    models: dict[tuple[str, str], list[str]] = {}  # by backend and reason
    for name, some in verdicts.items():
        for v in some:
            if v.skipped is not None:
                reason = v.skipped.removeprefix(v.backend).lstrip(": ")
                models.setdefault((v.backend, reason), []).append(name)
    backends: dict[tuple[str, str], list[str]] = {}  # by models and reason
    for (backend, reason), names in models.items():
        backends.setdefault((listed(names), reason), []).append(backend)
    return found + [
        f"not compared: {listed(some)} on {names}: {' '.join(reason.split()).rstrip('.')}"
        for (names, reason), some in backends.items()
    ]


def listed(words: Sequence[str]) -> str:
    """Words as a sentence lists them: a, b and c."""
    return " and ".join(filter(None, (", ".join(words[:-1]), words[-1])))


def deployment_text(d: Deployment) -> Section:
    """One model in a few lines for a terminal."""
    memory = dict(d.memory)
    lines = [
        *reasons(d.verdicts),
        *(f"accuracy {percent:.2f} % {name}" for name, percent in d.accuracy),
        f"arena {memory['arena in RAM']:,} bytes, constants {memory['constants in flash']:,}",
    ]
    t = d.tables
    if t["pairs"]:
        lines.append(
            f"{t['pairs']} transfer functions share {t['tables']} tables, {t['bytes']:,} bytes"
        )
    return section(verdict_text(d.verdicts), *lines, title=d.title)


def deployment_section(d: Deployment) -> Section:
    """The card of one model."""
    blocks: list[PageBlock] = [Paragraph(d.summary)]
    if d.page:
        blocks.append(Links([("Its graph, layers, memory, weights and tables", d.page)]))
    blocks.append(
        Table(
            ("computed by", "test accuracy"),
            [(name, f"{percent:.2f} %") for name, percent in d.accuracy],
        )
    )
    blocks.append(
        verdict_table(
            d.verdicts,
            "against the reference (onnxruntime returns real numbers, hence its own hash)",
        )
    )
    blocks += map(Paragraph, reasons(d.verdicts))
    blocks.append(Table(("memory", "bytes"), [(name, f"{count:,}") for name, count in d.memory]))
    if d.tables["pairs"]:
        blocks.append(
            Paragraph(
                f"{d.tables['pairs']} pairs of consecutive layers share {d.tables['tables']} "
                f"transfer tables: {d.tables['bytes']:,} bytes instead of {d.tables['unshared']:,}."
            )
        )
    if d.quantization is not None:
        cost = [block for part in quantization_sections(d.quantization) for block in part.blocks]
        blocks.append(Fold("What quantization cost, tensor by tensor", cost))
    return Section(d.title, blocks)
