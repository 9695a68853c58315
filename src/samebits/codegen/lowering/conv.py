"""conv, conv_transpose and linear as convolution kernels: weights packed, biases corrected.

The 8-bit kernel multiplies codes that are not negative (csrc/inference/conv_x86.c says why): it
holds x - least, the least code of the type, instead of x. As

    sum w * (x - least) = sum w * x - least * sum w,

adding least * sum(w) of an output channel to its bias gives the same sum. The 16-bit kernel takes
uint16 as x - 32768 in the same way. Sums and biases wrap in C, so the corrected bias need not fit.

A transposed convolution with stride s is s_y * s_x ordinary ones: the outputs of one phase
(row, column) modulo the stride see a fixed subset of the taps, in reverse order. With stride 2,
kernel 3, no padding, y = 2 * t sees taps 2 and 0 (of x[t - 1] and x[t]), y = 2 * t + 1 tap 1 (of
x[t]): no zeros are inserted, none multiplied.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from samebits.codegen.lowering.calls import Array, Data, Field, KernelCall, Struct
from samebits.codegen.lowering.rescale import TYPES, fits
from samebits.ir.integer.define import limits

LANES = 16  # output channels of a block of weights
BAND_BYTES = 8192  # scratch memory a layer uses unless 8 pixels need more
SLACK = 16  # bytes that vector loads may read after a band
LEAST_BLOCK = 8
# what x - code holds in the band, per type: 8-bit kernel and 16-bit kernel
OFFSET8 = {"int8": -128, "uint8": 0}
OFFSET16 = {"int8": 0, "uint8": 0, "int16": 0, "uint16": 32768}


def window_fields(*pairs: Sequence[int]) -> dict[str, int]:
    """Kernel, strides, pads and dilations of a window, each (vertical, horizontal), by C's names;
    of pads the first two, those before the image, are what kernels need."""
    names = (
        *("kernel_height", "kernel_width", "stride_y", "stride_x"),
        *("pad_top", "pad_left", "dilation_y", "dilation_x"),
    )
    return dict(zip(names, (number for pair in pairs for number in pair[:2]), strict=True))


@dataclass(frozen=True)
class ConvGeometry:
    """A convolution's shape: image, outputs, window, and where outputs go (in elements)."""

    batch: int
    height: int
    width: int
    channels: int
    out_height: int
    out_width: int
    out_channels: int
    groups: int
    kernel: tuple[int, int]
    strides: tuple[int, int]
    pads: tuple[int, int]
    dilations: tuple[int, int]
    pad_code: int
    out_batch: int
    out_row: int
    out_pixel: int
    out_start: int = 0

    @property
    def fields(self) -> dict[str, int]:
        """As the first fields of both C structs."""
        return {
            **{key: getattr(self, key) for key in ("batch", "height", "width", "channels")},
            "out_height": self.out_height,
            "out_width": self.out_width,
            "out_channels": self.out_channels,
            "groups": self.groups,
            **window_fields(self.kernel, self.strides, self.pads, self.dilations),
            "pad_code": self.pad_code,
        }


def conv_geometry(
    x: tuple[int, ...], w: tuple[int, ...], out: tuple[int, ...], a: Any
) -> ConvGeometry:
    """The geometry of a `conv` from shapes [N, H, W, C], [O, KH, KW, C / groups] and attributes.

    Where a window is one pixel, the images are one row of pixels: the same products, longer tiles.
    """
    if w[1:3] == (1, 1) and max(a["strides"]) == 1 and not any(a["pads"]):
        return row_geometry(math.prod(x[:3]), x[3], w[0], a["groups"])
    return window_geometry(x, w, out, a, a["pad_code"])


def row_geometry(pixels: int, channels: int, outputs: int, groups: int = 1) -> ConvGeometry:
    """The geometry of a `linear`: every row of x is a pixel."""
    return ConvGeometry(
        1, 1, pixels, channels, 1, pixels, outputs, groups, (1, 1), (1, 1), (0, 0), (1, 1), 0,
        0, 0, outputs,
    )  # fmt: skip


def window_geometry(
    x: tuple[int, ...], w: tuple[int, ...], out: tuple[int, ...], a: Any, pad_code: int
) -> ConvGeometry:
    """The geometry of any `conv`, or of a `conv_transpose` as a whole, whose zero is `pad_code`."""
    n, height, width, channels = x
    return ConvGeometry(
        n, height, width, channels, out[1], out[2], w[0], a["groups"], (w[1], w[2]), a["strides"],
        a["pads"][:2], a["dilations"], pad_code, math.prod(out[1:]), out[2] * w[0], w[0],
    )  # fmt: skip


