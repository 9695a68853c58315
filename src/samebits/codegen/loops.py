"""Calls that repeat become loops: the steps of a recurrent layer over a whole sequence.

The integer graph of such a network has one cell for each time step, and so has its call list. Here
the entries are put in an order in which the cells follow each other, each with all that it alone
needs and gives: demand first, with what joins a row to the sequence right behind that row. Then
runs of entries are found that do the same to other memory (`CallLoop`). What lies at one place of
the run in every round gets one place in memory (`classes`), and `emit` writes a round once, with
addresses that are linear in the number of the round; where they are not, it writes all rounds. So a
loop is the list in fewer words: the calls, their order and their numbers are the same.

Example: h1 .. h7 = f(W x_t + U h_{t-1}), of which y holds the rows, after a first step without h.

    entry   0 1 2   3 4 5   6 7 8   ...            x_t, h_t with its copy into y, a view of it
    loop            first = 3, period = 3, count = 6
    places          h_0 .. h_6 in one buffer; x_1 .. x_6 in another; y + 0, y + 10, ...
"""

from __future__ import annotations

import hashlib
import itertools
from dataclasses import replace
from typing import Any

from samebits.codegen.lowering.calls import (
    CallList,
    CallLoop,
    Data,
    Field,
    KernelCall,
    Struct,
    Structs,
    ValueCalls,
)
from samebits.codegen.lowering.move import STARTS
from samebits.codegen.memory import byte_size, classes, follows, last_reads, views

ROUNDS, PERIOD = 3, 4  # the fewest rounds of a loop, and the fewest entries of a round
PERIODS = 8  # lengths of rounds that are tried from one entry on


def with_loops(calls: CallList) -> CallList:
    """The calls in an order in which they repeat, and their loops; as they are where none is found,
    and for step graphs, whose steps are a loop of the caller's."""
    if calls.graph.states or len(calls.entries) < ROUNDS * PERIOD:
        return calls
    found = _ordered(_distributed(calls))
    for each in _repeats(found):
        found = _placeable(found, each)
    return found if found.loops else calls


def _distributed(calls: CallList) -> CallList:
    """Entries with the copies of their values into those that join them."""
    roots = views(calls)
    makers = {entry.value for entry in calls.entries if entry.calls}
    given: dict[str, list[tuple[KernelCall, str]]] = {}
    left: dict[str, tuple[KernelCall, ...]] = {}
    for entry in calls.entries:
        joined = [call for call in entry.calls if call.function == "copy"]
        if len(joined) != len(entry.calls) or len(joined) < ROUNDS:
            continue
        own = [call for call in joined if roots[call.inputs[0]] not in makers]
        for call in joined:
            if call not in own:
                given.setdefault(roots[call.inputs[0]], []).append((call, entry.value))
        left[entry.value] = tuple(own)
    entries = (
        replace(
            entry,
            calls=left.get(entry.value, entry.calls),
            copies=tuple(given.get(entry.value, ())),
        )
        for entry in calls.entries
    )
    return replace(calls, entries=tuple(entries))


def _ordered(calls: CallList) -> CallList:
    """The entries, each as late as what needs it allows; a view right behind what it is a view of,
    what rows are joined to behind all of them."""
    entries = {entry.value: entry for entry in calls.entries}
    needs: dict[str, list[str]] = {
        name: [n for n in entry.reads if n in entries] for name, entry in entries.items()
    }
    behind: dict[str, list[str]] = {name: [] for name in entries}
    for name, entry in entries.items():
        for _, target in entry.copies:
            needs[target].append(name)
        if entry.view_of in entries:
            behind[entry.view_of].append(name)
    done: dict[str, ValueCalls] = {}

    def emit(name: str) -> None:
        waiting = [name]
        while waiting:
            each = waiting.pop()
            if each not in done:
                done[each] = entries[each]
                waiting += reversed(behind[each])

    for output in (name for name in calls.graph.outputs if name in entries):
        waiting = [output]
        while waiting:
            name = waiting[-1]
            missing = [n for n in needs[name] if n not in done]
            if missing:
                waiting += reversed(missing)
            else:
                waiting.pop()
                if name not in done:
                    emit(name)
    for name in entries:
        if name not in done:
            emit(name)
    return replace(calls, entries=tuple(done.values()))


