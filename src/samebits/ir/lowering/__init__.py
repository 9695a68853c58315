"""Quantized real graphs to integer graphs. docs/spec/graph.md section 4."""
