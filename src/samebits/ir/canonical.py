"""Operators that have no integer form, as operators that have one: the same function of reals.

A file may say with one operator what takes several roundings (a norm, a logarithm of a sum), or
with several what integers need none of (a guard against NaN). `canonicalize` is for float graphs,
which get a quantizer behind every operator; `without_guards` is for quantized ones too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import prod, sqrt

import numpy as np

from samebits.ir.fusion import fuse_normalisation
from samebits.ir.graph import Graph, Node
from samebits.ir.ops import op_named
from samebits.ir.real.define import FLOATS
from samebits.ir.real.indexing import einsum_terms
from samebits.ir.rewrite import Edit, rewrite

Shape = tuple[int, ...]

TINY = 1e-6  # a norm that networks keep quotients from
LINEAR_FROM = 10.0  # beyond it Softplus(x) is x within 2**-14


def canonicalize(graph: Graph) -> Graph:
    """The graph in operators with an integer form, as far as they are known here."""
    return rewrite(rewrite(without_guards(graph), _expanded), _cut)


def without_guards(graph: Graph) -> Graph:
    """Normalisations as one operator, and no choice by whether a share or a code is NaN."""
    return rewrite(fuse_normalisation(graph), _unguarded)


def _unguarded(edit: Edit, node: Node) -> list[Node] | None:
    """Where(IsNaN(x), y, x) as x, a Softmax's or a code's number: integers have no NaN, and a row
    of scores that are all left out has shares of 0.

    PyTorch's attention with a mask writes that.
    """
    made = edit.producers.get(node.inputs[0]) if node.op == "Where" else None
    if made is None or made.op != "IsNaN" or made.inputs[0] != node.inputs[2]:
        return None
    source = edit.producers.get(made.inputs[0])
    same = edit.values[node.inputs[2]].shape == edit.values[node.output].shape
    if source is None or source.op not in ("Softmax", "DequantizeLinear") or not same:
        return None
    return [edit.node("Identity", [node.inputs[2]], node.output)]


def _unit_length(edit: Edit, node: Node) -> list[Node] | None:
    """x / max(ReduceL2(x), tiny) along the last axes as RMSNormalization of factor 1 / sqrt(n)."""
    x, name = node.inputs
    made = edit.producers.get(name)
    while made is not None and (rule := _KEEPING.get(made.op)) is not None:
        source = rule(edit, made)
        made = None if source is None else edit.producers.get(source)
    if made is None or made.op != "ReduceL2" or made.inputs[0] != x:
        return None
    shape = edit.values[x].shape
    axes = sorted(axis % len(shape) for axis in made.attributes["axes"])
    last = list(range(len(shape) - len(axes), len(shape)))
    if not axes or axes != last or not made.attributes["keepdims"]:
        return None
    own = shape[axes[0] :]
    factor = np.full(own, 1 / sqrt(prod(own)), edit.values[x].dtype)
    inputs = [x, edit.constant("scale", factor)]
    return [edit.node("RMSNormalization", inputs, node.output, axis=axes[0], epsilon=0.0)]


def _behind_clip(edit: Edit, node: Node) -> str | None:
    ends = node.attributes["min"], node.attributes["max"]
    least, most = (None if end is None or np.isinf(end) else end for end in ends)
    return node.inputs[0] if most is None and (least is None or least <= TINY) else None


def _behind_constant(edit: Edit, node: Node) -> str | None:
    for position in (0, 1):
        number = edit.number(node.inputs[position])
        if number is not None and (np.abs(number) <= TINY).all():
            return node.inputs[1 - position]
    return None


# The value behind a node that keeps a norm as it is but where it is about 0; None: it does not.
_KEEPING: dict[str, Callable[[Edit, Node], str | None]] = {
    "Clip": _behind_clip,
    "Max": _behind_constant,
    "Add": _behind_constant,
    "Expand": lambda edit, node: node.inputs[0],
}


def _expanded(edit: Edit, node: Node) -> list[Node] | None:
    rule = _RULES.get(node.op)
    return None if rule is None else rule(edit, node)


class _Chain:
    """Nodes in a row that take the place of one."""

    def __init__(self, edit: Edit, node: Node) -> None:
        self.edit, self.node = edit, node
        self.nodes: list[Node] = []

    def add(self, op: str, inputs: Sequence[str], **attributes: object) -> str:
        """Append a node; the name of its result."""
        values, record = self.edit.values, op_named(op)
        filled = record.complete(attributes, self.node.name)
        dtype, shape = record.infer([values[name] for name in inputs], filled)[0]
        like = replace(values[self.node.output], dtype=dtype, shape=shape)
        name = self.edit.value(f"{self.node.name}.{op}", like)
        self.nodes.append(self.edit.node(op, inputs, name, **filled))
        return name

    def ending(self) -> list[Node]:
        """The nodes, of which the last writes what the one replaced wrote."""
        last = self.nodes[-1]
        self.nodes[-1] = replace(last, outputs=(self.node.output,))
        return self.nodes


# --- reductions -------------------------------------------------------------------------------


def _norm(before: str, after: str) -> Callable[[Edit, Node], list[Node] | None]:
    """after(ReduceSum(before(x))) of real numbers; before: "Mul" for squares, "" for nothing."""

    def rule(edit: Edit, node: Node) -> list[Node] | None:
        chain, x = _Chain(edit, node), node.inputs[0]
        if edit.values[x].dtype not in FLOATS:
            return None
        if before:
            x = chain.add(before, [x, x] if before == "Mul" else [x])
        total = chain.add("ReduceSum", [x], **node.attributes)
        if after:
            chain.add(after, [total])
        return chain.ending()

    return rule


def _log_sum_exp(edit: Edit, node: Node) -> list[Node] | None:
    """m + log(sum(exp(x - m))), m the largest: powers of at most 1, a sum of at least 1."""
    chain, x = _Chain(edit, node), node.inputs[0]
    if edit.values[x].dtype not in FLOATS:
        return None
    kept = {**node.attributes, "keepdims": 1}
    most = chain.add("ReduceMax", [x], **kept)
    powers = chain.add("Exp", [chain.add("Sub", [x, most])])
    level = chain.add("Log", [chain.add("ReduceSum", [powers], **kept)])
    chain.add("Reshape", [chain.add("Add", [most, level])], shape=edit.values[node.output].shape)
    return chain.ending()


# --- point-wise -------------------------------------------------------------------------------


def _unchanged(neutral: int) -> Callable[[Edit, Node], list[Node] | None]:
    """x with a constant that changes nothing, as x + 0."""

    def rule(edit: Edit, node: Node) -> list[Node] | None:
        whole = edit.values[node.output]
        for place, name in enumerate(node.inputs):
            number, other = edit.constants.get(name), node.inputs[1 - place]
            alone = place == 1 or node.op in ("Add", "Mul")
            if number is None or not alone or other in edit.constants:
                continue
            if edit.values[other].shape == whole.shape and np.all(number == neutral):
                return [edit.node("Identity", [other], node.output)]
        return None

    return rule


_without_factor = _unchanged(1)


def _quotient(edit: Edit, node: Node) -> list[Node] | None:
    """a / b of two computed tensors as a * (1 / b), but where b is the norm of a."""
    if (found := _unit_length(edit, node) or _without_factor(edit, node)) is not None:
        return found
    if any(name in edit.constants for name in node.inputs):
        return None
    chain, (a, b) = _Chain(edit, node), node.inputs
    if edit.values[b].dtype not in FLOATS:
        return None
    chain.add("Mul", [a, chain.add("Reciprocal", [b])])
    return chain.ending()


def _softplus(edit: Edit, node: Node) -> list[Node] | None:
    """Where(x > c, x, Softplus(x)) as Softplus(x), as torch's exporter writes it."""
    test = edit.producers.get(node.inputs[0])
    soft = edit.producers.get(node.inputs[2])
    if test is None or soft is None or test.op != "Greater" or soft.op != "Softplus":
        return None
    x, limit = test.inputs[0], edit.number(test.inputs[1])
    if limit is None or limit.size != 1 or float(limit.flat[0]) < LINEAR_FROM:
        return None
    if node.inputs[1] != x or soft.inputs[0] != x:
        return None
    return [edit.node("Identity", [node.inputs[2]], node.output)]


