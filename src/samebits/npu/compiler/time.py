"""Time in the compiler to firmware: what is in the loop, its states, and the vectors of a turn.

A graph with recurrent layers is cut into a graph of one time step (`ir.steps`), whose states take
the place of the sequence. Its nodes that an output of every step or a next state needs become the
body of a loop; those that only the last step's outputs need come after it, where the buffers hold
what the last turn left.

A state is one buffer that stays in place: it is read like a constant, whose first value is in the
memory image, and written once a turn. All states must change at once, as one's next value may be
computed from another's old one. So each is written after all that read it; a next value that is
itself the old value of a state is copied before (`kept_before`).

For example a plain recurrent layer h' = tanh(W x + b + U h) with N = 8, on 3 steps of 8 features:

    loop 3
    v_rd netq; mv_mul 0; vv_add asvrf0, 0; v_wr asvrf0, 1; end_chain            ; W x + b
    v_rd ivrf, 0; mv_mul 1; vv_add asvrf0, 1; v_tanh; v_wr ivrf, 1; v_wr netq; end_chain
    v_rd ivrf, 1; v_wr ivrf, 0; end_chain                                       ; h becomes h'
    end_loop

The last chain is apart because no chain may write an address that it reads: the second one reads h
at `ivrf 0` for `mv_mul 1`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace

import numpy as np

from samebits.errors import InputError, UnsupportedError
from samebits.ir.graph import Graph, Node, State
from samebits.ir.rewrite import simplify
from samebits.ir.steps import is_recurrent, stepped
from samebits.ir.value import Value
from samebits.npu.compiler.build import Builder
from samebits.npu.compiler.layout import Buffer, BufferAccess, Port, View, binary16
from samebits.npu.compiler.rules import Input
from samebits.npu.machine.assembly import SIZE_MAX

TURNS = range(1, SIZE_MAX + 1)


@dataclass(frozen=True)
class Timed:
    """The graph to compile, of one time step if there are several.

    turns: of the loop over time steps, None where there is no loop
    last:  names of the outputs that are taken after the last step only
    """

    graph: Graph
    turns: int | None
    last: frozenset[str]


def timed(graph: Graph, steps: int | None) -> Timed:
    """The step graph of a graph with recurrent layers, another graph itself.

    steps: see `lower_real_graph`. Raises InputError where they do not fit, UnsupportedError for a
    graph that cannot be cut into steps.
    """
    recurrent, last = is_recurrent(graph), frozenset[str]()
    if graph.states and steps is None:
        raise InputError(f"{graph.name}: expected a number of steps for a step graph, found none")
    if steps is not None and not (graph.states or recurrent):
        raise InputError(
            f"{graph.name}: expected recurrent layers for {steps} steps, found none; leave the "
            "number of steps out"
        )
    if recurrent:
        made = stepped(graph)
        graph, last = simplify(made.graph), made.last
        steps = made.length if steps is None else steps
    if steps is not None and steps not in TURNS:
        raise InputError(
            f"{graph.name}: expected from {TURNS[0]} to {TURNS[-1]} steps, found {steps}; cut "
            "sequences into pieces"
        )
    return Timed(graph, steps, last)


def sections(graph: Graph, outputs: Iterable[str]) -> tuple[list[Node], list[Node]]:
    """The nodes that these outputs and the states need, and the others."""
    needed = {*outputs, *(state.output for state in graph.states)}
    for node in reversed(graph.nodes):
        if needed.intersection(node.outputs):
            needed.update(node.inputs)
    body = [node for node in graph.nodes if needed.intersection(node.outputs)]
    return body, [node for node in graph.nodes if not needed.intersection(node.outputs)]


def turn_view(builder: Builder, value: Value, name: str, turns: int) -> View:
    """One step of the input sequence, a vector, read from the network."""
    if max(value.shape[:-1], default=1) > 1:
        raise UnsupportedError(
            f"expected sequences of vectors of one sample, found steps {list(value.shape)}; "
            "import the model for batch 1"
        )
    buffer = Buffer(name, 1, 1, builder.vectors(value.size))
    builder.add(name, Port(name, (turns, value.size)), buffer, buffer.geometry)
    return View(buffer, np.arange(value.size).reshape(value.shape))


def state_view(builder: Builder, graph: Graph, state: State) -> View:
    """A state as a vector, its first value in the memory image."""
    value = graph.values[state.input]
    initial = graph.constants.get(state.initial, np.zeros(value.shape))
    vectors = builder.vectors(value.size)
    pixels = np.zeros((vectors, builder.native), np.float16)
    pixels.reshape(-1)[: value.size] = binary16(initial.reshape(-1), "states")
    name = builder.names.unique(state.input)
    buffer = Buffer(name, 1, 1, vectors, pixels, (value.size,))
    return View(buffer, np.arange(value.size).reshape(value.shape))


def kept_before(builder: Builder, view: Input, states: Collection[View]) -> Input:
    """The tensor where a new value of a state does not reach it: a copy if it is one."""
    if not isinstance(view, View) or all(view.buffer is not state.buffer for state in states):
        return view
    copy = Buffer(f"{view.buffer.name}_before", *view.buffer.geometry)
    builder.add(copy.name, BufferAccess(view.buffer), copy, copy.geometry)
    return replace(view, buffer=copy)


def keep(builder: Builder, state: View, following: Input) -> None:
    """A state becomes its next value, unless nothing reads it."""
    target = state.buffer
    if not any(a.buffer is target for chain in builder.chains for _, a in chain.accesses):
        return
    if (
        not isinstance(following, View)
        or following.buffer.geometry != target.geometry
        or not np.array_equal(following.places.reshape(-1), state.places.reshape(-1))
    ):
        raise UnsupportedError(
            "expected a next value that is computed as a vector, found a constant or elements in "
            "another order"
        )
    builder.add(target.name, BufferAccess(following.buffer), target, target.geometry)
