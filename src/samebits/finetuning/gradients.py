"""Rules for gradients through integer operators: each operator without its rounding.

"Straight-through" (Y. Bengio et al., "Estimating or Propagating Gradients Through Stochastic
Neurons for Conditional Computation", 2013): forward the integers, backward the derivative of a
smooth function of the same numbers. Where codes saturate, nothing passes. A table has the slope
between the entries on both sides.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch.nn import functional

from samebits.errors import UnsupportedError
from samebits.ir import Graph, Node
from samebits.ir.integer.define import limits

Tensor = torch.Tensor
Function = Callable[..., Tensor]


@dataclass(frozen=True)
class Call:
    """One node at work.

    function: of the executor, on integers. exact, reals: its operands, int64 and the same numbers
    in binary32, through which gradients pass. lowest: the least integer of the first operand's type
    """

    node: Node
    function: Function
    exact: Sequence[Tensor]
    reals: Sequence[Tensor]
    lowest: int


def smooth(call: Call) -> Tensor:
    """A function of `reals` whose derivative stands for that of the node."""
    return _RULES[call.node.op](call)


def check_trainable(graph: Graph) -> None:
    """UnsupportedError that names the first node through which no gradient passes."""
    for node in graph.nodes:
        if node.op not in _RULES:
            raise UnsupportedError(
                f"node {node.name!r} ({node.op}): expected an operator with a rule for gradients "
                f"({', '.join(sorted(_RULES))}); fine-tune before quantizing, or without this layer"
            )


def least_code(graph: Graph, node: Node) -> int:
    """The least integer that the type of a node's first operand holds."""
    return limits(graph.values[node.inputs[0]].dtype)[0]


def _same(call: Call) -> Tensor:
    """The executor's own function: sums, products and movements of any numbers."""
    return call.function(*call.reals)


def _conv(call: Call) -> Tensor:
    x, w, b = call.reals
    a = call.node.attributes
    top, left, bottom, right = a["pads"]
    padded = functional.pad(x.permute(0, 3, 1, 2), (left, right, top, bottom), value=a["pad_code"])
    out = functional.conv2d(
        padded, w.permute(0, 3, 1, 2), b, a["strides"], 0, a["dilations"], a["groups"]
    )
    return out.permute(0, 2, 3, 1)


def _linear(call: Call) -> Tensor:
    return functional.linear(*call.reals)


def _matmul(call: Call) -> Tensor:
    a, b = call.reals
    return (a - call.node.attributes["a_zero"]) @ (b - call.node.attributes["b_zero"])


def _requantize(call: Call) -> Tensor:
    a = call.node.attributes
    ratios = call.reals[0].new_tensor([float(ratio) for ratio in a["ratios"]])
    if len(ratios) == 1:
        ratios = ratios[0]
    return (call.reals[0] * ratios + a["zero"]).clamp(a["low"], a["high"])


def _clip(call: Call) -> Tensor:
    return call.reals[0].clamp(call.node.attributes["low"], call.node.attributes["high"])


def _table(call: Call) -> Tensor:
    x, table = call.exact
    places = x - call.lowest
    entries = table.shape[-1]
    before, after = (places - 1).clamp(min=0), (places + 1).clamp(max=entries - 1)
    if table.ndim == 2:
        row = torch.arange(len(table), device=x.device) * entries
        rise = table.reshape(-1)[after + row] - table.reshape(-1)[before + row]
    else:
        rise = table[after] - table[before]
    return call.reals[0] * (rise / (after - before))


_RULES: dict[str, Callable[[Call], Tensor]] = {
    "conv": _conv,
    "linear": _linear,
    "matmul": _matmul,
    "requantize": _requantize,
    "clip": _clip,
    "table": _table,
    "affine": _same,
    "add": _same,
    "multiply": _same,
    "max_pool": _same,
    "sum_pool": _same,
    "reduce_sum": _same,
    "reduce_max": _same,
    "reduce_min": _same,
    "maximum": _same,
    "minimum": _same,
    "reshape": _same,
    "transpose": _same,
    "expand": _same,
    "slice": _same,
    "concat": _same,
    "pad": _same,
}
