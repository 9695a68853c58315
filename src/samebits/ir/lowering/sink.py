"""Rounding moves through data movement: Q(move(x)) = move(Q(x)), exactly.

`sink_quantize` does it in real graphs, before they are lowered; `sink_requantize` in integer ones,
where a signal is an image of one row: its sums are rounded before they lose that row, inside the
layer that computes them.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np

from samebits.ir.graph import Graph, GraphBuilder, Node, moved_inputs
from samebits.ir.integer.shape import keeps_channels
from samebits.ir.ops import has
from samebits.ir.real.quantize import saturation
from samebits.ir.rewrite import Edit, rewrite
from samebits.ir.traits import Trait
from samebits.spec.formats import round_real

Parameters = tuple[Any, ...]  # scale, zero point and ends of the codes of a QuantizeLinear


def sink_quantize(graph: Graph) -> Graph:
    """The same function with every QuantizeLinear right after the arithmetic that it rounds."""
    moved = _moved(graph)
    return _rebuilt(graph, moved) if moved else graph


def _moved(graph: Graph) -> dict[str, Node]:
    """Movement output -> a QuantizeLinear whose codes it shall carry.

    A movement takes part if all that reads it are equal per-tensor QuantizeLinear nodes, or
    movements that take part with those parameters, and its input is not quantized already.
    """
    readers, producers = graph.consumers(), graph.producers()
    moved: dict[str, Node] = {}
    for node in reversed(graph.nodes):
        if not _movement(node) or node.output in graph.outputs:
            continue
        wanted = [_wanted(graph, reader, node.output, moved) for reader in readers[node.output]]
        first = wanted[0] if wanted else None
        if first is None or any(w is None or _numbers(w) != _numbers(first) for w in wanted):
            continue
        sources = [producers.get(name) for name in moved_inputs(node)]
        dequantized = all(s is not None and s.op == "DequantizeLinear" for s in sources)
        if dequantized and len(sources) == 1:
            continue
        moved[node.output] = first
    return moved


def _wanted(graph: Graph, reader: Node, name: str, moved: dict[str, Node]) -> Node | None:
    """The QuantizeLinear that a reader makes of a value, now or after the move."""
    if reader.op == "QuantizeLinear" and reader.inputs[0] == name:
        scale = graph.constants.get(reader.inputs[1])
        return reader if scale is not None and scale.size == 1 else None
    if _movement(reader) and name in moved_inputs(reader):
        return moved.get(reader.output)
    return None


def _numbers(quantizer: Node) -> Parameters:
    return (*quantizer.inputs[1:], *(quantizer.attributes[key] for key in ("low", "high")))


def _movement(node: Node) -> bool:
    """Whether each element of its one output is an element of the input, the greatest or least of
    some, or a constant. Rounding to codes is monotone: it changes places with all of these.

    An Identity is lowered to nothing: there is no movement to carry codes instead of numbers.
    """
    moves = has(node.op, Trait.MOVEMENT, Trait.SELECTION) and node.op != "Identity"
    return moves and len(node.outputs) == 1


def _rebuilt(graph: Graph, moved: dict[str, Node]) -> Graph:
    """The graph with the QuantizeLinear nodes in `moved` before their movements instead of behind
    them.

    A value that several movements read is quantized once for each set of parameters; the value of a
    constant Pad becomes its code.
    """
    builder, renamed = GraphBuilder.like(graph)
    codes: dict[tuple[str, Parameters], str] = {}  # of values before a movement
    for node in graph.nodes:
        inputs = tuple(renamed[name] if name else "" for name in node.inputs)
        if node.op == "QuantizeLinear" and node.inputs[0] in moved:
            renamed[node.output] = renamed[node.inputs[0]]  # codes already
            continue
        attributes: dict[str, Any] = dict(node.attributes)
        if node.output in moved:
            quantizer = moved[node.output]
            parameters = tuple(renamed[name] if name else "" for name in quantizer.inputs[1:])
            for index, name in enumerate(moved_inputs(node)):
                if name in moved:
                    continue
                key = (name, _numbers(quantizer))
                if key not in codes:
                    codes[key] = builder.add(
                        "QuantizeLinear",
                        [renamed[name], *parameters],
                        quantizer.attributes,
                        f"{quantizer.name}.{len(codes)}",
                    )
                inputs = (*inputs[:index], codes[key], *inputs[index + 1 :])
            if node.op == "Pad" and attributes["mode"] == "constant":
                attributes["value"] = _code(graph, quantizer, attributes["value"])
        out = builder.add_all(node.op, inputs, attributes, node.name, node.outputs)
        renamed.update(zip(node.outputs, out, strict=True))
    return builder.build(_outputs(graph, builder, renamed))


def _code(graph: Graph, quantizer: Node, value: float) -> float:
    """The code of a padding value."""
    scale = Fraction(float(graph.constants[quantizer.inputs[1]].reshape(-1)[0]))
    zeros = graph.constants.get(quantizer.inputs[2]) if len(quantizer.inputs) > 2 else None
    zero = 0 if zeros is None else int(np.asarray(zeros).reshape(-1)[0])
    low, high = saturation(graph.values[quantizer.output].dtype, quantizer.attributes)
    return float(min(max(round_real(Fraction(value) / scale) + zero, low), high))


def _outputs(graph: Graph, builder: GraphBuilder, renamed: dict[str, str]) -> list[str]:
    """The outputs under their own names: codes that moved get a node of that name."""
    found = []
    for name in graph.outputs:
        if renamed[name] != name and name not in builder.values:
            builder.add("Identity", [renamed[name]], outputs=[name])
            found.append(name)
        else:
            found.append(renamed[name])
    return found


# --- integer graphs -------------------------------------------------------------------------


def sink_requantize(graph: Graph) -> Graph:
    """The same integer graph with `requantize` before the `reshape` of the accumulator that it
    rounds, where nothing else reads that and channels stay channels."""

    def rule(edit: Edit, node: Node) -> list[Node] | None:
        """The rounding of the sums as they are computed, and the reshape of its codes."""
        if node.op != "requantize":
            return None
        moved = _alone(edit, node.inputs[0])
        if moved is not None and moved.op == "add" and _same(edit, moved):
            moved = _alone(edit, moved.inputs[0])
        if moved is None or moved.op != "reshape" or _alone(edit, moved.inputs[0]) is None:
            return None
        before, out = edit.values[moved.inputs[0]], edit.values[node.output]
        kept = keeps_channels("reshape", moved.attributes, before.shape, out.shape)
        if len(node.attributes["ratios"]) > 1 and not kept:
            return None
        codes = edit.value(f"{node.output}.codes", replace(before, dtype=out.dtype))
        if out.quantization is not None and out.quantization.plain:
            edit.values[codes] = replace(edit.values[codes], quantization=out.quantization)
        return [
            replace(node, inputs=(before.name,), outputs=(codes,)),
            edit.node("reshape", (codes,), node.output, shape=out.shape),
        ]

    return rewrite(graph, rule)


def _alone(edit: Edit, name: str) -> Node | None:
    """The node that writes a value, which one other node reads and no output is; else None."""
    return edit.producers.get(name) if edit.uses[name] == 1 else None


def _same(edit: Edit, node: Node) -> bool:
    """Whether a sum has one term, and is that term."""
    one = node.attributes["factors"] == (1,) and node.attributes["offset"] == 0
    return one and edit.values[node.inputs[0]].dtype == edit.values[node.output].dtype
