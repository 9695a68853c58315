"""The compiler to firmware: a real graph as a program of the neural processor."""
