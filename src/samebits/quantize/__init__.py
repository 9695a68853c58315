"""Quantization of float models after training: calibration, conversion to QDQ form, report."""

from samebits.quantize.convert import Converted, convert
from samebits.quantize.lstm import RecurrentReport, RecurrentSettings, quantize_recurrent
from samebits.quantize.observe import Statistics, observe
from samebits.quantize.placement import Placement, place
from samebits.quantize.post_training import quantize
from samebits.quantize.report import ConstantReport, Report, TensorReport
from samebits.quantize.samples import Samples, load_samples
from samebits.quantize.settings import ACTIVATIONS, METHODS, WEIGHTS, Settings

__all__ = [
    "ACTIVATIONS",
    "METHODS",
    "WEIGHTS",
    "ConstantReport",
    "Converted",
    "Placement",
    "RecurrentReport",
    "RecurrentSettings",
    "Report",
    "Samples",
    "Settings",
    "Statistics",
    "TensorReport",
    "convert",
    "load_samples",
    "observe",
    "place",
    "quantize",
    "quantize_recurrent",
]
