"""Real tensors as codes of block floating point (training.md 1.1, 5 and 12.2)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from samebits import kernels
from samebits.errors import NonFiniteError, RangeError
from samebits.kernels import rows
from samebits.kernels.geometry import smallest_exponent
from samebits.kernels.protocol import CODE_TYPE, Part
from samebits.numerics.realise import times_power


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


def quantize_real(x: Tensor, bits: int, name: str) -> Part:
    """A real tensor as bfp8, bfp16 or bfp32 codes with the smallest exponent in [-128, 127].

    One rounding (rne). Raises NonFiniteError, which names the tensor, for NaN or infinity, and
    RangeError for values that ask for a larger exponent.
    """
    values = x.detach()
    try:
        return kernels.of(values).quantize(values, bits)
    except RangeError:
        largest_magnitude(values, name)  # knows where one is that is not finite
        raise


def quantize_rows(x: Tensor, bits: int, name: str) -> Part:
    """A real tensor as codes whose rows have their own smallest exponents (training.md 12.2).

    One rounding (rne). Raises as `quantize_real`.
    """
    largest_magnitude(x, name)
    values = x.detach().double()
    size = rows.row_size(x.shape)
    axes = [axis for axis in range(x.dim()) if size[axis] == 1]
    tops = values.abs().amax(axes) if values.numel() else values
    own = [smallest_exponent(top, bits) for top in tops.flatten().tolist()]
    exponent = torch.tensor(own, device=x.device).view(size)
    return torch.round(times_power(values, -exponent)).to(CODE_TYPE[bits]), exponent
