"""Concordant software: a program as PyTorch, ONNX or TensorFlow code with the same bits."""
