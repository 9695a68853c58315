"""The interpreter: the living definition of what a graph computes.

Real graphs compute in float64 (float mode) or in rationals (exact mode); integer graphs compute
exactly what their operators' records say, and a result that does not fit its type is an error.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from samebits.errors import InputError, RangeError, SamebitsError
from samebits.ir.graph import Graph, Node, State
from samebits.ir.ops import Array, op_named
from samebits.ir.real.define import (
    INTEGERS,
    NARROW,
    REALS,
    array_type,
    code_range,
    is_real,
    rationals,
)
from samebits.ir.real.minifloat import stored, widened
from samebits.ir.value import Value


def run(graph: Graph, inputs: Sequence[Any], exact: bool = False) -> list[Array]:
    """The outputs of a graph, in order, as arrays of their declared types.

    inputs: one array for each graph input, of its shape and with values its type holds.
    exact:  real numbers are Fractions from end to end; real outputs are object arrays of them.

    Raises InputError for inputs that do not fit, RangeError for an integer that leaves its type,
    UnsupportedError for an operator that is not rational in exact mode.
    """
    last = {name: index for index, node in enumerate(graph.nodes) for name in node.inputs}
    last.update(dict.fromkeys(graph.outputs, len(graph.nodes)))
    live = read_inputs(graph, graph.inputs, inputs, exact)
    for index, node, results in _steps(graph, live, exact):
        live.update(zip(node.outputs, results, strict=True))
        for name in {*node.inputs, *node.outputs}:
            if last.get(name, -1) <= index:
                live.pop(name, None)
    return [
        stored_as(_read(graph, live, name, exact), graph.values[name]) for name in graph.outputs
    ]


def run_steps(
    graph: Graph,
    sequences: Sequence[Any],
    exact: bool = False,
    initial: Sequence[Any] | None = None,
) -> list[Array]:
    """All steps of a step graph: the outputs of every step, states among them, as [T, ...].

    sequences: [T, ...] for each input that is no state. Between steps a real state is float64 or
    Fractions, as between nodes: only the outputs are rounded to their declared types.
    initial:   of each state before the first step; None: as the graph says

    Raises InputError for sequences of different lengths, else what `run` raises.
    """
    own = graph.own_inputs
    if len({len(sequence) for sequence in sequences}) > 1 or len(sequences) != len(own) or not own:
        raise InputError(
            f"graph {graph.name!r}: expected a sequence of one length for each of "
            f"{', '.join(own) or 'no inputs'}, found lengths {[len(s) for s in sequences]}"
        )
    if initial is None:
        states = {s.input: initial_state(graph, s, exact) for s in graph.states}
    else:
        names = [state.input for state in graph.states]
        states = read_inputs(graph, names, initial, exact)
    found: list[list[Array]] = [[] for _ in graph.outputs]
    for arrays in zip(*sequences, strict=True):
        live = read_inputs(graph, own, arrays, exact) | states
        for _, node, results in _steps(graph, live, exact):
            live.update(zip(node.outputs, results, strict=True))
        states = {s.input: _read(graph, live, s.output, exact) for s in graph.states}
        for made, name in zip(found, graph.outputs, strict=True):
            made.append(stored_as(_read(graph, live, name, exact), graph.values[name]))
    return [
        np.stack(made)
        if made
        else np.empty((0, *graph.values[name].shape), graph.values[name].dtype)
        for made, name in zip(found, graph.outputs, strict=True)
    ]


def initial_state(graph: Graph, state: State, exact: bool = False) -> Array:
    """The array that a state of a step graph holds before the first step, as operators take it."""
    value = graph.values[state.input]
    array = graph.constants.get(state.initial)
    if array is None:
        zero = value.quantization.zero_point if value.quantization else 0
        array = np.full(value.shape, zero, array_type(value.dtype))
    return carry(array, value.dtype, exact, state.input)


def trace(graph: Graph, inputs: Sequence[Any], exact: bool = False) -> dict[str, Array]:
    """Every value but the constants, by name, in the order of computation; types as in `run`."""
    live = read_inputs(graph, graph.inputs, inputs, exact)
    for _, node, results in _steps(graph, live, exact):
        live.update(zip(node.outputs, results, strict=True))
    return {
        name: stored_as(array, graph.values[name])
        for name, array in live.items()
        if name and name not in graph.constants
    }


def evaluate(
    node: Node,
    arrays: Sequence[Array | None],
    types: Mapping[str, Value],
    leading: tuple[int, ...] = (),
) -> list[Array]:
    """The outputs of one node: float64 or Fractions where real, else of the declared type.

    leading: axes that its results have in front of those of their declared shapes
    """
    record = op_named(node.op)
    try:
        # NaN and infinities of float mode are results like others.
        with np.errstate(all="ignore"):
            results = record.meaning(arrays, node.attributes)
    except SamebitsError as error:
        raise type(error)(f"node {node.name!r} ({node.op}): {error}") from error
    except (ValueError, IndexError, ZeroDivisionError, OverflowError) as error:
        raise InputError(f"node {node.name!r} ({node.op}): {error}") from error
    return [
        _carried(np.asarray(result), types[name], leading) if name else np.asarray(result)
        for name, result in zip(node.outputs, results, strict=False)
    ]


def carry(array: Array, dtype: str, exact: bool, name: str = "tensor") -> Array:
    """An array of a declared type as the operators take it: reals as float64 or Fractions."""
    if dtype not in REALS:
        return array
    return rationals(array, name) if exact else widened(array)


def _steps(
    graph: Graph, live: Mapping[str, Array], exact: bool
) -> Iterator[tuple[int, Node, list[Array]]]:
    for index, node in enumerate(graph.nodes):
        arrays = [_read(graph, live, name, exact) if name else None for name in node.inputs]
        yield index, node, evaluate(node, arrays, graph.values)


def _read(graph: Graph, live: Mapping[str, Array], name: str, exact: bool) -> Array:
    if name in live:
        return live[name]
    return carry(graph.constants[name], graph.values[name].dtype, exact, name)


# --- types ----------------------------------------------------------------------------------


def _carried(array: Array, value: Value, leading: tuple[int, ...]) -> Array:
    """A node's result as it is kept between nodes; its shape and range are those declared."""
    if array.shape != (*leading, *value.shape):
        raise InputError(
            f"value {value.name!r}: expected shape {[*leading, *value.shape]}, found "
            f"{list(array.shape)}"
        )
    if value.dtype in REALS:
        return array if array.dtype == object else array.astype(np.float64, copy=False)
    kind = array_type(value.dtype)
    if array.dtype == kind and value.dtype not in NARROW:
        return array
    low, high = code_range(value.dtype)
    outside = np.asarray((array < low) | (array > high))
    if outside.any():
        raise RangeError(
            f"value {value.name!r}: expected {value.dtype} in [{low}, {high}], "
            f"{_first(array, outside)}"
        )
    return array.astype(kind)


