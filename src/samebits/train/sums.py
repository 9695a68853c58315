"""Exact sums, whose width is decided by their use (training.md 5)."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from samebits import kernels
from samebits.errors import RangeError
from samebits.kernels import rows
from samebits.kernels.protocol import CODE_TYPE, Found, Part
from samebits.kernels.rows import Exponent

Rounded = tuple[Part, Tensor | None]  # codes, and of clamped sums the mask (`kernels.clamps`)
Rounding = Callable[[int | None], Rounded]  # clamped by a clip value, or not


def requantized(
    acc: Tensor,
    exponent: Exponent,
    bits: int,
    divisor: int = 1,
    largest: int | None = None,
    shifts: Tensor | None = None,
) -> Part:
    """acc * 2**exponent / divisor as codes of the smallest exponent (training.md 1.1 and 12.1),
    whose channels may have shifts (12.4); one rounding.

    largest: max|acc|, where it is known and the exponent is one integer. Raises RangeError where an
    exponent with its shift would be above 127.
    """
    k = kernels.of(acc)
    if shifts is not None:
        assert isinstance(exponent, Tensor)
        codes, own = rows.requantize_channels(acc, exponent, shifts, bits, divisor, k=k)
        return codes.to(CODE_TYPE[bits]), own
    if largest is None:
        largest = k.largest_of(acc) if isinstance(exponent, int) else 0
    return k.requantize(acc, largest, exponent, bits, divisor)


class Sums:
    """The sums of a product with weights, a batch norm or an addition: bfp8 to a layer, bfp16 to a
    batch norm, bfp32 to a loss. A ReLU clamps the sums, and rounds what is left.

    The first layer that takes sums of products as codes lets go of them, which leaves a quarter of
    the memory, or half. Who asks for other bits after that has them computed again, so the order
    changes no bit.

    bits:    of the codes that layers but batch norm take
    by_rows: whether exponents are those of rows
    device:  where they lie
    shifts:  of the channels of the bfp8 (training.md 12.4), or None
    where:   the layer that computed them, for messages
    read:    whether somebody has asked for the 32-bit value
    """

    def __init__(
        self,
        compute: Callable[[], Found],
        bits: int,
        by_rows: bool,
        device: torch.device,
        shifts: Tensor | None = None,
        rounding: Rounding | None = None,
    ) -> None:
        """compute: may raise UnsupportedError when it is called again. rounding: rounds sums at
        once with computing them; without it they are computed now."""
        self.bits, self.by_rows, self.device, self.shifts = bits, by_rows, device, shifts
        self.where, self.read, self._kept = "", False, False
        self._compute, self._rounding = compute, rounding
        self._found = None if rounding else compute()
        self._narrow: dict[int, Part] = {}
        self._clamped: list[Part] = []

    def held(self) -> list[Tensor]:
        """The tensors in memory at this moment: the sums, or codes."""
        found = [self._found, *self._narrow.values(), *self._clamped]
        return [held[0] for held in found if held is not None]

    @property
    def is_clamped(self) -> bool:
        """Whether a ReLU has taken the sums."""
        return bool(self._clamped)

    def exact(self) -> Found:
        """The exact sums, as they were computed or once more."""
        return self._compute() if self._found is None else self._found

    def keep(self) -> None:
        """Hold the sums, whoever takes them as codes, and nothing that they were computed from:
        they are needed as 32 bits later."""
        found = self._found = self.exact()
        self._compute, self._rounding, self._kept = lambda: found, None, True

    @property
    def taken(self) -> frozenset[int]:
        """The widths at which layers have taken codes."""
        return frozenset(self._narrow)

    def narrow(self, bits: int | None = None) -> Part:
        """The codes that layers take, one rounding of the exact sums. bits: 16 of a batch norm.

        Raises RangeError, which names the layer that computed them, where the exponent overflows.
        """
        bits = bits or self.bits
        if bits not in self._narrow:
            with self._named():
                self._narrow[bits], _ = self._round(None, bits)
            if not self._kept:
                self._found = None
        return self._narrow[bits]

    def clamped(self, clip: int) -> tuple[Part, Tensor]:
        """The bfp8 of clamped sums, and the mask of their gradient. Raises as `narrow`."""
        with self._named():
            part, mask = self._round(clip, self.bits)
        assert mask is not None
        self._clamped.append(part)
        return part, mask

    def _round(self, clip: int | None, bits: int) -> Rounded:
        """Round the sums, clamped or not."""
        if self._rounding is not None and bits == self.bits:
            return self._rounding(clip)
        acc, largest, exponent = self.exact()
        k, mask = kernels.of(acc), None
        if self.shifts is None and clip is not None:
            return k.clamped(acc, exponent, clip, bits)
        if clip is not None:
            acc, mask = k.clamp(acc, exponent, clip)
        return requantized(acc, exponent, bits, largest=largest, shifts=self.shifts), mask

    @contextlib.contextmanager
    def _named(self) -> Iterator[None]:
        """Let a RangeError in a with block say where the sums were computed."""
        layer = kernels.on_behalf_of(self.where)
        try:
            yield
        except RangeError as error:
            raise RangeError(f"{self.where}: {error}" if self.where else str(error)) from None
        finally:
            kernels.on_behalf_of(layer)

    @property
    def chosen(self) -> int | None:
        """The largest exponent of the bfp8 that uses chose; None if all its codes are zero.

        Of sums that a ReLU alone takes it is that of clamped ones; where a batch norm takes them,
        and no other layer as they are, that of the codes that its gradient reads.
        """
        if self.bits in self._narrow:
            used = [self.narrow()]
        elif 16 in self._narrow:
            used = [requantized(*self._narrow[16], self.bits, shifts=self.shifts)]
        else:
            used = self._clamped or [self.narrow()]
        found = [e for part in used if (e := rows.largest_exponent(*part)) is not None]
        return max(found, default=None)

    def wide(self) -> Part:
        """The bfp32 that losses take, which is also the value that is read."""
        self.read = True
        acc, largest, exponent = self.exact()
        return kernels.of(acc).shorten(acc, largest, exponent)
