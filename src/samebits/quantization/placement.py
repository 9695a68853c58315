"""Where a float graph is quantized: which values get codes, and which share one scale.

The rules, for the operators of docs/spec/graph.md section 2:

* graph inputs, and outputs of Conv, ConvTranspose, Gemm, MatMul, of sums and products of tensors,
  of pools, means and every operator not named here are quantized. A Relu or Clip that alone reads
  such an accumulator merges: its output is quantized instead. So does the addition of a bias to a
  MatMul.
* A point-wise expression of one quantized tensor is quantized once, where it ends: where something
  else than the same expression reads it.
* A magnitude, `sqrt(a * a + b * b)`, is quantized alone: its squares and their sum have no codes,
  and what is squared shares a scale (`magnitude`).
* Data movement (and Max, Min and Concat of tensors) has the scale of what it moves, a state of a
  step graph that of its next value.
* A value that one MaxPool or ReduceMax alone reads has the range of what that leaves of it: what is
  saturated below is not the greatest.
* What leaves places out of a Softmax (`ir.masks`) has no codes: the scores before it have.
* The sums of decision trees are integers whatever is quantized: a graph output and an ArgMax take
  them as they are, everything else that reads them their codes.
* An input [N, F] that only trees read, and additions and products with a constant for each feature
  (scalers), has a scale for each feature.
* With `exact_sums` the terms of a sum that are products (of matrices, of tensors, of a tensor and a
  constant) or sums themselves, and that nothing else reads, stay exact: the sum alone is quantized.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from samebits.errors import InputError, UnsupportedError
from samebits.ir import Graph, Node, Trait, has
from samebits.ir.graph import moved_inputs
from samebits.ir.masks import flags_of, masks_of
from samebits.ir.real.define import REALS
from samebits.ir.real.quantize import is_stored
from samebits.quantization.magnitude import Magnitude, magnitudes

MERGING = frozenset(("Relu", "Clip"))
GREATEST = frozenset(("MaxPool", "ReduceMax"))


@dataclass(frozen=True)
class Placement:
    """The result of `place`.

    quantized: values that get QuantizeLinear and DequantizeLinear, in the order of the graph
    group:     value or constant with codes -> the name of its group; one scale for each group
    operands:  (node name, position of an input) where a constant is read as codes
    biases:    output of a MatMul -> the constant that an Add merged with it adds
    layers:    the products whose constants get codes, by the names of their nodes; None: all
    features:  inputs with a scale for each feature, the last axis
    entries:   input -> the value behind it that is quantized in its place
    magnitudes: square roots whose scales are multiples of those of what is squared
    greatest: quantized value -> the greatest of its elements, which alone are read
    """

    quantized: tuple[str, ...]
    group: dict[str, str]
    operands: frozenset[tuple[str, int]]
    biases: dict[str, str]
    layers: frozenset[str] | None = None
    features: frozenset[str] = frozenset()
    magnitudes: tuple[Magnitude, ...] = ()
    entries: Mapping[str, str] = field(default_factory=dict)
    greatest: Mapping[str, str] = field(default_factory=dict)

    def groups_of_inputs(self, graph: Graph) -> set[str]:
        """The groups that the codes of inputs, which are no states, belong to."""
        named = (self.entries.get(name, name) for name in graph.own_inputs)
        return {self.group[name] for name in named if name in self.group}

    def weighs(self, node: Node) -> bool:
        """Whether the weights and the bias of a product get codes."""
        return self.layers is None or node.name in self.layers

    def weights_alone(self) -> Placement:
        """The same without activations."""
        return replace(self, quantized=())

    def members(self) -> dict[str, list[str]]:
        """Group -> its quantized values and constants."""
        members: dict[str, list[str]] = {}
        for name, group in self.group.items():
            members.setdefault(group, []).append(name)
        return members


def is_movement(node: Node) -> bool:
    """The codes of the output are codes of the inputs, with the same scale."""
    if node.op == "Pad":
        # Zero has a code in every format; another fill value gets a scale of its own.
        return node.attributes["mode"] != "constant" or node.attributes["value"] == 0
    return has(node.op, Trait.MOVEMENT, Trait.SELECTION)


def is_row(shape: tuple[int, ...], channels: int) -> bool:
    """Whether a shape is that of one number for each channel, channels last."""
    return shape[-1:] == (channels,) and math.prod(shape) == channels


def row_added(graph: Graph, product: Node, node: Node) -> str:
    """The value, one number for each column, that `node` adds to a MatMul; "" where it adds none.

    Its result has the shape of the product.
    """
    shape = graph.values[node.output].shape
    if product.op != "MatMul" or node.op != "Add" or graph.values[product.output].shape != shape:
        return ""
    others = (name for name in node.inputs if name != product.output and shape)
    return next((name for name in others if is_row(graph.values[name].shape, shape[-1])), "")


def ranks(node: Node) -> bool:
    """Whether it gives the index of a greatest or least number: exact, if the numbers are."""
    return has(node.op, Trait.DECISION) and has(node.op, Trait.SCORING)


def place(
    graph: Graph,
    exact_sums: bool = False,
    tied: Sequence[Sequence[str]] = (),
    entries: Mapping[str, str] = MappingProxyType({}),
) -> Placement:
    """Decide where a float32 graph is quantized.

    tied: values that share a scale beside those that the rules join
    entries: input -> the value behind it that is quantized in its place (`levels`)

    Raises InputError if it is quantized already, UnsupportedError for other float types.
    """
    _check(graph)
    search = _Search(graph, exact_sums, tied, entries)
    while search.once():
        pass
    return search.placement()


def _check(graph: Graph) -> None:
    for node in graph.nodes:
        if has(node.op, Trait.QUANTIZES) and not is_stored(node, graph.constants):
            raise InputError(
                f"graph {graph.name!r}: expected a float model, found {node.op} (node "
                f"{node.name!r}); it is quantized already"
            )
    for value in graph.values.values():
        if value.dtype in REALS and value.dtype != "float32":
            raise UnsupportedError(
                f"graph {graph.name!r}: expected float32 tensors, found {value.dtype} (value "
                f"{value.name!r}); convert the model to float32"
            )


@dataclass
class _Search:
    """Repeats passes over the graph until no new value has to be quantized."""

    graph: Graph
    exact_sums: bool
    tied: Sequence[Sequence[str]] = ()
    entries: Mapping[str, str] = field(default_factory=dict)
    required: set[str] = field(default_factory=set)
    visited: set[str] = field(default_factory=set)  # required, or movements of required values

    def __post_init__(self) -> None:
        self.producers = self.graph.producers()
        self.consumers = self.graph.consumers()
        self.flags = flags_of(self.graph)
        self.masked = masks_of(self.graph, self.flags)
        self.magnitudes = {
            name: each for each in magnitudes(self.graph) for name in (*each.inside, each.output)
        }
        ends = (self.entries.get(name, name) for name in self.graph.inputs)
        for name in (*ends, *self.graph.outputs):
            if not self.tallied(name):
                self.require(name)

    def is_real(self, name: str) -> bool:
        return bool(name) and self.graph.values[name].dtype == "float32"

    def is_variable(self, name: str) -> bool:
        return bool(name) and name not in self.graph.constants

    def tallied(self, name: str) -> bool:
        """Whether it holds the sums of decision trees."""
        return name in self.producers and has(self.producers[name].op, Trait.TALLIES)

    def require(self, name: str) -> None:
        """This value needs codes: it is quantized, or what it is moved from."""
        waiting = [name]
        while waiting:
            name = waiting.pop()
            if name in self.visited or not self.is_variable(name) or not self.is_real(name):
                continue
            self.visited.add(name)
            node = self.producers.get(name)
            if node is not None and (is_movement(node) or has(node.op, Trait.RANGED)):
                waiting += moved_inputs(node)
            else:
                self.required.add(name)

    def once(self) -> bool:
        """One pass in topological order; True if a value was added."""
        before = len(self.required)
        # The one tensor that a value not quantized is a function of; itself for all others.
        self.root: dict[str, str] = {name: name for name in self.graph.inputs}
        self.axis: dict[str, int] = {}  # of such a function with constants along one axis
        self.sums: set[str] = set()  # accumulators that wait for the Relu or bias that reads them
        self.operands: set[tuple[str, int]] = set()
        self.biases: dict[str, str] = {}
        self.shared: list[Sequence[str]] = []  # values that have one scale
        self.rooted: list[Magnitude] = []
        for node in self.graph.nodes:
            for name in node.outputs:
                self.root[name] = name
            for name in self.needs(node):
                self.require(name)
        return len(self.required) > before

    def needs(self, node: Node) -> Iterable[str]:
        """The values that this node wants quantized."""
        inputs = [name for name in node.inputs if name]
        variables = [name for name in inputs if self.is_variable(name)]
        output = node.output
        if output in self.flags:  # of an integer input, which says places: they have no codes
            return ()
        magnitude = self.magnitudes.get(output)
        if magnitude is not None:
            return self.squares(node, magnitude)
        if is_movement(node):
            moved = moved_inputs(node)
            self.read_constants(node, range(len(moved)))
            self.shared.append([*moved, *node.outputs])
            return moved
        if output in self.masked:
            return [self.masked[output].scores]
        if has(node.op, Trait.POINTWISE) and variables:
            if self.sums & set(variables):
                terms = [self.term(v) for v in variables if v not in self.sums]
                return [*terms, *self.accumulator(node)]
            roots = {self.root[name] for name in variables}
            one = len(roots) == 1 and has(node.op, Trait.FUNCTION)
            axes = self.expression(node, next(iter(roots))) if one else None
            if axes is not None:
                axes |= {self.axis[name] for name in variables if name in self.axis}
                if len(axes) > 1:  # a table has one row per index of one axis
                    return variables
                if output not in self.required:
                    self.root[output] = roots.pop()
                    if axes:
                        self.axis[output] = axes.pop()
                return ()
            self.read_constants(node, range(len(node.inputs)))
            if node.op in ("Max", "Min"):
                self.shared.append([*inputs, output])
        if has(node.op, Trait.ACCUMULATES):
            return [*variables, *self.accumulator(node)]
        if has(node.op, Trait.TALLIES):
            coded = any(not ranks(reader) for reader in self.consumers[output])
            return [*variables, output] if coded else variables
        if ranks(node):
            return [name for name in variables if not self.tallied(name)]
        return [*(name for name in variables if name not in self.masked), *node.outputs]

    def squares(self, node: Node, magnitude: Magnitude) -> Iterable[str]:
        """Want codes of what is squared and of the root, of nothing between them."""
        if node.output != magnitude.output:
            return [name for name in node.inputs if name in magnitude.operands]
        self.rooted.append(magnitude)
        self.shared.append(magnitude.operands)
        return (node.output,)

    def term(self, name: str) -> str:
        """The value to quantize for a term of a sum: the factor of a constant, where the product
        can stay exact, else the term itself."""
        node = self.producers.get(name)
        if not self.exact_sums or node is None or node.op != "Mul" or name in self.required:
            return name
        variables = [n for n in node.inputs if self.is_variable(n)]
        if len(variables) != 1 or len(self.consumers[name]) != 1 or name in self.graph.outputs:
            return name
        self.read_constants(node, (i for i, n in enumerate(node.inputs) if n not in variables))
        return variables[0]

    def accumulator(self, node: Node) -> Iterable[str]:
        """Its output, unless the one node that reads it merges with it."""
        output = node.output
        readers = self.consumers[output]
        if output in self.graph.outputs or output in self.required or len(readers) != 1:
            return (output,)
        bias = self.bias(node, readers[0])
        term = self.exact_sums and readers[0].op in ("Add", "Sub")
        if not bias and not term and readers[0].op not in MERGING:
            return (output,)
        if bias:
            self.biases[output] = bias
        self.sums.add(output)
        return ()

    def bias(self, product: Node, node: Node) -> str:
        """The constant, one number per column, that `node` adds to a MatMul; "" if it does not."""
        name = row_added(self.graph, product, node)
        return name if name in self.graph.constants and self.is_real(name) else ""

    def expression(self, node: Node, root: str) -> set[int] | None:
        """The axes along which the constants of a function of `root` vary; None if it is not
        element by element, or if they vary along several axes."""
        values = self.graph.values
        shape = values[root].shape
        if values[node.output].shape != shape:
            return None
        axes: set[int] = set()
        for name in node.inputs:
            if name in self.graph.constants:
                axes |= _varying(values[name].shape, len(shape))
        return axes if len(axes) <= 1 else None

    def read_constants(self, node: Node, positions: Iterable[int]) -> None:
        for position in positions:
            name = node.inputs[position]
            if name in self.graph.constants and self.is_real(name):
                self.operands.add((node.name, position))

    def placement(self) -> Placement:
        """The result of the search. Values that share a scale are joined by union-find: what
        movements move, operands of Max, Min and Concat, and a state with its next value."""
        parent: dict[str, str] = {}

        def find(name: str) -> str:
            while parent.setdefault(name, name) != name:
                parent[name] = name = parent.setdefault(parent[name], parent[name])
            return name

        carried = [[state.input, state.output] for state in self.graph.states]
        for shared in (*self.shared, *carried, *self.tied):
            real = [name for name in shared if self.is_real(name)]
            for name in real[1:]:
                parent[find(name)] = find(real[0])
        # Roots of one scale are multiples of one: what is squared has one too, and so on.
        for _ in self.rooted:
            first: dict[str, str] = {}
            for each in self.rooted:
                operand = first.setdefault(find(each.output), each.operands[0])
                parent[find(each.operands[0])] = find(operand)
        order = [*self.graph.inputs, *(n for node in self.graph.nodes for n in node.outputs)]
        coded = [name for name in order if name in self.visited]
        constants = {
            node.inputs[position]
            for node in self.graph.nodes
            for position in range(len(node.inputs))
            if (node.name, position) in self.operands
        }
        return Placement(
            tuple(name for name in order if name in self.required),
            {name: find(name) for name in (*coded, *sorted(constants))},
            frozenset(self.operands),
            self.biases,
            features=frozenset(filter(self.by_feature, self.graph.own_inputs)),
            magnitudes=tuple(self.rooted),
            entries=self.entries,
            greatest=dict(filter(None, map(self.greatest, order))),
        )

    def greatest(self, name: str) -> tuple[str, str] | None:
        """A quantized value and the output of what alone reads it, where that takes maxima."""
        readers = self.consumers[name]
        if name not in self.required or name in self.graph.outputs or len(readers) != 1:
            return None
        return (name, readers[0].output) if readers[0].op in GREATEST else None

    def by_feature(self, name: str) -> bool:
        """Whether an input may have a scale for each feature, and gains by it."""
        shape, alone = self.graph.values[name].shape, name not in self.graph.outputs
        if len(shape) != 2 or shape[1] == 1 or not self.is_real(name):
            return False
        gains, waiting = False, [name]
        while waiting and alone:
            value = waiting.pop()
            for node in self.consumers[value]:
                if has(node.op, Trait.TALLIES):
                    alone &= value == name
                    gains = True
                    continue
                constants = [n for n in node.inputs if n in self.graph.constants]
                scaled = has(node.op, Trait.ACCUMULATES) and len(constants) == 1
                alone &= has(node.op, Trait.POINTWISE) and (scaled or node.op in MERGING)
                gains |= self.axis.get(node.output, 0) == 1
                if node.output not in self.required:
                    waiting.append(node.output)
        return alone and gains


def _varying(shape: tuple[int, ...], rank: int) -> set[int]:
    """The axes of a tensor of this rank along which a constant of this shape varies."""
    return {rank - len(shape) + i for i, size in enumerate(shape) if size != 1}
