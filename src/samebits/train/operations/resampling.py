"""Images and lines with other sides: padding, nearest and linear upsampling (training.md 14.4)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from samebits import kernels
from samebits.errors import UnsupportedError
from samebits.kernels.roundings import largest
from samebits.spec import formats
from samebits.train.operation import OperationCall, TrainingOperation
from samebits.train.operations.copies import added, copies
from samebits.train.operations.indexing import indexed
from samebits.train.operations.narrow import as_bfp8, as_decided
from samebits.train.operations.pointwise import over_lines
from samebits.train.shifts import narrowed
from samebits.train.tensor import BFPTensor, offer_by_name
from samebits.train.value import BFPValue, moved_part

MAX_WEIGHT = 1 << 12  # of a position along an axis: what its weights add up to
MAX_WEIGHTS = 1 << 31  # of all places of an output that hold one position of the input


# --- padding --------------------------------------------------------------------------------


def _padded(x: BFPValue, sizes: tuple[int, ...]) -> BFPValue:
    """x with zeros around it.

    Zeros have no exponent: those of rows follow from the elements around them.
    """
    codes, exponent = x.resolved()
    padded = functional.pad(codes, sizes)
    if isinstance(exponent, Tensor):
        own = functional.pad(exponent.expand(codes.shape), sizes, value=formats.EXPONENT_MIN)
        padded, exponent = moved_part((padded, own), lambda v: v)
    return BFPValue(padded, exponent, x.bits, layer_bits=x.layer_bits)


def _padded_gradient(call: OperationCall, grad: BFPValue) -> BFPValue:
    back = [-size for size in call.arguments[1]]
    return grad.moved(lambda v: functional.pad(v, back))


PAD = TrainingOperation("Pad", _padded, _padded_gradient)


def _around(mode: str, size: int, low: int, high: int) -> Tensor:
    """Which of `size` elements every position from -low to size + high takes."""
    most = {"reflect": size - 1, "circular": size}.get(mode)
    if most is not None and max(low, high) > most:
        raise UnsupportedError(
            f"pad: expected sizes of at most {most} of an axis of {size}, mode {mode}, found "
            f"{(low, high)}"
        )
    at = torch.arange(-low, size + high, device="cpu")
    if mode == "reflect":
        return size - 1 - (size - 1 - at.abs()).abs()
    return at % size if mode == "circular" else at.clamp(0, size - 1)


def pad(
    x: BFPTensor, pad: Sequence[int], mode: str = "constant", value: float | None = None
) -> BFPTensor:
    """x with zeros, or with its own elements, around its last axes.

    As torch.nn.functional.pad has sizes and modes; negative sizes, of zeros, take elements away.
    Raises UnsupportedError for other values than 0, and where elements do not suffice.
    """
    known = ("constant", "reflect", "replicate", "circular")
    if not isinstance(pad, Sequence):
        raise UnsupportedError(
            f"pad: expected two sizes for each of the last axes, found {pad!r:.80}; give the same "
            "size twice an axis"
        )
    pairs = [tuple(pad[at : at + 2]) for at in range(0, len(pad), 2)]  # of the last axis first
    fits = len(pad) % 2 == 0 and len(pairs) <= x.dim()
    wrong = mode not in known or value or not fits
    if wrong or (min(pad, default=0) < 0 and mode != "constant"):
        raise UnsupportedError(
            f"pad: expected two sizes of at least 0 for each of the last axes, mode "
            f"{', '.join(known)} and value 0, found {tuple(pad)}, {mode} and {value}"
        )
    if min(pad, default=0) < 0:
        x, pad = _cropped(x, pairs), [max(size, 0) for size in pad]
    if not any(pad):
        return x
    if mode == "constant":
        return PAD(as_decided(x, "pad"), tuple(pad))
    axes = {x.dim() - 1 - at: sizes for at, sizes in enumerate(pairs) if any(sizes)}
    return copies("pad", x, {a: _around(mode, x.shape[a], *s) for a, s in axes.items()})


def _cropped(x: BFPTensor, pairs: Sequence[tuple[int, ...]]) -> BFPTensor:
    """x without what negative sizes take from its last axes, of the last one first."""
    sides = [
        slice(max(-low, 0), size - max(-high, 0))
        for (low, high), size in zip(pairs, reversed(x.shape), strict=False)
    ]
    y = indexed(x, (..., *reversed(sides)))
    if y.numel() == 0:
        raise UnsupportedError(
            f"pad: expected sizes that leave elements of {tuple(x.shape)}, found {pairs}"
        )
    return y


# --- upsampling -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Line:
    """How positions along an axis follow from others: `first` and `second`, int64, which have the
    weights `whole - weight` and `weight`, int64; corners: whether those at the ends stay there."""

    first: Tensor
    second: Tensor
    weight: Tensor
    whole: int
    corners: bool

    def apply(self, v: Tensor, axis: int) -> Tensor:
        """The weighted sums along an axis of int64."""
        pairs = ((self.first, self.whole - self.weight), (self.second, self.weight))
        shape = [-1 if at == axis else 1 for at in range(v.dim())]
        low, high = (v.index_select(axis, at) * w.view(shape) for at, w in pairs)
        return low + high

    def back(self, v: Tensor, axis: int, size: int) -> Tensor:
        """The sums over all positions that hold an element, of an axis of a size."""
        pairs = ((self.first, self.whole - self.weight), (self.second, self.weight))
        shape = [-1 if at == axis else 1 for at in range(v.dim())]
        low, high = (added(v * w.view(shape), axis, at, size) for at, w in pairs)
        return low + high

    def to(self, device: torch.device) -> Line:
        """The same on a device."""
        first, second, weight = (v.to(device) for v in (self.first, self.second, self.weight))
        return Line(first, second, weight, self.whole, self.corners)


def line(n: int, m: int, corners: bool) -> Line:
    """The line from n to m positions. Raises UnsupportedError for weights that are too large."""
    at = torch.arange(m, device="cpu")
    if corners:
        position, whole = at * (n - 1), max(m - 1, 1)
    else:
        position, whole = ((2 * at + 1) * n - m).clamp(min=0), 2 * m
    first = position.div(whole, rounding_mode="floor")
    weight = torch.where(first < n - 1, position - whole * first, 0)
    common = math.gcd(whole, *weight.tolist())
    whole //= common
    if whole > MAX_WEIGHT:
        raise UnsupportedError(
            f"interpolate: expected sides whose weights have a common denominator of at most "
            f"{MAX_WEIGHT}, found {whole} of {n} to {m} positions; take sides with a simpler ratio"
        )
    return Line(first, (first + 1).clamp(max=n - 1), weight // common, whole, corners)


def weighted_sums(codes: Tensor, down: Line, across: Line) -> Tensor:
    """Sums of neighbours in an image by the weights of both axes, int64, exact."""
    return across.apply(down.apply(codes.long(), 2), 3)


def _interpolated(x: BFPValue, down: Line, across: Line) -> BFPValue:
    """Weighted means of neighbours in an image: exact sums, one rounding."""
    acc = weighted_sums(x.codes, down, across)
    return narrowed(acc, x.exponent, x.bits, x.shifts, down.whole * across.whole)


def _interpolated_gradient(call: OperationCall, grad: BFPValue) -> BFPValue:
    x, down, across = call.arguments
    g, e_g = grad.resolved()
    acc = down.back(across.back(g.long(), 3, x.shape[3]), 2, x.shape[2])
    divisor = down.whole * across.whole
    k = kernels.of(acc)
    return BFPValue(*k.divided(acc, largest(k, acc, e_g), e_g, divisor, 30 + divisor.bit_length()))


INTERPOLATE = TrainingOperation("Interpolate", _interpolated, _interpolated_gradient)


def _linear(x: BFPTensor, sides: tuple[int, int], corners: bool) -> BFPTensor:
    """An image [n, c, h, w] with sides between whose pixels it interpolates."""
    lines = [line(n, m, corners) for n, m in zip(x.shape[2:], sides, strict=True)]
    met = [
        each.back(torch.ones(m, dtype=torch.int64, device="cpu"), 0, n)
        for each, n, m in zip(lines, x.shape[2:], sides, strict=True)
    ]
    if (most := math.prod(int(v.max()) for v in met)) >= MAX_WEIGHTS:
        raise UnsupportedError(
            f"interpolate: expected weights of a pixel that add up to less than {MAX_WEIGHTS}, "
            f"found {most}; upsample in two steps"
        )
    down, across = (each.to(x.device) for each in lines)
    return INTERPOLATE(as_bfp8(x, "interpolate"), down, across)


def _nearest(x: BFPTensor, sides: tuple[int, int], exact: bool) -> BFPTensor:
    """An image [n, c, h, w] with sides whose pixels it repeats or leaves out."""
    chosen = {}
    for axis, m in zip((2, 3), sides, strict=True):
        n, at = x.shape[axis], torch.arange(m, device="cpu")
        index = (2 * at + 1) * n // (2 * m) if exact else at * n // m
        if not torch.equal(index, torch.arange(n, device="cpu")):
            chosen[axis] = index
    return copies("interpolate", x, chosen) if chosen else x


MODES = {3: ("nearest", "nearest-exact", "linear"), 4: ("nearest", "nearest-exact", "bilinear")}
"""Modes of lines and of images, by their axes."""


def interpolate(
    x: BFPTensor,
    size: Any = None,
    scale_factor: Any = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
    recompute_scale_factor: bool | None = None,
    antialias: bool = False,
) -> BFPTensor:
    """torch.nn.functional.interpolate of lines and images, by exact ratios of their sides.

    Nearest ones keep their width, linear ones are bfp8. Raises UnsupportedError for other shapes
    and modes, factors that do not give whole sides, and weights that are too large.
    """
    if mode not in MODES.get(x.dim(), ()) or antialias:
        raise UnsupportedError(
            "interpolate: expected lines or images, mode nearest, nearest-exact, or linear of "
            f"lines and bilinear of images, no antialias, found shape {tuple(x.shape)}, mode "
            f"{mode} and antialias {antialias}"
        )
    if align_corners is not None and "linear" not in mode:
        raise UnsupportedError(
            f"interpolate: expected align_corners of linear and bilinear alone, found "
            f"{align_corners} of {mode}; leave it out"
        )
    sides = _sides(tuple(x.shape[2:]), size, scale_factor, bool(recompute_scale_factor))
    whole = sides if len(sides) == 2 else (1, *sides)

    def image(v: BFPTensor) -> BFPTensor:
        if "linear" in mode:
            return _linear(v, (whole[0], whole[1]), bool(align_corners))
        return _nearest(v, (whole[0], whole[1]), mode == "nearest-exact")

    return image(x) if x.dim() == 4 else over_lines(x, image)


def _sides(own: tuple[int, ...], size: Any, factor: Any, recompute: bool) -> tuple[int, ...]:
    """The sides of the result. Raises UnsupportedError."""
    if size is not None and factor is not None:
        raise UnsupportedError(
            f"interpolate: expected a size or a scale_factor, found both, {size} and {factor}; "
            "give one"
        )
    given = factor if size is None else size
    each = tuple(given) if isinstance(given, Sequence | torch.Size) else (given,) * len(own)
    found: tuple[int, ...] = ()
    if None not in each and len(each) == len(own):
        exact = each if size is not None else [n * f for n, f in zip(own, each, strict=True)]
        if all(math.isfinite(v) and (recompute or v == int(v)) for v in exact):
            found = tuple(int(v) for v in exact)
    if not found or min(found) < 1:
        raise UnsupportedError(
            "interpolate: expected a size, or factors that give whole sides, of at least 1, found "
            f"size {size} and scale_factor {factor} of sides {own}; give a size, or "
            "recompute_scale_factor=True, which takes the whole part of a side"
        )
    return found


offer_by_name(interpolate, pad)
