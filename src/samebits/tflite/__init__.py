"""TensorFlow Lite files <-> data -> graphs."""

from samebits.tflite.entry import from_bytes, load, load_same
from samebits.tflite.reader import parse
from samebits.tflite.writer import to_bytes

__all__ = ["from_bytes", "load", "load_same", "parse", "to_bytes"]
