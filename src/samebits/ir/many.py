"""Many samples through a graph at once, with the bits that each has alone.

A value of a sample [*shape] stands in a stack [samples, *shape]. Most operators do the same in
every place of an axis that they do not know: a rule says how a node takes the new first axis, and
one call of numpy does the work of all samples. Operators without a rule compute one sample after
another. Products of binary64 keep the unit that each sample has for itself (docs/spec/graph.md
2.2).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import numpy as np

from samebits.ir.graph import Graph, Node
from samebits.ir.interpreter import carry, evaluate, read_inputs, stored_as
from samebits.ir.ops import Array, ops_with
from samebits.ir.real.define import SAMPLES
from samebits.ir.real.functions import total
from samebits.ir.real.linear import product
from samebits.ir.reuse import Reuse
from samebits.ir.traits import Trait
from samebits.ir.value import Value

ELEMENTS = 1 << 22  # that all values of a block of samples hold, about


@dataclass(frozen=True)
class Stack:
    """The same value of many samples: [samples, *shape]."""

    arrays: Array


Live = Stack | Array  # a Stack, or what all samples share
NOTHING: Mapping[str, Live] = MappingProxyType({})


@dataclass(frozen=True)
class StackedNode:
    """A node with operands of which some are stacks of `count` samples."""

    node: Node
    operands: Sequence[Live | None]
    types: Mapping[str, Value]
    count: int

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the first output of one sample."""
        return self.types[self.node.output].shape

    def shape_of(self, place: int) -> tuple[int, ...]:
        """The shape of an operand of one sample."""
        return self.types[self.node.inputs[place]].shape

    def stacked(self, place: int) -> bool:
        """Whether an operand differs between the samples."""
        return place < len(self.operands) and isinstance(self.operands[place], Stack)

    @property
    def first_alone(self) -> bool:
        """Whether the first operand alone differs between the samples."""
        return [i for i in range(len(self.operands)) if self.stacked(i)] == [0]

    def padded(self, rank: int) -> list[Array | None]:
        """Operands whose last axes broadcast: stacks of fewer axes than `rank` get axes of size 1
        behind the first."""
        found: list[Array | None] = []
        for operand in self.operands:
            if isinstance(operand, Stack):
                x = operand.arrays
                found.append(x.reshape(len(x), *[1] * (rank + 1 - x.ndim), *x.shape[1:]))
            else:
                found.append(operand)
        return found

    def spread(self) -> list[Array | None]:
        """Every operand as a stack."""
        return [
            operand.arrays
            if isinstance(operand, Stack)
            else None
            if operand is None
            else np.broadcast_to(operand, (self.count, *operand.shape))
            for operand in self.operands
        ]

    def changed(self, **attributes: Any) -> Node:
        """The node with other attributes."""
        return replace(self.node, attributes={**self.node.attributes, **attributes})

    def of(self, node: Node, arrays: Sequence[Array | None]) -> list[Array]:
        """The outputs of a node for all samples, in the shapes that stacks have."""
        return evaluate(node, arrays, self.types, (self.count,))


Rule = Callable[[StackedNode], list[Array] | None]


# --- rules --------------------------------------------------------------------------------------


def _pointwise(call: StackedNode) -> list[Array]:
    return call.of(call.node, call.padded(len(call.shape)))


def _reshape(call: StackedNode) -> list[Array]:
    (x,) = call.spread()
    assert x is not None
    return [x.reshape(call.count, *call.shape)]


def _along(call: StackedNode) -> list[Array] | None:
    """Work along an axis, or several, of the first operand; the others, if any, are shared."""
    if not call.first_alone or call.node.attributes.get("block_size"):
        return None
    return call.of(_shifted(call), call.padded(0))


def _shifted(call: StackedNode) -> Node:
    """The node with its axes counted behind the first."""
    a = call.node.attributes
    one = {"axis": _behind(a["axis"])} if "axis" in a else {}
    return call.changed(**one, **({"axes": tuple(map(_behind, a["axes"]))} if "axes" in a else {}))


