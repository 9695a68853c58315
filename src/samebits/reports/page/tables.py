"""Transfer tables beside the functions that they stand for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from samebits.codegen.lowering.table import table_bytes
from samebits.errors import SamebitsError
from samebits.ir import Graph, Node, Trait, has
from samebits.ir.integer.transfer import transfer_tables
from samebits.ir.ops import op_named
from samebits.reports.html import Figure, PageBlock, Paragraph, Section
from samebits.reports.plots import Curve, line_plots
from samebits.reports.report import printable

Array = np.ndarray[Any, Any]
MOST = 12  # tables that are drawn
POINTS = 256  # of a curve


@dataclass(frozen=True, eq=False)
class TableCurve:
    """One table. x: what the codes of its input stand for; entries: its codes' values.

    function: of x in binary64, None where the quantized graph does not say it
    error:    (entry - function) in steps of the output, at every code
    """

    names: tuple[str, ...]
    says: str
    x: Array
    entries: Array
    function: Array | None
    error: Array | None


def table_curves(integer: Graph, real: Graph) -> list[TableCurve]:
    """The different tables of an integer graph; of equal ones the first, with all names."""
    groups: dict[tuple[str, bytes], list[Node]] = {}
    for node in integer.nodes:
        if node.op == "table":
            table = integer.constants[node.inputs[1]]
            groups.setdefault((table.dtype.str, table.tobytes()), []).append(node)
    return [_curve(integer, real, nodes) for nodes in groups.values()]


def _curve(integer: Graph, real: Graph, nodes: Sequence[Node]) -> TableCurve:
    """The curve of a table that these nodes share."""
    node = nodes[0]
    table = integer.constants[node.inputs[1]].reshape(-1)
    given, made = integer.values[node.inputs[0]], integer.values[node.output]
    low = 0 if given.dtype.startswith("u") else -(table.size // 2)
    codes = np.arange(low, low + table.size, dtype=np.int64)
    function: Array | None = None
    x: Array = codes * 1.0
    entries: Array = table * 1.0
    step, says = 1.0, ""
    found = _segment(real, node.inputs[0], made.name)
    if found is not None:
        chain, scales = found
        (scale, zero), (out_scale, out_zero) = scales
        x = (codes - zero) * scale
        entries, step = (table.astype(np.int64) - out_zero) * out_scale, out_scale
        function = _evaluated(real, chain, x)
        says = ", ".join(each.op for each in chain) or "copy"
    error = None if function is None else (entries - function) / step
    return TableCurve(tuple(n.name for n in nodes), says, x, entries, function, error)


Scales = tuple[tuple[float, int], tuple[float, int]]


def _segment(real: Graph, source: str, target: str) -> tuple[list[Node], Scales] | None:
    """The nodes of one operand between two codes of a QDQ graph, and scale and zero of both."""
    producers = real.producers()
    last = producers.get(target)
    if last is None or last.op != "QuantizeLinear":
        return None
    chain: list[Node] = []
    name = last.inputs[0]
    while (node := producers.get(name)) is not None and node.op != "DequantizeLinear":
        operands = [each for each in node.inputs if each and each not in real.constants]
        if len(operands) != 1 or not has(node.op, Trait.POINTWISE):
            return None
        chain.append(node)
        name = operands[0]
    if node is None or source not in (node.inputs[0], node.output):
        return None
    parameters = _parameters(real, node), _parameters(real, last)
    if parameters[0] is None or parameters[1] is None:
        return None
    return chain[::-1], (parameters[0], parameters[1])


def _parameters(real: Graph, node: Node) -> tuple[float, int] | None:
    scale = real.constants.get(node.inputs[1])
    zero = real.constants.get(node.inputs[2]) if len(node.inputs) > 2 else None
    if scale is None or scale.size != 1:
        return None
    return float(scale.reshape(())), 0 if zero is None else int(zero.reshape(-1)[0])


def _evaluated(real: Graph, chain: Sequence[Node], x: Array) -> Array | None:
    """The chain on numbers in binary64; None where its constants are no single numbers."""
    values = x
    for node in chain:
        arrays: list[Array | None] = []
        for name in node.inputs:
            constant = real.constants.get(name)
            if constant is not None and constant.size != 1:
                return None
            arrays.append(
                None
                if not name
                else values
                if constant is None
                else constant.astype(np.float64).reshape(())
            )
        try:
            with np.errstate(all="ignore"):
                values = np.asarray(op_named(node.op).meaning(arrays, node.attributes)[0])
        except (SamebitsError, ValueError, IndexError):
            return None
    return values.astype(np.float64) if values.shape == x.shape else None


def tables_section(integer: Graph, real: Graph, compiled: bool) -> Section | None:
    """Every table as a curve beside its function, with the error below; None without tables."""
    curves = table_curves(integer, real)
    if not curves:
        return None
    t = transfer_tables(integer, table_bytes) if compiled else transfer_tables(integer)
    size = f"{t.bytes:,} bytes{' in C' if compiled else ''}"
    text = (
        f"{t.pairs:,} functions between two tensors of codes are lookups in {t.tables:,} tables of "
        f"{size}; every entry is the real function, rounded once."
    )
    if len(curves) > MOST:
        text += f" The first {MOST} are drawn."
    blocks: list[PageBlock] = [Paragraph(text)]
    for curve in curves[:MOST]:
        names = ", ".join(map(printable, curve.names[:3]))
        more = f" and {len(curve.names) - 3} more" if len(curve.names) > 3 else ""
        shown = np.linspace(0, curve.x.size - 1, min(POINTS, curve.x.size)).astype(int)
        drawn = [Curve("entries of the table", curve.x[shown], curve.entries[shown])]
        if curve.function is None or curve.error is None:
            caption = f"{names}{more}: the entries; the real function is not in this file."
            svg = line_plots([drawn], x_title="input", y_titles=["output"])
        else:
            drawn.append(Curve(curve.says, curve.x[shown], curve.function[shown]))
            ends = (curve.entries.min(), curve.entries.max())
            saturated = np.isin(curve.entries, ends) & (np.abs(curve.error) > 0.5)
            largest = float(np.max(np.abs(curve.error[~saturated]), initial=0.0))
            caption = (
                f"{names}{more}: {curve.says}; entries are at most {largest:.3f} steps from the "
                "function; the lower curve is that error in steps of the output"
            )
            if saturated.any():
                count = np.count_nonzero(saturated)
                caption += f", without the {count:,} of {curve.error.size:,} that saturate"
            error = np.where(saturated, np.nan, curve.error)
            below = [Curve("error", curve.x[shown], error[shown])]
            svg = line_plots([drawn, below], x_title="input", y_titles=["output", "steps"])
        blocks.append(Figure(svg, caption, f"{caption.rstrip('.')}."))
    return Section("Tables of functions", blocks)
