"""Networks whose states are inputs and outputs of their own: which output becomes which input.

A voice-activity detector that is called frame by frame, or an LSTMCell, takes its state and gives
the next one; fed back, both must mean the same numbers, so they have one format. The pairs are
those that the user names, or those that the graph shows by itself: an input that a recurrent layer
begins with, and the output that its last state becomes; or names as exporters give them (h0 and
hn, h_in and h_out, state and stateN, past_key and present_key, ...), of one type and shape.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from samebits import progress
from samebits.errors import InputError
from samebits.ir import Graph, Trait, has
from samebits.ir.parted import apart, parted_arrays
from samebits.ir.real.cell import LAYERS
from samebits.ir.real.recurrent import INITIAL
from samebits.ir.rewrite import drop_identity
from samebits.ir.sequences import StepSequence
from samebits.ir.steps import Steps, fed_back, with_states
from samebits.quantization.lstm import (
    RecurrentReport,
    RecurrentSettings,
    cut_steps,
    quantize_steps,
)
from samebits.quantization.observe import check_finite
from samebits.quantization.placement import is_movement
from samebits.quantization.recurrent_checks import check_parameters
from samebits.quantization.stored import float_network
from samebits.recipes.quantization import WHOLE

Array = np.ndarray[Any, Any]
StatePairs = Mapping[str, str | int]

NONE = "none"  # no input is a state
REAL = "float32"
LISTED = 20  # names in one message

# Words of names that are a state's, and those that say which side of a step it is on.
STATE_WORDS = frozenset(
    (
        *("h", "c", "hc", "hx", "cx", "ht", "ct", "hidden", "cell", "cells", "state", "states"),
        *("memory", "mem", "cache", "carry", "context", "ctx", "rnn", "lstm", "gru"),
        *("past", "present"),
    )
)
BEFORE = frozenset(("in", "input", "prev", "previous", "past", "old", "init", "initial"))
AFTER = frozenset(("out", "output", "next", "new", "present", "final", "last", "updated"))


@dataclass(frozen=True)
class StatePair:
    """An input, the output that it becomes in the next step, and why they are thought a pair."""

    input: str
    output: str
    why: str


# --- which outputs are fed back -----------------------------------------------------------------


def tie_states(
    graph: Graph, given: StatePairs | str | None = None, sequence: str | None = None
) -> Graph:
    """The float graph with the pairs of `state_pairs` as its states, its last inputs and outputs;
    the graph itself where there are none, and over whole sequences, which hand no state on.

    Raises InputError as `state_pairs`, and for whole sequences with states."""
    if sequence == WHOLE:
        if graph.states or given not in (None, NONE):
            states = given if graph.states == () else (state.input for state in graph.states)
            raise InputError(
                f"--sequence {WHOLE}: expected a network without states, found {_listed(states)}; "
                "leave one of the two out"
            )
        return graph
    pairs = state_pairs(graph, given)
    return with_states(graph, pairs) if pairs and not graph.states else graph


def state_pairs(graph: Graph, given: StatePairs | str | None = None) -> dict[str, str]:
    """The inputs of a float graph that are states -> the outputs that they become.

    given: input -> output, or its place among the outputs; "none": no input is a state; None: those
           that the graph shows, each told to who listens (`progress.note`)

    Raises InputError for names that the graph does not have, for outputs of another shape or type,
    for one that is fed back twice, and where no input or output of its own is left.
    """
    known = {state.input: state.output for state in graph.states}
    if isinstance(given, str):
        if given != NONE:
            raise InputError(
                f"--state: expected INPUT=OUTPUT, once for each state, or {NONE}, found {given!r}"
            )
        if known:
            raise InputError(
                f"--state {NONE}: expected a network without states, found a step graph with "
                f"{_listed(known)}; leave it out"
            )
        return {}
    if known:
        if given is not None and _checked(graph, given) != known:
            raise InputError(
                f"--state: expected the states that the step graph says, {_pairs_text(known)}, "
                f"found {_pairs_text(given)}; leave it out"
            )
        return known
    found = list(_shown(graph))
    if given is None:
        for pair in found:
            progress.note(
                f"state: input {pair.input} is fed by output {pair.output} ({pair.why}); --state "
                f"{NONE} keeps them apart, --state INPUT=OUTPUT names others"
            )
        return {pair.input: pair.output for pair in found}
    pairs = _checked(graph, given)
    for pair in found:
        if pair.input not in pairs and pair.output not in pairs.values():
            progress.note(
                f"state: input {pair.input} looks like output {pair.output} of the step before "
                f"({pair.why}), but is not tied to it; add --state {pair.input}={pair.output}"
            )
    return pairs


def _checked(graph: Graph, given: StatePairs) -> dict[str, str]:
    """The pairs that a user names, each output by its name."""
    pairs: dict[str, str] = {}
    for before, place in given.items():
        where = f"--state {before}={place}"
        if before not in graph.inputs:
            raise InputError(
                f"{where}: expected an input of the network ({_listed(graph.inputs)}), found "
                f"{before!r}"
            )
        after = _output(graph, place, where)
        taken = [name for name, output in pairs.items() if output == after]
        if taken:
            raise InputError(
                f"{where}: expected an output of its own for each state, found {after!r}, which "
                f"feeds {taken[0]!r} too; give every state the output that it becomes"
            )
        x, y = graph.values[before], graph.values[after]
        if (x.dtype, x.shape) != (y.dtype, y.shape):
            raise InputError(
                f"{where}: expected an output of the type and shape of the input, {x.dtype} "
                f"{list(x.shape)}, found {y.dtype} {list(y.shape)}; {_fitting(graph, before)}"
            )
        if x.dtype != REAL:
            raise InputError(
                f"{where}: expected a state of {REAL}, found {x.dtype}; keep it outside the network"
            )
        pairs[before] = after
    if pairs and len(pairs) == len(graph.inputs):
        raise InputError(
            f"--state: expected an input beside the states, found none ({_listed(pairs)}); a step "
            "needs something to run on"
        )
    if pairs and len(pairs) == len(graph.outputs):
        raise InputError(
            f"--state: expected an output beside the states, found none "
            f"({_listed(pairs.values())}); return what the network is used for as well, if it is "
            "a state, twice"
        )
    return pairs


def _output(graph: Graph, place: str | int, where: str) -> str:
    """The output of a name, or at a place: modules of torch give no names to what they return."""
    if place in graph.outputs:
        return str(place)
    text = str(place)
    if re.fullmatch("[0-9]{1,4}", text) and int(text) < len(graph.outputs):
        return graph.outputs[int(text)]
    raise InputError(
        f"{where}: expected an output of the network ({_listed(graph.outputs)}) or its place from "
        f"0 to {len(graph.outputs) - 1}, found {text!r}"
    )


def _fitting(graph: Graph, before: str) -> str:
    x = graph.values[before]
    same = [n for n in graph.outputs if (graph.values[n].dtype, graph.values[n].shape) == (
        x.dtype, x.shape)]  # fmt: skip
    return f"of its shape there is {_listed(same)}" if same else "no output has its shape"


def _listed(names: Any) -> str:
    names = [*map(str, names)]
    more = f" and {len(names) - LISTED} more" if len(names) > LISTED else ""
    return (", ".join(names[:LISTED]) + more) or "none"


def _pairs_text(pairs: StatePairs) -> str:
    return _listed(f"{before}={after}" for before, after in pairs.items())


# --- what a graph shows by itself ---------------------------------------------------------------


def _shown(graph: Graph) -> list[StatePair]:
    """The pairs that recurrent layers or names show. None of them where a step would have no input
    or no output of its own."""
    found: dict[str, StatePair] = {}
    fed: set[str] = set()
    for search in (_by_layer, _by_name):
        for pair in search(graph):
            x, y = graph.values[pair.input], graph.values[pair.output]
            same = (x.dtype, x.shape) == (y.dtype, y.shape) and x.dtype == REAL
            if same and pair.input not in found and pair.output not in fed:
                found[pair.input] = pair
                fed.add(pair.output)
    if len(found) in (len(graph.inputs), len(graph.outputs)):
        return []
    return [found[name] for name in graph.inputs if name in found]


def _by_layer(graph: Graph) -> Iterator[StatePair]:
    """Inputs that recurrent layers begin with, and the outputs that their last states become."""
    sources = _moved(graph, graph.inputs)
    ends = {f"{node.name}:{place}": name for node in graph.nodes if node.op in LAYERS
            for place, name in enumerate(node.outputs[1:]) if name}  # fmt: skip
    results = _moved(graph, ends.values())
    for name in graph.inputs:
        for node in graph.nodes:
            if node.op not in LAYERS:
                continue
            for place in range(LAYERS[node.op].states):
                index = INITIAL + place
                initial = node.inputs[index] if index < len(node.inputs) else ""
                last = ends.get(f"{node.name}:{place}", "")
                if not last or name not in sources.get(initial, ()):
                    continue
                for output in graph.outputs:
                    if last in results.get(output, ()):
                        yield StatePair(name, output, f"the state of layer {node.name}")


def _moved(graph: Graph, names: Any) -> dict[str, set[str]]:
    """Value -> those of `names` that it holds elements of, moved but not changed."""
    found = {name: {name} for name in names}
    for node in graph.nodes:
        if not (is_movement(node) or has(node.op, Trait.NEUTRAL)):
            continue
        held = set().union(*(found.get(name, set()) for name in node.inputs))
        if held:
            for output in node.outputs:
                found[output] = found.get(output, set()) | held
    return found


def _by_name(graph: Graph) -> Iterator[StatePair]:
    """Inputs and outputs whose names differ in the side of the step alone."""
    for before in graph.inputs:
        for after in graph.outputs:
            if same_state(before, after) and after not in graph.inputs:
                shape = list(graph.values[before].shape)
                yield StatePair(before, after, f"same shape {shape} and name")


def same_state(before: str, after: str) -> bool:
    """Whether the names of an input and an output are those of one state, before and after a step:
    without what says the side of the step they are the same, and a word in them is a state's."""
    x, y = _words(before), _words(after)
    words = {re.sub("[0-9]+", "", word) for word in (*x, *y)}
    if not STATE_WORDS & (words | {word.removesuffix("n") for word in words}):
        return False
    if (x, y) == (["past"], ["present"]):
        return True
    return any(stem and stem in _stems(y, AFTER, "n1") for stem in _stems(x, BEFORE, "0"))


