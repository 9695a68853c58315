"""Convolutions that write over what they read, where that lowers the peak of the arena.

A convolution of a window of kernel rows needs input rows from u * stride - pad on for output row u.
Output rows are computed in order, each into a ring of a few rows beside the arena's values, and
wait there until no later row needs the input that they overwrite. Let output rows have `out` bytes
and input rows `row` bytes. Before row u is computed, rows up to u - 1 - delay have been written,
(u - delay) * out bytes from the start; they may reach up to the first byte that is still needed:

    (u - delay) * out <= max(0, u * stride - pad) * row    for every row u.

A 3x3 window with pad 1 and stride 1 between tensors of one shape needs a delay of one row, a
depthwise one with it 2 rows of memory instead of a second tensor; a 1x1 window none, so that a few
pixels at a time suffice. The idea is that of MCUNet's in-place depthwise convolution (Lin et al.,
"MCUNet", NeurIPS 2020, section 3.2), for every window, and exact: the kernels and their codes are
the same, row by row.

Packed kernels (lowering/packed.py) copy the rows of a window themselves before they write a row of
outputs: no output has to wait. They write over an input of their own size in any case, and here
over a larger one, as a window without padding has it, where that lowers the peak: later values may
need the bytes that the smaller output leaves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from samebits.arena import aligned
from samebits.codegen.loops import with_loops
from samebits.codegen.lowering.calls import CallList, Field, KernelCall, Struct, ValueCalls
from samebits.codegen.lowering.conv import SLACK
from samebits.codegen.lowering.cpu import Cpu
from samebits.codegen.lowering.lower import lower_to_calls
from samebits.codegen.lowering.rescale import TYPES
from samebits.codegen.memory import byte_size, last_reads, layout, views
from samebits.ir.graph import Graph

CHUNK, BAND = 12, 8  # pixels of a 1x1 window that are computed at a time; in a band of conv8
KERNELS = ("conv8", "depthwise8")
PACKED = ("conv8_packed", "depthwise8_packed")
BYTES = (TYPES["int8"], TYPES["uint8"])


def calls_for(graph: Graph, cpu: Cpu, draft: bool = False) -> CallList:
    """The kernel calls of a graph for a processor, compact where its memory counts most. draft: as
    `lower_to_calls` takes it."""
    calls = lower_to_calls(graph, cpu, draft)
    return with_loops(compact(calls) if cpu.small else calls)


def compact(calls: CallList) -> CallList:
    """The calls with the convolutions written in place that bring the arena to the least peak
    found; others stay as they are, for speed.

    First all that can be; then, from the first layer on, each is taken back that lowers nothing.
    """
    if calls.graph.states:
        return calls  # blocks of steps have a plan of their own
    found = {
        index: rolled
        for index, entry in enumerate(calls.entries)
        if (rolled := _rolled(calls, index, entry)) is not None
    }
    whole = layout(calls).bytes
    chosen = dict(found)
    least = layout(_with(calls, chosen)).bytes
    if least >= whole:
        return calls
    for index in found:
        without = {key: entry for key, entry in chosen.items() if key != index}
        if layout(_with(calls, without)).bytes <= least:
            chosen = without
    return _with(calls, chosen)


def _with(calls: CallList, chosen: dict[int, ValueCalls]) -> CallList:
    entries = (chosen.get(index, entry) for index, entry in enumerate(calls.entries))
    return replace(calls, entries=tuple(entries))


def _rolled(calls: CallList, index: int, entry: ValueCalls) -> ValueCalls | None:
    """The entry writing over its input; None where it cannot, or the input is read later or is not
    in the arena."""
    if len(entry.calls) != 1 or entry.calls[0].function not in (*KERNELS, *PACKED):
        return None
    (call,) = entry.calls
    (x,) = call.inputs
    graph, roots = calls.graph, views(calls)
    if last_reads(calls, roots)[roots[x]] > index or calls.constant(x) is not None:
        return None
    if roots[x] in graph.inputs or roots[x] in {roots[name] for name in graph.outputs}:
        return None
    made = _copying(call) if call.function in PACKED else rolled_call(call)
    if made is None or byte_size(graph.values[entry.value]) > byte_size(graph.values[x]):
        return None
    return ValueCalls(entry.value, (made,), in_place=(x,), rolling=True)


def _copying(call: KernelCall) -> KernelCall | None:
    """The call of a packed kernel that writes over its input as it is: it copies the rows of each
    window, and no row of outputs reaches beyond those. None for others."""
    f = call.parameters.fields
    row = _number(f, "width") * _number(f, "channels") // _number(f, "repeat")
    out = _number(f, "out_width") * _number(f, "out_channels")
    heights = _number(f, "out_height") <= _number(f, "height")
    reached = _number(f, "pad_top") < _number(f, "rows")
    return call if _number(f, "banded") and out <= row and heights and reached else None


def rolled_call(call: KernelCall) -> KernelCall | None:
    """The kernel call that computes the same in place, None for batches, wide codes, and where
    outputs would overtake inputs."""
    f = call.parameters.fields
    rescale = f.get("rescale")
    wide = isinstance(rescale, Struct) and rescale.fields["type"] not in BYTES
    if _number(f, "batch") != 1 or wide or not _contiguous(f):
        return None
    width, channels = _number(f, "width"), _number(f, "channels")
    out = _number(f, "out_width") * _number(f, "out_channels")
    pixels = _number(f, "out_height") == 1 and _window(f) == (1, 1, 1, 1, 0, 0)
    if pixels:
        units, chunk, wait = -(-width // CHUNK), CHUNK, 0
        row = CHUNK * _number(f, "out_channels")
        if _number(f, "out_channels") > channels:
            return None
        if call.function == "conv8":
            call = _with_tile(call, min(_number(f, "tile"), BAND))
    else:
        units, chunk, row = _number(f, "out_height"), 0, out
        found = delay(units, _number(f, "stride_y"), _number(f, "pad_top"), out, width * channels)
        if found is None or found >= units:
            return None
        wait = found
    fields: dict[str, Field] = {
        "conv": call.parameters,
        "units": units,
        "chunk": chunk,
        "delay": wait,
        "row": row,
        "total": _number(f, "out_height") * out,
    }
    scratch = aligned((wait + 1) * row) + (call.scratch or 0)
    return KernelCall(f"{call.function}_rolling", Struct("rolled", fields), call.inputs, scratch)


def _with_tile(call: KernelCall, tile: int) -> KernelCall:
    """The call of a 1x1 window with bands of at most `tile` pixels."""
    f = call.parameters.fields
    depth = _number(f, "channels") // _number(f, "groups")
    parameters = replace(call.parameters, fields={**f, "tile": tile})
    return replace(call, parameters=parameters, scratch=tile * depth + SLACK)


def delay(rows: int, stride: int, pad: int, out: int, row: int) -> int | None:
    """The fewest output rows that have to wait, None where no number of them suffices."""
    for wait in range(rows):
        later = range(wait + 1, rows)
        if all((u - wait) * out <= max(0, u * stride - pad) * row for u in later):
            return wait
    return None


def _number(fields: dict[str, Field] | object, key: str) -> int:
    value = fields[key]  # type: ignore[index]
    assert isinstance(value, int)
    return value


def _window(f: object) -> Sequence[int]:
    keys = ("kernel_height", "kernel_width", "stride_y", "stride_x", "pad_top", "pad_left")
    return tuple(_number(f, key) for key in keys)


def _contiguous(f: object) -> bool:
    """Outputs lie side by side from the start on."""
    channels = _number(f, "out_channels")
    rows = _number(f, "out_height") == 1
    return (
        _number(f, "out_start") == 0
        and _number(f, "out_pixel") == channels
        and (rows or _number(f, "out_row") == _number(f, "out_width") * channels)
    )
