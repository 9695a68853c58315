"""The floating-point environment that every result rests on: to nearest, with subnormal numbers.

A library that calls fesetround, or sets the processor to flush subnormal numbers to zero, changes
the arithmetic of its thread, and of all threads that this one starts later. No result of samebits
may depend on that, so it is looked at where training begins and before every step. IEEE 754-2019,
section 4.3; the checks are sums whose rounding differs in every other mode.
"""

from __future__ import annotations

import torch

from samebits.errors import InputError

GRAIN = 1 << 15  # elements that torch leaves to one thread
HALF_STEP = 2.0**-54  # below half a unit in the last place of 1, above and below
SMALLEST_NORMAL = 2.0**-1022
ADVICE = (
    "set it back (fesetround(FE_TONEAREST), torch.set_flush_denormal(False)) before samebits "
    "computes, or in the library that changed it"
)


def check_thread() -> None:
    """Raise InputError unless this thread rounds to nearest and keeps subnormal numbers."""
    small = HALF_STEP
    if not 1.0 + small == 1.0 == 1.0 - small / 2 or -1.0 - small != -1.0:
        raise InputError(
            f"expected arithmetic that rounds to nearest, found another rounding mode; {ADVICE}"
        )
    if SMALLEST_NORMAL * (small / small) / 2 == 0:
        raise InputError(f"expected subnormal numbers, found them flushed to zero; {ADVICE}")


def check_threads() -> None:
    """As `check_thread`, for the threads of torch's operations too."""
    check_thread()
    count = GRAIN * torch.get_num_threads()
    ones = torch.ones(count, dtype=torch.float64, device="cpu")
    nearest = (ones + HALF_STEP == 1) & (ones - HALF_STEP / 2 == 1) & (-ones - HALF_STEP == -1)
    if not bool(nearest.all()):
        raise InputError(
            "expected torch's threads to round to nearest, found another rounding mode in one of "
            f"them; {ADVICE}, and before torch starts its threads"
        )
    if bool((ones * SMALLEST_NORMAL / 2 == 0).any()):
        raise InputError(
            "expected torch's threads to keep subnormal numbers, found them flushed to zero in one "
            f"of them; {ADVICE}, and before torch starts its threads"
        )
