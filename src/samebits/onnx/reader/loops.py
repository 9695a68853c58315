"""Loops with a number of steps that is known while importing: as many copies of their body."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from onnx import GraphProto

from samebits.errors import InputError, UnsupportedError
from samebits.onnx.reader.node import OnnxNode

# The results of a body for its inputs, in the step of a number; None where one has no counterpart.
Body = Callable[[Sequence[str], int], Sequence[str] | None]


def scan(node: OnnxNode, body: Body) -> Sequence[str | None]:
    """A body for every slice of some inputs along an axis, from states to states; its other results
    are stacked along an axis."""
    if node.opset < 9:
        raise UnsupportedError("expected Scan of opset 9 or later, found one with batches")
    count = node.int_("num_scan_inputs")
    if not 1 <= count <= len(node.inputs):
        raise InputError(f"expected 1 to {len(node.inputs)} inputs to scan, found {count}")
    first = len(node.inputs) - count
    graph = _body_graph(node, len(node.inputs), len(node.outputs))
    states = [node.input(i) for i in range(first)]
    scanned = [node.input(i) for i in range(first, len(node.inputs))]
    axes = [
        node.axis(axis, len(node.shape_of(x)))
        for axis, x in zip(_each(node, "scan_input_axes", count), scanned, strict=True)
    ]
    backwards = _each(node, "scan_input_directions", count)
    sizes = {node.shape_of(x)[axis] for x, axis in zip(scanned, axes, strict=True)}
    if len(sizes) != 1:
        raise InputError(f"expected one number of steps, found {sorted(sizes)}")
    steps = sizes.pop()
    stacks: list[list[str]] = [[] for _ in graph.output[first:]]
    for step in range(steps):
        slices = [
            _slice(node, x, axis, steps - 1 - step if back else step)
            for x, axis, back in zip(scanned, axes, backwards, strict=True)
        ]
        results = body([*states, *slices], step)
        if results is None:
            return [None] * len(node.outputs)
        states = list(results[:first])
        _push(stacks, results[first:])
    turned = _each(node, "scan_output_directions", len(stacks))
    places = _each(node, "scan_output_axes", len(stacks))
    return [
        *states,
        *(
            _stack(node, stack[::-1] if back else stack, axis)
            for stack, axis, back in zip(stacks, places, turned, strict=True)
        ),
    ]


def loop(node: OnnxNode, body: Body) -> Sequence[str | None]:
    """A body for a constant number of steps, or as long as conditions hold that constants decide;
    its results after the states are stacked along a new first axis."""
    first = len(node.inputs) - 2
    if first < 0:
        raise InputError(
            "expected a number of steps and a condition, which may be left out, found 1 input"
        )
    graph = _body_graph(node, first + 2, len(node.outputs) + 1)
    steps = None
    if node.has(0):
        count = node.scalar(0, "number of steps")
        if count.dtype != np.int64:
            raise InputError(f"expected an int64 number of steps, found {count.dtype}")
        steps = int(count)
    going = not node.has(1) or bool(node.scalar(1, "condition").item())
    if steps is None and not node.has(1):
        raise InputError("expected a number of steps or a condition, found neither")
    states = [node.input(i) for i in range(2, first + 2)]
    stacks: list[list[str]] = [[] for _ in graph.output[first + 1 :]]
    step = 0
    while going and (steps is None or step < steps):
        number, held = node.number(step, np.int64), node.constant(np.array(True))
        made = body([number, held, *states], step)
        if made is None:
            return [None] * len(node.outputs)
        condition, *results = made
        known = node.builder.known(condition)
        if known is None or known.size != 1:
            raise UnsupportedError(
                "expected a condition of Loop that constants decide, found a value that is "
                "computed from the model's inputs; export with a fixed number of steps"
            )
        going = bool(known.reshape(()).item())
        states = results[:first]
        _push(stacks, results[first:])
        step += 1
    return [*states, *(_stack(node, stack, 0) for stack in stacks)]


LOOPS: dict[str, Callable[[OnnxNode, Body], Sequence[str | None]]] = {"Scan": scan, "Loop": loop}


def _body_graph(node: OnnxNode, inputs: int, outputs: int) -> GraphProto:
    """The body; InputError where it has not these numbers of inputs and outputs."""
    graph: GraphProto = node.graph("body")
    found = (len(graph.input), len(graph.output))
    if found != (inputs, outputs) or not inputs:
        raise InputError(f"expected a body of {inputs} inputs and {outputs} outputs, found {found}")
    return graph


def _each(node: OnnxNode, name: str, count: int) -> tuple[int, ...]:
    """A list of integers, one for each of `count` values; zeros where it is not given."""
    listed = node.ints(name) or (0,) * count
    if len(listed) != count:
        raise InputError(f"expected {count} numbers in {name}, found {list(listed)}")
    return listed


def _slice(node: OnnxNode, x: str, axis: int, index: int) -> str:
    ends = {"starts": (index,), "ends": (index + 1,), "axes": (axis,), "steps": (1,)}
    return node.emit("Squeeze", node.emit("Slice", x, **ends), axes=(axis,))


def _push(stacks: Sequence[list[str]], results: Sequence[str]) -> None:
    for stack, result in zip(stacks, results, strict=True):
        stack.append(result)


def _stack(node: OnnxNode, parts: Sequence[str], axis: int) -> str:
    """The results of all steps along a new axis."""
    if not parts:
        raise UnsupportedError("expected at least one step where results are stacked, found none")
    axis = node.axis(axis, len(node.shape_of(parts[0])) + 1)
    raised = [node.emit("Unsqueeze", part, axes=(axis,)) for part in parts]
    return node.emit("Concat", *raised, axis=axis)