def _words(name: str) -> list[str]:
    """h_in -> h, in; stateN -> state, n; past_key_values.0.key -> past, 0, key."""
    parts = re.sub("(?<=[a-z0-9])(?=[A-Z])", "_", name.replace("past_key_values", "past"))
    return [word for word in re.split("[^a-z0-9]+", parts.lower()) if word]


def _stems(words: list[str], side: frozenset[str], marks: str) -> set[tuple[str, ...]]:
    """The words without those of a side of the step; where there are none, also without a mark at
    the end: the 0 of h0 and h_0, the n of hn and h_n."""
    stem = tuple(word for word in words if word not in side)
    found = {stem}
    if stem == tuple(words) and stem[-1][-1] in marks:
        short = stem[-1][:-1]
        found.add((*stem[:-1], short) if short else stem[:-1])
    return found


# --- quantization -------------------------------------------------------------------------------


def quantize_states(
    graph: Graph, arrays: Mapping[str, Array], settings: RecurrentSettings, source: str
) -> tuple[Graph, RecurrentReport]:
    """The step graph of a float32 graph with states, in QDQ form, and a report: of
    `state_sequences`. Raises as it."""
    found = quantize_steps(*state_sequences(graph, arrays, source), settings)
    return found.graph, found.report


def state_sequences(
    graph: Graph, arrays: Mapping[str, Array], source: str
) -> tuple[Steps, list[StepSequence]]:
    """The step graph of a float32 graph with states (`tie_states`), and sequences for it.

    arrays: calibration. Of each input that is no state calls in order, [calls, *shape] or, for
            several sequences, [sequences, calls, *shape]; a leading axis of size 1 of the shape may
            be left out. Of a state, if given, its value before the first call, [*shape] or
            [sequences, *shape]; else it begins as the graph says, with zeros

    Raises InputError for arrays that do not fit, hold NaN or infinity or do not vary;
    UnsupportedError where there is no step graph.
    """
    graph = float_network(graph).graph
    check_parameters(graph)
    calls = _sequences(graph, arrays, source)
    whole, (graph, parts) = graph, apart(drop_identity(graph))
    steps, step = fed_back(graph)
    sequences = []
    for given, states in calls:
        inputs = given
        if steps.length > 1:
            cut = [cut_steps(graph, call) for call in zip(*given, strict=True)]
            inputs = [np.concatenate(arrays_) for arrays_ in zip(*cut, strict=True)]
        if states is not None and parts:
            named = {s.input: a[None] for s, a in zip(whole.states, states, strict=True)}
            pieces = parted_arrays(named, parts)
            states = [pieces[state.input][0] for state in graph.states]
        sequences.append(StepSequence(inputs, states))
    for name in dict.fromkeys(part.whole for part in parts):
        listed = _listed(part.name for part in parts if part.whole == name)
        progress.note(
            f"state: {name} holds several tensors side by side; each is a state of its own, with a "
            f"scale of its own: {listed}"
        )
    lengths = sorted({len(sequence) for sequence in sequences})
    spans = f"{lengths[0]}" if len(lengths) == 1 else f"{lengths[0]} to {lengths[-1]}"
    progress.note(
        f"state: a step is {step}; calibrating on {len(sequences)} "
        f"{'sequence' if len(sequences) == 1 else 'sequences'} of {spans} steps, with the state "
        "that the float network hands on"
    )
    return steps, sequences


