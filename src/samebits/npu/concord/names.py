"""Instructions by their common name: the softmax that some of them amount to.

A data flow is instructions. Where some of them are together what a network calls a softmax, the
text of a module says so: one node in the place of up to nine, which computes the same numbers by
the same roundings. The largest is taken of `scores`, which are x with the least number where a lane
does not count; `kept` holds 1 where one counts and 0 elsewhere:

    m = largest(scores)              powers = exp((x - m) * kept)
    result = powers * (1 / total(powers * kept))
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from samebits.npu.concord.graph import FlowNode, FlowValue, Turns
from samebits.npu.machine.isa import (
    EXPONENTIAL,
    LARGEST,
    POINTWISE,
    RECIPROCAL,
    REDUCTIONS,
    TOTAL,
)
from samebits.spec.npu_formula import A, B, Formula, Reduction, look_up

SOFTMAX = "softmax"
Meaning = Formula | Reduction


def named(
    nodes: Sequence[FlowNode | Turns], leaving: Sequence[FlowValue] = ()
) -> tuple[FlowNode | Turns, ...]:
    """The nodes with a `softmax` in the place of those that make one: inputs x, scores and, where
    lanes are left out, kept; numbers: the lanes that belong together. leaving: values that are read
    after these nodes."""
    made = {node.out.name: node for node in nodes if isinstance(node, FlowNode)}
    uses = Counter(value.name for node in nodes for value in _read(node))
    uses.update(value.name for value in leaving)
    found: dict[str, FlowNode] = {}
    dropped: set[str] = set()
    for name, node in made.items():
        matched = _Match(made).softmax(node)
        if matched is None:
            continue
        softmax, inner = matched
        inside = Counter(value.name for part in inner for value in made[part].inputs)
        inside.update(value.name for value in node.inputs)
        if all(uses[part] == inside[part] for part in inner):
            found[name] = softmax
            dropped |= inner
    return tuple(
        replace(node, body=named(node.body, _leaving(node)))
        if isinstance(node, Turns)
        else found.get(node.out.name, node)
        for node in nodes
        if isinstance(node, Turns) or node.out.name not in dropped
    )


def _read(node: FlowNode | Turns) -> Sequence[FlowValue]:
    """All values that a node refers to but those it makes."""
    if isinstance(node, FlowNode):
        return node.inputs
    parts = [value for part in node.body for value in _read(part)]
    outer = [*(c.initial for c in node.carried), *(out for _, out in node.slices)]
    return [*outer, *_leaving(node), *parts]


def _leaving(turns: Turns) -> list[FlowValue]:
    """Values of the body that a turn hands on."""
    inner = [value for value, _ in (*turns.collected, *turns.escaped)]
    return [*(c.next for c in turns.carried), *inner]


class _Match:
    """One attempt. inner: names of the values that only the softmax needs."""

    def __init__(self, made: dict[str, FlowNode]) -> None:
        self.made, self.inner = made, set[str]()

    def softmax(self, node: FlowNode) -> tuple[FlowNode, set[str]] | None:
        """The node that stands for a product and all before it, and the values it replaces."""
        for powers, inverse in (node.inputs, node.inputs[::-1]) if _means(node, A * B) else ():
            self.inner = set()
            total = self.before(self.before(inverse, look_up(RECIPROCAL, A)), TOTAL)
            summed = None if total is None else total.inputs[0]
            centred = self.before(powers, look_up(EXPONENTIAL, A))
            if summed is None or centred is None or total is None:
                continue
            kept = self.factor(summed, powers)
            difference: FlowValue | None = centred.inputs[0]
            if kept is not None:
                product = self.before(centred, A * B)
                difference = None if product is None else _other(product, kept)
            elif summed != powers:
                continue
            x, most = self.terms(difference)
            largest = self.before(most, LARGEST)
            if x is None or largest is None or largest.numbers != total.numbers:
                continue
            inputs = (x, largest.inputs[0], *([kept] if kept else []))
            made = replace(node, op=SOFTMAX, inputs=inputs, numbers=total.numbers)
            return made, self.inner
        return None

    def terms(self, value: FlowValue | None) -> tuple[FlowValue | None, FlowValue | None]:
        """(x, y) of the value x - y."""
        for meaning, order in ((A - B, slice(None)), (B - A, slice(None, None, -1))):
            node = self.before(value, meaning)
            if node is not None:
                x, other = node.inputs[order]
                return x, other
        return None, None

    def factor(self, value: FlowValue, other: FlowValue) -> FlowValue | None:
        """The other factor of a value that is a product with `other`."""
        if value == other:
            return None
        product = self.before(value, A * B)
        return None if product is None else _other(product, other)

    def before(self, after: FlowNode | FlowValue | None, meaning: Meaning) -> FlowNode | None:
        """The node of this meaning that makes a value, or the first input of a node."""
        value = after.inputs[0] if isinstance(after, FlowNode) else after
        node = None if value is None else self.made.get(value.name)
        if value is None or node is None or not _means(node, meaning):
            return None
        self.inner.add(value.name)
        return node


def _means(node: FlowNode, meaning: Meaning) -> bool:
    return (POINTWISE.get(node.op) or REDUCTIONS.get(node.op)) == meaning


def _other(product: FlowNode, factor: FlowValue) -> FlowValue | None:
    """The factor beside this one."""
    a, b = product.inputs
    return b if a == factor else a if b == factor else None
