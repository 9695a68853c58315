"""Quantization of float models after training: calibration, conversion to QDQ form, report."""

from samebits.ir.fidelity import Fidelity, Held, OutputFidelity
from samebits.quantization.changes import LayerChange
from samebits.quantization.convert import Converted, convert
from samebits.quantization.effort import quantize_best
from samebits.quantization.front import Options, judged, quantize_network
from samebits.quantization.lstm import RecurrentReport, RecurrentSettings, quantize_recurrent
from samebits.quantization.observe import Statistics, observe
from samebits.quantization.placement import Placement, place
from samebits.quantization.post_training import quantize_graph
from samebits.quantization.report import (
    ConstantReport,
    QuantizationReport,
    StepReport,
    TensorReport,
)
from samebits.quantization.samples import Samples, samples_of
from samebits.quantization.settings import (
    ACTIVATIONS,
    WEIGHTS,
    Settings,
)
from samebits.quantization.states import StatePairs, quantize_states, tie_states

__all__ = [
    "ACTIVATIONS",
    "WEIGHTS",
    "ConstantReport",
    "Converted",
    "Fidelity",
    "Held",
    "LayerChange",
    "Options",
    "OutputFidelity",
    "Placement",
    "QuantizationReport",
    "RecurrentReport",
    "RecurrentSettings",
    "Samples",
    "Settings",
    "StatePairs",
    "Statistics",
    "StepReport",
    "TensorReport",
    "convert",
    "judged",
    "observe",
    "place",
    "quantize_best",
    "quantize_graph",
    "quantize_network",
    "quantize_recurrent",
    "quantize_states",
    "samples_of",
    "tie_states",
]
