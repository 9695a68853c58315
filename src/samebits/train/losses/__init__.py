"""Losses: integer gradients, and the losses reported, from exact integers (training.md 6).

`reduction`: what all share. `entropy`: cross-entropies, by integer exponentials. `difference`: MSE,
L1, Huber. `functional`: PyTorch's own functions and modules on BFP tensors.
"""
