"""The exact sums of a Linear or Conv2d, whose width is decided by their use (training.md 5)."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from samebits import kernels
from samebits.errors import RangeError
from samebits.kernels import rows
from samebits.kernels.geometry import requantize_shift
from samebits.kernels.protocol import CODE_TYPE, Part
from samebits.kernels.rows import Exponent
from samebits.spec import formats


class Sums:
    """acc * 2**exponent, |acc| <= largest: bfp8 to a layer, bfp32 to a loss.

    The first layer that takes the sums as 8 bits lets go of them, which leaves a quarter of the
    memory. Who asks for 32 bits after that has them computed again, so the order changes no bit.

    bits:   of the codes that a layer takes
    again:  computes acc once more; it may raise UnsupportedError
    shifts: of the channels of the bfp8 (training.md 12.4), or None
    where:  the layer that computed them, for messages
    read:   whether somebody has asked for the 32-bit value
    """

    def __init__(
        self,
        acc: Tensor,
        largest: int,
        exponent: Exponent,
        again: Callable[[], Tensor],
        bits: int,
        shifts: Tensor | None = None,
    ) -> None:
        self.largest, self.exponent, self.bits, self.shifts = largest, exponent, bits, shifts
        self.where, self.read = "", False
        self._acc: Tensor | None = acc
        self._again: Callable[[], Tensor] | None = again
        self._narrow: Part | None = None

    @property
    def held(self) -> Tensor:
        """The tensor in memory: the sums, or once they are gone the bfp8."""
        found = self._acc if self._narrow is None else self._narrow[0]
        assert found is not None
        return found

    @property
    def device(self) -> torch.device:
        """Where the sums lie."""
        return self.held.device

    def exact(self) -> Tensor:
        """The exact sums, as they were computed or once more."""
        if self._acc is not None:
            return self._acc
        assert self._again is not None
        return self._again()

    def keep(self) -> None:
        """Hold the sums, whoever takes them as 8 bits: they are needed as 32 bits later."""
        self._acc, self._again, self._narrow = self.exact(), None, None

    def narrow(self) -> Part:
        """The bfp8 that layers take, one rounding of the exact sums.

        Raises RangeError, which names the layer that computed them, where the exponent overflows.
        """
        if self._narrow is not None:
            return self._narrow
        acc = self.exact()
        try:
            if self.shifts is None:
                part = kernels.of(acc).requantize(acc, self.largest, self.exponent, self.bits)
            else:
                assert isinstance(self.exponent, Tensor)
                channels = (self.exponent, self.shifts, self.bits)
                codes, own = rows.requantize_channels(acc, *channels, k=kernels.of(acc))
                part = codes.to(CODE_TYPE[self.bits]), own
        except RangeError as error:
            raise RangeError(f"{self.where}: {error}" if self.where else str(error)) from None
        if self._again is not None:
            self._acc, self._narrow = None, part
        return part

    @property
    def chosen(self) -> int | None:
        """The exponent of the bfp8; None if all its codes are zero."""
        if isinstance(self.exponent, Tensor):
            return rows.largest_exponent(*self.narrow())
        if self.largest == 0:
            return None
        shift = requantize_shift(self.largest, self.exponent, self.bits)
        return self.exponent + shift if formats.scaled(self.largest, -shift) else None

    def wide(self) -> Part:
        """The bfp32 that losses take, which is also the value that is read."""
        self.read = True
        acc = self.exact()
        return kernels.of(acc).shorten(acc, self.largest, self.exponent)