def _sequences(
    graph: Graph, arrays: Mapping[str, Array], source: str
) -> list[tuple[list[Array], list[Array] | None]]:
    """For each sequence the calls of every input, and the states before the first one."""
    names = {*graph.own_inputs}
    if not names <= set(arrays) or not set(arrays) <= set(graph.inputs):
        raise InputError(
            f"{source}: expected the arrays {_listed(graph.own_inputs)} and, if they do not begin "
            f"with zeros, the states {_listed(s.input for s in graph.states)}, found "
            f"{_listed(arrays)}"
        )
    cut = {name: _calls(graph, name, arrays[name], source) for name in graph.own_inputs}
    sizes = {name: array.shape[:2] for name, array in cut.items()}
    if len(set(sizes.values())) > 1:
        found = ", ".join(f"{name} {list(size)}" for name, size in sizes.items())
        raise InputError(
            f"{source}: expected as many sequences and calls of each input, found {found}"
        )
    count, calls = next(iter(sizes.values()))
    if not count or not calls:
        raise InputError(
            f"{source}: expected at least one sequence of at least one call, found {count} of "
            f"{calls}"
        )
    for name, array in cut.items():
        for index in range(count):
            check_finite(name, array[index], index)
    initial = None
    if set(arrays) - names:
        initial = [
            _initial(graph, s.input, arrays.get(s.input), count, source) for s in graph.states
        ]
    return [
        (
            [array[index] for array in cut.values()],
            None if initial is None else [array[index] for array in initial],
        )
        for index in range(count)
    ]


