"""Where every stored value lives, and what a package needs of RAM and stack.

A value lives from the entry of the call list that writes it to the last that reads it. Inputs and
outputs are the caller's memory, constants are in flash; all else lies in one arena, in which what
is never live together shares bytes (`plan`): values, and the scratch memory that the kernels of one
entry take. Two rules save copies and bytes before that:
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

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from samebits.arena import ArenaBuffer, ArenaPlan, aligned, plan
from samebits.codegen.lowering.calls import CallList, ValueCalls
from samebits.codegen.lowering.rescale import WIDTHS
from samebits.ir.value import Value

# Bytes of stack of samebits_run_<function> and what it calls, on Cortex-M with gcc at any
# optimisation level; tests/codegen measures them with -fstack-usage.
STACK = {
    "conv8": 1728,
    "depthwise8": 1856,
    "conv8_rolling": 2112,
    "depthwise8_rolling": 2240,
    "linear_sums": 256,
    "conv8_packed": 768,
    "linear8_packed": 512,
    "depthwise8_packed": 512,
    "conv16_packed": 1984,
    "linear16_packed": 1984,
    "depthwise16_packed": 1984,
    "conv16": 1536,
    "conv_any": 1408,
    "matmul": 1920,
    "broadcast": 1792,
    "add8": 192,
    "affine": 1664,
    "requantize": 1664,
    "clip": 192,
    "table": 192,
    "cubic": 960,
    "lines": 192,
    "max_pool": 320,
    "sum_pool": 1728,
    "reduce": 1600,
    "softmax": 576,
    "masked_softmax": 576,
    "fixed_softmax": 576,
    "normalize": 640,
    "argmax": 256,
    "divide": 576,
    "root": 320,
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
    scratch: offset in the arena of the scratch memory of every entry, 0 where it takes none.
    following: offset of the next states that model_step does not write in place, which lie behind
    the plan, by index of the state. times: the time of every entry in the plan, in which the rounds
    of a loop are one. stack: bytes that model_run and what it calls need at most on
    Cortex-M, by the frames that gcc makes there.
    """

    places: Mapping[str, Place]
    copies: tuple[tuple[int, str], ...]
    plan: ArenaPlan
    scratch: tuple[int, ...]
    following: Mapping[int, int]
    times: tuple[int, ...]
    bytes: int
    stack: int

    def live(self, entry: int) -> int:
        """Bytes of the plan that are in use at an entry."""
        time = self.times[entry]
        return sum(b.size for b in self.plan.buffers if b.first <= time <= b.last)


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
    times, needs = times_of(calls), dict[int, int]()
    for time, entry in zip(times, calls.entries, strict=True):
        most = max((call.scratch or 0 for call in entry.calls), default=0)
        if most:
            needs[time] = max(most, needs.get(time, 0))
    working = {time: len(buffers) + at for at, time in enumerate(needs)}
    planned = plan([*buffers, *(ArenaBuffer(aligned(needs[i]), i, i) for i in working)])
    for name, buffer in owner.items():
        places[name] = Place("arena", planned.offsets[buffer])
    made = [call for entry in calls.entries for call in entry.calls]
    functions = {*(call.function for call in made), *(["copy"] if copies else [])}
    end = aligned(planned.peak)
    following = {}
    stays = states_in_place(calls)
    for index, state in enumerate(graph.states):
        if state.input not in stays:
            following[index] = end
            end += aligned(byte_size(graph.values[state.input]))
    return MemoryLayout(
        {name: places[root] for name, root in roots.items()},
        tuple(copies),
        planned,
        tuple(planned.offsets[working[time]] if time in working else 0 for time in times),
        following,
        times,
        end,
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
    is and whose size it has, unless a call reads that memory by another of its inputs too; and in a
    loop the buffer of the first of its class.
    """
    if not calls.loops:
        return _lifetimes(calls, roots, last, places, {}, frozenset())
    same, apart = classes(calls), frozenset[str]()
    while True:
        found = _lifetimes(calls, roots, last, places, same, apart)
        met = _met(calls, roots, last, found[1])
        if not met:
            return found
        assert not met <= apart  # the classes of a loop fit: `loops` has seen to that
        apart |= met


def _lifetimes(
    calls: CallList,
    roots: Mapping[str, str],
    last: Mapping[str, int],
    places: Mapping[str, Place],
    same: Mapping[str, str],
    apart: frozenset[str],
) -> tuple[list[ArenaBuffer], dict[str, int]]:
    """The lifetimes, in which values share the buffer of their class (`same`), and those that are
    to stay `apart` take over no other."""
    values, times = calls.graph.values, times_of(calls)
    begins = {target: index for index, entry in reversed([*enumerate(calls.entries)])
              for _, target in entry.copies}  # fmt: skip
    buffers: list[ArenaBuffer] = []
    owner: dict[str, int] = {}

    def lives(buffer: int, span: tuple[int, int]) -> None:
        first, end = buffers[buffer].first, buffers[buffer].last
        buffers[buffer] = ArenaBuffer(buffers[buffer].size, min(first, span[0]), max(end, span[1]))

    for index, entry in enumerate(calls.entries):
        name = entry.value
        if name in places or roots[name] != name:
            continue
        end = max(last[name], index)
        span = _span(calls, times, begins.get(name, index), end)
        if same.get(name, name) in owner:
            owner[name] = owner[same[name]]
            lives(owner[name], span)
            continue
        for candidate in () if name in apart else entry.in_place:
            source = roots[candidate]
            others = [roots[n] for n in entry.reads if n not in entry.in_place]
            if (
                source in owner
                and last[source] == index
                and _covers(byte_size(values[candidate]), byte_size(values[name]), entry.rolling)
                and source not in others
            ):
                owner[name] = owner[source]
                lives(owner[name], span)
                break
        else:
            owner[name] = len(buffers)
            buffers.append(ArenaBuffer(aligned(byte_size(values[name])), *span))
    return buffers, owner


def _covers(given: int, needed: int, rolling: bool) -> bool:
    """Whether a value of `needed` bytes may be written over one of `given` bytes."""
    return given == needed or (rolling and given > needed)


# --- loops ------------------------------------------------------------------------------------


def follows(
    entry: ValueCalls, index: int, before: str, roots: Mapping[str, str], last: Mapping[str, int]
) -> bool:
    """Whether an entry may write where `before` lies: nothing reads that later, nor this entry but
    element by element."""
    if last[before] != index:
        return last[before] < index
    others = [roots[name] for name in entry.reads if name not in entry.in_place]
    return before in [roots[name] for name in entry.in_place] and before not in others


def classes(calls: CallList) -> dict[str, str]:
    """Values that lie at one place -> the first of them: those of all rounds of a loop, and what a
    round hands to the next with what the first round begins with."""
    roots, parent = views(calls), dict[str, str]()

    def find(name: str) -> str:
        while parent.setdefault(name, name) != name:
            name = parent[name]
        return name

    for loop in calls.loops:
        rounds = [calls.entries[at : at + loop.period] for at in loop.starts]
        for first, *others in zip(*rounds, strict=True):
            for entry in others:
                if roots[entry.value] == entry.value and calls.constant(entry.value) is None:
                    parent[find(entry.value)] = find(first.value)
        one, two = rounds[:2]
        made = {entry.value for entry in one}
        for first, second in zip(one, two, strict=True):
            for before, handed in zip(_operands(first), _operands(second), strict=True):
                given, kept = roots[before], roots[handed]
                if kept in made and given not in made and calls.constant(given) is None:
                    parent[find(given)] = find(kept)
    order = {entry.value: index for index, entry in enumerate(calls.entries)}
    firsts: dict[str, str] = {}
    for name in sorted(parent, key=lambda name: order.get(name, -1)):
        firsts.setdefault(find(name), name)
    return {name: firsts[find(name)] for name in parent}


def _operands(entry: ValueCalls) -> Sequence[str]:
    """The operands of all calls, in order, each as often as it is read."""
    viewed = [] if entry.view_of is None else [entry.view_of]
    return [*viewed, *(name for call in entry.calls for name in call.inputs)]


def times_of(calls: CallList) -> tuple[int, ...]:
    """The time of every entry in the memory plan: its index, but that all rounds of a loop have the
    times of one."""
    times = list(range(len(calls.entries)))
    for loop in reversed(calls.loops):
        for index in range(loop.first, len(times)):
            if index < loop.end:
                times[index] = loop.first + (index - loop.first) % loop.period
            else:
                times[index] -= loop.period * (loop.count - 1)
    return tuple(times)


def _span(calls: CallList, times: Sequence[int], first: int, last: int) -> tuple[int, int]:
    """The times of a life from one entry to another. What does not end in the round of a loop in
    which it begins lives in all of every round."""
    start, end = times[first], times[min(last, len(times) - 1)]
    if last == len(times):
        end = times[-1] + 1
    for loop in calls.loops:
        rounds = [
            (index - loop.first) // loop.period if loop.first <= index < loop.end else None
            for index in (first, last)
        ]
        if rounds[0] == rounds[1]:
            continue
        if rounds[0] is not None:
            start = times[loop.first]
        if rounds[1] is not None or rounds[0] is not None:
            end = max(end, times[loop.first] + loop.period - 1)
    return start, end


def _met(
    calls: CallList,
    roots: Mapping[str, str],
    last: Mapping[str, int],
    owner: Mapping[str, int],
) -> frozenset[str]:
    """Values that took over memory in which another is written while they live."""
    at = {entry.value: index for index, entry in enumerate(calls.entries)}
    held: dict[int, list[str]] = {}
    for name in owner:
        held.setdefault(owner[name], []).append(name)
    found: set[str] = set()
    for names in held.values():
        for before, after in itertools.pairwise(names):
            if not follows(calls.entries[at[after]], at[after], before, roots, last):
                found.update(names)
    return frozenset(found)
