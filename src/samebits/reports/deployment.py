"""Models on their way to a device: backends, memory, tables and quantization as report sections."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from samebits.reports.html import Block, Paragraph, Section, Table
from samebits.verification.compare import Verdict

BACKENDS = {
    "reference": "reference interpreter",
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
}


@dataclass(frozen=True)
class Deployment:
    """One deployed model, as its report shows it.

    accuracy: rows (what computed it, percent)
    memory:   rows (kind of memory, bytes)
    tables:   pairs, tables, bytes and unshared of `ir.integer.transfer.transfer_tables`
    layers:   rows of the quantization report
    """

    title: str
    summary: str
    accuracy: Sequence[tuple[str, float]]
    verdicts: Sequence[Verdict]
    memory: Sequence[tuple[str, int]]
    tables: Mapping[str, int]
    layers: Sequence[Mapping[str, Any]] = field(default=())


def verdict_rows(verdicts: Sequence[Verdict]) -> list[tuple[str, str, str, str]]:
    """One row per backend: what it is, differing of all elements, samples, SHA-256."""
    rows = []
    for v in verdicts:
        what = BACKENDS.get(v.backend, v.backend)
        if v.skipped is not None:
            rows.append((what, "skipped", "", v.skipped))
            continue
        differing = f"{v.differing:,} of {v.total:,}"
        rows.append((what, differing, f"{v.samples} of {v.sample_count}", v.sha256[:16]))
    return rows


def verdict_table(verdicts: Sequence[Verdict], caption: str) -> Table:
    """The verdicts as a table of a report."""
    columns = ("backend", "differing outputs", "samples with one", "SHA-256 of the outputs")
    return Table(columns, verdict_rows(verdicts), caption, code=columns[3:])


def reasons(verdicts: Sequence[Verdict]) -> list[str]:
    """A sentence per backend that may differ and does."""
    return [
        f"Why {BACKENDS.get(v.backend, v.backend)} differs: {v.note}."
        for v in verdicts
        if v.note and v.differing
    ]


def deployment_section(d: Deployment) -> Section:
    """The card of one model."""
    blocks: list[Block] = [Paragraph(d.summary)]
    blocks.append(
        Table(
            ("computed by", "test accuracy"),
            [(name, f"{percent:.2f} %") for name, percent in d.accuracy],
        )
    )
    blocks.append(
        verdict_table(
            d.verdicts,
            "against the reference, on the whole test set (onnxruntime returns real numbers, "
            "hence its own hash)",
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
    if d.layers:
        blocks.append(
            Table(
                ("tensor", "after", "range", "clipped", "SQNR"),
                [_layer(entry) for entry in d.layers],
                caption="per quantized tensor",
            )
        )
    return Section(d.title, blocks)


def _layer(entry: Mapping[str, Any]) -> tuple[str, str, str, str, str]:
    sqnr = entry["sqnr_db"]
    return (
        entry["name"],
        entry["op"],
        f"{entry['low']:.4g} to {entry['high']:.4g}",
        f"{100 * entry['clip_rate']:.2f} %",
        "exact" if sqnr is None else f"{sqnr:.1f} dB",
    )
