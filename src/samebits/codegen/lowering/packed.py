"""Packed weights: convolutions of int8 codes for processors with vectors of small integers.

csrc/inference/packed.c has the kernels, lowering/cpu.py what each processor reads. A layer that has
no packed form, or a channel whose multiplier is not proved, is left to lowering/conv.py.

A window with dilation is gathered tap by tap instead of row by row, and so is that of a group,
which is a product of its own. A depthwise window of which each channel makes several is one of as
many channels, each of x repeated.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from samebits.codegen.lowering.calls import Array, Data, Field, KernelCall, Struct, ValueCalls
from samebits.codegen.lowering.conv import ConvGeometry, wrapped
from samebits.codegen.lowering.cpu import Packing
from samebits.codegen.lowering.doubled import are_doubled, doubled_shifts
from samebits.codegen.lowering.high import high_multipliers
from samebits.codegen.lowering.rescale import fits
from samebits.codegen.lowering.site import Site
from samebits.ir.integer.define import limits
from samebits.spec.rounding import Rounding

GATHERED = 1024  # bytes of the runs that are gathered at a time, unless one tile needs more
SLACK = 16  # bytes that a vector may read after the last code
SHORT = limits("int16")
WIDE_FIELDS = ("width", "out_width", "tile", "wide", "part")  # of 32 bits in C, others of 16


def packed_entry(site: Site, geometry: ConvGeometry, w: Array, b: Array) -> ValueCalls | None:
    """The call of a packed kernel for a conv or linear node with constant weights
    [O, KH, KW, C / groups], or None."""
    packing = site.context.cpu.packing
    if packing is None or site.requantize is None or not site.narrow:
        return None
    x, attributes = site.input(0), site.requantize.attributes
    codes = x.dtype == attributes["dtype"] == "int8"
    small = fits(int(w.min()), int(w.max()), limits("int8"))
    channels = geometry.out_channels
    depthwise = geometry.groups == geometry.channels > 1
    if not (codes and small):
        return None
    ratios: Sequence[Rounding] = attributes["ratios"]
    interval = site.context.bounds[site.node.output]
    ends = interval.hull.over(1) if len(ratios) == 1 else interval.over(channels)
    zero, low, high = (int(attributes[key]) for key in ("zero", "low", "high"))
    found = _ends(ratios, ends, (zero, low, high), packing)
    if found is None:
        return None
    if (depthwise or packing.upper == 32) and (low, high) != limits("int8"):
        return None  # these kernels saturate to the ends of the type
    paired = packing.paired and not depthwise
    if paired and int(w.min()) < -127:
        return None  # 256 * a + b, weights of two channels, has 16 bits
    words = np.tile(found.words, (channels // len(found.words), 1))
    moved = found.moved * (channels // len(found.moved))
    b = b.astype(object) + np.array(moved, object)
    sums = [
        (least + by, most + by)
        for (least, most), by in zip(interval.over(channels), moved, strict=True)
    ]
    short = not paired or short_sums(sums, channels // geometry.groups)
    if geometry.groups == 1 and geometry.channels != channels:
        geometry = as_row(geometry)
        w = w.reshape(channels, *geometry.kernel, -1)
    repeat = channels // geometry.channels if depthwise else 1
    fields: dict[str, Field] = {
        **geometry.fields,
        "channels": geometry.channels * repeat,
        "rows": span(geometry, 0),
        "repeat": repeat,
        "part": 0,
        "long_sums": int(not short),
        "upper": packing.upper,
        "doubled": int(words.shape[1] > 1),
        "shift": found.shift,
        "zero": zero,
        "low": low,
        "high": high,
    }
    make = _depthwise if depthwise else _conv
    call = make(site.node.inputs[0], geometry, packing, w, b, words, fields)
    return None if call is None else placed(site, geometry, call, call.parameters)


@dataclass(frozen=True)
class _Ends:
    """How sums become codes: words of every channel in the stream [1 or channels, words], a shift,
    and what is added to the sums."""

    words: Array
    shift: int
    moved: list[int]


def _ends(
    ratios: Sequence[Rounding],
    ends: Sequence[tuple[int, int]],
    codes: tuple[int, int, int],
    packing: Packing,
) -> _Ends | None:
    """By the roundings' kind; codes: the zero point, the least and the greatest."""
    if are_doubled(ratios, ends):
        pairs = doubled_shifts(ratios, ends, *codes, packing.less)
        return None if pairs is None else _Ends(np.array(pairs, np.int64), packing.less, [0])
    found = high_multipliers(ratios, ends, *codes, packing.upper)
    if found is None:
        return None
    shift, multipliers, moved = found
    return _Ends(np.array(multipliers, np.int64)[:, None], shift, moved)