def stored_as(array: Array, value: Value) -> Array:
    """A result as its declared type stores it."""
    if value.dtype in REALS and array.dtype != object:
        return stored(array, value.dtype)
    return array


def _first(array: Array, wrong: Array) -> str:
    index = int(np.argmax(wrong.reshape(-1)))
    return f"found {array.reshape(-1)[index]} at flat index {index}"


def read_inputs(
    graph: Graph, names: Sequence[str], inputs: Sequence[Any], exact: bool = False
) -> dict[str, Array]:
    """Inputs by name as operators take them. Raises InputError for what does not fit."""
    if len(inputs) != len(names):
        raise InputError(
            f"graph {graph.name!r}: expected {len(names)} inputs ({', '.join(names)}), found "
            f"{len(inputs)}"
        )
    return {
        name: _checked_input(np.asarray(array), graph.values[name], exact)
        for name, array in zip(names, inputs, strict=True)
    }


def _checked_input(array: Array, value: Value, exact: bool) -> Array:
    """An input as operators take it. Raises InputError for another shape, for numbers that the
    declared type does not hold exactly, and for codes outside its range: nothing is rounded or
    wrapped here."""
    where = f"input {value.name!r}"
    if array.shape != value.shape:
        raise InputError(
            f"{where}: expected shape {list(value.shape)}, found {list(array.shape)}; "
            "reshape it, or cut the batch into pieces of that size"
        )
    kind = array.dtype.kind
    if value.dtype in REALS:
        if array.dtype == object and exact:
            return rationals(array, value.name)
        if not is_real(array.dtype):
            raise InputError(
                f"{where}: expected {value.dtype} numbers, found {array.dtype}; "
                f"convert them with astype({value.dtype!r})"
            )
        _check_representable(array, value, where)
        return carry(array, value.dtype, exact, value.name)
    if value.dtype == "bool" and kind == "b":
        return array
    if value.dtype not in (*INTEGERS, *NARROW) or kind not in "iu":
        raise InputError(f"{where}: expected {value.dtype} codes, found {array.dtype}")
    low, high = code_range(value.dtype)
    outside = (array < low) | (array > high)
    if outside.any():
        raise InputError(
            f"{where}: expected codes in [{low}, {high}] ({value.dtype}), "
            f"{_first(array, outside)}; quantize the input to that type"
        )
    return array.astype(array_type(value.dtype), copy=False)


def _check_representable(array: Array, value: Value, where: str) -> None:
    if array.dtype == value.dtype:
        return
    wide = widened(array)
    held = widened(stored(wide, value.dtype))
    changed = (held != wide) & ~(np.isnan(wide) & np.isnan(held))
    if changed.any():
        raise InputError(
            f"{where}: expected numbers that {value.dtype} holds, {_first(array, changed)} "
            f"({array.dtype}); round them with astype({value.dtype!r})"
        )