# --- what repeats ---------------------------------------------------------------------------------


def _repeats(calls: CallList) -> list[CallLoop]:
    """Runs of entries that do the same, from the first on; the longest, and of those with the
    shortest rounds."""
    marks = _marks(calls)
    places: dict[int, list[int]] = {}
    for index, mark in enumerate(marks):
        places.setdefault(mark, []).append(index)
    found, at = [], 0
    while at < len(marks):
        best: CallLoop | None = None
        later = [place for place in places[marks[at]] if place >= at + PERIOD]
        for place in later[:PERIODS]:
            period, end = place - at, place
            while end < len(marks) and marks[end] == marks[end - period]:
                end += 1
            count = (end - at) // period
            if count >= ROUNDS and (best is None or count * period > best.count * best.period):
                best = CallLoop(at, period, count)
        if best is None:
            at += 1
        else:
            found.append(best)
            at = best.end
    return found


def _marks(calls: CallList) -> list[int]:
    """A number for every entry, the same for those that do the same to other memory."""
    numbers: dict[Any, int] = {}
    digests: dict[int, tuple[Any, Any]] = {}

    def digest(array: Any) -> Any:
        if id(array) not in digests:
            text = hashlib.sha256(array.tobytes()).digest()
            digests[id(array)] = array, (array.dtype.name, array.shape, text)
        return digests[id(array)][1]

    def of(field: Field) -> Any:
        if isinstance(field, Data):
            return digest(field.array)
        if isinstance(field, Struct):
            return field.type, *((key, of(value)) for key, value in field.fields.items())
        if isinstance(field, Structs):
            return tuple(map(of, field.items))
        return field

    def of_call(call: KernelCall) -> Any:
        struct = call.parameters
        if call.function == "copy":
            rest = {k: v for k, v in struct.fields.items() if k not in STARTS}
            struct = Struct(struct.type, rest)
        arrays = [calls.constant(name) for name in call.inputs]
        operands = tuple(None if array is None else digest(array) for array in arrays)
        return call.function, of(struct), operands, call.scratch, call.listed

    marks = []
    for entry in calls.entries:
        value = calls.graph.values[entry.value]
        mark = (
            *(entry.view_of is None, value.dtype, value.size, entry.rolling),
            tuple(map(of_call, entry.calls)),
            tuple((of_call(call), target) for call, target in entry.copies),
        )
        marks.append(numbers.setdefault(mark, len(numbers)))
    return marks


# --- what lies at one place -----------------------------------------------------------------------


def _placeable(calls: CallList, loop: CallLoop) -> CallList:
    """The calls with the loop, or the part of it, whose rounds can work in one memory: its rounds
    as they are, or two as one, the first left out where it begins with what has a place already."""
    for period in (loop.period, 2 * loop.period):
        for skipped in (0, period):
            count = (loop.count * loop.period - skipped) // period
            loops = *calls.loops, CallLoop(loop.first + skipped, period, count)
            if count >= ROUNDS and _fits(made := replace(calls, loops=loops)):
                return made
    return calls


def _fits(calls: CallList) -> bool:
    """Whether no value of a class lives on when the next of it is written."""
    found = classes(calls)
    roots = views(calls)
    last = last_reads(calls, roots)
    at = {entry.value: index for index, entry in enumerate(calls.entries)}
    outside = {roots[name] for name in (*calls.graph.inputs, *calls.graph.outputs)}
    members: dict[str, list[str]] = {}
    for name, first in found.items():
        members.setdefault(first, []).append(name)
    for names in members.values():
        if any(name not in at or name in outside for name in names):
            return False
        names.sort(key=at.__getitem__)
        for before, after in itertools.pairwise(names):
            sizes = {byte_size(calls.graph.values[name]) for name in (before, after)}
            if len(sizes) > 1 or not follows(calls.entries[at[after]], at[after], before, roots,
                                             last):  # fmt: skip
                return False
    return True
