"""The table of the layers: one row for each, with all that is known of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from samebits.codegen.run.profile import LayerCost
from samebits.quantization.causes import TensorLoss
from samebits.reports.html import PageBlock, Paragraph, Section
from samebits.reports.page.graph import input_keys, layer_keys
from samebits.reports.page.histogram import Histogram
from samebits.reports.page.layers import NetworkLayer
from samebits.reports.report import printable

TITLE = "Layer by layer"


@dataclass(frozen=True)
class LayerRow:
    """The cells of a row after its name, as many as the table has columns after the first; a
    second line is set small."""

    key: str
    name: str
    op: str
    cells: Sequence[str]
    histogram: Histogram | None


@dataclass(frozen=True)
class LayerTable:
    """A block. columns: (title, whether numbers) after the first; ranges: with histograms; layers:
    how many of the rows, the last ones, are such."""

    kind: ClassVar[str] = "layers"
    columns: Sequence[tuple[str, bool]]
    rows: Sequence[LayerRow]
    totals: Sequence[str]
    ranges: bool
    layers: int


def layer_table(
    inputs: Sequence[NetworkLayer],
    layers: Sequence[NetworkLayer],
    losses: Mapping[str, TensorLoss],
    costs: Mapping[str, Sequence[LayerCost]],
    constants: int,
) -> LayerTable:
    """losses: by the key of the layer or input; costs: of boards by name; constants: bytes of all
    layers together, which may share some."""
    keys = input_keys(inputs) | layer_keys(layers)
    columns = [("stored as", False), ("constants, bytes", True), ("output, bytes", True)]
    columns += [("multiply-adds", True)]
    columns += [(f"instructions, {board}", True) for board in costs]
    counts = [{cost.name: cost.instructions for cost in found} for found in costs.values()]
    if losses:
        columns += [("SQNR, dB", True), ("clipped", True), ("lost by", False)]
    rows = []
    for layer in (*inputs, *layers):
        cells = [f"{layer.sizes}\n{printable(layer.number)}", f"{layer.weight_bytes:,}"]
        cells += [f"{layer.activation_bytes:,}", f"{layer.multiply_adds:,}"]
        cells += [f"{found[layer.key]:,}" if layer.key in found else "" for found in counts]
        loss = losses.get(layer.key)
        if losses:
            cells += ["", "", ""] if loss is None else _loss_cells(loss)
        shape = None
        if loss is not None:
            shape = Histogram(loss.counts, f"{loss.low:.3g}", f"{loss.high:.3g}")
        rows.append(LayerRow(keys[layer.key], printable(layer.name), layer.op, cells, shape))
    totals = ["", f"{constants:,}", ""]
    totals += [f"{sum(layer.multiply_adds for layer in layers):,}"]
    totals += [f"{sum(found.values()):,}" for found in counts]
    totals += [""] * (len(columns) - len(totals))
    return LayerTable(columns, rows, totals, bool(losses), len(layers))


def _loss_cells(loss: TensorLoss) -> list[str]:
    ratio = "exact" if loss.sqnr_db is None else f"{loss.sqnr_db:.1f}"
    causes = loss.words.replace(", ", "\n")
    return [ratio if loss.compared else "", f"{100 * loss.clip_rate:.2f} %", causes]


def layers_section(
    inputs: Sequence[NetworkLayer],
    layers: Sequence[NetworkLayer],
    losses: Mapping[str, TensorLoss],
    costs: Mapping[str, Sequence[LayerCost]],
    notes: Sequence[str],
    constants: int,
) -> Section:
    """The table with sentences on what its columns are and on what is missing."""
    blocks: list[PageBlock] = [Paragraph(note) for note in notes]
    return Section(TITLE, [*blocks, layer_table(inputs, layers, losses, costs, constants)])
