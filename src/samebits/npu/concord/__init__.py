"""Concordant software: a program as PyTorch, ONNX, TensorFlow or C code with the same bits."""
