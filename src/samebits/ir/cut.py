"""A graph cut at tensors: the network from these to those."""

from __future__ import annotations

from dataclasses import replace

from samebits.excerpt import Excerpt, check_known, check_needed, refuse_states
from samebits.ir.graph import Graph
from samebits.ir.rewrite import Edit, remove_dead


def cut(graph: Graph, part: Excerpt) -> Graph:
    """The part of a graph between the tensors at which it is to start and to end.

    Of the graph's own inputs only those stay that an output needs. Raises InputError for a tensor
    that the graph has not or that is a constant, for a start that no output needs, for an input
    beside the starts that one needs, and for a graph with states.
    """
    if not part.is_cut:
        return graph
    if graph.states:
        refuse_states()
    check_known(part, graph.values.keys() - graph.constants.keys())
    starts = tuple(part.start_at)
    edit = Edit(graph)
    nodes = []
    for node in graph.nodes:
        # What a node writes where the network now starts gets another name, which nothing reads.
        outputs = tuple(
            edit.value(name, edit.values[name]) if name in starts else name for name in node.outputs
        )
        nodes.append(node if outputs == node.outputs else replace(node, outputs=outputs))
    ends = tuple(dict.fromkeys((*starts, *graph.inputs))), tuple(part.end_at) or graph.outputs
    left = remove_dead(Graph(graph.name, *ends, tuple(nodes), edit.constants, edit.values))
    read = {*left.outputs, *(name for node in left.nodes for name in node.inputs)}
    if starts:
        check_needed(part, graph.inputs, read)
    inputs = tuple(name for name in left.inputs if name in read)
    values = {name: v for name, v in left.values.items() if name in read or name not in left.inputs}
    return Graph(graph.name, inputs, left.outputs, left.nodes, left.constants, values)
