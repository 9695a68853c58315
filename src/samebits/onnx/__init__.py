"""ONNX files <-> graphs."""

from samebits.onnx.metadata import FileFacts
from samebits.onnx.reader.load import facts, from_bytes, from_model, load
from samebits.onnx.writer.binary32 import binary32_exact
from samebits.onnx.writer.exact import exact_form
from samebits.onnx.writer.integer import save_integer, to_integer
from samebits.onnx.writer.qdq import save_qdq, to_qdq

__all__ = [
    "FileFacts",
    "binary32_exact",
    "exact_form",
    "facts",
    "from_bytes",
    "from_model",
    "load",
    "save_integer",
    "save_qdq",
    "to_integer",
    "to_qdq",
]
