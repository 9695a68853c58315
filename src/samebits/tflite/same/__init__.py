"""TensorFlow Lite files as integer graphs with a runtime's own multipliers and shifts."""