# --- selections -------------------------------------------------------------------------------


def _gather_nd(edit: Edit, node: Node) -> list[Node] | None:
    """GatherND by constant places as Gather from the leading axes, which become one."""
    data, indices = node.inputs
    places, shape = edit.constants.get(indices), edit.values[data].shape
    if places is None or node.attributes["batch_dims"] or data in edit.constants:
        return None
    lead, rest = shape[: places.shape[-1]], shape[places.shape[-1] :]
    if any((np.abs(2 * places[..., i] + 1) > 2 * n).any() for i, n in enumerate(lead)):
        return None  # outside: the operator itself says so
    steps = [prod(lead[i + 1 :]) for i in range(len(lead))]
    numbers = (places % np.array(lead, np.int64) * np.array(steps, np.int64)).sum(-1)
    chain = _Chain(edit, node)
    flat = chain.add("Reshape", [data], shape=(prod(lead), *rest))
    chain.add("Gather", [flat, edit.constant("places", numbers.astype(np.int64))], axis=0)
    return chain.ending()


def _joined(edit: Edit, node: Node) -> list[Node] | None:
    """Concat without parts that have no elements, as RotaryEmbedding of whole heads has one."""
    parts = [name for name in node.inputs if prod(edit.values[name].shape)]
    if not parts or len(parts) == len(node.inputs):
        return None
    if len(parts) == 1:
        return [edit.node("Identity", parts, node.output)]
    return [replace(node, inputs=tuple(parts))]


