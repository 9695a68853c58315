"""Values that are joined with larger ones, and keep a scale of their own for all else.

What Concat, Max and Min join has one scale. A sigmoid beside activations that reach 17 has 15 codes
then, also where it is an output of the network or a convolution reads it. Such a value keeps its
scale, and a copy of it, which the join alone reads, is rounded once more to the common one: a Clip
without bounds, so that `placement` sees a function that ends there. On a device this is one table
or one multiplication for each element.

Values that nothing but the join reads, and those that lose less than FINER, stay as they are.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from samebits.ir import Graph, Node, Trait, has
from samebits.ir.graph import moved_inputs
from samebits.quantization.observe import Statistics, merged, statistics
from samebits.quantization.placement import Placement, is_movement
from samebits.quantization.weights import check_constant

FINER = 2.0  # times finer is a scale worth an operator, where a node reads it
FINER_OUTPUT = 1.05  # the same where it is an output of the network: 0.4 dB


def with_own_scales(
    graph: Graph, placement: Placement, seen: Mapping[str, Statistics]
) -> tuple[Graph, dict[str, Statistics]]:
    """The graph with copies of values in front of joins, and the statistics of these copies.

    graph: without states, whose scales follow from one another. seen: of what is quantized

    Raises NonFiniteError for a constant with NaN or infinity.
    """
    if graph.states:
        return graph, {}
    found = _Search(graph, placement, seen).copies()
    if not found:
        return graph, {}
    names, values, nodes = set(graph.values), dict(graph.values), []
    copied: dict[str, Statistics] = {}
    for node in graph.nodes:
        inputs = list(node.inputs)
        made: dict[str, str] = {}
        for place in found.get(node.name, {}):
            source = inputs[place]
            if source not in made:
                made[source] = name = _fresh(f"{source}.joined", names)
                values[name] = replace(graph.values[source], name=name)
                copied[name] = found[node.name][place]
                nodes.append(Node("Clip", name, (source,), (name,), {"min": None, "max": None}))
            inputs[place] = made[source]
        nodes.append(replace(node, inputs=tuple(inputs)) if made else node)
    return replace(graph, nodes=tuple(nodes), values=values), copied


def _fresh(hint: str, names: set[str]) -> str:
    name, count = hint, 1
    while name in names:
        count += 1
        name = f"{hint}.{count}"
    names.add(name)
    return name


@dataclass
class _Shared:
    """Values of one scale.

    parts: what they hold, by name
    finer: by how much a scale of their own must be finer to be worth a copy; infinity: no reader
    most:  the reach up to which no reader loses that much
    """

    parts: dict[str, Statistics] = field(default_factory=dict)
    finer: float = math.inf
    most: float = math.inf

    @property
    def reach(self) -> float:
        """The width of the range, 0 in it: scales are proportional to it."""
        low = min((part.low for part in self.parts.values()), default=0.0)
        high = max((part.high for part in self.parts.values()), default=0.0)
        return max(high, 0.0) - min(low, 0.0)

    def limit(self) -> None:
        """Set `most` by the values as they are."""
        self.most = self.reach * self.finer if self.finer < math.inf else math.inf


class _Search:
    """Gives what joins put together one scale, node by node, unless a reader loses by it."""

    def __init__(self, graph: Graph, placement: Placement, seen: Mapping[str, Statistics]) -> None:
        self.graph, self.group, self.seen = graph, placement.group, seen
        self.parent: dict[str, str] = {}
        self.joins: list[Node] = []
        for node in graph.nodes:
            inputs = self.together(node)
            if len(set(inputs)) > 1 and has(node.op, Trait.UNROUNDED):
                self.joins.append(node)
            elif inputs and is_movement(node):
                self.unite([*inputs, *node.outputs])
        for each in placement.magnitudes:
            self.unite(each.operands)

    def together(self, node: Node) -> list[str]:
        """The inputs that have the scale of the output."""
        group = self.group.get(node.output)
        inputs = moved_inputs(node) if is_movement(node) else node.inputs
        return [name for name in inputs if group and self.group.get(name) == group]

    def find(self, name: str) -> str:
        while self.parent.setdefault(name, name) != name:
            self.parent[name] = name = self.parent.setdefault(self.parent[name], self.parent[name])
        return name

    def unite(self, names: Sequence[str]) -> None:
        for name in names[1:]:
            self.parent[self.find(name)] = self.find(names[0])

    def copies(self) -> dict[str, dict[int, Statistics]]:
        """Joins -> the positions of inputs that are to be copied, and what these hold."""
        shared = self.apart()
        found: dict[str, dict[int, Statistics]] = {}
        for node in self.joins:
            own = {name: dict(shared[self.find(name)].parts) for name in self.together(node)}
            joined = shared[self.find(node.output)]
            for parts in own.values():
                joined.parts |= parts
            joined.limit()
            for place, name in enumerate(node.inputs):
                other = shared[self.find(name)] if name in own else joined
                if other is joined:
                    continue
                both = _Shared(joined.parts | other.parts, most=min(joined.most, other.most))
                if own[name] and both.reach > both.most:
                    found.setdefault(node.name, {})[place] = merged(list(own[name].values()))
                else:
                    self.unite((name, node.output))
                    joined = shared[self.find(name)] = both
        return found

    def apart(self) -> dict[str, _Shared]:
        """The values of each scale before any join: those that movements pass on."""
        shared: dict[str, _Shared] = {}
        consumers = self.graph.consumers()
        for name in self.group:
            each = shared.setdefault(self.find(name), _Shared())
            constant = self.graph.constants.get(name)
            if constant is not None:
                check_constant(constant, name)
                each.parts |= {name: statistics(constant)} if constant.size else {}
                continue
            if name in self.seen:
                each.parts[name] = self.seen[name]
            if name in self.graph.outputs:
                each.finer = min(each.finer, FINER_OUTPUT)
            elif any(n not in self.joins and not is_movement(n) for n in consumers[name]):
                each.finer = min(each.finer, FINER)
        for each in shared.values():
            each.limit()
        return shared
