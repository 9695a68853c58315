"""TensorFlow Lite files <-> data -> graphs."""

from samebits.tflite.entry import Lite, from_bytes, load
from samebits.tflite.reader import parse
from samebits.tflite.writer import to_bytes

__all__ = ["Lite", "from_bytes", "load", "parse", "to_bytes"]
