"""samebits: low-precision neural networks that compute the same bits everywhere."""
