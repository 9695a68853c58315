"""Quantization of float models after training: calibration, conversion to QDQ form, report."""

from samebits.quantization.convert import Converted, convert
from samebits.quantization.lstm import RecurrentReport, RecurrentSettings, quantize_recurrent
from samebits.quantization.observe import Statistics, observe
from samebits.quantization.placement import Placement, place
from samebits.quantization.post_training import quantize_graph
from samebits.quantization.report import ConstantReport, QuantizationReport, TensorReport
from samebits.quantization.samples import Samples, samples_of
from samebits.quantization.settings import ACTIVATIONS, METHODS, WEIGHTS, Settings
from samebits.quantization.states import StatePairs, quantize_states, tie_states

__all__ = [
    "ACTIVATIONS",
    "METHODS",
    "WEIGHTS",
    "ConstantReport",
    "Converted",
    "Placement",
    "QuantizationReport",
    "RecurrentReport",
    "RecurrentSettings",
    "Samples",
    "Settings",
    "StatePairs",
    "Statistics",
    "TensorReport",
    "convert",
    "observe",
    "place",
    "quantize_graph",
    "quantize_recurrent",
    "quantize_states",
    "samples_of",
    "tie_states",
]