def conv_calls(
    geometry: ConvGeometry, dtype: str, w: Array, b: Array, narrow: bool, rescale: Struct, x: str
) -> list[KernelCall] | None:
    """One call for constant weights [O, KH, KW, C / groups]; None where no fast kernel fits.

    narrow: the sums are proved to fit in 32 bits.
    """
    wide = w.astype(np.int64)
    least, most = int(wide.min()), int(wide.max())
    sums = wide.sum((1, 2, 3)).astype(object)
    bias = b.astype(object)
    if dtype in OFFSET8 and narrow and fits(least, most, limits("int8")):
        return [_conv8(geometry, dtype, wide, bias + OFFSET8[dtype] * sums, rescale, x)]
    corrected = bias + OFFSET16[dtype] * sums
    small = all(abs(int(v)) < 1 << 62 for v in corrected)
    if fits(least, most, limits("int16")) and small:
        return [_conv16(geometry, dtype, wide, corrected, rescale, x)]
    return None


def transposed_calls(
    geometry: ConvGeometry, dtype: str, w: Array, b: Array, narrow: bool, rescale: Struct, x: str
) -> list[KernelCall] | None:
    """One ordinary convolution for every phase of the strides, or None."""
    if not fits(geometry.pad_code, geometry.pad_code, limits(dtype)):
        return None
    calls: list[KernelCall] = []
    axes = [
        [
            _phase(r, geometry.strides[i], geometry.dilations[i], geometry.pads[i],
                   geometry.kernel[i], (geometry.out_height, geometry.out_width)[i])
            for r in range(min(geometry.strides[i], (geometry.out_height, geometry.out_width)[i]))
        ]
        for i in (0, 1)
    ]  # fmt: skip
    for ry, (rows, taps_y, pad_y, dilation_y) in enumerate(axes[0]):
        for rx, (columns, taps_x, pad_x, dilation_x) in enumerate(axes[1]):
            part = w[:, taps_y][:, :, taps_x]
            if part.size == 0:  # no tap reaches these outputs: the bias alone
                part = np.zeros_like(w[:, :1, :1])
            zeros = part.astype(np.int64).sum((1, 2, 3)).astype(object) * geometry.pad_code
            phase = replace(
                geometry,
                out_height=rows,
                out_width=columns,
                kernel=part.shape[1:3],
                strides=(1, 1),
                pads=(pad_y, pad_x),
                dilations=(dilation_y, dilation_x),
                out_row=geometry.out_row * geometry.strides[0],
                out_pixel=geometry.out_pixel * geometry.strides[1],
                out_start=ry * geometry.out_row + rx * geometry.out_pixel,
            )
            made = conv_calls(phase, dtype, part, b.astype(object) - zeros, narrow, rescale, x)
            if made is None:
                return None
            calls += made
    return calls


def any_call(
    geometry: ConvGeometry,
    dtypes: Sequence[str],
    transposed: bool,
    rescale: Struct,
    inputs: tuple[str, ...],
) -> KernelCall:
    """The kernel for every other combination of types, and for weights that are not constant."""
    fields: dict[str, Field] = {
        **geometry.fields,
        "x_type": TYPES[dtypes[0]],
        "w_type": TYPES[dtypes[1]],
        "b_type": TYPES[dtypes[2]],
        "transposed": int(transposed),
        "rescale": rescale,
    }
    return KernelCall("conv_any", Struct("conv_any", fields), inputs)


# --- one kernel -----------------------------------------------------------------------------


