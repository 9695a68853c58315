"""Real tensors as codes of block floating point (training.md 1.1, 5 and 12.2)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from samebits import kernels
from samebits.errors import NonFiniteError, RangeError
from samebits.kernels.protocol import Part


def largest_magnitude(x: Tensor, name: str) -> float:
    """max|x| of a real tensor, 0 if it is empty.

    Raises NonFiniteError, which names the tensor and the first index, for NaN or infinity.
    """
    if x.numel() == 0:
        return 0.0
    low, high = torch.aminmax(x.detach())  # NaN comes through
    largest = max(-float(low), float(high))
    if math.isfinite(largest) and not math.isnan(float(low)):
        return largest
    index = tuple(int(i) for i in (~torch.isfinite(x)).nonzero()[0])
    raise NonFiniteError(
        f"tensor {name!r}: expected finite values, found {float(x[index])} at index {index}; "
        "remove or replace non-finite values"
    )


def quantize_real(x: Tensor, bits: int, name: str, by_rows: bool = False) -> Part:
    """A real tensor as bfp8, bfp16 or bfp32 codes with the smallest exponent in [-128, 127].

    One rounding (rne). by_rows: every row has its own exponent (training.md 12.2). Raises
    NonFiniteError, which names the tensor, for NaN or infinity, and RangeError for values that ask
    for a larger exponent.
    """
    values = x.detach()
    try:
        return kernels.of(values).quantize(values, bits, by_rows)
    except RangeError:
        largest_magnitude(values, name)  # knows where one is that is not finite
        raise
