"""QTensor: integer codes with the scale that gives them a value."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from samebits.spec.formats import Format, ScaleRule

INTEGER_DTYPES = (torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64)


def code_dtype(fmt: Format) -> torch.dtype:
    """The smallest torch integer type that holds every code (uint16 and uint32, which torch
    barely computes with, are passed over)."""
    for dtype in INTEGER_DTYPES:
        limits = torch.iinfo(dtype)
        if limits.min <= fmt.code_min and fmt.code_max <= limits.max:
            return dtype
    raise ValueError(f"format {fmt.name!r}: no integer type holds its codes")


def scale_shape(shape: torch.Size, block: int | None) -> torch.Size:
    """The shape of `exponent` or `scale` for codes of `shape`: () for one block, else one entry
    for every `block` elements of the last axis (a scalar counts as one element)."""
    if block is None:
        return torch.Size(())
    last = shape[-1] if shape else 1
    return torch.Size((*shape[:-1], -(-last // block)))


def power_of_two(exponent: torch.Tensor) -> torch.Tensor:
    """2**exponent as float64, exactly, built from its bits. int64, -1022 to 1023."""
    return ((exponent + 1023) << 52).view(torch.float64)


@dataclass(frozen=True, eq=False, repr=False)
class QTensor:
    """A quantized tensor.

    codes:      integers of any shape and integer type, in [code_min, code_max]
    format:     its number format
    exponent:   int64, one per block (shape () for one block); FIXED, BFP and MX formats only.
                value = code * 2**exponent
    scale:      float64 holding binary32 numbers, one per block; affine formats only.
                value = scale * (code - zero_point)
    zero_point: 0 unless the rule is ASYMMETRIC

    Raises ValueError when the parts do not belong together.
    """

    codes: torch.Tensor
    format: Format
    exponent: torch.Tensor | None = None
    scale: torch.Tensor | None = None
    zero_point: int = 0

    def __post_init__(self) -> None:
        """Check that codes, exponents or scales and the zero point are those of the format."""
        codes, fmt = self.codes, self.format
        if codes.dtype not in INTEGER_DTYPES:
            raise self._error("integer codes", str(codes.dtype))
        if codes.numel():
            low, high = int(codes.min()), int(codes.max())
            if low < fmt.code_min or high > fmt.code_max:
                raise self._error(f"codes in [{fmt.code_min}, {fmt.code_max}]", f"[{low}, {high}]")
        if fmt.power_of_two:
            if self.exponent is None or self.scale is not None:
                raise self._error("an exponent and no scale", self._given())
            self._check_scale(self.exponent, "exponent", torch.int64)
            fixed = fmt.rule is ScaleRule.FIXED
            low = -fmt.fraction_bits if fixed else fmt.exponent_min
            high = -fmt.fraction_bits if fixed else fmt.exponent_max
            if not bool(((self.exponent >= low) & (self.exponent <= high)).all()):
                raise self._error(f"exponents in [{low}, {high}]", _brief(self.exponent))
        else:
            if self.scale is None or self.exponent is not None:
                raise self._error("a scale and no exponent", self._given())
            self._check_scale(self.scale, "scale", torch.float64)
            if not bool(((self.scale > 0) & torch.isfinite(self.scale)).all()):
                raise self._error("positive finite scales", _brief(self.scale))
        asymmetric = fmt.rule is ScaleRule.ASYMMETRIC
        low, high = (fmt.code_min, fmt.code_max) if asymmetric else (0, 0)
        if not low <= self.zero_point <= high:
            raise self._error(f"a zero point in [{low}, {high}]", str(self.zero_point))

    def _given(self) -> str:
        given = [n for n in ("exponent", "scale") if getattr(self, n) is not None]
        return " and ".join(given) or "neither"

    def _error(self, expected: str, found: str) -> ValueError:
        return ValueError(
            f"QTensor of format {self.format.name!r}: expected {expected}, found {found}"
        )

    def _check_scale(self, tensor: torch.Tensor, what: str, dtype: torch.dtype) -> None:
        shape = scale_shape(self.codes.shape, self.format.block)
        if tensor.dtype != dtype or tensor.shape != shape or tensor.device != self.codes.device:
            raise self._error(
                f"{what} of type {dtype}, shape {tuple(shape)} on {self.codes.device}",
                f"{tensor.dtype}, {tuple(tensor.shape)} on {tensor.device}",
            )

    @property
    def shape(self) -> torch.Size:
        """The shape of the codes, which is that of the values."""
        return self.codes.shape

    def dequantize(self) -> torch.Tensor:
        """The values, float64, same shape and device.

        Exact for FIXED, BFP and MX formats (a code has at most 32 bits), and for affine formats of
        up to 28 bits (24-bit scale times a 29-bit difference); beyond, the nearest float64.
        """
        if self.exponent is not None:
            return self.codes.to(torch.float64) * self._spread(power_of_two(self.exponent))
        assert self.scale is not None
        return (self.codes.to(torch.int64) - self.zero_point) * self._spread(self.scale)

    def _spread(self, per_block: torch.Tensor) -> torch.Tensor:
        """One entry per block -> one per element (or a scalar)."""
        block = self.format.block
        if block is None:
            return per_block
        last = self.codes.shape[-1] if self.codes.shape else 1
        spread = per_block.repeat_interleave(block, dim=-1)[..., :last]
        return spread.reshape(self.codes.shape)

    def __repr__(self) -> str:
        parts = [
            self.format.name,
            f"shape {tuple(self.codes.shape)}",
            f"codes {_brief(self.codes)}",
        ]
        if self.exponent is not None:
            parts.append(f"exponent {_brief(self.exponent)}")
        if self.scale is not None:
            parts.append(f"scale {_brief(self.scale)}")
        if self.format.rule is ScaleRule.ASYMMETRIC:
            parts.append(f"zero_point {self.zero_point}")
        if self.codes.device.type != "cpu":
            parts.append(str(self.codes.device))
        return f"QTensor({', '.join(parts)})"


def _brief(tensor: torch.Tensor, limit: int = 8) -> str:
    """The elements of a small tensor, or the first of a large one."""
    if tensor.dim() == 0:
        return str(tensor.item())
    flat = tensor.reshape(-1)
    items = ", ".join(str(v) for v in flat[:limit].tolist())
    return f"[{items}, ... {flat.numel()} in all]" if flat.numel() > limit else f"[{items}]"
