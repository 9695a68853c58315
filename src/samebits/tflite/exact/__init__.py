"""TensorFlow Lite files as real graphs: every result rounded once from the exact number."""
