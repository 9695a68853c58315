"""Places that a Softmax leaves out, as networks write them: sums with -inf, choices of it.

A number below -2**15 that is added to a score, or chosen in its place, says that its place gets no
share. It has no code beside those of scores, so the place is what is kept. The places are constant,
as what comes later in a text, or an integer input of zeros and ones says them, as the padding of a
batch: networks compute numbers from it, (1 - x) * -1e9, through which is looked here.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from samebits.ir.graph import Array, Graph, Node, moved_inputs
from samebits.ir.ops import has, op_named
from samebits.ir.real.define import REALS
from samebits.ir.traits import Trait

LEAST_SCORE = -(2.0**15)  # what is below stands for "left out"


FLAG_TYPES = ("int32", "int64")


@dataclass(frozen=True)
class Flag:
    """A value made of one integer input, element by element: what it is where that is 0, and 1.

    base:  the input, or what data movement made of it last
    moved: whether its elements are those of the input, whatever they are
    """

    base: str
    numbers: tuple[float, float]
    moved: bool


@dataclass(frozen=True, eq=False)
class Mask:
    """The value of the scores, and the places that stay.

    kept:  of constants: bool, broadcasts to the scores. None where `flag`, the value of a Flag,
           says it at run time
    where: the number of the integer input, 0 or 1, at places that stay
    """

    scores: str
    kept: Array | None
    flag: str = ""
    where: int = 1


def flags_of(graph: Graph) -> dict[str, Flag]:
    """The values that are functions of one integer input, element by element, and data movement."""
    inputs = [name for name in graph.inputs if graph.values[name].dtype in FLAG_TYPES]
    found = {name: Flag(name, (0.0, 1.0), True) for name in inputs}
    for node in graph.nodes:
        moves = has(node.op, Trait.MOVEMENT) and node.op != "Pad"
        operands = moved_inputs(node) if moves else node.inputs
        read = [name for name in operands if name and name not in graph.constants]
        if not read or not found.keys() >= set(read) or len(node.outputs) != 1:
            continue
        flags = [found[name] for name in read]
        if moves and len(read) == 1:
            others = [graph.constants[name] for name in operands if name in graph.constants]
            if all(np.isin(array, flags[0].numbers).all() for array in others):
                found[node.output] = Flag(node.output, flags[0].numbers, flags[0].moved)
        elif has(node.op, Trait.POINTWISE) and len({flag.base for flag in flags}) == 1:
            numbers = _numbers(graph, node, found)
            same = graph.values[node.output].shape == graph.values[flags[0].base].shape
            if numbers is not None:
                kept = node.op == "Cast" and graph.values[node.output].dtype in FLAG_TYPES
                base = flags[0].base if same else node.output
                found[node.output] = Flag(base, numbers, kept and flags[0].moved)
    return found


def _numbers(graph: Graph, node: Node, flags: dict[str, Flag]) -> tuple[float, float] | None:
    """The results of an operator where the input is 0 and 1; None with constants that differ from
    place to place."""
    arrays: list[Array | None] = []
    for name in node.inputs:
        constant = graph.constants.get(name)
        if not name:
            arrays.append(None)
            continue
        if constant is not None and (not constant.size or (constant != constant.flat[0]).any()):
            return None
        numbers = flags[name].numbers if constant is None else constant.flat[:1]
        kind = graph.values[name].dtype
        wide = np.dtype("float64" if kind in REALS else kind)
        arrays.append(np.broadcast_to(np.asarray(numbers, wide), (2,)))
    with np.errstate(all="ignore"):
        result = op_named(node.op).meaning(arrays, node.attributes)[0]
    return float(result[0]), float(result[1])


def masks_of(graph: Graph, flags: dict[str, Flag]) -> dict[str, Mask]:
    """Value -> what it leaves out, for values that Softmax operators alone read.

    flags: those of the graph
    """
    readers, found = graph.consumers(), {}
    for node in graph.nodes:
        rule = _RULES.get(node.op)
        if rule is None or node.output in graph.outputs:
            continue
        alone = {n.op for n in readers[node.output]} == {"Softmax"}
        mask = rule(graph, node, flags) if alone else None
        shape = graph.values[node.output].shape
        if mask is not None and graph.values[mask.scores].shape == shape:
            found[node.output] = mask
    return found


def _added(graph: Graph, node: Node, flags: dict[str, Flag]) -> Mask | None:
    for position, name in enumerate(node.inputs):
        scores, constant = node.inputs[1 - position], graph.constants.get(name)
        if constant is not None:
            kept = ~(constant < LEAST_SCORE)
            if kept.all() or (constant[kept] != 0).any():  # NaN too
                return None
            return Mask(scores, np.asarray(kept))
        if name in flags:
            stays = [number == 0 for number in flags[name].numbers]
            left = [number < LEAST_SCORE for number in flags[name].numbers]
            if sorted(stays) == sorted(left) == [False, True]:
                return Mask(scores, None, name, stays.index(True))
    return None


def _chosen(graph: Graph, node: Node, flags: dict[str, Flag]) -> Mask | None:
    choice = node.inputs[0]
    for position, name in enumerate(node.inputs[1:], 1):
        constant = graph.constants.get(name)
        if constant is None or not (constant < LEAST_SCORE).all():
            continue
        scores, known = node.inputs[3 - position], graph.constants.get(choice)
        if known is not None:
            return Mask(scores, np.asarray(known if position == 2 else ~known))
        if choice in flags and sorted(flags[choice].numbers) == [0, 1]:
            chosen = flags[choice].numbers.index(1)
            return Mask(scores, None, choice, chosen if position == 2 else 1 - chosen)
    return None


_RULES = {"Add": _added, "Where": _chosen}
