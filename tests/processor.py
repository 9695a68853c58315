"""How fast this processor is now: what a promise of seconds is worth on a machine at work."""

from __future__ import annotations

import time

PROMISED = 0.1  # seconds of the processor for the loop below, on the machine of the promises


def slowness() -> float:
    """How many times longer than promised a plain loop takes at the moment, at least 1."""
    began = time.process_time()
    sum(i * i % 7 for i in range(10**6))
    return max(1.0, (time.process_time() - began) / PROMISED)
