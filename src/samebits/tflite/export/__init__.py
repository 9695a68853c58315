"""Integer graphs as TensorFlow Lite files, whose integers have the meaning `tflite`."""

from samebits.tflite.export.exporter import save, to_lite

__all__ = ["save", "to_lite"]
