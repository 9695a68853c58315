"""A graph as text, for people."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from samebits.ir.graph import Graph, Node, State
from samebits.ir.value import Value

SHOWN = 4  # items of a long attribute


def text(graph: Graph) -> str:
    """One line per input, constant, node, output and state; odd names are shown with repr."""
    lines = [f"graph {_name(graph.name)}"]
    lines += [f"  input {_value(graph.values[name])}" for name in graph.inputs]
    lines += [f"  constant {_value(graph.values[name])}" for name in graph.constants]
    lines += [f"  {_node(graph, node)}" for node in graph.nodes]
    lines += [f"  output {_name(name)}" for name in graph.outputs]
    lines += [f"  state {_state(state)}" for state in graph.states]
    return "\n".join(lines) + "\n"


def _node(graph: Graph, node: Node) -> str:
    outputs = ", ".join(_value(graph.values[name]) for name in node.outputs)
    attributes = [f"{key}={_attribute(value)}" for key, value in node.attributes.items()]
    inputs = [_name(name) if name else "-" for name in node.inputs]
    return f"{outputs} = {node.op}({', '.join(inputs + attributes)})"


def _state(state: State) -> str:
    initial = _name(state.initial) if state.initial else "zeros"
    return f"{_name(state.input)} = {_name(state.output)} of the step before, {initial} at first"


def _value(value: Value) -> str:
    shape = "x".join(map(str, value.shape)) or "scalar"
    line = f"{_name(value.name)}: {value.dtype} {shape}"
    if value.quantization is not None:
        scales, zero = value.quantization.scales, value.quantization.zero_point
        line += f" (scale {_scales(scales)}" + (f", zero point {zero})" if zero else ")")
    return line


def _scales(scales: tuple[Fraction, ...]) -> str:
    if len(scales) == 1:
        return _fraction(scales[0])
    return f"{_fraction(min(scales))} to {_fraction(max(scales))} by feature"


def _attribute(value: Any) -> str:
    if isinstance(value, Fraction):
        return _fraction(value)
    if isinstance(value, tuple):
        shown = [_attribute(item) for item in value[:SHOWN]]
        if len(value) > SHOWN:
            shown.append(f"... {len(value)} in all")
        return f"({', '.join(shown)})"
    return _name(value) if isinstance(value, str) else repr(value)


def _fraction(value: Fraction) -> str:
    """Powers of two as such, others as decimal numbers."""
    numerator, denominator = value.as_integer_ratio()
    if numerator == 1 and denominator & (denominator - 1) == 0:
        return f"2**{1 - denominator.bit_length()}"
    if denominator == 1 and numerator & (numerator - 1) == 0:
        return f"2**{numerator.bit_length() - 1}"
    return f"{float(value):.9g}"


def _name(name: str) -> str:
    plain = name and name.isascii() and all(c.isalnum() or c in "_./:-" for c in name)
    return name if plain else repr(name)