def _behind(axis: int) -> int:
    return axis + 1 if axis >= 0 else axis


def _concat(call: StackedNode) -> list[Array]:
    return call.of(_shifted(call), call.spread())


def _transpose(call: StackedNode) -> list[Array]:
    perm = (0, *(axis + 1 for axis in call.node.attributes["perm"]))
    return call.of(call.changed(perm=perm), call.spread())


def _pad(call: StackedNode) -> list[Array]:
    pads = call.node.attributes["pads"]
    half = len(pads) // 2
    return call.of(call.changed(pads=(0, *pads[:half], 0, *pads[half:])), call.spread())


def _pad_codes(call: StackedNode) -> list[Array]:
    a = call.node.attributes
    node = call.changed(before=(0, *a["before"]), after=(0, *a["after"]))
    return call.of(node, call.spread())


def _slice_codes(call: StackedNode) -> list[Array]:
    a = call.node.attributes
    ends = {"starts": (0, *a["starts"]), "stops": (call.count, *a["stops"])}
    return call.of(call.changed(**ends, steps=(1, *a["steps"])), call.spread())


def _expand(call: StackedNode) -> list[Array]:
    rank = max(len(call.shape), len(call.shape_of(0)))
    return call.of(call.changed(shape=(call.count, *call.shape)), call.padded(rank))


def _gather(call: StackedNode) -> list[Array] | None:
    """Places of every sample by shared indices, or shared rows by the indices of every sample."""
    axis = call.node.attributes["axis"] % len(call.shape_of(0))
    if call.first_alone:
        return call.of(call.changed(axis=axis + 1), call.padded(0))
    if not call.stacked(0) and axis == 0:
        return call.of(call.node, call.padded(0))
    return None


def _batch(call: StackedNode) -> list[Array] | None:
    """Images of all samples as one batch."""
    if not call.first_alone:
        return None
    x, *others = call.padded(0)
    assert x is not None
    value = call.types[call.node.output]
    rows = replace(value, shape=(call.count * value.shape[0], *value.shape[1:]), quantization=None)
    arrays = [x.reshape(-1, *x.shape[2:]), *others]
    node = call.changed(**{SAMPLES: call.count})
    (made,) = evaluate(node, arrays, {value.name: rows})
    return [made.reshape(call.count, *value.shape)]


def _matmul(call: StackedNode) -> list[Array] | None:
    """Rows of every sample times a shared matrix."""
    if not call.first_alone or len(call.shape_of(1)) != 2 or len(call.shape_of(0)) < 2:
        return None
    found = _rows(call, call.operands[1])
    return None if found is None else [found]


def _gemm(call: StackedNode) -> list[Array] | None:
    """As a MatMul, with a shared bias; its factors, if any, one sample after another."""
    a, weights = call.node.attributes, call.operands[1]
    plain = a["alpha"] == a["beta"] == 1 and not a["transA"]
    if not plain or not call.first_alone or isinstance(weights, Stack) or weights is None:
        return None
    found = _rows(call, weights.T if a["transB"] else weights)
    bias = call.operands[2] if len(call.operands) > 2 else None
    if found is None or isinstance(bias, Stack):
        return None
    return [found if bias is None else found + bias]


