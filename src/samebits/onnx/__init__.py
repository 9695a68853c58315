"""ONNX files <-> graphs."""

from samebits.onnx.reader.load import from_model, load, sampling_rate
from samebits.onnx.writer.binary32 import binary32_exact
from samebits.onnx.writer.exact import exact_form
from samebits.onnx.writer.integer import save_integer, to_integer
from samebits.onnx.writer.qdq import save_qdq, to_qdq

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