def _cut(edit: Edit, node: Node) -> list[Node] | None:
    """Split without parts that have no elements and no reader."""
    if node.op != "Split":
        return None
    pairs = zip(node.outputs, node.attributes["sizes"], strict=True)
    kept = [(name, size) for name, size in pairs if size or edit.uses[name]]
    if not kept or len(kept) == len(node.outputs):
        return None
    if len(kept) == 1:
        return [edit.node("Identity", node.inputs, kept[0][0])]
    outputs, sizes = zip(*kept, strict=True)
    return [replace(node, outputs=outputs, attributes={**node.attributes, "sizes": sizes})]


# --- Einsum -----------------------------------------------------------------------------------


def _einsum(edit: Edit, node: Node) -> list[Node] | None:
    """One or two operands without repeated indices: sums, a matrix product, and movements."""
    shapes = [edit.values[name].shape for name in node.inputs]
    if len(node.inputs) > 2:
        return None
    terms, output = einsum_terms(str(node.attributes["equation"]), [len(s) for s in shapes])
    operands, chain = [list(term) for term in terms], _Chain(edit, node)
    axes = [
        pair
        for term, shape in zip(operands, shapes, strict=True)
        for pair in zip(term, shape, strict=True)
    ]
    sizes = dict(axes)
    if any(len(set(term)) < len(term) for term in terms):
        return None
    if any(sizes[index] != size for index, size in axes):  # an axis of 1 that is repeated
        return None
    names = list(node.inputs)
    for k, term in enumerate(operands):  # what one operand alone has, and the result has not
        others = set(output).union(*operands[:k], *operands[k + 1 :])
        lost = [axis for axis, i in enumerate(term) if i not in others]
        if lost:
            operands[k] = [i for i in term if i in others]
            names[k] = chain.add("ReduceSum", [names[k]], axes=tuple(lost), keepdims=0)
    if len(names) == 1:
        _arranged(chain, names[0], operands[0], output, sizes)
        if not chain.nodes:
            return [edit.node("Identity", node.inputs, node.output)]
        return chain.ending()
    a, b = operands
    both = [i for i in a if i in b]
    batch, summed = [i for i in both if i in output], [i for i in both if i not in output]
    left, right = [i for i in a if i not in b], [i for i in b if i not in a]
    lead = tuple(sizes[i] for i in batch)
    rows, columns, depth = (prod(sizes[i] for i in group) for group in (left, right, summed))
    first = _arranged(chain, names[0], a, [*batch, *left, *summed], sizes, (*lead, rows, depth))
    second = _arranged(
        chain, names[1], b, [*batch, *summed, *right], sizes, (*lead, depth, columns)
    )
    made = [*batch, *left, *right]
    shape = tuple(sizes[i] for i in made)
    product = chain.add("Reshape", [chain.add("MatMul", [first, second])], shape=shape)
    _arranged(chain, product, made, output, sizes)
    return chain.ending()


def _arranged(
    chain: _Chain,
    name: str,
    term: Sequence[str],
    wanted: Sequence[str],
    sizes: dict[str, int],
    shape: Shape | None = None,
) -> str:
    """A value with indices `term` in the order `wanted`, then of a shape; a constant stays one."""
    perm = tuple(list(term).index(i) for i in wanted)
    order = tuple(sizes[i] for i in wanted)
    constant = chain.edit.constants.get(name)
    if constant is not None:
        moved = constant.transpose(perm)
        return chain.edit.constant(
            f"{name}.moved", moved if shape is None else moved.reshape(shape)
        )
    if perm != tuple(range(len(perm))):
        name = chain.add("Transpose", [name], perm=perm)
    if shape is not None and shape != order:
        name = chain.add("Reshape", [name], shape=shape)
    return name


_RULES: dict[str, Callable[[Edit, Node], list[Node] | None]] = {
    "Add": _unchanged(0),
    "Sub": _unchanged(0),
    "Mul": _without_factor,
    "Concat": _joined,
    "ReduceL1": _norm("Abs", ""),
    "ReduceL2": _norm("Mul", "Sqrt"),
    "ReduceSumSquare": _norm("Mul", ""),
    "ReduceLogSum": _norm("", "Log"),
    "ReduceLogSumExp": _log_sum_exp,
    "Div": _quotient,
    "GatherND": _gather_nd,
    "Where": _softplus,
    "Einsum": _einsum,
}
