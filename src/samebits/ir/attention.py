"""Causal attention in small operators, and the rings of keys and values that steps of it need.

    scores = queries [.., T, d] * keys [.., d, T]       MatMul
    scores, later steps left out                        a constant mask (`ir.masks`)
    shares = Softmax(scores)
    result = shares [.., T, T] * values [.., T, d]      MatMul

Between them stand only what acts on every score alike and data movement that keeps both axes of
time. In a step graph the queries have one step; keys and values are those of the last T steps, in
rings. docs/spec/graph.md section 1.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum, auto
from typing import Any

import numpy as np

from samebits.errors import UnsupportedError
from samebits.ir.graph import Graph, GraphBuilder, Node
from samebits.ir.masks import masks_of
from samebits.ir.ops import has
from samebits.ir.traits import Trait

LEFT_OUT = np.array(-np.inf, np.float32)
Shape = tuple[int, ...]


class Role(Enum):
    """Which part of attention a node is."""

    KEYS = auto()  # the product of queries and keys, whose second operand has time along its last
    MASK = auto()  # leaves out later steps
    VALUES = auto()  # the product of shares and values


def attention_roles(graph: Graph) -> dict[str, Role]:
    """The roles of nodes by name, of every causal attention in the graph.

    Raises UnsupportedError for attention over steps that cannot be computed step by step.
    """
    search = _Search(graph)
    found: dict[str, Role] = {}
    for node in graph.nodes:
        if node.op == "Softmax" and (product := search.product_before(node.inputs[0])):
            try:
                found.update(search.roles(node, product))
            except UnsupportedError as error:
                raise UnsupportedError(f"node {node.name!r} (Softmax): {error}") from None
    return found


class _Search:
    """variable: values that depend on the inputs."""

    def __init__(self, graph: Graph) -> None:
        self.graph, self.masks = graph, masks_of(graph, {})
        self.producers, self.readers = graph.producers(), graph.consumers()
        self.variable = set(graph.inputs)
        for node in graph.nodes:
            if self.variable.intersection(node.inputs):
                self.variable.update(node.outputs)

    def product_before(self, name: str) -> Node | None:
        """The product of two variables that a value is computed from, score by score."""
        node = self.producers.get(name)
        while node is not None:
            variables = [n for n in node.inputs if n in self.variable]
            if node.op == "MatMul":
                return node if len(variables) == 2 else None
            alike = has(node.op, Trait.POINTWISE, Trait.QUANTIZES, Trait.RESHAPES)
            if len(variables) != 1 or not (alike or node.op == "Transpose"):
                return None
            node = self.producers.get(variables[0])
        return None

    def roles(self, softmax: Node, product: Node) -> dict[str, Role]:
        """Those of the nodes around a Softmax."""
        values, masked = self.graph.values, softmax.inputs[0]
        shape = values[masked].shape
        mask = self.masks.get(masked)
        if softmax.attributes["axis"] % len(shape) != len(shape) - 1:
            raise UnsupportedError("expected scores of the keys along the last axis, found another")
        causal = np.tri(shape[-2], shape[-1], dtype=bool)
        if mask is None or mask.kept is None:
            raise UnsupportedError(
                "expected attention that leaves out later steps by a constant mask, found none: "
                "a step cannot wait for the end of the sequence"
            )
        if shape[-2] != shape[-1] or not (np.broadcast_to(mask.kept, shape) == causal).all():
            raise UnsupportedError(
                "expected a mask that leaves out all later steps and nothing else, found another"
            )
        self.check_scores(mask.scores, product)
        chosen = self.producers[masked]
        return {
            product.name: Role.KEYS,
            chosen.name: Role.MASK,
            self.product_after(softmax.output).name: Role.VALUES,
        }

    def check_scores(self, name: str, product: Node) -> None:
        """Every score is computed from one product, in the same way, and read once."""
        values = self.graph.values
        times = values[name].shape[-2:]
        while name != product.output:
            self.check_alone(name, "scores")
            node = self.producers[name]
            (source,) = (n for n in node.inputs if n in self.variable)
            others = [n for n in node.inputs if n and n != source]
            if has(node.op, Trait.POINTWISE) and any(
                values[n].shape[-1:] not in ((), (1,)) for n in others
            ):
                raise UnsupportedError(
                    f"expected the same for the scores of all keys, found numbers of their own in "
                    f"{node.name!r} ({node.op}), as of relative positions"
                )
            self.check_axes(node, source, times)
            name = source
        self.check_alone(name, "scores")

    def product_after(self, name: str) -> Node:
        """The product of shares and values, which alone reads the shares."""
        times = self.graph.values[name].shape[-2:]
        while True:
            self.check_alone(name, "shares")
            (node,) = self.readers[name]
            if node.op == "MatMul" and node.inputs[0] == name:
                return node
            if not has(node.op, Trait.QUANTIZES, Trait.RESHAPES) and node.op != "Transpose":
                raise UnsupportedError(
                    f"expected the shares times values, found {node.name!r} ({node.op})"
                )
            self.check_axes(node, name, times)
            name = node.output

    def check_alone(self, name: str, what: str) -> None:
        if len(self.readers[name]) != 1 or name in self.graph.outputs:
            raise UnsupportedError(f"expected {what} that attention alone reads, found {name!r}")

    def check_axes(self, node: Node, source: str, times: Shape) -> None:
        """The axes of time stay the last two."""
        perm = node.attributes.get("perm", ())
        shape, out = (self.graph.values[n].shape for n in (source, node.output))
        kept = shape[-2:] == out[-2:] == times and len(shape) >= 2
        if not kept or (perm and perm[-2:] != (len(perm) - 2, len(perm) - 1)):
            raise UnsupportedError(
                f"expected scores and shares whose last axes are those of time, found "
                f"{node.name!r} ({node.op})"
            )


class Rings:
    """The keys and values of the last `length` steps in a step graph in the making.

    The place of a step is its number modulo length. `position`, a state, is the place of this
    step; `held`, another, is 1 at places that hold a step.

    following: what the states become, in their order
    """

    def __init__(self, builder: GraphBuilder, length: int, fresh: Callable[[str], str]) -> None:
        """fresh: a name that is not taken, from a hint."""
        self.builder, self.fresh = builder, fresh
        self.position = builder.state(fresh("position"), "int64", (1,))
        held = builder.state(fresh("held"), "int32", (1, length))
        after = builder.constant(fresh("after"), np.roll(np.arange(length), -1))
        one = builder.constant(fresh("one"), np.ones((1, 1), np.int32))
        following = self.add("Gather", [after, self.position], {"axis": 0}, "position.after")
        held = self.written(held, one, 1, "held.after")
        self.following = [following, held]
        self.stays = self.add("Cast", [held], {"to": "bool"}, "held.steps")
        self.left_out = builder.constant(fresh("left_out"), LEFT_OUT)

    def add(self, op: str, inputs: Sequence[str], attributes: dict[str, Any], hint: str) -> str:
        """A node; the name of its output."""
        name = self.fresh(f"{hint}.node")
        return self.builder.add(op, inputs, attributes, name, [self.fresh(hint)])

    def written(self, past: str, update: str, axis: int, hint: str) -> str:
        """A ring with this step."""
        attributes = {"axis": axis, "mode": "circular"}
        return self.add("TensorScatter", [past, update, self.position], attributes, hint)

    def of_this_step(self, value: str, axis: int) -> str:
        """The part of a value, along an axis of `length`, that belongs to the place of the step."""
        return self.add("Gather", [value, self.position], {"axis": axis}, f"{value}.step")

    def last(self, value: str, shape: Shape, axis: int, codes: Sequence[str], hint: str) -> str:
        """The last steps of a value of one step.

        shape: that of all. codes: constants of a scale and a zero point where the value has codes,
        which the state then has too. An axis of one sample comes before where there is none.
        """
        builder, ahead = self.builder, shape[:1] != (1,) or axis == 0
        whole = (1, *shape) if ahead else shape
        past = builder.state(self.fresh(hint), builder.values[value].dtype, whole)
        for op in ("QuantizeLinear", "DequantizeLinear") if codes else ():
            past = self.add(op, [past, *codes], {}, f"{hint}.{op[:-6].lower()}")
        if ahead:
            one = {"shape": (1, *builder.values[value].shape)}
            value = self.add("Reshape", [value], one, f"{hint}.step")
        ring = self.written(past, value, axis + ahead, f"{hint}.after")
        self.following.append(ring)
        return self.add("Reshape", [ring], {"shape": shape}, f"{hint}.all") if ahead else ring


def codes_of(graph: Graph, name: str) -> tuple[str, ...]:
    """The constants of the one scale and the zero point of the codes that a value stands for, or
    nothing: of the DequantizeLinear that it is moved from."""
    producers = graph.producers()
    node = producers.get(name)
    while node is not None and has(node.op, Trait.MOVEMENT):
        node = producers.get(node.inputs[0])
    if node is None or node.op != "DequantizeLinear" or graph.values[node.inputs[1]].size != 1:
        return ()
    return node.inputs[1:]
