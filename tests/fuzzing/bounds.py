"""How much memory a case may take, and what messages say where it took more."""

from __future__ import annotations

BEYOND = 2 << 30  # bytes of address space beyond what the process has after imports and seeds
MEMORY = 512 << 20  # bytes that reading a file of less than 1 MB may take
MEMORY_WORDS = ("MemoryError", "Unable to allocate", "not enough memory", "allocate memory")
