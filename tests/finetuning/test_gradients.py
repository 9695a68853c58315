"""Rules for gradients: the executor's own numbers where no rounding is, slopes, saturation."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
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


def of_codes(op, shape, *constants, kind="int8", **attributes):
    """A graph of one operator of codes and constants."""
    builder = GraphBuilder("one")
    names = [builder.input("x", kind, shape)]
    names += [builder.constant("c", np.array(c)) for c in constants]
    return builder.build([builder.add(op, names, attributes)])


CODES = {"zero": 3, "low": -128, "high": 127, "dtype": "int8"}
POWERS = np.round(2.0**24 * np.exp(-np.arange(256) / 20)).astype(np.int32)
LAYER = {"shift": 30, "epsilon": 1000, "x_zero": 5, **CODES}
FACTORS = (np.int32([300, -200, 150, 400]), np.int64([1 << 30, -(1 << 31), 5, 0]))
TAPS = (np.int32([[0, 1], [1, 2]]), np.int32([[1, 3], [2, 2]]))
UP = {"strides": (2, 3), "dilations": (1, 2), "zero": -4, "dtype": "int32"}
ROUNDED = {
    "softmax": of_codes("softmax", (3, 5), POWERS, ratio=Fraction(256), **CODES),
    "softmax, masked": of_codes(
        *("softmax", (3, 5), POWERS, np.int8([[1] * 5, [0, 1, 0, 1, 1], [0] * 5])),
        **{"ratio": Fraction(200), **CODES},
    ),
    "log_softmax": of_codes("log_softmax", (3, 5), POWERS, m=1 << 40, b=908522, shift=40, **CODES),
    "rows": of_codes("normalize", (2, 3, 4), *FACTORS, batch=2, **LAYER),
    "groups": of_codes("normalize", (2, 3, 4), *FACTORS, batch=1, groups=2, **LAYER),
    "root mean squares": of_codes(
        *("normalize", (2, 4), *FACTORS), batch=1, centered=False, **LAYER
    ),
    "root": of_codes("root", (7,), p=1000, q=9, **CODES),
    "divide": of_codes(
        *("divide", (6,), np.int32([9, 1, 0, 40, 5, 3])), ratio=Fraction(7, 2), **CODES
    ),
}  # fmt: skip
EXACT = {
    "conv_transpose": of_codes(
        *("conv_transpose", (1, 3, 2, 4), np.arange(-24, 24, dtype=np.int8).reshape(4, 3, 2, 2)),
        *(np.int32([1, 2, 3, 4]),),
        **{"pads": (1, 0, 1, 2), "groups": 2, "size": (7, 6), **UP},
    ),
    "gather": of_codes("gather", (4, 3), np.int64([2, -1, 2, 9]), axis=0),
    "resample": of_codes("resample", (1, 3, 3, 2), *TAPS, *TAPS, zero=2, dtype="int32"),
    "top_k": of_codes("top_k", (2, 6), axis=1, k=3, largest=True),
}


@pytest.mark.parametrize("name", [*ROUNDED, *EXACT])
def test_what_leads_there_is_the_same_but_for_the_rounding(name):
    graph = {**ROUNDED, **EXACT}[name]
    executor = TorchExecutor(graph)
    ((node, function),) = executor.functions
    value = graph.values[graph.inputs[0]]
    for seed in range(20):
        codes = np.random.default_rng(seed).integers(-128, 128, value.shape)
        exact = [torch.from_numpy(codes), *(executor.constants[n] for n in node.inputs[1:])]
        reals = [x.double().requires_grad_() for x in exact]
        found = smooth(Call(node, function, exact, reals, least_code(graph, node)))
        difference = (found - function(*exact)).abs().max()
        assert difference <= (0.51 if name in ROUNDED else 0), (seed, difference)
        assert torch.autograd.grad(found.sum(), reals[0])[0].isfinite().all()


def test_the_gradient_of_a_softmax():
    """Shares p of exp(-d / 20): ratio * p_j * ([i = j] - p_i) / 20."""
    graph = of_codes("softmax", (1, 3), POWERS, ratio=Fraction(256), zero=-128, **{
        key: CODES[key] for key in ("low", "high", "dtype")
    })  # fmt: skip
    executor = TorchExecutor(graph)
    ((node, function),) = executor.functions
    exact = [torch.tensor([[7, -3, 20]]), *executor.constants.values()]
    reals = [x.double().requires_grad_() for x in exact]
    out = smooth(Call(node, function, exact, reals, -128))
    (found,) = torch.autograd.grad(out[0, 1], reals[0])
    p = torch.softmax(exact[0].double() / 20, -1)
    expected = 256 / 20 * p[0, 1] * (torch.tensor([[0.0, 1, 0]]) - p)
    assert torch.allclose(found, expected, rtol=1e-4)