def _rows(call: StackedNode, weights: Live | None) -> Array | None:
    """[samples, ..., outputs] of [samples, ..., terms] times [terms, outputs], binary64."""
    x = call.operands[0]
    assert isinstance(x, Stack)
    if not isinstance(weights, np.ndarray) or x.arrays.dtype != np.float64:
        return None
    if weights.dtype != np.float64 or not np.isfinite(x.arrays).all():
        return None
    if call.shape_of(0)[:-1] != (1,):
        return product(x.arrays, weights, call.count)
    # One row of each sample: its products are rounded and added as `linear.product` does.
    rows = x.arrays.reshape(call.count, -1).T
    found = np.empty((call.count, weights.shape[1]))
    step = max(1, ELEMENTS // max(1, weights.size))
    for first in range(0, call.count, step):
        part = rows[:, first : first + step]
        found[first : first + step] = total(part[:, :, None] * weights[:, None, :], (0,))[0]
    return found.reshape(call.count, *call.shape)


def _linear_codes(call: StackedNode) -> list[Array] | None:
    return call.of(call.node, call.padded(0)) if call.first_alone else None


def _matmul_codes(call: StackedNode) -> list[Array]:
    return call.of(call.node, call.padded(max(len(call.shape_of(0)), len(call.shape_of(1)))))


def _normalize_codes(call: StackedNode) -> list[Array] | None:
    if not call.first_alone:
        return None
    return call.of(call.changed(batch=call.node.attributes["batch"] + 1), call.padded(0))


RULES: dict[str, Rule] = {
    **dict.fromkeys(ops_with(Trait.ALONG, Trait.REDUCES, Trait.DECISION, Trait.SCORING), _along),
    **dict.fromkeys(ops_with(Trait.REDUCES, Trait.DECISION, integer=True), _along),
    **dict.fromkeys(ops_with(Trait.SPATIAL) | ops_with(Trait.SPATIAL, integer=True), _batch),
    **dict.fromkeys(
        ops_with(Trait.POINTWISE) | ops_with(Trait.POINTWISE, integer=True), _pointwise
    ),
    **dict.fromkeys(ops_with(Trait.RESHAPES), _reshape),
    "BatchNormalization": _batch,
    "Concat": _concat,
    "Expand": _expand,
    "Gather": _gather,
    "Gemm": _gemm,
    "GroupNormalization": _batch,
    "InstanceNormalization": _batch,
    "MatMul": _matmul,
    "Pad": _pad,
    "Slice": _along,
    "Transpose": _transpose,
    "concat": _concat,
    "expand": _expand,
    "gather": _gather,
    "linear": _linear_codes,
    "log_softmax": _linear_codes,
    "matmul": _matmul_codes,
    "normalize": _normalize_codes,
    "pad": _pad_codes,
    "reshape": _reshape,
    "slice": _slice_codes,
    "top_k": _along,
    "transpose": _transpose,
}


# --- graphs -------------------------------------------------------------------------------------


def evaluate_many(
    node: Node, operands: Sequence[Live | None], types: Mapping[str, Value], count: int
) -> list[Live]:
    """The outputs of one node for `count` samples: stacks, unless no operand is one."""
    if not any(isinstance(operand, Stack) for operand in operands):
        return list(evaluate(node, [_shared(operand) for operand in operands], types))
    call = StackedNode(node, operands, types, count)
    rule = RULES.get(node.op)
    made = rule(call) if rule is not None and count > 1 else None
    if made is None:
        made = [np.stack(column) for column in zip(*_one_by_one(call), strict=True)]
    return [Stack(array) for array in made]


def _shared(operand: Live | None) -> Array | None:
    assert not isinstance(operand, Stack)
    return operand


def _one_by_one(call: StackedNode) -> Iterator[list[Array]]:
    for index in range(call.count):
        arrays = [each.arrays[index] if isinstance(each, Stack) else each for each in call.operands]
        yield evaluate(call.node, arrays, call.types)


def compute(
    graph: Graph,
    nodes: Iterable[Node],
    live: dict[str, Live],
    count: int,
    known: Mapping[str, Live] = NOTHING,
) -> Iterator[Node]:
    """The results of nodes for `count` samples, into `live`, node by node as they are asked for.

    known: results that need not be computed
    """
    for node in nodes:
        made = [known[name] for name in node.outputs if name in known]
        if len(made) < len(node.outputs):
            operands = [read(graph, live, name) for name in node.inputs]
            made = evaluate_many(node, operands, graph.values, count)
        live.update(zip(node.outputs, made, strict=False))
        yield node


def trace_many(graph: Graph, samples: Sequence[Sequence[Any]]) -> dict[str, Array]:
    """Every value but the constants, by name: [samples, *shape], of its declared type.

    Each is what `interpreter.trace` gives for a sample alone.
    """
    live = stacked_inputs(graph, samples)
    for _ in compute(graph, graph.nodes, live, len(samples)):
        pass
    return {
        name: declared(found, graph.values[name], len(samples))
        for name, found in live.items()
        if name and name not in graph.constants
    }


def traces(graph: Graph, samples: Iterable[Sequence[Any]]) -> Iterator[dict[str, Array]]:
    """For each sample what `interpreter.trace` gives, computed in blocks."""
    for block in blocks(graph, samples):
        values = trace_many(graph, block)
        for place in range(len(block)):
            yield {name: array[place] for name, array in values.items()}


def run_many(
    graph: Graph, samples: Sequence[Sequence[Any]], reuse: Reuse[Live] | None = None
) -> list[Array]:
    """The outputs of a graph, in order: [samples, *shape] each, as `interpreter.run` gives them.

    reuse: of a graph that has run on the same samples
    """
    found: list[list[Array]] = [[] for _ in graph.outputs]
    cut = blocks(graph if reuse is None else reuse.graph, samples)
    for index, block in enumerate(cut):
        known = NOTHING if reuse is None else reuse.of(graph, index)
        made, live = _run_block(graph, block, known, reuse is not None and graph is reuse.graph)
        if reuse is not None:
            reuse.keep(graph, index, live, len(block))
        for listed, array in zip(found, made, strict=True):
            listed.append(array)
    return [np.concatenate(parts) for parts in found]


def _run_block(
    graph: Graph, samples: Sequence[Sequence[Any]], known: Mapping[str, Live], whole: bool
) -> tuple[list[Array], dict[str, Live]]:
    """The outputs for samples that fit into memory, and all values if `whole`; else they are
    dropped behind their last reader."""
    last = {} if whole else {name: node.name for node in graph.nodes for name in node.inputs}
    kept = {*graph.outputs}
    live, count = stacked_inputs(graph, samples), len(samples)
    for node in compute(graph, graph.nodes, live, count, known):
        for name in () if whole else {*node.inputs, *node.outputs} - kept:
            if last.get(name, node.name) == node.name:
                live.pop(name, None)
    outputs = [read(graph, live, name) for name in graph.outputs]
    made = [
        declared(found, graph.values[name], count)
        for name, found in zip(graph.outputs, outputs, strict=True)
        if found is not None
    ]
    return made, live


def blocks(graph: Graph, samples: Iterable[Any], every: int | None = None) -> Iterator[list[Any]]:
    """The samples in pieces of which all values of the graph fit into memory.

    every: a piece ends after each so many samples
    """
    size = block_size(graph)
    block: list[Any] = []
    for count, sample in enumerate(samples, start=1):
        block.append(sample)
        if len(block) == size or (every and count % every == 0):
            yield block
            block = []
    if block:
        yield block


def block_size(graph: Graph) -> int:
    """The number of samples of which all values together have about ELEMENTS elements."""
    values = (v.size for name, v in graph.values.items() if name not in graph.constants)
    return max(1, ELEMENTS // max(1, sum(values)))


def stacked_inputs(graph: Graph, samples: Sequence[Sequence[Any]]) -> dict[str, Live]:
    """The inputs of all samples, checked as the interpreter checks those of one."""
    read_in = [read_inputs(graph, graph.inputs, sample) for sample in samples]
    return {name: Stack(np.stack([each[name] for each in read_in])) for name in graph.inputs}


def read(graph: Graph, live: Mapping[str, Live], name: str) -> Live | None:
    """A value, or a constant as operators take it; None for one that is left out."""
    if not name:
        return None
    if name in live:
        return live[name]
    return carry(graph.constants[name], graph.values[name].dtype, False, name)


def declared(found: Live, value: Value, count: int) -> Array:
    """A stack of the declared type, also of what all samples share."""
    if isinstance(found, Stack):
        return stored_as(found.arrays, value)
    return np.broadcast_to(stored_as(found, value), (count, *value.shape))
