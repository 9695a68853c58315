"""The machine executed, instruction by instruction."""