def _calls(graph: Graph, name: str, array: Array, source: str) -> Array:
    """[sequences, calls, *shape]."""
    value = graph.values[name]
    where = f"{source}: array {name}"
    _check_type(array, value.dtype, where)
    for shape in (value.shape, value.shape[1:] if value.shape[:1] == (1,) else None):
        if shape is None:
            continue
        ahead = array.ndim - len(shape)
        if ahead in (1, 2) and array.shape[ahead:] == shape:
            lead = array.shape[:2] if ahead == 2 else (1, len(array))
            return array.reshape(*lead, *value.shape)
    sizes = ", ".join(("calls", *map(str, value.shape)))
    raise InputError(
        f"{where}: expected calls in order, [{sizes}] or [sequences, {sizes}], found "
        f"{list(array.shape)}"
    )


def _initial(graph: Graph, name: str, array: Array | None, count: int, source: str) -> Array:
    """[sequences, *shape]: a state before the first call of each sequence."""
    value = graph.values[name]
    if array is None:
        return np.zeros((count, *value.shape), value.dtype)
    where = f"{source}: array {name}"
    _check_type(array, value.dtype, where)
    if array.shape == value.shape:
        array = np.broadcast_to(array, (count, *value.shape))
    if array.shape != (count, *value.shape):
        raise InputError(
            f"{where}: expected the state before the first call, {list(value.shape)} or "
            f"{[count, *value.shape]} for each of {count} sequences, found {list(array.shape)}; "
            "leave it out to begin with zeros: the network hands its state on by itself"
        )
    for index in range(count):
        check_finite(name, array[index], index)
    return array


def _check_type(array: Array, dtype: str, where: str) -> None:
    if array.dtype.name != dtype:
        raise InputError(
            f"{where}: expected {dtype}, found {array.dtype}; convert it with astype({dtype!r})"
        )
