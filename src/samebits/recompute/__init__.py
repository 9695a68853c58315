"""Recompute or store: what a training step keeps in memory, planned, and executed bit for bit."""
