"""The cost of a quantization, as report sections: a table of tensors or gates, then the totals."""

from __future__ import annotations

from samebits.ir.fidelity import LOST
from samebits.quantization import Fidelity, QuantizationReport, RecurrentReport
from samebits.reports.html import Section, Table
from samebits.reports.report import printable, section

TENSORS = ("tensor", "operator", "format", "scale", "zero", "range", "clipped", "SQNR dB")
STEPS = ("step", "outputs, SQNR dB", "kept")
CHANGES = ("layer", "operator", "step", "change", "SQNR dB before", "after")
LISTED = 12  # names of tensors in one line
GATES = ("layer", "gate", "product of x", "product of h", "output", "beyond 8")


FIDELITY = ("output", "SQNR dB", "same decision", "different decisions, float network's")


def fidelity_section(verdict: Fidelity) -> Section:
    """A table of how much the outputs of the integers keep of the float network."""
    rows = [
        (
            printable(output.name),
            "exact" if output.sqnr_db is None else f"{output.sqnr_db:.1f}",
            "" if output.agreement is None else f"{100 * output.agreement:.1f} %",
            "" if output.agreement is None else f"{output.decisions}, {output.wanted}",
        )
        for output in verdict.outputs
    ]
    lines = [f"integers against the float network, on {verdict.samples} samples"]
    if verdict.lost:
        names = ", ".join(map(printable, verdict.lost[:LISTED]))
        more = f" and {len(verdict.lost) - LISTED} more" if len(verdict.lost) > LISTED else ""
        lines.append(f"below {LOST:g} dB: {names}{more}")
    if text := verdict.warning():
        lines.append(f"warning: {printable(text)}")
    return section(Table(FIDELITY, rows), *lines)


def quantization_sections(report: QuantizationReport | RecurrentReport) -> list[Section]:
    """The activations of a feed-forward network or the gates of a recurrent one, the error of the
    outputs by cause where it is known, bytes before and after, and warnings."""
    if isinstance(report, RecurrentReport):
        return _gates(report)
    rows = [
        (
            printable(tensor.name),
            tensor.op,
            tensor.format,
            f"{tensor.scale:.6g}",
            str(tensor.zero_point),
            _range(tensor.low, tensor.high),
            f"{100 * tensor.clip_rate:.2f} %",
            "exact" if tensor.sqnr_db is None else f"{tensor.sqnr_db:.1f}",
        )
        for tensor in report.tensors
    ]
    return [
        section(Table(TENSORS, rows)),
        *_tuning(report),
        section(
            f"calibrated on {report.calibration_samples} samples, compared on {report.samples}",
            _bytes(report),
        ),
    ]


def _tuning(report: QuantizationReport) -> list[Section]:
    """Changes beyond plain quantization, layer by layer, and the steps that were tried."""
    found = []
    if report.changes:
        rows = [
            (
                *(printable(change.layer), change.op, change.step, printable(change.what)),
                *("" if db is None else f"{db:.1f}" for db in (change.before, change.after)),
            )
            for change in report.changes
        ]
        found.append(section(Table(CHANGES, rows)))
    if report.steps:
        tried = [
            (
                step.name,
                "exact" if step.sqnr_db is None else f"{step.sqnr_db:.2f}",
                "yes" if step.kept else "no",
            )
            for step in report.steps
        ]
        more = f"measured on {report.held_out} samples held out of calibration"
        found.append(section(Table(STEPS, tried), more))
    return found


def _gates(report: RecurrentReport) -> list[Section]:
    """The ranges of every gate, then the cost of the quantization."""
    rows = [
        (
            printable(gate.layer),
            printable(gate.gate),
            _range(*gate.input_product),
            _range(*gate.recurrent_product),
            _range(*gate.output),
            f"{100 * gate.saturated:.2f} %",
        )
        for gate in report.gates
    ]
    return [
        section(Table(GATES, rows)),
        section(
            f"SQNR of the outputs {_decibels(report.sqnr_db)}; with nothing quantized but",
            *(f"  {cause}: {_decibels(ratio)}" for cause, ratio in report.causes.items()),
            *(
                f"SQNR of the state {printable(name)} {_decibels(ratio)}"
                for name, ratio in report.states.items()
            ),
            f"calibrated on {report.sequences} sequences, compared on {report.samples}",
            f"a call takes {'a whole sequence' if report.whole else 'one time step'}",
            *(
                f"{printable(name)} has {bits} bits: with 8 it would lose more than the weights do"
                for name, bits in report.wider.items()
            ),
            _bytes(report),
            *(f"warning: {printable(warning)}" for warning in report.warnings),
        ),
    ]


def _range(low: float, high: float) -> str:
    return f"{low:.4g} .. {high:.4g}"


def _decibels(ratio: float | None) -> str:
    return "exact" if ratio is None else f"{ratio:.1f} dB"


def _bytes(report: QuantizationReport | RecurrentReport) -> str:
    return f"constants {report.bytes_before} bytes before, {report.bytes_after} bytes after"
