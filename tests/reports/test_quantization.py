"""Sections of quantization reports: the text, figure by figure."""

from __future__ import annotations

from samebits.quantization import QuantizationReport, RecurrentReport, RecurrentSettings, Settings
from samebits.quantization.lstm import GateReport
from samebits.quantization.report import TensorReport
from samebits.reports.quantization import quantization_sections
from samebits.reports.report import Report


def text(report):
    return str(Report("title", "", quantization_sections(report)))


def test_tensors_then_totals():
    tensors = (
        TensorReport(
            *("x\x1b[1m", "input", "asymmetric-s8", 1 / 128, -3, -1.0, 0.98765, -1.5, 2.0),
            *(0.0125, 41.27),
        ),
        TensorReport("y", "Relu", "symmetric-s8", 2.0, 0, 0.0, 254.0, 0.0, 254.0, 0.0, None),
    )
    report = QuantizationReport(Settings(), 20, 16, tensors, (), 268, 199)
    assert text(report) == (
        "title\n\n"
        "tensor    operator  format             scale  zero         range  clipped  SQNR dB\n"
        "x\\x1b[1m  input     asymmetric-s8  0.0078125    -3  -1 .. 0.9877   1.25 %     41.3\n"
        "y         Relu      symmetric-s8           2     0      0 .. 254   0.00 %    exact\n"
        "\n"
        "calibrated on 20 samples, compared on 16\n"
        "constants 268 bytes before, 199 bytes after"
    )


def test_gates_then_causes_and_warnings():
    gates = (GateReport("lstm", "input", (-1.0, 2.5), (-0.25, 0.125), (0.1, 0.9), 0.001),)
    report = RecurrentReport(
        *(RecurrentSettings(), 12, 8, gates, 33.21, {"weights": 40.0, "cell states": None}),
        *({"lstm": (1.0, 2.0)}, ("lstm\n: the cell grows",), 1000, 260),
    )
    assert text(report) == (
        "title\n\n"
        "layer  gate   product of x    product of h      output  beyond 8\n"
        "lstm   input     -1 .. 2.5  -0.25 .. 0.125  0.1 .. 0.9    0.10 %\n"
        "\n"
        "SQNR of the outputs 33.2 dB; with nothing quantized but\n"
        "  weights: 40.0 dB\n"
        "  cell states: exact\n"
        "calibrated on 12 sequences, compared on 8\n"
        "a call takes one time step\n"
        "constants 1000 bytes before, 260 bytes after\n"
        "warning: lstm\\n: the cell grows"
    )
