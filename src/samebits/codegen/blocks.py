"""A sequence in blocks of steps: products that wait for no state, for all steps of a block at once.

The graph of one step has to run T times. Step by step, each `linear` reads all its weights for one
row of x, and reading them is what takes the time. A value can wait for the step before only by way
of a state. What lies on such a cycle (the strongly connected components of the entries, a state
standing for the arrow from a step to the next) follows one time step after the other; a `linear` on
none reads its weights once for all rows of the block.

Example, two recurrent layers h = f(W x + U h'), k = g(V h + R k') with a block of 16 steps:

    phase 1 (rows)   W x of 16 steps: one product of 16 rows
    phase 2          for each step: U h', the sum, f: h of this step; h' becomes h
    phase 3 (rows)   V h of 16 steps, all of which phase 2 has left
    phase 4          for each step: R k', the sum, g; k' becomes k

U h' and R k' lie on the cycles of h and k; W x and V h on none. The codes are the same as step by
step: the same calls on the same numbers, in another order that respects every dependence.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from samebits.arena import ArenaBuffer, aligned, plan
from samebits.codegen.lowering.calls import CallList, KernelCall, ValueCalls
from samebits.codegen.lowering.conv import BAND_BYTES, SLACK
from samebits.codegen.lowering.extents import LARGEST_EXTENT
from samebits.codegen.lowering.move import copied
from samebits.codegen.memory import (
    Place,
    byte_size,
    last_reads,
    lifetimes,
    states_in_place,
    views,
)
from samebits.ir.value import Value

STEPS = 16  # time steps of a block
LEAST_TILE = 8  # pixels that the kernels compute together


@dataclass(frozen=True)
class Phase:
    """Entries that are computed together: in order, for one time step after the other, or, with
    `rows`, products that are each computed for all time steps at once."""

    entries: tuple[ValueCalls, ...]
    rows: bool = False


@dataclass(frozen=True)
class StepBlocks:
    """The computation of a block of at most STEPS time steps, and its memory.

    places: where each value lies. arena, rows, scratch: bytes of the three parts of the memory, in
    that order: values of one time step, values that are kept for all of them, scratch memory.
    """

    phases: tuple[Phase, ...]
    places: dict[str, Place]
    arena: int
    rows: int
    scratch: int

    @property
    def bytes(self) -> int:
        """Memory of a block."""
        return self.arena + self.rows + self.scratch


def step_blocks(calls: CallList) -> StepBlocks | None:
    """The phases and the memory of a block of time steps.

    None where there is nothing to gain: no product can be computed for several time steps; where a
    state becomes what another state was (the copies at the end of a step would have an order); and
    where the rows of a block would be too large (lowering/extents.py).
    """
    graph = calls.graph
    roots = views(calls)
    states = {state.input for state in graph.states}
    following = graph.outputs[len(graph.own_outputs) :]
    if not states or any(roots[name] in states for name in following):
        return None
    places = _given(calls, roots)
    stays = states_in_place(calls)
    places.update({after: places[before] for before, after in stays.items()})
    copies = []
    for index, name in enumerate(graph.own_outputs):
        if roots[name] in places:
            to = _unused(f"{name}.copy", roots)
            roots[to], places[to] = to, Place("output", index)
            copies.append(ValueCalls(to, (copied(graph.values[name]),)))
        else:
            places[roots[name]] = Place("output", index)
    advances = [
        ValueCalls(state.input, (copied(graph.values[name]),))
        for state, name in zip(graph.states, following, strict=True)
        if state.input not in stays
    ]
    entries = [entry for entry in calls.entries if entry.calls] + copies + advances
    phases = _phases(entries, roots, {name: stays.get(name, name) for name in states})
    if not any(phase.rows for phase in phases):
        return None
    made = _placed(replace(calls, entries=tuple(entries)), phases, roots, places)
    ports = (graph.values[name] for name in (*graph.own_inputs, *graph.own_outputs))
    largest = max((STEPS * byte_size(value) for value in ports), default=0)
    return made if max(largest, made.rows, made.scratch) < LARGEST_EXTENT else None


def _given(calls: CallList, roots: dict[str, str]) -> dict[str, Place]:
    """Places of inputs, states and constants."""
    graph = calls.graph
    places = {name: Place("input", index) for index, name in enumerate(graph.own_inputs)}
    for index, state in enumerate(graph.states):
        places[state.input] = Place("state", index)
    for name in roots:
        if calls.constant(name) is not None:
            places[name] = Place("constant", name=name)
    return places


def _unused(name: str, taken: dict[str, str]) -> str:
    while name in taken:
        name += "_"
    return name


# --- order ------------------------------------------------------------------------------------


def _phases(
    entries: Sequence[ValueCalls], roots: dict[str, str], states: Mapping[str, str]
) -> list[Phase]:
    """The entries in as few phases as a greedy choice finds, products as soon as they can be.

    states: each with the value whose entry writes over it: its own, or what is made in its place.

    A component is ready when all that it waits for is done: in a phase of rows, done in phases
    before, as all time steps of it have to be there; in a phase of single steps, also taken in the
    same phase. Each round takes every product that is ready, or, if none is, all else that is.
    """
    components = _components(entries, roots, states)
    free = {
        index
        for component in components
        for index in component
        if len(component) == 1 and entries[index].value not in states and _by_rows(entries[index])
    }
    waiting = [set(component) for component in components]
    before, depths = _before(entries, roots, states), _depths(entries, roots, states)
    done: set[int] = set()
    phases = []
    while waiting:
        taken: set[int] = set()
        for rows in (True, False):
            size = -1
            while len(taken) > size:  # until no component becomes ready
                size = len(taken)
                for component in waiting:
                    needs = {n for index in component for n in before[index]} - component
                    if rows == bool(component & free) and needs <= (done if rows else done | taken):
                        taken |= component
            if taken:
                ordered = sorted(taken, key=lambda index: (depths[index], index))
                phases.append(Phase(tuple(entries[index] for index in ordered), rows))
                break
        done |= taken
        waiting = [component for component in waiting if not component & taken]
    return phases


def _before(
    entries: Sequence[ValueCalls], roots: dict[str, str], states: Mapping[str, str]
) -> list[set[int]]:
    """For each entry, those that it waits for.

    What reads a state and the copy that overwrites it wait for each other: the copy in the same
    time step, the read for the copy of the step before. So both are on one cycle and stay in one
    phase; and so do what is made in the place of a state and all that reads that.
    """
    made = set(states.values())
    producers = {entry.value: index for index, entry in enumerate(entries)}
    before: list[set[int]] = [set() for _ in entries]
    for index, entry in enumerate(entries):
        for name in entry.reads:
            root = roots[name]
            if root in producers:
                before[index].add(producers[root])
            if root in states:
                before[producers[states[root]]].add(index)
            if root in made:
                before[producers[root]].add(index)
    return before


def _depths(
    entries: Sequence[ValueCalls], roots: dict[str, str], states: Mapping[str, str]
) -> list[int]:
    """Length of the longest chain of entries that each waits for; states become what follows after
    all others. In this order neighbours do not wait for each other, so that a processor can work on
    both."""
    depth: dict[str, int] = {}
    for entry in entries:
        depth[entry.value] = 1 + max((depth.get(roots[name], 0) for name in entry.reads), default=0)
        if entry.value in states:
            depth[entry.value] = len(entries)
    return [depth[entry.value] for entry in entries]


def _components(
    entries: Sequence[ValueCalls], roots: dict[str, str], states: Mapping[str, str]
) -> list[list[int]]:
    """Strongly connected components, by the transitive closure in bit masks.

    Warshall, "A Theorem on Boolean Matrices", JACM 9 (1962). Bit j of reach[i]: i waits for j, by
    any path. A quadratic number of operations on integers with a bit for each entry: fast enough
    for the hundreds of entries of a step graph.
    """
    before = _before(entries, roots, states)
    reach = [sum(1 << other for other in needs) | 1 << index for index, needs in enumerate(before)]
    for middle in range(len(entries)):
        for index in range(len(entries)):
            if reach[index] >> middle & 1:
                reach[index] |= reach[middle]
    found: list[list[int]] = []
    for index in range(len(entries)):
        for component in found:
            other = component[0]
            if reach[index] >> other & 1 and reach[other] >> index & 1:
                component.append(index)
                break
        else:
            found.append([index])
    return found


def _by_rows(entry: ValueCalls) -> bool:
    """Whether this is one call that treats every row of its input alike: a `linear`."""
    (call, *more) = entry.calls
    if more or call.function not in ("conv8", "conv16"):
        return False
    f = call.parameters.fields
    ones = ("batch", "height", "out_height", "kernel_height", "kernel_width", "stride_x")
    return (
        all(f[key] == 1 for key in ones)
        and f["width"] == f["out_width"]
        and f["pad_left"] == f["out_start"] == 0
        and f["out_pixel"] == f["out_channels"]
    )


def tiling(call: KernelCall) -> tuple[int, int]:
    """(output pixels per band, scratch bytes) of a call on a block of rows."""
    f = call.parameters.fields
    numbers = [f[key] for key in ("width", "channels", "groups")]
    pixels, channels, groups = (n for n in numbers if isinstance(n, int))
    depth = channels // groups * (2 if call.function == "conv16" else 1)
    tile = min(STEPS * pixels, max(LEAST_TILE, BAND_BYTES // depth // LEAST_TILE * LEAST_TILE))
    return tile, tile * depth + SLACK


# --- memory -----------------------------------------------------------------------------------


def _placed(
    calls: CallList, phases: Sequence[Phase], roots: dict[str, str], places: dict[str, Place]
) -> StepBlocks:
    """The memory of a block.

    A value that is read in another phase than its own, or made by one of rows, is kept for all time
    steps of a block: its lifetime counts in phases, and those with disjoint lifetimes share bytes.
    All others live within one time step, in an arena that is planned as for a single step.
    """
    values: dict[str, Value] = dict(calls.graph.values)
    made = {entry.value: at for at, phase in enumerate(phases) for entry in phase.entries}
    last = dict(made)
    for at, phase in enumerate(phases):
        for entry in phase.entries:
            for name in entry.reads:
                last[roots[name]] = at
    kept = [
        name
        for name, at in made.items()
        if name not in places and (phases[at].rows or last[name] > at)
    ]
    buffers = [
        ArenaBuffer(aligned(STEPS * byte_size(values[name])), made[name], last[name])
        for name in kept
    ]
    rows = plan(buffers)
    for name, offset in zip(kept, rows.offsets, strict=True):
        places[name] = Place("rows", offset)
    ordered = replace(calls, entries=tuple(entry for phase in phases for entry in phase.entries))
    arena, owner = lifetimes(ordered, roots, last_reads(ordered, roots), places)
    planned = plan(arena)
    for name, buffer in owner.items():
        places[name] = Place("arena", planned.offsets[buffer])
    scratch = [
        tiling(call)[1] if phase.rows else call.scratch or 0
        for phase in phases
        for entry in phase.entries
        for call in entry.calls
    ]
    return StepBlocks(
        tuple(phases),
        {name: places[root] for name, root in roots.items() if root in places},
        planned.peak,
        rows.peak,
        aligned(max(scratch)),
    )
