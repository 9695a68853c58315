"""Graphs as ONNX files: QDQ form, and integers in which a runtime has no freedom."""
