"""Packed weights for codes of 16 bits: int16 codes, int8 weights, sums of 32 bits.

csrc/inference/packed16.c has the kernels. The runs are those of lowering/packed.py, in bytes. Sums
end by multipliers of two words (lowering/high.py) where codes of 16 bits have them, else by the
form that the layer has anyway, sums that are stored among them.
"""

from __future__ import annotations

import numpy as np

from samebits.codegen.lowering.calls import Array, Data, Field, KernelCall, Struct, ValueCalls
from samebits.codegen.lowering.conv import ConvGeometry, wrapped
from samebits.codegen.lowering.cpu import Packing
from samebits.codegen.lowering.packed import (
    SLACK,
    as_row,
    blocks_of,
    columns,
    gathering,
    placed,
    span,
)
from samebits.codegen.lowering.rescale import TYPES, fits, in_words
from samebits.codegen.lowering.site import Site
from samebits.ir.integer.define import limits

EIGHT = 8  # channels of a block of the depthwise kernel


def packed16_entry(site: Site, geometry: ConvGeometry, w: Array, b: Array) -> ValueCalls | None:
    """The call of a packed kernel for a conv or linear node of int16 codes and constant int8
    weights [O, KH, KW, C / groups] whose sums fit in 32 bits, or None."""
    packing = site.context.cpu.packing
    small = fits(int(w.min()), int(w.max()), limits("int8"))
    if packing is None or not packing.step16 or not (site.narrow and small):
        return None
    depthwise = geometry.groups == geometry.channels > 1
    if site.input(0).dtype != "int16" or (depthwise and geometry.channels != len(w)):
        return None
    if geometry.groups == 1 and geometry.channels != len(w):
        geometry = as_row(geometry)
        w = w.reshape(len(w), *geometry.kernel, -1)
    words = site.requantize and in_words(
        site.context.bounds[site.node.output], site.requantize.attributes
    )
    rescale = _by_channel(words, -(-len(w) // EIGHT) * EIGHT) if words else site.rescale
    f = rescale.fields
    full = f["type"] == TYPES["int16"] and (f["low"], f["high"]) == limits("int16")
    fast = bool(words) and full
    bias = np.zeros(-(-len(w) // EIGHT) * EIGHT, object)
    bias[: len(w)] = b
    fields: dict[str, Field] = {
        **geometry.fields,
        "channels": 2 * geometry.channels,
        "rows": span(geometry, 0),
        "repeat": 1,
        "part": 0,
        "long_sums": 0,
        "upper": 0,
        "doubled": 0,
        "shift": 0,
        "zero": 0,
        "low": 0,
        "high": 0,
    }
    make = _depthwise if depthwise else _conv
    function, scratch = make(geometry, packing, w, fields)
    window = Struct("packed", fields)
    whole: dict[str, Field] = {
        "window": window,
        "bias": Data(wrapped(bias, 32)),
        "rescale": rescale,
        "fast": int(fast),
    }
    call = KernelCall(function, Struct("packed16", whole), site.node.inputs[:1], scratch)
    return placed(site, geometry, call, window)


def _by_channel(words: Struct, channels: int) -> Struct:
    """The same multipliers, of every channel, and of whole blocks."""
    data, count = words.fields["multipliers"], words.fields["channels"]
    assert isinstance(data, Data)
    pairs = data.array.reshape(-1, 2)
    made = np.zeros((channels, 2), np.int32)
    made[: len(pairs) if count != 1 else channels] = pairs
    return Struct(
        "rescale", {**words.fields, "multipliers": Data(made.reshape(-1)), "channels": channels}
    )


def _conv(
    geometry: ConvGeometry, packing: Packing, w: Array, fields: dict[str, Field]
) -> tuple[str, int]:
    """Fills the window's fields; the kernel, and its scratch memory: sums of a tile, widened runs,
    and what `gathering` asks for."""
    step = max(packing.step16, 4)
    place = gathering(geometry, packing, step, 2)
    groups, outputs = geometry.groups, len(w) // geometry.groups
    lanes = -(-outputs // packing.lanes) * packing.lanes
    padded = np.zeros((groups, lanes, place.codes), np.int64)
    taps = w[0].size
    padded[:, :outputs, :taps] = w.reshape(groups, outputs, taps)
    streams = [blocks_of(part, packing.lanes, packing.step16) for part in padded]
    sums = 4 * packing.tile * (-(-lanes // 4) * 4)
    wide = sums + place.wide
    fields |= {
        **place.fields,
        "wide": wide,
        "lanes": packing.lanes,
        "part": streams[0].size,
        "stream": Data(np.concatenate([part.reshape(-1) for part in streams])),
    }
    return "linear16_packed" if place.row else "conv16_packed", wide + place.scratch


def _depthwise(
    geometry: ConvGeometry, packing: Packing, w: Array, fields: dict[str, Field]
) -> tuple[str, int]:
    """The same of one channel a group: places of the taps, and the rows of a window."""
    taps = w[0].size
    padded = np.zeros((-(-len(w) // EIGHT) * EIGHT, taps), np.int64)
    padded[: len(w)] = w.reshape(len(w), taps)
    fields |= {
        "banded": 1,
        "tile": 1,
        "wide": 0,
        "lanes": EIGHT,
        "step": 2,
        "steps": taps,
        "stream": Data(blocks_of(padded, EIGHT, 1).reshape(-1)),
    }
    line = columns(geometry) * 2 * geometry.channels
    return "depthwise16_packed", 4 * taps + span(geometry, 0) * line + SLACK
