"""Data movement as copies: transpose, expand, slice, concat, pad, gather, scatter."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from samebits.codegen.lowering.calls import Data, Field, KernelCall, Struct, ValueCalls
from samebits.codegen.lowering.rescale import TYPES, WIDTHS
from samebits.codegen.lowering.shapes import broadcast_strides, collapsed, contiguous, shape_struct
from samebits.codegen.lowering.site import Site
from samebits.ir.integer.shape import places
from samebits.ir.value import Value

SHORT = 8  # elements of an axis
STARTS = ("from_start", "to_start")  # of copies: where they begin, which a loop adds to addresses


def _copy(
    site: Site,
    index: int,
    shape: Sequence[int],
    source: tuple[Sequence[int], int],
    target: tuple[Sequence[int], int],
) -> KernelCall:
    """A copy of the elements of one input at the indices of `shape`.

    source, target: (strides, start) in elements of the input and of the output.
    """
    sizes, walks = collapsed(shape, [source[0], target[0]], site.where)
    return _strided(site.input(index), sizes, walks, (source[1], target[1]))


def _strided(
    value: Value, sizes: Sequence[int], walks: Sequence[Sequence[int]], starts: tuple[int, int]
) -> KernelCall:
    """walks, starts: the strides and first elements in the value and in what is written.

    The kernel's inner loop takes the last axis: if that is short, the longest trades places with
    it, as the order of the axes does not matter.
    """
    order = list(range(len(sizes)))
    if sizes[-1] < SHORT:
        longest = max(order, key=lambda axis: sizes[axis])
        order[longest], order[-1] = order[-1], order[longest]
    sizes = [sizes[axis] for axis in order]
    walks = [[walk[axis] for axis in order] for walk in walks]
    fields: dict[str, Field] = {
        "shape": shape_struct(sizes),
        "from": tuple(walks[0]),
        "to": tuple(walks[1]),
        "from_start": starts[0],
        "to_start": starts[1],
        "width": WIDTHS[value.dtype],
    }
    return KernelCall("copy", Struct("copy", fields), (value.name,))


def starts(call: KernelCall) -> tuple[int, ...]:
    """The bytes ahead of what a copy reads and of what it writes."""
    found = []
    for key in STARTS:
        first, width = call.parameters.fields[key], call.parameters.fields["width"]
        assert isinstance(first, int)
        assert isinstance(width, int)
        found.append(first * width)
    return tuple(found)


def unmoved(call: KernelCall) -> KernelCall:
    """The same copy from and to the very start."""
    struct = call.parameters
    fields = {**struct.fields, **dict.fromkeys(STARTS, 0)}
    return replace(call, parameters=replace(struct, fields=fields))


def copied(value: Value) -> KernelCall:
    """A copy of all codes of a value."""
    return _strided(value, [value.size], [(1,), (1,)], (0, 0))


def moved(site: Site) -> ValueCalls:
    """transpose, expand, slice: one strided copy, or no copy where nothing moves."""
    x, a = site.input(0), site.a
    strides, start = contiguous(x.shape), 0
    if site.node.op == "transpose":
        strides = [strides[axis] for axis in a["perm"]]
    elif site.node.op == "expand":
        strides = broadcast_strides(x.shape, site.shape)
    elif site.node.op == "slice":
        start = sum(s * begin for s, begin in zip(strides, a["starts"], strict=True))
        strides = [s * step for s, step in zip(strides, a["steps"], strict=True)]
    target = contiguous(site.shape)
    _, walks = collapsed(site.shape, [strides, target], site.where)
    if x.size == math.prod(site.shape) and walks[0] == walks[1]:
        return site.view()
    return site.entry(_copy(site, 0, site.shape, (strides, start), (target, 0)))


def concat(site: Site) -> ValueCalls:
    """One copy for every input."""
    if len(site.node.inputs) == 1:
        return site.view()
    target, axis = contiguous(site.shape), site.a["axis"]
    calls, at = [], 0
    for index in range(len(site.node.inputs)):
        shape = site.input(index).shape
        start = at * target[axis]
        calls.append(_copy(site, index, shape, (contiguous(shape), 0), (target, start)))
        at += shape[axis]
    return site.entry(*calls)


def pad(site: Site) -> ValueCalls:
    """Fills the output with the padding code, then copies the input into the middle."""
    x, a = site.input(0), site.a
    if x.shape == site.shape:
        return site.view()
    target = contiguous(site.shape)
    start = sum(s * before for s, before in zip(target, a["before"], strict=True))
    size = math.prod(site.shape)
    fill = Struct("fill", {"size": size, "code": a["code"], "type": TYPES[x.dtype]})
    copy = _copy(site, 0, x.shape, (contiguous(x.shape), 0), (target, start))
    return site.entry(KernelCall("fill", fill, ()), copy)


def gather(site: Site) -> ValueCalls:
    """Copies of rows along an axis, by indices that are constant or computed."""
    x, axis = site.input(0), site.a["axis"]
    indices = site.context.constant(site.node.inputs[1])
    fields = {
        "outer": math.prod(x.shape[:axis]),
        "source": x.shape[axis],
        "count": site.input(1).size,
        "inner": math.prod(x.shape[axis + 1 :]) * WIDTHS[x.dtype],
    }
    if indices is None:
        fields["type"] = TYPES[site.input(1).dtype]
        return site.entry(site.call("take", "take", fields, *site.node.inputs))
    constant = Data(places(indices, x.shape[axis]).astype(np.int32))
    return site.entry(site.call("gather", "gather", {**fields, "indices": constant}))


def scatter(site: Site) -> ValueCalls:
    """Copies of rows to places along an axis; the output may be the memory of x, which then holds
    the rest already, unless x is the update too: its rows are read after some are written."""
    x, update, axis = site.input(0), site.input(1), site.a["axis"]
    fields = {
        "samples": x.shape[0],
        "outer": math.prod(x.shape[1:axis]),
        "size": x.shape[axis],
        "count": update.shape[axis],
        "inner": math.prod(x.shape[axis + 1 :]) * WIDTHS[x.dtype],
        "type": TYPES[site.input(2).dtype],
    }
    own = [] if update.name == x.name else [x.name]
    return site.entry(site.call("scatter", "scatter", fields, *site.node.inputs), in_place=own)