def placed(
    site: Site, geometry: ConvGeometry, call: KernelCall, window: Struct
) -> ValueCalls | None:
    """The entry of a packed kernel, whose outputs may take the memory of x where windows have been
    copied; None where a number of the window does not fit in its field."""
    for name, number in window.fields.items():
        if isinstance(number, int) and name not in WIDE_FIELDS and not fits(number, number, SHORT):
            return None
    same = (geometry.height, geometry.width, geometry.channels) == (
        geometry.out_height,
        geometry.out_width,
        geometry.out_channels,
    )
    copied = window.fields["banded"] or geometry.groups == 1
    in_place = same and window.fields["tile"] and copied and geometry.pads[0] < span(geometry, 0)
    return site.entry(call, in_place=site.node.inputs[:1] if in_place else ())


def as_row(geometry: ConvGeometry) -> ConvGeometry:
    """An image of one column as one of one row, which lies in memory in the same way: rows have
    pixels that share the loads of weights, and a kernel row is one run."""
    g = geometry
    column = g.width == g.out_width == g.kernel[1] == g.strides[1] == 1
    if not column or any(g.pads):
        return g
    return replace(
        g,
        height=1,
        width=g.height,
        out_height=1,
        out_width=g.out_height,
        kernel=g.kernel[::-1],
        strides=g.strides[::-1],
        dilations=g.dilations[::-1],
    )


def span(geometry: ConvGeometry, axis: int) -> int:
    """Rows (axis 0) or columns (1) of the image that a window spans."""
    return (geometry.kernel[axis] - 1) * geometry.dilations[axis] + 1


def columns(geometry: ConvGeometry) -> int:
    """Columns of the padded image that the outputs of a row read."""
    return (geometry.out_width - 1) * geometry.strides[1] + span(geometry, 1)


def _conv(
    x: str,
    geometry: ConvGeometry,
    packing: Packing,
    w: Array,
    b: Array,
    words: Array,
    fields: dict[str, Field],
) -> KernelCall:
    """Every output pixel as a product of one run of codes for each group, padded to whole steps."""
    place = gathering(geometry, packing, packing.step)
    outputs, short = len(w) // geometry.groups, not fields["long_sums"]
    streams = [
        packed_stream(w[rows].reshape(outputs, -1), b[rows], words[rows], packing, short)
        for rows in (slice(first, first + outputs) for first in range(0, len(w), outputs))
    ]
    fields |= {
        **place.fields,
        "wide": place.wide,
        "lanes": packing.lanes,
        "part": len(streams[0]),
        "stream": Data(np.concatenate(streams)),
    }
    function = "linear8_packed" if place.row else "conv8_packed"
    return KernelCall(function, Struct("packed", fields), (x,), max(place.scratch + place.wide, 4))


@dataclass(frozen=True)
class Gathering:
    """How the codes of windows become runs.

    fields: of the C struct. codes: of a run, in whole steps. wide: bytes that the widened codes of
    a tile take. scratch: bytes of the others. row: windows of single pixels whose x needs no
    runs, or one run.
    """

    fields: Mapping[str, int]
    codes: int
    wide: int
    scratch: int
    row: bool


