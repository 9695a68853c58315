"""Plans executed, and what profiling measures with the same passes."""
