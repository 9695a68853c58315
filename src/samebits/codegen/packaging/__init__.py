"""Folders of generated C: sources, harness, test vectors, Makefile, report."""