def gathering(geometry: ConvGeometry, packing: Packing, step: int, width: int = 1) -> Gathering:
    """Runs of codes of `width` bytes, padded to whole steps. Rows of x are copied where they are
    padded or the outputs may take their place."""
    height, across = geometry.kernel
    groups = geometry.groups
    taps = height * across * geometry.channels // groups
    steps = -(-taps // step)
    codes = steps * step
    same = geometry.channels == geometry.out_channels
    single = geometry.kernel == geometry.strides == (1, 1) and not any(geometry.pads)
    padded = any(geometry.pads) or columns(geometry) > geometry.width
    padded |= (geometry.out_height - 1) * geometry.strides[0] + span(geometry, 0) > geometry.height
    banded = not single and (padded or same)
    pixels = geometry.batch * geometry.out_height * geometry.out_width
    direct = single and groups == 1 and taps == codes and (pixels == 1 or not same)
    tile = min(geometry.out_width, max(GATHERED // (width * codes), packing.tile))
    if tile > packing.tile:
        tile = tile // packing.tile * packing.tile
    wide = packing.wide * packing.tile * codes if tile >= packing.tile else 0
    if direct and pixels < packing.tile:
        wide = 0
    scratch = 0 if direct else width * tile * codes
    if banded:
        scratch += width * span(geometry, 0) * columns(geometry) * geometry.channels
    fields = {
        "banded": int(banded),
        "tile": 0 if direct else tile,
        "step": width * step,
        "steps": steps,
    }
    row = direct or (single and pixels == groups == 1)
    return Gathering(fields, codes, wide, scratch, row)


def _depthwise(
    x: str,
    geometry: ConvGeometry,
    packing: Packing,
    w: Array,
    b: Array,
    words: Array,
    fields: dict[str, Field],
) -> KernelCall | None:
    """One channel a group: blocks of 16 lanes, which are as many channels of a pixel, or (tile)
    C channels of several pixels. None where sums of two products need more than 16 bits."""
    lanes, channels = packing.depthwise, geometry.out_channels
    taps = w.reshape(len(w), -1).astype(np.int64)
    odd = taps.shape[1] % 2
    if (
        lanes == 16
        and 128 * np.abs(taps[:, odd:]).reshape(len(w), -1, 2).sum(2).max(initial=0) >= 1 << 15
    ):
        return None
    narrow = lanes == 16 and channels < lanes and lanes % channels == 0 and geometry.strides[1] == 1
    if narrow:
        repeat = lanes // channels
        taps, b = np.tile(taps, (repeat, 1)), np.tile(b, repeat)
        words = np.tile(words, (repeat, 1))
    blocks = -(-len(taps) // lanes)
    group = channels if narrow else lanes
    line = max(blocks * group, channels) * columns(geometry)
    one = replace(packing, lanes=lanes, step=1, paired=False)
    fields |= {
        "banded": 1,
        "tile": group,
        "wide": 0,
        "lanes": lanes,
        "step": 1,
        "steps": taps.shape[1],
        "stream": Data(packed_stream(taps, b, words, one)),
    }
    scratch = 4 * taps.shape[1] + span(geometry, 0) * line + 2 * SLACK
    return KernelCall("depthwise8_packed", Struct("packed", fields), (x,), scratch)


def short_sums(ends: Sequence[tuple[int, int]], outputs: int) -> bool:
    """Whether the sum of the first channel of each pair fits in the 24 bits that remain of it in
    a sum of both. outputs: channels of a group, which begins with a first one."""
    limit = 1 << 23
    firsts = (pair for channel, pair in enumerate(ends) if channel % outputs % 2 == 0)
    return all(-limit <= least and most < limit for least, most in firsts)


def packed_stream(w: Array, b: Array, words: Array, packing: Packing, short: bool = True) -> Array:
    """The words of a layer, as int32: for each block of `lanes` channels their biases, their
    weights and what ends their sums. w: [O, taps]; words: [O, ...], which lie channel by channel,
    but where vectors load them one kind after the other; channels and taps that are missing from
    the last block or step are 0. short: the first bias of a pair holds both."""
    lanes = packing.lanes
    blocks, steps = -(-len(w) // lanes), -(-w.shape[1] // packing.step)
    weights = np.zeros((blocks * lanes, steps * packing.step), np.int64)
    weights[: len(w), : w.shape[1]] = w
    ends = np.zeros((blocks * lanes, words.shape[1]), np.int32)
    ends[: len(w)] = words
    last = ends.reshape(blocks, lanes, -1)
    if not packing.less:
        last = last.transpose(0, 2, 1)
    begin = np.zeros(blocks * lanes, object)
    begin[: len(w)] = b
    biases = begin.reshape(blocks, lanes)
    if packing.paired:
        both = (256 * weights[::2] + weights[1::2]).reshape(blocks, steps, 2, 2)
        codes = both.transpose(0, 1, 3, 2).astype("<i2")
        taps = np.ascontiguousarray(codes.reshape(blocks, -1)).view("<i4").astype(np.int32)
        if short:
            biases[:, 0] = 256 * biases[:, 0] + biases[:, 1]
    else:
        taps = blocks_of(weights, lanes, packing.step)
    first = wrapped(biases.reshape(-1), 32).reshape(blocks, -1)
    return np.concatenate([first, taps, last.reshape(blocks, -1)], 1).reshape(-1)


def blocks_of(weights: Array, lanes: int, step: int) -> Array:
    """The words of whole blocks of `lanes` channels [O, taps], in which `step` taps of a channel
    lie together: one row a block."""
    blocks = len(weights) // lanes
    codes = weights.reshape(blocks, lanes, -1, step).transpose(0, 2, 1, 3).astype(np.int8)
    return np.ascontiguousarray(codes.reshape(blocks, -1)).view("<i4").astype(np.int32)
