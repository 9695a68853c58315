"""ONNX files, which are untrusted, as real graphs."""
