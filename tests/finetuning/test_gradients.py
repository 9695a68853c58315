"""Rules for gradients: the executor's own numbers where no rounding is, slopes, saturation."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import torch

from samebits.finetuning.gradients import Call, least_code, smooth
from samebits.ir import Graph, GraphBuilder
from samebits.pytorch.executor import TorchExecutor


def gradient(graph: Graph, *arrays: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """What the only node gives, smoothly, and the gradient of its first operand."""
    executor = TorchExecutor(graph)
    ((node, function),) = executor.functions
    exact = [torch.tensor(array) for array in arrays]
    exact += [executor.constants[name] for name in node.inputs[len(arrays) :]]
    reals = [x.float().requires_grad_() for x in exact]
    out = smooth(Call(node, function, exact, reals, least_code(graph, node)))
    out.sum().backward()
    return out.detach(), reals[0].grad


def one(op, kind, count, *constants, **attributes):
    builder = GraphBuilder("one")
    x = builder.input("x", kind, (count,))
    names = [builder.constant("t", np.array(c)) for c in constants]
    return builder.build([builder.add(op, [x, *names], attributes)])


def test_a_ratio_passes_and_saturation_stops():
    ratios = (Fraction(1, 4),)
    graph = one("requantize", "int32", 4, ratios=ratios, zero=3, low=-128, high=127, dtype="int8")
    out, found = gradient(graph, [10, 496, 497, -600])
    assert out.tolist() == [5.5, 127, 127, -128]
    assert found.tolist() == [0.25, 0.25, 0, 0]


def test_a_clip():
    graph = one("clip", "int8", 3, low=-5, high=5)
    assert gradient(graph, [-6, 0, 5])[1].tolist() == [0, 1, 1]


def test_the_slope_of_a_table():
    """Half the rise between both neighbours, at the ends the whole of one."""
    table = np.minimum(np.arange(-128, 128) ** 2 // 200, 100).astype(np.int8)
    graph = one("table", "int8", 4, table)
    places = [-128, -100, 30, 127]
    rises = [(table[max(p + 127, 0)], table[min(p + 129, 255)]) for p in places]
    spans = [1, 2, 2, 1]
    expected = [(int(b) - int(a)) / span for (a, b), span in zip(rises, spans, strict=True)]
    assert gradient(graph, places)[1].tolist() == expected


def test_a_table_for_each_channel():
    rows = np.stack([np.arange(-128, 128), np.arange(127, -129, -1)]).astype(np.int8)
    builder = GraphBuilder("one")
    x = builder.input("x", "int8", (1, 2))
    graph = builder.build([builder.add("table", [x, builder.constant("t", rows)])])
    assert gradient(graph, [[5, 5]])[1].tolist() == [[1, -1]]
