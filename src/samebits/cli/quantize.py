"""`samebits quantize`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.progress import track
from rich.table import Table

from samebits.cli.options import AsJson
from samebits.cli.output import log_console, print_json, print_table

if TYPE_CHECKING:
    from samebits.quantization import QuantizationReport, RecurrentReport


def quantize_command(
    model: Annotated[Path, typer.Argument(help="A float32 ONNX model.")],
    calibration: Annotated[
        Path,
        typer.Option(
            "--calibration",
            help="NPZ file of samples: one array [samples, ...] for each input of the model.",
        ),
    ],
    out: Annotated[Path, typer.Option("--out", help="The quantized ONNX model to write.")],
    scheme: Annotated[
        str,
        typer.Option(
            "--scheme",
            help="Format of activations: asymmetric-s8, asymmetric-u8, symmetric-s8, "
            "symmetric-s8-full, power-of-two-s8, and the same with 16 bits.",
        ),
    ] = "asymmetric-s8",
    weights: Annotated[
        str,
        typer.Option(
            "--weights",
            help="Format of weights: symmetric-s8, asymmetric-s8, power-of-two-s8, and the same "
            "with 16 bits.",
        ),
    ] = "symmetric-s8",
    calibrate: Annotated[
        str | None,
        typer.Option(
            "--calibrate",
            help="minmax, percentile or mse; default minmax, of recurrent models mse.",
        ),
    ] = None,
    percentile: Annotated[
        float, typer.Option("--percentile", help="Per cent of the elements kept (percentile).")
    ] = 99.99,
    output_bits: Annotated[
        int | None, typer.Option("--output-bits", help="8 or 16 bits for the model's outputs.")
    ] = None,
    per_tensor: Annotated[
        bool, typer.Option("--per-tensor", help="One scale per weight, not per output channel.")
    ] = False,
    symmetry: Annotated[
        float,
        typer.Option(
            help="Recurrent models: a weight matrix is symmetric where the smaller end of its "
            "range is at least this part of the larger one, else asymmetric."
        ),
    ] = 0.0,
    gates: Annotated[
        str,
        typer.Option(help="Recurrent models, outputs of gates: q0.15, symmetric or asymmetric."),
    ] = "q0.15",
    float_bias: Annotated[
        bool,
        typer.Option(
            "--float-bias",
            help="Recurrent models: biases stay float32, for targets with a floating-point unit; "
            "without the promise of the same bits across targets.",
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Quantize a float model after training; writes standard QDQ ONNX.

    A model with recurrent layers becomes a model of one time step, with its states as last inputs
    and outputs. Its activations have 8 or 16 bits as --scheme says, gates and cells their own.
    """
    from samebits.ir.rewrite import simplify
    from samebits.ir.steps import is_recurrent
    from samebits.onnx import load, save_qdq
    from samebits.quantization import (
        RecurrentSettings,
        Settings,
        load_samples,
        quantize_graph,
        quantize_recurrent,
    )

    settings = Settings(
        activations=scheme,
        weights=weights,
        per_channel=not per_tensor,
        calibration=calibrate or "minmax",
        percentile=percentile,
        output_bits=output_bits,
    )
    graph = simplify(load(model))
    samples = load_samples(calibration, graph)
    console = log_console()
    shown = track(
        samples,
        description="calibrate",
        total=len(samples),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
    if is_recurrent(graph):
        bits = settings.activation_format.bits
        plan = RecurrentSettings(
            bits, symmetry, gates, float_bias, calibrate or "mse", percentile=percentile
        )
        quantized, found = quantize_recurrent(graph, shown, plan)
        save_qdq(quantized, out)
        if as_json:
            print_json({"model": str(model), "out": str(out), **found.to_dict()})
            return
        print_gates(found)
        print(f"wrote {out}: one time step, {len(quantized.states)} states")
        return
    quantized, report = quantize_graph(graph, shown, settings)
    save_qdq(quantized, out)
    if as_json:
        print_json({"model": str(model), "out": str(out), **report.to_dict()})
        return
    print_report(report)
    print(f"wrote {out}")


def print_report(report: QuantizationReport) -> None:
    """The activations as a table, then the totals."""
    table = Table("tensor", "operator", "format", "scale", "zero", "range", "clipped", "SQNR dB")
    for column in table.columns[3:]:
        column.justify = "right"
    for tensor in report.tensors:
        ratio = "exact" if tensor.sqnr_db is None else f"{tensor.sqnr_db:.1f}"
        table.add_row(
            printable(tensor.name),
            tensor.op,
            tensor.format,
            f"{tensor.scale:.6g}",
            str(tensor.zero_point),
            f"{tensor.low:.4g} .. {tensor.high:.4g}",
            f"{100 * tensor.clip_rate:.2f} %",
            ratio,
        )
    print_table(table)
    print(f"calibrated on {report.calibration_samples} samples, compared on {report.samples}")
    print(f"constants {report.bytes_before} bytes before, {report.bytes_after} bytes after")


def print_gates(report: RecurrentReport) -> None:
    """Ranges of every gate, then what the quantization costs."""
    table = Table("layer", "gate", "product of x", "product of h", "output", "beyond Q3.12")
    for gate in report.gates:
        ranges = (gate.input_product, gate.recurrent_product, gate.output)
        table.add_row(
            printable(gate.layer),
            printable(gate.gate),
            *(f"{low:.4g} .. {high:.4g}" for low, high in ranges),
            f"{100 * gate.saturated:.2f} %",
        )
    print_table(table)
    print(f"SQNR of the outputs {_decibels(report.sqnr_db)}; with nothing quantized but")
    for cause, ratio in report.causes.items():
        print(f"  {cause}: {_decibels(ratio)}")
    print(f"calibrated on {report.sequences} sequences, compared on {report.samples}")
    print(f"constants {report.bytes_before} bytes before, {report.bytes_after} bytes after")
    for warning in report.warnings:
        log_console().print(f"warning: {printable(warning)}", markup=False)


def _decibels(ratio: float | None) -> str:
    return "exact" if ratio is None else f"{ratio:.1f} dB"


def printable(name: str) -> str:
    """A name from a model file without control characters."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in name)
