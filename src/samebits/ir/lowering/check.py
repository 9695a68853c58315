"""Inputs and operators that no lowering takes, whatever the scales, found before quantization."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from samebits.errors import UnsupportedError, listed
from samebits.ir.graph import Graph, Node, moved_inputs
from samebits.ir.integer.define import CODES
from samebits.ir.lowering.rules import RULES, without_form
from samebits.ir.masks import FLAG_TYPES, Flag, Mask, flags_of, masks_of
from samebits.ir.ops import has
from samebits.ir.real.cell import LAYERS
from samebits.ir.traits import Trait


def check_lowerable(graph: Graph) -> None:
    """Refuse what `lower_graph` will refuse in a float graph, whatever its scales will be.

    Recurrent layers pass: their cells are lowered in their place. Raises UnsupportedError that
    names the first input that is none, or every node without an integer form.
    """
    flags = flags_of(graph)
    masks = masks_of(graph, flags)
    check_inputs(graph, flags, masks)
    found: list[str] = []
    for node in graph.nodes:
        free = node.op in LAYERS or node.output in flags or node.op in RULES
        if not free and not has(node.op, Trait.QUANTIZES):
            found.append(without_form(node))
        elif node.output not in masks and (end := _infinite_end(graph, node)) is not None:
            found.append(
                f"node {node.name!r} ({node.op}): expected finite constants, found {end}, which "
                "results would be; replace it in the model"
            )
    if len(found) == 1:
        raise UnsupportedError(found[0])
    if found:
        raise UnsupportedError(
            f"expected operators with an integer form, found {len(found)} without one:\n"
            + listed(found)
        )


def _infinite_end(graph: Graph, node: Node) -> float | None:
    """The infinity or NaN that a Max, Min or Clip chooses, None for none. `simplify` has taken out
    the infinities that are never chosen."""
    if node.op in ("Max", "Min"):
        ends = [graph.constants[name] for name in node.inputs if name in graph.constants]
        numbers = [float(number) for array in ends for number in array[~np.isfinite(array)]]
    elif node.op == "Clip":
        bounds = node.attributes["min"], node.attributes["max"]
        numbers = [b for b in bounds if isinstance(b, float) and not math.isfinite(b)]
    else:
        return None
    return next(iter(numbers), None)


def check_inputs(graph: Graph, flags: Mapping[str, Flag], masks: Mapping[str, Mask]) -> None:
    """Real numbers, codes, and whole numbers that select rows or say the places of a softmax."""
    readers = graph.consumers()
    for name in graph.inputs:
        value = graph.values[name]
        if value.dtype.startswith("float") and not readers[name] and name not in graph.outputs:
            raise UnsupportedError(
                f"input {name!r}: expected inputs that something reads, found one that nothing "
                "does; export the model without it"
            )
        if value.dtype.startswith("float") or value.dtype in CODES:
            continue
        if value.dtype == "bool":
            raise UnsupportedError(
                f"input {name!r}: expected numbers, found bool; give the model an int64 input of "
                "zeros and ones, and compare it inside (x != 0)"
            )
        wrong = value.dtype if value.dtype not in FLAG_TYPES else ""
        wrong = wrong or _misused(graph, name, flags, masks)
        if wrong:
            raise UnsupportedError(
                f"input {name!r}: expected real numbers, codes of 8 or 16 bits, or whole numbers "
                f"that select rows (Gather) or say the places of a softmax, found {wrong}; compute "
                "outside the network what it counts, and give it that"
            )


def _misused(graph: Graph, name: str, flags: Mapping[str, Flag], masks: Mapping[str, Mask]) -> str:
    """The reader that takes an integer input, or what was made of it, for something else, or "".

    The elements of an input that selects are any numbers, those of one that says places 0 and 1:
    none can do both.
    """
    kind, readers = graph.values[name].dtype, graph.consumers()
    waiting, seen = [name], {name}
    selecting, saying = "", ""
    while waiting:
        value = waiting.pop()
        if value in graph.outputs and not flags[value].moved:
            return f"{kind} of which the output {value!r} is made"
        for node in readers[value]:
            indexed = has(node.op, Trait.INDEXED) and value not in moved_inputs(node)
            if indexed and has(node.op, Trait.MOVEMENT) and flags[value].moved:
                selecting = f"{node.name!r} ({node.op})"
            elif node.output in flags:
                if node.output not in seen:
                    seen.add(node.output)
                    waiting.append(node.output)
            elif node.output in masks or (node.op == "Where" and node.inputs[1:].count(value) == 0):
                saying = f"{node.name!r} ({node.op})"
            else:
                return f"{kind} that {node.name!r} ({node.op}) reads"
    return f"{kind} that {selecting} and {saying} read" if selecting and saying else ""
