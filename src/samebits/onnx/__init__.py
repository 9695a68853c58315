"""ONNX files <-> graphs."""

from samebits.onnx.binary32 import binary32_exact
from samebits.onnx.exact import exact_form
from samebits.onnx.export import save_qdq, to_qdq
from samebits.onnx.integer import save_integer, to_integer
from samebits.onnx.load import from_model, load, sampling_rate

__all__ = [
    "binary32_exact",
    "exact_form",
    "from_model",
    "load",
    "sampling_rate",
    "save_integer",
    "save_qdq",
    "to_integer",
    "to_qdq",
]
