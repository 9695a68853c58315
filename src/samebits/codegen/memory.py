"""Where every stored value lives, and what a package needs of flash, RAM and stack."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from samebits.codegen.lowering.program import Program
from samebits.codegen.lowering.rescale import WIDTHS
from samebits.codegen.plan import Buffer, Plan, aligned, plan
from samebits.ir.value import Value

# Bytes of stack of samebits_run_<function> and what it calls, on Cortex-M with gcc at any
# optimisation level; tests/codegen measures them with -fstack-usage.
STACK = {
    "conv8": 1728,
    "depthwise8": 1856,
    "conv16": 1536,
    "conv_any": 1408,
    "matmul": 1920,
    "broadcast": 1792,
    "affine": 1664,
    "requantize": 1664,
    "clip": 192,
    "table": 192,
    "cubic": 416,
    "max_pool": 320,
    "sum_pool": 1728,
    "reduce": 1600,
    "softmax": 576,
    "argmax": 256,
    "copy": 320,
    "fill": 128,
    "gather": 128,
}
STACK_OF_RUN = 256  # model_run itself


def byte_size(value: Value) -> int:
    """Bytes of the codes."""
    return value.size * WIDTHS[value.dtype]


@dataclass(frozen=True)
class Place:
    """kind: "input", "output", "constant" or "arena"; at: its index, or the offset in bytes. In
    `blocks` also "state", by its index, and "rows": offset of as many as a block has steps."""

    kind: str
    at: int = 0
    name: str = ""


@dataclass(frozen=True)
class Layout:
    """The place of every value that calls touch; `copies` are outputs written at the end."""

    places: Mapping[str, Place]
    copies: tuple[tuple[int, str], ...]
    plan: Plan
    scratch: int
    stack: int


def layout(program: Program) -> Layout:
    """Places of all values. Graph inputs and outputs are the caller's memory."""
    graph = program.graph
    roots = views(program)
    last = last_reads(program, roots)
    places: dict[str, Place] = {}
    for index, name in enumerate(graph.inputs):
        places[name] = Place("input", index)
    for name in roots:
        if program.constant(name) is not None:
            places[name] = Place("constant", name=name)
    copies = []
    for index, name in enumerate(graph.outputs):
        if roots[name] in places:
            copies.append((index, name))
            last[roots[name]] = len(program.steps)
        else:
            places[roots[name]] = Place("output", index)
    buffers, owner = lifetimes(program, roots, last, places)
    planned = plan(buffers)
    for name, buffer in owner.items():
        places[name] = Place("arena", planned.offsets[buffer])
    calls = [call for step in program.steps for call in step.calls]
    if copies:
        functions = {*(call.function for call in calls), "copy"}
    else:
        functions = {call.function for call in calls}
    return Layout(
        {name: places[root] for name, root in roots.items()},
        tuple(copies),
        planned,
        aligned(max((call.scratch or 0 for call in calls), default=0)),
        STACK_OF_RUN + max((STACK[name] for name in functions), default=0),
    )


def views(program: Program) -> dict[str, str]:
    """The value whose memory each value is a view of; itself if none."""
    graph = program.graph
    roots = {name: name for name in (*graph.inputs, *graph.constants)}
    for step in program.steps:
        roots[step.value] = roots[step.view_of] if step.view_of else step.value
    return roots


def last_reads(program: Program, roots: Mapping[str, str]) -> dict[str, int]:
    """The last step that reads the memory of each root, -1 for none."""
    last = dict.fromkeys(roots.values(), -1)
    for index, step in enumerate(program.steps):
        for name in step.reads:
            last[roots[name]] = index
    return last


def lifetimes(
    program: Program, roots: Mapping[str, str], last: Mapping[str, int], places: Mapping[str, Place]
) -> tuple[list[Buffer], dict[str, int]]:
    """Lifetimes of what lies in the arena (what has no place yet), and the buffer of each value. A
    value that takes over an input's memory shares its buffer."""
    values = program.graph.values
    buffers: list[Buffer] = []
    owner: dict[str, int] = {}
    for index, step in enumerate(program.steps):
        name = step.value
        if name in places or roots[name] != name:
            continue
        end = max(last[name], index)
        for candidate in step.in_place:
            source = roots[candidate]
            others = [roots[n] for n in step.reads if n not in step.in_place]
            if (
                source in owner
                and last[source] == index
                and byte_size(values[candidate]) == byte_size(values[name])
                and source not in others
            ):
                owner[name] = owner[source]
                buffers[owner[name]] = Buffer(
                    buffers[owner[name]].size, buffers[owner[name]].first, end
                )
                break
        else:
            owner[name] = len(buffers)
            buffers.append(Buffer(aligned(byte_size(values[name])), index, end))
    return buffers, owner
