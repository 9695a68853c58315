"""Rules for gradients through integer operators: each operator without its rounding.

"Straight-through" (Y. Bengio et al., "Estimating or Propagating Gradients Through Stochastic
Neurons for Conditional Computation", 2013): forward the integers, backward the derivative of a
smooth function of the same numbers. Where codes saturate, nothing passes. A table has the slope
between the entries on both sides; exponentials, of a softmax, have the base that theirs stands for.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch.nn import functional

from samebits.errors import UnsupportedError
from samebits.ir import Graph, Node
from samebits.ir.integer.define import limits
from samebits.ir.integer.normalize import FRACTION_BITS, vector_length

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


def _conv_transpose(call: Call) -> Tensor:
    """The whole sum, cut where pads are, with zeros where no tap reaches."""
    x, w, b = call.reals
    a = call.node.attributes
    groups, (top, left, *_), (height, width) = a["groups"], a["pads"], a["size"]
    outputs, kh, kw, inputs = w.shape
    # torch has the channels of the input first: [C, O / groups, KH, KW].
    w = w.reshape(groups, outputs // groups, kh, kw, inputs).permute(0, 4, 1, 2, 3)
    whole = functional.conv_transpose2d(
        (x - a["zero"]).permute(0, 3, 1, 2),
        w.reshape(groups * inputs, outputs // groups, kh, kw),
        *(None, a["strides"], 0, 0, groups, a["dilations"]),
    )
    below, right = top + height - whole.shape[2], left + width - whole.shape[3]
    return functional.pad(whole, (-left, right, -top, below)).permute(0, 2, 3, 1) + b


def _to_codes(call: Call, real: Tensor) -> Tensor:
    a = call.node.attributes
    return (real + a["zero"]).clamp(a["low"], a["high"])


def _requantize(call: Call) -> Tensor:
    ratios = call.reals[0].new_tensor([float(ratio) for ratio in call.node.attributes["ratios"]])
    return _to_codes(call, call.reals[0] * (ratios if len(ratios) > 1 else ratios[0]))


def _divide(call: Call) -> Tensor:
    x, y = call.reals
    return _to_codes(call, x * float(call.node.attributes["ratio"]) / y.clamp(min=1))


def _root(call: Call) -> Tensor:
    """No slope below 1, where that of the root grows without bound."""
    x, a = call.reals[0], call.node.attributes
    return _to_codes(call, (x.clamp(min=1) * (a["p"] / a["q"])).sqrt() * (x >= 1))


def _softmax(call: Call) -> Tensor:
    """Shares of the scores that a mask keeps; rows without any are zeros."""
    x, table, *masks = call.reals
    kept = torch.ones_like(x) if not masks else (masks[0] != 0).to(x.dtype).expand(x.shape)
    most = x.detach().masked_fill(kept == 0, call.lowest).amax(-1, keepdim=True)
    powers = torch.exp(_rate(table) * (x - most).clamp(max=0)) * kept
    shares = powers / powers.sum(-1, keepdim=True).clamp(min=1)
    return _to_codes(call, shares * float(call.node.attributes["ratio"]))


def _log_softmax(call: Call) -> Tensor:
    x, table = call.reals
    a, rate = call.node.attributes, _rate(table)
    return _to_codes(call, torch.log_softmax(x * rate, -1) * (a["m"] / rate / 2 ** a["shift"]))


def _rate(table: Tensor) -> float:
    """r of a table of t[0] * exp(-r * d): of the last entry that has half the bits of the first."""
    table = table.detach()
    first = float(table[0])
    place = max(1, int((table >= math.sqrt(first)).sum()) - 1)
    return math.log(first / max(float(table[place]), 0.5)) / place


def _normalize(call: Call) -> Tensor:
    x, m, b = call.reals
    a = call.node.attributes
    groups, n = a["groups"], vector_length(x.shape, a)
    d = x - a["x_zero"]
    d = d.reshape(math.prod(x.shape[: a["batch"]]), -1, groups, x.shape[-1] // groups)
    if a["centered"]:
        d = d - d.mean((1, 3), keepdim=True)
    variance = (d * d).mean((1, 3), keepdim=True) + a["epsilon"] / n**2
    normal = (d / variance.clamp(min=1 / n**2).sqrt()).reshape(x.shape)
    unit = 2.0 ** -a["shift"]
    return _to_codes(call, normal * (m * (2.0**FRACTION_BITS * unit)) + b * unit)


def _places(call: Call) -> Tensor:
    """The executor's own function of an operand whose numbers others, integers, move or weigh."""
    return call.function(call.reals[0], *call.exact[1:])


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
    "conv_transpose": _conv_transpose,
    "linear": _linear,
    "matmul": _matmul,
    "requantize": _requantize,
    "divide": _divide,
    "root": _root,
    "softmax": _softmax,
    "log_softmax": _log_softmax,
    "normalize": _normalize,
    "gather": _places,
    "resample": _places,
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
    "top_k": _same,
}
