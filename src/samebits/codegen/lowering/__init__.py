"""Integer graphs to kernel calls with constant parameters."""
