"""A sequence in blocks of steps: products that wait for no state, for all steps of a block at once.

A value can wait for itself in the step before only by way of a state. Steps of the program on such
a cycle (the strongly connected components of the program with its states) follow one time step
after the other; a `linear` on none reads its weights once for all rows of the block. The products
of x in every layer are of that kind: the first layer's, its recurrent part, the second layer's, ...
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from samebits.codegen.lowering.conv import BAND_BYTES, SLACK
from samebits.codegen.lowering.move import copied
from samebits.codegen.lowering.program import Call, Program, Step
from samebits.codegen.memory import Place, byte_size, last_reads, lifetimes, views
from samebits.codegen.plan import Buffer, aligned, plan
from samebits.ir.value import Value

STEPS = 16  # time steps of a block
LEAST_TILE = 8  # pixels that the kernels compute together


@dataclass(frozen=True)
class Phase:
    """Steps of the program in order, for time steps one after the other; `rows`: products, each
    for all time steps at once."""

    steps: tuple[Step, ...]
    rows: bool = False


@dataclass(frozen=True)
class Blocks:
    """places: of every value. arena, rows, scratch: bytes; the rows of a block follow the arena,
    the scratch memory follows them."""

    phases: tuple[Phase, ...]
    places: dict[str, Place]
    arena: int
    rows: int
    scratch: int

    @property
    def bytes(self) -> int:
        """Memory of a block."""
        return self.arena + self.rows + self.scratch


def blocks(program: Program) -> Blocks | None:
    """None where no product can be computed for several time steps, and where a state becomes what
    another state was."""
    graph = program.graph
    roots = views(program)
    states = {state.input for state in graph.states}
    following = graph.outputs[len(graph.own_outputs) :]
    if not states or any(roots[name] in states for name in following):
        return None
    places = _given(program, roots)
    copies = []
    for index, name in enumerate(graph.own_outputs):
        if roots[name] in places:
            to = _unused(f"{name}.copy", roots)
            roots[to], places[to] = to, Place("output", index)
            copies.append(Step(to, (copied(graph.values[name]),)))
        else:
            places[roots[name]] = Place("output", index)
    advances = [
        Step(state.input, (copied(graph.values[name]),))
        for state, name in zip(graph.states, following, strict=True)
    ]
    steps = [step for step in program.steps if step.calls] + copies + advances
    phases = _phases(steps, roots, states)
    if not any(phase.rows for phase in phases):
        return None
    return _placed(replace(program, steps=tuple(steps)), phases, roots, places)


def _given(program: Program, roots: dict[str, str]) -> dict[str, Place]:
    """Places of inputs, states and constants."""
    graph = program.graph
    places = {name: Place("input", index) for index, name in enumerate(graph.own_inputs)}
    for index, state in enumerate(graph.states):
        places[state.input] = Place("state", index)
    for name in roots:
        if program.constant(name) is not None:
            places[name] = Place("constant", name=name)
    return places


def _unused(name: str, taken: dict[str, str]) -> str:
    while name in taken:
        name += "_"
    return name


# --- order ------------------------------------------------------------------------------------


def _phases(steps: Sequence[Step], roots: dict[str, str], states: set[str]) -> list[Phase]:
    """The steps in as few phases as a greedy choice finds, products as soon as they can be."""
    components = _components(steps, roots, states)
    free = {
        index
        for component in components
        for index in component
        if len(component) == 1 and steps[index].value not in states and _by_rows(steps[index])
    }
    waiting = [set(component) for component in components]
    before, depths = _before(steps, roots, states), _depths(steps, roots, states)
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
                phases.append(Phase(tuple(steps[index] for index in ordered), rows))
                break
        done |= taken
        waiting = [component for component in waiting if not component & taken]
    return phases


def _before(steps: Sequence[Step], roots: dict[str, str], states: set[str]) -> list[set[int]]:
    """The steps that each waits for, states those that read them and the other way round: what
    reads a state belongs to its cycle."""
    producers = {step.value: index for index, step in enumerate(steps)}
    before: list[set[int]] = [set() for _ in steps]
    for index, step in enumerate(steps):
        for name in step.reads:
            root = roots[name]
            if root in producers:
                before[index].add(producers[root])
            if root in states:
                before[producers[root]].add(index)
    return before


def _depths(steps: Sequence[Step], roots: dict[str, str], states: set[str]) -> list[int]:
    """How many steps each waits for in a row; states become what follows after all others. In this
    order neighbours do not wait for each other, and a processor can work on both."""
    depth: dict[str, int] = {}
    for step in steps:
        depth[step.value] = 1 + max((depth.get(roots[name], 0) for name in step.reads), default=0)
        if step.value in states:
            depth[step.value] = len(steps)
    return [depth[step.value] for step in steps]


def _components(steps: Sequence[Step], roots: dict[str, str], states: set[str]) -> list[list[int]]:
    """Strongly connected components, by reachability in bit masks (Warshall 1962)."""
    before = _before(steps, roots, states)
    reach = [sum(1 << other for other in needs) | 1 << index for index, needs in enumerate(before)]
    for middle in range(len(steps)):
        for index in range(len(steps)):
            if reach[index] >> middle & 1:
                reach[index] |= reach[middle]
    found: list[list[int]] = []
    for index in range(len(steps)):
        for component in found:
            other = component[0]
            if reach[index] >> other & 1 and reach[other] >> index & 1:
                component.append(index)
                break
        else:
            found.append([index])
    return found


def _by_rows(step: Step) -> bool:
    """One call that treats every row of its input alike."""
    (call, *more) = step.calls
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


def tiling(call: Call) -> tuple[int, int]:
    """(output pixels per band, scratch bytes) of a call on a block of rows."""
    f = call.parameters.fields
    numbers = [f[key] for key in ("width", "channels", "groups")]
    pixels, channels, groups = (n for n in numbers if isinstance(n, int))
    depth = channels // groups * (2 if call.function == "conv16" else 1)
    tile = min(STEPS * pixels, max(LEAST_TILE, BAND_BYTES // depth // LEAST_TILE * LEAST_TILE))
    return tile, tile * depth + SLACK


# --- memory -----------------------------------------------------------------------------------


def _placed(
    program: Program, phases: Sequence[Phase], roots: dict[str, str], places: dict[str, Place]
) -> Blocks:
    """What is read in another phase than its own is kept for all steps of a block."""
    values: dict[str, Value] = dict(program.graph.values)
    made = {step.value: at for at, phase in enumerate(phases) for step in phase.steps}
    last = dict(made)
    for at, phase in enumerate(phases):
        for step in phase.steps:
            for name in step.reads:
                last[roots[name]] = at
    kept = [
        name
        for name, at in made.items()
        if name not in places and (phases[at].rows or last[name] > at)
    ]
    buffers = [
        Buffer(aligned(STEPS * byte_size(values[name])), made[name], last[name]) for name in kept
    ]
    rows = plan(buffers)
    for name, offset in zip(kept, rows.offsets, strict=True):
        places[name] = Place("rows", offset)
    ordered = replace(program, steps=tuple(step for phase in phases for step in phase.steps))
    arena, owner = lifetimes(ordered, roots, last_reads(ordered, roots), places)
    planned = plan(arena)
    for name, buffer in owner.items():
        places[name] = Place("arena", planned.offsets[buffer])
    scratch = [
        tiling(call)[1] if phase.rows else call.scratch or 0
        for phase in phases
        for step in phase.steps
        for call in step.calls
    ]
    return Blocks(
        tuple(phases),
        {name: places[root] for name, root in roots.items() if root in places},
        planned.peak,
        rows.peak,
        aligned(max(scratch)),
    )
