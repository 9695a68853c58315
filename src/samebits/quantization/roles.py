"""The roles of values in the step of a recurrent network: sums of gates, gates, cell states."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from samebits.ir import Graph, Node, Trait, has
from samebits.ir.steps import Steps
from samebits.quantization.placement import Placement, is_movement
from samebits.quantization.trial import DATA, INPUT, WEIGHTS

SUM = "sum"  # of a gate
GATE = "gate"  # what its function gives: Q0.15
CELL = "cell"
ROLES = (WEIGHTS, INPUT, DATA, SUM, GATE, CELL)
BOUNDED = ("Sigmoid", "Tanh")  # at 8 and beyond they are 1 within 2**-11


def _hidden(graph: Graph, steps: Steps) -> set[str]:
    """Values that a step begins with: the states, what they are moved to, and within a step of
    several time steps what the cells hand on."""
    found = {state.input for state in graph.states}
    for node in graph.nodes:
        if is_movement(node) and found.intersection(node.inputs):
            found.update(node.outputs)
    return found.union(*(names for _, names in steps.carried))


def _cell_groups(graph: Graph, steps: Steps) -> set[str]:
    """A value of every state that is a cell state: what reads it, once it is moved, is no product.

    A state of several parts (h and c in one tensor) is one as soon as a part is."""
    consumers = graph.consumers()
    found = {names[-1] for letter, names in steps.carried if letter == "c" and names}
    for state in graph.states:
        waiting = [state.input]
        while waiting:
            readers = consumers[waiting.pop()]
            moved = [node for node in readers if is_movement(node)]
            waiting += [name for node in moved for name in node.outputs]
            others = [node for node in readers if node not in moved]
            if others and not any(has(node.op, Trait.PRODUCT) for node in others):
                found.add(state.input)
    return found


def gates_of(
    graph: Graph, steps: Steps, quantized: Sequence[str]
) -> tuple[dict[str, tuple[str, str]], list[str]]:
    """The sum of each gate -> (the product of x, the product of h) in it; and the sums of gates
    with one product, of x and h side by side."""
    producers, hidden = graph.producers(), _hidden(graph, steps)
    kept = set(quantized)
    found, joined = {}, []
    for name in quantized:
        products: list[Node] = []
        waiting = [name]
        while waiting:
            node = producers.get(waiting.pop())
            if node is None:
                continue
            if has(node.op, Trait.PRODUCT):
                products.append(node)
            elif node.op in ("Add", "Sub") or node.op == "Clip":
                waiting += [n for n in node.inputs if n not in kept]
            elif node.op == "Mul":  # a GRU that resets after the product
                made = [n for n in node.inputs if n in producers]
                waiting += [n for n in made if has(producers[n].op, Trait.PRODUCT)]
        recurrent = [node for node in products if hidden & _factors(producers, node.inputs[0])]
        inputs = [node for node in products if node not in recurrent]
        if len(recurrent) == 1 and len(inputs) == 1:
            found[name] = (inputs[0].output, recurrent[0].output)
        elif recurrent and _saturates(graph, name):
            joined.append(name)
    return found, joined


def _saturates(graph: Graph, name: str) -> bool:
    """Whether a value, once it is moved, goes through bounded functions alone: what Q3.12 cuts off
    changes them by less than 2**-10."""
    consumers = graph.consumers()
    waiting, functions = [name], 0
    while waiting:
        value = waiting.pop()
        if value in graph.outputs:
            return False
        for node in consumers[value]:
            if is_movement(node):
                waiting += node.outputs
            elif node.op in BOUNDED:
                functions += 1
            else:
                return False
    return functions > 0


def _factors(producers: Mapping[str, Node], name: str) -> set[str]:
    """The value, and what it is a product of: a GRU resets before the product."""
    node = producers.get(name)
    return {name, *node.inputs} if node is not None and node.op == "Mul" else {name}


def roles_of(
    graph: Graph, steps: Steps, placement: Placement, sums: Iterable[str]
) -> dict[str, str]:
    """Group -> its role (SUM, GATE or CELL); groups that are not listed are DATA.

    sums: of gates
    """
    cells = _cell_groups(graph, steps)
    roles = {placement.group[name]: CELL for name in cells if name in placement.group}
    roles.update({placement.group[name]: SUM for name in sums})
    inside: set[str] = set()  # of the function of a gate, which may be several operators
    for node in graph.nodes:
        variables = [name for name in node.inputs if name and name not in graph.constants]
        if not has(node.op, Trait.POINTWISE) or len(variables) != 1:
            continue
        group = placement.group.get(node.output, "")
        role = roles.get(placement.group.get(variables[0], ""), DATA)
        if variables[0] in inside or role in (SUM, GATE, CELL):
            if group:
                roles.setdefault(group, GATE)
            else:
                inside.add(node.output)
    return roles
