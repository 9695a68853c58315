"""docs/spec/training.md in plain Python integers, one module for each of its parts."""
