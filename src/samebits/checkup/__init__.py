"""`samebits doctor`: what this machine has, whether it computes the right bits, what is missing.

`selftest` computes two small things whose hashes are known, `machine` looks for compilers, packages
and backends, `result` holds and prints what was found. No step ends the examination: what cannot be
told is told as a fault.
"""

from __future__ import annotations

from samebits.checkup.examine import doctor
from samebits.checkup.result import Checkup

__all__ = ["Checkup", "doctor"]
