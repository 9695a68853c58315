"""Autograd functions over BFP tensors. docs/spec/training.md sections 5 and 7."""
