"""Quantized real graphs in forms that onnxruntime's optimizer takes (`loadable_form`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from samebits.ir import Graph, Node, Trait, Value, has
from samebits.ir.rewrite import Edit, rewrite

OPSET = 21  # the first in which QuantizeLinear has output_dtype


@dataclass(frozen=True)
class _Numbers:
    """Names of the scale and zero point of a DequantizeLinear of int8 codes, one of each."""

    scale: str
    zero: str


def loadable_form(graph: Graph) -> Graph:
    """The same function, written so that onnxruntime loads it with its default options.

    Where its optimizer finds int8 codes dequantized and then moved, it quantizes them behind the
    move and dequantizes them again, from opset 21 on with output_dtype=INT8
    (QDQPropagationTransformer). On x86 it then turns such pairs into uint8 and leaves that
    attribute as it was (QDQS8ToU8Transformer), which it refuses: issue 25526. So

    * moves and maxima of dequantized int8 codes are followed by a pair of the same scale here:
      codes that are moved and quantized with the scale that they have stay what they are;
    * a bias [N] that an Add gives to a MatMul of other than 2 axes has the shape [1, N]: it would
      become a Gemm between two Reshapes without such pairs (MatMulAddFusion).
    """
    numbers: dict[str, _Numbers] = {}
    consumers = graph.consumers()

    def rule(edit: Edit, node: Node) -> list[Node] | None:
        """The nodes in place of one that moves int8 codes or adds a bias."""
        if node.op == "DequantizeLinear":
            found = _numbers(edit, node)
            if found is not None:
                numbers[node.output] = found
            return None
        if node.op == "Add":
            return _biased(edit, node, numbers)
        found = numbers.get(node.inputs[0]) if node.inputs else None
        if found is None or not _moves(edit, node):
            return None
        numbers[node.output] = found
        readers = consumers[node.output]
        if node.output in graph.outputs or any(n.op != "QuantizeLinear" for n in readers):
            return _paired(edit, node, found)
        return None

    return rewrite(graph, rule)


def _numbers(edit: Edit, node: Node) -> _Numbers | None:
    codes, scale, *zero = node.inputs
    if edit.values[codes].dtype != "int8" or edit.values[scale].dtype != "float32" or not zero:
        return None
    single = all(name in edit.constants and edit.values[name].size == 1 for name in (scale, *zero))
    return _Numbers(scale, *zero) if single else None


def _moves(edit: Edit, node: Node) -> bool:
    """Whether every element of the one result is one of the first input."""
    others = all(name in edit.constants for name in node.inputs[1:] if name)
    filled = node.op == "Pad" and node.attributes["mode"] == "constant"
    moves = has(node.op, Trait.MOVEMENT, Trait.SELECTION) and node.op != "Concat"
    return moves and others and not filled and len(node.outputs) == 1


def _paired(edit: Edit, node: Node, numbers: _Numbers) -> list[Node]:
    output = node.output
    moved = edit.value(f"{output}.moved", edit.values[output])
    codes = edit.value(f"{output}.codes", Value("", "int8", edit.values[output].shape))
    return [
        Node(node.op, node.name, node.inputs, (moved,), node.attributes),
        edit.node("QuantizeLinear", [moved, numbers.scale, numbers.zero], codes),
        edit.node("DequantizeLinear", [codes, numbers.scale, numbers.zero], output),
    ]


def _biased(edit: Edit, node: Node, numbers: Mapping[str, _Numbers]) -> list[Node] | None:
    """The Add of a MatMul and a constant [N], or codes of one, that becomes [1, N]."""
    for position, name in enumerate(node.inputs):
        product = edit.producers.get(node.inputs[1 - position])
        if (
            product is None
            or product.op != "MatMul"
            or product.inputs[0] not in numbers
            or len(edit.values[product.inputs[0]].shape) == 2
            or len(edit.values[name].shape) != 1
        ):
            continue
        found = edit.producers.get(name)
        nodes = []
        if name in edit.constants:
            row = edit.constant(f"{name}.row", edit.constants[name][None])
        elif found is not None and _constant_codes(edit, found):
            codes = edit.constant(f"{name}.row.codes", edit.constants[found.inputs[0]][None])
            row = edit.value(f"{name}.row", Value("", "float32", (1, *edit.values[name].shape)))
            nodes = [edit.node("DequantizeLinear", [codes, *found.inputs[1:]], row, axis=1)]
        else:
            continue
        inputs = tuple(row if i == position else n for i, n in enumerate(node.inputs))
        return [*nodes, Node(node.op, node.name, inputs, node.outputs, node.attributes)]
    return None


def _constant_codes(edit: Edit, node: Node) -> bool:
    return node.op == "DequantizeLinear" and node.inputs[0] in edit.constants
