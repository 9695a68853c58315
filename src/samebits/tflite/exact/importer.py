"""A TensorFlow Lite file as a real graph. docs/spec/tflite.md.

A tensor of codes stands in the graph as the real numbers of its codes: behind every operator that
makes new numbers a QuantizeLinear rounds them once to the tensor's scale. Operators that move
numbers keep the scale that these have, where the file says so too.
"""

from __future__ import annotations

from samebits.errors import InputError, UnsupportedError, listed
from samebits.ir import Graph
from samebits.ir.foreign import Result
from samebits.ir.rewrite import remove_dead
from samebits.tflite.exact.builder import ImageBuilder
from samebits.tflite.exact.mapping import MOVEMENTS, RULES
from samebits.tflite.exact.node import LiteNode
from samebits.tflite.file import File, LiteOperator, Subgraph, Tensor
from samebits.tflite.schema import OPAQUE

_NONE = LiteOperator("", (), ())
SHAPED = ("RESHAPE",)  # operators whose further inputs only repeat the shape of the result


def import_file(file: File, source: str) -> Graph:
    """The real graph of the first subgraph. source: what messages call the file.

    Raises InputError for a file that contradicts itself, UnsupportedError with every operator that
    has no counterpart.
    """
    try:
        return _Importer(file.subgraphs[0]).run()
    except (InputError, UnsupportedError) as error:
        raise type(error)(f"{source}: {error}") from None


class _Importer:
    def __init__(self, graph: Subgraph) -> None:
        self.graph = graph
        self.builder = ImageBuilder(graph.name or "model")
        self.values: dict[int, str] = {}
        self.failed: set[int] = set()  # tensors that a refused operator would write
        self.problems: list[str] = []

    def run(self) -> Graph:
        graph = self.graph
        if not graph.outputs:
            raise InputError("expected a network with outputs, found none; convert it again")
        for kind, numbers in (("inputs", graph.inputs), ("outputs", graph.outputs)):
            if len(set(numbers)) != len(numbers):
                raise InputError(f"expected {kind} that differ, found one twice; convert it again")
        for number in graph.inputs:
            self._input(number)
        needed = self._needed()
        for position, operator in enumerate(graph.operators):
            if needed[position]:
                self._operator(position, str(operator))
        self._raise_problems()
        return remove_dead(self.builder.build([self._output(number) for number in graph.outputs]))

    def _needed(self) -> list[bool]:
        """Whether an output depends on each of the operators."""
        wanted, found = set(self.graph.outputs), []
        for operator in reversed(self.graph.operators):
            needed = not wanted.isdisjoint(operator.outputs)
            found.append(needed)
            if needed:
                count = 1 if operator.op in SHAPED else len(operator.inputs)
                wanted.update(operator.inputs[:count])
        return found[::-1]

    def _node(self, position: int, where: str) -> LiteNode:
        operator = self.graph.operators[position]
        hint = f"{operator.op}_{position}"
        return LiteNode(self.builder, operator.op, hint, where, self.graph, operator, self.values)

    def _input(self, number: int) -> None:
        """An input of real numbers, or of integers that stand for themselves."""
        tensor = self.graph.tensors[number]
        if tensor.dtype in OPAQUE:
            raise UnsupportedError(f"{tensor}: expected an input of numbers, found {tensor.dtype}")
        name = tensor.name or f"input{number}"
        if not is_coded(tensor):
            self.values[number] = self.builder.input(name, tensor.dtype, tensor.shape)
            return
        value = self.builder.input(name, "float32", tensor.shape)
        node = LiteNode(self.builder, "", f"{name}.codes", "", self.graph, _NONE, self.values)
        self.values[number] = node.coded(value, tensor)

    def _operator(self, position: int, where: str) -> None:
        """Translate one operator; what it lacks is noted, and all that depends on it left out."""
        operator = self.graph.operators[position]
        if not self.failed.isdisjoint(operator.inputs):
            self.failed.update(operator.outputs)
            return
        rule = RULES.get(operator.op)
        try:
            if rule is None:
                raise UnsupportedError(
                    f"expected an operator that has a real form, found {operator.op} of version "
                    f"{operator.version}"
                )
            node, first = self._node(position, where), len(self.builder.nodes)
            self._settle(node, rule(node), first)
        except UnsupportedError as error:
            self.problems.append(f"{where}: {error}")
            self.failed.update(operator.outputs)
        except InputError as error:
            raise InputError(f"{where}: {error}; convert the model again") from None
        except ValueError as error:  # the rules of a real operator are broken
            raise InputError(f"{where}: {error}; convert the model again") from None

    def _settle(self, node: LiteNode, results: Result, first: int) -> None:
        """Enter the results of an operator, in codes where the file has them."""
        listed = (results,) if isinstance(results, str) else results
        numbers = node.operator.outputs
        if len(listed) != len(numbers):
            raise InputError(f"expected {len(listed)} outputs, found {len(numbers)}")
        for number, value in zip(numbers, listed, strict=True):
            if number in self.values:
                raise InputError(f"expected {self.graph.tensors[number]} to be written once")
            self.values[number] = self._settled(node, value, self.graph.tensors[number], first)

    def _settled(self, node: LiteNode, value: str, tensor: Tensor, first: int) -> str:
        """The value of a tensor under its own name, rounded to codes where it has some."""
        builder = self.builder
        shape = builder.values[value].shape
        if shape != tensor.shape:
            raise InputError(
                f"expected {tensor} of shape {list(shape)}, found {list(tensor.shape)}"
            )
        name = tensor.name or f"{node.hint}.out"
        kept = node.op in MOVEMENTS and not node.operator.options.get("activation")
        image = builder.known_first(value)
        if not is_coded(tensor) or (kept and _same_codes(node, tensor)):
            if image is not None:
                builder.named(image, f"{name}.image", first)
            return builder.named(value, name, first)
        if image is None:
            return node.coded(value, tensor, name)
        found = builder.channels_last(node.coded(image, tensor, f"{name}.image"))
        return builder.named(found, name, first)

    def _output(self, number: int) -> str:
        """The value of an output, under the file's name of it where that is free."""
        tensor = self.graph.tensors[number]
        if number not in self.values:
            raise InputError(
                f"expected the output {tensor} to be computed, found nothing that writes it; "
                "convert the model again"
            )
        value = self.values[number]
        name = tensor.name or f"output{number}"
        if value == name or name in self.builder.values:
            return value
        return self.builder.add("Identity", [value], {}, name, [name])

    def _raise_problems(self) -> None:
        """UnsupportedError with every operator that is not taken."""
        if self.problems:
            raise UnsupportedError(
                f"expected operators that have a real form, found {len(self.problems)} without; "
                f"change the model there and convert it again:\n{listed(self.problems)}"
            )


def is_coded(tensor: Tensor) -> bool:
    """Whether a tensor's integers stand for real numbers."""
    return tensor.quantization is not None and not tensor.dtype.startswith(("float", "bool"))


def _same_codes(node: LiteNode, result: Tensor) -> bool:
    """Whether all tensors that a movement reads numbers from have the codes of its result."""
    read = [node.tensor(i) for i in range(len(node.operator.inputs)) if node.has(i)]
    kinds = {(t.dtype, t.quantization) for t in read if is_coded(t)}
    return kinds == {(result.dtype, result.quantization)}