def _phase(
    phase: int, stride: int, dilation: int, pad: int, kernel: int, size: int
) -> tuple[int, list[int], int, int]:
    """(outputs, taps in reverse order, pad, dilation) of the outputs phase + stride * t."""
    taps = [p for p in range(kernel) if (phase + pad - p * dilation) % stride == 0][::-1]
    first = (phase + pad - taps[0] * dilation) // stride if taps else 0
    return -(-(size - phase) // stride), taps, -first, dilation // math.gcd(dilation, stride)


def _runs(geometry: ConvGeometry) -> tuple[int, int]:
    """(runs per kernel row, codes of a run)."""
    depth = geometry.channels // geometry.groups
    if geometry.dilations[1] == 1:
        return 1, geometry.kernel[1] * depth
    return geometry.kernel[1], depth


def _tile(geometry: ConvGeometry, depth: int, width: int) -> tuple[int, int]:
    """(output pixels per band, scratch bytes): whole rows if they fit in BAND_BYTES."""

    def size(pixels: int) -> int:
        columns = (pixels - 1) * geometry.strides[1] + 1
        columns += (geometry.kernel[1] - 1) * geometry.dilations[1]
        return geometry.kernel[0] * columns * depth * width

    tile = geometry.out_width
    while tile > 8 and size(tile) > BAND_BYTES:
        tile = max(8, (tile - 1) // 8 * 8)
    return tile, size(tile) + SLACK


def _call(
    function: str,
    geometry: ConvGeometry,
    dtype: str,
    weights: Array,
    bias: Array,
    rescale: Struct,
    x: str,
    tiling: tuple[int, int],
    block: int = 0,
) -> KernelCall:
    """A call with the parameters that the 8-bit, depthwise and 16-bit kernels share.

    weights: as packed for `function`. tiling: (output pixels per band, scratch bytes). block:
    products that a 32-bit sum of the 16-bit kernel holds.
    """
    runs, length = _runs(geometry)
    fields: dict[str, Field] = {
        **geometry.fields,
        "runs": runs,
        "length": length,
        "tile": tiling[0],
        "out_batch": geometry.out_batch,
        "out_row": geometry.out_row,
        "out_pixel": geometry.out_pixel,
        "out_start": geometry.out_start,
        "block": block,
        "type": TYPES[dtype],
        "w_type": TYPES[weights.dtype.name],
        "weights": Data(weights),
        "bias": Data(bias),
        "rescale": rescale,
    }
    return KernelCall(function, Struct("conv", fields), (x,), tiling[1])


def wrapped(values: Any, bits: int) -> Array:
    """Python integers modulo 2**bits, as two's complement."""
    half = 1 << (bits - 1)
    numbers = [(int(v) + half) % (2 * half) - half for v in values]
    return np.array(numbers, np.int32 if bits == 32 else np.int64)


def _conv8(
    geometry: ConvGeometry, dtype: str, w: Array, bias: Any, rescale: Struct, x: str
) -> KernelCall:
    """The 8-bit kernel, or that for one channel a group, with its weights packed.

    Packed are blocks of LANES output channels in which four codes of a channel lie together, as a
    vector multiplies them: [group][block][kernel row * run][quad][channel][4]. Runs are padded with
    zeros to whole quads; what a band holds there does not matter.
    """
    o, kh, kw, depth = w.shape
    corrected = wrapped(bias, 32)
    if depth == 1 and geometry.groups == o == geometry.channels and o > 1:
        weights = w.astype(np.int8).reshape(o, kh * kw).T.reshape(-1)
        tiling = _tile(geometry, geometry.channels, 1)
        return _call("depthwise8", geometry, dtype, weights, corrected, rescale, x, tiling)
    runs, length = _runs(geometry)
    quads = -(-length // 4)
    rows = np.zeros((geometry.groups, o // geometry.groups, kh * runs, quads * 4), np.int8)
    rows[..., :length] = w.reshape(*rows.shape[:3], length)
    rows = rows.reshape(*rows.shape[:3], quads, 4)
    parts = [
        group[start : start + LANES].transpose(1, 2, 0, 3).reshape(-1)
        for group in rows
        for start in range(0, len(group), LANES)
    ]
    # Vector loads read a whole quad of LANES channels.
    slack = max(0, 4 * LANES - 4 * (rows.shape[1] % LANES or LANES))
    weights = np.concatenate([*parts, np.zeros(slack, np.int8)])
    tiling = _tile(geometry, depth, 1)
    return _call("conv8", geometry, dtype, weights, corrected, rescale, x, tiling)


def _conv16(
    geometry: ConvGeometry, dtype: str, w: Array, bias: Any, rescale: Struct, x: str
) -> KernelCall:
    """The 16-bit kernel: weights in their own order, as 8 bits where they fit."""
    largest = {"int8": 128, "uint8": 255}.get(dtype, 32768) * max(int(np.abs(w).max()), 1)
    block = ((1 << 31) - 1) // largest
    corrected = wrapped(bias, 64)
    tiling = _tile(geometry, w.shape[3], 2)
    weights = w.astype(np.int8 if fits(int(w.min()), int(w.max()), limits("int8")) else np.int16)
    return _call(
        "conv16", geometry, dtype, weights.reshape(-1), corrected, rescale, x, tiling,
        block if block >= LEAST_BLOCK else 0,
    )  # fmt: skip
