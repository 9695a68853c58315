"""Where every stored value lives, and what a package needs of flash, RAM and stack.

A value lives from the entry of the call list that writes it to the last that reads it. Inputs and
outputs are the caller's memory, constants are tables; all else lies in one arena, in which values
that are never live together share bytes (`plan`). Two rules save copies and bytes before that:
a view has the memory of its root, whose life it prolongs; and an output takes over the memory of an
input that nobody reads later, if both have the same size (`ValueCalls.in_place`).

The example of lowering/lower.py, every value but y of 1024 bytes:

    entry   0   1   2   3   4   5       place
    h1      w   r                       arena + 0
    r           w   r   r               arena + 0, taken over from h1
    h2              w   r               arena + 1024
    s                   w               arena + 1024, taken over from h2
    v                       .   r       a view of s
    y                           w       output0

Two buffers remain, live from entry 0 to 3 and from 2 to 5. At entries 2 and 3 both are, so that no
plan needs less than 2048 bytes, and this one needs no more; x, as input0, is not in the arena.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from samebits.codegen.lowering.calls import CallList
from samebits.codegen.lowering.rescale import WIDTHS
from samebits.codegen.plan import ArenaBuffer, ArenaPlan, aligned, plan
from samebits.ir.value import Value

# Bytes of stack of samebits_run_<function> and what it calls, on Cortex-M with gcc at any
# optimisation level; tests/codegen measures them with -fstack-usage.
STACK = {
    "conv8": 1728,
    "depthwise8": 1856,
    "conv8_packed": 512,
    "linear8_packed": 512,
    "depthwise8_packed": 512,
    "conv16": 1536,
    "conv_any": 1408,
    "matmul": 1920,
    "broadcast": 1792,
    "add8": 192,
    "affine": 1664,
    "requantize": 1664,
    "clip": 192,
    "table": 192,
    "cubic": 416,
    "max_pool": 320,
    "sum_pool": 1728,
    "reduce": 1600,
    "softmax": 576,
    "masked_softmax": 576,
    "normalize": 640,
    "argmax": 256,
    "divide": 576,
    "log_softmax": 576,
    "top_k": 256,
    "resample": 1664,
    "tree_ensemble": 1728,
    "copy": 320,
    "fill": 128,
    "gather": 128,
    "take": 192,
    "scatter": 192,
}
STACK_OF_RUN = 256  # model_run itself


def byte_size(value: Value) -> int:
    """Bytes of a value's codes."""
    return value.size * WIDTHS[value.dtype]


@dataclass(frozen=True)
class Place:
    """Where a value lies.

    kind: "input", "output", "constant" or "arena"; in blocks of steps also "state" and "rows", what
    is kept for all steps of a block. at: index of an input, output or state, offset in bytes of the
    others. name: that of a constant.
    """

    kind: str
    at: int = 0
    name: str = ""


@dataclass(frozen=True)
class MemoryLayout:
    """The place of every value that calls touch, and the memory that takes.

    copies: (index, value) of outputs that are written at the end, as their value lies elsewhere.
    scratch: bytes that the largest call takes. stack: bytes that model_run and what it calls need
    at most on Cortex-M.
    """

    places: Mapping[str, Place]
    copies: tuple[tuple[int, str], ...]
    plan: ArenaPlan
    scratch: int
    stack: int


def layout(calls: CallList) -> MemoryLayout:
    """The places of all values. Graph inputs and outputs are the caller's memory.

    An output that is an input, a constant or another output, or a view of one, keeps its place and
    is copied at the end; any other is written where the caller wants it.
    """
    graph = calls.graph
    roots = views(calls)
    last = last_reads(calls, roots)
    places: dict[str, Place] = {}
    for index, name in enumerate(graph.inputs):
        places[name] = Place("input", index)
    for name in roots:
        if calls.constant(name) is not None:
            places[name] = Place("constant", name=name)
    copies = []
    for index, name in enumerate(graph.outputs):
        if roots[name] in places:
            copies.append((index, name))
            last[roots[name]] = len(calls.entries)
        else:
            places[roots[name]] = Place("output", index)
    buffers, owner = lifetimes(calls, roots, last, places)
    planned = plan(buffers)
    for name, buffer in owner.items():
        places[name] = Place("arena", planned.offsets[buffer])
    made = [call for entry in calls.entries for call in entry.calls]
    functions = {*(call.function for call in made), *(["copy"] if copies else [])}
    return MemoryLayout(
        {name: places[root] for name, root in roots.items()},
        tuple(copies),
        planned,
        aligned(max((call.scratch or 0 for call in made), default=0)),
        STACK_OF_RUN + max((STACK[name] for name in functions), default=0),
    )


def views(calls: CallList) -> dict[str, str]:
    """The value whose memory each value has: the root of its chain of views, itself if none."""
    graph = calls.graph
    roots = {name: name for name in (*graph.inputs, *graph.constants)}
    for entry in calls.entries:
        roots[entry.value] = roots[entry.view_of] if entry.view_of else entry.value
    return roots


def last_reads(calls: CallList, roots: Mapping[str, str]) -> dict[str, int]:
    """The last entry that reads the memory of each root, -1 for none."""
    last = dict.fromkeys(roots.values(), -1)
    for index, entry in enumerate(calls.entries):
        for name in entry.reads:
            last[roots[name]] = index
    return last


def states_in_place(calls: CallList) -> dict[str, str]:
    """States of a step graph whose memory takes their next value, and that value: one entry alone
    reads such a state, and may write over what it reads."""
    graph, roots = calls.graph, views(calls)
    entries = {entry.value: entry for entry in calls.entries}
    readers = [{roots[name] for name in entry.reads} for entry in calls.entries]
    found: dict[str, str] = {}
    for state in graph.states:
        entry = entries.get(state.output)
        alone = sum(state.input in read for read in readers) == 1
        if entry is None or not alone or graph.outputs.count(state.output) != 1:
            continue
        places = [roots[name] for call in entry.calls for name in call.inputs]
        own = [name for name in entry.in_place if roots[name] == state.input]
        given = state.input in graph.outputs or state.input in found.values()
        if own and places.count(state.input) == 1 and not given:
            found[state.input] = state.output
    return found


def lifetimes(
    calls: CallList, roots: Mapping[str, str], last: Mapping[str, int], places: Mapping[str, Place]
) -> tuple[list[ArenaBuffer], dict[str, int]]:
    """(lifetimes of the buffers in the arena, the buffer of each value that has no place yet).

    A value shares the buffer of an input that it may overwrite (`in_place`), whose last reader it
    is and whose size it has, unless a call reads that memory by another of its inputs too.
    """
    values = calls.graph.values
    buffers: list[ArenaBuffer] = []
    owner: dict[str, int] = {}
    for index, entry in enumerate(calls.entries):
        name = entry.value
        if name in places or roots[name] != name:
            continue
        end = max(last[name], index)
        for candidate in entry.in_place:
            source = roots[candidate]
            others = [roots[n] for n in entry.reads if n not in entry.in_place]
            if (
                source in owner
                and last[source] == index
                and byte_size(values[candidate]) == byte_size(values[name])
                and source not in others
            ):
                owner[name] = owner[source]
                buffers[owner[name]] = ArenaBuffer(
                    buffers[owner[name]].size, buffers[owner[name]].first, end
                )
                break
        else:
            owner[name] = len(buffers)
            buffers.append(ArenaBuffer(aligned(byte_size(values[name])), index, end))
    return buffers, owner
